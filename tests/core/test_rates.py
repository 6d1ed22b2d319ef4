"""Each rank's CPU usage and step rate."""

import pytest

from relight.core.status.rates import Pace, Rates
from relight.core.status.snapshot import NodeSnapshot, RankSnapshot, RankUse


def node(use: RankUse | None, pid: int = 7) -> NodeSnapshot:
    rank = RankSnapshot(0, 0, pid, None, 0, "", "", "", use)
    return NodeSnapshot("j-1", "j", 1, "h", "r", (), "", "default", 0.0, 0.0, "running", 0, 0, 0,
                        "", 0, 1, 1, None, "", "", (rank,))  # fmt: skip


def pace(*uses: RankUse | None) -> Pace:
    rates = Rates()
    for use in uses:
        rates.take([node(use)])
    last = node(uses[-1])
    return rates.pace(last, last.ranks[0])


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ([RankUse(1.0, 5.0, 1, 3)], Pace()),
        ([RankUse(1.0, 5.0, 1), RankUse(3.0, 8.0, 1)], Pace(1.5, None)),
        ([RankUse(1.0, 0.0, 1, 10), RankUse(3.0, 0.0, 1, 14)], Pace(0.0, 2.0)),
        # Steps end between two snapshots: 4 of them from 0.5 to 2.5.
        ([RankUse(1.0, 0.0, 1, 10, 0.5), RankUse(3.0, 0.0, 1, 14, 0.5)], Pace(0.0, 2.0)),
        # The rank is stuck.
        ([RankUse(1.0, 0.0, 1, 10, 0.0), RankUse(3.0, 0.0, 1, 10, 2.0)], Pace(0.0, 0.0)),
        # A lower step count means that the worker was replaced.
        ([RankUse(1.0, 0.0, 1, 10), RankUse(3.0, 0.0, 1, 2)], Pace()),
        # Two clients get the same snapshot.
        ([RankUse(1.0, 1.0, 1), RankUse(1.0, 1.0, 1), RankUse(2.0, 2.0, 1)], Pace(1.0, None)),
        ([RankUse(1.0, 1.0, 1), RankUse(2.0, 1.0, 1), None], Pace()),
    ],
)
def test_cpu_usage_and_step_rate_are_computed_from_two_snapshots(
    uses: list[RankUse | None], expected: Pace
) -> None:
    assert pace(*uses) == expected


def test_step_rate_covers_only_the_most_recent_seconds() -> None:
    slow = [RankUse(float(at), 0.0, 1, at) for at in range(20)]
    fast = [RankUse(20.0 + at, 0.0, 1, 20 + 5 * at) for at in range(17)]
    assert pace(*slow, *fast).steps == pytest.approx(5.0)


def test_replaced_worker_starts_without_measured_rates() -> None:
    rates = Rates()
    rates.take([node(RankUse(1.0, 100.0, 1), pid=7)])
    rates.take([after := node(RankUse(2.0, 0.5, 1), pid=8)])
    assert rates.pace(after, after.ranks[0]) == Pace()
