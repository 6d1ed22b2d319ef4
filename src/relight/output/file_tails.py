"""Reads workers' output files while they are being written, to show them on the console (--tee) and
to find tracebacks in stderr.

Each iteration of the event loop reads only a limited amount of output, so a worker that writes
continuously delays neither other workers nor signals.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from relight.host import system
from relight.host.loop import Alarm, Loop
from relight.output.console import ConsoleStream
from relight.output.pipe_reader import TRACEBACK, has_other_header

_CHUNK = 64 * 1024
_AT_ONCE = 16
"""How many chunks to show at the end of a file before other events are handled."""
_COALESCE_S = 0.01
"""A file that is written to continuously is read at this interval instead of at each write."""
_POLL_S = 0.1
"""The polling interval if no inotify instance or watch is available."""


class FileTail:
    """Shows a file while a worker is writing it. The file itself serves as the queue, so no output
    is buffered here.

    Args:
        path: an existing file.
        stream: where to show it. If None, the file is only searched for tracebacks, and output that
            is written faster than it is read is skipped.
        copy: called with all output, for filters, even after writing to the console has failed.
        on_traceback: called when a traceback begins, before it is shown.
    """

    def __init__(
        self,
        path: str,
        stream: ConsoleStream | None,
        copy: Callable[[bytes], None] | None = None,
        on_traceback: Callable[[], None] | None = None,
    ) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.stream = stream
        self._copy = copy
        self._on_traceback = on_traceback
        self._before = b""
        """The last bytes read. They may contain the first part of a traceback's header."""
        self._position = 0

    @property
    def full(self) -> bool:
        """Whether the console is full."""
        return self.stream is not None and self.stream.full

    @property
    def blocked(self) -> bool:
        """Whether there is no point in reading the file, either for now or permanently."""
        stream = self.stream
        return stream is not None and (
            stream.full or (stream.console.broken and self._copy is None)
        )

    @property
    def done(self) -> bool:
        """Whether all output that has been written has been passed on."""
        stream = self.stream
        return self.fd < 0 and (stream is None or stream.over or stream.console.broken)

    def read(self) -> int:
        """Read a chunk of new content if the console has room, and return its size."""
        return 0 if self.blocked or self.fd < 0 else self._read()

    def drop(self) -> int:
        """Discard the output that has not been shown, and return the number of bytes. The filters
        still receive that output.
        """
        left = 0
        if self.fd >= 0:
            left = max(0, os.fstat(self.fd).st_size - self._position)
            self.close()
        return left + self.stream.drop() if self.stream is not None else 0

    def close(self) -> None:
        """Stop showing the file. The filters still receive the output that has not been shown."""
        if self._copy is not None:
            while self._read(show=False):
                pass
        os.close(self.fd)
        self.fd = -1
        if self.stream is not None:
            self.stream.end()

    def _read(self, *, show: bool = True) -> int:
        size = os.fstat(self.fd).st_size
        if size < self._position:  # truncated, for example by logrotate's copytruncate
            self._position = 0
        if size == self._position:
            return 0
        if self.stream is None:
            self._position = max(self._position, size - _CHUNK + 1)
        data = os.pread(self.fd, _CHUNK, self._position)
        self._position += len(data)
        if self._on_traceback is not None:
            new, searched = self._before + data, len(self._before)
            self._before = data[-len(TRACEBACK) + 1 :]
            if TRACEBACK in new or has_other_header(new, searched):
                self._on_traceback()
        if self._copy is not None:
            self._copy(data)
        if show and self.stream is not None and not self.stream.console.broken:
            self.stream.feed(data)
        return len(data)


class FileTails:
    """Reads a generation's output files while they are being written, using inotify(7)."""

    def __init__(self, loop: Loop) -> None:
        self.on_end: Callable[[], None] = lambda: None
        """Called after `finish`, when all files have been read to the end."""
        self._loop = loop
        self._tails: list[FileTail] = []
        self._alarm = Alarm(loop, self._turn)
        self._finishing = self._ended = False
        self._inotify = system.inotify_open()
        self._listen()

    @property
    def done(self) -> bool:
        """Whether all output that has been written has been passed on."""
        return all(tail.done for tail in self._tails)

    def add(self, tail: FileTail, path: str) -> None:
        """Use `tail` to read the file at `path`."""
        self._tails.append(tail)
        if tail.stream is not None:
            tail.stream.on_room = self._wake
        if self._inotify >= 0 and system.inotify_watch(self._inotify, path, system.IN_MODIFY) < 0:
            self._close_inotify()
            self._wake()

    def finish(self) -> None:
        """Show the remaining output as fast as the console accepts it, and then close each file.
        Call this after the workers have exited.
        """
        self._finishing = True
        for _ in range(_AT_ONCE):  # before other streams write to the console
            self._turn()
            if self._ended or all(tail.blocked for tail in self._tails if tail.fd >= 0):
                break

    def drop(self) -> int:
        """Discard the output that has not been shown, and return the number of bytes."""
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
            self._loop.on_readable(self._inotify, partial(self._turn, changed=True))

    def _turn(self, *, changed: bool = False) -> None:
        """Read from each file. Then wait for the console, a short delay, or the next change to a
        file.
        """
        self._alarm.set(None)
        if self._inotify >= 0:
            with suppress(BlockingIOError):
                os.read(self._inotify, _CHUNK)  # ignored, because all files are read
        tails = [tail for tail in self._tails if tail.fd >= 0]
        most = 0
        for tail in tails:
            size = tail.read()
            most = max(most, size)
            if self._finishing and not size and not tail.full:
                tail.close()
        if self._finishing and all(tail.fd < 0 for tail in tails):
            self._end()
            return
        if self._alarm.when is not None:
            return  # the console called back in the meantime
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
