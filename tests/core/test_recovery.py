"""When the survivors of a failed rank keep their process."""

import pytest

from relight.core.workers.recovery import Survivors, why_not, why_stopped

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (Survivors([0, 1], [0, 1, 2], 7), None),
        (Survivors([0, 1], [], 7), ""),
        (
            Survivors([0, 1, 3], [0, 2], 7),
            "local ranks 1, 3 do not run a recoverable function",
        ),
        (Survivors([0, 1], [0, 1], 8, is_recovery=True, began_at=7), None),
        (
            Survivors([0, 1], [0, 1], 7, is_recovery=True, began_at=7),
            "no rank has reported a new step since the last recovery",
        ),
        (
            Survivors([0, 1], [0, 1], None, is_recovery=True),
            "no rank has reported a new step since the last recovery",
        ),
    ],
)
def test_survivors_stay_if_all_are_recoverable_and_progress(
    facts: Survivors, reason: str | None
) -> None:
    assert why_not(facts) == reason


def test_fallback_names_late_and_finished_ranks() -> None:
    late = why_stopped([], [2, 3], 30.0)
    assert late == "local ranks 2-3 did not leave the group within 30 s"
    finished = why_stopped([1], [2], 30.0)
    assert finished == "local rank 1 finished before leaving the group"
