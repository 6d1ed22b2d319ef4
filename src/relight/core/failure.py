"""Data about a worker failure, which nodes exchange: how the worker ended, and its output."""

import signal
from enum import Enum
from typing import NamedTuple

CRASHES = tuple(
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
    if hasattr(signal, name)  # Windows, from which jobs may be submitted, lacks SIGBUS
)
AT_EXIT = "terminate called without an active exception"
"""Printed by libstdc++ if a thread is still running when the process exits, which sometimes happens
in torch.
"""


class FailureKind(Enum):
    """How certain it is that a report explains why its process ended."""

    RECORDED = "it is in the error file: this exception ended the script"
    RAISED = "apparently an uncaught exception: the text of a traceback shows it"
    CRASHED = "Python or the C++ runtime says why it aborts"
    PRINTED = "it was printed, but something else may have ended the process"


class ErrorReport(NamedTuple):
    """An exception as reported by the worker.

    `where` is the last line in the user's own code, such as `train.py:42 in step`, and `source` is
    the source text of that line. `cause` is the first exception in a chain, such as `KeyError:
    'lr'`, and `cause_where` is where it was raised. Both are empty for a single exception. For an
    ExceptionGroup, `where` is where its first exception was raised. If such a group lacks a cause,
    `cause_where` is where the group itself was raised. `is_interrupted` is true if the chain
    contains a SystemExit or KeyboardInterrupt that a signal handler may have raised. `doubt` is the
    reason why the exception may not have ended the worker, such as `it printed more after that: no
    data`. It is empty if there is no evidence against the exception. `others` are the ranks that
    printed the same exception and kept running.
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
    """What a worker was doing before it was stopped, as seen from outside
    (`core/diagnosis/stack_text.doing`).

    `place` is shown after the worker's name, such as ` in read (data.py:41)`. `stack` has the lines
    of its main thread's stack, with the innermost last. `expects_peers` is true if it was waiting
    for other workers there. `handling` is the exception that it was handling or cleaning up after
    in an `except` or `finally` block, such as `ValueError: bad record`, and `handling_where` is
    where that exception was raised. `works_below` is true if it was in a function called from that
    block, not in the block itself. `in_program` is true if its script was running, and false while
    Python prints an exception or shuts down.
    """

    place: str
    stack: tuple[str, ...]
    expects_peers: bool
    handling: str = ""
    handling_where: str = ""
    in_program: bool = True
    works_below: bool = False


class Collective(NamedTuple):
    """The last collective that a worker entered in a process group. It is the `number`-th in that
    group.
    """

    group: str
    number: int
    name: str
    sizes: str
    is_done: bool


class Failure(NamedTuple):
    """How one worker ended, and all known facts about it.

    `exitcode` is negative for a signal. `stop_signal` is the signal that the agent had already
    sent, or 0. `evidence` contains facts reported by the machine, such as an out-of-memory kill.
    `last_lines` is the end of stderr. `doing` is set if the agent inspected the worker before
    stopping it, and `collectives` is set if torch's flight recorder left a dump.

    `when` is the time when the worker ended, on that host's clock, such as `2026-07-01
    12:00:00+0200`. `at` orders the failures on one node, in seconds. It is monotonic in an agent.
    In a message and in a `relight.RunResult`, it is relative to the time of sending and hence
    negative, because nodes don't share a clock. `stopping_s` is the number of seconds between the
    stop signal and the worker's end. `printed_s` is the number of seconds between the exception in
    `report` and the worker's end, or None if unknown. `went_on` states whether its program kept
    running after that exception. `words` is the most informative line in its other output.
    `gpu_error` is a GPU error in the kernel log that may be the reason. `gpu_broken` is true if
    that GPU needs a reset or a repair.
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
    gpu_error: str = ""
    gpu_broken: bool = False

    @property
    def is_explained(self) -> bool:
        """Whether the report explains the worker's end, instead of being just its last output."""
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
        """Whether an exception ended the program before a signal ended the process."""
        raised = self.report is not None and self.report.kind is FailureKind.RAISED
        return raised and self.exitcode == -signal.SIGABRT and AT_EXIT in self.last_lines


class WorkerEnd(NamedTuple):
    """How one worker ended. `stop_signal` is the last signal that it received from the agent, or 0.
    `stopping_s` is the time in seconds from its first stop signal to its end.
    """

    local_rank: int
    exitcode: int
    at: float
    stop_signal: int
    stopping_s: float = 0.0
