"""Commands that end jobs: cancel and delete."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S

from relight.cli.jobs import cancel
from relight.job.app import AppState
from relight.job.handles import Handle, to_handle
from relight.job.status import AppStatus
from relight.runner.lookup import Purpose

from .conftest import Command

Submitted = Callable[..., str]


def job_directories(state: Path) -> list[str]:
    return sorted(os.listdir(state / "jobs"))


def test_cancel_stops_processes_and_keeps_logs_and_record(
    relight: Command, submitted: Submitted, place: Path
) -> None:
    """A second cancel changes nothing."""
    handle = submitted("utils.sh", "sh", "-c", "echo $$ > pid; echo said; exec sleep 300")
    end = time.monotonic() + LIMIT_S
    while relight("logs", handle).stdout != "said\n":
        assert time.monotonic() < end, "the job does not start"
    found = relight("cancel", handle)
    assert (found.returncode, found.stdout) == (0, "")
    assert found.stderr == f"relight: {handle} CANCELLED\n"
    assert not Path("/proc", (place / "pid").read_text().strip()).exists()
    assert relight("logs", handle).stdout == "said\n"
    assert relight("describe", handle).stdout.startswith(f"{handle} CANCELLED\n")
    again = relight("cancel", "--json", handle)
    assert (again.returncode, json.loads(again.stdout)["state"]) == (0, "CANCELLED")
    assert relight("wait", handle).returncode == 143


class StoppingRunner:
    """A runner whose scheduler doesn't wait until a cancelled job has ended."""

    def __enter__(self) -> "StoppingRunner":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def find(self, text: str, purpose: Purpose) -> Handle:
        assert purpose is Purpose.CANCEL
        return to_handle(text)

    def cancel_unless_over(self, _: Handle) -> tuple[bool, AppStatus]:
        return False, AppStatus(AppState.RUNNING)


def test_cancel_says_that_job_is_still_stopping(
    monkeypatch: pytest.MonkeyPatch, here: Command
) -> None:
    monkeypatch.setattr(cancel, "Runner", StoppingRunner)
    stderr = here("cancel", "slurm://relight/77").stderr
    assert stderr.startswith("relight: slurm://relight/77 RUNNING (it is being stopped; ")


def test_cancelling_ended_job_changes_nothing(relight: Command, submitted: Submitted) -> None:
    """It isn't an error."""
    handle = submitted("utils.sh", "sh", "-c", "sleep 1; exit 3")
    assert relight("wait", handle).returncode == 3
    found = relight("cancel", handle)
    assert (found.returncode, found.stderr) == (
        0, f"relight: {handle} FAILED (it had already ended)\n"
    )  # fmt: skip


def test_cancel_and_delete_accept_several_jobs(
    relight: Command, submitted: Submitted, tmp_path: Path
) -> None:
    """Jobs can be named by handle or by id."""
    handles = [submitted("utils.sh", "sleep", "300") for _ in range(3)]
    names = [handles[0], *(handle.rpartition("/")[2] for handle in handles[1:])]
    found = relight("cancel", *names)
    assert found.stderr.splitlines() == [f"relight: {handle} CANCELLED" for handle in handles]
    found = relight("delete", *names)
    assert (found.returncode, found.stdout) == (0, "")
    assert found.stderr.splitlines() == [f"relight: deleted {handle}" for handle in handles]
    assert job_directories(tmp_path / "state") == []


def test_delete_stops_job_and_removes_everything(
    relight: Command, submitted: Submitted, place: Path, tmp_path: Path
) -> None:
    handle = submitted("utils.sh", "sleep", "300")
    assert relight("delete", handle).returncode == 0
    assert job_directories(tmp_path / "state") == []
    assert list(place.iterdir()) == []
    for command in ("status", "logs", "wait", "cancel", "delete", "describe"):
        found = relight(command, handle)
        assert (found.returncode, found.stdout) == (2, "")
        assert found.stderr.startswith(f"relight: error: no such job: {handle}\n")


def test_custom_log_directory_is_deleted_with_job(
    relight: Command, place: Path, tmp_path: Path
) -> None:
    """Other jobs' logs are kept."""
    (place / "logs").mkdir()
    (place / "logs" / "mine").touch()
    found = relight("submit", "-cfg", "log_dir=logs", "utils.echo", "--msg", "hi")
    handle = found.stdout.strip()
    (folder,) = (place / "logs").glob("echo-*")
    assert (folder / "echo" / "0" / "stdout.log").read_text() == "hi\n"
    assert relight("logs", handle).stdout == "hi\n"
    assert relight("delete", handle).returncode == 0
    assert [path.name for path in (place / "logs").iterdir()] == ["mine"]
    assert job_directories(tmp_path / "state") == []
