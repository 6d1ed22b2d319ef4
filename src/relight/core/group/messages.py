"""The messages between agents and their coordinator. Each message is a small immutable type.

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
    """The generation of a node's workers, sent when the node joins, in case the coordinator
    is new.

    The `done` field is set if the workers have succeeded. The `succeeded` field contains the group
    ranks of all nodes that this node knows to have succeeded. A new coordinator can't query the
    succeeded nodes themselves, because they may have left. The `lapsed` field is set if other nodes
    may have continued without these workers, because their lease has expired, or would have if no
    coordinator had renewed it while it was still looking for other nodes. The `ended`
    field is set if the workers have exited and at least one of them has failed. In that case, a
    `NodeReady` with the workers' failures follows. The `saves` field is set if the workers were
    ordered to save a checkpoint and exit. The `gone` field contains the group ranks of nodes whose
    workers are known to have exited. An example is a coordinator whose machine reports that all
    processes of its agent have exited.
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
    """With this message, an agent offers its node to the job.

    The `node` field is random and unique to this agent process. The `node_rank` field is the node's
    rank in a static rendezvous, or otherwise the number assigned by its scheduler, or -1. Ranks
    follow the order of these numbers. The `facts` should be the same on all nodes. The `stop_s`
    field is the maximum time between `StopWorkers` and `NodeReady` before the node is dropped, or
    None if the group waits without a limit. The `answers` field is set if the agent supports
    `Question`, which agents from older versions don't. The agent, and any processes that outlive
    it, keep `udp_port` at `udp_address` bound while its workers are alive. If the machine reports
    that the port is closed, the workers have exited. Port 0 means no port. The `connection` field
    is the number of this connection among the agent's connections. It is needed because messages
    sent over an earlier connection may arrive later. The `met_coordinator` field is set if this
    agent has received a message from a coordinator before, so that the coordinator that it is
    joining now may be a successor. Nodes with equal `machine` and `host` share a machine. The
    `machine` field is empty if it is unknown, or if the user wants it to be empty. The
    `comes_first` field is set if the node's workers must have the first ranks. The `topology` field
    is the path of network switches above the node, such as `spine1.leaf3`, or empty if unknown.
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
    """No workers are running on this node, and a store for the next generation is listening at
    `port`.

    The `generation` field is the node's most recent generation, or NO_GENERATION. The `failures`
    field contains the node's worker failures in that generation
    (`core/diagnosis/failure_text.shared`). The `succeeded_ranks` field contains the ranks of the
    node's workers that succeeded before the first failure. Succeeded ranks that printed an error
    are listed among the failures, with exit code 0. The `restart` field is the job's restart count
    as known to this node. The `latest` field is the generation that a coordinator last named to the
    node, even if the node did not take part in that generation. The `progressed` field indicates
    whether the node's workers advanced beyond all earlier workers (None if unknown). The `prober`
    field has the ports at which other nodes can probe this node, without an address, or None if no
    probes are needed. The `survivors` field is the number of workers that have left the group and
    will keep their process if allowed. If the workers were stopped because of a hang, the `waiting`
    field contains the survivors and what each of them was doing at the time. None of the survivors
    has failed.
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
    """The reply to `StartProbes`, with the nodes that can't be reached and the next `prober`."""

    cookie: str
    unreached: tuple[Unreached, ...]
    prober: Target


class WorkerFailed(NamedTuple):
    """A worker on this node failed, and the node's other workers are being stopped. The
    `suspects_peer` field is set if the failed worker's error indicates that another worker has
    exited or is late.
    """

    generation: GenerationId
    reason: str
    suspects_peer: bool = False


class WorkersSucceeded(NamedTuple):
    """All workers on this node succeeded."""

    generation: GenerationId


class NodeIdle(NamedTuple):
    """The workers on this node have been idle for `quiet_s` seconds, longer than the user allows
    (`limit_s`, from core/workers/hang_detector). The `quiet_s` field is 0 once the workers are
    active again.
    """

    generation: GenerationId
    quiet_s: float
    limit_s: float


class WaitSamples(NamedTuple):
    """How each of this node's workers spent the last window, keyed by local rank.

    The `looks` field is the number of samples taken from each worker. The `waits` field is the
    number of samples that show the worker waiting for its peers in a collective. The `steps` field
    is the number of training steps, or -1 if the worker does not report them.
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
    """The reply to `CheckpointLimit`. No worker on this node has called `should_checkpoint` more
    than `calls` times.
    """

    generation: GenerationId
    limit: int
    calls: int


class NodeLeaving(NamedTuple):
    """The node leaves the job deliberately. If the `waits` field is set, the node stays connected
    until a `JobEnded` message reports that no worker in its generation is left on other nodes.
    """

    reason: str
    waits: bool = False


class NodesGone(NamedTuple):
    """The workers on nodes with these group ranks are known to have exited (`Announce.gone`)."""

    generation: GenerationId
    gone: tuple[int, ...]


class AskNodes(NamedTuple):
    """A client on this node queries the whole job. The query is a line in the format used on an
    agent's socket (agent/status/job_socket). This message is sent only to a coordinator whose hello
    announces `relays`.
    """

    question: str


class Answer(NamedTuple):
    """This node's reply to the `Question` with this number, in the format used on the agent's own
    socket.
    """

    number: int
    answer: str


class StartProbes(NamedTuple):
    """Tells a node to probe these nodes. The `number` field is the receiver's own number. The
    `cookie` field is a hexadecimal secret shared by all these nodes.
    """

    cookie: str
    number: int
    nodes: tuple[Target, ...]


class GenerationFormed(NamedTuple):
    """A new generation has been formed, and the `place` field is this node's place in it. The node
    must start its workers. The `coordinator` field is the group rank of the coordinating node, or
    -1. If `survivors_stay` is set, the survivors reported by this node are part of the generation.
    Otherwise the node restarts all workers.
    """

    generation: Generation
    place: Place
    coordinator: int = -1
    survivors_stay: bool = False


class CheckpointLimit(NamedTuple):
    """Block all workers in their `limit`-th call to `should_checkpoint`, and count their calls
    (core/group/checkpoint_barrier).
    """

    generation: GenerationId
    limit: int


class StopWorkers(NamedTuple):
    """Stop the workers of a generation and get ready for the next generation.

    If `checkpoint_first` is set, the workers may first save a checkpoint at their
    `checkpoint_at`-th call to `should_checkpoint`, or at the next call if `checkpoint_at` is 0.
    They have `limit_s` seconds to do so, or the time set by this node's user if `limit_s` is 0. The
    `cause` field is shown to users. If `capture_stacks` is set, the node captures the workers'
    stacks and stops them `limit_s` seconds later. If `may_stay` is set, workers that can leave the
    group may keep their process (core/group/survivors).
    """

    generation: GenerationId
    cause: str
    checkpoint_first: bool
    checkpoint_at: int = 0
    limit_s: float = 0.0
    capture_stacks: bool = False
    may_stay: bool = False


class Confirm(NamedTuple):
    """This node's generation is still live, so its workers may run. The `succeeded` field contains
    the group ranks of nodes whose workers have succeeded. The `coordinator` field is the group rank
    of the coordinating node, or -1. The `recovers` field is set if the coordinator is new and is
    still waiting for other nodes in the generation. In that case, decisions that the workers on
    this node are waiting for are still pending.
    """

    generation: GenerationId
    succeeded: tuple[int, ...] = ()
    coordinator: int = -1
    recovers: bool = False


class SlowNode(NamedTuple):
    """Ranks on a node that are slower than other ranks by the fraction `slower`. The `is_whole`
    field is set if these are all ranks on the node. The `waited` field is the fraction of time that
    other ranks spend waiting for the slow ranks.
    """

    host: str
    ranks: tuple[int, ...]
    is_whole: bool
    slower: float
    waited: float


class SlowRanks(NamedTuple):
    """The ranks that have been slower than other ranks for `age_s` seconds. The list is empty once
    all slow ranks have caught up.
    """

    generation: GenerationId
    nodes: tuple[SlowNode, ...]
    age_s: float


class WaitReason(NamedTuple):
    """The reason why this node is not in a generation yet, as text for users. The `spare` field is
    set if the node is kept in reserve. The `generation` field is the latest generation, or
    NO_GENERATION.
    """

    text: str
    spare: bool
    generation: GenerationId = NO_GENERATION


class Note(NamedTuple):
    """A message to the user of this node, for example about a difference between the nodes."""

    text: str


class JobEnded(NamedTuple):
    """The job is over, at least for this node. The `others_run` field is set if other nodes
    continue. The `report` field contains lines for users, and is empty if the job succeeded. The
    `root` field is the root cause or None, `same_ranks` contains the ranks that failed in the same
    way, and `verdict` states why the job does not restart. The `ranks` field contains the blamed
    ranks, the `certainty` field says how certain it is that they are to blame, and the `why` field
    is the reason (core/diagnosis/causes). The `symptom` field is the failure that ended the job, if
    it differs from `root`.
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
        """One line that says why and where the job ended. Every view of a failure shows this
        line.
        """
        if not self.report:
            return self.reason
        first, *others = self.report
        # The cause of a wrapper says more than the place where the wrapper was raised.
        links = ("  caused by ", "  while handling ")
        if cause := next((row for row in others[:2] if row.startswith(links)), ""):
            return f"{first}, {cause.strip()}".removeprefix("error: ")
        failure = self.symptom or self.root
        raised = failure.report if failure is not None else None
        doing = failure.doing if failure is not None else None
        places = raised.where if raised else "", doing.handling_where if doing else ""
        for place in filter(None, places):
            line = place.partition(" in ")[0].rpartition("/")[2]
            shown = f"  {place}", f"  rank {failure.rank if failure else ''} at {place}"
            if any(row in shown for row in others) and line not in first:
                is_group = raised is not None and raised.type.endswith("ExceptionGroup")
                first = f"{first.removesuffix('.')} ({'first ' if is_group else ''}at {place})"
                break
        if failure is not None and f"  {failure.evidence}" in others:
            first += f"; {failure.evidence}"
        return first.removeprefix("error: ")

    @property
    def blamed(self) -> tuple[int, ...]:
        """The ranks that are known to have caused the failure, or the hung ranks."""
        return self.ranks if self.hung or self.certainty in ("proven", "likely") else ()

    @property
    def hung(self) -> bool:
        """Whether the job ended because no rank made progress. In that case, the `root` field is
        the suspect.
        """
        return self.exit_code == EXIT_HUNG and self.root is not None and self.root.stop_signal > 0


class Question(NamedTuple):
    """A query to all nodes (core/status/cluster_query)."""

    number: int
    question: str


class NodeAnswered(NamedTuple):
    """A node's reply to this node's query, or None if the node did not reply in time. Another
    `left` replies will follow.
    """

    question: str
    host: str
    answer: str | None
    left: int


class Heartbeat(NamedTuple):
    """A heartbeat, or its echo. In an echo, `extra_s` is how much longer than usual the agent
    should wait before it sends the next heartbeat (core/link/heartbeat_rate).
    """

    number: int
    extra_s: float = 0.0


class Redirect(NamedTuple):
    """The sender isn't the coordinator, or is no longer the coordinator. The `host` field is the
    coordinator's index in the endpoint's list of hosts, or -1 if the sender does not know it.
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
