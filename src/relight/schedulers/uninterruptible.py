"""Makes sure that requests that create something run to completion, even if a signal arrives.

If such a request were abandoned halfway, anything that the service ends up creating would leak.
"""

import threading
from collections.abc import Callable
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
    results: list[T] = []
    errors: list[BaseException] = []
    over = threading.Event()

    def run() -> None:
        try:
            results.append(request(*arguments, **named))
        except BaseException as error:  # raised again below
            errors.append(error)
        over.set()

    try:
        threading.Thread(target=run, daemon=True).start()
        over.wait()  # in Python 3.11, an interrupted join() marks the thread as ended
    except BaseException as signal:
        try:
            is_over = over.wait(_LIMIT_S)
        except BaseException:
            is_over = False
        if is_over:
            raise
        raise UnansweredError(
            "interrupted before the service responded; it may still create what was requested"
        ) from signal
    if errors:
        raise errors[0]
    return results[0]
