"""Ranks that have finished while others still run: when to tell, and what.

It is a fact and not a verdict: ranks may have different work. But a rank that had fewer batches
than the others, or returned by mistake, ends with 0, and nobody notices: the others wait for it, or
train on without it. So one line says so, after 5 % of the time for which the generation had run by
then, at least 5 s and at most 10 min. It comes again only if more ranks have finished since, after
twice that time.

An agent uses this for the ranks of its node, the coordinator for whole nodes. Loaded only then.
"""

from collections.abc import Sequence

from relight.base.text import format_duration, format_names, format_ranks

LEAST_S = 5.0
_MOST_S, _SHARE = 600.0, 0.05


class EarlyExits:
    """What has finished in one generation: ranks, or nodes by their group ranks.

    Args:
        began: when the generation began to run.
    """

    def __init__(self, began: float) -> None:
        self.at: dict[int, float] = {}
        """When each has finished."""
        self._began = began
        self._first: float | None = None  # when the first finished that was not told
        self._factor = 1

    def finish(self, number: int, now: float) -> None:
        """Note that a rank or node has finished with exit code 0."""
        if number not in self.at:
            self.at[number] = now
            self._first = now if self._first is None else min(self._first, now)

    def deadline(self) -> float | None:
        """Return when to tell, if something still runs then; None if all was told."""
        first = self._first
        if first is None:
            return None
        wait_s = min(max(LEAST_S, _SHARE * (first - self._began)), _MOST_S)
        return first + min(self._factor * wait_s, _MOST_S)

    def is_due(self, now: float) -> bool:
        """Return whether to tell now; it is not due again until more have finished."""
        due = self.deadline()
        if due is None or now < due:
            return False
        self._first, self._factor = None, self._factor * 2
        return True

    def ages(self, now: float) -> list[float]:
        """Return how many seconds ago each has finished."""
        return [now - at for at in self.at.values()]


def of_ranks(
    finished: Sequence[int], ages_s: Sequence[float], running: Sequence[int], where: str = ""
) -> str:
    """Return the line on ranks: `rank 1 finished 40 s ago with exit code 0; rank 0 is still …`.

    Args:
        finished: at least one.
        ages_s: how many seconds ago each of these did.
        running: the other ranks that are known, at least one.
        where: what follows the names of these, as ` on this node`.
    """
    verb = "is" if len(running) == 1 else "are"
    others = f"{format_ranks(running)}{where} {verb} still running"
    return f"{format_ranks(finished)} {_finished(ages_s)}; {others}"


def of_nodes(finished: Sequence[str], ages_s: Sequence[float], running: Sequence[str]) -> str:
    """Return the line on nodes: all ranks of those that finished have; on the others some run."""
    return (
        f"all ranks on {format_names(finished)} {_finished(ages_s)}; "
        f"ranks on {format_names(running)} are still "
        "running"
    )


def _finished(ages_s: Sequence[float]) -> str:
    first, last = max(ages_s), min(ages_s)
    ago = f"{format_duration(first)} ago"
    if first - last > 1:
        return f"finished with exit code 0, the first {ago}"
    return f"finished {ago} with exit code 0"
