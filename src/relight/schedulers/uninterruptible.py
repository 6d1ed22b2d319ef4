"""Makes sure that requests that create something run to completion, even if a signal arrives.

If such a request were abandoned halfway, anything that the service ends up creating would leak.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

from relight.base.errors import MachineError

T = TypeVar("T")
_LIMIT_S = 10.0


class UnansweredError(MachineError):
    """Raised if a signal arrives before the service has responded, so that the outcome of the
    request is unknown.
    """


def finished(request: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Run a request, and return its result. If a signal raises an exception in the meantime, the
    exception is raised after the request has finished.

    Raises:
        UnansweredError: if the request takes more than 10 s after the signal, or if a second signal
            arrives.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(request(*arguments, **named))
        except BaseException as error:
            result.set_exception(error)

    try:
        threading.Thread(target=run, daemon=True).start()
        wait([result])  # in Python 3.11, an interrupted join() marks the thread as ended
    except BaseException as signal:
        with suppress(BaseException):
            wait([result], _LIMIT_S)
        if result.done():
            raise
        raise UnansweredError(
            "interrupted before the service responded; it may still create what was requested"
        ) from signal
    return result.result()
