"""User-visible errors and their exit codes, grouped by who has to fix them.

    RelightError
    ├── WorkersFailedError  1   the user: a function called by relight.launch or submit failed
    ├── UsageError      2   the user: the command line or the environment is invalid
    ├── MachineError    4   the operator: this machine refused a resource that the launcher needs
    └── InternalError  70   us: a state that must not occur; please report it

Failed workers are not a launcher error, and the job ends with the exit code of its root cause. A
job whose nodes did not find each other in time, or lost each other permanently, ends with
EXIT_GROUP.

An error message is one line that names the problem, the affected object, and the cause. The hint
says what to do next.
"""

import signal
from contextlib import suppress

from relight.base import env

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_GROUP = 3
EXIT_MACHINE = 4
EXIT_INTERNAL = 70
EXIT_PREEMPTED = 75
EXIT_HUNG = 124
"""The exit code that timeout(1) uses."""
EXIT_SIGNAL_BASE = 128
"""A process that was killed by signal n has exit code 128 + n, as in every shell."""
UNFIT_CODE_VARIABLE = "RELIGHT_UNFIT_EXIT_CODE"
"""A scheduler sets this variable to the exit code for a node that fails its health check while the
job continues without it. The scheduler then starts the node again without counting a failure. The
variable also keeps the exit code of a failed worker from ending the job on the other nodes.
"""
_PLACES = 10


class RelightError(Exception):
    """Base class for all errors that are printed as a single line with a hint.

    Args:
        message: a single line without a full stop at the end.
        hint: the next step, or an empty string.
    """

    exit_code = EXIT_INTERNAL

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # shown at the end of a Python traceback

    def _render_traceback_(self) -> list[str]:  # called by IPython
        from relight.base import notebook_traceback

        return notebook_traceback.render(self)


class WorkersFailedError(RelightError):
    """The user's function failed in a worker, without an exception that could be raised here."""

    exit_code = EXIT_FAILED


class UsageError(RelightError):
    """The request is invalid, and nothing has been started."""

    exit_code = EXIT_USAGE


class MachineError(RelightError):
    """The machine refused a resource that the launcher needs, such as a process or a socket."""

    exit_code = EXIT_MACHINE


class InternalError(RelightError):
    """A state that must not occur."""


def describe_bug(error: BaseException) -> str:
    """Return a one-line description of an unexpected exception in relight, as
    `format_exception_oneline` does.

    If `env.mistakes` is set, the description is also added to that file, so that the running test
    fails.
    """
    line = format_exception_oneline(error)
    if env.mistakes():
        with suppress(OSError), open(env.mistakes(), "a") as file:
            file.write(line + "\n")
    return line


def format_exception_oneline(error: BaseException) -> str:
    """Format an exception as one line. The line contains the exception's message and the places in
    relight's code from its traceback, innermost first.
    """
    places, trace = [], error.__traceback__
    while trace is not None:
        _, ours, path = trace.tb_frame.f_code.co_filename.rpartition("/relight/")
        if ours or trace.tb_next is None:
            places.append(f"{path}:{trace.tb_lineno}")
        trace = trace.tb_next
    text = " ".join(str(error).split())[:400]
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{said} (at {' < '.join(places[: -_PLACES - 1 : -1])})"


def signal_exit_code(number: int) -> int:
    """Return the exit code of a process that was killed by signal `number`."""
    return EXIT_SIGNAL_BASE + number


def exit_code_text(code: int) -> str:
    """Return `SIGKILL` for 137, and `exit code 3` for 3."""
    name = signal_name(code - EXIT_SIGNAL_BASE)
    return f"exit code {code}" if " " in name else name


def signal_name(number: int) -> str:
    """Return the name of a signal: `SIGTERM` for 15, `signal 40` for an unnamed one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
