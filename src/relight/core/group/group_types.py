"""The types of `core/group/membership`: settings, states, events and effects."""

from enum import Enum
from typing import NamedTuple

from relight.core.group.messages import FromAgent, FromCoordinator
from relight.events.event_types import Tick


class GroupSettings(NamedTuple):
    """The user's settings. Times are in seconds.

    If `ordered` is set, every node specifies its own rank (the static rendezvous). `rejoin_grace_s`
    is how long the nodes of a live generation may take to reach a new coordinator. If
    `checkpoint_first` is set, newcomers are admitted only after the workers have saved a
    checkpoint. `lost_after_s` is how long a node may be silent before it is considered lost. Worker
    leases are derived from this time (`core/link/lease`), so all nodes in a job must use the same
    value. `restart_window_s` is the time within which `max_restarts` restarts are allowed, or 0 for
    the whole job. `smart`, `restart_on` and `fail_on` are described in `core/group/restart_budget`,
    and signal n counts as exit code 128 + n. If `by_topology` is set, ranks follow the network
    topology (`core/group/rank_order`). The number of nodes in a generation is a multiple of
    `segment`, and so are `min_nodes` and `max_nodes`.
    """

    min_nodes: int
    max_nodes: int
    max_restarts: int
    settle_timeout_s: float = 5.0
    join_timeout_s: float = 600.0
    exit_barrier_s: float = 300.0
    rejoin_grace_s: float = 1.5
    ordered: bool = False
    checkpoint_first: bool = False
    lost_after_s: float = 10.0
    restart_window_s: float = 0.0
    smart: bool = False
    restart_on: tuple[int, ...] = ()
    fail_on: tuple[int, ...] = ()
    by_topology: bool = False
    segment: int = 1

    @property
    def budget_renews(self) -> bool:
        """Whether the job may restart more than `max_restarts` times in total."""
        return self.smart or self.restart_window_s > 0

    @property
    def needed(self) -> int:
        """The minimum number of nodes in a generation."""
        return self.max_nodes if self.ordered else self.min_nodes

    def whole(self, nodes: int) -> int:
        """Round a number of nodes down to whole segments."""
        return nodes - nodes % self.segment


class Hello(NamedTuple):
    """How a peer introduces itself, before it has proved its identity.

    `sender` is empty for an agent. An agent or elector also sends the name of its `job` and the
    job's `settings`. `jobs` lists the jobs that a coordinator serves, unless there are too many.
    """

    sender: str = ""
    job: str = ""
    settings: GroupSettings | None = None
    jobs: tuple[str, ...] = ()


class GroupState(Enum):
    """The state of the group."""

    GATHERING = "gathering"
    RUNNING = "running"
    STOPPING = "stopping"
    RECOVERING = "recovering"
    ENDED = "ended"


class Received(NamedTuple):
    """Event: a message from a node."""

    node: str
    message: FromAgent


class NodeSilent(NamedTuple):
    """Event: a node has been silent since the time `since`, because its connection ended or carries
    no messages. This does not prove that the node is gone.
    """

    node: str
    since: float
    reason: str


class NodeHeard(NamedTuple):
    """Event: a message from a silent node has arrived, over its existing connection."""

    node: str


class Slept(NamedTuple):
    """Event: this process was suspended for a while. Nodes that seemed silent in that time may be
    fine.
    """


class NodeLost(NamedTuple):
    """Event: a node and its workers are gone. Either this is proven, or the node is not in this
    group.
    """

    node: str
    reason: str


class Send(NamedTuple):
    """Effect: send a message to a node."""

    node: str
    message: FromCoordinator


class Drop(NamedTuple):
    """Effect: drop a node. Its connection is closed and it receives no more messages, so that its
    workers' lease expires.
    """

    node: str


Event = Received | NodeSilent | NodeHeard | NodeLost | Slept | Tick
Effect = Send | Drop
