"""How much CPU each rank uses now, and how many steps it makes a second: from looks at a job that
follow each other.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from relight.core.status.snapshot import NodeSnapshot, RankSnapshot, RankUse

_WINDOW_S = 15.0


class Pace(NamedTuple):
    """CPUs that a rank uses, and its steps per second; None until there are two samples."""

    cpu: float | None = None
    steps: float | None = None


class Uses:
    """Usage of one rank in the last 15 seconds."""

    def __init__(self) -> None:
        self._seen: deque[RankUse] = deque()

    def take(self, latest: RankUse) -> Pace:
        """Add a sample, and return the pace since the oldest kept sample."""
        seen = self._seen
        if seen and (latest.cpu_s < seen[-1].cpu_s or (latest.step or 0) < (seen[-1].step or 0)):
            seen.clear()  # it has been started again
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
        # From one step to another: a look is seldom at the moment of one.
        between_s = seconds - latest.step_age_s + first.step_age_s
        steps = (latest.step - first.step) / between_s if latest.step > first.step else 0.0
    return Pace((latest.cpu_s - first.cpu_s) / seconds, steps)


class Rates:
    """The paces of all ranks of a job."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, int], Uses] = {}
        self._paces: dict[tuple[str, int], Pace] = {}

    def take(self, nodes: Iterable[NodeSnapshot]) -> None:
        """Add a sample of all nodes, and forget workers that are missing from it."""
        found = {
            (node.host, rank.pid): rank.use
            for node in nodes
            for rank in node.ranks
            if rank.use is not None
        }
        self._uses = {key: self._uses.get(key, Uses()) for key in found}
        self._paces = {key: self._uses[key].take(use) for key, use in found.items()}

    def of(self, node: NodeSnapshot, rank: RankSnapshot) -> Pace:
        """Return the pace of a worker at the last look."""
        return self._paces.get((node.host, rank.pid), Pace())
