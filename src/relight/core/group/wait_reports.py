"""Decides when waiting nodes receive the reason for their wait."""

_WAIT_EVERY_S = 1.0
"""Minimum time between two messages with the reason why a node is waiting. It prevents a series of
joins from flooding the nodes with messages. The time is longer if there are more than
`_WAIT_REASONS` nodes.
"""
_WAIT_REASONS = 1000
_TELL_AFTER_S = 0.3
"""A wait that is shorter than this is not reported."""


class WaitReports:
    """The rate limit of the reports."""

    def __init__(self) -> None:
        self.is_pending = False
        """Whether something has changed since the last report."""
        self._at = 0.0

    def after_join(self, now: float) -> None:
        """Schedule a report because a node has joined. Later joins do not delay the report."""
        if not self.is_pending:
            self.is_pending, self._at = True, max(self._at, now + _TELL_AFTER_S)

    def send_at(self, now: float) -> None:
        """Schedule a report for now, whatever was reported before."""
        self.is_pending, self._at = True, now

    def deadline(self) -> float | None:
        """Return the time of the next report, or None."""
        return self._at if self.is_pending else None

    def is_due(self, now: float) -> bool:
        """Return whether a report is due now."""
        return self.is_pending and now >= self._at

    def sent(self, nodes: int, now: float) -> None:
        """Record that a report was sent to a number of nodes."""
        self.is_pending = False
        if nodes:
            self._at = now + _WAIT_EVERY_S * max(1.0, nodes / _WAIT_REASONS)
