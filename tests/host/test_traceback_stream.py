"""The stream that holds back a worker's last traceback, on a loop whose clock the test controls."""

from collections.abc import Callable

import pytest
from screens import FastLoop, Screen, loop, screen  # noqa: F401

from relight.output.console import ConsoleStream
from relight.output.traceback_stream import TracebackStream

TRACEBACK = (
    b'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: x\n'
)


class Worker:
    """A worker as seen by the stream, and the number of inspections."""

    def __init__(self, screen: Screen, is_shutting_down: bool | None) -> None:
        self.is_shutting_down = is_shutting_down
        self.looks = 0
        self.late = 0
        self.stream = TracebackStream(screen.console, self._look, self._on_late)

    def _on_late(self) -> None:
        self.late += 1

    def _look(self) -> bool | None:
        self.looks += 1
        return self.is_shutting_down


@pytest.fixture
def worker(screen: Screen) -> Callable[[bool | None], Worker]:
    return lambda is_shutting_down: Worker(screen, is_shutting_down)


def test_last_traceback_of_exiting_worker_is_held_back(
    loop: FastLoop, screen: Screen, worker: Callable[..., Worker]
) -> None:
    """Once its worker has exited, nothing is scheduled. Other output isn't held back."""
    ends = worker(True)
    other = ConsoleStream(screen.console)
    ends.stream.feed(b"step 1\n" + TRACEBACK)
    other.feed(b"other\n")
    loop.sleep(1)
    assert ends.stream.held == TRACEBACK
    ends.stream.worker_ended(failed=True)
    ends.stream.end()
    loop.sleep(100)
    assert screen.read() == b"step 1\nother\n"
    assert ends.stream.held == TRACEBACK
    assert ends.stream.over
    assert loop.idle
    ends.stream.replace(b"at exit\n")
    assert screen.read() == b"step 1\nother\nat exit\n"
    ends.stream.release()
    assert screen.read() == b"step 1\nother\nat exit\n"


def test_held_back_output_is_shown_when_released(
    screen: Screen, worker: Callable[..., Worker]
) -> None:
    ends = worker(True)
    ends.stream.feed(TRACEBACK)
    ends.stream.end()  # the descriptor is closed before the exit is known
    assert screen.read() == b""
    ends.stream.release()
    assert screen.read() == TRACEBACK


@pytest.mark.parametrize(
    ("is_shutting_down", "shown_after_s"), [(False, 0), (None, 0.25), (True, 5)]
)
def test_traceback_from_worker_that_keeps_running_is_shown(
    loop: FastLoop, screen: Screen, worker: Callable[..., Worker], is_shutting_down: bool | None,
    shown_after_s: float,
) -> None:  # fmt: skip
    goes_on = worker(is_shutting_down)
    goes_on.stream.feed(TRACEBACK)
    if shown_after_s:
        for _ in range(20):
            loop.sleep(shown_after_s / 20 - 0.001)
        assert screen.read() == b""
        loop.sleep(0.1)
    assert screen.read() == TRACEBACK
    goes_on.stream.feed(b"line\n")
    assert screen.read() == TRACEBACK + b"line\n"
    assert loop.idle
    assert goes_on.looks <= 21


def test_traceback_from_successful_worker_is_shown(
    screen: Screen, worker: Callable[..., Worker]
) -> None:
    ends = worker(True)
    ends.stream.feed(TRACEBACK)
    ends.stream.worker_ended(failed=False)
    assert screen.read() == TRACEBACK


def test_held_tracebacks_can_be_shown_together_if_worker_exits_slowly(
    loop: FastLoop, screen: Screen, worker: Callable[..., Worker]
) -> None:
    """This includes other workers' tracebacks. Equal ones are merged."""
    first, second, goes_on = worker(True), worker(True), worker(None)

    def show_together() -> None:
        assert first.stream.held == second.stream.held == TRACEBACK
        for each in (first, second):
            each.stream.replace(b"")
        screen.console.say("both")

    first.stream._on_late = show_together
    first.stream.feed(TRACEBACK)
    loop.sleep(3)
    second.stream.feed(TRACEBACK)
    goes_on.stream.feed(TRACEBACK)
    assert goes_on.stream.held == b""
    for _ in range(12):
        loop.sleep(0.25)
    assert screen.read() == TRACEBACK + b"both\n"
    assert second.late == 0
