"""Determines which ranks are slower than the others, and for how long (--watch-slow-ranks).

Ranks that train together all take the same steps, so if one rank is slow, the others wait for it.
The metric is the fraction of time that a rank is *busy*, i.e. not waiting for its peers in a
collective. If a rank needs 20 % more time for its work than the other ranks, its busy time is also
20 % longer than theirs, no matter how often the ranks synchronize and how expensive their
communication is. If the ranks report their steps and their step counts differ, the busy time is
measured per step.

All nodes report windows of equal length (`WaitSamples`). In each window, a rank's busy time is
compared with the median of the other ranks. The rank is slow if, in most of the recent windows, its
excess is

- at least 5 %,
- greater than the noise: measured in standard errors of the rank's own windows, the excess is
  higher than the maximum that would be plausible among the same number of identical ranks, and
- greater than the spread among the other ranks, because no rank is an outlier if all ranks differ.

Occasional events, such as a checkpoint written by rank 0, are ignored. A rank is reported once it
has been slow for several consecutive windows, and cleared after it has not been slow for the same
number of windows. Windows in which no training took place don't count.
"""

from collections.abc import Iterable, Sequence
from math import log, sqrt
from typing import NamedTuple

from relight.base.text import format_ranks, pluralize
from relight.core.group.messages import SlowNode, WaitSamples
from relight.core.ranks import Place

WINDOWS = 12
"""Number of windows in which ranks are compared."""
_PERSISTS = 12
"""A rank is reported as slow, or as no longer slow, after this many consecutive windows."""
_MIN = 0.05
"""An excess smaller than this is not reported."""
_LOW = 0.4
"""The quantile over the windows that is used instead of the median, because some windows may
contain a checkpoint.
"""
_MIN_LOOKS = 10
_MAX_WAITING = 0.97
"""If most ranks wait for longer than this fraction of a window, one rank is in a different phase
and is not training.
"""
_TO_DEVIATION = 1.4826
"""The factor that converts a median absolute deviation to the standard deviation of a normal
distribution.
"""
_ERROR_OF_MEDIAN = 1.2533
"""The standard error of a median, as a multiple of the standard error of a mean."""
_SPREADS = 2.0
"""Minimum excess of a slow rank, in standard deviations of the other ranks."""
_OTHER_STEPS = 0.05, 3
"""Ranks don't take the same number of steps if their step counts differ by more than this fraction
and also by more than this number.
"""
_MAX_NAMED = 4
"""Maximum number of nodes that are named in a line."""


class Change(NamedTuple):
    """The slow ranks by node, and the time on the coordinator's clock when they became slow."""

    nodes: tuple[SlowNode, ...]
    since: float


class _NodeRanks(NamedTuple):
    host: str
    ranks: range


class _GroupWindow(NamedTuple):
    """The fraction of time spent waiting, and the number of steps, keyed by rank."""

    waited: tuple[float, ...]
    steps: tuple[int, ...]


class StragglerDetector:
    """Compares the ranks of one generation.

    Args:
        nodes: each node's place and host, in group rank order.
    """

    def __init__(self, nodes: Iterable[tuple[Place, str]]) -> None:
        self._nodes = [
            _NodeRanks(host, range(place.first_rank, place.first_rank + place.local_world_size))
            for place, host in nodes
        ]
        size = sum(len(node.ranks) for node in self._nodes)
        self._heard: dict[int, WaitSamples] = {}
        self._windows: list[_GroupWindow] = []
        self._steps_reported = False
        self._streaks = [0] * size  # consecutive windows that contradict a rank's reported state
        self._since = [0.0] * size  # when the streak began
        self._slow: dict[int, float] = {}  # the slow ranks, and when they became slow
        self._told: frozenset[int] = frozenset()
        self._untold = 0  # windows with a change that has not been reported yet

    def hear(self, group_rank: int, pace: WaitSamples, now: float) -> Change | None:
        """Record a node's report. Return the slow ranks if they have changed."""
        if len(self._streaks) < 2:
            return None
        if {len(pace.looks), len(pace.waits), len(pace.steps)} != {
            len(self._nodes[group_rank].ranks)
        }:
            return None
        self._heard[group_rank] = pace
        if len(self._heard) < len(self._nodes):
            return None
        paces = [pace for _, pace in sorted(self._heard.items())]
        self._heard = {}
        return self._compare(paces, now)

    def _compare(self, paces: Sequence[WaitSamples], now: float) -> Change | None:
        looks = [each for pace in paces for each in pace.looks]
        steps = tuple(each for pace in paces for each in pace.steps)
        if min(looks) < _MIN_LOOKS:
            return None  # frozen or still starting
        waits = [each for pace in paces for each in pace.waits]
        waited = tuple(
            min(max(wait, 0), look) / look for wait, look in zip(waits, looks, strict=True)
        )
        self._steps_reported = self._steps_reported or max(steps) > 0
        if max(steps) <= 0 if self._steps_reported else _median(sorted(waited)) > _MAX_WAITING:
            return None
        self._windows = [*self._windows[-WINDOWS + 1 :], _GroupWindow(waited, steps)]
        if len(self._windows) < WINDOWS:
            return None
        busy = self._busy()
        slower = [_median(sorted(each)) for each in _beside_others(busy)]
        self._count(slower, self._stand_out(busy), now)
        return self._change(busy)

    def _busy(self) -> list[list[float]]:
        """Return each rank's busy time per step, window by window."""
        factors = self._time_for_a_step()
        return [
            [(1 - window.waited[rank]) * factor for window in self._windows]
            for rank, factor in enumerate(factors)
        ]

    def _stand_out(self, busy: Sequence[Sequence[float]]) -> set[int]:
        """Return the ranks that stand out, alone or together with their whole node."""
        found = set(_outliers(busy))
        if 1 < len(self._nodes) < len(busy):
            means = [
                [sum(busy[rank][window] for rank in node.ranks) / len(node.ranks)
                 for window in range(WINDOWS)]
                for node in self._nodes
            ]  # fmt: skip
            for index in _outliers(means):
                own = self._nodes[index].ranks
                others = [rank for rank in range(len(busy)) if rank not in own]
                found.update(r for r in own if _low(_above(busy, [r], others)) >= _MIN / 2)
        return found

    def _time_for_a_step(self) -> list[float]:
        """Return each rank's time per step, relative to the median rank. The relative time is 1 if
        all ranks take the same number of steps or don't report their steps.
        """
        sums = [sum(column) for column in zip(*(w.steps for w in self._windows), strict=True)]
        middle = _median(sorted(sums))
        share, number = _OTHER_STEPS
        if min(sums) <= 0 or max(sums) - min(sums) <= max(share * middle, number):
            return [1.0] * len(sums)
        return [middle / each for each in sums]

    def _count(self, slower: Sequence[float], outliers: "set[int]", now: float) -> None:
        """For each rank, count the consecutive windows that contradict its reported state."""
        for rank, by in enumerate(slower):
            differs = by < _MIN / 2 if rank in self._slow else rank in outliers
            self._streaks[rank] = self._streaks[rank] + 1 if differs else 0
            if self._streaks[rank] == 1:
                self._since[rank] = now
            elif self._streaks[rank] == _PERSISTS:
                self._streaks[rank] = 0
                if self._slow.pop(rank, None) is None:
                    self._slow[rank] = self._since[rank]

    def _change(self, busy: Sequence[Sequence[float]]) -> Change | None:
        """Return the slow ranks if a report is due. The report is delayed briefly for other ranks
        that are about to be classified as slow, so that a node's ranks are reported together.
        """
        ranks = frozenset(self._slow)
        self._untold = self._untold + 1 if ranks != self._told else 0
        if not self._untold or (any(self._streaks) and self._untold < _PERSISTS):
            return None
        self._told, self._untold = ranks, 0
        nodes = [self._slow_node(node, busy) for node in self._nodes]
        slow = tuple(node for node in nodes if node.ranks)
        return Change(slow, min(self._slow.values(), default=0.0))

    def _slow_node(self, node: _NodeRanks, busy: Sequence[Sequence[float]]) -> SlowNode:
        """Compare a node's slow ranks with all ranks that are not slow."""
        ranks = tuple(rank for rank in node.ranks if rank in self._slow)
        others = [rank for rank in range(len(busy)) if rank not in self._slow]
        is_whole = len(ranks) == len(node.ranks)
        if not ranks or not others:
            return SlowNode(node.host, ranks, is_whole, 0.0, 0.0)
        waited = [
            _median_of(shares, others) - _median_of(shares, ranks) for shares, _ in self._windows
        ]
        slower = _above(busy, ranks, others)
        by, wait = (max(0.0, _median(sorted(each))) for each in (slower, waited))
        return SlowNode(node.host, ranks, is_whole, by, wait)


def _outliers(busy: Sequence[Sequence[float]]) -> list[int]:
    """Return the ranks or nodes whose slowness is statistically significant.

    Args:
        busy: the busy time of each rank or node, window by window.
    """
    slower = _beside_others(busy)
    lows, medians = map(_low, slower), [_median(sorted(each)) for each in slower]
    # Among n equal ranks, the maximum is about sqrt(2 ln n) standard errors above the others.
    errors = 1 + sqrt(2 * log(max(len(busy), 4)))
    found = []
    for index, by in enumerate(lows):
        if by < _MIN:
            continue
        error = _ERROR_OF_MEDIAN * _deviation(slower[index]) / sqrt(WINDOWS)
        spread = _deviation([*medians[:index], *medians[index + 1 :]])
        if by > errors * error and by > _SPREADS * spread:
            found.append(index)
    return found


def _beside_others(busy: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return each rank's or node's relative excess over the median of the others, window by
    window.
    """
    rows = [_beside_each_other(values) for values in zip(*busy, strict=True)]
    return [list(column) for column in zip(*rows, strict=True)]


def _beside_each_other(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    result = [0.0] * len(values)
    for position, rank in enumerate(order):
        others = _median([values[other] for other in _without(order, position)])
        result[rank] = values[rank] / others - 1 if others > 0 else 0.0
    return result


def _without(order: Sequence[int], position: int) -> Sequence[int]:
    """Return the one or two middle entries of a sorted list after removing one entry."""
    left = len(order) - 1
    middle = {(left - 1) // 2, left // 2}
    return [order[each + (each >= position)] for each in sorted(middle)]


def _above(
    busy: Sequence[Sequence[float]], ranks: Sequence[int], others: Sequence[int]
) -> list[float]:
    """Return the relative excess of one set of ranks over another, window by window."""
    pairs = ((_median_of(row, ranks), _median_of(row, others)) for row in zip(*busy, strict=True))
    return [own / theirs - 1 if theirs > 0 else 0.0 for own, theirs in pairs]


def _low(windows: Sequence[float]) -> float:
    return sorted(windows)[int(_LOW * len(windows))]


def _median_of(values: Sequence[float], ranks: Sequence[int]) -> float:
    return _median(sorted(values[rank] for rank in ranks))


def _median(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _deviation(values: Iterable[float]) -> float:
    """Return the standard deviation, estimated from the median absolute deviation."""
    ordered = sorted(values)
    middle = _median(ordered)
    return _TO_DEVIATION * _median(sorted(abs(value - middle) for value in ordered))


def describe(nodes: Sequence[SlowNode], since: str) -> str:
    """Describe the slow ranks in one line.

    Args:
        nodes: the slow nodes, as sent by the coordinator.
        since: the time of day when they became slow.
    """
    if not nodes:
        return "no rank is slower than the others anymore"
    return "; ".join(_named(node, since) for node in nodes[:_MAX_NAMED]) + (
        f"; and ranks on {pluralize(len(nodes) - _MAX_NAMED, 'more node')}"
        if len(nodes) > _MAX_NAMED
        else ""
    )


def _named(node: SlowNode, since: str) -> str:
    several = len(node.ranks) > 1
    if several and node.is_whole:
        who = f"all ranks on {node.host}"
    else:
        who = f"{format_ranks(node.ranks)} on {node.host}"
    text = f"{who} {'are' if several else 'is'} {node.slower:.0%} slower than the others"
    if node.waited >= _MIN / 2:
        text += f": they wait for {'them' if several else 'it'} {node.waited:.0%} of the time"
    return f"{text}, since {since}"
