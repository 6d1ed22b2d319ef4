"""Collects numbers from this node's workers: the values that they report, the --watch-metric
matches in their output, and their steps per second. The numbers are sampled for charts, at first
once a second, and every ten seconds in a long job.
"""

import time
from collections.abc import Sequence

from relight.agent.node import Node
from relight.agent.worker_group import WorkerGroup
from relight.base.metric_patterns import MetricFinder
from relight.base.values import STDERR, STDOUT
from relight.core.status.charts import STEPS, ChartBuffer, StepRate, numbers_in
from relight.core.status.snapshot import Chart
from relight.host.loop import Loop, Timer

_MAX_EVERY_S = 10.0
_TAIL = 16 * 1024
"""Number of bytes searched at the end of a stream."""


class Numbers:
    """The numbers from one agent's workers.

    Args:
        loop: the agent's loop.
        node: the node, with the agent's latest workers.
        began: when the job began, in seconds since 1970.
        patterns: the regular expressions of --watch-metric.
    """

    def __init__(self, loop: Loop, node: Node, began: float, patterns: Sequence[str]) -> None:
        self._loop, self._node = loop, node
        self._finder = MetricFinder(patterns) if patterns else None
        self._charts = ChartBuffer(began)
        self._began_at = loop.now() - max(0.0, time.time() - began)
        self._never_found = set(self._finder.names) if self._finder is not None else set()
        self._forget(None)
        self._sample()

    def charts(self) -> tuple[Chart, ...]:
        """Return the numbers over time."""
        return self._charts.charts()

    def reported(self) -> dict[int, tuple[str, ...]]:
        """Return each worker's latest numbers, such as `loss=0.31`, keyed by local rank."""
        workers = self._node.workers
        if workers is not self._of:
            self._forget(workers)
        if workers is None or workers.supervisor is None:
            return {}
        found = workers.memory.values()
        for rank in range(len(workers.supervisor.workers.ranks)) if self._finder else ():
            texts, lines = found.get(rank, ()), self._in_output(workers, rank)
            names = lines.keys() - numbers_in(texts).keys()
            found[rank] = (*texts, *(f"{n}={lines[n]:.6g}" for n in lines if n in names))
        return found

    def close(self) -> str:
        """Take the last sample. Return a message listing the --watch-metric names that were never
        found in the output.
        """
        self._next.cancel()
        self._loop.run_guarded(self._add, "the numbers of the workers")
        return ", ".join(sorted(self._never_found))

    def _forget(self, workers: WorkerGroup | None) -> None:
        """Forget the previous workers' numbers, because new workers have started."""
        self._of = workers
        self._rate = StepRate()
        self._found: dict[int, dict[str, float]] = {}
        self._searched: dict[tuple[int, int], bytes] = {}

    def _sample(self) -> None:
        self._loop.run_guarded(self._add, "the numbers of the workers")
        after_s = min(self._charts.every_s, _MAX_EVERY_S)
        self._next: Timer = self._loop.call_after(after_s, self._sample)

    def _add(self) -> None:
        numbers: dict[str, float] = {}
        for _, texts in sorted(self.reported().items(), reverse=True):  # the lowest rank wins
            numbers |= numbers_in(texts)
        workers, now = self._of, self._loop.now()
        if workers is None or workers.supervisor is None or not workers.supervisor.is_running:
            return
        if steps := workers.memory.progress().values():
            rate = self._rate.take(*min(steps), now)
            if rate is not None:
                numbers[STEPS] = rate
        self._charts.add(now - self._began_at, numbers)

    def _in_output(self, workers: WorkerGroup, local_rank: int) -> dict[str, float]:
        """Return the numbers in a worker's output. Stdout takes precedence over stderr."""
        assert self._finder is not None
        found = self._found.setdefault(local_rank, {})
        for stream in (STDERR, STDOUT):
            tail = workers.logs.tail(local_rank, stream, _TAIL)
            if self._searched.get((local_rank, stream)) != tail:
                self._searched[local_rank, stream] = tail
                found |= self._finder.find(tail.decode(errors="replace"))
        self._never_found -= found.keys()
        return found
