"""Counts the job's restarts. `number` counts worker failures, but not membership changes.

After a failure, core/group/restart_decision decides how to continue, based on
core/group/restart_budget. Both are large and only needed after a failure.
"""

from typing import TYPE_CHECKING

from relight.core.group.foreign_leases import MAX_NUMBER
from relight.core.group.group_types import GroupSettings

if TYPE_CHECKING:
    from relight.core.group.live_generation import LiveGeneration
    from relight.core.group.messages import JobEnded
    from relight.core.group.restart_budget import RestartHistory
    from relight.core.group.restart_decision import Restart


class Restarts:
    """The job's restarts so far.

    Args:
        settings: the group's settings.
        origin: a random string that is unique to this group.
    """

    def __init__(self, settings: GroupSettings, origin: str) -> None:
        self.number = 0
        self._settings = settings
        self._origin = origin
        self._history: RestartHistory | None = None  # created when needed

    def adopt(self, number: int) -> None:
        """Record how many restarts a node knows about."""
        self.number = max(self.number, min(number, self._max()))

    def after_failure(self, ended: "LiveGeneration", now: float) -> "Restart | JobEnded":
        """Decide whether the job restarts after a failure, and count the restart."""
        from relight.core.group import restart_decision

        end = restart_decision.GenerationEnd(
            ended.reports.failures, sorted(ended.reports.succeeded_ranks), ended.teardown.cause,
            ended.formed_at, ended.reports.progressed, ended.teardown.hung,
            ended.reports.world_size, ended.reports.waiting,
        )  # fmt: skip
        outcome = restart_decision.decide(end, self._known(now), self.number, now)
        if isinstance(outcome, restart_decision.Restart):
            self.number += 1
        return outcome

    def after_lost_node(self, ended: "LiveGeneration", now: float) -> float:
        """Return how long to wait before the next generation after a node was lost."""
        from relight.core.group.restart_budget import GenerationRun

        run = GenerationRun(now - ended.formed_at, ended.reports.progressed)
        return self._known(now).after_lost_node(run)

    def check(self) -> None:
        """Assert the invariants."""
        assert self.number <= self._max()

    def _known(self, now: float) -> "RestartHistory":
        from relight.core.group.restart_budget import RestartHistory

        if self._history is None:
            self._history = RestartHistory(self._settings, self.number, self._origin, now)
        return self._history

    def _max(self) -> int:
        return MAX_NUMBER if self._settings.budget_renews else self._settings.max_restarts
