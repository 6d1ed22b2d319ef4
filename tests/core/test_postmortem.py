"""Facts that an agent gathers about failed workers."""

import time
from datetime import datetime
from unittest import mock

import pytest

from relight.agent import postmortem
from relight.core.failure import WorkerEnd

FAILED = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    step()
  File "train.py", line 2, in step
    raise ValueError("bad batch")
ValueError: bad batch
"""


def found(monkeypatch: pytest.MonkeyPatch, end: WorkerEnd, printed_at: float) -> datetime:
    """Return the time of a failure whose traceback was read at `printed_at`."""
    monkeypatch.setattr(postmortem, "_stderr", lambda *_: FAILED)
    logs = mock.Mock()
    logs.printed.return_value = mock.Mock(at=printed_at, went_on=False)
    logs.printed_late.return_value = 0
    logs.path.return_value = ""
    logs.error_file.return_value = ""
    command = mock.Mock()
    command.module = command.no_python = command.run_path = False
    command.script = "train.py"
    workers = mock.Mock(ranks=[0], pids={}, doing={})
    failure = postmortem._failure(end, logs, workers, command, "vm")
    assert failure.is_explained
    return datetime.strptime(failure.when, "%Y-%m-%d %H:%M:%S%z")


def test_time_of_a_failure_is_that_of_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker took an hour to exit after that."""
    end = WorkerEnd(0, 1, time.monotonic(), 0)
    at_once = found(monkeypatch, end, end.at)
    earlier = found(monkeypatch, end, end.at - 3600)
    assert 3598 <= (at_once - earlier).total_seconds() <= 3602
