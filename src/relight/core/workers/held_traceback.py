"""Holds back a worker's fatal traceback on a terminal.

The failure report also shows that traceback, and several workers often end with the same
traceback. The traceback is therefore held back until the workers have exited, and then shown once
(core/workers/traceback_groups). All other output, including tracebacks of caught exceptions, is
shown immediately.

The worker's stack shows whether an exception was caught. While the worker prints a caught
exception, its main thread is still running the program. While Python prints the fatal exception and
then shuts down (which takes seconds with torch), the program is no longer on the stack. The agent
reads the stack from outside the process (stacks/).

    state     meaning                          events
    PASSING   nothing is held                  a traceback begins: HELD, and inspect the worker
    HELD      everything is held, from the     it keeps running: show all, PASSING
              start of the traceback           it is ending: inspect it again in a moment
                                               it can't be inspected, twice: show all, PASSING
                                               held too long, or too much: show all, PASSING
    ENDED     the worker has exited            output is added to the held output, or passes if
                                               nothing is held

Invariants: The bytes shown so far, followed by the bytes held, are the worker's complete output.
Bytes from a running worker are held for at most five seconds, while the agent inspects the
worker's stack.

A chunk of output without a traceback only costs a few byte searches. The agent inspects the stack
at most four times per second, no matter how many tracebacks the worker prints.
"""

_LONGEST_S = 5.0
"""How long a traceback is held back while its worker is running."""
_PAUSE_S = 0.25
"""The time between two inspections of the worker."""
_MAX = 64 * 1024
_HEADER = b"Traceback (most recent call last):"
_GROUP = b"  + Exception Group "
_FILE = b"  File "


class HeldTraceback:
    """The part of one worker's output that is held back. All times are in seconds on the same
    clock.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._is_certain = True
        """Whether a traceback is certain to begin there. If False, the line is still too short to
        tell.
        """
        self._began = 0.0
        self._looked_at = float("-inf")
        self._due: float | None = None
        self._seen: list[bool | None] = []
        """The results of the inspections of the worker since then."""
        self._has_ended = False

    @property
    def held(self) -> bytes:
        """The output that is held back."""
        return bytes(self._held)

    @property
    def ends(self) -> bool:
        """Whether the worker has exited, or was exiting when it was inspected."""
        return self._has_ended or True in self._seen

    def is_late(self, now: float) -> bool:
        """Return whether held output must be shown now."""
        return self._due is not None and now >= self._began + _LONGEST_S

    def output(self, data: bytes, now: float) -> bytes:
        """Process output from the worker. Return the output to show now."""
        if self._held and self._is_certain:
            self._held += data
            return self.release() if len(self._held) > _MAX else b""
        if self._has_ended and not self._held:
            return data
        if self._held:
            data = self.release() + data
        begin, self._is_certain = _beginning(data)
        if begin == len(data):
            return data
        self._held += data[begin:]
        self._began = now
        self._seen = []
        if not self._has_ended:
            first = now if self._is_certain else now + _PAUSE_S
            self._due = max(first, self._looked_at + _PAUSE_S)
        shown = data[:begin]
        return shown + self.release() if len(self._held) > _MAX else shown

    def deadline(self) -> float | None:
        """Return the time at which to inspect the worker and call `on_inspected`, or None if no
        inspection is needed.
        """
        return self._due

    def on_inspected(self, ends: bool | None, now: float) -> bytes:
        """Process an inspection of the worker. Return the output to show now.

        Args:
            ends: whether its main thread has left its program, or None if that can't be determined.
            now: the current time.
        """
        self._looked_at = now
        if self._due is None:
            return b""
        self._seen.append(ends)
        if ends is False or self.is_late(now) or self._seen[-2:] == [None, None]:
            return self.release()
        self._due = min(now + _PAUSE_S, self._began + _LONGEST_S)
        return b""

    def worker_ended(self) -> None:
        """Record that the worker has exited, so that it no longer needs to be inspected."""
        self._has_ended = True
        self._due = None

    def release(self) -> bytes:
        """Return all held output. The caller must show it now."""
        held = bytes(self._held)
        self._held.clear()
        self._due = None
        return held

    def check(self) -> None:
        """Check the invariants."""
        assert (self._due is not None) == (bool(self._held) and not self._has_ended)
        assert self._due is None or self._due <= self._began + _LONGEST_S
        assert len(self._held) <= _MAX


def _beginning(data: bytes) -> tuple[int, bool]:
    """Return the position where a traceback begins (or len(data)), and whether it is certain."""
    header = data.find(_HEADER)
    end = len(data) if header < 0 else header
    place, is_whole = _place_of_syntax_error(data[:end], is_cut=header < 0)
    if place < end:
        return place, is_whole
    line_at = max(data.rfind(b"\n", 0, end), data.rfind(b"\r", 0, end)) + 1
    line = data[line_at:end]
    if header < 0:
        return (line_at, False) if line and _may_begin(line) else (end, True)
    return (line_at if _without_rank(line) in (b"", _GROUP) else header), True


def _place_of_syntax_error(data: bytes, *, is_cut: bool) -> tuple[int, bool]:
    """Return the position where a SyntaxError in the script itself begins, and whether its first
    line is complete. Its traceback lacks a header and begins with a location that does not name a
    function.
    """
    at = data.find(_FILE)
    while at >= 0:
        line, newline, _ = data[at:].partition(b"\n")
        if data[at - 1 : at] in (b"", b"\n") and b" in " not in line:
            if newline and b", line " in line:
                return at, True
            if not newline and is_cut:
                return at, False
        at = data.find(_FILE, at + 1)
    return len(data), True


def _may_begin(line: bytes) -> bool:
    """Return whether a traceback may begin with this incomplete line."""
    if b"[rank".startswith(line):
        return True
    line = _without_rank(line)
    return any(each.startswith(line) for each in (_HEADER, _GROUP + _HEADER, _FILE))


def _without_rank(line: bytes) -> bytes:
    """Remove the rank that torch puts at the start of a line."""
    if not line.startswith(b"[rank"):
        return line
    return line.partition(b": ")[2]
