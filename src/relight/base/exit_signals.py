"""Exits with 128 + n on SIGINT or SIGTERM while no agent handles these signals: before an agent
starts and after it has ended.

At those times, no workers are running, so nothing has to be stopped. By default, Python turns
SIGINT into an exception at an arbitrary point in the code, so the process may print a traceback or
ignore the signal. SIGTERM kills the process by default. Interpreter shutdown removes the signal
handlers a few milliseconds before the process ends, so `quick_exit` skips it.
"""

import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

NUMBERS = (signal.SIGINT, signal.SIGTERM)
_DEFAULTS: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


def exit_on_signals() -> None:
    """Exit with 128 + n on a signal from now on. Ignored signals stay ignored."""
    for number in NUMBERS:
        if signal.getsignal(number) == _DEFAULTS[number]:
            signal.signal(number, _exit)


def restore_defaults(numbers: Collection[int] = NUMBERS) -> None:
    """Restore Python's default handlers for these signals."""
    for number in numbers:
        if signal.getsignal(number) is _exit:
            signal.signal(number, _DEFAULTS[number])


def quick_exit(exit_code: int) -> NoReturn:
    """Exit as Python does, but skip interpreter shutdown."""
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # reported already, if that was possible
            stream.flush()
    os._exit(exit_code & 0xFF)


def _exit(number: int, frame: FrameType | None) -> None:
    del frame
    os._exit(128 + number)
