"""Finds the call to `relight.worker.should_checkpoint` at which all workers save and exit.

Workers that train together call `should_checkpoint` equally often. However, if the agents simply
set a flag, workers would see the flag at different steps. Therefore the coordinator first sets a
limit on the number of calls. A worker that reaches the limit blocks until it receives the decision.

    COUNTING  all nodes know the limit; the first limit is 0, which only counts the calls
      | all have answered, and no worker had reached the limit  -> AGREED: on this limit
      | all have answered, and a worker had reached it          -> COUNTING, with a higher limit
      | the time limit passes                                   -> AGREED: each at its next call
    AGREED    the workers receive the number of the call

The limit exceeds all counted calls by a margin that grows eightfold each time, because fast workers
call the function many times between two messages. Sending messages and holding workers is
deliberately left to other modules.
"""

from collections.abc import Iterable

AT_ONCE = 0
"""The workers could not agree, so each of them exits at its next call."""
_PATIENCE_S = 5.0
"""Time limit for the agreement in seconds. An agreement normally takes milliseconds, because it
only needs a few messages between all nodes.
"""
_LONGEST_S = 15.0
"""Time limit in seconds for the case where a node that has not replied is silent. The limit is at
most half of the time that workers have to save a checkpoint.
"""
_RETRY_S = 1.0
_MARGIN_GROWS = 8


def longest_s(limit_s: float) -> float:
    """Return the time limit for an agreement in seconds.

    Args:
        limit_s: how long the workers may take to save and exit after the agreement, or 0 for no
            limit.
    """
    return max(_PATIENCE_S, min(_LONGEST_S, limit_s / 2 or _LONGEST_S))


class Agreement:
    """The search for a call at which all workers exit.

    Args:
        nodes: the nodes with workers.
        cause: the reason why the workers should save and exit, as shown to users.
        limit_s: how long the workers may take to save and exit, or 0 if each agent uses its own
            limit.
        now: the current time.
    """

    def __init__(self, nodes: Iterable[str], cause: str, limit_s: float, now: float) -> None:
        self.cause = cause
        self.limit_s = limit_s
        self.limit = 0
        """The latest limit sent to the nodes."""
        self.until = now + _PATIENCE_S
        """When the search ends even if replies are missing."""
        self._silent_until = now + longest_s(limit_s)
        self._nodes = set(nodes)
        self._unanswered = set(nodes)
        self._most = 0  # the highest number of calls made by any worker
        self._margin = 1

    @property
    def nodes(self) -> list[str]:
        """The nodes with workers, in sorted order."""
        return sorted(self._nodes)

    @property
    def is_answered(self) -> bool:
        """Whether all nodes have replied."""
        return not self._unanswered

    def answer(self, node: str, limit: int, calls: int) -> None:
        """Record a node's reply to a limit. The reply is the highest call count among the node's
        workers.
        """
        if limit == self.limit:
            self._unanswered.discard(node)
            self._most = max(self._most, calls)

    def remove(self, node: str) -> None:
        """Remove a node whose workers have succeeded."""
        self._nodes.discard(node)
        self._unanswered.discard(node)

    def conclude(self, now: float, silent: Iterable[str] = ()) -> int | None:
        """Return the agreed call, or AT_ONCE. Return None while replies are missing or a new limit
        must be sent.

        Args:
            now: the current time.
            silent: nodes that may not have received the limit yet, but may return.
        """
        waits = any(node in self._unanswered for node in silent)
        if waits and self.until < self._silent_until:
            self.until = min(max(self.until, now + _RETRY_S), self._silent_until)
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
