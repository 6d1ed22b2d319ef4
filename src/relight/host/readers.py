"""The two ways in which a worker's output reaches the agent: a pipe, and a file that is being
written.
"""

import errno
import fcntl
import os
import termios
from collections.abc import Callable

from relight.host import linux
from relight.host.console import Stream
from relight.host.loop import Loop

TAIL_SIZE = 64 * 1024
"""How much of a worker's stderr is kept for the report of its failure."""
_CHUNK = 64 * 1024
_COALESCE_S = 0.01
"""A file that is written to all the time is read this often, not at each write."""
_POLL_S = 0.1
"""How often files are looked at on a machine that has no inotify instance left."""


class PipeReader:
    """Reads what a worker writes to a pipe or a pseudo-terminal; keeps the end of it.

    Args:
        loop: the agent's loop.
        fd: our end, which the reader closes.
        stream: where to show it, or None.
    """

    def __init__(self, loop: Loop, fd: int, stream: Stream | None) -> None:
        self.fd = fd
        self.tail = bytearray()
        self._loop = loop
        self._stream = stream
        os.set_blocking(fd, False)
        loop.on_readable(fd, self._on_readable)
        if stream is not None:
            stream.on_room = self._on_room

    def finish(self, give_up: Callable[[], bool]) -> None:
        """Take everything that has been written, waiting for the console if need be, and close."""
        while self.fd >= 0 and not give_up():
            if self._read():
                continue
            if self._stream is None or not self._stream.full:
                break
            self._wait_for_room(self._stream, give_up)
        self.close()

    def close(self) -> None:
        """Stop reading; a worker that writes on gets EPIPE."""
        if self.fd >= 0:
            self._loop.forget(self.fd)
            os.close(self.fd)
            self.fd = -1
            if self._stream is not None:
                self._stream.end()

    def copy_window_size(self, console_fd: int) -> None:
        """Tell a worker on a pseudo-terminal how large the real one is (tty_ioctl(4))."""
        try:
            size = fcntl.ioctl(console_fd, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self.fd, termios.TIOCSWINSZ, size)
        except OSError:
            return  # a pipe

    def _wait_for_room(self, stream: Stream, give_up: Callable[[], bool]) -> None:
        self._loop.run_until(lambda: not stream.full or stream.broken or give_up())

    def _on_room(self) -> None:
        if self.fd >= 0:
            self._loop.on_readable(self.fd, self._on_readable)

    def _on_readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        """Read once; return whether there may be more at once."""
        if self._stream is not None and self._stream.full:
            self._loop.on_readable(self.fd, None)  # until there is room
            return False
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:  # how a pseudo-terminal says that its other side is closed
                raise
            data = b""
        if not data:
            self.close()
            return False
        self.tail += data
        if len(self.tail) > 2 * TAIL_SIZE:
            del self.tail[:-TAIL_SIZE]
        if self._stream is not None:
            self._stream.feed(data)
            if self._stream.broken:
                self.close()  # so that the worker learns it, as it would on the console itself
                return False
        return True


class FileTail:
    """Shows a file while a worker writes it. The file itself is the queue: nothing is kept here."""

    def __init__(self, path: str, stream: Stream) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._stream = stream
        stream.on_room = self.read

    def read(self) -> None:
        """Show what is new, as far as the console has room."""
        while self._fd >= 0 and not self._stream.full and not self._stream.broken:
            data = os.read(self._fd, _CHUNK)
            if not data:
                return
            self._stream.feed(data)

    def finish(self, loop: Loop, give_up: Callable[[], bool]) -> None:
        """Show the rest, waiting for the console if need be, and close."""
        self.read()
        while self._stream.full and not self._stream.broken and not give_up():
            loop.run_until(lambda: not self._stream.full or self._stream.broken or give_up())
            self.read()
        os.close(self._fd)
        self._fd = -1
        self._stream.end()


class FileTails:
    """The files of a generation that are shown while they are written; woken by inotify(7)."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._tails: list[FileTail] = []
        self._timer = (
            None if (fd := linux.inotify_open()) >= 0 else loop.call_after(_POLL_S, self._poll)
        )
        self._inotify = fd
        if fd >= 0:
            loop.on_readable(fd, self._on_change)

    def add(self, path: str, stream: Stream) -> None:
        """Show the file at `path`, which exists, on a stream."""
        self._tails.append(FileTail(path, stream))
        if self._inotify >= 0:
            linux.inotify_watch(self._inotify, path, linux.IN_MODIFY)

    def finish(self, give_up: Callable[[], bool]) -> None:
        """Show the rest of all files and close them."""
        if self._timer is not None:
            self._timer.cancel()
        if self._inotify >= 0:
            self._loop.forget(self._inotify)
            os.close(self._inotify)
        for tail in self._tails:
            tail.finish(self._loop, give_up)

    def _on_change(self) -> None:
        self._loop.on_readable(self._inotify, None)
        self._read_all()
        self._timer = self._loop.call_after(_COALESCE_S, self._listen)

    def _listen(self) -> None:
        try:
            os.read(self._inotify, _CHUNK)
        except BlockingIOError:
            pass
        self._read_all()
        self._loop.on_readable(self._inotify, self._on_change)

    def _poll(self) -> None:
        self._read_all()
        self._timer = self._loop.call_after(_POLL_S, self._poll)

    def _read_all(self) -> None:
        for tail in self._tails:
            tail.read()


def channel(console_fd: int) -> tuple[int, int]:
    """Return (our end, the worker's end) of a pipe, or of a pseudo-terminal where the console is
    one.

    Args:
        console_fd: where the output will be shown, -1 for nowhere.
    """
    if console_fd < 0 or not os.isatty(console_fd):
        return os.pipe2(os.O_CLOEXEC)
    try:
        ours, theirs = os.openpty()
    except OSError:
        return os.pipe2(os.O_CLOEXEC)  # no pseudo-terminal left: colours are lost, nothing else
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST  # the real terminal does what is to be done with line ends
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    return ours, theirs
