"""Reports ranks that finished while other ranks are still running.

An early exit is reported as a fact rather than as a failure, because ranks may do different work.
But if a rank had fewer batches than the others, or returned by mistake, it exits with code 0 and
users may not notice, while the other ranks wait for it or continue training without it. One line
reports the early exit after a delay of 5 % of the generation's running time at that point, but at
least 5 s and at most 10 min. The line is repeated, after twice that delay, only if more ranks have
finished.

An agent uses this module for the ranks on its node, and the coordinator uses it for whole nodes.
This module is loaded when it is first used.
"""

from collections.abc import Sequence

from relight.base.text import format_duration, format_names, format_ranks

MIN_S = 5.0
_MAX_S, _SHARE = 600.0, 0.05


class EarlyExits:
    """The ranks on one node, or the group ranks of whole nodes, that have finished in one
    generation.

    Args:
        began: when the generation started running.
    """

    def __init__(self, began: float) -> None:
        self.at: dict[int, float] = {}
        """When each rank or node finished, keyed by its number."""
        self._began = began
        self._first: float | None = None  # when the first unreported one finished
        self._factor = 1

    def finish(self, number: int, now: float) -> None:
        """Record that a rank or node finished with exit code 0."""
        if number not in self.at:
            self.at[number] = now
            self._first = now if self._first is None else min(self._first, now)

    def deadline(self) -> float | None:
        """Return the time of the next report, or None if everything has been reported. The report
        is made only if something is still running at that time.
        """
        first = self._first
        if first is None:
            return None
        wait_s = min(max(MIN_S, _SHARE * (first - self._began)), _MAX_S)
        return first + min(self._factor * wait_s, _MAX_S)

    def is_due(self, now: float) -> bool:
        """Return whether a report is due now. If it is, the next report is due only once more ranks
        or nodes have finished.
        """
        due = self.deadline()
        if due is None or now < due:
            return False
        self._first, self._factor = None, self._factor * 2
        return True

    def ages(self, now: float) -> list[float]:
        """Return how many seconds ago each rank or node finished."""
        return [now - at for at in self.at.values()]


def describe_ranks(
    finished: Sequence[int], ages_s: Sequence[float], running: Sequence[int], where: str = ""
) -> str:
    """Return a status line such as `rank 1 finished 40 s ago with exit code 0; rank 0 is still …`.

    Args:
        finished: the ranks that finished, at least one.
        ages_s: how many seconds ago each of these ranks finished.
        running: the other known ranks, at least one.
        where: a suffix for their names, such as ` on this node`.
    """
    verb = "is" if len(running) == 1 else "are"
    others = f"{format_ranks(running)}{where} {verb} still running"
    return f"{format_ranks(finished)} {_finished(ages_s)}; {others}"


def describe_nodes(finished: Sequence[str], ages_s: Sequence[float], running: Sequence[str]) -> str:
    """Return the line about nodes. All ranks on the finished nodes have finished. Each of the other
    nodes still has running ranks.
    """
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
