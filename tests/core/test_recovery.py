"""When the survivors of a failed rank keep their processes."""

import pytest

from relight.core.failure import WorkerState
from relight.core.workers.rank_recovery import hanging, why_not, why_stopped

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("alive", "inside", "reason"),
    [
        ([0, 1], [0, 1, 2], None),
        ([0, 1], [], ""),
        ([0, 1, 3], [0, 2], "local ranks 1, 3 do not run a recoverable function"),
    ],
)
def test_surviving_workers_are_kept_if_all_are_recoverable(
    alive: list[int], inside: list[int], reason: str | None
) -> None:
    assert why_not(alive, inside) == reason


def test_ranks_not_seen_waiting_for_peers_count_as_hung() -> None:
    waits, reads = WorkerState(" in step", (), True), WorkerState(" in read", (), False)
    assert hanging([0, 1, 2, 3], {0: waits, 1: reads, 3: waits}) == (1, 2)


def test_workers_are_kept_after_a_hang_only_if_a_rank_is_waiting() -> None:
    assert why_not([0, 1], [0, 1], hanging=[1]) is None
    assert why_not([0, 1], [1], hanging=[1]) == "local rank 0 does not run a recoverable function"
    assert why_not([0, 1], [0, 1], hanging=[0, 1]) == "local ranks 0-1 hang"
    assert why_not([], [], hanging=[]) == ""


def test_reason_for_full_restart_names_late_and_finished_ranks() -> None:
    late = why_stopped([], [2, 3], 30.0)
    assert late == "local ranks 2-3 did not leave the group within 30 s"
    finished = why_stopped([1], [2], 30.0)
    assert finished == "local rank 1 finished before leaving the group"
