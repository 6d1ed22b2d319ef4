"""Keeps track of the connected nodes, and of whether each node may join, is ready for a generation,
or has to wait.

A newcomer is refused if it was started for another job. Any other newcomer receives a note about
differences from the other nodes, and is put on probation if its host has flapping nodes
(core/group/flapping).
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from relight.core import ranks
from relight.core.group import group_messages
from relight.core.group.group_types import GroupSettings
from relight.core.group.messages import Join, NodeReady
from relight.core.group.node_ranks import NodeRanks
from relight.core.group.silence import Silence, Silent
from relight.core.ranks import NO_GENERATION, GenerationId

if TYPE_CHECKING:
    from relight.core.group.flapping import Flapping
    from relight.core.group.reachability import Reachability


class Member:
    """A connected node."""

    def __init__(self, join: Join, number: int, arrived_at: float) -> None:
        self.node = join.node
        self.join = join
        self.number = number  # in the order of arrival
        self.arrived_at = arrived_at
        self.probation_s = 0.0  # how long it must stay before it is admitted
        self.ready: NodeReady | None = None
        self.idle = True  # joined without workers and has not been ordered to start any

    @property
    def admitted_after(self) -> float:
        """The time when the node will have stayed long enough to be admitted."""
        return self.arrived_at + self.probation_s


class Members:
    """The connected nodes, in order of arrival.

    Args:
        settings: the group's settings.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self.reachability: Reachability | None = None
        """The nodes that can reach each other, or None if no node has requested the check."""
        self.leaving: dict[str, bool] = {}
        """Nodes that left the job while their generation's workers were being stopped. The value is
        whether the node waits until all workers have stopped.
        """
        self.silence = Silence(settings.lost_after_s)
        self.node_ranks = NodeRanks()
        self._settings = settings
        self._by_node: dict[str, Member] = {}
        self._ready: dict[str, NodeReady] = {}  # of nodes without workers, by arrival
        self._differences = group_messages.Differences()
        self._flapping: Flapping | None = None  # created once a node is gone
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._by_node)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_node.values())

    def __contains__(self, node: object) -> bool:
        return node in self._by_node

    def __getitem__(self, node: str) -> Member:
        return self._by_node[node]

    def get(self, node: str) -> Member | None:
        """Return a connected node, or None."""
        return self._by_node.get(node)

    # Arrivals and departures.

    def refusal(self, join: Join) -> str:
        """Return the reason why a node can't join, or an empty string."""
        holder = self.get(self.node_ranks.holder(join))
        other = holder.join if holder is not None and holder.node != join.node else None
        return group_messages.refusal(self._settings, join, other)

    def silent_holder(self, join: Join) -> str:
        """Return the host of a silent node with the same node rank as a newcomer, or an empty
        string. The silent node may have been lost, and the newcomer may be its replacement.
        """
        holder = self.node_ranks.holder(join)
        taken = self._settings.ordered and holder != join.node and holder in self.silence
        return self._by_node[holder].join.host if taken else ""

    def admit(self, join: Join, now: float) -> list[tuple[str, str]]:
        """Add a node, or update a node that joins again. Return the notes to send, as pairs of a
        node and a text.
        """
        node, notes = join.node, list[tuple[str, str]]()
        if node not in self._by_node:
            for text in self._differences.unusual(join):
                notes += [(each, text) for each in (node, *list(self._by_node)[:1])]
            member = self._by_node[node] = Member(join, self._arrivals, now)
            if self._flapping is not None:
                seconds = self._flapping.probation_s(join.host, self._settings.settle_timeout_s)
                member.probation_s = seconds
                if seconds:
                    times = self._flapping.times(join.host)
                    notes.append((node, group_messages.on_probation(join.host, times, seconds)))
            self._arrivals += 1
        if self._settings.ordered:
            self.node_ranks.take(join)
        member = self._by_node[node]
        # The facts have been compared and are no longer needed. With thousands of nodes, they would
        # use most of the memory.
        member.join = join._replace(facts={})
        member.ready = None
        member.idle = join.announce is None or join.announce.ended
        self._ready.pop(node, None)
        self.silence.end(node, now)
        return notes

    def remove(self, member: Member, now: float) -> None:
        """Remove a node that has been lost or has finished the job."""
        del self._by_node[member.node]
        self.node_ranks.release(member.join)
        self._ready.pop(member.node, None)
        self.silence.forget(member.node, now)
        if self.reachability is not None:
            self.reachability.remove(member.node)

    def lose(self, member: Member, now: float) -> None:
        """Remove a node that was lost before the end of its job."""
        self.remove(member, now)
        if self._flapping is None:
            from relight.core.group.flapping import Flapping

            self._flapping = Flapping()
        self._flapping.gone(member.join.host, now - member.arrived_at)

    def note_on(self, chosen: Sequence[Member]) -> str:
        """Return a note about nodes in a generation that share a machine. The note is returned only
        once.
        """
        return self._differences.shared_machine([member.join for member in chosen])

    # Silence. A silent node never enters a new generation, even if it is ready.

    def fall_silent(self, member: Member, heard_at: float, reason: str) -> None:
        """Record that a node has been silent since `heard_at`."""
        self.silence.begin(member.node, Silent(member.join.host, heard_at, reason))
        self._ready.pop(member.node, None)

    def hear(self, member: Member, now: float) -> None:
        """Record that a message from a silent node has arrived over its existing connection."""
        self.silence.end(member.node, now)
        if member.ready is not None:
            self._ready[member.node] = member.ready

    # Readiness.

    def is_ready(self, node: str) -> bool:
        """Return whether a node has no workers and is waiting for a generation."""
        return node in self._by_node and self._by_node[node].ready is not None

    def set_ready(self, member: Member, ready: NodeReady) -> None:
        """Record that a node has no workers and is waiting for a generation."""
        member.ready = ready
        if member.node not in self.silence:
            self._ready[member.node] = ready
        if self.reachability is not None:
            self.reachability.set_ready(member.node, ready.prober)

    def start(self, member: Member) -> None:
        """Record that a node was instructed to start workers."""
        member.ready, member.idle = None, False
        del self._ready[member.node]

    def ready(self) -> list[Member]:
        """Return the ready nodes, in the order in which their NodeReady arrived."""
        return [self._by_node[node] for node in self._ready]

    def count_ready(self) -> int:
        """Return how many nodes are ready."""
        return len(self._ready)

    def not_ready(self) -> list[Member]:
        """Return the nodes that are not ready or are silent."""
        return [member for member in self if member.node not in self._ready]

    def regular(self) -> list[Member]:
        """Return the ready nodes, except those on probation (core/group/flapping)."""
        return [member for member in self.ready() if not member.probation_s]

    def latest_regular_arrival(self, default: float) -> float:
        """Return the time when the most recent node that is not on probation joined."""
        members = reversed(self._by_node.values())
        return next((m.arrived_at for m in members if not m.probation_s), default)

    def count_ready_from(self, generation: GenerationId) -> int:
        """Return how many of the ready nodes belonged to a given generation."""
        return sum(ready.generation == generation for ready in self._ready.values())

    def named_generations(self) -> set[GenerationId]:
        """Return the generations that earlier coordinators last named to the ready nodes."""
        return {ready.latest for ready in self._ready.values()} - {NO_GENERATION}

    def candidates(self, now: float) -> list[Member]:
        """Return the nodes for the next generation, in order of arrival. A node on probation is
        included only if the generation needs it.
        """
        ready = sorted(self.ready(), key=lambda member: member.number)
        settled = [member for member in ready if now >= member.admitted_after]
        others = [member for member in ready if now < member.admitted_after]
        return settled + others[: max(0, self._settings.needed - len(settled))]

    @staticmethod
    def by_host(members: list[Member]) -> list[Member]:
        """Sort nodes by host name, in natural order."""
        return sorted(members, key=lambda m: (ranks.natural(m.join.host), m.number))
