"""Local jobs leave nothing behind, however they end."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import LIMIT_S, clean_environment
from test_orphans import marked, wait_until_gone

from relight.base.errors import MachineError, UsageError
from relight.job import records
from relight.job.app import AppState, Role
from relight.schedulers.local.scheduler import Local
from relight.schedulers.processes import jobs
from relight.schedulers.processes.record import LocalRecord
from schedulers.local_jobs import files_below, lines, own_place, render, shell, submit, until, wait


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a test's job records."""
    return own_place(tmp_path, monkeypatch)


@pytest.fixture
def scheduler() -> Iterator[Local]:
    """Provide the scheduler. Its jobs end with the test."""
    scheduler = Local()
    yield scheduler
    scheduler.close()


# How jobs end.


def test_cancel_returns_once_job_has_ended(scheduler: Local) -> None:
    """By then all its processes have exited."""
    marker = f"{os.getpid()}02.25"
    app_id = submit(scheduler, shell(f"setsid sleep {marker} & sleep {marker}", replicas=2))
    until(lambda: len(marked(marker)) >= 4)
    scheduler.cancel(app_id)
    status = scheduler.status([app_id])[app_id]
    assert status.state is AppState.CANCELLED
    assert {replica.state for replica in status.replicas} == {AppState.CANCELLED}
    assert marked(marker) == []
    scheduler.cancel(app_id)
    assert scheduler.status([app_id])[app_id] == status


def test_replica_that_ignores_sigterm_is_killed_after_grace_period(
    scheduler: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "GRACE_S", 0.3)
    app_id = submit(scheduler, shell("trap '' TERM; touch up; while :; do sleep 0.1; done"))
    until(lambda: Path("up").exists())
    scheduler.cancel(app_id)
    assert scheduler.status([app_id])[app_id].replicas[0].exitcode == -9


def test_unknown_job_has_no_status(scheduler: Local) -> None:
    """Every command rejects it."""
    for app_id in ("nosuch-1", "../x", ""):
        assert scheduler.status([app_id]) == {}
        for verb in (scheduler.cancel, scheduler.delete):
            with pytest.raises(UsageError):
                verb(app_id)
        with pytest.raises(UsageError):
            lines(scheduler, app_id)
    app_id = submit(scheduler, shell("true"))
    with pytest.raises(UsageError, match="no replica main/1") as caught:
        lines(scheduler, app_id, k=1)
    assert caught.value.hint == "it has main/0"


def test_missing_command_is_rejected_before_start(scheduler: Local, state: Path) -> None:
    """Nothing is left of the job."""
    request = render(scheduler, Role("main", "img", entrypoint="nosuchcommand"))
    with pytest.raises(UsageError, match="the command of main/0, nosuchcommand, is not there"):
        scheduler.submit(request)
    assert files_below(state) == []


def test_unusable_log_directory_is_reported_on_one_line(
    scheduler: Local, tmp_path: Path, state: Path
) -> None:
    """No job is created."""
    (tmp_path / "file").touch()
    request = render(scheduler, shell("true"), log_dir=str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"can't write logs to .*: Not a directory"):
        scheduler.submit(request)
    assert scheduler.list() == []


def test_full_disk_loses_logs_but_does_not_fail_job(scheduler: Local) -> None:
    """The status has a note."""
    request = render(scheduler, shell("echo gone; echo kept >&2; sleep 0.2; exit 3"))
    folder = Path(request.body["role_log_dirs"]["main"][0])
    folder.mkdir(parents=True)
    (folder / "stdout.log").symlink_to("/dev/full")
    app_id = scheduler.submit(request)
    status = wait(scheduler, app_id)
    assert status.exitcode == 3
    assert status.message == (
        "main/0 failed with exit code 3: kept; its logs are incomplete: No space left on device"
    )
    assert lines(scheduler, app_id, stream="stderr") == ["kept"]


def make_state(state: str, error: str = "") -> dict[str, Any]:
    """Return a state as written by the runner."""
    files = dict.fromkeys(("stdout", "stderr", "combined"), "/x")
    texts = ("scheduler", "app_id", "name", "log_dir", "message", "submitted", "host")
    one = {"role": "main", "replica": 0, "state": state, "pid": 1, "exitcode": None}
    one |= {"error": error, **files}
    return {**dict.fromkeys(texts, "x"), "state": state, "pid": 1, "restarts": 0, "replicas": [one]}


@pytest.mark.parametrize("text", ["[]", "{}", '{"state": "RUNNING"}', "null", "unknown"])
def test_job_with_malformed_state_file_counts_as_lost(scheduler: Local, text: str) -> None:
    """Every command copes with it."""
    app_id = submit(scheduler, shell("true"))
    wait(scheduler, app_id)
    file = Path(records.path(app_id)) / "local" / "state.json"
    file.write_text(json.dumps(make_state("NEITHER")) if text == "unknown" else text)
    assert scheduler.status([app_id]) == {}
    assert scheduler.list() == []
    with pytest.raises(UsageError):
        lines(scheduler, app_id)


def test_commands_do_not_block_if_state_or_log_is_fifo(scheduler: Local) -> None:
    """Devices don't block them either."""
    app_id = submit(scheduler, shell("true"))
    wait(scheduler, app_id)
    record = LocalRecord(records.path(app_id))
    found = record.read()
    assert found is not None
    log, state = Path(found["replicas"][0]["combined"]), Path(record.directory) / "state.json"
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(MachineError, match="not a regular file"):
        lines(scheduler, app_id)
    state.unlink()
    os.mkfifo(state)
    assert scheduler.status([app_id]) == {}
    state.unlink()
    state.symlink_to("/dev/zero")
    assert scheduler.status([app_id]) == {}


def test_replaced_state_file_is_noticed_immediately(tmp_path: Path) -> None:
    """It may follow the previous state very quickly."""
    record = LocalRecord(str(tmp_path))
    record.make()
    lock = record.lock()
    for number in range(200):
        record.write(make_state("RUNNING", str(number)))
        found = record.latest()
        assert found is not None
        assert found["replicas"][0]["error"] == str(number)
        assert record.latest() is found
    os.close(lock)
    latest = record.latest()
    assert latest is not None
    assert latest["state"] == "FAILED"


def test_final_state_is_recorded_even_on_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overwriting in place needs no additional space."""
    record = LocalRecord(str(tmp_path))
    record.make()
    record.write(make_state("RUNNING"))

    def full(*paths: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    size = (tmp_path / "local" / "state.json").stat().st_size
    over = make_state("FAILED", "why " * 75)
    record.write(over)
    assert record.read() == over
    assert (tmp_path / "local" / "state.json").stat().st_size == size, "it needs no more room"
    assert not (tmp_path / "local" / "state.json.new").exists()


def test_job_is_not_started_if_its_state_cannot_be_written(scheduler: Local, state: Path) -> None:
    """The error is a single line."""
    request = render(scheduler, shell("touch begun"))
    make_directory = LocalRecord.make
    with pytest.MonkeyPatch.context() as patch:

        def blocked(record: LocalRecord) -> None:
            make_directory(record)
            (Path(record.directory) / "state.json.new").mkdir()

        patch.setattr(LocalRecord, "make", blocked)
        with pytest.raises(
            MachineError, match=r"can't run the job: .*state.json.new Is a directory"
        ):
            scheduler.submit(request)
    assert scheduler.list() == []
    assert not Path("begun").exists()


def test_request_can_be_submitted_only_once(scheduler: Local) -> None:
    """The first job keeps running."""
    request = render(scheduler, shell("sleep 0.5; echo once"))
    app_id = scheduler.submit(request)
    with pytest.raises(UsageError, match="already submitted"):
        scheduler.submit(request)
    assert wait(scheduler, app_id).state is AppState.SUCCEEDED
    assert lines(scheduler, app_id) == ["once"]


def test_deleted_job_leaves_nothing_behind(scheduler: Local, tmp_path: Path) -> None:
    """This includes logs stored elsewhere."""
    app_id = submit(scheduler, shell("sleep 100"), log_dir=str(tmp_path / "logs"))
    other = submit(scheduler, shell("true"))
    wait(scheduler, other)
    assert [each.app_id for each in scheduler.list()] == [other, app_id]
    scheduler.delete(app_id)
    assert [each.app_id for each in scheduler.list()] == [other]
    assert not any(app_id in path for path in files_below(tmp_path))


def test_job_without_state_file_can_be_deleted(scheduler: Local) -> None:
    """Only its record is left."""
    app_id = submit(scheduler, shell("true"))
    wait(scheduler, app_id)
    needed = {"name": "job", "state": "RUNNING", "submitted": "2026-01-31T12:00"}
    handle = f"local://relight/{app_id}"
    known = {"id": app_id, "app_id": app_id, "handle": handle, "scheduler": "local", **needed}
    records.write(app_id, known)
    shutil.rmtree(Path(records.path(app_id)) / "local")
    scheduler.delete(app_id)
    records.remove(app_id)
    with pytest.raises(UsageError):
        scheduler.delete(app_id)


def test_delete_fails_if_job_directory_cannot_be_removed(
    scheduler: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job still exists afterwards."""
    app_id = submit(scheduler, shell("true"))
    wait(scheduler, app_id)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refused)
        with pytest.raises(MachineError, match=f"can't remove .*{app_id}"):
            scheduler.delete(app_id)


def refused(path: str) -> None:
    raise PermissionError(errno.EACCES, "Permission denied", path)


def test_missing_log_is_reported_on_one_line(scheduler: Local, tmp_path: Path) -> None:
    app_id = submit(scheduler, shell("true"), log_dir=str(tmp_path / "logs"))
    wait(scheduler, app_id)
    shutil.rmtree(tmp_path / "logs")
    for follow in (False, True):
        with pytest.raises(MachineError, match=r"logs no longer exist: .*combined\.log"):
            lines(scheduler, app_id, follow=follow)


def test_job_can_have_more_replicas_than_open_file_limit_allows(scheduler: Local) -> None:
    """The runner raises its own limit. Replicas keep the original one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        app_id = submit(scheduler, shell("ulimit -n", replicas=20))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert wait(scheduler, app_id).state is AppState.SUCCEEDED
    assert lines(scheduler, app_id, k=19) == ["64"]


def test_environment_variable_values_appear_in_no_file_or_command_line(
    scheduler: Local, tmp_path: Path
) -> None:
    secret = "hunter" + os.urandom(4).hex()
    submit(scheduler, shell("touch up; sleep 100", env={"TOKEN": secret}), log_dir=str(tmp_path))
    until(lambda: Path("up").exists())
    assert marked(secret) == []
    found = [p for p in tmp_path.rglob("*") if p.is_file() and secret in p.read_text("latin-1")]
    assert found == []


SUBMITTER = """
import sys, time
from relight.job.app import AppDef, Role
from relight.schedulers.local.scheduler import Local
scheduler = Local()
role = Role("main", "img", entrypoint="sh", args=("-c", sys.argv[2]), num_replicas=2)
cfg = {"detach": sys.argv[1] == "detach"}
print(scheduler.submit(scheduler.render(AppDef("job", (role,)), cfg, "job-x1")), flush=True)
time.sleep(float(sys.argv[3]))
"""


STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, lambda number, frame: print("asked", flush=True))
print("up", flush=True)
while True:
    time.sleep(1)
"""


def start(how: str, command: str, lifetime_s: float) -> "subprocess.Popen[str]":
    """Start a process that submits a job, and wait until it has done so."""
    process = subprocess.Popen(
        [sys.executable, "-c", SUBMITTER, how, command, str(lifetime_s)],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(RELIGHT_STATE_DIR=os.environ["RELIGHT_STATE_DIR"]),
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "job-x1\n"
    return process


def test_detached_job_outlives_submitter(scheduler: Local) -> None:
    """Others can follow a job submitted with `detach` until it ends."""
    process = start("detach", "while [ ! -e go ]; do sleep 0.02; done; echo done", 0)
    assert process.wait(LIMIT_S) == 0
    assert scheduler.status(["job-x1"])["job-x1"].state is AppState.RUNNING
    Path("go").touch()
    assert lines(scheduler, "job-x1", k=1, follow=True) == ["done"]
    assert wait(scheduler, "job-x1").state is AppState.SUCCEEDED


def test_attached_job_ends_when_submitter_is_killed(scheduler: Local) -> None:
    """Without `detach`, a job ends even if its submitter gets SIGKILL, and nothing is left."""
    marker = f"{os.getpid()}03.25"
    process = start("hold", f"setsid sleep {marker} & sleep {marker}", 100)
    until(lambda: len(marked(marker)) >= 4)
    process.kill()
    process.wait(LIMIT_S)
    status = wait(scheduler, "job-x1")
    assert status.state is AppState.CANCELLED
    assert status.message == "the submitting process ended, and the job was not detached"
    wait_until_gone(marker, LIMIT_S)


def test_closing_scheduler_ends_attached_jobs(scheduler: Local) -> None:
    """The call returns once the jobs are over."""
    marker = f"{os.getpid()}04.25"
    app_id = submit(scheduler, shell(f"sleep {marker}"))
    scheduler.close()
    assert marked(marker) == []
    assert scheduler.status([app_id])[app_id].state is AppState.CANCELLED


PATIENT = f"""
from relight.schedulers.processes import jobs
jobs.GRACE_S = jobs._CLOSE_S = {2 * LIMIT_S}
from relight.cli.main import entry
entry()
"""
"""Runs relight with a grace period far longer than the test waits."""


def test_second_ctrl_c_kills_remaining_processes() -> None:
    """The first one stops the job, with exit code 130."""
    marker = f"{os.getpid()}06.25"
    process = subprocess.Popen(
        [sys.executable, "-c", PATIENT, "submit", "utils.python", "-c", STUBBORN, marker],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(RELIGHT_STATE_DIR=os.environ["RELIGHT_STATE_DIR"]),
    )
    assert process.stderr is not None
    with process.stderr:
        for word in ("up", "asked"):
            while word not in (line := process.stderr.readline()):
                assert line, "it ended"
            process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
    wait_until_gone(marker)


def test_second_ctrl_c_during_cleanup_still_kills_all_jobs(
    scheduler: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it comes between requesting the stop and waiting for it, all jobs are still killed."""
    monkeypatch.setattr(jobs, "GRACE_S", 2 * LIMIT_S)
    monkeypatch.setattr(jobs, "_CLOSE_S", LIMIT_S)
    stubborn = "trap '' TERM; touch up$$; while :; do sleep 0.1; done"
    app_ids = [submit(scheduler, shell(stubborn)) for _ in range(2)]
    until(lambda: len(list(Path().glob("up*"))) == 2)
    process = scheduler._attached[app_ids[0]]
    stdin = process.stdin
    assert stdin is not None

    def close_and_interrupt() -> None:
        process.stdin = stdin
        stdin.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "stdin", SimpleNamespace(close=close_and_interrupt))
    scheduler.close()
    for status in scheduler.status(app_ids).values():
        assert (status.state, status.replicas[0].exitcode) == (AppState.CANCELLED, -9)


def test_replicas_are_killed_when_their_runner_process_dies(scheduler: Local) -> None:
    """The status says so."""
    marker = f"{os.getpid()}05.25"
    app_id = submit(scheduler, shell(f"setsid sleep {marker} & sleep {marker}"), detach=True)
    until(lambda: len(marked(marker)) >= 2)
    file = Path(records.path(app_id)) / "local" / "state.json"
    os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)
    wait_until_gone(marker, LIMIT_S)
    status = wait(scheduler, app_id)
    assert status.state is AppState.FAILED and "was killed" in status.message
    scheduler.cancel(app_id)
