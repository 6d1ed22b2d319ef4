"""The nodes of a generation, by their places in it.

A place is a group rank. A node that is gone leaves a hole, which another one may take in the next
generation. Each node that is here is either active (its workers may run) or done (they have ended
well). One that is done may also be gone: nobody lacks it.

Invariants are in `check`.
"""

from collections.abc import Sequence


class Roster:
    """Who is in a generation, and how far its workers are.

    Args:
        nodes: by group rank; None for one that is not here yet.
    """

    def __init__(self, nodes: Sequence[str | None] = ()) -> None:
        self.order = list(nodes)
        """By group rank; None where a node is gone."""
        self.places = {node: place for place, node in enumerate(nodes) if node is not None}
        self.active = set(self.places)
        self.done: dict[str, float] = {}
        """Those whose workers have ended well, and when."""
        self._ended: set[int] = set()  # places whose nodes are gone and had ended well

    def __len__(self) -> int:
        """Return how many nodes the generation has, with those that are gone."""
        return len(self.order)

    def __contains__(self, node: object) -> bool:
        """Return whether a node of the generation is here."""
        return node in self.places

    @property
    def done_and_gone(self) -> int:
        """How many nodes are gone that had ended well."""
        return len(self._ended)

    @property
    def lost(self) -> int:
        """How many nodes are gone, or not here yet, that have not ended well."""
        return self.order.count(None) - len(self._ended)

    @property
    def is_ending(self) -> bool:
        """Whether the workers of some node have ended well."""
        return bool(self.done or self._ended)

    def has_idle(self) -> bool:
        """Return whether a node is here without workers that run or have ended well."""
        return len(self.active) + len(self.done) < len(self.places)

    def take(self, node: str, place: int) -> bool:
        """Let a node have a place again, if that is free; return whether it has it."""
        if self.order[place] is None and node not in self.places:
            self.order[place] = node
            self.places[node] = place
            self._ended.discard(place)
        return self.order[place] == node

    def finish(self, node: str, now: float) -> None:
        """The workers of a node have ended well."""
        self.active.discard(node)
        self.done.setdefault(node, now)

    def rest(self, node: str) -> None:
        """A node has no workers any more."""
        self.active.discard(node)
        self.done.pop(node, None)

    def remove(self, node: str) -> None:
        """A node is gone; its place becomes a hole."""
        place = self.places.pop(node)
        self.order[place] = None
        if node in self.done:
            self._ended.add(place)
        self.rest(node)

    def reactivate(self) -> None:
        """Those that are done must begin anew with the others."""
        self.active.update(self.done)
        self.done.clear()

    def check(self) -> None:
        """Assert the invariants."""
        assert self.places == {node: place for place, node in enumerate(self.order) if node}
        assert self.active | self.done.keys() <= self.places.keys()
        assert not self.active & self.done.keys()
        assert all(self.order[place] is None for place in self._ended)
