"""Reports which nodes' workers have succeeded while others are running.

The nodes with running workers learn this for the next coordinator, which has no other source. If
the other workers keep running for a long time, all nodes receive one message for users
(core/workers/early_exits). This has no other effect.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relight.core.workers.early_exits import EarlyExits

_REPORT_EVERY_S = 0.5
"""Minimum time between two messages about nodes that have succeeded."""


class Successes:
    """The nodes in one generation that have succeeded.

    Args:
        began: when the generation started running, or was adopted.
        before: those of the last generation, whose reports count for the rate limit.
    """

    def __init__(self, began: float, before: "Successes | None" = None) -> None:
        self.is_pending = False
        """Whether a node has succeeded since the last report."""
        self._began = began
        self._report_at: float = 0.0 if before is None else before._report_at
        self._early_exits: EarlyExits | None = None
        self._hosts: dict[int, str] = {}  # the hosts of these nodes, by group rank

    def note_early_exit(self, group_rank: int, host: str, now: float) -> None:
        """Record that a node has succeeded while others are running."""
        from relight.core.workers.early_exits import EarlyExits

        self._early_exits = self._early_exits or EarlyExits(self._began)
        self._early_exits.finish(group_rank, now)
        self._hosts[group_rank] = host

    def deadlines(self) -> list[float]:
        """Return when the next reports are due."""
        early = None if self._early_exits is None else self._early_exits.deadline()
        report = self._report_at if self.is_pending else None
        return [at for at in (report, early) if at is not None]

    def is_due(self, now: float) -> bool:
        """Return whether to report to the nodes now. If it is, the next report is due only once
        more nodes have succeeded.
        """
        if not self.is_pending or now < self._report_at:
            return False
        self.is_pending, self._report_at = False, now + _REPORT_EVERY_S
        return True

    def are_early_exits_due(self, now: float) -> bool:
        """Return whether to send the message to users now."""
        return self._early_exits is not None and self._early_exits.is_due(now)

    def describe_early_exits(self, running: list[str], now: float) -> str:
        """Return the message to users.

        Args:
            running: the hosts whose workers are running.
            now: the current time.
        """
        from relight.core.workers.early_exits import describe_nodes

        assert self._early_exits is not None
        finished = [self._hosts[group_rank] for group_rank in self._early_exits.at]
        return describe_nodes(finished, self._early_exits.ages(now), running)
