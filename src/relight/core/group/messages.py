"""The messages between agents and their coordinator, each a small immutable type.

Every field in a message from the network is checked before the message is used (`base/fields`).

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
    """The generation of a node's workers, sent on joining in case the coordinator is new.

    `done`: the workers have succeeded. `succeeded` has the group ranks of all nodes that this node
    knows to have succeeded; a new coordinator can't ask those nodes themselves, because they may
    have left. `lapsed`: the workers' lease is over, so other nodes may have continued without them.
    `ended`: the workers have ended and at least one has failed; a `NodeReady` with their failures
    follows. `saves`: the workers were ordered to save a checkpoint and exit. `gone` has the group
    ranks of nodes whose workers have certainly ended, such as a coordinator whose machine reports
    that all processes of its agent are gone.
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
    def may_be_superseded(self) -> bool:
        """Whether other nodes may be in a later generation that this node does not know about."""
        return self.lapsed or self.ended


class Join(NamedTuple):
    """An agent offers its node to the job.

    `node` is random and unique to this agent process. `node_rank` is its rank in a static
    rendezvous, and otherwise the number assigned by its scheduler, or -1; ranks follow the order of
    these numbers. `facts` should be equal on all nodes. `stop_s` is how long it may take from
    `StopWorkers` to `NodeReady` before the node is dropped; None means that the group waits without
    a limit. `answers`: the agent supports `Question`, unlike agents of older versions. `udp_port`
    at `udp_address` stays bound by the agent, and by processes that outlive it, while its workers
    live. If the machine reports the port as closed, the workers are gone. 0 means that there is no
    port. `connection` numbers this agent's connections, because messages sent over an earlier one
    may arrive later. `met_coordinator`: this agent has received a message from a coordinator
    before, so the coordinator that it joins now may be a successor. `machine`: nodes with equal
    `machine` and `host` share a machine; empty if that is unknown or intended. `comes_first`: the
    node's workers have the first ranks. `topology` is the path of network switches above the node,
    such as `spine1.leaf3`; empty if unknown.
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
    topology: str = ""


class Target(NamedTuple):
    """The address of a node: a numeric IP address, and ports for connections and datagrams."""

    address: str
    tcp_port: int
    udp_port: int


class NodeReady(NamedTuple):
    """No workers are running on this node; a store for the next generation listens at `port`.

    `generation` is the node's most recent generation, or NO_GENERATION. `failures` are its workers'
    failures in that generation (`core/diagnosis/failure_text.shared`). `succeeded_ranks` are the
    ranks of its workers that succeeded before the first failure; those that printed an error are
    listed among the failures, with exit code 0. `restart` is the job's restart count as known to
    this node. `latest` is the latest generation that the node knows about, even if it did not take
    part. `progressed`: whether its workers advanced beyond all earlier ones; None if unknown.
    `prober`: the ports at which other nodes can probe this one, without an address; None if no
    probes are needed. `survivors`: how many of its workers have left the group and will keep their
    process if allowed. `waiting`: these workers and their activity at the time, if they were
    stopped because of a hang. None of them has failed.
    """

    generation: GenerationId
    port: int
    failures: tuple[Failure, ...]
    succeeded_ranks: tuple[int, ...]
    restart: int = 0
    latest: GenerationId = NO_GENERATION
    progressed: bool | None = None
    prober: Target | None = None
    survivors: int = 0
    waiting: tuple[Failure, ...] = ()


class Unreached(NamedTuple):
    """Node number `target` can't be reached."""

    target: int
    why: str


class NodesProbed(NamedTuple):
    """The answer to `StartProbes`, with the nodes that can't be reached and the next `prober`."""

    cookie: str
    unreached: tuple[Unreached, ...]
    prober: Target


class WorkerFailed(NamedTuple):
    """A worker on this node failed, and the others are being stopped. `suspects_peer`: its own
    error indicates that another worker is gone or late.
    """

    generation: GenerationId
    reason: str
    suspects_peer: bool = False


class WorkersSucceeded(NamedTuple):
    """All workers on this node succeeded."""

    generation: GenerationId


class NodeIdle(NamedTuple):
    """The workers on this node have been idle for `quiet_s` seconds, longer than the user allows
    (`limit_s`, from core/workers/hang_detector). `quiet_s` is 0 once they are active again.
    """

    generation: GenerationId
    quiet_s: float
    limit_s: float


class WaitSamples(NamedTuple):
    """How the workers on this node spent the last window, by local rank.

    `looks`: the number of samples taken from each worker. `waits`: in how many samples the worker
    was waiting for its peers in a collective. `steps`: its training steps, -1 without reports.
    """

    generation: GenerationId
    looks: tuple[int, ...]
    waits: tuple[int, ...]
    steps: tuple[int, ...]


class NodePreempted(NamedTuple):
    """The node leaves the job within `limit_s` seconds, and its workers can save a checkpoint."""

    generation: GenerationId
    reason: str
    limit_s: float


class CheckpointCalls(NamedTuple):
    """The answer to `CheckpointLimit`. No worker on this node has called `should_checkpoint` more
    than `calls` times.
    """

    generation: GenerationId
    limit: int
    calls: int


class NodeLeaving(NamedTuple):
    """The node leaves the job deliberately. If it `waits`, it stays connected until a `JobEnded`
    message reports that no worker of its generation is left on other nodes.
    """

    reason: str
    waits: bool = False


class NodesGone(NamedTuple):
    """The workers on the nodes with these group ranks have certainly ended (`Announce.gone`)."""

    generation: GenerationId
    gone: tuple[int, ...]


class AskNodes(NamedTuple):
    """A client on this node queries the whole job. The query is a line in the format of an agent's
    socket (agent/status/job_socket). Sent only to a coordinator whose hello announces `relays`.
    """

    question: str


class Answer(NamedTuple):
    """This node's answer to the `Question` with this number, in the format of its own socket."""

    number: int
    answer: str


class StartProbes(NamedTuple):
    """Probe these nodes. `number` is the receiver's own number. `cookie` is a hexadecimal secret
    shared by all these nodes.
    """

    cookie: str
    number: int
    nodes: tuple[Target, ...]


class GenerationFormed(NamedTuple):
    """A new generation was formed with this node at this place. Start its workers.

    `coordinator` is the group rank of the coordinating node, or -1. `survivors_stay`: the survivors
    reported by this node are part of the generation; otherwise the node restarts all workers.
    """

    generation: Generation
    place: Place
    coordinator: int = -1
    survivors_stay: bool = False


class CheckpointLimit(NamedTuple):
    """Block all workers in their `limit`-th call of `should_checkpoint`, and count their calls
    (core/group/checkpoint_barrier).
    """

    generation: GenerationId
    limit: int


class StopWorkers(NamedTuple):
    """Stop the workers of a generation and get ready for the next.

    `checkpoint_first`: they may save a checkpoint first, at their `checkpoint_at`-th call of
    `should_checkpoint`, or at the next call if that is 0. They have `limit_s` seconds to do so, or
    the time set by this node's user if that is 0. `cause` is shown to users. `capture_stacks`:
    capture the workers' stacks, and stop them `limit_s` seconds later. `may_stay`: workers that can
    leave the group may keep their process (core/group/survivors).
    """

    generation: GenerationId
    cause: str
    checkpoint_first: bool
    checkpoint_at: int = 0
    limit_s: float = 0.0
    capture_stacks: bool = False
    may_stay: bool = False


class Confirm(NamedTuple):
    """This node's generation is still live, so its workers may run. `succeeded` has the group ranks
    of nodes whose workers have succeeded. `coordinator` is the group rank of the coordinating node,
    or -1. `recovers`: the coordinator is new and is waiting for other nodes of the generation, so
    decisions that the workers here are waiting for are still pending.
    """

    generation: GenerationId
    succeeded: tuple[int, ...] = ()
    coordinator: int = -1
    recovers: bool = False


class SlowNode(NamedTuple):
    """Ranks of a node that are slower than the others by the fraction `slower`. `is_whole`: these
    are all ranks of the node. `waited` is the fraction of time that the others wait for them.
    """

    host: str
    ranks: tuple[int, ...]
    is_whole: bool
    slower: float
    waited: float


class SlowRanks(NamedTuple):
    """The ranks that have been slower than the others for `age_s` seconds. Empty once all of them
    have caught up.
    """

    generation: GenerationId
    nodes: tuple[SlowNode, ...]
    age_s: float


class WaitReason(NamedTuple):
    """Why this node does not have a generation yet, as text for users. `spare`: the node is kept in
    reserve. `generation` is the latest generation, or NO_GENERATION.
    """

    text: str
    spare: bool
    generation: GenerationId = NO_GENERATION


class Note(NamedTuple):
    """A message for the node's user, for example about a difference between the nodes."""

    text: str


class JobEnded(NamedTuple):
    """The job is over, at least for this node. `others_run`: other nodes continue. `report` has
    lines for users, and is empty if the job succeeded. `root` is the root cause or None,
    `same_ranks` are the ranks that failed in the same way, and `verdict` states why the job does
    not restart. `ranks` are the blamed ranks, `certainty` is how certain that is, and `why` is the
    reason (core/diagnosis/causes). `symptom` is the failure that ended the job, if it differs from
    `root`.
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
        """Why and where the job ended, in one line. All views of a failure show this line."""
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
        """The ranks that caused the failure, if known, or that hang."""
        return self.ranks if self.hung or self.certainty in ("proven", "likely") else ()

    @property
    def hung(self) -> bool:
        """Whether the job ended because no rank made progress. `root` is then the suspect."""
        return self.exit_code == EXIT_HUNG and self.root is not None and self.root.stop_signal > 0


class Question(NamedTuple):
    """A question to all nodes (core/group/cluster_query)."""

    number: int
    question: str


class NodeAnswered(NamedTuple):
    """A node's answer to this node's question, or None if it did not answer in time. Another `left`
    answers follow.
    """

    question: str
    host: str
    answer: str | None
    left: int


class Heartbeat(NamedTuple):
    """A heartbeat, or its echo. An echo tells in `extra_s` how much longer than usual the agent
    should wait until the next one (core/link/heartbeat_rate).
    """

    number: int
    extra_s: float = 0.0


class Redirect(NamedTuple):
    """The sender is not, or no longer, the coordinator. `host` is the index of the coordinator in
    the endpoint's list of hosts, or -1 if the sender does not know it.
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
