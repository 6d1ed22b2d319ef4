"""The loop waits for a condition or a time limit, whichever comes first."""

import os
import signal
from functools import partial

import pytest
from conftest import LIMIT_S

from relight.host.loop import Loop


def test_run_until_returns_when_condition_holds_or_time_is_up() -> None:
    loop, (readable, writable) = Loop(), os.pipe()
    read: list[bytes] = []
    try:
        begin = loop.now()
        loop.run_until(lambda: False, 0.2)
        assert loop.now() - begin >= 0.2
        loop.on_readable(readable, lambda: read.append(os.read(readable, 1)))
        os.write(writable, b"x")
        loop.run_until(lambda: bool(read), LIMIT_S)
        assert read == [b"x"] and loop.now() - begin < LIMIT_S
    finally:
        loop.close()
        os.close(readable)
        os.close(writable)


@pytest.mark.parametrize("limit_s", [0, -1, None])
def test_run_until_returns_immediately_if_condition_holds(limit_s: float | None) -> None:
    loop = Loop()
    loop.run_until(lambda: True, limit_s)
    loop.close()


def test_timer_can_exceed_the_maximum_epoll_timeout() -> None:
    """A peer may request such a time, while epoll_wait takes milliseconds as an int."""
    loop = Loop()
    loop.call_after(1e12, lambda: None)
    loop.on_signal(signal.SIGALRM, lambda number: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    loop.run_once(None)
    loop.close()


def test_timers_with_equal_deadlines_run_in_scheduling_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a coarse clock, an agent's messages to itself (a generation, then a stop)
    stay in order.
    """
    monkeypatch.setattr(Loop, "now", staticmethod(lambda: 5.0))
    loop, called = Loop(), list[int]()
    for number in range(100):
        loop.call_after(0, partial(called.append, number))
    loop.run_once(0)
    loop.close()
    assert called == list(range(100))


def test_calls_that_are_due_immediately_continue_their_stimulus() -> None:
    loop, seen = Loop(), list[str]()

    def note() -> None:
        seen.append(loop.stimulus)

    def react() -> None:
        note()
        loop.call_after(0, note)
        loop.call_after(0.01, note)

    loop.call_after(0.01, react)
    loop.run_until(lambda: len(seen) == 3, LIMIT_S)
    loop.close()
    first, continued, later = seen
    assert first == continued != later
    assert later.rpartition(":")[0] == f"{os.uname().nodename}:{os.getpid()}"


def test_message_continues_the_stimulus_of_its_sender() -> None:
    loop, seen = Loop(), list[str]()

    def receive() -> None:
        loop.begin("other:7:1")
        seen.append(loop.stimulus)
        loop.call_after(0, lambda: seen.append(loop.stimulus))

    loop.call_after(0, receive)
    loop.run_until(lambda: len(seen) == 2, LIMIT_S)
    loop.close()
    assert seen == ["other:7:1"] * 2
