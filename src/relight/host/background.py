"""Runs calls that may block outside the loop, each in its own thread."""

import _thread
import os
from collections.abc import Callable
from typing import TypeVar

from relight.host.loop import Loop

T = TypeVar("T")


def call(loop: Loop, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
    """Do `work` in a thread, then call `done` in the loop with its result or its exception.

    The work may take any amount of time, and the caller is free to stop waiting for it. If no
    thread can be started, the result is a RuntimeError.
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
