"""The types of `core/group/membership`: settings, states, events and effects."""

from enum import Enum
from typing import NamedTuple

from relight.core.group.messages import FromAgent, FromCoordinator
from relight.events.event_types import Tick


class GroupSettings(NamedTuple):
    """The user's settings for a group. Times are in seconds.

    If the `ordered` setting is on, every node specifies its own rank (the static rendezvous). The
    `rejoin_grace_s` setting is how long the nodes in a live generation may take to connect to a
    new coordinator. If `checkpoint_first` is set, newcomers are admitted only after the workers
    have saved a checkpoint. The `lost_after_s` setting is how long a node may be silent before it
    is considered lost. Worker leases are derived from this time (`core/link/lease`), so all nodes
    in a job must use the same value. The job may restart `max_restarts` times within
    `restart_window_s`, or in total if that is 0. The settings `smart`, `restart_on` and `fail_on`
    are described in `core/group/restart_budget`, and signal n counts as exit code 128 + n. If
    `by_topology` is set, ranks follow the network topology (`core/group/rank_order`). The number of
    nodes in a generation, `min_nodes` and `max_nodes` are all multiples of `segment`.
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
        """Whether the total number of restarts may exceed `max_restarts`."""
        return self.smart or self.restart_window_s > 0

    @property
    def needed(self) -> int:
        """The minimum number of nodes in a generation."""
        return self.max_nodes if self.ordered else self.min_nodes

    def whole(self, nodes: int) -> int:
        """Round a number of nodes down to a multiple of the segment size."""
        return nodes - nodes % self.segment


class Hello(NamedTuple):
    """The message that a peer sends to introduce itself before it has proved its identity.

    The `sender` field is empty for an agent. An agent or an elector also sends the name of its
    `job` and the job's `settings`. The `jobs` field lists the jobs that a coordinator serves,
    unless there are too many.
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
    """Event: a node has been silent since `since`, because its connection was closed or no messages
    arrive on it. Silence does not prove that the node is lost.
    """

    node: str
    since: float
    reason: str


class NodeHeard(NamedTuple):
    """Event: a message from a silent node has arrived, over its existing connection."""

    node: str


class Slept(NamedTuple):
    """Event: this process was suspended for a while. Nodes that seemed silent during that time may
    be healthy.
    """


class PredecessorPossible(NamedTuple):
    """Event: why an earlier coordinator may have formed a generation whose nodes have not joined
    this coordinator, or "" if all hosts that would know deny it.
    """

    reason: str


class NodeLost(NamedTuple):
    """Event: a node and its workers are lost. Either there is proof of this, or the node is not in
    this group.
    """

    node: str
    reason: str


class Send(NamedTuple):
    """Effect: send a message to a node."""

    node: str
    message: FromCoordinator


class Drop(NamedTuple):
    """Effect: drop a node. The node's connection is closed and it receives no more messages, so
    that its workers' lease expires.
    """

    node: str


Event = Received | NodeSilent | NodeHeard | NodeLost | PredecessorPossible | Slept | Tick
Effect = Send | Drop
