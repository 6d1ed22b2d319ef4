"""Keeps track of the nodes in a generation, by group rank.

The group rank of a node that has left becomes free, and another node may take it in the next
generation. Each connected node is either active (its workers may run) or done (its workers have
succeeded). A node that is done may leave, because the other nodes don't need it.

The invariants are in `check`.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from relight.core.group.straggler_detector import StragglerDetector


class AllQuiet(NamedTuple):
    """All workers on all nodes have been idle since the time `since`. If they are still idle at
    `too_long_at`, this counts as a failure.
    """

    since: float
    too_long_at: float


class Roster:
    """The nodes in a generation, and whether their workers are running, have succeeded or are lost.

    Args:
        nodes: the nodes by group rank, with None for a node that has not arrived yet.
        survivors: the nodes with workers that were already in the previous generation.
    """

    def __init__(self, nodes: Sequence[str | None] = (), survivors: Collection[str] = ()) -> None:
        self.order = list(nodes)
        """The nodes by group rank, with None for a node that has left."""
        self.group_ranks = {
            node: group_rank for group_rank, node in enumerate(nodes) if node is not None
        }
        self.active = set(self.group_ranks)
        self.done: dict[str, float] = {}
        """Nodes whose workers have succeeded, and the time when they succeeded."""
        self.survivors = survivors
        self.slow_ranks: StragglerDetector | None = None
        """The straggler detector. It is created once a node reports how its workers spend their
        time.
        """
        self._quiet: dict[str, tuple[float, float]] = {}  # nodes with idle workers
        self._succeeded_at = 0.0  # when the most recent node's workers succeeded
        self._done_and_gone: set[int] = set()  # group ranks of nodes that succeeded and are gone
        self._gone: set[int] = set()  # group ranks of nodes whose workers have certainly ended

    def __len__(self) -> int:
        """Return how many nodes the generation has, including nodes that have left."""
        return len(self.order)

    def __contains__(self, node: object) -> bool:
        """Return whether a node is connected and belongs to the generation."""
        return node in self.group_ranks

    @property
    def done_and_gone(self) -> int:
        """How many nodes left after their workers succeeded."""
        return len(self._done_and_gone)

    @property
    def lost(self) -> int:
        """How many nodes have left without their workers having succeeded, or have not arrived
        yet.
        """
        return self.order.count(None) - len(self._done_and_gone)

    @property
    def missing(self) -> int:
        """How many of the lost nodes may still arrive or have running workers."""
        return self.order.count(None) - len(self._done_and_gone | self._gone)

    @property
    def succeeded(self) -> tuple[int, ...]:
        """The group ranks of nodes whose workers have succeeded, including nodes that have left."""
        return tuple(
            sorted({*self._done_and_gone, *(self.group_ranks[node] for node in self.done)})
        )

    @property
    def is_ending(self) -> bool:
        """Whether the workers of at least one node have succeeded."""
        return bool(self.done or self._done_and_gone)

    def has_idle(self) -> bool:
        """Return whether there is a node whose workers are not running and have not succeeded."""
        return len(self.active) + len(self.done) < len(self.group_ranks)

    def take(self, node: str, group_rank: int) -> bool:
        """Give a node its group rank back if the rank is free. Return whether the node now has that
        rank.
        """
        if self.order[group_rank] is None and node not in self.group_ranks:
            self.order[group_rank] = node
            self.group_ranks[node] = group_rank
            self._done_and_gone.discard(group_rank)
            self._gone.discard(group_rank)
        return self.order[group_rank] == node

    def finish(self, node: str, now: float) -> None:
        """Record that a node's workers have succeeded."""
        self.active.discard(node)
        self._quiet.pop(node, None)
        self.done.setdefault(node, now)
        self._succeeded_at = now

    def mark_succeeded(self, group_ranks: Sequence[int]) -> None:
        """Record that nodes have succeeded according to a former coordinator."""
        self._done_and_gone.update(self._free(group_ranks))

    def mark_gone(self, group_ranks: Sequence[int]) -> None:
        """Record the nodes whose workers are known to have exited, or are frozen for good."""
        self._gone.update(self._free(group_ranks))

    def _free(self, ranks: Sequence[int]) -> list[int]:
        """Return those of the group ranks whose node has left or has not arrived yet."""
        return [rank for rank in ranks if 0 <= rank < len(self.order) and self.order[rank] is None]

    def set_quiet(self, node: str, since: float, limit_s: float) -> None:
        """Record when a node's workers became idle, and how long they may be idle. The argument
        `limit_s` is 0 once the workers are active again.
        """
        self._quiet.pop(node, None)
        if limit_s and node in self.active:
            self._quiet[node] = since, limit_s

    def all_quiet(self) -> AllQuiet | None:
        """Return the time when the last worker on any node became idle, or None if a worker is
        active or all workers have finished.
        """
        if not self.active or len(self._quiet) < len(self.active):
            return None
        since = max(self._succeeded_at, *(since for since, _ in self._quiet.values()))
        return AllQuiet(since, since + max(limit_s for _, limit_s in self._quiet.values()))

    def deactivate(self, node: str) -> None:
        """Record that a node no longer has workers."""
        self.active.discard(node)
        self._quiet.pop(node, None)
        self.done.pop(node, None)

    def remove(self, node: str) -> None:
        """Remove a node. The node's group rank becomes free."""
        group_rank = self.group_ranks.pop(node)
        self.order[group_rank] = None
        if node in self.done:
            self._done_and_gone.add(group_rank)
        self.deactivate(node)

    def reactivate(self) -> None:
        """Mark nodes that are done as active, because they must restart together with the other
        nodes.
        """
        self.active.update(self.done)
        self.done.clear()

    def check(self) -> None:
        """Assert the invariants."""
        assert self.group_ranks == {
            node: group_rank for group_rank, node in enumerate(self.order) if node
        }
        assert self.active | self.done.keys() <= self.group_ranks.keys()
        assert not self.active & self.done.keys()
        assert self._quiet.keys() <= self.active
        assert all(self.order[rank] is None for rank in self._done_and_gone | self._gone)
