"""Error files: what `@record` in a worker wrote, and what the agent writes for whoever started it.

The file's name is in TORCHELASTIC_ERROR_FILE; its form is that of torch 2.13
(torch/distributed/elastic/multiprocessing/errors): `{"message": {"message": …, "extraInfo":
{"py_callstack": …, "timestamp": …}}}`, or a text instead of the inner object.
"""

import json
import os
import time

from relight.core.failures import Failure, what_happened
from relight.core.tracebacks import Report, from_error_file

_LIMIT = 1024 * 1024


def read(path: str) -> Report | None:
    """Return the exception in an error file; None if there is no file, or it makes no sense."""
    try:
        with open(path, "rb") as file:
            return from_error_file(file.read(_LIMIT).decode(errors="replace"))
    except OSError:
        return None


def write(path: str, failure: Failure, source: str) -> None:
    """Write the root cause for the program that started this agent.

    Args:
        path: the agent's own TORCHELASTIC_ERROR_FILE.
        failure: the root cause.
        source: the worker's error file, whose content is passed on if there is one.

    Raises:
        OSError: the file can't be written.
    """
    record = _load(source)
    if record is None:
        report = failure.report
        text = (
            f"{report.type}: {report.message}"
            if report
            else f"rank {failure.rank} {what_happened(failure)}"
        )
        stack = "\n".join(report.lines) if report else ""
        record = {
            "message": {
                "message": text,
                "extraInfo": {"py_callstack": stack, "timestamp": str(int(time.time()))},
            }
        }
    message = record.get("message")
    if isinstance(message, dict):
        message["errorCode"] = failure.exitcode
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w") as file:
        json.dump(record, file)
    os.replace(temporary, path)


def _load(path: str) -> dict[str, object] | None:
    try:
        with open(path, "rb") as file:
            record = json.loads(file.read(_LIMIT))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None
