"""The events of a job: one small immutable type for each. In words: events/event_text.py.

The same records are inputs of the state machines and lines of the event log. Events carry no
timestamp; the recording code adds one (`LoggedEvent`). An exit code below 0 is the number of the
signal that ended a process, as in torch and subprocess. events/event_schema.py documents each
field.
"""

from typing import Any, NamedTuple

SCHEMA = 1
"""The version of the lines of the event log. It rises when a field or an event is removed, or means
something else; new ones may come without that.
"""
_MOST_CAUSE = 300


class Formed(NamedTuple):
    """A generation was formed. `nodes` and `world_size` count its nodes and workers; `group_rank`
    and `host` are this node's. `failed_host` is the node on which the previous generation failed,
    or the lost node.
    """

    generation: int
    restart: int
    group_rank: int
    nodes: int
    world_size: int
    master_addr: str
    master_port: int
    cause: str
    failed_host: str = ""
    host: str = ""


class WorkerStarted(NamedTuple):
    """A worker process was started."""

    local_rank: int
    rank: int
    pid: int


class WorkerExited(NamedTuple):
    """A worker process has exited and was reaped."""

    local_rank: int
    exitcode: int


class WorkersFrozen(NamedTuple):
    """The workers' lease expired and they are stopped (`frozen`), or they continue."""

    frozen: bool


class SignalReceived(NamedTuple):
    """The agent received a signal that stops the job."""

    number: int


class GroupStopped(NamedTuple):
    """The coordinator wants the workers of this generation to stop."""

    generation: int
    cause: str


class ProcessRemains(NamedTuple):
    """A process that was to end with the workers still exists a second after SIGKILL."""

    pid: int
    name: str
    user: str
    refused: bool


class SpawnerLost(NamedTuple):
    """The spawner died, and the workers with it."""

    exitcode: int


class PreloadStarted(NamedTuple):
    """A process has begun to import modules, so that workers can be forked from it."""

    pid: int
    modules: str


class WarmProcessTaken(NamedTuple):
    """Workers are forked from a process left by an earlier job or `relight warm start`. It is
    `age_s` seconds old, and `uses` jobs have used it before.
    """

    pid: int
    modules: int
    age_s: float
    uses: int


class WarmProcessUnfit(NamedTuple):
    """A process that an earlier job has left is not used: a new one would import otherwise."""

    pid: int
    reason: str


class PreloadReady(NamedTuple):
    """The process has imported the modules and uses `mib` MiB. `left_out` are packages that workers
    import from the path without installation: the user's own.
    """

    pid: int
    modules: int
    seconds: float
    mib: float
    left_out: str


class PreloadWithout(NamedTuple):
    """A module was left out; each worker imports it itself, if it can. `seconds` is how long the
    import took until it failed, in this job or in the one that learned it. `asked`: the user named
    the modules.
    """

    module: str
    reason: str
    seconds: float
    asked: bool


class PreloadUnfit(NamedTuple):
    """The process can't be used (any longer) and is gone; `asked`: the user named the modules."""

    reason: str
    asked: bool


class WorkersWarm(NamedTuple):
    """Whether the workers of this generation are forked from that process, or why not."""

    warm: bool
    reason: str


class InternalErrorEvent(NamedTuple):
    """Outside input made relight raise an unexpected exception; the input was dropped.

    `during` names the input; `error` has the message and the place in relight's code.
    """

    during: str
    error: str

    @property
    def text(self) -> str:
        """The event in words. It is here because the handler of an error imports nothing."""
        where = "internal error in relight (a bug), please report it"
        return f"{where}: {self.during}: {self.error}"


class Tick(NamedTuple):
    """A deadline has passed."""


class Restarting(NamedTuple):
    """The workers will be started again."""

    restart: int
    of: int
    reason: str


class HealthChecked(NamedTuple):
    """This node was checked (--health-check). `reason`: why it leaves; empty if it passed."""

    seconds: float
    reason: str


class RanksSlow(NamedTuple):
    """Ranks on these hosts have been persistently slower than the others (--watch-slow-ranks) since
    a time in seconds since 1970; empty `ranks`: no longer.

    `slower` is their slowdown, `waited` the share of time that the others wait for them; both for
    the slowest node.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    slower: float
    waited: float
    since: float
    text: str


class RanksReplaced(NamedTuple):
    """All workers of this node run the function again `seconds` after the failure. Those of `ranks`
    were replaced; the `stayed` others kept their process.
    """

    generation: int
    ranks: tuple[int, ...]
    stayed: int
    seconds: float


class NotRestarting(NamedTuple):
    """The workers failed and will not be started again. `failed_host` is that of the root cause."""

    reason: str
    failed_host: str = ""


class StoreReached(NamedTuple):
    """Workers have connected to the store of the generation, which is on this node: the first one,
    or all. They connect in init_process_group.
    """

    generation: int
    workers: int
    world_size: int


class FailureNoticed(NamedTuple):
    """A failure of this node's workers was noticed, `after_s` seconds after it was there: one has
    ended (`local_rank`), or they hang (-1).
    """

    generation: int
    local_rank: int
    after_s: float


class StepsReported(NamedTuple):
    """The workers of this node have ended, and had called relight.worker.progress: `first` and
    `last` are when, on the clock of `t`; `step` is the highest.
    """

    generation: int
    step: int
    first: float
    last: float


class CheckpointFound(NamedTuple):
    """The workers have ended, and the newest file of --checkpoints was changed since they began."""

    generation: int
    saved: float


class StateChanged(NamedTuple):
    """A state machine has changed its state. Initial states, and states left immediately, are not
    recorded.
    """

    core: str
    before: str
    after: str
    cause: str
    job: str = ""


class GroupBegan(NamedTuple):
    """This process coordinates the group of a job from now on (--record-group)."""

    job: str
    origin: str
    settings: dict[str, Any]


class GroupStep(NamedTuple):
    """The coordinator handled a message, the loss of a node or a deadline (--record-group).
    `relight events --replay` repeats these steps.
    """

    job: str
    now: float
    input: dict[str, Any]
    effects: list[dict[str, Any]]


class Ended(NamedTuple):
    """The job has ended on this node."""

    exit_code: int
    reason: str


Readable = (
    Formed
    | WorkerStarted
    | WorkerExited
    | WorkersFrozen
    | SignalReceived
    | GroupStopped
    | ProcessRemains
    | SpawnerLost
    | PreloadStarted
    | WarmProcessTaken
    | WarmProcessUnfit
    | PreloadReady
    | PreloadWithout
    | PreloadUnfit
    | WorkersWarm
    | InternalErrorEvent
    | Restarting
    | HealthChecked
    | RanksSlow
    | RanksReplaced
    | NotRestarting
    | StoreReached
    | FailureNoticed
    | StepsReported
    | CheckpointFound
    | StateChanged
    | Ended
)
"""The events whose lines events/event_lines turns into records again."""
Event = Readable | GroupBegan | GroupStep | Tick


def changed(core: str, before: str, after: str, taken: object) -> StateChanged:
    """Return the event for a state change of a state machine.

    Args:
        core: the name of its module.
        before: its previous state.
        after: its current state.
        taken: the input; for a message from another process, the message itself.
    """
    taken = getattr(taken, "message", taken)
    reason = getattr(taken, "reason", "") or getattr(taken, "cause", "")
    name = type(taken).__name__
    cause = f"{name}: {reason}"[:_MOST_CAUSE] if reason else name
    return StateChanged(core, before, after, cause)


def is_user_visible(event: Event) -> bool:
    """Return whether an event is shown without `--verbose`."""
    asked = isinstance(event, PreloadUnfit | PreloadWithout) and event.asked
    return asked or isinstance(
        event, InternalErrorEvent | RanksSlow | RanksReplaced | ProcessRemains
    )


class LoggedEvent(NamedTuple):
    """An event with its place in the event log: `number` counts from 1; `t` is the monotonic clock,
    `time` is seconds since 1970.
    """

    number: int
    t: float
    time: float
    event: Event


def to_json(event: Event) -> dict[str, Any]:
    """Return an event as a JSON object; its type is under the key `event`."""
    return {"event": type(event).__name__, **event._asdict()}


def line_of(recorded: LoggedEvent) -> str:
    """Return the line of the event log, without its end."""
    import json

    number, t, time, event = recorded
    return json.dumps({"v": SCHEMA, "n": number, "t": t, "time": time, **to_json(event)})
