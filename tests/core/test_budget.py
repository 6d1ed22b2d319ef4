"""The restart budget: one number, spent by failures, with a reason in words."""

import pytest

from relight.core.restarts import NoRestart, Restart, after_failure


@pytest.mark.parametrize(
    ("used", "budget", "decision"),
    [
        (0, 0, NoRestart("no restarts were allowed (--max-restarts=0)")),
        (0, 3, Restart(1, "restart 1 of 3")),
        (2, 3, Restart(3, "restart 3 of 3")),
        (1, 1, NoRestart("the one restart is used up")),
        (3, 3, NoRestart("all 3 restarts are used up")),
    ],
)
def test_restarts_are_allowed_until_the_budget_is_used_up(
    used: int, budget: int, decision: object
) -> None:
    assert after_failure(used, budget) == decision
