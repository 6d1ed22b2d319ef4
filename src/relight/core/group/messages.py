"""The messages between agents and their coordinator: one small immutable type for each.

Each field of a message from the network is checked before the message is used (`base/fields`).

    agent -> coordinator    Join NodeReady NodesProbed WorkerFailed WorkersSucceeded NodeIdle
                            WaitSamples NodePreempted CheckpointCalls NodeLeaving NodesGone AskNodes
                            Answer Heartbeat
    coordinator -> agent    StartProbes GenerationFormed CheckpointLimit StopWorkers Confirm
                            SlowRanks WaitReason Note JobEnded Question NodeAnswered Redirect
                            Heartbeat (the echo)
"""

from typing import NamedTuple

from relight.base.errors import EXIT_HUNG
from relight.core.failure import Failure
from relight.core.ranks import NO_GENERATION, Generation, GenerationId, Place


class Announce(NamedTuple):
    """The generation of a node's workers, sent on joining, in case the coordinator is new.

    `done`: the workers have succeeded. `succeeded` are the group ranks of the nodes whose workers
    have succeeded, as far as this node was told: those nodes may have left, so that a new
    coordinator can't ask them. `lapsed`: the lease of the workers is over, so other nodes may have
    gone on without them. `ended`: the workers have ended, and not all of them well; a `NodeReady`
    follows, with their failures. `saves`: they were told to save a checkpoint and leave. `gone` are
    the group ranks of nodes whose workers have certainly ended, as that of a coordinator whose
    machine says that no process of its agent is left.
    """

    generation: GenerationId
    restart: int
    group_rank: int
    group_world_size: int
    done: bool
    succeeded: tuple[int, ...] = ()
    lapsed: bool = False
    ended: bool = False
    saves: bool = False
    gone: tuple[int, ...] = ()

    @property
    def may_be_over(self) -> bool:
        """Whether other nodes may be in a later generation, of which this one does not know."""
        return self.lapsed or self.ended


class Join(NamedTuple):
    """An agent offers its node to the job.

    `node` is random and belongs to this agent process alone. `node_rank` is its rank in a static
    rendezvous; elsewhere the number that its scheduler gave it, or -1; ranks are in the order of
    these numbers. `facts` should be equal on all nodes. `stop_s` is how long it may take from
    `StopWorkers` to `NodeReady` before the node is dropped; None means that the group waits for it
    in any case. `answers`: it knows `Question`, which agents of older versions do not. `udp_port`
    at `udp_address` belongs to the agent and to the processes that outlive it, as long as its
    workers do: if the machine says that nobody has it, they are gone; 0 for none. `connection`
    numbers the connections of this agent: what was sent over an earlier one may arrive later.
    `met_coordinator`: one has sent this agent a message before, so the one that it joins may be a
    successor. `machine`: nodes with the same one and the same `host` share a machine; empty if that
    is unknown, or meant. `comes_first`: its workers have the first ranks.
    """

    node: str
    host: str
    address: str
    local_world_size: int
    role: str
    node_rank: int
    min_nodes: int
    max_nodes: int
    max_restarts: int
    facts: dict[str, str]
    announce: Announce | None
    stop_s: float | None = None
    answers: bool = False
    machine: str = ""
    udp_address: str = ""
    udp_port: int = 0
    connection: int = 0
    met_coordinator: bool = False
    comes_first: bool = False


class Target(NamedTuple):
    """Where to reach a node: a numeric address, and ports for connections and datagrams."""

    address: str
    tcp_port: int
    udp_port: int


class NodeReady(NamedTuple):
    """No workers run on this node; a store for the next generation listens at `port`.

    `generation` is the last one that the node was in, if any. `failures` are the failures of its
    workers there, if any (`core/diagnosis/failure_text.shared`). `succeeded_ranks` are the ranks of
    its workers that had succeeded before the first failure; those that had printed an error are
    among the failures, with exit code 0. `restart` is how many restarts the job has had, as
    far as this node knows. `latest` is the latest generation that it knows, even if it was not in
    it. `progressed`: whether its workers came further than any before them; None if that is not
    known. `prober`: where other nodes can try to reach this one, without an address; None if they
    need not.
    """

    generation: GenerationId
    port: int
    failures: tuple[Failure, ...]
    succeeded_ranks: tuple[int, ...]
    restart: int = 0
    latest: GenerationId = NO_GENERATION
    progressed: bool | None = None
    prober: Target | None = None


class Unreached(NamedTuple):
    """The node with the number `target` can't be reached."""

    target: int
    why: str


class NodesProbed(NamedTuple):
    """The answer to `StartProbes`: which nodes this one can't reach, and its next `prober`."""

    cookie: str
    unreached: tuple[Unreached, ...]
    prober: Target


class WorkerFailed(NamedTuple):
    """A worker of this node failed; the others are being stopped. `suspects_peer`: it says itself
    that another worker is gone or late.
    """

    generation: GenerationId
    reason: str
    suspects_peer: bool = False


class WorkersSucceeded(NamedTuple):
    """All workers of this node succeeded."""

    generation: GenerationId


class NodeIdle(NamedTuple):
    """The workers of this node have done nothing for `quiet_s` seconds, longer than the user allows
    (`limit_s`, from core/workers/hang_detector); 0 if they do something again.
    """

    generation: GenerationId
    quiet_s: float
    limit_s: float


class WaitSamples(NamedTuple):
    """How the workers of this node have spent the last window, by local rank.

    `looks`: how often each was looked at, and `waits`: in how many of them it waited for its peers
    in a collective. `steps`: how many it has done, -1 if it reports none.
    """

    generation: GenerationId
    looks: tuple[int, ...]
    waits: tuple[int, ...]
    steps: tuple[int, ...]


class NodePreempted(NamedTuple):
    """The node leaves the job within `limit_s` seconds; its workers could save a checkpoint."""

    generation: GenerationId
    reason: str
    limit_s: float


class CheckpointCalls(NamedTuple):
    """The answer to `CheckpointLimit`: no worker of this node has called `should_checkpoint` more
    often than `calls` times.
    """

    generation: GenerationId
    limit: int
    calls: int


class NodeLeaving(NamedTuple):
    """The node leaves the job deliberately. If it `waits`, it stays connected until `JobEnded` says
    that no worker of its generation is left on other nodes.
    """

    reason: str
    waits: bool = False


class NodesGone(NamedTuple):
    """The workers of the nodes with these group ranks have certainly ended (`Announce.gone`)."""

    generation: GenerationId
    gone: tuple[int, ...]


class AskNodes(NamedTuple):
    """Somebody on this node asks something about the whole job: a line as for the socket of an
    agent (agent/status/job_socket). It is sent only to a coordinator that says in its hello that it
    `relays`.
    """

    question: str


class Answer(NamedTuple):
    """What this node answers to the `Question` of this number, as its own socket would."""

    number: int
    answer: str


class StartProbes(NamedTuple):
    """Probe these nodes. `number` is that of the receiver; `cookie` is hexadecimal, a secret that
    all of these nodes share.
    """

    cookie: str
    number: int
    nodes: tuple[Target, ...]


class GenerationFormed(NamedTuple):
    """A new generation was formed with this node, at this place in it: start its workers.

    `coordinator` is the group rank of the node that coordinates, -1 if it has none.
    """

    generation: Generation
    place: Place
    coordinator: int = -1


class CheckpointLimit(NamedTuple):
    """Let no worker return from its `limit`-th call of `should_checkpoint`; count the calls
    (core/group/checkpoint_barrier).
    """

    generation: GenerationId
    limit: int


class StopWorkers(NamedTuple):
    """Stop the workers of a generation and get ready for the next.

    `gently`: they may save a checkpoint first, at their `checkpoint_at`-th call of
    `should_checkpoint`, or at the next one if it is 0; they have `limit_s` seconds, or what this
    node's user has set if it is 0. `cause` is shown to users. `capture_stacks`: find out where the
    workers are, and stop them `limit_s` seconds later.
    """

    generation: GenerationId
    cause: str
    checkpoint_first: bool
    checkpoint_at: int = 0
    limit_s: float = 0.0
    capture_stacks: bool = False


class Confirm(NamedTuple):
    """The generation that this node is in is still live: its workers may run. `succeeded` are the
    group ranks of nodes whose workers have succeeded. `coordinator` is the group rank of the node
    that coordinates, -1 if it has none. `recovers`: the coordinator is new and waits for other
    nodes of the generation; what workers here wait for is not decided yet.
    """

    generation: GenerationId
    succeeded: tuple[int, ...] = ()
    coordinator: int = -1
    recovers: bool = False


class SlowNode(NamedTuple):
    """Ranks of a node that are slower than the others, by the share `slower`; `is_whole`: these are
    all its ranks. The others wait for them for the share `waited` of the time.
    """

    host: str
    ranks: tuple[int, ...]
    is_whole: bool
    slower: float
    waited: float


class SlowRanks(NamedTuple):
    """The ranks that are persistently slower than the others, for `age_s` seconds; none if none is
    any more.
    """

    generation: GenerationId
    nodes: tuple[SlowNode, ...]
    age_s: float


class WaitReason(NamedTuple):
    """Why there is no generation for this node yet, as text for users. `spare`: the node is kept in
    reserve. `generation` is the latest generation, if any.
    """

    text: str
    spare: bool
    generation: GenerationId = NO_GENERATION


class Note(NamedTuple):
    """A text for the node's user, such as a difference between the nodes."""

    text: str


class JobEnded(NamedTuple):
    """The job is over, at least for this node; `others_run`: other nodes go on. `report` has lines
    for users, none if the job succeeded; `root` is the root cause, if any, `same_ranks` are those
    that failed in the same way, and `verdict` says why there is no restart. `ranks` are blamed,
    with this `certainty`, because of `why` (core/diagnosis/causes). `symptom` is the failure that
    ended the job, if that is another one than `root`.
    """

    exit_code: int
    reason: str
    report: tuple[str, ...]
    root: Failure | None
    others_run: bool = False
    same_ranks: tuple[int, ...] = ()
    verdict: str = ""
    ranks: tuple[int, ...] = ()
    certainty: str = ""
    why: str = ""
    symptom: Failure | None = None

    @property
    def headline(self) -> str:
        """Why the job ended, in one line with its place. Whatever shows a failure shows this."""
        if not self.report:
            return self.reason
        first, *others = self.report
        failure = self.symptom or self.root
        raised = failure.report if failure is not None else None
        doing = failure.doing if failure is not None else None
        places = raised.where if raised else "", doing.handling_where if doing else ""
        for place in filter(None, places):
            line = place.partition(" in ")[0].rpartition("/")[2]
            shown = any(row.endswith((f"  {place}", f" at {place}")) for row in others)
            if shown and line not in first:
                first = f"{first} at {place}"
                break
        if failure is not None and f"  {failure.evidence}" in others:
            first += f"; {failure.evidence}"
        return first.removeprefix("error: ")

    @property
    def blamed(self) -> tuple[int, ...]:
        """The ranks that caused the failure, as far as that is known, or that hang."""
        return self.ranks if self.hung or self.certainty in ("proven", "likely") else ()

    @property
    def hung(self) -> bool:
        """Whether the job ended because no rank made progress, and `root` is the suspect."""
        return self.exit_code == EXIT_HUNG and self.root is not None and self.root.stop_signal > 0


class Question(NamedTuple):
    """Somebody asks all nodes this (core/group/cluster_query)."""

    number: int
    question: str


class NodeAnswered(NamedTuple):
    """The answer of a node to what this node has asked: None if it did not answer in time. So many
    others follow (`left`).
    """

    question: str
    host: str
    answer: str | None
    left: int


class Heartbeat(NamedTuple):
    """A heartbeat, or its echo."""

    number: int


class Redirect(NamedTuple):
    """The sender is not the coordinator, or no longer. `host` is the index of the coordinator in
    the endpoint's list of hosts, -1 if the sender does not know it.
    """

    host: int


FromAgent = (
    Join
    | NodeReady
    | NodesProbed
    | WorkerFailed
    | WorkersSucceeded
    | NodeIdle
    | WaitSamples
    | NodePreempted
    | CheckpointCalls
    | NodeLeaving
    | NodesGone
    | AskNodes
    | Answer
)
FromCoordinator = (
    StartProbes
    | GenerationFormed
    | CheckpointLimit
    | StopWorkers
    | Confirm
    | SlowRanks
    | WaitReason
    | Note
    | JobEnded
    | Question
    | NodeAnswered
)
