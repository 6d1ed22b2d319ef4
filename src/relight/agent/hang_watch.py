"""Checks from outside whether this node's workers are still making progress (--hang-timeout).

This module periodically reads the system's counters for each worker and its descendants. The rules
are in core/workers/hang_detector.
"""

from collections.abc import Callable, Mapping

from relight.base.values import HangTimeout
from relight.core.workers.hang_detector import Activity, Observation, Quiet, Usage
from relight.host import system
from relight.host.loop import Loop, Timer

_LOOKS = 20
"""Number of observations within the shortest limit."""
_MIN_S, _MAX_S = 0.1, 5.0


class QuietWatch:
    """Monitors one generation's workers on this node.

    Args:
        loop: the agent's loop.
        limits: how long workers must have been idle to count as quiet.
        running: returns the pids of the running workers, by local rank, or None while they are
            frozen.
        signs: returns how many bytes the workers have printed and the highest step that they have
            reported, or None while one of them is at a breakpoint.
        on_change: called when the workers have been quiet for too long, and when one of them
            becomes active again.
    """

    def __init__(
        self,
        loop: Loop,
        limits: HangTimeout,
        running: Callable[[], Mapping[int, int] | None],
        signs: Callable[[], tuple[int, int] | None],
        on_change: Callable[[], None],
    ) -> None:
        self.quiet: Quiet | None = None
        """How long the workers have been idle, if this is longer than the limit."""
        self._every_s = min(max(limits.idle_s / _LOOKS, _MIN_S), _MAX_S)
        self._loop = loop
        self._running = running
        self._signs = signs
        self._on_change = on_change
        self._activity = Activity(limits, self._every_s)
        self._timer: Timer = loop.call_after(self._every_s, self._poll)

    def close(self) -> None:
        """Stop observing."""
        self._timer.cancel()

    def _poll(self) -> None:
        self._timer = self._loop.call_after(self._every_s, self._poll)
        before = self.quiet
        self.quiet = self._activity.observe(self._observe(), self._loop.now())
        if (before is None) != (self.quiet is None):
            self._on_change()

    def _observe(self) -> Observation | None:
        pids, signs = self._running(), self._signs()
        if pids is None or signs is None:
            return None
        workers = {rank: usage_of_all(pid) for rank, pid in pids.items()}
        return Observation(workers, signs)


def usage_of_all(pid: int) -> Usage:
    """Return the resource usage of a process and its descendants, including descendants that have
    exited.
    """
    each = [system.usage(one) for one in (pid, *system.tree(pid))]
    return Usage(sum(u[0] for u in each), sum(u[1] for u in each), sum(u[2] for u in each))
