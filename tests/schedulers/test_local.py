"""Local jobs: replicas start and end together, each with its own logs."""

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import LIMIT_S
from test_orphans import marked

from relight.base.errors import UsageError
from relight.host import devices
from relight.host.devices import Device
from relight.job import records
from relight.job.app import AppState, BindMount, Resource, RetryPolicy, Role
from relight.schedulers.api import LogQuery
from relight.schedulers.local.scheduler import Local
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


# Dry runs.


def test_request_has_same_keys_as_torchx_local_cwd(scheduler: Local, tmp_path: Path) -> None:
    """It contains all replicas' commands, environments and files."""
    args = ("${app_id}", "${replica_id}")
    role = Role("echo", "img", entrypoint="echo", args=args, env={"A": "b"}, num_replicas=2)
    request = render(scheduler, role, log_dir=str(tmp_path / "logs"))
    body = request.body
    app_id, cwd = body["app_id"], str(Path.cwd())
    top = tmp_path / "logs" / app_id
    assert body["log_dir"] == str(top)
    assert body["role_log_dirs"] == {"echo": [str(top / "echo/0"), str(top / "echo/1")]}
    second = body["role_params"]["echo"][1]
    assert second["args"] == ["echo", app_id, "1"]
    assert second["cwd"] == cwd
    assert [second[n] for n in ("stdout", "stderr", "combined")] == [
        str(top / f"echo/1/{name}.log") for name in ("stdout", "stderr", "combined")
    ]
    path = second["env"].pop("PATH").split(":")
    assert path.index("/usr/bin") < path.index(cwd), (
        "no file of the directory takes precedence over a tool"
    )
    assert second["env"] == {
        "A": "b",
        "RELIGHT_RANK0_HOST": "localhost",
        "TORCHX_RANK0_HOST": "localhost",
        "TORCHELASTIC_ERROR_FILE": str(top / "echo/1/error.json"),
        "PET_LOG_DIR": str(top / "torchelastic/echo"),
    }
    json.dumps(body)
    first = render(scheduler, role, prepend_cwd=True).body["role_params"]["echo"][0]
    assert first["env"]["PATH"].startswith(f"{cwd}:")


def test_dry_run_creates_no_files(scheduler: Local, tmp_path: Path) -> None:
    """Rendering creates no file or directory."""
    before = files_below(tmp_path)
    render(scheduler, shell("true"), log_dir=str(tmp_path / "logs"), workspace=str(tmp_path))
    render(scheduler, shell("true"))
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "local", "torchelastic", "workspace"])
def test_role_name_that_is_not_a_valid_directory_name_is_rejected(
    scheduler: Local, name: str
) -> None:
    with pytest.raises(UsageError, match="is not a valid directory name"):
        render(scheduler, shell("true", name))


def test_options_without_effect_cause_a_note(scheduler: Local) -> None:
    """These are mounts, images, and GPUs shared by several replicas."""
    gpus = shell("true", replicas=2, resource=Resource(1, 2, 3), mounts=(BindMount("/a", "/b"),))
    notes = render(scheduler, replace(gpus, image="mine:1")).notes
    assert [note.split(" ")[0] for note in notes] == ["mounts", "the", "all"]
    assert notes[1] == "the image mine:1 has no effect: replicas see the files of this machine"
    assert render(scheduler, shell("true")).notes == ()
    alone = shell("true", replicas=2, max_retries=1, retry_policy=RetryPolicy.REPLICA)
    assert render(scheduler, alone).notes == ("the job is retried as a whole, 1 time",)
    elastic = shell("true", replicas=2, min_replicas=1)
    assert render(scheduler, elastic).notes == (
        "all replicas start, and the job ends when one fails",
    )


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, ["0,1", "2,3", ""]), ("4,6,7,5", ["4,6", "7,5", ""])]
)
def test_each_replica_has_its_own_gpus(
    scheduler: Local, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[str]
) -> None:
    """The option divides the available GPUs among roles and replicas."""
    monkeypatch.setattr(devices, "gpus", lambda env: [Device(n, "") for n in range(4)])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    roles = shell("true", "a", 2, resource=Resource(1, 2, 3)), shell("true", "b")
    params = render(scheduler, *roles, auto_set_cuda_visible_devices=True).body["role_params"]
    assert [r["env"]["CUDA_VISIBLE_DEVICES"] for r in [*params["a"], *params["b"]]] == expected


def test_no_gpus_are_assigned_if_there_are_too_few(
    scheduler: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda env: [Device(0, "")])
    role = shell("true", replicas=2, resource=Resource(1, 1, 1))
    request = render(scheduler, role, auto_set_cuda_visible_devices=True)
    assert "CUDA_VISIBLE_DEVICES" not in request.body["role_params"]["main"][0]["env"]
    assert request.notes == ("2 GPUs requested, but only 1 found; each replica sees all",)


# Running.


def test_stdout_and_stderr_are_logged_separately_and_combined(scheduler: Local) -> None:
    """The combined log has the lines in the order they were written."""
    command = "echo out$RELIGHT_RANK0_HOST; sleep 0.2; echo err >&2; sleep 0.2; printf 'caf\\351'"
    app_id = submit(scheduler, shell(command, replicas=2))
    status = wait(scheduler, app_id)
    assert status.state is AppState.SUCCEEDED and status.exitcode == 0
    for k in (0, 1):
        assert lines(scheduler, app_id, k=k, stream="stdout") == ["outlocalhost", "caf\ufffd"]
        assert lines(scheduler, app_id, k=k, stream="stderr") == ["err"]
        assert lines(scheduler, app_id, k=k) == ["outlocalhost", "err", "caf\ufffd"]


def test_success_file_is_written_when_logs_are_complete(scheduler: Local, tmp_path: Path) -> None:
    """It has the same keys as TorchX's (nightly 2026.10.26), and exists however the job ended."""
    app_id = submit(scheduler, shell("echo out; exit 3"), log_dir=str(tmp_path))
    wait(scheduler, app_id)
    found = json.loads((tmp_path / app_id / "SUCCESS").read_text())
    assert list(found) == ["app_id", "log_dir", "final_state", "last_updated", "roles"]
    assert (found["app_id"], found["final_state"]) == (app_id, "FAILED")
    (replica,) = found["roles"]["main"]
    assert list(replica) == ["replica_id", "pid", "exitcode", "stdout", "stderr", "error_file"]
    assert (replica["replica_id"], replica["exitcode"]) == (0, 3)
    assert Path(replica["stdout"]).read_text() == "out\n"
    assert scheduler.native(app_id)["replicas"][0]["pid"] == replica["pid"]
    with pytest.raises(UsageError):
        scheduler.native("job-nope")


def test_arguments_are_passed_verbatim(scheduler: Local) -> None:
    """This includes text that looks like a variable, quotes and empty arguments."""
    words = ("$$", "${x}", "$HOME", "a b", "", "'\"\\", "--x", "--x", "ü\n")
    code = "import sys, json; print(json.dumps(sys.argv[1:]))"
    role = Role("main", "img", entrypoint=sys.executable, args=("-c", code, *words))
    app_id = submit(scheduler, role)
    wait(scheduler, app_id)
    assert json.loads(lines(scheduler, app_id)[0]) == list(words)


def test_two_replicas_rendezvous_over_loopback(scheduler: Local) -> None:
    """`-j 2x2` is one job with 4 workers and the job's token."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = (
        f"{sys.executable} -m relight run --rdzv_backend c10d --rdzv_endpoint "
        f"$${{${{rank0_env}}:=localhost}}:{port} --rdzv_id ${{app_id}} --nnodes 2 "
        "--nproc_per_node 2 --no-python sh -c 'echo $RANK/$WORLD_SIZE $TORCHELASTIC_RUN_ID'"
    )
    app_id = submit(scheduler, shell(command, replicas=2))
    assert wait(scheduler, app_id).state is AppState.SUCCEEDED, lines(scheduler, app_id)
    said = lines(scheduler, app_id, k=0, stream="stdout")
    said += lines(scheduler, app_id, k=1, stream="stdout")
    assert sorted(said) == [f"{rank}/4 {app_id}" for rank in range(4)]
    assert not any("no token" in line for line in lines(scheduler, app_id, stream="stderr"))


def test_two_jobs_using_same_port_run_one_after_the_other(scheduler: Local) -> None:
    """The same user's second job continues once the first one releases the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = (
        f"{sys.executable} -m relight run --rdzv_backend c10d --rdzv_endpoint localhost:{port} "
        "--rdzv_id ${app_id} --nnodes 2 --no-python sh -c "
        "'touch {0}.$RANK; while ! [ -e {0}.end ]; do sleep 0.05; done; echo $RANK'"
    )
    jobs = []
    for name in ("first", "second"):
        jobs.append(submit(scheduler, shell(command.replace("{0}", name), replicas=2)))
        until(lambda n=name: all(Path(f"{n}.{rank}").exists() for rank in (0, 1)))
    for name, app_id in zip(("first", "second"), jobs, strict=True):
        Path(f"{name}.end").touch()
        assert wait(scheduler, app_id).state is AppState.SUCCEEDED, lines(scheduler, app_id)


def test_all_replicas_are_stopped_when_one_fails(scheduler: Local) -> None:
    """The first failure determines the exit code. Child processes are also stopped."""
    marker = f"{os.getpid()}01.25"
    stuck = f"setsid sleep {marker} & sleep {marker}"
    app_id = submit(scheduler, shell(stuck, "a", 2), shell("sleep 0.3; exit 7", "b"))
    status = wait(scheduler, app_id)
    assert status.state is AppState.FAILED
    assert status.exitcode == 7
    assert status.message == "b/0 failed with exit code 7"
    assert [(r.role, r.replica, r.state, r.exitcode) for r in status.replicas] == [
        ("a", 0, AppState.CANCELLED, -15),
        ("a", 1, AppState.CANCELLED, -15),
        ("b", 0, AppState.FAILED, 7),
    ]
    assert marked(marker) == []


FAILS = (
    'until [ -e ready ]; do sleep 0.05; done; printf %s "$PEER" >$TORCHELASTIC_ERROR_FILE; exit 7'
)
IS_STOPPED = (
    "trap 'printf %s \"$OWN\" >$TORCHELASTIC_ERROR_FILE; exit 7' TERM; touch ready; "
    "while :; do sleep 0.05; done"
)
REPORTS = {"OWN": '{"message": "m", "is_own": true}', "PEER": '{"message": "m", "is_own": false}'}


def test_failure_reason_names_the_replica_whose_worker_failed(scheduler: Local) -> None:
    """It isn't always the first one to exit."""
    command = f"if [ ${{replica_id}} = 0 ]; then {FAILS}; else {IS_STOPPED}; fi"
    status = wait(scheduler, submit(scheduler, shell(command, replicas=2, env=REPORTS)))
    assert status.message.startswith("main/1 failed with exit code 7")


def test_worker_failure_of_another_role_is_not_the_reason(scheduler: Local) -> None:
    """Each role is a group of its own."""
    roles = shell(FAILS, "a", env=REPORTS), shell(IS_STOPPED, "b", env=REPORTS)
    status = wait(scheduler, submit(scheduler, *roles))
    assert status.message.startswith("a/0 failed with exit code 7")


def test_status_shows_error_file_of_failed_replica(scheduler: Local) -> None:
    """It is shown on one line."""
    record = {"message": {"message": "ValueError: no\ndata", "extraInfo": {"py_callstack": ""}}}
    command = f"printf %s '{json.dumps(record)}' >$TORCHELASTIC_ERROR_FILE; exit 1"
    status = wait(scheduler, submit(scheduler, shell(command)))
    assert "no data" in status.replicas[0].error
    assert status.message.endswith(status.replicas[0].error)


def test_last_stderr_line_is_reported_as_failure_cause(scheduler: Local) -> None:
    """An error file from the replica would take precedence."""
    role = shell("echo fine; nosuchcommand; sleep 0; echo >&2; exit 127")
    status = wait(scheduler, submit(scheduler, role))
    assert status.replicas[0].error.endswith("nosuchcommand: not found")
    assert status.message.startswith("main/0 failed with exit code 127: ")
    silent = wait(scheduler, submit(scheduler, shell("exit 3")))
    assert (silent.replicas[0].error, silent.message) == ("", "main/0 failed with exit code 3")


def test_replica_killed_by_signal_n_exits_with_128_plus_n(scheduler: Local) -> None:
    status = wait(scheduler, submit(scheduler, shell("kill -KILL $$")))
    assert (status.message, status.exitcode) == ("main/0 failed with SIGKILL", 137)


def test_last_message_of_killed_agent_is_not_reported_as_cause(scheduler: Local) -> None:
    """Any other line it wrote may be."""
    said = "relight: generation 0: 4 workers"
    for line, kept in ((said, ""), ("double free", ": double free")):
        role = shell(f"echo '{line}' >&2; kill -ABRT $$")
        status = wait(scheduler, submit(scheduler, role))
        assert status.message == f"main/0 failed with SIGABRT{kept}"
    status = wait(scheduler, submit(scheduler, shell(f"echo '{said}' >&2; exit 1")))
    assert status.message == f"main/0 failed with exit code 1: {said}"


def test_retry_restarts_whole_job(scheduler: Local) -> None:
    """This is repeated until it succeeds or no retries are left."""
    again = shell("echo try; mkdir seen || exit 0; exit 3", max_retries=5)
    app_id = submit(scheduler, again)
    status = wait(scheduler, app_id)
    assert (status.state, status.restarts) == (AppState.SUCCEEDED, 1)
    assert lines(scheduler, app_id).count("try") == 2
    never = submit(scheduler, shell("echo try; exit 3", max_retries=2))
    status = wait(scheduler, never)
    assert (status.state, status.restarts, status.exitcode) == (AppState.FAILED, 2, 3)
    assert lines(scheduler, never) == ["try"] * 3


def test_followed_logs_appear_while_replica_is_running(scheduler: Local) -> None:
    """Following ends when the replica does."""
    command = "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two; printf three"
    app_id = submit(scheduler, shell(command))
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.extend(_each(scheduler, app_id)))
    reader.start()
    until(lambda: Path("one").exists())
    assert scheduler.status([app_id])[app_id].state is AppState.RUNNING
    Path("go").touch()
    reader.join(LIMIT_S)
    assert seen == ["one", "two", "three"]


def _each(scheduler: Local, app_id: str) -> Iterator[str]:
    for line in scheduler.logs(app_id, LogQuery("main", 0, follow=True)):
        Path(line).touch()
        yield line


def test_job_runs_in_copy_of_workspace(scheduler: Local, tmp_path: Path) -> None:
    """Later changes to the workspace don't affect it."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "main.sh").write_text("while [ ! -e go ]; do sleep 0.02; done; cat data")
    (source / "data").write_text("before")
    app_id = submit(scheduler, shell("touch begun; sh main.sh; pwd"), workspace=str(source))
    (source / "data").write_text("after")
    there = Path(records.path(app_id)) / "workspace"
    (there / "go").touch()
    wait(scheduler, app_id)
    assert lines(scheduler, app_id) == [f"before{there}"]
    assert not (source / "begun").exists()
