"""Numbers of a job over time, in bounded memory: values reported by its script, and its speed.

The agent of each node samples them (agent/status/numbers). A chart begins with one value a second;
when it is full, pairs of values become one, so it always covers the whole job.
"""

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from math import isfinite
from typing import NamedTuple

from relight.core.status.snapshot import ENDED, Chart, WholeJob, ranks_of

STEPS = "steps/s"
MOST_VALUES = 120
_MOST_CHARTS = 16
_RECENT_S = 600.0
"""The remaining time is computed from the mean pace in this time, pauses for checkpoints included.
"""


class Progress(NamedTuple):
    """How far a job is. `step` is the one that all ranks have reached, of `total` steps; `rate` is
    the slowest rank's, in steps per second.
    """

    step: int
    total: int | None = None
    rate: float | None = None
    remaining_s: float | None = None


class ChartBuffer:
    """The charts of one node.

    Args:
        began: when they begin, in seconds since 1970.
    """

    def __init__(self, began: float) -> None:
        self.every_s = 1.0
        """Seconds per value."""
        self._began = began
        self._series: dict[str, list[float | None]] = {}

    def add(self, age_s: float, numbers: Mapping[str, float]) -> None:
        """Add the numbers at an age of the charts; those of the same interval are replaced."""
        age_s = max(0.0, age_s)
        while age_s >= MOST_VALUES * self.every_s:
            self.every_s *= 2
            self._series = {name: _halved(values) for name, values in self._series.items()}
        place = int(age_s / self.every_s)
        for name, value in numbers.items():
            if name not in self._series and len(self._series) >= _MOST_CHARTS:
                continue
            values = self._series.setdefault(name, [])
            values.extend([None] * (place + 1 - len(values)))
            values[place] = float(f"{value:.6g}") if isfinite(value) else None

    def charts(self) -> tuple[Chart, ...]:
        """Return the charts, those of steps first."""
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
    """Return the numbers in texts such as `loss=0.31`; others are left out."""
    found = {}
    for text in reported:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            continue
    return found


class StepRate:
    """Steps per second of one node, from step to step: a sample is seldom at the moment of one."""

    def __init__(self) -> None:
        self._step, self._at = -1, 0.0
        self._rate: float | None = None

    def take(self, step: int, at: float, now: float) -> float | None:
        """Add a sample, and return the rate; None until two steps are known.

        Args:
            step: the latest step.
            at: its time in seconds.
            now: the time on the same clock.
        """
        if step < self._step or self._step < 0:  # the first, or the job went back to a checkpoint
            self._rate = None
        elif step > self._step:
            self._rate = (step - self._step) / max(at - self._at, 1e-6)
        else:  # a step that takes long lowers the rate
            return None if self._rate is None else min(self._rate, 1 / max(now - at, 1e-6))
        self._step, self._at = step, at
        return self._rate


def charts_of(job: WholeJob) -> tuple[Chart, ...]:
    """Return the charts of a job: each from the first node that has it, in the order of ranks."""
    found: dict[str, Chart] = {}
    for node in sorted(job.nodes, key=lambda node: (node.node < 0, node.node)):
        for chart in node.charts:
            found.setdefault(chart.name, chart)
    return tuple(found.values())


def progress_of(job: WholeJob) -> Progress | None:
    """Return how far a job is; None if no rank has reported a step."""
    ranks = ranks_of(job)
    uses = [rank.use for _, rank in ranks if rank.use is not None and rank.use.step is not None]
    if not uses:
        return None
    step = min(use.step for use in uses if use.step is not None)
    total = max((use.total for use in uses if use.total is not None), default=None)
    runs = job.nodes[0].state != ENDED and any(rank.exitcode is None for _, rank in ranks)
    chart = next((each for each in charts_of(job) if each.name == STEPS), None)
    if chart is None or not runs:
        return Progress(step, total)
    rate = mean(chart.values[-2:])
    pace = mean(chart.values[-max(2, int(_RECENT_S / chart.every_s)) :])
    left = None if total is None or not pace else max(0, total - 1 - step) / pace
    return Progress(step, total, rate, left)


_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Iterable[float | None], width: int) -> str:
    """Return a line of block characters, at most `width`; blank where a value is unknown."""
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
