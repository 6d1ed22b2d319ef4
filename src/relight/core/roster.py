"""The nodes of a generation, by their places in it.

A place is a group rank. A node that is gone leaves a hole, which another node may take in the next
generation. Each node that is here is either active (its workers may run) or done (they have
succeeded). A node that is done may also be gone: the others don't need it.

Invariants are in `check`.
"""

from collections.abc import Sequence

from relight.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relight.core.slow_ranks import PaceComparison


class Hang(NamedTuple):
    """No worker of any node has done anything `since` then; it is a failure at `too_long_at`."""

    since: float
    too_long_at: float


class Roster:
    """The nodes of a generation, and the progress of their workers.

    Args:
        nodes: by group rank; None for a node that is not here yet.
    """

    def __init__(self, nodes: Sequence[str | None] = ()) -> None:
        self.order = list(nodes)
        """By group rank; None where a node is gone."""
        self.places = {node: place for place, node in enumerate(nodes) if node is not None}
        self.active = set(self.places)
        self.done: dict[str, float] = {}
        """Nodes whose workers have succeeded, and when."""
        self.lapsed = False
        """Whether the leases of all nodes that have announced the generation were over."""
        self.slow_ranks: PaceComparison | None = None
        """Set once a node reports its pace."""
        self._quiet: dict[str, tuple[float, float]] = {}  # nodes whose workers do nothing
        self._succeeded_at = 0.0  # when the workers of the latest node succeeded
        self._done_and_gone: set[int] = set()  # places whose nodes succeeded and are gone

    def __len__(self) -> int:
        """Return how many nodes the generation has, including those that are gone."""
        return len(self.order)

    def __contains__(self, node: object) -> bool:
        """Return whether a node of the generation is here."""
        return node in self.places

    @property
    def done_and_gone(self) -> int:
        """How many nodes are gone after their workers succeeded."""
        return len(self._done_and_gone)

    @property
    def lost(self) -> int:
        """How many nodes are gone, or not here yet, whose workers have not succeeded."""
        return self.order.count(None) - len(self._done_and_gone)

    @property
    def succeeded(self) -> tuple[int, ...]:
        """The places of nodes whose workers have succeeded, also if the nodes are gone."""
        return tuple(sorted({*self._done_and_gone, *(self.places[node] for node in self.done)}))

    @property
    def is_ending(self) -> bool:
        """Whether the workers of at least one node have succeeded."""
        return bool(self.done or self._done_and_gone)

    def has_idle(self) -> bool:
        """Return whether a node is here whose workers neither run nor have succeeded."""
        return len(self.active) + len(self.done) < len(self.places)

    def take(self, node: str, place: int) -> bool:
        """Restore a node's place if it is free; return whether the node has it."""
        if self.order[place] is None and node not in self.places:
            self.order[place] = node
            self.places[node] = place
            self._done_and_gone.discard(place)
        return self.order[place] == node

    def finish(self, node: str, now: float) -> None:
        """Note that the workers of a node have succeeded."""
        self.active.discard(node)
        self._quiet.pop(node, None)
        self.done.setdefault(node, now)
        self._succeeded_at = now

    def mark_succeeded(self, places: Sequence[int]) -> None:
        """Note places whose workers have succeeded, as a former coordinator knew."""
        for place in places:
            if 0 <= place < len(self.order) and self.order[place] is None:
                self._done_and_gone.add(place)

    def set_quiet(self, node: str, since: float, limit_s: float) -> None:
        """Note that the workers of a node have done nothing since a time, and how long they may;
        `limit_s` is 0 if they do something again.
        """
        self._quiet.pop(node, None)
        if limit_s and node in self.active:
            self._quiet[node] = since, limit_s

    def hang(self) -> Hang | None:
        """Return since when no worker of any node does anything; None if one does, or none is
        left.
        """
        if not self.active or len(self._quiet) < len(self.active):
            return None
        since = max(self._succeeded_at, *(since for since, _ in self._quiet.values()))
        return Hang(since, since + max(limit_s for _, limit_s in self._quiet.values()))

    def deactivate(self, node: str) -> None:
        """Note that a node has no workers any more."""
        self.active.discard(node)
        self._quiet.pop(node, None)
        self.done.pop(node, None)

    def remove(self, node: str) -> None:
        """Remove a node; its place becomes a hole."""
        place = self.places.pop(node)
        self.order[place] = None
        if node in self.done:
            self._done_and_gone.add(place)
        self.deactivate(node)

    def reactivate(self) -> None:
        """Make nodes that are done active: they must restart with the others."""
        self.active.update(self.done)
        self.done.clear()

    def check(self) -> None:
        """Assert the invariants."""
        assert self.places == {node: place for place, node in enumerate(self.order) if node}
        assert self.active | self.done.keys() <= self.places.keys()
        assert not self.active & self.done.keys()
        assert self._quiet.keys() <= self.active
        assert all(self.order[place] is None for place in self._done_and_gone)
