"""Jobs on this machine: replicas are started and ended together, and nothing is left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import clean_environment
from test_orphans import marked, wait_until_gone

from relight.errors import UsageError
from relight.host import devices
from relight.host.devices import Device
from relight.job import records
from relight.job.app import AppDef, AppState, BindMount, Resource, Role
from relight.schedulers import local
from relight.schedulers.api import AppStatus, LogQuery, Request
from relight.schedulers.local import Local, make

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the jobs of a test are recorded; the tests' own variables are out of the way."""
    for name in [n for n in os.environ if n.startswith(("PET_", "TORCHELASTIC_", "RELIGHT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RELIGHT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return tmp_path / "state"


@pytest.fixture
def scheduler() -> Iterator[Local]:
    """The scheduler; its jobs end with the test."""
    scheduler = make()
    yield scheduler
    scheduler.close()


def shell(command: str, name: str = "main", replicas: int = 1, **fields: Any) -> Role:
    """A role that runs a command in a shell."""
    args = ("-c", command)
    return Role(name, "img", entrypoint="sh", args=args, num_replicas=replicas, **fields)


def render(scheduler: Local, *roles: Role, **cfg: Any) -> Request:
    """What would be done for these roles."""
    defaults = {option.name: option.default for option in scheduler.options}
    return scheduler.render(AppDef("job", roles), {**defaults, **cfg}, records.new_id("job"))


def submit(scheduler: Local, *roles: Role, **cfg: Any) -> str:
    """Start these roles as a job; return its id."""
    return scheduler.submit(render(scheduler, *roles, **cfg))


def until(condition: Callable[[], Any]) -> Any:
    """Wait until something is true, and return it."""
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)
    return value


def wait(scheduler: Local, app_id: str) -> AppStatus:
    """Wait until a job is over."""
    return until(lambda: (s := scheduler.status([app_id])[app_id]).state.is_over and s)


def lines(scheduler: Local, app_id: str, role: str = "main", k: int = 0, **query: Any) -> list[str]:
    """The lines of a replica."""
    return list(scheduler.logs(app_id, LogQuery(role, k, **query)))


def files_below(path: Path) -> list[str]:
    return sorted(str(p) for p in path.rglob("*"))


# What would be done.


def test_a_request_has_torchx_s_keys(scheduler: Local, tmp_path: Path) -> None:
    """The request has the parts of local_cwd's: commands, environments, files of all replicas."""
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
    assert path.index("/usr/bin") < path.index(cwd), "what is in the directory goes before no tool"
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


def test_a_dry_run_leaves_no_trace(scheduler: Local, tmp_path: Path) -> None:
    """Rendering makes no file and no directory."""
    before = files_below(tmp_path)
    render(scheduler, shell("true"), log_dir=str(tmp_path / "logs"), workspace=str(tmp_path))
    render(scheduler, shell("true"))
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "local", "torchelastic", "workspace"])
def test_names_that_are_no_directories(scheduler: Local, name: str) -> None:
    """A role whose name can't be that of its directory is refused."""
    with pytest.raises(UsageError, match="can't be the name of a directory"):
        render(scheduler, shell("true", name))


def test_two_roles_of_one_name(scheduler: Local) -> None:
    """Two roles with the same name are refused."""
    with pytest.raises(UsageError, match="two roles have the name main"):
        render(scheduler, shell("true"), shell("false"))


def test_what_has_no_effect_is_said(scheduler: Local) -> None:
    """Mounts, and GPUs that several replicas share, are noted."""
    gpus = shell("true", replicas=2, resource=Resource(1, 2, 3), mounts=(BindMount("/a", "/b"),))
    notes = render(scheduler, gpus).notes
    assert [note.split(" ")[0] for note in notes] == ["mounts", "each"]
    assert render(scheduler, shell("true")).notes == ()


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, ["0,1", "2,3", ""]), ("4,6,7,5", ["4,6", "7,5", ""])]
)
def test_each_replica_has_gpus_of_its_own(
    scheduler: Local, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[str]
) -> None:
    """With the option, GPUs are dealt out over roles and replicas, out of those that we may use."""
    monkeypatch.setattr(devices, "gpus", lambda env: [Device(n, "") for n in range(4)])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    roles = shell("true", "a", 2, resource=Resource(1, 2, 3)), shell("true", "b")
    params = render(scheduler, *roles, auto_set_cuda_visible_devices=True).body["role_params"]
    assert [r["env"]["CUDA_VISIBLE_DEVICES"] for r in [*params["a"], *params["b"]]] == expected


def test_too_few_gpus(scheduler: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are fewer GPUs than asked for, nothing is set, and a note says so."""
    monkeypatch.setattr(devices, "gpus", lambda env: [Device(0, "")])
    role = shell("true", replicas=2, resource=Resource(1, 1, 1))
    request = render(scheduler, role, auto_set_cuda_visible_devices=True)
    assert "CUDA_VISIBLE_DEVICES" not in request.body["role_params"]["main"][0]["env"]
    assert request.notes == ("2 GPUs are asked for, 1 are here: each replica sees all",)


# Running.


def test_streams_are_kept_apart_and_together(scheduler: Local) -> None:
    """Each replica has its logs: stdout, stderr, and both in the order of writing."""
    command = "echo out$RELIGHT_RANK0_HOST; sleep 0.2; echo err >&2; sleep 0.2; printf 'caf\\351'"
    app_id = submit(scheduler, shell(command, replicas=2))
    status = wait(scheduler, app_id)
    assert status.state is AppState.SUCCEEDED and status.exitcode == 0
    for k in (0, 1):
        assert lines(scheduler, app_id, k=k, stream="stdout") == ["outlocalhost", "caf\ufffd"]
        assert lines(scheduler, app_id, k=k, stream="stderr") == ["err"]
        assert lines(scheduler, app_id, k=k) == ["outlocalhost", "err", "caf\ufffd"]


def test_arguments_arrive_verbatim(scheduler: Local) -> None:
    """What looks like a variable, a quote or nothing at all reaches the program."""
    words = ("$$", "${x}", "$HOME", "a b", "", "'\"\\", "--x", "--x", "ü\n")
    code = "import sys, json; print(json.dumps(sys.argv[1:]))"
    role = Role("main", "img", entrypoint=sys.executable, args=("-c", code, *words))
    app_id = submit(scheduler, role)
    wait(scheduler, app_id)
    assert json.loads(lines(scheduler, app_id)[0]) == list(words)


def test_two_replicas_meet_over_loopback(scheduler: Local) -> None:
    """`-j 2x2` is one job of 4 workers, with the token of the job."""
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


def test_all_end_when_one_fails(scheduler: Local) -> None:
    """The first failure ends the job, with its exit code; the rest is stopped, children too."""
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


def test_the_cause_is_told(scheduler: Local) -> None:
    """What a replica wrote to its error file is in its status, in one line."""
    record = {"message": {"message": "ValueError: no\ndata", "extraInfo": {"py_callstack": ""}}}
    command = f"printf %s '{json.dumps(record)}' >$TORCHELASTIC_ERROR_FILE; exit 1"
    status = wait(scheduler, submit(scheduler, shell(command)))
    assert "no data" in status.replicas[0].error
    assert status.message.endswith(status.replicas[0].error)


def test_a_killed_replica(scheduler: Local) -> None:
    """An end by a signal is told, and counts 128 + n."""
    status = wait(scheduler, submit(scheduler, shell("kill -KILL $$")))
    assert (status.message, status.exitcode) == ("main/0 failed with SIGKILL", 137)


def test_tried_again(scheduler: Local) -> None:
    """A job with retries runs again as a whole, until it succeeds or none is left."""
    again = shell("echo try; mkdir seen || exit 0; exit 3", max_retries=5)
    app_id = submit(scheduler, again)
    status = wait(scheduler, app_id)
    assert (status.state, status.restarts) == (AppState.SUCCEEDED, 1)
    assert lines(scheduler, app_id).count("try") == 2
    never = submit(scheduler, shell("echo try; exit 3", max_retries=2))
    status = wait(scheduler, never)
    assert (status.state, status.restarts, status.exitcode) == (AppState.FAILED, 2, 3)
    assert lines(scheduler, never) == ["try"] * 3


def test_following(scheduler: Local) -> None:
    """Lines come while the replica runs, and end with it."""
    command = "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two; printf three"
    app_id = submit(scheduler, shell(command))
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.extend(_each(scheduler, app_id)))
    reader.start()
    until(lambda: Path("one").exists())
    assert scheduler.status([app_id])[app_id].state is AppState.RUNNING
    Path("go").touch()
    reader.join(PATIENCE_S)
    assert seen == ["one", "two", "three"]


def _each(scheduler: Local, app_id: str) -> Iterator[str]:
    for line in scheduler.logs(app_id, LogQuery("main", 0, follow=True)):
        Path(line).touch()
        yield line


def test_a_workspace_travels(scheduler: Local, tmp_path: Path) -> None:
    """A copy of the workspace is where the job runs; changes afterwards don't matter."""
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


# Ends.


def test_cancelling(scheduler: Local) -> None:
    """A cancelled job is over when the call returns, with all that it had started."""
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


def test_one_that_will_not_stop(scheduler: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that ignores SIGTERM is killed after the grace time."""
    monkeypatch.setattr(local, "GRACE_S", 0.3)
    app_id = submit(scheduler, shell("trap '' TERM; touch up; while :; do sleep 0.1; done"))
    until(lambda: Path("up").exists())
    scheduler.cancel(app_id)
    assert scheduler.status([app_id])[app_id].replicas[0].exitcode == -9


def test_jobs_that_are_not_there(scheduler: Local) -> None:
    """An unknown id has no status, and nothing of it can be done."""
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


def test_a_command_that_is_not_there(scheduler: Local, state: Path) -> None:
    """It is refused before anything starts, and nothing is left of the job."""
    request = render(scheduler, Role("main", "img", entrypoint="nosuchcommand"))
    with pytest.raises(UsageError, match="the command of main/0, nosuchcommand, is not there"):
        scheduler.submit(request)
    assert files_below(state) == []


def test_logs_that_cannot_be_written(scheduler: Local, tmp_path: Path, state: Path) -> None:
    """A log directory that can't be made is one line for the user, and no job."""
    (tmp_path / "file").touch()
    request = render(scheduler, shell("true"), log_dir=str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"can't write logs to .*: Not a directory"):
        scheduler.submit(request)
    assert scheduler.list() == []


def test_a_request_is_submitted_once(scheduler: Local) -> None:
    """The second submission of a request is refused, and the first goes on."""
    request = render(scheduler, shell("sleep 0.5; echo once"))
    app_id = scheduler.submit(request)
    with pytest.raises(UsageError, match="was submitted before"):
        scheduler.submit(request)
    assert wait(scheduler, app_id).state is AppState.SUCCEEDED
    assert lines(scheduler, app_id) == ["once"]


def test_deleting(scheduler: Local, tmp_path: Path) -> None:
    """Nothing is left of a deleted job, wherever its logs were."""
    app_id = submit(scheduler, shell("sleep 100"), log_dir=str(tmp_path / "logs"))
    other = submit(scheduler, shell("true"))
    wait(scheduler, other)
    assert [each.app_id for each in scheduler.list()] == [other, app_id]
    scheduler.delete(app_id)
    assert [each.app_id for each in scheduler.list()] == [other]
    assert not any(app_id in path for path in files_below(tmp_path))


def test_secrets_stay_in_the_processes(scheduler: Local, tmp_path: Path) -> None:
    """The value of a variable is in no file of the job and in no command line."""
    secret = "hunter" + os.urandom(4).hex()
    submit(scheduler, shell("touch up; sleep 100", env={"TOKEN": secret}), log_dir=str(tmp_path))
    until(lambda: Path("up").exists())
    assert marked(secret) == []
    found = [p for p in tmp_path.rglob("*") if p.is_file() and secret in p.read_text("latin-1")]
    assert found == []


# Whoever submitted it.

SUBMITTER = """
import sys, time
from relight.job.app import AppDef, Role
from relight.schedulers.local import make
scheduler = make()
role = Role("main", "img", entrypoint="sh", args=("-c", sys.argv[2]), num_replicas=2)
cfg = {"detach": sys.argv[1] == "detach"}
print(scheduler.submit(scheduler.render(AppDef("job", (role,)), cfg, "job-x1")), flush=True)
time.sleep(float(sys.argv[3]))
"""


def start(how: str, command: str, lifetime_s: float) -> "subprocess.Popen[str]":
    """Start a process that submits a job, and wait until it has."""
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


def test_a_detached_job_lives_on(scheduler: Local) -> None:
    """With `detach` the job outlives the process that submitted it; others see it to its end."""
    process = start("detach", "while [ ! -e go ]; do sleep 0.02; done; echo done", 0)
    assert process.wait(PATIENCE_S) == 0
    assert scheduler.status(["job-x1"])["job-x1"].state is AppState.RUNNING
    Path("go").touch()
    assert lines(scheduler, "job-x1", k=1, follow=True) == ["done"]
    assert wait(scheduler, "job-x1").state is AppState.SUCCEEDED


def test_a_held_job_ends_with_its_submitter(scheduler: Local) -> None:
    """Without it the job ends when the process is gone, even by SIGKILL, and nothing is left."""
    marker = f"{os.getpid()}03.25"
    process = start("hold", f"setsid sleep {marker} & sleep {marker}", 100)
    until(lambda: len(marked(marker)) >= 4)
    process.kill()
    process.wait(PATIENCE_S)
    status = wait(scheduler, "job-x1")
    assert status.state is AppState.CANCELLED
    assert status.message == "the command that it belonged to ended"
    wait_until_gone(marker, PATIENCE_S)


def test_closing_ends_held_jobs(scheduler: Local) -> None:
    """Closing the scheduler ends what it holds, and returns when that is over."""
    marker = f"{os.getpid()}04.25"
    app_id = submit(scheduler, shell(f"sleep {marker}"))
    scheduler.close()
    assert marked(marker) == []
    assert scheduler.status([app_id])[app_id].state is AppState.CANCELLED


def test_a_killed_runner(scheduler: Local) -> None:
    """If the process that runs a job is killed, so are the replicas, and the status says it."""
    marker = f"{os.getpid()}05.25"
    app_id = submit(scheduler, shell(f"setsid sleep {marker} & sleep {marker}"), detach=True)
    until(lambda: len(marked(marker)) >= 2)
    file = Path(records.path(app_id)) / "local" / "state.json"
    os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)
    wait_until_gone(marker, PATIENCE_S)
    status = wait(scheduler, app_id)
    assert status.state is AppState.FAILED and "was killed" in status.message
    scheduler.cancel(app_id)
