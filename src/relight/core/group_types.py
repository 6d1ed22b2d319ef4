"""The words of `core/membership`: what a group is asked to be, where it is, what comes in and what
goes out.
"""

from enum import Enum

from relight.core.messages import FromAgent, FromCoordinator
from relight.events import Tick
from relight.typed import NamedTuple


class GroupSettings(NamedTuple):
    """What the job was asked to be. Times in seconds.

    `ordered`: every node brings its rank (the static rendezvous). `rejoin_s`: how long the nodes of
    a live generation may take to come to a new coordinator. `gently`: newcomers are let in only
    when the workers have saved a checkpoint. `lost_after_s`: a node that is silent for so long is
    lost; the leases of workers follow from it, so it is the same for all nodes of a job.
    """

    least: int
    most: int
    max_restarts: int
    last_call_s: float = 5.0
    join_timeout_s: float = 600.0
    exit_barrier_s: float = 300.0
    rejoin_s: float = 2.0
    ordered: bool = False
    gently: bool = False
    lost_after_s: float = 1.25

    @property
    def needed(self) -> int:
        """How many nodes a generation takes at least."""
        return self.most if self.ordered else self.least


class Hello(NamedTuple):
    """What a peer says of itself before anything else, and before it has proved who it is.

    `sender` is empty for an agent. An agent and an elector name their `job` and the `settings` of
    it. `jobs` are those that a coordinator serves, if they are few.
    """

    sender: str = ""
    job: str = ""
    settings: GroupSettings | None = None
    jobs: tuple[str, ...] = ()


class GroupState(Enum):
    """Where the group is."""

    GATHERING = "gathering"
    RUNNING = "running"
    STOPPING = "stopping"
    RECOVERING = "recovering"
    ENDED = "ended"


class Told(NamedTuple):
    """Event: a node says something."""

    node: str
    message: FromAgent


class NodeLost(NamedTuple):
    """Event: a node can't be heard any more."""

    node: str
    reason: str


class Send(NamedTuple):
    """Effect: tell a node."""

    node: str
    message: FromCoordinator


class Drop(NamedTuple):
    """Effect: a node is given up. Its connection ends, and it is answered no more, so that the
    lease of its workers runs out.
    """

    node: str


Event = Told | NodeLost | Tick
Effect = Send | Drop
