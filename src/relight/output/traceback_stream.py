"""Examines a worker that has printed a traceback. If the output goes to a terminal, holds back the
traceback of the exception that ends the worker.

core/diagnosis/printed_traceback decides when to examine the worker, and core/workers/held_traceback
decides which lines to hold back. This module is loaded when the first traceback appears, or if
stderr is a terminal.
"""

from collections.abc import Callable

from relight.core.diagnosis.printed_traceback import PrintedTraceback, Program
from relight.core.workers.held_traceback import HeldTraceback
from relight.host.loop import Alarm, Loop
from relight.output.console import Console, ConsoleStream


class TracebackInspector:
    """Detects when a worker has printed its last traceback, and whether the worker's program
    continued after it.

    Args:
        loop: the agent's loop.
        program: returns the worker's state.
        size: returns an upper bound on the number of bytes written to stderr so far.
        own_time: whether to use a timer of its own. If the output goes to a terminal,
            `TracebackStream` calls `look` instead.
    """

    def __init__(
        self,
        loop: Loop,
        program: Callable[[], Program],
        size: Callable[[], int],
        *,
        own_time: bool,
    ) -> None:
        self.core = PrintedTraceback()
        self._loop = loop
        self._size = size
        self._program = program
        self._own_time = own_time
        self._alarm = Alarm(loop, self._ring)

    def on_traceback(self) -> None:
        """Record that a traceback has begun in the worker's output."""
        now = self._loop.now()
        self.core.printed(now)
        due = self.core.deadline()
        if self._own_time and due is not None:
            if due <= now:  # the worker may exit very soon
                self.look()
            else:
                self._alarm.set(due)

    def look(self) -> bool | None:
        """Examine the worker. Return whether its program has ended, or None if that is unknown."""
        program = self._program()
        self.core.on_inspected(program, self._loop.now(), self._size())
        self._alarm.set(self.core.deadline() if self._own_time else None)
        return None if program is Program.UNSEEN else program is not Program.RUNS

    def _ring(self) -> None:
        self.look()

    def worker_ended(self) -> None:
        """Record that the worker has exited and its last output has been read."""
        self.core.worker_ended()
        self._alarm.set(None)


class TracebackStream(ConsoleStream):
    """One worker's output on its way to a terminal.

    If the agent is killed, the lines that are being held back are lost. They are the last output of
    a worker that has ended or is about to end.

    Args:
        console: the terminal.
        is_shutting_down: returns whether the worker's program has ended, or None if unknown.
        on_late: called when a worker takes a long time to end. It may call `replace`. The lines
            that are held back are shown after the call.
        rank: the worker's rank.
    """

    def __init__(
        self,
        console: Console,
        is_shutting_down: Callable[[], bool | None],
        on_late: Callable[[], None],
        rank: int | None = None,
    ) -> None:
        super().__init__(console, rank=rank)
        self._core = HeldTraceback()
        self._is_shutting_down = is_shutting_down
        self._on_late = on_late
        self._look = Alarm(console.loop, self._decide)

    @property
    def held(self) -> bytes:
        """The lines that are held back, if the worker has exited or is known to be exiting."""
        return self._core.held if self._core.ends else b""

    def feed(self, data: bytes) -> None:
        """Accept output from the worker."""
        now = self.console.loop.now()
        self._show(self._core.output(data, now))
        due = self._core.deadline()
        if due is not None and due <= now:
            self._decide()

    def worker_ended(self, *, failed: bool) -> None:
        """Record that the worker has exited and its last output has been read."""
        if failed:
            self._core.worker_ended()
        else:
            self._show(self._core.release())
        self._look.set(self._core.deadline())

    def replace(self, data: bytes) -> None:
        """Show these bytes instead of the lines that are held back."""
        self._core.release()
        self._show(data)

    def release(self) -> None:
        """Show the lines that are held back."""
        self._show(self._core.release())

    def _decide(self) -> None:
        now = self.console.loop.now()
        ends = self._is_shutting_down()
        if ends and self._core.is_late(now):
            self._on_late()
        self._show(self._core.on_inspected(ends, now))

    def _show(self, data: bytes) -> None:
        self._look.set(self._core.deadline())
        if data:
            super().feed(data)
