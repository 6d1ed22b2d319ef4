"""Keeps a job's metrics over time, in bounded memory. The metrics are the job's speed and the
values that its script reports.

Each agent samples the job's metrics (agent/status/numbers). A chart starts with one value per
second. When a chart is full, each pair of values is merged into one value, so that the chart always
covers the whole job.
"""

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from math import isfinite
from typing import NamedTuple

from relight.core.status.snapshot import ENDED, Chart, WholeJob, ranked_workers

STEPS = "steps/s"
MAX_VALUES = 120
_MAX_CHARTS = 16
_RECENT_S = 600.0
"""The job's remaining time is computed from its mean speed over this period, which includes pauses
for checkpoints.
"""


class Progress(NamedTuple):
    """A job's progress. The `step` field is the step that all ranks have reached, and `total` is
    the total number of steps. The `rate` field is the slowest rank's rate in steps per second.
    """

    step: int
    total: int | None = None
    rate: float | None = None
    remaining_s: float | None = None


class ChartBuffer:
    """The charts of one node.

    Args:
        began: when the charts begin, in seconds since 1970.
    """

    def __init__(self, began: float) -> None:
        self.every_s = 1.0
        """Seconds per value."""
        self._began = began
        self._series: dict[str, list[float | None]] = {}

    def add(self, age_s: float, numbers: Mapping[str, float]) -> None:
        """Add the numbers that were sampled `age_s` seconds after the charts began. They replace
        earlier numbers from the same interval.
        """
        age_s = max(0.0, age_s)
        while age_s >= MAX_VALUES * self.every_s:
            self.every_s *= 2
            self._series = {name: _halved(values) for name, values in self._series.items()}
        place = int(age_s / self.every_s)
        for name, value in numbers.items():
            if name not in self._series and len(self._series) >= _MAX_CHARTS:
                continue
            values = self._series.setdefault(name, [])
            values.extend([None] * (place + 1 - len(values)))
            values[place] = float(f"{value:.6g}") if isfinite(value) else None

    def charts(self) -> tuple[Chart, ...]:
        """Return the charts. The charts about steps come first."""
        size = max(map(len, self._series.values()), default=0)
        return tuple(
            Chart(name, self._began, self.every_s, (*values, *[None] * (size - len(values))))
            for name, values in sorted(self._series.items(), key=lambda each: each[0] != STEPS)
        )


def _halved(values: list[float | None]) -> list[float | None]:
    return [mean(pair) for pair in zip_longest(values[::2], values[1::2])]


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values, or None."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def numbers_in(reported: Iterable[str]) -> dict[str, float]:
    """Parse strings such as `loss=0.31` into numbers. Other strings are ignored."""
    found = {}
    for text in reported:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            continue
    return found


class StepRate:
    """One node's steps per second. The rate is measured from step to step, because samples rarely
    coincide with a step.
    """

    def __init__(self) -> None:
        self._step, self._at = -1, 0.0
        self._rate: float | None = None

    def take(self, step: int, at: float, now: float) -> float | None:
        """Add a sample and return the rate, or None until two steps are known.

        Args:
            step: the latest step.
            at: the time of that step in seconds.
            now: the current time on the same clock.
        """
        if step < self._step or self._step < 0:  # the first one, or back to a checkpoint
            self._rate = None
        elif step > self._step:
            self._rate = (step - self._step) / max(at - self._at, 1e-6)
        else:  # a long step lowers the rate
            return None if self._rate is None else min(self._rate, 1 / max(now - at, 1e-6))
        self._step, self._at = step, at
        return self._rate


def job_charts(job: WholeJob) -> tuple[Chart, ...]:
    """Return a job's charts. Each chart comes from the first node in rank order that has it."""
    found: dict[str, Chart] = {}
    for node in sorted(job.nodes, key=lambda node: (node.node < 0, node.node)):
        for chart in node.charts:
            found.setdefault(chart.name, chart)
    return tuple(found.values())


def job_progress(job: WholeJob) -> Progress | None:
    """Return a job's progress, or None if no rank has reported a step."""
    ranks = ranked_workers(job)
    uses = [rank.use for _, rank in ranks if rank.use is not None and rank.use.step is not None]
    if not uses:
        return None
    step = min(use.step for use in uses if use.step is not None)
    total = max((use.total for use in uses if use.total is not None), default=None)
    runs = job.nodes[0].state != ENDED and any(rank.exitcode is None for _, rank in ranks)
    chart = next((each for each in job_charts(job) if each.name == STEPS), None)
    if chart is None or not runs:
        return Progress(step, total)
    rate = mean(chart.values[-2:])
    pace = mean(chart.values[-max(2, int(_RECENT_S / chart.every_s)) :])
    left = None if total is None or not pace else max(0, total - 1 - step) / pace
    return Progress(step, total, rate, left)


_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Iterable[float | None], width: int) -> str:
    """Draw a chart as a line of at most `width` block characters, with blanks for unknown
    values.
    """
    every = list(values)
    size = -(-len(every) // width) or 1
    shown = [mean(every[at : at + size]) for at in range(0, len(every), size)]
    known = [value for value in shown if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    step = (high - low) / (len(_BLOCKS) - 1)
    return "".join(
        " " if value is None else _BLOCKS[round((value - low) / step) if step else 3]
        for value in shown
    )
