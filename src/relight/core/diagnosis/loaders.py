"""Recognizes that a worker has lost a process of torch's DataLoader that was killed or crashed.

Depending on which of two threads the kernel runs first, torch (2.13) reports this in one of several
ways, and the report must be the same for all of them:

    signal handler    RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed
                      (torch/utils/data/_utils/signal_handling.py), anywhere in the program
    timeout           RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly
    connection        a connection error or EOFError from multiprocessing, below the DataLoader
    no traceback      the signal handler raises while Python prints the connection error, and Python
                      prints a dump of the exception instead (`_PyErr_Display` in CPython)
"""

import re
import signal
from collections.abc import Sequence

from relight.base.errors import signal_name
from relight.core.diagnosis.traceback_lines import frame_of
from relight.core.failure import ErrorReport, Failure

_PROCESS = "DataLoader worker process"
_DIED = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal: (?P<signal>[^.\n]+)"
    r"|exited unexpectedly(?: with exit code (?P<code>\d+))?)"
)
"""Messages of torch's DataLoader.cpp and dataloader.py."""
_OBSERVED = re.compile(
    rf"its {_PROCESS} \d+ (was killed by (?:SIG\w+|signal \d+)|exited with code \d+)(?:; )?"
)
"""The agent's own evidence (`describe`)."""
_CRASHES = {
    "segmentation fault": "SIGSEGV",
    "bus error": "SIGBUS",
    "floating-point exception": "SIGFPE",
}
_CRASHED = re.compile(rf"ERROR: Unexpected ({'|'.join(_CRASHES)}) encountered in worker\.")
"""Messages that a crashing DataLoader process prints."""


def describe(pid: int, status: int) -> str:
    """Return evidence about a DataLoader process.

    Args:
        pid: the process.
        status: its wait status, as in waitpid(2).
    """
    number = status & 0x7F
    how = f"was killed by {signal_name(number)}" if number else f"exited with code {status >> 8}"
    return f"its {_PROCESS} {pid} {how}"


def is_death(evidence: str) -> bool:
    """Return whether evidence says how a DataLoader process died."""
    return _OBSERVED.match(evidence) is not None


def is_loss(report: ErrorReport) -> bool:
    """Return whether an exception means that a DataLoader process has died."""
    texts = f"{report.type}: {report.message}", report.cause
    return any(map(_DIED.search, texts)) or _ends_in_connection(report.lines)


def lost_one(failure: Failure) -> bool:
    """Return whether a worker failed because one of its DataLoader processes had died."""
    if failure.explanation is not None:
        return is_loss(failure.explanation)
    observed = is_death(failure.evidence) or _CRASHED.search(failure.words) is not None
    return observed and failure.exitcode > 0


def how_lost(failure: Failure) -> str:
    """Return what happened to the DataLoader process that a worker lost, as a verb phrase."""
    report = failure.report
    if (observed := _OBSERVED.match(failure.evidence)) is not None:
        return observed[1]
    texts = [report.message, report.cause] if report is not None else []
    for found in filter(None, map(_DIED.search, texts)):
        if found["code"]:
            return f"exited with code {found['code']}"
        if found["signal"]:
            return f"was killed by {_signals().get(found['signal'], found['signal'])}"
    if (crashed := _CRASHED.search("\n".join([failure.words, *failure.last_lines]))) is not None:
        return f"was killed by {_CRASHES[crashed[1]]}"
    return "exited or was killed"


def other_evidence(evidence: str) -> str:
    """Return the evidence that isn't about how a DataLoader process ended."""
    return _OBSERVED.sub("", evidence)


def _ends_in_connection(lines: Sequence[str]) -> bool:
    """Return whether a traceback ends in a connection between the data loader and one of its
    processes.
    """
    frames = [line for line in lines if frame_of(line)]
    loads = any("/torch/utils/data/dataloader.py" in line for line in frames)
    return loads and "/multiprocessing/connection.py" in frames[-1]


def _signals() -> dict[str | None, str]:
    return {signal.strsignal(each): each.name for each in signal.Signals}
