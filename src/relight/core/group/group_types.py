"""The types of `core/group/membership`: settings, states, events and effects."""

from enum import Enum
from typing import NamedTuple

from relight.core.group.messages import FromAgent, FromCoordinator
from relight.events.event_types import Tick


class GroupSettings(NamedTuple):
    """What the user asked for. Times in seconds.

    `ordered`: every node brings its rank (the static rendezvous). `rejoin_grace_s`: how long the
    nodes of a live generation may take to reach a new coordinator. `gently`: newcomers are let in
    only after the workers have saved a checkpoint. `lost_after_s`: a node that is silent for so
    long is lost; the leases of workers follow from it (`core/link/lease`), so it is equal on all
    nodes of a job. `restart_window_s`: the time within which `max_restarts` are allowed; 0 for the
    whole job. `smart`: see `core/group/restart_budget`.
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

    @property
    def budget_renews(self) -> bool:
        """Whether the job may have more than `max_restarts` restarts in all."""
        return self.smart or self.restart_window_s > 0

    @property
    def needed(self) -> int:
        """The least number of nodes in a generation."""
        return self.max_nodes if self.ordered else self.min_nodes


class Hello(NamedTuple):
    """How a peer describes itself before anything else, and before it has proved its identity.

    `sender` is empty for an agent. An agent and an elector name their `job` and its `settings`.
    `jobs` are the jobs that a coordinator serves, if they are few.
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
    """Event: a message of a node."""

    node: str
    message: FromAgent


class NodeSilent(NamedTuple):
    """Event: nothing was heard of a node since a time: its connection has ended, or stays silent.
    That proves nothing.
    """

    node: str
    since: float
    reason: str


class NodeHeard(NamedTuple):
    """Event: a silent node is heard again, over the connection that it had."""

    node: str


class Slept(NamedTuple):
    """Event: this process has not run for a while. What was silent meanwhile may have been well."""


class NodeLost(NamedTuple):
    """Event: a node is gone, workers and all. That is proven, or it is not a node of this group."""

    node: str
    reason: str


class Send(NamedTuple):
    """Effect: send a message to a node."""

    node: str
    message: FromCoordinator


class Drop(NamedTuple):
    """Effect: drop a node. Its connection is closed and it gets no more answers, so that the
    lease of its workers expires.
    """

    node: str


Event = Received | NodeSilent | NodeHeard | NodeLost | Slept | Tick
Effect = Send | Drop
