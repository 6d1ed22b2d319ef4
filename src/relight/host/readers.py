"""Reads workers' output from a pipe, or from a file while it is being written.

Both readers read a bounded amount and return to the loop, so that a worker that writes all the time
delays neither the others nor a signal.
"""

import errno
import os
from collections.abc import Callable

from relight.host import system
from relight.host.console import ConsoleStream
from relight.host.loop import Alarm, Loop

TAIL_SIZE = 64 * 1024
"""Bytes of a worker's stderr that are kept for its failure report."""
_CHUNK = 64 * 1024
_LARGEST_PIPE = 1024 * 1024
"""The usual maximum capacity of a pipe (fs.pipe-max-size of pipe(7))."""
_AT_ONCE = 16
"""Chunks of the end of a file that are shown before other events are handled."""
_COALESCE_S = 0.01
"""A file that is written to all the time is read at this interval, not at each write."""
_POLL_S = 0.1
"""How often files are polled on a machine that has no inotify instance or watch left."""


class PipeReader:
    """Reads what a worker writes to a pipe or a pseudo-terminal, and keeps the last part.

    Args:
        loop: the agent's loop.
        fd: our end, which the reader closes.
        stream: where to show it, or None.
    """

    def __init__(self, loop: Loop, fd: int, stream: ConsoleStream | None) -> None:
        self.fd = fd
        self.tail = bytearray()
        self.size = 0
        """Bytes that were read."""
        self._loop = loop
        self._stream = stream
        self._finishing = False
        os.set_blocking(fd, False)
        loop.on_readable(fd, self._on_readable)
        if stream is not None:
            stream.on_room = self._on_room

    @property
    def done(self) -> bool:
        """Whether everything that was written has been handed over."""
        stream = self._stream
        return self.fd < 0 and (stream is None or stream.over or stream.broken)

    def finish(self) -> None:
        """Read what is left, whether the console has room or not, and close; the workers are gone.
        If a process still writes, continue as the console has room.
        """
        self._finishing = True
        left = _LARGEST_PIPE
        while left > 0 and self.fd >= 0 and not (self._stream and self._stream.broken):
            size = self._read(min(left, _CHUNK))
            if not size:
                break
            left -= size
        self._on_room()

    def read(self) -> None:
        """Read what the worker has written so far, if the console has room."""
        if self.fd >= 0:
            self._on_readable()

    def drop(self) -> int:
        """Discard what was read and not shown; return how many bytes."""
        self.close()
        return self._stream.drop() if self._stream is not None else 0

    def close(self) -> None:
        """Stop reading; a worker that writes on gets EPIPE, or EIO from a pseudo-terminal."""
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
            return  # terminal gone, or too few descriptors to import a module

    def _on_room(self) -> None:
        if self.fd < 0:
            return
        if self._stream is not None and self._stream.reader_is_gone:
            self.close()  # so that the worker gets the error, as on the console itself
            return
        self._loop.on_readable(self.fd, self._on_readable)
        if self._finishing:
            self._on_readable()

    def _on_readable(self) -> None:
        """Read what is available, at most a chunk; a pseudo-terminal returns small pieces."""
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
        """Read once; return how many bytes, 0 if there are none now or the writer has closed."""
        try:
            data = os.read(self.fd, most)
        except BlockingIOError:
            if self._finishing:
                self.close()
            return 0
        except OSError as error:
            if error.errno != errno.EIO:  # a pseudo-terminal's end of file
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
        if len(self.tail) > 2 * TAIL_SIZE:
            del self.tail[:-TAIL_SIZE]
        if self._stream is not None:
            self._stream.feed(data)


class FileTail:
    """Shows a file while a worker writes it. The file itself is the queue: nothing is kept here.

    Args:
        path: the file, which exists.
        stream: where to show it.
        copy: called with what is read, for filters; also when the console is broken.
    """

    def __init__(
        self, path: str, stream: ConsoleStream, copy: Callable[[bytes], None] | None = None
    ) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.stream = stream
        self._copy = copy
        self._position = 0

    @property
    def blocked(self) -> bool:
        """Whether reading is useless, now or for good."""
        return self.stream.full or (self.stream.broken and self._copy is None)

    @property
    def done(self) -> bool:
        """Whether everything that was written has been handed over."""
        return self.fd < 0 and (self.stream.over or self.stream.broken)

    def read(self) -> int:
        """Read a chunk of new content if the console has room; return its size."""
        return 0 if self.blocked else self._read()

    def drop(self) -> int:
        """Discard what was not shown; return how many bytes. They still reach the filters."""
        left = 0
        if self.fd >= 0:
            left = max(0, os.fstat(self.fd).st_size - self._position)
            self.close()
        return left + self.stream.drop()

    def close(self) -> None:
        """Stop showing the file; what the console did not take still reaches the filters."""
        if self._copy is not None:
            while self._read(show=False):
                pass
        os.close(self.fd)
        self.fd = -1
        self.stream.end()

    def _read(self, *, show: bool = True) -> int:
        size = os.fstat(self.fd).st_size
        if size < self._position:  # it was truncated, as by logrotate's copytruncate
            self._position = 0
        if size == self._position:
            return 0
        data = os.pread(self.fd, _CHUNK, self._position)
        self._position += len(data)
        if self._copy is not None:
            self._copy(data)
        if show and not self.stream.broken:
            self.stream.feed(data)
        return len(data)


class FileTails:
    """The files of a generation that are shown while they are written; woken by inotify(7)."""

    def __init__(self, loop: Loop) -> None:
        self.on_end: Callable[[], None] = _nothing
        """Called when all files have been read to their ends, after `finish`."""
        self._loop = loop
        self._tails: list[FileTail] = []
        self._alarm = Alarm(loop, self._turn)
        self._finishing = self._ended = False
        self._inotify = system.inotify_open()
        self._listen()

    @property
    def done(self) -> bool:
        """Whether everything that was written has been handed over."""
        return all(tail.done for tail in self._tails)

    def add(self, tail: FileTail, path: str) -> None:
        """Show the file at `path` with this tail."""
        self._tails.append(tail)
        tail.stream.on_room = self._wake
        if self._inotify >= 0 and system.inotify_watch(self._inotify, path, system.IN_MODIFY) < 0:
            self._close_inotify()
            self._wake()

    def finish(self) -> None:
        """Show the rest as the console has room, then close each file; the workers are gone."""
        self._finishing = True
        for _ in range(_AT_ONCE):  # before other streams write to the console
            self._turn()
            if self._ended or all(tail.blocked for tail in self._tails if tail.fd >= 0):
                break

    def drop(self) -> int:
        """Discard what was not shown; return how many bytes."""
        size = sum(tail.drop() for tail in self._tails)
        self._end()
        return size

    def _wake(self) -> None:
        if not self._ended:
            self._again(0)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._alarm.set(None)
            self._close_inotify()
            self.on_end()

    def _again(self, seconds: float) -> None:
        self._mute()
        self._alarm.set_after(seconds)

    def _listen(self) -> None:
        if self._inotify < 0:
            self._again(_POLL_S)
        else:
            self._loop.on_readable(self._inotify, self._on_change)

    def _on_change(self) -> None:
        self._turn(changed=True)

    def _turn(self, *, changed: bool = False) -> None:
        """Read from each file; then wait for the console, for a moment, or for the next change."""
        self._alarm.set(None)
        if self._inotify >= 0:
            try:
                os.read(self._inotify, _CHUNK)  # all files are read, whichever changed
            except BlockingIOError:
                pass
        tails = [tail for tail in self._tails if tail.fd >= 0]
        most = 0
        for tail in tails:
            size = tail.read()
            most = max(most, size)
            if self._finishing and not size and not tail.stream.full:
                tail.close()
        if self._finishing and all(tail.fd < 0 for tail in tails):
            self._end()
            return
        if self._alarm.when is not None:
            return  # the console has called meanwhile
        if all(tail.blocked for tail in tails):
            self._mute()
        elif most == _CHUNK or self._finishing:
            self._again(0)
        elif most or changed:
            self._again(_COALESCE_S)
        else:
            self._listen()

    def _mute(self) -> None:
        if self._inotify >= 0:
            self._loop.on_readable(self._inotify, None)

    def _close_inotify(self) -> None:
        if self._inotify >= 0:
            self._loop.forget(self._inotify)
            os.close(self._inotify)
            self._inotify = -1


def _nothing() -> None:
    return None


def channel(console_fd: int) -> tuple[int, int]:
    """Return (our end, the worker's end) of a pipe, or of a pseudo-terminal where the console is
    one.

    Args:
        console_fd: where the output will be shown, -1 for nowhere.
    """
    if console_fd < 0 or not os.isatty(console_fd):
        return os.pipe()
    try:
        import termios

        ours, theirs = os.openpty()
    except (ImportError, OSError):  # no descriptor left, or
        return os.pipe()  # no pseudo-terminal left: colours are lost, nothing else
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST  # the real terminal translates line ends
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    return ours, theirs
