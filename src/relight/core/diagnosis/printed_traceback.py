"""Determines when a worker printed its last traceback, and whether the worker's program kept
running after that.

While a program prints an exception that it has caught, its main thread is still in the middle of
the program. While Python prints the fatal exception, the program is no longer on the stack.
Therefore the agent inspects the stack (stacks) when a traceback arrives, but at most four
times per second, no matter how many tracebacks the worker prints. A value stays None while it is
unknown, for example because a worker ended before the agent could inspect it.
"""

from enum import Enum

_PAUSE_S = 0.25
"""The minimum time between two inspections of the worker."""
_TRIES = 4
"""How often to inspect the worker if its memory can't be read, which on a busy machine is often
only temporary.
"""


class Program(Enum):
    """The activity of a worker's main thread, as observed from outside the process."""

    RUNS = "it runs its program"
    ENDS = "its program has ended: Python prints an exception, or shuts down"
    LEFT = "the process has ended, or the kernel takes its memory away"
    UNSEEN = "its memory can't be read"


class PrintedTraceback:
    """One worker's last traceback. All times are in seconds on the same clock."""

    def __init__(self) -> None:
        self.at: float | None = None
        """When the traceback's first line was read, or None without a traceback."""
        self.went_on: bool | None = None
        """Whether the program kept running after the traceback was printed."""
        self.size = 0
        """The maximum number of bytes that the worker can have printed by the time its program was
        observed to have ended.
        """
        self._tries = 0
        self._looked_at = float("-inf")
        self._due: float | None = None

    def printed(self, now: float) -> None:
        """Record the start of a traceback."""
        self.at, self.went_on, self._tries = now, None, _TRIES
        self._due = max(now, self._looked_at + _PAUSE_S)

    def deadline(self) -> float | None:
        """Return the time at which to inspect the worker and call `on_inspected`, or None if the
        worker does not need to be inspected.
        """
        return self._due

    def on_inspected(self, program: Program, now: float, size: int = 0) -> None:
        """Process an inspection of the worker. The argument `size` is the maximum number of bytes
        that the worker can have printed by then.
        """
        self._looked_at = now
        if self._due is not None:
            self._tries -= 1
            can_retry = program is Program.UNSEEN and self._tries > 0
            self._due = now + _PAUSE_S if can_retry else None
            self.size = size
            self.went_on = {Program.RUNS: True, Program.ENDS: False}.get(program)

    def worker_ended(self) -> None:
        """Record that the worker can no longer be observed."""
        self._due = None

    def check(self) -> None:
        """Check the invariants."""
        assert self.at is not None or (self._due is None and self.went_on is None)
        assert self._due is None or self.went_on is None
