"""The restart budget: one number, spent by failures, with a reason in words."""

import pytest

from relight.core.exits import Failure
from relight.core.messages import JobEnded
from relight.core.verdict import GenerationEnd, judge, why_no_restart

FAILED = Failure(0, 0, "vm", 1, 1, 0.0, 0, None, (), "", "")


@pytest.mark.parametrize(
    ("used", "budget", "decision"),
    [
        (0, 0, "no restarts were allowed (--max-restarts=0)"),
        (0, 3, "restart 1 of 3"),
        (2, 3, "restart 3 of 3"),
        (1, 1, "the one restart is used up"),
        (3, 3, "all 3 restarts are used up"),
    ],
)
def test_restarts_are_allowed_until_the_budget_is_used_up(
    used: int, budget: int, decision: str
) -> None:
    outcome = judge(GenerationEnd([FAILED], (), "", 0.0), used, budget, 1.0)
    if used < budget:
        assert outcome == f"rank 0 exited with code 1 (pid 1 on vm); {decision}"
        assert why_no_restart(used, budget) == ""
    else:
        assert isinstance(outcome, JobEnded)
        assert outcome.report[-1] == f"exit code 1; {decision}"
        assert why_no_restart(used, budget) == decision
