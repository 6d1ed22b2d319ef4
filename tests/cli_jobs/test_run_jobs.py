"""Local jobs started by `relight run` are found by name and handled like submitted ones."""

import json
import os
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Start

from relight import __version__
from relight.agent.status.view import _script_name
from relight.base.errors import MachineError
from relight.core.status.snapshot import NodeSnapshot
from relight.host import user_sockets
from relight.job.app import AppState
from relight.processes import running_jobs
from relight.processes.running_jobs import JobDirectory
from relight.runner.lookup import find_job
from relight.schedulers import registry
from relight.schedulers.run.scheduler import Run

pytestmark = pytest.mark.forked

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Find = Callable[..., NodeSnapshot]
COUNTS = """\
import os, time
number = 0
while True:
    number += 1
    print(f"step {number} of rank {os.environ['RANK']}", flush=True)
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("bad batch")
    time.sleep(0.05)
"""
WAITS = "import time\ntime.sleep(600)\n"


@pytest.fixture
def jobs(variables: dict[str, str]) -> JobDirectory:
    return JobDirectory(variables)


@pytest.fixture
def find(jobs: JobDirectory) -> Find:
    """Wait until a job looks as expected."""

    def run(expected: Callable[[NodeSnapshot], bool] = lambda _: True) -> NodeSnapshot:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            for job in (*jobs.running(), *jobs.ended()):
                if expected(job):
                    return job
            time.sleep(0.05)
        raise AssertionError((jobs.running(), jobs.ended()))

    return run


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def last_line_of_rank_1(relight: Command) -> str:
    found = json.loads(relight("status", "--json", "train").stdout)
    return str(found["roles"][0]["replicas"][1]["last_line"])


@pytest.mark.forked(False)  # is found by its command line
def test_status_finds_running_job_by_name_and_shows_its_activity(
    start: Start,
    relight: Command,
    find: Find,
    script: Callable[[str], Path],
    variables: dict[str, str],
) -> None:
    path = script(COUNTS)
    start("run", "--nproc-per-node=2", "--max-restarts=2", path, "--lr", "0.1",
          "--token", "hunter2", variables=variables)  # fmt: skip
    job = find(lambda job: job.restart == 1 and len(job.ranks) == 2)
    until(lambda: "step " in last_line_of_rank_1(relight))
    assert job.name == "train"
    assert job.id == f"train-{job.pid}"
    listed = relight("list").stdout.splitlines()
    assert listed[1].split()[:3] == [f"run://relight/{job.id}", "train", "RUNNING"]
    agents = [line.split()[:2] for line in relight("status").stdout.splitlines()]
    assert [str(job.pid), "train"] in agents
    for name in ("train", job.id, str(job.pid), f"run://relight/{job.id}"):
        text = relight("status", name).stdout
        assert f"{path} --lr 0.1 --token <hidden>: running for " in text
        assert "generation 1: rank 1 raised ValueError: bad batch at" in text
        assert "restarted 1 time" in text
    assert any("step " in line and "rank 1" in line for line in text.splitlines())
    found = json.loads(relight("status", "--json", "train").stdout)
    assert (found["scheduler"], found["state"], found["num_restarts"]) == ("run", "RUNNING", 1)
    assert "rank" in relight("stacks", "train").stdout
    output = relight("logs", "train/default/1").stdout
    assert "step 1 of rank 1" in output
    assert "rank 0" not in output


REPORTS = """\
import time
from relight.worker import report
report(loss=0.5, lr=1e-3)
report(loss=0.3125, bad=float("nan"))
open("up", "w").close()
time.sleep(600)
"""


def test_status_and_top_show_reported_metrics(
    start: Start, relight: Command, script: Callable[[str], Path], variables: dict[str, str]
) -> None:
    path = script(REPORTS)
    start("run", "--name=mine", path, cwd=path.parent, variables=variables)
    until((path.parent / "up").exists)
    until(lambda: relight("status", "mine").returncode == 0)
    (role,) = json.loads(relight("status", "--json", "mine").stdout)["roles"]
    reported = {"loss": 0.3125, "lr": 0.001, "bad": None}
    assert role["replicas"][0]["use"]["reported"] == reported
    assert " loss=0.3125 lr=0.001 bad=nan" in relight("top", "--once", "mine").stdout


SAVES = """\
import time
from relight.worker import should_checkpoint
open("up", "w").close()
while not should_checkpoint():
    time.sleep(0.02)
"""


def test_job_that_saves_a_checkpoint_on_cancel_is_shown_as_cancelled(
    start: Start, relight: Command, script: Callable[[str], Path], variables: dict[str, str]
) -> None:
    path = script(SAVES)
    agent = start("run", path, cwd=path.parent, variables=variables)
    until((path.parent / "up").exists)
    until(lambda: relight("status", str(agent.pid)).returncode == 0)
    assert relight("cancel", str(agent.pid)).stderr.endswith(" CANCELLED\n")
    assert agent.wait(LIMIT_S) == 75


def test_cancel_stops_job_and_keeps_its_result(
    start: Start, relight: Command, find: Find, script: Callable[[str], Path],
    variables: dict[str, str],
) -> None:  # fmt: skip
    agent = start("run", "--name=mine", script(WAITS), variables=variables)
    job = find()
    assert job.name == "mine"
    assert relight("cancel", "mine").stderr == f"relight: run://relight/{job.id} CANCELLED\n"
    assert agent.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert "exit code 143: the agent got SIGTERM" in relight("status", "mine").stdout
    assert relight("wait", "mine").returncode != 0
    assert "(it had already ended)" in relight("cancel", job.id).stderr
    refused = relight("cancel", "mine")
    assert refused.returncode == 2
    assert f"mine has already ended: run://relight/{job.id} is CANCELLED" in refused.stderr
    assert relight("delete", "mine").returncode == 0
    assert "no such job: mine" in relight("status", "mine").stderr
    assert relight("list").stderr == "relight: no jobs\n"


def test_wait_exits_with_job_exit_code(
    start: Start, relight: Command, find: Find, script: Callable[[str], Path],
    variables: dict[str, str],
) -> None:  # fmt: skip
    text = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\n"
    path = script(f"{text}if os.environ['RANK'] == '1':\n    os._exit(7)\ntime.sleep(600)\n")
    agent = start("run", "--nproc-per-node=2", path, cwd=path.parent, variables=variables)
    find()
    (path.parent / "go").touch()
    assert relight("wait", "train").returncode == 7
    assert agent.wait(LIMIT_S) == 7
    states = [line.split()[2] for line in relight("status", "train").stdout.splitlines()[-2:]]
    assert states == ["CANCELLED", "FAILED"]


def test_log_files_are_followed_until_worker_exits(
    start: Start, relight: Command, find: Find, script: Callable[[str], Path], tmp_path: Path,
    variables: dict[str, str],
) -> None:  # fmt: skip
    path = script(
        "import os, time\nprint('first', flush=True)\nwhile not os.path.exists('go'):\n"
        "    time.sleep(0.05)\nprint('last', flush=True)\n"
    )
    start(
        "run",
        f"--log-dir={tmp_path}/logs",
        "--redirects=3",
        path,
        cwd=path.parent,
        variables=variables,
    )
    job = find(lambda job: bool(job.ranks))
    assert job.ranks[0].stdout.startswith(f"{tmp_path}/logs/")
    until(lambda: relight("logs", "train").stdout == "first\n")
    follower = start("logs", "-f", "train", variables=variables)
    (path.parent / "go").touch()
    assert follower.wait(LIMIT_S) == 0
    assert relight("logs", "train", "--regex", "las").stdout == "last\n"


def test_suspended_agent_is_not_mistaken_for_finished_job(
    start: Start,
    find: Find,
    script: Callable[[str], Path],
    variables: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Commands that wait for the job or follow it keep running."""
    start("run", script(WAITS), variables=variables)
    job = find(lambda job: bool(job.ranks))
    monkeypatch.setattr(running_jobs, "_TIMEOUT_S", 0.3)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    jobs = Run()
    os.kill(job.pid, signal.SIGSTOP)
    try:
        status = jobs.status([job.id, "other-1"])
        assert {name: each.state for name, each in status.items()} == {job.id: AppState.RUNNING}
        assert f"its agent (pid {job.pid}) is not responding" in status[job.id].message
        assert [each.app_id for each in jobs.list({})] == [job.id]
        with pytest.raises(MachineError, match="is not responding"):
            jobs.cancel(job.id)
        assert find_job(registry.find, "train").app_id == job.id
    finally:
        os.kill(job.pid, signal.SIGCONT)
    find(lambda job: bool(job.ranks))
    assert jobs.status([job.id])[job.id].replicas


def test_waiting_job_has_no_workers_and_no_events(
    start: Start, relight: Command, find: Find, script: Callable[[str], Path], tmp_path: Path,
    variables: dict[str, str],
) -> None:  # fmt: skip
    alone = ("--nnodes=2", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path / 'meet'}")
    agent = start("run", *alone, script(WAITS), variables=variables)
    job = f"run://relight/{find().id}"
    assert f"{job} has not started any worker yet\n" in relight("logs", job).stderr
    events = relight("events", job)
    assert events.stdout == ""
    said = (
        f"relight: {job} hasn't recorded any events yet because this node has not run any workers"
    )
    assert events.stderr.splitlines() == [said]
    agent.terminate()
    agent.wait(LIMIT_S)
    assert f"{job} had no workers when it ended\n" in relight("logs", job).stderr


def test_killed_agent_leaves_no_job_entry(
    start: Start, relight: Command, find: Find, script: Callable[[str], Path], jobs: JobDirectory,
    variables: dict[str, str],
) -> None:  # fmt: skip
    start("run", script(WAITS), variables=variables)
    os.kill(find().pid, signal.SIGKILL)
    deadline = time.monotonic() + LIMIT_S
    while relight("list").stderr != "relight: no jobs\n" or os.listdir(jobs.path):
        assert time.monotonic() < deadline


def test_agent_ignores_garbage_and_foreign_uids(
    start: Start, relight: Command, find: Find, script: Callable[[str], Path], jobs: JobDirectory,
    variables: dict[str, str],
) -> None:  # fmt: skip
    start("run", script(WAITS), variables=variables)
    job = find()
    assert stat.S_IMODE(os.stat(os.path.dirname(jobs.path)).st_mode) == 0o700

    def connected() -> socket.socket:
        client = user_sockets.connect(os.path.join(jobs.path, f"{job.id}.sock"), LIMIT_S)
        assert client is not None
        return client

    for data in (
        b"nonsense\n",
        b"{}\n",
        b'{"local_rank": 99, "stream": "stdout"}\n',
        b"x" * 9000,
        b"",
    ):
        with connected() as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            try:
                assert client.recv(100) == b""
            except ConnectionResetError:
                pass
    silent = [connected() for _ in range(16)]
    assert find(lambda each: each.id == job.id)
    for client in silent:
        client.close()
    assert "RUNNING" in relight("status", job.id).stdout


def test_agents_of_submitted_job_are_not_listed_separately(
    submitted: Callable[..., str], relight: Command, script: Callable[[str], Path],
    jobs: JobDirectory,
) -> None:  # fmt: skip
    handle = submitted("dist.ddp", "-j", "1x1", "--script", script("import time\ntime.sleep(2)\n"))
    assert relight("wait", handle).returncode == 0
    assert not os.listdir(jobs.path)


@pytest.mark.parametrize("name", ["", "-x", ".x", "a b", "a/b", "ä", "x" * 61])
def test_invalid_job_name_is_rejected(relight: Command, name: str) -> None:
    found = relight("run", f"--name={name}", "train.py")
    assert found.returncode == 2
    assert "--name" in found.stderr


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train"), ("/srv/a b/train.v2.py", "train.v2"), ("package.train", "train"),
        ("./run.sh", "run.sh"), ("bash", "bash"), ("größe.py", "gr--e"), ("...", "job"),
        ("x" * 99, "x" * 60),
    ],
)  # fmt: skip
def test_job_name_defaults_to_script_name(script: str, name: str) -> None:
    assert _script_name(script) == name


def test_records_of_last_hundred_ended_jobs_are_kept(jobs: JobDirectory) -> None:
    one = NodeSnapshot(
        "x-1", "x", 1, "vm", "id", ("x.py",), "/", "default", 0.0, 0.0, "ended", 0, 0, 0, "start",
        0, 1, 1, 0, "", "", (),
    )  # fmt: skip
    for number in range(103):
        jobs.keep(one._replace(id=f"x-{number}", taken=float(number)))
        os.utime(os.path.join(jobs.path, f"x-{number}.json"), (number, number))
    jobs.keep(one._replace(id="x-last", taken=1000.0))
    kept = [job.id for job in jobs.ended()]
    assert kept[0] == "x-last"
    assert len(kept) == 100
    assert "x-4" in kept
    assert "x-3" not in kept


def test_access_token_of_killed_status_page_is_removed(jobs: JobDirectory) -> None:
    """A token file is removed only if neither the page nor the job exists, because the page's pid
    may be from another container.
    """
    folder, no_pid = Path(jobs.path), 1 << 23
    for name in (f"gone-1.{no_pid}.token", f"runs-1.{no_pid}.token", "runs-1.sock"):
        (folder / name).write_text("x")
    path = jobs.make_token("mine-1", "secret")
    assert Path(path).read_text() == "secret"
    assert Path(path).stat().st_mode & 0o777 == 0o600
    names = {each.name for each in folder.iterdir()}
    assert names == {Path(path).name, f"runs-1.{no_pid}.token", "runs-1.sock"}
    jobs.remove_token(path)
    assert not Path(path).exists()


@pytest.mark.parametrize(
    ("named", "theirs"),
    [({"version": "9.8.7"}, "relight 9.8.7"), ({}, "another version of relight")],
)
def test_error_names_agent_with_incompatible_version(
    named: dict[str, str], theirs: str, jobs: JobDirectory, relight: Command
) -> None:
    """This version can't read the format of the agent's snapshot."""
    job = f"train-{os.getpid()}"
    answer = json.dumps({"type": "nodesnapshot", "ident": job, **named}).encode()
    path = os.path.join(jobs.path, f"{job}.sock")
    listener = user_sockets.listen(path)
    listener.setblocking(True)

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                if not connection.recv(100):
                    return
                connection.sendall(answer)

    serving = threading.Thread(target=serve)
    serving.start()
    why = f"runs {theirs}, whose responses relight {__version__} can't read"
    try:
        shown = relight("status", job)
        assert (shown.returncode, "RUNNING" in shown.stdout) == (0, True)
        assert why in shown.stdout
        assert why in relight("logs", job).stderr
        for command in ("events", "cancel"):
            refused = relight(command, job)
            assert refused.returncode == 4
            assert why in refused.stderr
            assert "use the relight command of that version" in refused.stderr
        assert f"run://relight/{job}" in relight("list").stdout
    finally:
        if (last := user_sockets.connect(path, LIMIT_S)) is not None:
            last.close()
        serving.join(LIMIT_S)
        listener.close()


def test_job_snapshot_from_previous_version_is_readable(jobs: JobDirectory) -> None:
    """Missing fields get defaults, and removed ones are ignored."""
    path = Path(__file__).parent / "recorded" / "snapshot-0.1.0.json"
    (Path(jobs.path) / "train-4711.json").write_text(path.read_text())
    job = jobs.find("train-4711")
    assert job is not None
    assert (job.name, job.state, job.exit_code, len(job.ranks)) == ("train", "ended", 0, 2)
