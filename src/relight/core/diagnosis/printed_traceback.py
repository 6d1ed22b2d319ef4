"""When a worker has printed its last traceback, and whether its program ran on after that.

While a program prints an exception that it has caught, its main thread is in the middle of it;
while Python prints the exception that ends it, the program is no longer on the stack. So the worker
is looked at (host/stacks) when a traceback comes, but four times a second at most, however many it
prints. What is not known stays None: a worker that has ended before it was looked at tells nothing.
"""

from enum import Enum

_PAUSE_S = 0.25
"""The time between two looks at the worker."""


class Program(Enum):
    """What the main thread of a worker does, as far as it can be seen from outside."""

    RUNS = "it runs its program"
    ENDS = "its program has ended: Python prints an exception, or shuts down"
    LEFT = "the process has ended, or the kernel takes its memory away"
    UNSEEN = "its memory can't be read"


class PrintedTraceback:
    """The last traceback of one worker. Times are in seconds, on one clock."""

    def __init__(self) -> None:
        self.at: float | None = None
        """When its first line was read, None if there is no traceback."""
        self.went_on: bool | None = None
        """Whether the program ran on after that."""
        self.size = 0
        """How many bytes the worker can have printed before its program was seen to have ended."""
        self._looked_at = float("-inf")
        self._due: float | None = None

    def printed(self, now: float) -> None:
        """Note that a traceback begins."""
        self.at, self.went_on = now, None
        self._due = max(now, self._looked_at + _PAUSE_S)

    def deadline(self) -> float | None:
        """Return when to look at the worker and to call `looked`; None for never."""
        return self._due

    def looked(self, program: Program, now: float, size: int = 0) -> None:
        """Take what was seen of the worker, and how many bytes it can have printed by then."""
        self._looked_at = now
        if self._due is not None:
            self._due = None
            self.size = size
            self.went_on = {Program.RUNS: True, Program.ENDS: False}.get(program)

    def worker_ended(self) -> None:
        """Note that there is nothing more to see."""
        self._due = None

    def check(self) -> None:
        """Check the invariants."""
        assert self.at is not None or (self._due is None and self.went_on is None)
        assert self._due is None or self.went_on is None
