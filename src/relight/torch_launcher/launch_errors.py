"""The errors of a launch, equivalent to torch's classes with the same names."""

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from relight.api import function_results
from relight.api.embedding import RunResult
from relight.base.errors import WorkersFailedError, signal_name
from relight.core.failure import Failure

_NOT_AVAILABLE = "<N/A>"


@dataclass
class ProcessFailure:
    """A worker's failure. The fields are the same as in torch's class with the same name.

    `error_file` is always `<N/A>`, because the file's content is in `error_file_data`. The
    `message` field is either a string, or describes an exception as `{"message": …, "extraInfo":
    {"py_callstack": …, "timestamp": …}}`. The `timestamp` field is in seconds since 1970.
    The `exitcode` field is negative if a signal ended the worker.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: dict[str, Any]
    message: Any
    timestamp: int

    def signal_name(self) -> str:
        """Return the name of the signal that ended the worker, or `<N/A>`."""
        return signal_name(-self.exitcode) if self.exitcode < 0 else _NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """Return the local time of the failure, in the format YYYY-MM-DD_HH:MM:SS."""
        return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")


class ChildFailedError(Exception):
    """Raised if workers have failed. If the caller has imported torch, the exception is also an
    instance of torch's class with the same name.

    Args:
        name: the entrypoint's name.
        failures: the failures of workers on this node, by rank.
        report: the lines of the failure report.
    """

    def __init__(
        self, name: str, failures: dict[int, ProcessFailure], report: Sequence[str] = ()
    ) -> None:
        Exception.__init__(self, "\n".join([f"{name} FAILED", *report]))
        self.name = name
        self.failures = failures

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Return the rank that failed first, and its failure."""
        rank = min(self.failures, key=lambda each: self.failures[each].timestamp)
        return rank, self.failures[rank]

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Return the message. The delimiter arguments exist for compatibility with torch, and are
        ignored.
        """
        del boarder_delim, section_delim
        return str(self)


class SignalException(Exception):  # noqa: N818  # torch's name
    """Raised if a signal has ended the launch. If the caller has imported torch, the exception is
    also an instance of torch's class with the same name.

    Args:
        msg: the message.
        sigval: the signal.
    """

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        Exception.__init__(self, msg)
        self.sigval = sigval


def _first(result: RunResult) -> Failure | None:
    """Return the first failure on this node, or else the root cause on another node."""
    own = sorted(result.failures, key=lambda each: (bool(each.stop_signal), each.at))
    cause = result.cause
    if cause is not None and any((each.rank, each.pid) == (cause.rank, cause.pid) for each in own):
        return cause
    return own[0] if own else cause


def to_error(
    name: str,
    result: RunResult,
    raised: Mapping[int, function_results.Raised],
    failures: Mapping[int, Failure],
) -> Exception:
    """Return the exception to raise for a failed job.

    Args:
        name: the entrypoint's name.
        result: the job's result.
        raised: the exceptions that the function raised, by rank.
        failures: failures to report in addition to the first one, by rank. As in torch, all
            failures are reported for a program, but only the first failure for a function.
    """
    first = _first(result)
    if first is None:
        return WorkersFailedError(result.reason)
    error = own_class(ChildFailedError, "errors")
    failures = {first.rank: first, **failures}  # the first one wins among equal timestamps
    found = {rank: _failure(each, raised.get(rank)) for rank, each in failures.items()}
    made: Exception = error(name, found, result.report)
    return made


def _failure(failure: Failure, raised: function_results.Raised | None) -> ProcessFailure:
    report = failure.explanation
    if raised is not None and isinstance(raised.error, SystemExit):
        raised = None  # as in torch, this is not an error
    timestamp = int(raised.time) if raised else _seconds(failure.when)
    message: Any = ""
    if raised is not None or report is not None:
        text = raised.text if raised else "\n".join(report.lines) if report else ""
        said = text.rstrip().rpartition("\n")[2]
        if report is not None and not raised:
            said = f"{report.type}: {report.message}" if report.type else report.message
        message = {
            "message": said,
            "extraInfo": {"py_callstack": text, "timestamp": str(timestamp)},
        }
    data = {"message": message or "<NONE>"}
    if not message and failure.exitcode < 0:
        name = signal_name(-failure.exitcode)
        message = f"Signal {-failure.exitcode} ({name}) received by PID {failure.pid}"
    return ProcessFailure(
        local_rank=failure.local_rank,
        pid=failure.pid,
        exitcode=failure.exitcode,
        error_file=_NOT_AVAILABLE,
        error_file_data=data,
        message=message or f"exited with {failure.exitcode}; its output may show why",
        timestamp=timestamp,
    )


def _seconds(when: str) -> int:
    """Return the time when a failure occurred, in seconds since 1970."""
    try:
        return int(datetime.strptime(when, "%Y-%m-%d %H:%M:%S%z").timestamp())
    except ValueError:
        return int(time.time())


def own_class(own: type[Exception], module: str) -> Any:
    """Return our exception class or, if the caller has imported torch, a subclass that also derives
    from torch's class.
    """
    found = sys.modules.get(f"torch.distributed.elastic.multiprocessing.{module}")
    theirs = getattr(found, own.__name__, None)
    return own if theirs is None else type(own.__name__, (own, theirs), {"__doc__": own.__doc__})
