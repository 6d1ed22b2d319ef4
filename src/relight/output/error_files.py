"""Reads and writes error files, which are written by `@record` in a worker and by the agent for its
parent process.

The file's path is in TORCHELASTIC_ERROR_FILE, and its format is that of torch 2.13
(torch/distributed/elastic/multiprocessing/errors): `{"message": {"message": …, "extraInfo":
{"py_callstack": …, "timestamp": …}}}`, or a string instead of the inner object. Like torchrun, the
agent adds `errorCode`, the exit code (negative for a signal), to the inner object. In a `relight
submit` job, the agent also adds `headline`, a one-line description of the failure, and `is_own`,
which is whether one of the agent's own workers failed, next to `message`.
"""

import json
import os
import time
from datetime import datetime

from relight.core.diagnosis.failure_text import what_happened
from relight.core.diagnosis.traceback_lines import clean
from relight.core.diagnosis.tracebacks import from_error_file
from relight.core.failure import ErrorReport, Failure
from relight.host import files

_LIMIT = 16 * 1024 * 1024


def read(path: str) -> ErrorReport | None:
    """Return the exception in an error file, or None if the file is missing or malformed."""
    return from_error_file(_text(path))


def line_in(path: str) -> str:
    """Return a one-line failure reason from a program's error file, or an empty string."""
    return failure_line(_text(path))


def names_own_worker(path: str) -> bool:
    """Return whether an agent's error file says that one of the agent's own workers failed. All
    agents in a job report the same failure.
    """
    return is_of_own_worker(_text(path))


def is_of_own_worker(text: str) -> bool:
    """Return whether the text of an agent's error file says that one of its own workers failed."""
    return _record(text).get("is_own") is True


def failure_line(text: str) -> str:
    """Return a one-line failure reason from the text of a program's error file: the agent's
    headline or, without a headline, the exception.
    """
    report = from_error_file(text)
    if report is None:
        return ""
    headline = _record(text).get("headline")
    if isinstance(headline, str) and headline.strip():
        return clean(headline)
    return f"{report.type}: {report.message}" if report.type else report.message


def write(path: str, failure: Failure, source: str, headline: str = "") -> None:
    """Write an error file with the root cause, for the program that started the agent.

    Args:
        path: the agent's own TORCHELASTIC_ERROR_FILE.
        failure: the root cause.
        source: the worker's error file, whose content is copied if it exists; empty if the worker
            is not the agent's own.
        headline: a one-line description of the failure. If empty, it is omitted, as in torchrun.

    Raises:
        OSError: if the file can't be written.
    """
    text = _text(source)
    record = _record(text)
    if from_error_file(text) is None:
        record = {
            "message": {
                "message": _message(failure),
                "extraInfo": {
                    "py_callstack": "\n".join(failure.report.lines) if failure.report else "",
                    "timestamp": str(_failure_time(failure)),
                },
            }
        }
    message = record["message"]
    if isinstance(message, dict):
        message["errorCode"] = failure.exitcode
    if headline:
        record |= {"headline": headline, "is_own": bool(source)}
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    files.replace(path, json.dumps(record), 0o666)


def _failure_time(failure: Failure) -> int:
    """Return when a worker failed. If there are several error files, torch and TorchX treat the
    earliest failure as the cause.
    """
    try:
        return int(datetime.strptime(failure.when, "%Y-%m-%d %H:%M:%S%z").timestamp())
    except (ValueError, OverflowError):
        return int(time.time())


def _message(failure: Failure) -> str:
    report = failure.explanation
    if report is None:
        return f"rank {failure.rank} {what_happened(failure)}"
    return f"{report.type}: {report.message}" if report.type else report.message


def _record(text: str) -> dict[str, object]:
    """Parse an error file. The result is empty if the file is missing or malformed."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _text(path: str) -> str:
    try:
        with files.opened(path) as file:
            return file.read(_LIMIT).decode(errors="replace")
    except OSError:
        return ""
