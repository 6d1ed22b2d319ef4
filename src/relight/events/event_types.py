"""The events that a job can generate, with one small immutable type per event. events/event_text.py
describes them in plain text.

The same records are inputs to the state machines and lines in the event log. Events carry no
timestamp; the code that records them adds one (`LoggedEvent`). A negative exit code is the number
of the signal that ended a process, as in torch and subprocess. documentation/events.py documents
each field.
"""

from typing import Any, NamedTuple

SCHEMA = 2
"""The version of the event log format. It is incremented when a field or an event is removed or
changes its meaning, but not when one is added.
"""
_MAX_CAUSE = 300


class Formed(NamedTuple):
    """A generation was formed. `nodes` and `world_size` count its nodes and workers; `group_rank`
    and `host` refer to this node. `failed_host` is the node on which the previous generation
    failed, or the node that was lost.
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
    """A worker process exited and was reaped."""

    local_rank: int
    exitcode: int


class WorkersFrozen(NamedTuple):
    """The workers' lease expired and they were stopped (`frozen`), or they were resumed."""

    frozen: bool


class SignalReceived(NamedTuple):
    """The agent received a signal that stops the job."""

    number: int


class GroupStopped(NamedTuple):
    """The coordinator requested that the workers of this generation stop."""

    generation: int
    cause: str


class ProcessRemains(NamedTuple):
    """A process that should have exited with the workers still exists one second after SIGKILL."""

    pid: int
    name: str
    user: str
    refused: bool


class SpawnerLost(NamedTuple):
    """The spawner died, and its workers died with it."""

    exitcode: int


class PreloadStarted(NamedTuple):
    """A process has begun to import modules so that workers can be forked from it."""

    pid: int
    modules: str


class WarmProcessTaken(NamedTuple):
    """Workers are forked from a process that an earlier job or `relight warm start` left behind. It
    is `age_s` seconds old, and `uses` jobs have used it before.
    """

    pid: int
    modules: int
    age_s: float
    uses: int


class WarmProcessUnfit(NamedTuple):
    """A process left behind by an earlier job is not used, because a new process would import
    something different.
    """

    pid: int
    reason: str


class PreloadReady(NamedTuple):
    """The process has imported the modules and uses `mib` MiB. `left_out` lists the user's own
    packages, which are imported from the Python path but not installed.
    """

    pid: int
    modules: int
    seconds: float
    mib: float
    left_out: str


class PreloadWithout(NamedTuple):
    """A module was left out; each worker imports it itself if it can. `seconds` is how long the
    import ran before it failed, in this job or in the earlier job that discovered the failure.
    `asked` is true if the user named the modules.
    """

    module: str
    reason: str
    seconds: float
    asked: bool


class PreloadUnfit(NamedTuple):
    """The process has exited because it can't be used, or can no longer be used. `asked` is true if
    the user named the modules.
    """

    reason: str
    asked: bool


class WorkersForked(NamedTuple):
    """The workers in this generation are forked from the process that imported the modules, or
    start cold for the given reason.
    """

    warm: bool
    reason: str


class InternalErrorEvent(NamedTuple):
    """Input from outside made relight raise an unexpected exception, and was dropped.

    `during` describes the input; `error` contains the message and the place in relight's code.
    """

    during: str
    error: str

    @property
    def text(self) -> str:
        """The event in plain text. It is defined here because an error handler must not import
        anything.
        """
        where = "internal error in relight (a bug), please report it"
        return f"{where}: {self.during}: {self.error}"


class Tick(NamedTuple):
    """A deadline passed."""


class Restarting(NamedTuple):
    """The workers are about to be restarted."""

    restart: int
    of: int
    reason: str
    budget: str = ""


class HealthChecked(NamedTuple):
    """This node's health was checked (--health-check). `reason` is empty if the node passed;
    otherwise, it says why the node leaves the job.
    """

    seconds: float
    reason: str


class RanksSlow(NamedTuple):
    """Ranks on these hosts have been consistently slower than the others since the time
    `since`, in seconds since 1970 (--watch-slow-ranks). If `ranks` is empty, every slow rank has
    caught up.

    `slower` is the slowest node's slowdown, and `waited` is the share of time that the other nodes
    spend waiting for it.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    slower: float
    waited: float
    since: float
    text: str


class RanksReplaced(NamedTuple):
    """All workers on this node are running the recoverable function again, `seconds` after the
    failure. The workers in `ranks` were replaced; `stayed` workers kept their processes.
    """

    generation: int
    ranks: tuple[int, ...]
    stayed: int
    seconds: float


class NotRestarting(NamedTuple):
    """The workers failed and will not be restarted. `failed_host` is the host of the root cause."""

    reason: str
    failed_host: str = ""


class StoreReached(NamedTuple):
    """The first worker, or all workers, have connected to the generation's store, which is on this
    node. They connect in init_process_group.
    """

    generation: int
    workers: int
    world_size: int


class FailureNoticed(NamedTuple):
    """A failure among this node's workers was detected, `after_s` seconds after it occurred. Either
    one worker exited (`local_rank`), or all workers hung (-1).
    """

    generation: int
    local_rank: int
    after_s: float


class StepsReported(NamedTuple):
    """The workers on this node have exited after calling relight.worker.progress. `first` and
    `last` are the times of the first and last calls, on the same clock as `t`; `step` is the
    highest step.
    """

    generation: int
    step: int
    first: float
    last: float


class CheckpointFound(NamedTuple):
    """The workers have exited, and the newest --checkpoints file was modified after they had
    started.
    """

    generation: int
    saved: float


class StateChanged(NamedTuple):
    """A state machine changed its state. Initial states, and states that are left immediately, are
    not recorded.
    """

    core: str
    before: str
    after: str
    cause: str
    job: str = ""


class GroupBegan(NamedTuple):
    """This process started coordinating a job's group (--record-group)."""

    job: str
    origin: str
    settings: dict[str, Any]


class GroupStep(NamedTuple):
    """The coordinator processed a message, the loss of a node, or a deadline (--record-group).
    `relight events --replay` repeats these steps.
    """

    job: str
    now: float
    input: dict[str, Any]
    effects: list[dict[str, Any]]


class Ended(NamedTuple):
    """The job ended on this node."""

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
    | WorkersForked
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
"""The events whose lines events/event_lines converts back into records."""
Event = Readable | GroupBegan | GroupStep | Tick


def changed(core: str, before: str, after: str, taken: object) -> StateChanged:
    """Return the event for a state machine's state change.

    Args:
        core: the name of its module.
        before: its previous state.
        after: its current state.
        taken: the input; for a message from another process, the message itself.
    """
    taken = getattr(taken, "message", taken)
    reason = getattr(taken, "reason", "") or getattr(taken, "cause", "")
    name = type(taken).__name__
    cause = f"{name}: {reason}"[:_MAX_CAUSE] if reason else name
    return StateChanged(core, before, after, cause)


def is_user_visible(event: Event) -> bool:
    """Return whether an event is shown without `--verbose`."""
    asked = isinstance(event, PreloadUnfit | PreloadWithout) and event.asked
    return asked or isinstance(
        event, InternalErrorEvent | RanksSlow | RanksReplaced | ProcessRemains
    )


class LoggedEvent(NamedTuple):
    """An event with its place in the event log: `number` counts from 1, `t` is the monotonic clock,
    `time` is in seconds since 1970, and `stimulus` is the id of the input that caused it.
    """

    number: int
    t: float
    time: float
    event: Event
    stimulus: str = ""


def to_json(event: Event) -> dict[str, Any]:
    """Convert an event to a JSON object, with its type under the key `event`."""
    return {"event": type(event).__name__, **event._asdict()}


def format_line(recorded: LoggedEvent) -> str:
    """Return the line for the event log, without a line end."""
    import json

    number, t, time, event, stimulus = recorded
    place = {"v": SCHEMA, "n": number, "t": t, "time": time, "stimulus": stimulus}
    return json.dumps(place | to_json(event))
