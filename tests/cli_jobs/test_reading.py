"""Commands that report on jobs: status, logs, wait, list, describe."""

import json
import os
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S, long

from .conftest import Command

pytestmark = pytest.mark.forked

Submitted = Callable[..., str]
Ended = Callable[..., dict[str, Any]]
SAY = "echo out $0; echo err $0 >&2; echo loss 1; echo loss 2"
TWO_ROLES = """
import relight.job as specs

def app():
    def role(name, n):
        text = f"echo {name} {specs.macros.replica_id}; echo bad >&2"
        return specs.Role(name, "", entrypoint="sh", args=["-c", text], num_replicas=n)
    return specs.AppDef("two", [role("trainer", 2), role("reader", 1)])
"""


@pytest.fixture
def two(place: Path, ended: Ended) -> str:
    """Return the handle of a finished job with two roles."""
    (place / "two.py").write_text(TWO_ROLES)
    return str(ended("two.py:app")["handle"])


def test_status_shows_job_state_and_one_line_per_replica(relight: Command, two: str) -> None:
    """The job can be named by handle, by id, or with TorchX's scheduler name."""
    app_id = two.rpartition("/")[2]
    for name in (two, app_id, two.replace("local://relight", "local_cwd://torchx")):
        found = relight("status", name)
        assert (found.returncode, found.stderr) == (0, "")
        head, logs, empty, heads, *rows = found.stdout.splitlines()
        assert head.endswith(f"{app_id} SUCCEEDED")
        assert (logs.startswith("  logs: file:///"), empty) == (True, "")
        assert heads.split() == ["REPLICA", "STATE", "EXIT", "HOST", "ERROR"]
        assert [row.split()[:3] for row in rows] == [
            ["trainer/0", "SUCCEEDED", "0"],
            ["trainer/1", "SUCCEEDED", "0"],
            ["reader/0", "SUCCEEDED", "0"],
        ]


@pytest.mark.forked(False)  # is found by its command line
def test_status_without_job_lists_local_agents(
    relight: Command,
    start: Callable[..., "subprocess.Popen[bytes]"],
    script: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """There is one line per agent, or one JSON object with --json."""
    text = "import json, time\nprint('up', flush=True)\ntime.sleep(600)"
    job = start("run", "--rdzv-id=mine", "--preload=json", "-v", script(text))
    assert job.stdout is not None and job.stderr is not None
    assert job.stdout.readline() == b"up\n"
    while b"is ready" not in job.stderr.readline():
        pass
    found = relight("status")
    assert (found.returncode, found.stderr) == (0, "")
    heads, *rows = found.stdout.splitlines()
    assert heads.split() == ["PID", "NAME", "RUN", "ID", "WORKERS", "SINCE", "MEMORY", "PRELOADED"]
    (row,) = [row.split() for row in rows if row.startswith(f"{job.pid} ")]
    assert (row[1:3], row.count("MiB")) == (["mine", "1"], 2)
    late = start("run", "--nnodes=2", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}",
                 "--rdzv_id", "late", script(text))  # fmt: skip
    assert late.stderr is not None
    while b"node" not in late.stderr.readline():
        pass
    rows = relight("status").stdout.splitlines()
    (row,) = [row.split() for row in rows if row.startswith(f"{late.pid} ")]
    assert row[1:3] == ["late", "none"]
    (one,) = [a for a in json.loads(relight("status", "--json").stdout) if a["pid"] == job.pid]
    assert (one["run_id"], len(one["workers"])) == ("mine", 1)
    assert 0 < one["warm_spawner"]["memory"] < one["memory"]
    wrong = relight("status", "--roles", "trainer")
    assert (wrong.returncode, wrong.stderr.splitlines()[0]) == (
        2,
        "relight: error: --roles needs a job",
    )


def test_status_json_prints_one_object(relight: Command, two: str) -> None:
    """The object contains the whole status. --roles leaves out the other roles."""
    found = json.loads(relight("status", "--json", two).stdout)
    assert (found["handle"], found["state"], found["exitcode"]) == (two, "SUCCEEDED", 0)
    assert [(role["role"], len(role["replicas"])) for role in found["roles"]] == [
        ("trainer", 2), ("reader", 1)
    ]  # fmt: skip
    found = json.loads(relight("status", two, "--json", "--roles", "reader").stdout)
    assert [role["role"] for role in found["roles"]] == ["reader"]
    wrong = relight("status", two, "--roles", "raeder")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.splitlines()[1] == "hint: it has reader, trainer"


def test_status_of_failed_job_shows_reason(relight: Command, ended: Ended) -> None:
    status = ended("utils.sh", "sh", "-c", "exit 7")
    found = relight("status", status["handle"])
    assert found.returncode == 0
    assert "FAILED\n  sh/0 failed with exit code 7\n" in found.stdout


def test_logs_of_one_replica_have_no_prefix(relight: Command, ended: Ended) -> None:
    handle = ended("utils.sh", "sh", "-c", SAY)["handle"]
    found = relight("logs", handle)
    assert (found.returncode, found.stderr) == (0, "")
    assert sorted(found.stdout.splitlines()) == ["err sh", "loss 1", "loss 2", "out sh"]
    assert relight("logs", handle, "--streams", "stderr").stdout == "err sh\n"
    assert relight("logs", "--streams=stdout", handle).stdout == "out sh\nloss 1\nloss 2\n"
    assert relight("logs", handle, "--regex", r"loss \d$").stdout == "loss 1\nloss 2\n"
    assert relight("logs", handle, "--regex", "nothing").stdout == ""
    assert relight("logs", f"{handle}/sh/0", "--regex", "out").stdout == "out sh\n"
    assert relight("logs", handle, "--tail", "2", "--streams=stdout").stdout == "loss 1\nloss 2\n"
    assert relight("logs", "-f", "-n1", handle, "--regex", "loss").stdout == "loss 2\n"
    assert relight("logs", "--tail=9", handle, "--regex", "loss").stdout == "loss 1\nloss 2\n"
    assert "relight logs needs one job" in relight("logs", "--tail", "3").stderr


def test_logs_of_several_replicas_are_prefixed(relight: Command, two: str) -> None:
    """A single replica's lines aren't prefixed."""
    only = ("--streams", "stdout")
    assert sorted(relight("logs", two, *only).stdout.splitlines()) == [
        "reader/0 reader 0", "trainer/0 trainer 0", "trainer/1 trainer 1"
    ]  # fmt: skip
    for words in ((f"{two}/reader",), (two, "--role", "reader"), (f"{two}/reader/0",)):
        assert relight("logs", *words, *only).stdout == "reader 0\n"
    for words in ((f"{two}/trainer/1",), (two, "--role", "trainer", "--replica", "1")):
        assert relight("logs", *words, *only).stdout == "trainer 1\n"
    found = relight("logs", f"{two}/trainer/0,1", *only, "--json").stdout.splitlines()
    assert [json.loads(line) for line in found] == [
        {"role": "trainer", "replica": number, "line": f"trainer {number}"} for number in (0, 1)
    ]


@pytest.mark.parametrize("flag", ["-f", long("--follow"), "--tail", long("-t")])
def test_logs_follow_flag_returns_immediately_for_finished_job(
    relight: Command, two: str, flag: str
) -> None:
    found = relight("logs", flag, two, "--streams", "stdout")
    assert len(found.stdout.splitlines()) == 3
    assert relight("logs", flag, f"{two}/reader", "--streams", "stdout").stdout == "reader 0\n"


@pytest.mark.parametrize("count", [1, 2])
def test_logs_follow_flag_stops_when_the_job_ends(
    start: Callable[..., "subprocess.Popen[bytes]"],
    submitted: Submitted,
    relight: Command,
    place: Path,
    variables: dict[str, str],
    count: int,
) -> None:
    """Lines appear as they are written."""
    text = "echo first; until [ -e go ]; do sleep 0.05; done; echo last"
    handle = submitted("utils.sh", "--num_replicas", str(count), "sh", "-c", text)
    process = start("logs", "-f", handle, cwd=place, variables=variables)
    head = ["sh/0 ", "sh/1 "] if count == 2 else [""]
    first = sorted(process.stdout.readline().decode() for _ in head)
    assert first == [f"{each}first\n" for each in head]
    assert process.poll() is None
    (place / "go").touch()
    rest, said = process.communicate(timeout=LIMIT_S)
    assert sorted(rest.decode().splitlines()) == [f"{each}last" for each in head]
    assert (process.returncode, said) == (0, b"")
    assert relight("wait", handle).returncode == 0


def test_logs_command_exits_silently_when_reader_closes_the_pipe(
    relight: Command, two: str, variables: dict[str, str]
) -> None:
    """`relight logs | head -1` prints no error."""
    import sys

    command = f"{sys.executable} -m relight logs {two} | head -1"
    found = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=LIMIT_S, check=True,
        env={**os.environ, **variables},
    )  # fmt: skip
    assert (len(found.stdout.splitlines()), found.stderr) == (1, "")


def test_wait_exits_with_job_exit_code_or_times_out(
    relight: Command, submitted: Submitted, ended: Ended, place: Path
) -> None:
    """After a timeout it exits with 124, and the job keeps running."""
    handle = submitted("utils.sh", "sh", "-c", "until [ -e go ]; do sleep 0.05; done; exit 5")
    late = relight("wait", "--timeout", "0.3", handle)
    assert (late.returncode, late.stdout) == (124, "")
    assert late.stderr == f"relight: {handle} is RUNNING after 0.3 s\n"
    late = relight("wait", "--timeout=0", "--json", handle)
    assert (late.returncode, json.loads(late.stdout)["state"]) == (124, "RUNNING")
    (place / "go").touch()
    found = relight("wait", handle)
    assert (found.returncode, found.stdout) == (5, "")
    assert found.stderr.startswith(f"relight: {handle} FAILED: ")
    found = relight("wait", handle, "--json")
    assert (found.returncode, json.loads(found.stdout)["exitcode"]) == (5, 5)


def test_list_shows_running_and_ended_jobs_newest_first(
    relight: Command, ended: Ended, submitted: Submitted
) -> None:
    """The list is printed as a table or as JSON."""
    assert relight("list").stderr == "relight: no jobs\n"
    assert relight("list", "--json").stdout == "[]\n"
    bad = ended("utils.sh", "false")["handle"]
    running = submitted("utils.sh", "sleep", "300")
    good = ended("utils.echo")["handle"]
    found = relight("list")
    assert [line.split()[:3] for line in found.stdout.splitlines()] == [
        ["JOB", "NAME", "STATE"],
        [good, "echo", "SUCCEEDED"],
        [running, "sh", "RUNNING"],
        [bad, "sh", "FAILED"],
    ]
    assert found.stderr == ""
    shown = json.loads(relight("list", "--json").stdout)
    assert [job["handle"] for job in shown] == [good, running, bad]
    assert all(datetime.fromisoformat(job["submitted"]) for job in shown)
    only = relight("list", "--json", "--state", "RUNNING", "-s", "local_cwd").stdout
    assert [job["handle"] for job in json.loads(only)] == [running]
    assert json.loads(relight("list", "--json", "-s", "slurm", PATH="/none").stdout or "[]") == []
    relight("delete", running)


def test_list_hides_older_ended_jobs(relight: Command, ended: Ended, tmp_path: Path) -> None:
    handle = ended("utils.echo")["handle"]
    assert relight("status", handle).returncode == 0  # the command that asks records how it ended
    jobs = tmp_path / "state" / "jobs"
    (folder,) = jobs.iterdir()
    text = (folder / "job.json").read_text()
    for number in range(11):
        (jobs / f"echo-old{number}").mkdir()
        (jobs / f"echo-old{number}" / "job.json").write_text(
            text.replace(folder.name, f"echo-old{number}")
        )
    found = relight("list")
    assert len(found.stdout.splitlines()) == 1 + 10
    assert found.stderr == "relight: 2 older jobs hidden; relight list --all shows them\n"
    every = relight("list", "--all")
    assert (len(every.stdout.splitlines()), every.stderr) == (1 + 12, "")
    assert len(json.loads(relight("list", "--json").stdout)) == 12


def test_job_forgotten_by_scheduler_is_still_listed(
    relight: Command, ended: Ended, tmp_path: Path
) -> None:
    import shutil

    handle = ended("utils.sh", "sh", "-c", "exit 4")["handle"]
    folder = tmp_path / "state" / "jobs" / handle.rpartition("/")[2]
    record = json.loads((folder / "job.json").read_text())
    assert relight("status", handle).returncode == 0  # the command that asks records how it ended
    record = json.loads((folder / "job.json").read_text())
    yesterday = datetime.now().astimezone() - timedelta(days=1)
    record["submitted"] = yesterday.isoformat(timespec="milliseconds")
    (folder / "job.json").write_text(json.dumps(record))
    shutil.rmtree(folder / "local")
    today = ended("utils.echo")["handle"]
    shown = json.loads(relight("list", "--json").stdout)
    assert [(job["handle"], job["state"]) for job in shown] == [
        (today, "SUCCEEDED"), (handle, "FAILED")
    ]  # fmt: skip
    found = relight("status", handle)
    why = "sh/0 failed with exit code 4"
    assert found.stdout == f"{handle} FAILED\n  {why}; its scheduler no longer knows it\n"
    assert [job["message"] for job in shown] == ["", why]
    assert "command" in relight("describe", handle).stdout


def test_describe_shows_submitted_command_and_user(relight: Command, place: Path) -> None:
    """`describe` also shows the directory and the commit."""
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    (place / "train.py").write_text("print('x')\n")
    for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-q", "-m", "x")):
        subprocess.run([*git, *words], cwd=place, check=True)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=place, check=True, capture_output=True, text=True
    ).stdout.strip()
    handle = relight("submit", "utils.python", "--script", "train.py", "--", "a b").stdout.strip()
    found = relight("describe", handle)
    assert (found.returncode, found.stderr) == (0, "")
    text = found.stdout
    assert text.startswith(f"{handle} SUCCEEDED\n  commit     {commit[:12]} on main\n")
    assert f"  directory  {place}\n" in text
    assert "  command    utils.python --script train.py -- 'a b'\n" in text
    assert "role python: 1 replica\n" in text
    assert "  runs       python train.py 'a b'\n" in text
    assert "  each has   1 core, 0 GPUs, 1024 MiB\n" in text
    record = json.loads(relight("describe", "--json", handle).stdout)
    submitted = f"{datetime.fromisoformat(record['submitted']).astimezone():%F %T%z}"
    assert f"  submitted  {submitted} by " in text
    assert submitted in relight("list").stdout
    assert record["git"] == {"commit": commit, "branch": "main", "dirty": False}
    assert record["app"]["roles"][0]["args"] == ["train.py", "a b"]


def test_describe_expands_macros(relight: Command, submitted: Submitted) -> None:
    """The record keeps the macros, so that the job can be submitted again."""
    handle = submitted(
        "utils.sh", "--num_replicas=2", "echo", "${app_id}", "${replica_id}", "$${${rank0_env}:=x}"
    )
    text = relight("describe", handle).stdout
    app_id = handle.strip().rpartition("/")[2]
    runs = next(line for line in text.splitlines() if line.startswith("  runs "))
    assert app_id in runs and "0..1" in runs and "${RELIGHT_RANK0_HOST:=x}" in runs
    assert "${app_id}" not in runs
    record = json.loads(relight("describe", "--json", handle).stdout)
    assert "${app_id}" in " ".join(record["app"]["roles"][0]["args"])


SECRET = "hunter2"


def test_secrets_are_never_stored_or_shown(
    relight: Command, submitted: Submitted, tmp_path: Path
) -> None:
    """The job receives them, but no command, record or process list contains them."""
    handle = submitted(
        "utils.sh", "--env", f"HF_TOKEN={SECRET},A=1", "sh", "-c",
        'test "$HF_TOKEN" = hunter2 && echo right; sleep 300',
        AWS_SECRET_ACCESS_KEY=SECRET, TORCH_TOKEN=SECRET,
    ).strip()  # fmt: skip
    for words in (
        ("describe", handle), ("describe", "--json", handle), ("status", "--json", handle),
        ("list", "--json"),
    ):  # fmt: skip
        found = relight(*words)
        assert SECRET not in found.stdout.replace("= hunter2 &&", "") + found.stderr
    assert "HF_TOKEN='<hidden>'" in relight("describe", handle).stdout
    lines = [
        path.read_bytes().replace(b"\0", b" ")
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.exists()
    ]
    assert not [line for line in lines if b"HF_TOKEN=" in line]
    state = tmp_path / "state"
    kept = [path for path in state.rglob("*") if path.is_file()]
    assert kept
    assert all(path.stat().st_mode & 0o077 == 0 or path.parent.stat().st_mode & 0o077 == 0
               for path in kept)  # fmt: skip
    record = next(path for path in kept if path.name == "job.json").read_text()
    assert SECRET not in record.replace("= hunter2 &&", "")
    relight("delete", handle)
