"""A job's metrics over time."""

from typing import Any

import pytest

from relight.core.status.charts import (
    MAX_VALUES,
    STEPS,
    ChartBuffer,
    StepRate,
    job_progress,
    numbers_in,
    sparkline,
)
from relight.core.status.snapshot import Chart, NodeSnapshot, RankSnapshot, RankUse, WholeJob


def chart(buffer: ChartBuffer, name: str) -> Chart:
    return next(each for each in buffer.charts() if each.name == name)


def test_charts_halve_their_resolution_when_full() -> None:
    """The charts always cover the whole job."""
    buffer = ChartBuffer(1000.0)
    for second in range(3 * MAX_VALUES):
        buffer.add(second, {"loss": float(second)})
    found = chart(buffer, "loss")
    assert (found.began, found.every_s) == (1000.0, 4.0)
    assert len(found.values) == 3 * MAX_VALUES // 4
    assert found.values[:2] == (1.5, 5.5)


def test_charts_have_equal_length_and_gaps_for_unknown_values() -> None:
    buffer = ChartBuffer(0.0)
    buffer.add(0, {"loss": 2.0})
    buffer.add(3, {"loss": float("nan"), STEPS: 4.0})
    assert buffer.charts() == (
        Chart(STEPS, 0.0, 1.0, (None, None, None, 4.0)),
        Chart("loss", 0.0, 1.0, (2.0, None, None, None)),
    )


def test_chart_size_stays_bounded_if_the_clock_jumps() -> None:
    buffer = ChartBuffer(0.0)
    buffer.add(0, {"loss": 1.0})
    buffer.add(1e9, {"loss": 2.0})
    buffer.add(-5, {"loss": 3.0})
    assert len(chart(buffer, "loss").values) <= MAX_VALUES


def test_malformed_metric_reports_are_skipped() -> None:
    assert numbers_in(("loss=0.5", "lr=", "x", "y=1=2", "z=inf")) == {
        "loss": 0.5, "z": float("inf"),
    }  # fmt: skip


def test_step_rate_is_measured_between_step_completions() -> None:
    rate = StepRate()
    samples = [(0, 0.0, 0.5), (10, 2.0, 2.5), (10, 2.0, 2.1), (10, 2.0, 12.0), (11, 22.0, 22.0)]
    assert [rate.take(*each) for each in samples] == [None, 5.0, 5.0, 0.1, 0.05]


def test_step_rate_is_reset_when_training_returns_to_a_checkpoint() -> None:
    rate = StepRate()
    assert [rate.take(step, at, at) for step, at in ((8, 1.0), (9, 2.0), (4, 60.0), (6, 61.0))] == [
        None, 1.0, None, 2.0,
    ]  # fmt: skip


def job(*uses: RankUse | None, values: tuple[float | None, ...] = (), **fields: Any) -> WholeJob:
    ranks = tuple(
        RankSnapshot(n, n, 100 + n, None, 0, "", "", "", use) for n, use in enumerate(uses)
    )
    node = NodeSnapshot("train-7", "train", 7, "gpu-01", "r", ("train.py",), "", "default", 1.0,
                        5.0, "running", 0, 0, 3, "start", 0, 1, 2, None, "", "", ranks)  # fmt: skip
    charts = (Chart(STEPS, 1.0, 2.0, values),) if values else ()
    return WholeJob((node._replace(charts=charts, **fields),))


def use(step: int | None, total: int | None = None) -> RankUse:
    return RankUse(5.0, 1.0, 1, step, total=total)


def test_remaining_time_estimate_includes_pauses() -> None:
    found = job_progress(job(use(40, 101), use(39), values=(4.0, 4.0, None, 0.5, 3.5)))
    assert found == (39, 101, 2.0, (100 - 39) / 3.0)


@pytest.mark.parametrize(
    ("whole", "expected"),
    [
        (job(None, use(None)), None),
        (job(use(7)), (7, None, None, None)),
        (job(use(7), values=(2.0,)), (7, None, 2.0, None)),
        (job(use(99, 100), values=(2.0,)), (99, 100, 2.0, 0.0)),
        (job(use(7, 100), values=(2.0, None, None)), (7, 100, None, 46.0)),
        (job(use(7, 100), values=(2.0,), state="ended"), (7, 100, None, None)),
    ],
)
def test_job_progress_omits_unknown_values(whole: WholeJob, expected: object) -> None:
    assert job_progress(whole) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((), ""),
        ((1.0, 1.0), "▄▄"),
        ((0.0, None, 7.0), "▁ █"),
        (tuple(map(float, range(16))), "▁▂▃▄▅▆▇█"),
    ],
)
def test_sparkline_is_scaled_to_the_known_values(
    values: tuple[float | None, ...], expected: str
) -> None:
    assert sparkline(values, 8) == expected
