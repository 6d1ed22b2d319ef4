"""Implements the agent's event loop, which handles readable and writable descriptors, deadlines and
signals without polling.

The loop runs in one thread. It doesn't use asyncio, because importing asyncio alone takes 40 ms,
most of the time budget for a launch (docs/decisions/0001).
"""

import heapq
import os
import selectors
import signal
import time
from collections.abc import Callable
from typing import Protocol

from relight.base.errors import MachineError, RelightError
from relight.host import system

Callback = Callable[[], None]
_LONGEST_WAIT_S = 1e6
"""epoll_wait(2) takes milliseconds as an int, which limits it to three weeks."""


class HasFileno(Protocol):
    """Any object that has a file descriptor."""

    def fileno(self) -> int:
        """Return the descriptor."""


Fd = int | HasFileno


class Timer:
    """A call that is scheduled for a point in time, unless `cancel` is called first."""

    __slots__ = ("callback", "stimulus", "when")

    def __init__(self, when: float, callback: Callback, stimulus: str) -> None:
        self.when = when
        self.callback: Callback | None = callback
        self.stimulus = stimulus

    def cancel(self) -> None:
        """Prevent the call."""
        self.callback = None


class Alarm:
    """A call scheduled for a time that can be changed.

    Args:
        loop: the loop that makes the call.
        callback: called at that time.
    """

    def __init__(self, loop: "Loop", callback: Callback) -> None:
        self._loop = loop
        self._callback = callback
        self._timer: Timer | None = None

    @property
    def when(self) -> float | None:
        """When the callback is due, or None if it isn't scheduled."""
        return None if self._timer is None else self._timer.when

    def set(self, when: float | None) -> None:
        """Schedule a single call at `when`, replacing the previously set time. None cancels the
        call.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if when is None else self._loop.call_at(when, self._ring)

    def set_after(self, seconds: float) -> None:
        """Schedule a single call after `seconds`, replacing the previously set time."""
        self.set(self._loop.now() + seconds)

    def _ring(self) -> None:
        self._timer = None
        self._callback()


class Loop:
    """Waits for events and calls their callbacks until a condition is true.

    Signal handlers only write a byte to a pipe. The callbacks registered with `on_signal` run in
    the loop.

    Attributes:
        on_internal_error: called with a description and an exception when outside input triggers an
            exception that is a bug in relight. The default raises the exception.
    """

    def __init__(self) -> None:
        self.on_internal_error: Callable[[str, Exception], None] = _raise
        try:
            self._selector = system.Selector()
            self._wake_read, self._wake_write = os.pipe()
        except OSError as error:
            raise MachineError(
                f"can't create a polling descriptor: {error.strerror}",
                hint="check `ulimit -n`",
            ) from None
        self._callbacks: dict[int, list[Callback | None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []  # a heap, stable for equal times
        self._timers_set = 0
        self._origin = f"{os.uname().nodename}:{os.getpid()}"
        self._inputs = 0
        self._continued = ""
        self._signals: dict[int, Callable[[int], None]] = {}
        self._previous: dict[int, object] = {}
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self.on_readable(self._wake_read, self._dispatch_signals)

    @staticmethod
    def now() -> float:
        """Return the monotonic time in seconds."""
        return time.monotonic()

    @property
    def stimulus(self) -> str:
        """The id of the input that is being handled: HOST:PID:N for the Nth readable descriptor,
        signal or due timer of this process. A message continues its sender's stimulus, so the id
        also identifies the consequences in other processes.
        """
        return self._continued or f"{self._origin}:{self._inputs}"

    def begin(self, stimulus: str = "") -> None:
        """Handle a new input from here on, or what follows from an earlier `stimulus`."""
        self._inputs += not stimulus
        self._continued = stimulus

    def on_readable(self, fd: Fd, callback: Callback | None) -> None:
        """Call back whenever `fd` is readable. None stops the calls."""
        self._watch(fd, selectors.EVENT_READ, callback)

    def on_writable(self, fd: Fd, callback: Callback | None) -> None:
        """Call back whenever `fd` is writable. None stops the calls."""
        self._watch(fd, selectors.EVENT_WRITE, callback)

    def forget(self, fd: Fd) -> None:
        """Stop watching `fd`. Call this before closing the descriptor."""
        self.on_readable(fd, None)
        self.on_writable(fd, None)

    def __contains__(self, fd: Fd) -> bool:
        return (fd if isinstance(fd, int) else fd.fileno()) in self._callbacks

    def call_at(self, when: float, callback: Callback) -> Timer:
        """Schedule a single callback for the monotonic time `when`. Calls scheduled for the same
        time are made in the order in which they were scheduled. A call that is due immediately
        belongs to the current stimulus; a later one is an input of its own.
        """
        timer = Timer(when, callback, self.stimulus if when <= self.now() else "")
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def call_after(self, seconds: float, callback: Callback) -> Timer:
        """Call back once after `seconds`."""
        return self.call_at(self.now() + seconds, callback)

    def on_signal(self, number: int, callback: Callable[[int], None]) -> None:
        """Call back with the signal's number whenever the signal arrives. The call is made inside
        the loop.
        """
        self._signals[number] = callback
        # The handler does nothing, because Python writes the number to the wake-up pipe.
        self._previous.setdefault(number, signal.signal(number, lambda *_: None))

    def run_guarded(self, act: Callback, what: str) -> bool:
        """Run `act`, which handles input from outside, and return whether it succeeded.

        Input from another machine must never end this process. An exception that isn't meant for
        the user is therefore treated as a bug in relight and passed to `on_internal_error`.
        """
        try:
            act()
        except RelightError:
            raise
        except Exception as error:
            self.on_internal_error(what, error)
            return False
        return True

    def run_until(self, done: Callable[[], bool], limit_s: float | None = None) -> None:
        """Handle events until `done()` is true, for at most `limit_s` seconds. None means no
        limit.
        """
        end = None if limit_s is None else self.now() + limit_s
        while not done():
            left = None if end is None else end - self.now()
            if left is not None and left <= 0:
                return
            self.run_once(left)

    def run_once(self, timeout_s: float | None) -> None:
        """Wait up to `timeout_s` seconds for events, and handle them. None means no limit."""
        while self._timers and self._timers[0][-1].callback is None:
            heapq.heappop(self._timers)
        if self._timers:
            left = min(max(0.0, self._timers[0][0] - self.now()), _LONGEST_WAIT_S)
            timeout_s = left if timeout_s is None else min(left, timeout_s)
        for key, events in self._selector.select(timeout_s):
            for bit, index in ((selectors.EVENT_READ, 0), (selectors.EVENT_WRITE, 1)):
                # A callback may have removed a descriptor that still has an event in the list.
                pair = self._callbacks.get(key.fd)
                if events & bit and pair is not None and (callback := pair[index]) is not None:
                    self.begin()
                    callback()
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[-1]
            if timer.callback is not None:
                self.begin(timer.stimulus)
                timer.callback()

    def close(self) -> None:
        """Restore the signal handlers, and close all descriptors that the loop has opened."""
        for number, previous in self._previous.items():
            signal.signal(number, previous)  # type: ignore[arg-type]  # as signal() returned it
        signal.set_wakeup_fd(-1)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _watch(self, fd: Fd, bit: int, callback: Callback | None) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        pair = self._callbacks.get(number)
        if pair is None:
            if callback is None:
                return
            pair = self._callbacks[number] = [None, None]
            self._selector.register(number, bit)
        pair[0 if bit == selectors.EVENT_READ else 1] = callback
        events = (selectors.EVENT_READ if pair[0] else 0) | (
            selectors.EVENT_WRITE if pair[1] else 0
        )
        if events:
            self._selector.modify(number, events)
        else:
            self._selector.unregister(number)
            del self._callbacks[number]

    def _dispatch_signals(self) -> None:
        try:
            numbers = os.read(self._wake_read, 4096)
        except BlockingIOError:
            return
        for number in numbers:
            callback = self._signals.get(number)
            if callback is not None:
                callback(number)


def _raise(what: str, error: Exception) -> None:
    del what
    raise error
