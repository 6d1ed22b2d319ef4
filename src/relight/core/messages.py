"""What agents and their coordinator tell each other: one small immutable type a message.

A message from the network is checked field by field before anything looks at it (`core/fields`).

    agent -> coordinator    Join Ready Failed Done Leave, Beat
    coordinator -> agent    Form Stop Confirm Wait Note End, Beat Redirect
"""

from relight.core.exits import Failure
from relight.core.ranks import NO_GENERATION, Generation, GenerationId, Place
from relight.typed import NamedTuple


class Announce(NamedTuple):
    """The generation that a node's workers are in, told to a coordinator that may not know it.

    `done`: they have ended well.
    """

    generation: GenerationId
    restart: int
    group_rank: int
    group_world_size: int
    done: bool


class Join(NamedTuple):
    """An agent offers its node to the job.

    `node` is random and belongs to this agent process alone. `node_rank` is its
    rank in a static rendezvous; elsewhere the number that its scheduler gave it, which the order of
    ranks follows, or -1. `facts` are what should be equal on all nodes. `stop_s` is how long it
    may take from `StopWorkers` to `NodeReady`, or it is given up; without it, it is waited for in
    any case.
    """

    node: str
    host: str
    address: str
    slots: int
    role: str
    node_rank: int
    least: int
    most: int
    max_restarts: int
    facts: dict[str, str]
    announce: Announce | None
    stop_s: float | None = None


class NodeReady(NamedTuple):
    """No workers run on this node; a store for the next generation listens at `port`.

    `generation` is the last one that the node was in, if any. `failures` are how its workers
    ended there, if not well (`core.failures.shared`). `left` are the ranks that had ended well
    before. `restart` is how many restarts the job has had, as far as this node knows. `latest` is
    the latest generation that it knows of, in which it need not have been.
    """

    generation: GenerationId
    port: int
    failures: tuple[Failure, ...]
    left: tuple[int, ...]
    restart: int = 0
    latest: GenerationId = NO_GENERATION


class WorkerFailed(NamedTuple):
    """A worker of this node ended badly; the rest are being stopped."""

    generation: GenerationId
    reason: str


class WorkersSucceeded(NamedTuple):
    """All workers of this node ended well."""

    generation: GenerationId


class NodeLeaving(NamedTuple):
    """The node leaves in good order."""

    reason: str


class Form(NamedTuple):
    """Start the workers of a new generation, in this place of it."""

    generation: Generation
    place: Place


class StopWorkers(NamedTuple):
    """Stop the workers of a generation and get ready for the next.

    `gently`: they may save a checkpoint first. `cause` is for people.
    """

    generation: GenerationId
    cause: str
    gently: bool


class Confirm(NamedTuple):
    """The generation that a node announced goes on."""

    generation: GenerationId


class WaitReason(NamedTuple):
    """Why there is no generation for this node yet, for people. `spare`: it is kept in reserve.
    `generation` is the latest there was, if any.
    """

    text: str
    spare: bool
    generation: GenerationId = NO_GENERATION


class Note(NamedTuple):
    """Something that the node's user should read, such as a difference between the nodes."""

    text: str


class JobEnded(NamedTuple):
    """The job is over, at least for this node; `others_run` says that it is not for all. `report`
    are lines for people, none if all went well; `root` is the root cause, if there is one.
    """

    exit_code: int
    reason: str
    report: tuple[str, ...]
    root: Failure | None
    others_run: bool = False


class Beat(NamedTuple):
    """A sign of life, and its echo."""

    number: int


class Redirect(NamedTuple):
    """This host coordinates no longer; number `host` of the endpoint's list does, -1 if that is not
    known.
    """

    host: int


FromAgent = Join | NodeReady | WorkerFailed | WorkersSucceeded | NodeLeaving
FromCoordinator = Form | StopWorkers | Confirm | WaitReason | Note | JobEnded
