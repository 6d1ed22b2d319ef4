"""How a worker ended and what it printed: what nodes send each other about a failure."""

import signal
from enum import Enum
from typing import NamedTuple

CRASHES = tuple(
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
    if hasattr(signal, name)  # Windows, from which jobs may be submitted, has no SIGBUS
)
AT_EXIT = "terminate called without an active exception"
"""Printed by libstdc++ if a thread still runs when the process exits, as in torch at times."""


class FailureKind(Enum):
    """How certainly a report explains the end of its process."""

    RECORDED = "it is in the error file: this exception ended the script"
    RAISED = "apparently an uncaught exception: the text of a traceback shows it"
    CRASHED = "Python or the C++ runtime says why it aborts"
    PRINTED = "it was printed, but something else may have ended the process"


class ErrorReport(NamedTuple):
    """An exception as the worker reported it.

    `where` is the last line in the user's own code, such as `train.py:42 in step`, and `source` is
    the source text of that line. `cause` is the first exception of a chain, such as
    `KeyError: 'lr'`, with its place; empty if there is only one exception. Of an
    ExceptionGroup, `where` is the place of its first exception; without a cause, `cause_where` is
    that of the group. `is_interrupted`: a SystemExit or KeyboardInterrupt is in the chain, as if a
    signal handler had raised it. `doubt`: why it may not have ended the worker, such as `it printed
    more after that: no data`; empty if nothing speaks against that. `others` are ranks that printed
    the same and went on.
    """

    kind: FailureKind
    type: str
    message: str
    where: str
    source: str
    lines: tuple[str, ...]
    cause: str = ""
    cause_where: str = ""
    is_interrupted: bool = False
    doubt: str = ""
    others: tuple[int, ...] = ()


class WorkerState(NamedTuple):
    """What a worker did before it was stopped, as seen from outside
    (`core/diagnosis/stack_text.doing`).

    `place` follows the worker's name: ` in read (data.py:41)`. `stack` has the lines of its main
    thread's stack, the innermost last. `expects_peers`: it waits for other workers there.
    `handling` is the exception that it was handling or cleaning up after (an `except` or `finally`
    block), such as `ValueError: bad record`, and `handling_where` is where that was raised.
    `works_below`: it was not in that block itself, but in a function that the block had called.
    `in_program`: its script ran; false while Python prints an exception or shuts down.
    """

    place: str
    stack: tuple[str, ...]
    expects_peers: bool
    handling: str = ""
    handling_where: str = ""
    in_program: bool = True
    works_below: bool = False


class Collective(NamedTuple):
    """The last collective that a worker has entered in a process group, the `number`-th of it."""

    group: str
    number: int
    name: str
    sizes: str
    is_done: bool


class Failure(NamedTuple):
    """How one worker ended, and all that is known about it.

    `exitcode` is negative for a signal. `stop_signal` is the signal that the agent had sent before,
    or 0. `evidence` are findings of the machine, such as an out-of-memory kill. `last_lines` is the
    end of stderr. `doing` is known if the agent looked before it stopped the worker, `collectives`
    if torch's flight recorder has left a dump.

    `when` is the time of day on that host at which it ended, `2026-07-01 12:00:00+0200`. `at`
    orders the failures of one node, in seconds: monotonic in an agent; in a message and in a
    `relight.RunResult` relative to the time of sending, and so negative, as nodes have no common
    clock. `stopping_s`: seconds from the stop signal to its end. `printed_s`: seconds from the
    exception of `report` to its end, or None if unknown; `went_on`: whether its program kept
    running after that. `words` is the most informative line of its other output.
    """

    rank: int
    local_rank: int
    host: str
    pid: int
    exitcode: int
    at: float
    stop_signal: int
    report: ErrorReport | None
    last_lines: tuple[str, ...]
    evidence: str
    log: str
    when: str = ""
    doing: WorkerState | None = None
    collectives: tuple[Collective, ...] | None = None
    stopping_s: float = 0.0
    printed_s: float | None = None
    went_on: bool | None = None
    words: str = ""

    @property
    def is_explained(self) -> bool:
        """Whether the report explains why the worker ended, and is not merely its last output."""
        if self.report is None or self.report.kind is FailureKind.PRINTED:
            return False
        if self.report.kind is FailureKind.CRASHED:
            return -self.exitcode in CRASHES
        if self.report.kind is FailureKind.RECORDED or self.stop_signal:
            return True
        interrupted = self.report.type == "KeyboardInterrupt" and self.exitcode == -signal.SIGINT
        return self.exitcode == 1 or interrupted or self.aborted_at_exit

    @property
    def aborted_at_exit(self) -> bool:
        """Whether an exception had ended the program before a signal ended the process."""
        raised = self.report is not None and self.report.kind is FailureKind.RAISED
        return raised and self.exitcode == -signal.SIGABRT and AT_EXIT in self.last_lines


class WorkerEnd(NamedTuple):
    """How one worker ended. `stop_signal` is the signal that it was sent last before, 0 for none;
    `stopping_s` is how many seconds before its end it was first asked.
    """

    local_rank: int
    exitcode: int
    at: float
    stop_signal: int
    stopping_s: float = 0.0
