"""The data about a worker failure that nodes exchange, such as how the worker ended and what it
printed.
"""

import signal
from enum import Enum
from typing import NamedTuple

CRASHES = tuple(
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
    if hasattr(signal, name)  # Windows, from which jobs may be submitted, lacks SIGBUS
)
AT_EXIT = "terminate called without an active exception"
"""The message that libstdc++ prints if a thread is still running when the process exits, which
sometimes happens with torch.
"""


class FailureKind(Enum):
    """How certain it is that an error report explains why the process exited."""

    RECORDED = "it is in the error file: this exception ended the script"
    RAISED = "apparently an uncaught exception: the text of a traceback shows it"
    CRASHED = "Python or the C++ runtime says why it aborts"
    PRINTED = "it was printed, but something else may have ended the process"


class ErrorReport(NamedTuple):
    """An exception as reported by the worker.

    The `where` field is the last line in the user's own code, such as `train.py:42 in step`, and
    `source` is the source text of that line. The `cause` field is the first exception in a chain,
    such as `KeyError: 'lr'`, and `cause_where` is where that exception was raised. Both fields are
    empty for a single exception. For an ExceptionGroup, the `where` field is where the group's
    first exception was raised. If such a group lacks a cause, the `cause_where` field is where
    the group itself was raised. The `is_interrupted` field is true if the chain contains a
    SystemExit or KeyboardInterrupt that a signal handler may have raised. The `doubt` field is the
    reason why the exception may not have ended the worker, such as `it printed more after that: no
    data`. It is empty if there is no evidence against the exception. The `others` field contains
    the ranks that printed the same exception and kept running.
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
    """A worker's activity before it was stopped, as observed from outside the process
    (`core/diagnosis/stack_text.doing`).

    The `place` field is shown after the worker's name, such as ` in read (data.py:41)`. The `stack`
    field has the lines of the main thread's stack, with the innermost last. The `expects_peers`
    field is true if the worker was waiting for other workers at this place. The `handling` field is
    the exception that the worker was handling or cleaning up after in an `except` or `finally`
    block, such as `ValueError: bad record`, and `handling_where` is where that exception was
    raised. The `works_below` field is true if the worker was in a function called from that block,
    not in the block itself. The `in_program` field is true if the worker's script was running, and
    false while Python prints an exception or shuts down.
    """

    place: str
    stack: tuple[str, ...]
    expects_peers: bool
    handling: str = ""
    handling_where: str = ""
    in_program: bool = True
    works_below: bool = False


UNSEEN = WorkerState(": location unknown", (), False)
"""The state of a worker that was not observed."""


class Collective(NamedTuple):
    """The last collective that a worker entered in a process group. The `number` field is the
    collective's position in that group's sequence of collectives.
    """

    group: str
    number: int
    name: str
    sizes: str
    is_done: bool


class Failure(NamedTuple):
    """How one worker ended, and all known facts about it.

    The `exitcode` field is negative if a signal killed the worker. The `stop_signal` field is the
    signal that the agent had already sent, or 0. The `evidence` field contains facts reported by
    the machine, such as an out-of-memory kill. The `last_lines` field is the end of stderr. The
    `doing` field is set if the agent inspected the worker before it stopped the worker, and
    `collectives` is set if torch's flight recorder left a dump.

    The `when` field is the time when the worker raised its exception or, if that is unknown, when
    it ended, on that host's clock, such as `2026-07-01 12:00:00+0200`. The `at` field is a time in
    seconds for sorting the failures on one node. Within an agent, this time is monotonic. In a
    message and in a `relight.RunResult`, it is relative to the time of sending and hence negative,
    because nodes don't share a clock. The `stopping_s` field is the number of seconds between the
    stop signal and the worker's end. The `printed_s` field is the number of seconds between the
    exception in `report` and the worker's end, or None if unknown. The `went_on` field indicates
    whether the worker's program kept running after that exception. The `words` field is the most
    informative line in the worker's other output. The `gpu_error` field is a GPU error from the
    kernel log that may be the reason for the failure. The `gpu_broken` field is true if that GPU
    needs a reset or a repair.
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
    def state(self) -> WorkerState:
        """The worker's state before it was stopped, or `UNSEEN`."""
        return self.doing or UNSEEN

    @property
    def explanation(self) -> ErrorReport | None:
        """The report if it explains why the worker ended, or None."""
        return self.report if self.is_explained else None

    @property
    def is_explained(self) -> bool:
        """Whether the report explains why the worker ended, instead of being just its last
        output.
        """
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
    """How one worker ended. The `stop_signal` field is the last signal that the worker received
    from the agent, or 0. The `stopping_s` field is the time in seconds from the first stop signal
    to the worker's end.
    """

    local_rank: int
    exitcode: int
    at: float
    stop_signal: int
    stopping_s: float = 0.0
