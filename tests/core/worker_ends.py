"""Worker exits, for tests that draw conclusions from them."""

import signal
from typing import Any

from relight.core.failure import ErrorReport, Failure, FailureKind, WorkerState

TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL
SEGV, ABRT = signal.SIGSEGV, signal.SIGABRT
AT_EXIT = ("ValueError: bad batch", "terminate called without an active exception")


def error(
    message: str = "bad batch",
    type_: str = "ValueError",
    kind: FailureKind = FailureKind.RAISED,
    where: str = "/srv/job/train.py:12 in step",
) -> ErrorReport:
    lines = ("Traceback (most recent call last):", f"{type_}: {message}")
    return ErrorReport(kind, type_, message, where, "step(batch)", lines)


LOST = error("[/x/gloo/transport/tcp/pair.cc:5] Connection reset by peer", "RuntimeError")
"""The error from gloo when a peer is gone."""
RESET = error("[Errno 104] Connection reset by peer", "ConnectionResetError")
"""The error from Python when a connection is reset, whether by a peer or by any other server."""
WAITED = error("Timed out waiting 3000ms for recv operation", "RuntimeError")
READS = WorkerState(" in read (data.py:41)", ('File "data.py", line 41, in read',), False)
REDUCES = WorkerState(" in all_reduce (train.py:8)", ("line",), True)
CLEANS_UP = WorkerState(" in sleep (a.py:9)", ("line",), False, "ValueError: bad record", "a.py:7")
"""A worker that is handling its own exception."""
PRINTED = error(kind=FailureKind.PRINTED)
CRASHED = error("Segmentation fault", "fatal error", FailureKind.CRASHED)


def end(rank: int = 0, exitcode: int = 1, at: float = 0.0, **known: Any) -> Failure:
    defaults: dict[str, Any] = {
        "local_rank": rank,
        "host": "vm",
        "pid": 100 + rank,
        "stop_signal": 0,
        "report": None,
        "last_lines": (),
        "evidence": "",
        "log": "",
    }
    return Failure(rank=rank, exitcode=exitcode, at=at, **{**defaults, **known})
