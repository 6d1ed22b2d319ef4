"""Runs blocking calls outside the event loop, each in its own thread."""

import _thread
import os
from collections.abc import Callable
from typing import TypeVar

from relight.host.loop import Loop

T = TypeVar("T")


def call(loop: Loop, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
    """Call `work` in a thread, then call `done` in the event loop with the result or the exception.

    The call may take arbitrarily long, and the caller is free to stop waiting for it. If no thread
    can be started, `done` receives a RuntimeError.
    """
    results: list[T | Exception] = []
    readable, writable = os.pipe()

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)
        finally:
            os.close(writable)

    def finish() -> None:
        loop.forget(readable)
        os.close(readable)
        done(results[0] if results else RuntimeError("can't start a thread"))

    loop.on_readable(readable, finish)
    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:
        os.close(writable)
