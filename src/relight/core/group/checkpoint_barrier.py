"""Finds the call of `relight.worker.should_checkpoint` at which all workers save and leave.

Workers that train together call it equally often, but they would see a flag at different steps. So
the coordinator first sets a limit, a call from which no worker may return before it is told how:

    COUNTING  all nodes were told the limit; the first one is 0, which only counts
      | all have answered, and no worker had reached the limit  -> AGREED: on this limit
      | all have answered, and a worker had reached it          -> COUNTING, with a higher limit
      | this takes too long                                     -> AGREED: each at its next call
    AGREED    the workers are told

The limit is above all calls that were counted, by a margin that grows eightfold, as fast workers
call it many times between two messages. Deliberately not here: messages, and what workers do.
"""

from collections.abc import Iterable

AT_ONCE = 0
"""The workers could not agree: each leaves at its next call."""
_PATIENCE_S = 5.0
"""How long it may take; a few messages between all nodes take milliseconds."""
_LONGEST_S = 15.0
"""How long it may take while a node that has not answered is silent, at most half of the time that
workers have to save.
"""
_AGAIN_S = 1.0
_MARGIN_GROWS = 8


def longest_s(limit_s: float) -> float:
    """Return how long an agreement may take.

    Args:
        limit_s: how long the workers have after that; 0 for no limit.
    """
    return max(_PATIENCE_S, min(_LONGEST_S, limit_s / 2 or _LONGEST_S))


class Agreement:
    """The search for one such call.

    Args:
        nodes: that have workers.
        cause: why the workers should save and leave, for users.
        limit_s: how long they may take after that; 0 if each agent knows.
        now: the time.
    """

    def __init__(self, nodes: Iterable[str], cause: str, limit_s: float, now: float) -> None:
        self.cause = cause
        self.limit_s = limit_s
        self.limit = 0
        """The call that nodes were told last."""
        self.until = now + _PATIENCE_S
        """When the search ends in any case."""
        self._silent_until = now + longest_s(limit_s)
        self._nodes = set(nodes)
        self._unanswered = set(nodes)
        self._most = 0  # calls of any worker
        self._margin = 1

    @property
    def nodes(self) -> list[str]:
        """The nodes, in order."""
        return sorted(self._nodes)

    @property
    def is_answered(self) -> bool:
        """Whether all nodes have answered."""
        return not self._unanswered

    def answer(self, node: str, limit: int, calls: int) -> None:
        """Take a node's answer: the most calls of one of its workers after it was told a limit."""
        if limit == self.limit:
            self._unanswered.discard(node)
            self._most = max(self._most, calls)

    def remove(self, node: str) -> None:
        """Do without a node whose workers have succeeded."""
        self._nodes.discard(node)
        self._unanswered.discard(node)

    def conclude(self, now: float, silent: Iterable[str] = ()) -> int | None:
        """Return the call on which the workers agree, or AT_ONCE; None if the nodes are to be told
        a new limit, or have to answer.

        Args:
            now: the time.
            silent: nodes that may not have been told the limit yet, and may come back.
        """
        waits = any(node in self._unanswered for node in silent)
        if waits and self.until < self._silent_until:
            self.until = min(max(self.until, now + _AGAIN_S), self._silent_until)
        if now >= self.until:
            return AT_ONCE
        if self._unanswered:
            return None
        if self.limit > self._most:
            return self.limit
        self.limit = self._most + self._margin
        self._margin *= _MARGIN_GROWS
        self._unanswered = set(self._nodes)
        return None
