"""The nodes that are connected: who may join, who is ready for a generation, and who has to wait.

A newcomer is refused if it was started for another job, told what differs between it and the
others, and on probation if nodes of its host come and go (core/flapping).
"""

from collections.abc import Iterator

from relight.core import ranks, waiting
from relight.core.group_types import GroupSettings
from relight.core.messages import Join, NodeReady
from relight.core.ranks import GenerationId

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relight.core.flapping import Flapping


class Member:
    """A node that is connected."""

    def __init__(self, join: Join, number: int, arrived_at: float, probation_s: float) -> None:
        self.node = join.node
        self.join = join
        self.number = number  # of its arrival
        self.arrived_at = arrived_at
        self.probation_s = probation_s  # is let in when it has stayed for so long
        self.ready: NodeReady | None = None
        self.idle = True  # has come without workers, and was not told to start any

    @property
    def may_enter_at(self) -> float:
        """When it has stayed for long enough."""
        return self.arrived_at + self.probation_s


class Members:
    """The nodes that are connected, in the order of their arrival."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._by_node: dict[str, Member] = {}
        self._ready: dict[str, None] = {}  # nodes without workers, by arrival of their word
        self._by_node_rank: dict[int, str] = {}
        self._differences = waiting.Differences()
        self._flapping: Flapping | None = None  # from the first node that has gone
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
        """Return a node, if it is connected."""
        return self._by_node.get(node)

    # Who comes and goes.

    def refusal(self, join: Join) -> str:
        """Return why a node can't join, or nothing."""
        holder = self.get(self._by_node_rank.get(join.node_rank, join.node))
        other = holder.join if holder is not None and holder.node != join.node else None
        return waiting.refusal(self._settings, join, other)

    def admit(self, join: Join, now: float) -> list[tuple[str, str]]:
        """Take a node in, or take what it says when it comes again; return who is to be told what:
        pairs of a node and a text.
        """
        node, notes = join.node, list[tuple[str, str]]()
        if node not in self._by_node:
            for text in self._differences.of(join):
                notes += [(each, text) for each in (node, *list(self._by_node)[:1])]
            self._by_node[node] = Member(join, self._arrivals, now, self._probation_s(join))
            if seconds := self._by_node[node].probation_s:
                assert self._flapping is not None
                times = self._flapping.times(join.host)
                notes.append((node, waiting.on_probation(join.host, times, seconds)))
            self._arrivals += 1
        if self._settings.ordered:
            self._by_node_rank[join.node_rank] = node
        member = self._by_node[node]
        member.join, member.ready, member.idle = join, None, join.announce is None
        self._ready.pop(node, None)
        return notes

    def remove(self, member: Member) -> None:
        """A node is no longer connected, or is done with the job."""
        del self._by_node[member.node]
        self._by_node_rank.pop(member.join.node_rank, None)
        self._ready.pop(member.node, None)

    def lose(self, member: Member, now: float) -> None:
        """A node is gone before its job has ended."""
        self.remove(member)
        if self._flapping is None:
            from relight.core.flapping import Flapping

            self._flapping = Flapping()
        self._flapping.gone(member.join.host, now - member.arrived_at)

    def _probation_s(self, join: Join) -> float:
        if self._flapping is None:
            return 0.0
        return self._flapping.probation_s(join.host, self._settings.last_call_s)

    # Who is ready.

    def is_ready(self, node: str) -> bool:
        """Return whether a node waits for a generation, without workers."""
        return node in self._ready

    def set_ready(self, member: Member, ready: NodeReady) -> None:
        """A node has no workers and waits for a generation."""
        member.ready = ready
        self._ready[member.node] = None

    def begin(self, member: Member) -> None:
        """A node is told to start workers."""
        member.ready, member.idle = None, False
        del self._ready[member.node]

    def ready(self) -> list[Member]:
        """Return the nodes that are ready, by the arrival of their word."""
        return [self._by_node[node] for node in self._ready]

    def count_ready(self) -> int:
        """Return how many they are."""
        return len(self._ready)

    def not_ready(self) -> list[Member]:
        """Return those that are not."""
        return [member for member in self if member.node not in self._ready]

    def regular(self) -> list[Member]:
        """Return the nodes that are ready, but for those of hosts that come and go."""
        return [member for member in self.ready() if not member.probation_s]

    def latest_regular_arrival(self, default: float) -> float:
        """Return when the last node came whose host's nodes do not come and go."""
        members = reversed(self._by_node.values())
        return next((m.arrived_at for m in members if not m.probation_s), default)

    def ready_after(self, generation: GenerationId) -> int:
        """Return how many of the nodes that are ready were in a generation."""
        readies = (member.ready for member in self.ready())
        return sum(ready is not None and ready.generation == generation for ready in readies)

    def candidates(self, now: float) -> list[Member]:
        """Return the nodes to form a generation of, in the order of their arrival. One of a host
        that comes and goes is taken when it has stayed for a while, or where it is needed.
        """
        ready = sorted(self.ready(), key=lambda member: member.number)
        settled = [member for member in ready if now >= member.may_enter_at]
        others = [member for member in ready if now < member.may_enter_at]
        return settled + others[: max(0, self._settings.needed - len(settled))]

    def first(self, ready: list[Member]) -> list[Member]:
        """Return who begins a first generation, in the natural order of host names."""
        chosen = ready[: self._settings.most]
        return sorted(chosen, key=lambda m: (ranks.natural(m.join.host), m.number))
