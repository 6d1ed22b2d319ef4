"""The loop waits for a condition, and no longer than it is asked to."""

import os
import signal
from functools import partial

import pytest
from conftest import LIMIT_S

from relight.host.loop import Loop


def test_waiting_with_a_limit_ends_at_the_limit_or_when_the_condition_is_true() -> None:
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
def test_what_is_true_already_is_not_waited_for(limit_s: float | None) -> None:
    loop = Loop()
    loop.run_until(lambda: True, limit_s)
    loop.close()


def test_a_call_may_lie_further_ahead_than_the_kernel_can_wait() -> None:
    """A peer may name such a time; epoll_wait takes an int of milliseconds."""
    loop = Loop()
    loop.call_after(1e12, lambda: None)
    loop.on_signal(signal.SIGALRM, lambda number: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    loop.run_once(None)
    loop.close()


def test_calls_for_the_same_time_are_made_in_the_order_in_which_they_were_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A coarse clock: what an agent tells itself (a generation, then a stop) stays in order."""
    monkeypatch.setattr(Loop, "now", staticmethod(lambda: 5.0))
    loop, called = Loop(), list[int]()
    for number in range(100):
        loop.call_after(0, partial(called.append, number))
    loop.run_once(0)
    loop.close()
    assert called == list(range(100))
