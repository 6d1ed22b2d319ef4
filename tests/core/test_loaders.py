"""Recognizing that a DataLoader process has died, however torch reports it."""

import signal

import pytest
from worker_ends import LOST, RESET, end, error

from relight.core.diagnosis import loaders
from relight.core.diagnosis.causes import Certainty, Role, role
from relight.core.diagnosis.failure_text import diagnose
from relight.core.failure import ErrorReport, Failure, FailureKind

LOADER = '  File "/x/site-packages/torch/utils/data/dataloader.py", line 7, in _next_data'
PIPE = '  File "/usr/lib/python3.11/multiprocessing/connection.py", line 395, in _recv'
HANDLER = (
    '  File "/x/site-packages/torch/utils/data/_utils/signal_handling.py", line 73, in handler'
)
CRASHED = "ERROR: Unexpected segmentation fault encountered in worker."
KILLED = "DataLoader worker (pid 7) is killed by signal: Killed. "
DUMP = (
    "object repr     : ConnectionResetError(104, 'Connection reset by peer')",
    "lost sys.stderr",
)


def raised(message: str, *lines: str, type_: str = "RuntimeError", cause: str = "") -> ErrorReport:
    return error(message, type_)._replace(lines=(*lines, f"{type_}: {message}"), cause=cause)


IN_HANDLER = raised(KILLED, LOADER, HANDLER, cause=f"ConnectionResetError: {RESET.message}")
UNEXPECTED = raised(
    "DataLoader worker (pid(s) 7) exited unexpectedly", LOADER, cause=f"RuntimeError: {KILLED}"
)
CONNECTION = raised(RESET.message, LOADER, PIPE, type_="ConnectionResetError")
BY_KILL = loaders.describe(7, signal.SIGKILL)


@pytest.mark.parametrize(
    "failure",
    [
        end(1, at=1.0, report=IN_HANDLER),
        end(1, at=1.0, report=UNEXPECTED),
        end(1, at=1.0, report=CONNECTION, evidence=BY_KILL),
        end(1, at=1.0, last_lines=DUMP, evidence=BY_KILL),
        end(1, at=1.0, last_lines=(LOADER,), evidence=BY_KILL),
    ],
    ids=["signal handler", "timeout", "connection", "no traceback", "half a traceback"],
)
def test_killed_loader_is_reported_alike_whatever_torch_noticed_first(failure: Failure) -> None:
    for victims in ([], [end(0, at=0.9, report=LOST)]):
        found = diagnose([failure, *victims])
        lines = found.render(formed_at=0, ended="now", verdict="over")
        assert lines[0] == "rank 1 lost a DataLoader worker process, which was killed by SIGKILL"
        assert (found.root.rank, found.verdict.certainty) == (1, Certainty.PROVEN)
        assert not lines[1].startswith(("  while handling", "  caused by"))


@pytest.mark.parametrize(
    ("failure", "how"),
    [
        (end(report=CONNECTION), "exited or was killed"),
        (end(report=CONNECTION, words=CRASHED), "was killed by SIGSEGV"),
        (end(last_lines=DUMP, words=CRASHED), "was killed by SIGSEGV"),
        (end(report=raised("DataLoader worker (pid(s) 7, 8) exited unexpectedly")),
         "exited or was killed"),
        (end(report=raised("DataLoader worker (pid 7) exited unexpectedly with exit code 3. De")),
         "exited with code 3"),
        (end(report=CONNECTION, evidence=loaders.describe(7, 3 << 8)), "exited with code 3"),
    ],
)  # fmt: skip
def test_report_says_how_the_loader_process_died(failure: Failure, how: str) -> None:
    assert loaders.lost_one(failure)
    assert loaders.how_lost(failure) == how


def test_other_evidence_about_a_lost_loader_is_shown() -> None:
    oom = "probably out of memory: the kernel killed process 7 (pt_data_worker) (kernel log)"
    lost = end(report=CONNECTION, evidence=f"{BY_KILL}; {oom}")
    lines = diagnose([lost]).render(formed_at=0, ended="now", verdict="over")
    assert lines[:2] == [
        "rank 0 lost a DataLoader worker process, which was killed by SIGKILL", f"  {oom}",
    ]  # fmt: skip


def test_connection_below_no_loader_is_blamed_on_a_peer() -> None:
    assert role(end(report=CONNECTION)) is Role.OWN
    assert role(end(report=CONNECTION._replace(lines=(PIPE,)))) is Role.VICTIM
    assert not loaders.lost_one(end(last_lines=DUMP))
    printed = CONNECTION._replace(kind=FailureKind.PRINTED)
    assert not loaders.lost_one(end(report=printed))
