"""Exits at once with 128 + n on SIGINT or SIGTERM before the agent handles them, and after it has
stopped doing so.

No workers run at these times, so nothing has to be stopped. Python's default for SIGINT is an
exception at any point in the code, with a traceback or without any effect; for SIGTERM the signal
kills the process. Interpreter shutdown removes the handlers some milliseconds before the process
ends, so `leave` skips it.
"""

import os
import signal
import sys
from collections.abc import Collection
from types import FrameType

from relight.typed import Any, NoReturn

NUMBERS = (signal.SIGINT, signal.SIGTERM)
_USUAL: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


def leave_at_once() -> None:
    """From now on, exit with 128 + n on a signal; ignored signals stay ignored."""
    for number in NUMBERS:
        if signal.getsignal(number) == _USUAL[number]:
            signal.signal(number, _leave)


def as_usual(numbers: Collection[int] = NUMBERS) -> None:
    """Restore Python's default handlers of these signals."""
    for number in numbers:
        if signal.getsignal(number) is _leave:
            signal.signal(number, _USUAL[number])


def leave(exit_code: int) -> NoReturn:
    """End the process as Python does, but without interpreter shutdown."""
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass  # already reported, if possible
    os._exit(exit_code & 0xFF)


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    os._exit(128 + number)
