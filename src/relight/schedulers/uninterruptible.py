"""Requests that make something: a signal does not break them off.

Whoever leaves a request that was sent does not know what the service makes of it, and can't remove
that.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from relight.base.errors import MachineError

T = TypeVar("T")
_LIMIT_S = 10.0


class UnansweredError(MachineError):
    """A signal came, and the service has not answered by then: nobody knows what it makes."""


def finished(request: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Return what a request returns. If a signal raises an exception meanwhile, that is raised when
    the request is over.

    Raises:
        UnansweredError: if it is not over 10 s after that, or when a second signal comes.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    over = threading.Event()

    def run() -> None:
        try:
            results.append(request(*arguments, **named))
        except BaseException as error:  # raised below
            errors.append(error)
        over.set()

    try:
        threading.Thread(target=run, daemon=True).start()
        over.wait()  # not join: in Python 3.11, one that was interrupted takes the thread for ended
    except BaseException as signal:
        try:
            is_over = over.wait(_LIMIT_S)
        except BaseException:
            is_over = False
        if is_over:
            raise
        raise UnansweredError(
            "interrupted before the service has answered: it may still make what it was asked for"
        ) from signal
    if errors:
        raise errors[0]
    return results[0]
