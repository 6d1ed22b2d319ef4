"""How much CPU each rank uses now, and how many steps it makes a second: from snapshots that follow
each other.
"""

from collections import deque
from collections.abc import Iterable

from relight.core.snapshot import NodeSnapshot, RankSnapshot, RankUse
from relight.typed import NamedTuple

_WINDOW_S = 10.0


class Pace(NamedTuple):
    """CPUs that a rank uses, and its steps a second; None until two snapshots tell."""

    cpu: float | None = None
    steps: float | None = None


_UNKNOWN = Pace()


class Rates:
    """The paces of the ranks of a job over the last ten seconds."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], deque[RankUse]] = {}

    def take(self, nodes: Iterable[NodeSnapshot]) -> None:
        """Take the latest snapshot; workers that are not in it are forgotten."""
        seen: dict[tuple[str, int], deque[RankUse]] = {}
        for node in nodes:
            for rank in node.ranks:
                if rank.use is not None:
                    key = node.host, rank.pid
                    seen[key] = _with(self._seen.get(key, deque()), rank.use)
        self._seen = seen

    def of(self, node: NodeSnapshot, rank: RankSnapshot) -> Pace:
        """Return the pace of a worker."""
        seen = self._seen.get((node.host, rank.pid))
        if not seen or rank.use is None:
            return _UNKNOWN
        first, last = seen[0], seen[-1]
        cpu = _ratio(last.cpu_s - first.cpu_s, last.seen_at - first.seen_at)
        if first.step is None or last.step is None:
            return Pace(cpu)
        began, ended = first.seen_at - first.step_age_s, last.seen_at - last.step_age_s
        return Pace(cpu, _ratio(last.step - first.step, ended - began))


def _with(seen: "deque[RankUse]", use: RankUse) -> "deque[RankUse]":
    if not seen or use.seen_at > seen[-1].seen_at:
        seen.append(use)
    while len(seen) > 2 and seen[1].seen_at <= use.seen_at - _WINDOW_S:
        seen.popleft()
    return seen


def _ratio(amount: float, seconds: float) -> float | None:
    return max(0.0, amount) / seconds if seconds > 0 else None
