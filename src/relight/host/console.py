"""Where people read: many streams, one terminal, and no line with bytes of two ranks in it.

A stream hands over whole lines as soon as it has them. An unfinished line is held back for a
moment, then shown, and from then on the console belongs to that stream until its line ends; the
others wait. If the owner goes quiet while others wait, its line is broken. Bytes pass unchanged,
whatever they are.

Nothing here blocks: a console that takes no more makes the streams stop reading, so that a worker
that writes through a pipe waits as it would on the console itself, and one that writes to a file
does not.
"""

import os
import select
import stat
from collections.abc import Callable
from typing import NamedTuple

from relight.host.loop import Loop, Timer

_PARTIAL_S = 0.1
"""How long an unfinished line is held back."""
_QUIET_S = 0.5
"""How long the owner of the console may be quiet in mid-line while others wait."""
_LONG_LINE = 64 * 1024
_QUEUE = 256 * 1024
_ATOMIC = 4096
"""What poll(2) promises to take without blocking: PIPE_BUF on Linux."""


class Console:
    """One descriptor that people, or a file or pipe of theirs, read from."""

    def __init__(self, loop: Loop, fd: int) -> None:
        self.loop = loop
        self.fd = fd
        self.streams: set[Stream] = set()
        self.broken = False
        """Nobody reads any more (EPIPE)."""
        self._queue = bytearray()
        self._owner: Stream | None = None
        self._waiting: list[Stream] = []
        self._quiet: Timer | None = None
        mode = os.fstat(fd).st_mode
        self._pollable = not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))

    @property
    def full(self) -> bool:
        """Whether streams should wait before they read more."""
        return len(self._queue) >= _QUEUE

    def say(self, text: str) -> None:
        """Write a message of the agent as a line of its own."""
        self._break_line()
        self._put(text.encode(errors="surrogateescape") + b"\n")

    def flush(self, give_up: Callable[[], bool]) -> None:
        """Return when everything is written, nobody reads any more, or `give_up()` is true."""
        self.loop.run_until(lambda: self.broken or not self._queue or give_up())

    def take(self, stream: "Stream") -> bool:
        """Return whether `stream` may write now; if not, its `flush` is called when it may."""
        if self._owner in (None, stream):
            return not self.full
        if self._owner.ended:
            self._break_line()
            return not self.full
        if stream not in self._waiting:
            self._waiting.append(stream)
            if self._quiet is None:
                self._quiet = self.loop.call_at(self._owner.wrote_at + _QUIET_S, self._on_quiet)
        return False

    def write(self, stream: "Stream", data: bytes) -> None:
        """Write for a stream that was given leave by `take`."""
        self._put(data)
        stream.wrote_at = self.loop.now()
        if data.endswith((b"\n", b"\r")):
            self._release()
        else:
            self._owner = stream

    def detach(self, stream: "Stream") -> None:
        """Forget a stream that has ended."""
        self.streams.discard(stream)
        if self._owner is stream and self._waiting:
            self._break_line()

    def _break_line(self) -> None:
        if self._owner is not None:
            self._owner.at_line_start = True
            self._put(b"\n")
            self._release()

    def _release(self) -> None:
        self._owner = None
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        waiting, self._waiting = self._waiting, []
        for stream in waiting:
            stream.flush()

    def _on_quiet(self) -> None:
        self._quiet = None
        if self._owner is None:
            return
        due = self._owner.wrote_at + _QUIET_S
        if self.loop.now() >= due:
            self._break_line()
        else:
            self._quiet = self.loop.call_at(due, self._on_quiet)

    def _put(self, data: bytes) -> None:
        if not self.broken:
            self._queue += data
            self._drain()

    def _drain(self) -> None:
        try:
            while self._queue and self._is_writable():
                size = _ATOMIC if self._pollable else len(self._queue)
                with memoryview(self._queue) as view:
                    written = os.write(self.fd, view[:size])
                del self._queue[:written]
        except BlockingIOError:
            pass
        except OSError:
            # EPIPE and the like; ENOSPC on a full disk. There is nobody left to tell.
            self.broken = True
            self._queue.clear()
        if self._pollable:
            self.loop.on_writable(self.fd, self._drain_more if self._queue else None)

    def _drain_more(self) -> None:
        self._drain()
        if not self.full:
            for stream in list(self.streams):
                stream.flush()

    def _is_writable(self) -> bool:
        if not self._pollable:
            return True
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        return bool(poll.poll(0))


class Stream:
    """The output of one worker on its way to a console.

    Args:
        console: where it goes.
        prefix: what each line begins with, such as `[default0]:`, or nothing.
        on_line: is given each line with its prefix, before it is written; for filters.
    """

    def __init__(
        self, console: Console, prefix: bytes = b"", on_line: Callable[[bytes], None] | None = None
    ) -> None:
        self.at_line_start = True
        self.wrote_at = 0.0
        self.ended = False
        self.on_room: Callable[[], None] = _nothing
        """Called when a stream that was `full` can take more."""
        self._console = console
        self._prefix = prefix
        self._on_line = on_line
        self._buffer = bytearray()
        self._timer: Timer | None = None
        self._was_full = False
        console.streams.add(self)

    @property
    def full(self) -> bool:
        """Whether the reader of the worker's output should stop for now."""
        self._was_full = len(self._buffer) >= _LONG_LINE
        return self._was_full

    @property
    def broken(self) -> bool:
        """Whether nobody reads the console any more."""
        return self._console.broken

    def feed(self, data: bytes) -> None:
        """Take output of the worker."""
        self._buffer += data
        self.flush()

    def end(self) -> None:
        """The worker's output is over: show the rest, also a last line without an end."""
        self.ended = True
        self.flush()
        if not self._buffer:
            self._console.detach(self)

    def flush(self) -> None:
        """Hand over what can be shown now."""
        if self._console.broken:
            self._buffer.clear()
        if self._buffer and self._console.take(self):
            size = self._whole_lines()
            if size:
                self._hand_over(size)
            if self._buffer and self._timer is None:
                self._timer = self._console.loop.call_after(_PARTIAL_S, self._on_timer)
        if not self._buffer and self.ended:
            self._console.detach(self)
        if self._was_full and len(self._buffer) < _LONG_LINE:
            self._was_full = False
            self.on_room()

    def _whole_lines(self) -> int:
        """Return how many bytes of the buffer may be shown without waiting."""
        alone = len(self._console.streams) == 1 and not self._prefix
        if alone or self.ended or len(self._buffer) >= _LONG_LINE:
            return len(self._buffer)
        size = self._buffer.rfind(b"\n") + 1
        if self._prefix:  # each update of a progress bar is a line; \r\n may be cut in two here
            size = max(size, self._buffer.rfind(b"\r", 0, len(self._buffer) - 1) + 1)
        return size

    def _on_timer(self) -> None:
        self._timer = None
        if self._buffer and self._console.take(self):
            self._hand_over(len(self._buffer))
        self.flush()

    def _hand_over(self, size: int) -> None:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._console.write(self, self._with_prefix(data) if self._prefix else data)

    def _with_prefix(self, data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        whole = [self._prefix + line for line in lines]
        if not self.at_line_start:
            whole[0] = lines[0]
        self.at_line_start = data.endswith((b"\n", b"\r"))
        if self._on_line is not None:
            for line in whole:
                self._on_line(line)
        return b"".join(whole)


class Consoles(NamedTuple):
    """The agent's own stdout and stderr; one object where both lead to the same place."""

    stdout: Console
    stderr: Console

    @classmethod
    def open(cls, loop: Loop) -> "Consoles":
        """Return the consoles of this process."""
        out, err = os.fstat(1), os.fstat(2)
        stdout = Console(loop, 1)
        same = (out.st_dev, out.st_ino, out.st_rdev) == (err.st_dev, err.st_ino, err.st_rdev)
        return cls(stdout, stdout if same else Console(loop, 2))


def _nothing() -> None:
    return None
