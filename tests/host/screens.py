"""Fixtures: a loop whose clock the test controls, and a console whose output it can read."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator

import pytest

from relight.host.loop import Loop
from relight.output.console import Console


class FastLoop(Loop):
    """A loop whose clock only advances on request or while waiting for a condition."""

    clock = 0.0

    def now(self) -> float:
        self.clock += 1e-6  # a call that is due now runs in the next turn
        return self.clock

    def settle(self, turns: int = 6) -> None:
        """Run the timers that are due."""
        for _ in range(turns):
            self.run_once(0)

    def sleep(self, seconds: float) -> None:
        self.clock += seconds
        self.settle()

    def until(self, done: Callable[[], bool], limit_s: float = 60) -> None:
        begin, was = time.monotonic(), self.clock
        while not done():
            assert self.clock - was < limit_s, "it never happens"
            self.run_once(0.01)
            self.clock = max(self.clock, was + time.monotonic() - begin)

    @property
    def idle(self) -> bool:
        """Return whether no timer is set."""
        return not [timer for *_, timer in self._timers if timer.callback is not None]


class Screen:
    """A pipe with a console at one end and a reader at the other."""

    def __init__(self, loop: FastLoop, size: int = 0) -> None:
        self.loop = loop
        self.fd, self.write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        if size:
            fcntl.fcntl(self.write_fd, fcntl.F_SETPIPE_SZ, size)
        self.console = Console(loop, self.write_fd)
        self.seen = b""

    def read(self, size: int = 1 << 20) -> bytes:
        """Read any new output, and return everything shown so far."""
        try:
            self.seen += os.read(self.fd, size)
        except BlockingIOError:
            pass
        return self.seen

    def read_until(self, done: Callable[[bytes], bool], size: int = 1 << 20) -> bytes:
        def enough() -> bool:
            return done(self.read(size))

        self.loop.until(enough)
        return self.seen

    def close_reader(self) -> None:
        os.close(self.fd)
        self.fd = -1

    def close(self) -> None:
        for fd in {self.fd, self.write_fd, self.console.fd} - {-1}:
            os.close(fd)


@pytest.fixture
def loop() -> Iterator[FastLoop]:
    loop = FastLoop()
    yield loop
    loop.close()


@pytest.fixture
def screen(loop: FastLoop) -> Iterator[Screen]:
    screen = Screen(loop)
    yield screen
    screen.close()


@pytest.fixture
def small_screen(loop: FastLoop) -> Iterator[Screen]:
    """Provide a screen that takes one page before it has to be read."""
    screen = Screen(loop, 4096)
    yield screen
    screen.close()


@pytest.fixture
def descriptors() -> Iterator[Callable[[int], int]]:
    """Close these descriptors at the end of the test."""
    fds: list[int] = []

    def keep(fd: int) -> int:
        fds.append(fd)
        return fd

    yield keep
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass
