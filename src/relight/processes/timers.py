"""Implements the timers that a script sets with torch.distributed.elastic.timer. A process that
misses its deadline is killed.

The script's `timer.expires(after=…)` writes a line of JSON to the FIFO named by
TORCHELASTIC_TIMER_FILE (torch 2.13, elastic/timer/file_based_local_timer.py): version 1, pid,
scope_id, expiration_time in seconds since 1970 (negative if the timer is cancelled) and the signal
to send. Unlike torchrun's agent, relight's agent signals only workers and their descendants, no
matter which pid is in the request, and never kills itself. A worker that misses its deadline counts
as failed, like any other.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from relight.base import fields
from relight.base.text import LineBuffer
from relight.base.values import MAX_SECONDS
from relight.host.loop import Loop, Timer

_LIMIT = 64 * 1024


class TimerRequest(NamedTuple):
    """A script's request to set or cancel a timer."""

    version: int
    pid: int
    scope_id: str
    expiration_time: float
    signal: int


class WorkerTimers:
    """The timers of one generation's workers.

    Args:
        loop: the agent's loop.
        path: where to create the FIFO. An existing file is replaced.
        on_expired: called with the pid, signal and scope of an expired timer.

    Raises:
        OSError: if the FIFO can't be created.
    """

    def __init__(self, loop: Loop, path: str, on_expired: Callable[[int, int, str], None]) -> None:
        self.path = path
        self._loop = loop
        self._on_expired = on_expired
        self._timers: dict[tuple[int, str], Timer] = {}
        self._buffer = LineBuffer()
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.mkfifo(path, 0o600)
        # Also open the FIFO for writing. Otherwise read(2) would return end-of-file whenever no
        # worker has the FIFO open.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        loop.on_readable(self._fd, self._read)

    def close(self) -> None:
        """Cancel all timers and remove the FIFO."""
        for timer in self._timers.values():
            timer.cancel()
        self._loop.forget(self._fd)
        os.close(self._fd)
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    def _read(self) -> None:
        try:
            lines = self._buffer.feed(os.read(self._fd, _LIMIT))
        except BlockingIOError:
            return
        if len(self._buffer.rest) > _LIMIT:
            self._buffer.rest = b""
        for line in lines:
            try:
                self._take(fields.record(TimerRequest, fields.decode(line)))
            except fields.Malformed:
                continue  # any process with write access to the FIFO may write garbage

    def _take(self, request: TimerRequest) -> None:
        version, pid, scope, due, number = request
        if version != 1:
            return
        previous = self._timers.pop((pid, scope), None)
        if previous is not None:
            previous.cancel()
        left = due - time.time()
        if due < 0 or not left < MAX_SECONDS or number >= signal.NSIG:
            return  # released, or it never expires
        self._timers[pid, scope] = self._loop.call_after(
            left, lambda: self._expire(pid, number, scope)
        )

    def _expire(self, pid: int, number: int, scope: str) -> None:
        self._timers.pop((pid, scope), None)
        if number > 0:
            self._on_expired(pid, number, scope)
