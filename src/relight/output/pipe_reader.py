"""Reads workers' output from a pipe or a pseudo-terminal.

Each turn of the event loop reads only a limited amount of output, so that a worker that writes
continuously delays neither other workers nor signals.
"""

import errno
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

from relight.host.loop import Loop
from relight.output.console import ConsoleStream

TAIL_SIZE = 64 * 1024
"""How many bytes of a worker's stderr to keep for its failure report."""
HEAD_SIZE = 16 * 1024
"""How many bytes to keep from the beginning of the last traceback, for its frames and exception."""
TRACEBACK = b"Traceback (most recent call last):"
_OTHER_HEADERS = (
    b"object address  : 0x",
    b"(most recent call last) \xe2\x94\x80",
    b"(most recent call last)\x1b[",
)
"""What CPython prints instead of a traceback if a signal handler raises in the middle of it, and
rich's header in the edge of a box, with and without colours.
"""
_CHUNK = 64 * 1024
_LARGEST_PIPE = 1024 * 1024
"""The usual maximum capacity of a pipe (fs.pipe-max-size in pipe(7))."""


class LongOutput(NamedTuple):
    """The end of a worker's output, plus the beginning of its last traceback if the end does not
    include it. The `newlines` field is the number of newlines in between.
    """

    head: bytes
    newlines: int
    tail: bytes


class PipeReader:
    """Reads a worker's output from a pipe or a pseudo-terminal, and keeps the end of it.

    Args:
        loop: the agent's loop.
        fd: this process's end of the pipe. The reader closes it.
        stream: where to show the output, or None.
        on_traceback: called when a traceback begins, before it is shown. If None, tracebacks are
            ignored.
    """

    def __init__(
        self,
        loop: Loop,
        fd: int,
        stream: ConsoleStream | None,
        on_traceback: Callable[[], None] | None = None,
    ) -> None:
        self.fd = fd
        self.tail = bytearray()
        self.size = 0
        """Number of bytes read so far."""
        self._head = bytearray()
        """The beginning of the last traceback."""
        self._head_at = 0
        """The offset of the last traceback in bytes."""
        self._newlines = 0
        """Number of newlines since the beginning of the last traceback."""
        self._on_traceback = on_traceback
        self._loop = loop
        self._stream = stream
        self._finishing = False
        os.set_blocking(fd, False)
        loop.on_readable(fd, self._on_readable)
        if stream is not None:
            stream.on_room = self._on_room

    @property
    def done(self) -> bool:
        """Whether all output that has been written has been passed on."""
        stream = self._stream
        return self.fd < 0 and (stream is None or stream.over or stream.console.broken)

    def end(self) -> LongOutput:
        """Return the end of the output. If tracebacks are being searched for, also return the
        beginning of the last one, unless that is part of the end.
        """
        tail_at = self.size - len(self.tail)
        return ends(bytes(self._head), self._head_at, bytes(self.tail), tail_at, self._newlines)

    def finish(self) -> None:
        """Read the remaining output, even if the console is full, and close the pipe. Call this
        after the workers have exited. If another process is still writing, its output is read as
        fast as the console accepts it.
        """
        self._finishing = True
        left = _LARGEST_PIPE
        while left > 0 and self.fd >= 0 and not (self._stream and self._stream.console.broken):
            size = self._read(min(left, _CHUNK))
            if not size:
                break
            left -= size
        self._on_room()

    def read(self) -> None:
        """Read the pending output, unless the console is full."""
        if self.fd >= 0:
            self._on_readable()

    def unread(self) -> int:
        """Return how many bytes have been written but not read, or 0 if this is unknown."""
        try:
            import fcntl
            import termios

            count = fcntl.ioctl(self.fd, termios.FIONREAD, bytes(4))
        except (ImportError, OSError, ValueError):
            return 0
        return int.from_bytes(count, sys.byteorder)

    def drop(self) -> int:
        """Discard the output that has not been shown, and return the number of bytes."""
        self.close()
        return self._stream.drop() if self._stream is not None else 0

    def close(self) -> None:
        """Stop reading. A worker that continues to write gets EPIPE, or EIO from a
        pseudo-terminal.
        """
        if self.fd >= 0:
            self._loop.forget(self.fd)
            os.close(self.fd)
            self.fd = -1
            if self._stream is not None:
                self._stream.end()

    def copy_window_size(self, console_fd: int) -> None:
        """Set a worker's pseudo-terminal to the size of the real terminal (tty_ioctl(4))."""
        if not os.isatty(self.fd):
            return
        try:
            import fcntl
            import termios

            size = fcntl.ioctl(console_fd, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self.fd, termios.TIOCSWINSZ, size)
        except (ImportError, OSError):
            return  # no terminal, or no descriptor left to import a module

    def _on_room(self) -> None:
        if self.fd < 0:
            return
        if self._stream is not None and self._stream.console.reader_is_gone:
            self.close()  # the worker then gets the same error as on the console itself
            return
        self._loop.on_readable(self.fd, self._on_readable)
        if self._finishing:
            self._on_readable()

    def _on_readable(self) -> None:
        """Read up to one chunk of the available data. Pseudo-terminals return small pieces."""
        left = _CHUNK
        while left > 0:
            if self._stream is not None and self._stream.full:
                self._loop.on_readable(self.fd, None)  # until there is room
                return
            size = self._read(left)
            if not size:
                return
            left -= size

    def _read(self, most: int) -> int:
        """Call read(2) once. Return the number of bytes, or 0 if the pipe is empty or closed."""
        try:
            data = os.read(self.fd, most)
        except BlockingIOError:
            if self._finishing:
                self.close()
            return 0
        except OSError as error:
            if error.errno != errno.EIO:  # the end of file on a pseudo-terminal
                raise
            data = b""
        if not data:
            self.close()
            return 0
        self._take(data)
        return len(data) if self.fd >= 0 else 0

    def _take(self, data: bytes) -> None:
        self.size += len(data)
        self.tail += data
        if self._on_traceback is not None:
            self._find_traceback(data, self._on_traceback)
        if len(self.tail) > 2 * TAIL_SIZE:
            del self.tail[:-TAIL_SIZE]
        if self._stream is not None:
            self._stream.feed(data)

    def _find_traceback(self, data: bytes, tell: Callable[[], None]) -> None:
        """Search new output for the beginning of a traceback, even if split across reads."""
        first = max(0, len(self.tail) - len(data) - len(TRACEBACK) + 1)
        at = self.tail.rfind(TRACEBACK, first)
        if at >= 0:
            self._head = self.tail[at : at + HEAD_SIZE]
            self._head_at = self.size - len(self.tail) + at
            self._newlines = self.tail.count(b"\n", at)
            tell()
            return
        if has_other_header(self.tail, len(self.tail) - len(data)):
            tell()
        if self._head:
            self._newlines += data.count(b"\n")
            if len(self._head) < HEAD_SIZE:
                self._head += data[: HEAD_SIZE - len(self._head)]


def has_other_header(data: bytes | bytearray, searched: int) -> bool:
    """Return whether a traceback in a format other than Python's begins in a worker's output.

    Args:
        data: the output.
        searched: how many bytes at the beginning were searched before. A header may begin there.
    """
    return any(data.find(h, max(0, searched - len(h) + 1)) >= 0 for h in _OTHER_HEADERS)


def ends(head: bytes, head_at: int, tail: bytes, tail_at: int, newlines: int) -> LongOutput:
    """Combine two parts of a worker's output.

    Args:
        head: the first part, omitted from the result if the second part contains it.
        head_at: the offset of the first part in bytes.
        tail: the second part, at the end of the output.
        tail_at: the offset of the second part in bytes.
        newlines: the number of newlines since the beginning of the first part.
    """
    missing = tail_at - (head_at + len(head))
    if not head or head_at >= tail_at:
        return LongOutput(b"", 0, tail)
    if missing <= 0:
        return LongOutput(b"", 0, head + tail[-missing:])
    return LongOutput(head, newlines - head.count(b"\n") - tail.count(b"\n"), tail)


def channel(console_fd: int) -> tuple[int, int]:
    """Open a pipe, or a pseudo-terminal if the console is a terminal. Return this process's end and
    the worker's end.

    Args:
        console_fd: the descriptor that the output will be written to; -1 for none.
    """
    if console_fd < 0 or not os.isatty(console_fd):
        return os.pipe()
    try:
        import termios

        ours, theirs = os.openpty()
    except (ImportError, OSError):  # no descriptor left, or
        return os.pipe()  # no pseudo-terminal left, so only colours are lost
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST  # the real terminal translates line endings
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    return ours, theirs
