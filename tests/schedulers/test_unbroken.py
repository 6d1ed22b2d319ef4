"""A signal doesn't abort a request that creates something."""

import signal
import threading
from collections.abc import Iterator

import pytest
from conftest import LIMIT_S

from relight.schedulers.uninterruptible import UnansweredError, finished


class Interrupt(Exception):
    """The exception raised by a signal handler."""


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_result_or_exception_of_request_is_passed_through() -> None:
    assert finished(divmod, 7, 2) == (3, 1)
    assert finished(sorted, [1, 2], reverse=True) == [2, 1]
    with pytest.raises(ZeroDivisionError):
        finished(divmod, 7, 0)


def test_signal_is_handled_after_request_completes() -> None:
    main, may_end, ended = threading.main_thread().ident, threading.Event(), []
    assert main is not None

    def request() -> None:
        signal.pthread_kill(main, signal.SIGUSR1)
        threading.Timer(0.2, may_end.set).start()
        may_end.wait(LIMIT_S)
        ended.append(True)

    with pytest.raises(Interrupt):
        finished(request)
    assert ended


def test_request_is_abandoned_after_second_signal() -> None:
    main, may_end, begun = threading.main_thread().ident, threading.Event(), threading.Event()
    assert main is not None

    def request() -> None:
        for _ in range(2):
            signal.pthread_kill(main, signal.SIGUSR1)
            begun.wait(0.2)
        may_end.wait(LIMIT_S)

    with pytest.raises(UnansweredError, match="it may still create what was requested") as caught:
        finished(request)
    assert isinstance(caught.value.__cause__, Interrupt)
    assert not may_end.is_set()
    may_end.set()
