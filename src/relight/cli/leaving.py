"""SIGINT and SIGTERM while the agent does not listen yet, or no more: the process ends at once with
128 + n.

Nothing runs by then, so nothing has to be stopped. Python's own way is an exception wherever it
happens to be, with a traceback or without any effect, and for SIGTERM an end by the signal. At the
end of the process it takes its handlers away some milliseconds before the end, so that is not
awaited.
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
    """From now on, end the process with 128 + n; what is ignored stays ignored."""
    for number in NUMBERS:
        if signal.getsignal(number) == _USUAL[number]:
            signal.signal(number, _leave)


def as_usual(numbers: Collection[int] = NUMBERS) -> None:
    """Let signals do again what they do in any Python program."""
    for number in numbers:
        if signal.getsignal(number) is _leave:
            signal.signal(number, _USUAL[number])


def leave(exit_code: int) -> NoReturn:
    """End the process as Python does, but without taking itself to pieces."""
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass  # said already, if it could be
    os._exit(exit_code & 0xFF)


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    os._exit(128 + number)
