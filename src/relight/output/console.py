"""Writes the output of many workers to one terminal without mixing the output of two ranks within a
line.

A stream passes on whole lines as soon as it has them. An unfinished line is shown after a short
delay. From then on, the console belongs to that stream until its line ends, and other streams wait.
If other streams are waiting, the console ends the line with a newline when its owner pauses,
restarts the line with a carriage return (as a progress bar does), or has kept the others waiting
for too long. The bytes themselves are never changed.

Nothing here blocks. When the console accepts no more output, the streams stop reading. A worker
that writes to a pipe then blocks, as it would if it wrote to the console directly. A worker that
writes to a file doesn't block.
"""

import errno
import os
import select
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from relight.host import system
from relight.host.loop import Alarm, Loop

if TYPE_CHECKING:
    from relight.core.workers.repeated_lines import RepeatedLines

_PARTIAL_S = 0.1
"""How long the output of an unfinished line is delayed."""
_QUIET_S = 0.5
"""How long the console's owner may pause in the middle of a line while other streams are
waiting.
"""
_PATIENCE_S = 5.0
"""How long other streams wait for a line that keeps growing, such as an endless row of dots."""
_LONG_LINE = 64 * 1024
_QUEUE = 256 * 1024
_ATOMIC = select.PIPE_BUF
"""Number of bytes that a pipe accepts without blocking if poll(2) reports that it is writable."""


class Console:
    """An output destination: a file descriptor for a terminal, or for the user's file or pipe."""

    def __init__(self, loop: Loop, fd: int) -> None:
        self.loop = loop
        self.fd = _reopen(fd)
        self.streams: set[ConsoleStream] = set()
        self.on_error: Callable[[str], None] = lambda _: None
        """Called once, with the reason, if writing fails with an error other than EPIPE."""
        self.before_output: Callable[[], None] = lambda: None
        """Called before any output is shown."""
        self.broken = False
        """Whether writing failed, for example with EPIPE (no reader) or ENOSPC (a full disk)."""
        self.reader_is_gone = False
        self._queue = bytearray()
        self.owner: ConsoleStream | None = None
        """The stream that is in the middle of a line."""
        self._at_return = False
        """Whether the owner's last byte was a carriage return, so that its line may be ended."""
        self.waiting: dict[ConsoleStream, None] = {}
        """The streams that wait for their turn."""
        self._waiting_since = 0.0
        self._again: bool | None = None
        """Whether the waiting streams must be served again, or None while they are not being
        served.
        """
        self._patience = Alarm(loop, self._on_patience)
        self.shows_once = False
        """Whether identical lines from several ranks are merged into one line with a note."""
        self._repeated: RepeatedLines | None = None
        self._notes = Alarm(loop, self._on_notes)
        may_block = self.fd == fd and not stat.S_ISREG(os.fstat(fd).st_mode)
        self._poll = select.poll() if may_block else None
        if self._poll is not None:
            self._poll.register(fd, select.POLLOUT)

    @property
    def full(self) -> bool:
        """Whether streams should wait before they read more."""
        return len(self._queue) >= _QUEUE

    @property
    def unwritten(self) -> int:
        """The number of bytes that the console's descriptor has not accepted yet."""
        return len(self._queue)

    def say(self, text: str) -> None:
        """Write a message from the agent as a separate line."""
        self._end_line()
        if self._repeated is not None:
            self._say_notes(self._repeated.all_notes())
            self._repeated.interrupt()
        try:
            line = text.encode(errors="surrogateescape")
        except UnicodeEncodeError:  # not a file name that was decoded in this process
            line = text.encode(errors="backslashreplace")
        self._put(line + b"\n")
        self._serve()

    @property
    def is_at_line_start(self) -> bool:
        """Whether everything has been written and no stream is in the middle of a line."""
        return not self._queue and self.owner is None

    def overwrite(self, data: bytes | bytearray) -> None:
        """Write text that isn't part of the output, before the next line of output."""
        if not self.broken:
            self._queue += data
            self._drain()

    def flush(
        self, stop_waiting: Callable[[], bool] = lambda: False, limit_s: float | None = None
    ) -> None:
        """Wait until everything has been written, the reader has exited, `stop_waiting()` is true,
        or `limit_s` seconds have passed (None means no limit).
        """
        if self._repeated is not None:
            self._say_notes(self._repeated.all_notes())
        self.loop.run_until(lambda: self.broken or not self._queue or stop_waiting(), limit_s)

    def may_write(self, stream: "ConsoleStream") -> bool:
        """Return whether `stream` may write now. If it may not write yet, its `flush` method is
        called as soon as it may.
        """
        owner = self.owner
        if owner is not None and owner is not stream and (self._at_return or owner.over):
            self._end_line()
        if not self.full and self.owner in (None, stream):
            return True
        now = self.loop.now()
        if not self.waiting:
            self._waiting_since = now
        self.waiting[stream] = None
        if self.owner is not None and self._patience.when is None:
            self._patience.set(self._breaks_at(self.owner))
        return False

    def write(self, stream: "ConsoleStream", data: bytes | bytearray) -> None:
        """Write output for a stream. `may_write` must have returned True for that stream."""
        if self.shows_once:
            data = self._without_repeated(stream, data)
            if not data:
                return
        self._put(stream.with_prefix(data))
        stream.wrote_at = self.loop.now()
        self.owner = None if data.endswith(b"\n") else stream
        self._at_return = data.endswith(b"\r")
        if self.owner is None or self._at_return:
            self._serve()

    def leave(self, stream: "ConsoleStream") -> None:
        """Forget a stream that has ended."""
        self.streams.discard(stream)
        if self.owner is stream:
            self._serve()

    def _breaks_at(self, owner: "ConsoleStream") -> float:
        return min(owner.wrote_at + _QUIET_S, self._waiting_since + _PATIENCE_S)

    def _on_patience(self) -> None:
        owner = self.owner
        if owner is None or not self.waiting or self.full:
            return  # a full console serves the waiting streams once it has room
        due = self._breaks_at(owner)
        if self.loop.now() < due:
            self._patience.set(due)
        else:
            self._end_line()
            self._serve()

    def close(self) -> None:
        """Close the descriptor, unless it is stdout or stderr itself."""
        if self.fd > 2:
            self.loop.forget(self.fd)
            os.close(self.fd)

    def _without_repeated(
        self, stream: "ConsoleStream", data: bytes | bytearray
    ) -> bytes | bytearray:
        """Return the part of a stream's output that should be shown."""
        if self._repeated is None:
            # Imported at the first output, as an earlier import would delay the workers' start.
            from relight.core.workers.repeated_lines import RepeatedLines

            self._repeated = RepeatedLines()
        if stream.rank is None or len(self.streams) == 1:
            self._repeated.interrupt()
            return data
        inside, now = self.owner is stream, self.loop.now()
        shown = self._repeated.output(stream.rank, bytes(data), now, inside=inside)
        if self._notes.when is None:
            self._notes.set(self._repeated.deadline())
        return shown

    def _on_notes(self) -> None:
        repeated, owner, now = self._repeated, self.owner, self.loop.now()
        due = repeated.deadline() if repeated is not None else None
        if repeated is None or due is None:
            return
        if owner is not None and not (self._at_return or owner.over):
            due = min(owner.wrote_at + _QUIET_S, due + _PATIENCE_S)
            if now < due:
                self._notes.set(due)
                return
        self._say_notes(repeated.notes(now))
        self._notes.set(repeated.deadline())
        self._serve()

    def _say_notes(self, notes: list[str]) -> None:
        for note in notes:
            self._end_line()
            self._put(f"{note}\n".encode())

    def _end_line(self) -> None:
        if self.owner is not None:
            self._put(b"\n")
            self.owner.begin_line()
            self.owner = None

    def _serve(self) -> None:
        """Let the waiting streams write, longest wait first.

        When a stream ends a line, return to the streams that were blocked by this line and have
        waited longer.
        """
        is_served, self._again = self._again is not None, True
        if is_served:
            return
        while self._again and self.waiting:
            self._again = False
            waiting, self.waiting = self.waiting, {}
            for stream in waiting:
                stream.flush()
        self._again = None

    def _put(self, data: bytes | bytearray) -> None:
        self.before_output()
        self.overwrite(data)

    def _drain(self) -> None:
        try:
            while self._queue and (self._poll is None or self._poll.poll(0)):
                with memoryview(self._queue) as view:
                    written = os.write(self.fd, view if self._poll is None else view[:_ATOMIC])
                del self._queue[:written]
        except BlockingIOError:
            pass
        except OSError as error:
            self.broken = True
            self.reader_is_gone = error.errno == errno.EPIPE
            if not self.reader_is_gone:  # this is normal with `| head`
                self.on_error(os.strerror(error.errno or 0))
            self._queue.clear()
            self.loop.call_after(0, self._resume_streams)
        self.loop.on_writable(self.fd, self._on_writable if self._queue else None)

    def _on_writable(self) -> None:
        self._drain()
        self._serve()

    def _resume_streams(self) -> None:
        self.waiting.clear()
        for stream in list(self.streams):
            stream.flush()
            stream.on_room()


class ConsoleStream:
    """One worker's output on its way to a console.

    Args:
        console: the destination of the output.
        prefix: the prefix of each line, such as `[default0]:`, or empty.
        rank: the worker's rank, or None if its lines are not compared with other workers' lines.
    """

    def __init__(self, console: Console, prefix: bytes = b"", rank: int | None = None) -> None:
        self.rank = rank
        self.wrote_at = 0.0
        self.on_room: Callable[[], None] = lambda: None
        """Called when a `full` stream can accept more output, and when writing to the console
        fails.
        """
        self.console = console
        self._prefix = prefix
        self._buffer = bytearray()
        self._at_line_start = True
        self._at_return = False
        self._ended = False
        self._was_full = False
        self._alarm = Alarm(console.loop, self._on_delay)
        console.streams.add(self)

    @property
    def full(self) -> bool:
        """Whether reading the worker's output should be paused."""
        return len(self._buffer) >= _LONG_LINE

    @property
    def over(self) -> bool:
        """Whether the stream has ended and everything has been passed on."""
        return self._ended and not self._buffer

    def feed(self, data: bytes) -> None:
        """Accept output from the worker."""
        self._buffer += data
        self.flush()

    def end(self) -> None:
        """Show the rest of the worker's output, including a last line without a newline."""
        self._ended = True
        self.flush()

    def drop(self) -> int:
        """Discard the pending output, and return the number of bytes."""
        size = len(self._buffer)
        self._buffer.clear()
        self.end()
        return size

    def flush(self) -> None:
        """Pass on the output that can be shown now."""
        if self.console.broken:
            self._buffer.clear()
        while self._buffer and self.console.may_write(self):
            if size := self._presentable():
                self._hand_off(size)
                continue
            if self._alarm.when is None:
                self._alarm.set_after(_PARTIAL_S)
            break
        if self.over:
            self.console.leave(self)
        was_full, self._was_full = self._was_full, self.full
        if was_full and not self._was_full:
            self.on_room()

    def begin_line(self) -> None:
        """Begin a new line, because the console has ended this stream's line early."""
        self._at_line_start, self._at_return = True, False

    def _presentable(self) -> int:
        """Return how many bytes of the buffer may be shown without waiting for more output."""
        console, buffer = self.console, self._buffer
        if self._ended or (len(console.streams) == 1 and not self._prefix):
            return len(buffer)
        size = buffer.rfind(b"\n") + 1
        if self._prefix:  # each update of a progress bar is a line, and \r\n may be split here
            size = max(size, buffer.rfind(b"\r", 0, len(buffer) - 1) + 1)
        elif not size and console.owner is self and console.waiting:
            size = buffer.find(b"\r", 0, len(buffer) - 1) + 1  # a progress bar restarts its line
        if size or not (self.full or console.owner is self):
            return size
        return len(buffer)

    def _on_delay(self) -> None:
        if self._buffer and self.console.may_write(self):
            self._hand_off(len(self._buffer))
        self.flush()

    def _hand_off(self, size: int) -> None:
        data = self._buffer[:size]
        del self._buffer[:size]
        self.console.write(self, data)

    def with_prefix(self, data: bytes | bytearray) -> bytes | bytearray:
        """Return the output, with the prefix inserted before each line that begins in it."""
        if not self._prefix:
            return data
        text = self._prefix.join(data.splitlines(keepends=True))
        if self._at_line_start and not (self._at_return and data.startswith(b"\n")):
            text = self._prefix + text
        self._at_return = data.endswith(b"\r")
        self._at_line_start = self._at_return or data.endswith(b"\n")
        return text


class Consoles(NamedTuple):
    """The agent's own stdout and stderr. If both refer to the same file, they share one object."""

    stdout: Console
    stderr: Console

    @classmethod
    def open(cls, loop: Loop) -> "Consoles":
        """Return the consoles of this process."""
        out, err = os.fstat(1), os.fstat(2)
        stdout = Console(loop, 1)
        same = (out.st_dev, out.st_ino, out.st_rdev) == (err.st_dev, err.st_ino, err.st_rdev)
        stderr = stdout if same else Console(loop, 2)
        if not same:
            stdout.on_error = lambda why: stderr.say(
                f"relight: can't write to stdout: {why}; further output is not shown"
            )
        return cls(stdout, stderr)

    def close(self) -> None:
        """Close the descriptors that `open` opened."""
        for console in set(self):
            console.close()


def _reopen(fd: int) -> int:
    """Return a separate, non-blocking descriptor for a pipe or a terminal, or `fd` itself.

    Setting O_NONBLOCK on `fd` itself would affect every process that shares it, such as the user's
    shell. If a terminal is in blocking mode, poll only guarantees that a single byte can be
    written.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        # The terminal belongs to another user (su), or the reader has exited.
        with suppress(OSError):
            return system.reopen(fd, flags)
    return fd
