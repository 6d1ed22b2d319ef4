"""Computes each rank's current CPU usage and steps per second from successive samples of a job."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from relight.core.status.snapshot import NodeSnapshot, RankSnapshot, RankUse

_WINDOW_S = 15.0


class Pace(NamedTuple):
    """The number of CPUs that a rank uses and its steps per second, or None until there are two
    samples.
    """

    cpu: float | None = None
    steps: float | None = None


class Uses:
    """One rank's usage over the last 15 seconds."""

    def __init__(self) -> None:
        self._seen: deque[RankUse] = deque()

    def take(self, latest: RankUse) -> Pace:
        """Add a sample and return the pace since the oldest sample that is still kept."""
        seen = self._seen
        if seen and (latest.cpu_s < seen[-1].cpu_s or (latest.step or 0) < (seen[-1].step or 0)):
            seen.clear()  # the worker has been restarted
        if not seen or latest.seen_at > seen[-1].seen_at:
            seen.append(latest)
        while len(seen) > 2 and latest.seen_at - seen[1].seen_at >= _WINDOW_S:
            seen.popleft()
        return _pace(seen[0], latest)


def _pace(first: RankUse, latest: RankUse) -> Pace:
    seconds = latest.seen_at - first.seen_at
    if seconds <= 0:
        return Pace()
    steps = None
    if first.step is not None and latest.step is not None:
        # Measured from step to step, because samples rarely coincide with a step.
        between_s = seconds - latest.step_age_s + first.step_age_s
        steps = (latest.step - first.step) / between_s if latest.step > first.step else 0.0
    return Pace((latest.cpu_s - first.cpu_s) / seconds, steps)


class Rates:
    """The paces of all ranks in a job."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, int], Uses] = {}
        self._paces: dict[tuple[str, int], Pace] = {}

    def take(self, nodes: Iterable[NodeSnapshot]) -> None:
        """Add a sample of all nodes, and forget workers that are not in the sample."""
        found = {
            (node.host, rank.pid): rank.use
            for node in nodes
            for rank in node.ranks
            if rank.use is not None
        }
        self._uses = {key: self._uses.get(key, Uses()) for key in found}
        self._paces = {key: self._uses[key].take(use) for key, use in found.items()}

    def pace(self, node: NodeSnapshot, rank: RankSnapshot) -> Pace:
        """Return a worker's pace as of the last sample."""
        return self._paces.get((node.host, rank.pid), Pace())
