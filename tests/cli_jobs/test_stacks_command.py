"""`relight stacks`: where a running job's ranks are."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Start

from relight.base.errors import MachineError, UsageError
from relight.cli.inspect import debug, stacks
from relight.core.status.snapshot import NodeSnapshot
from relight.processes.running_jobs import JobDirectory
from relight.schedulers.processes.record import LocalRecord
from relight.stacks import rank_processes

pytestmark = pytest.mark.forked

Command = Callable[..., "subprocess.CompletedProcess[str]"]
WAITS = """\
import os, time

def last():
    time.sleep(600)

def others():
    os.read(read_end, 1)

read_end, write_end = os.pipe()
if os.environ["RANK"] == "2":
    last()
others()
"""


@pytest.fixture
def until(relight: Command) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run `relight stacks` repeatedly until it prints the expected text."""

    def run(*words: str, prints: Callable[[str], bool]) -> "subprocess.CompletedProcess[str]":
        deadline = time.monotonic() + LIMIT_S
        while True:
            found = relight("stacks", *words)
            if prints(found.stdout):
                return found
            assert time.monotonic() < deadline, (found.stdout, found.stderr)
            time.sleep(0.1)

    return run


@pytest.mark.slow
@pytest.mark.needs_torch
def test_rank_missing_from_collective_is_listed_first(
    start: Start, until: Command, script: Callable[[str], Path]
) -> None:
    text = """
import time
import torch
import torch.distributed as dist

def late():
    time.sleep(600)

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    late()
dist.all_reduce(torch.ones(1))
"""
    agent = start("run", "--nproc-per-node=2", script(text))
    lines = [
        "rank 1 in late (train.py:7), system call clock_nanosleep",
        "rank 0 in all_reduce (train.py:12)",
    ]
    found = until(str(agent.pid), prints=lambda text: text.splitlines()[:2] == lines)
    assert found.returncode == 0
    assert "\n\nrank 0, pid " in found.stdout
    assert 'distributed_c10d.py", line ' in found.stdout
    assert found.stdout.rstrip().endswith("in all_reduce")


def test_ranks_are_grouped_by_stack(
    start: Start, until: Command, script: Callable[[str], Path]
) -> None:
    file = script(WAITS)
    agent = start("run", "--nproc-per-node=4", file, variables={"OMP_NUM_THREADS": "1"})
    lines = [
        "rank 2 in last (train.py:4), system call clock_nanosleep",
        "ranks 0-1, 3 in others (train.py:7), system call read",
    ]
    found = until(str(agent.pid), prints=lambda text: text.splitlines()[:2] == lines)
    pids = rank_processes.below(agent.pid)
    assert found.stdout.splitlines()[2:] == [
        "",
        f"rank 2, pid {pids[2]}:",
        f'  File "{file}", line 11, in <module>',
        f'  File "{file}", line 4, in last',
        "",
        f"ranks 0-1, 3, here rank 0, pid {pids[0]}:",
        f'  File "{file}", line 12, in <module>',
        f'  File "{file}", line 7, in others',
    ]


def test_agent_reads_its_workers_if_the_command_may_not(
    start: Start, until: Command, script: Callable[[str], Path], variables: dict[str, str],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """With kernel.yama.ptrace_scope=1, only ancestors may."""
    start("run", "--nproc-per-node=3", script(WAITS), variables=variables)
    until("train", prints=lambda text: "rank 2 in last" in text)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(stacks, "take_all", lambda pids: dict.fromkeys(pids, "not permitted"))
    assert stacks.main(["train"]) == 0
    assert capsys.readouterr().out.startswith("rank 2 in last (train.py:4)")


def test_stopped_rank_is_marked_and_all_flag_shows_every_rank(
    start: Start, until: Command, script: Callable[[str], Path]
) -> None:
    agent = start("run", "--nproc-per-node=3", script(WAITS))
    ready = "ranks 0-1 in others (train.py:7), system call read"
    until(str(agent.pid), prints=lambda text: ready in text and "rank 2 in last" in text)
    pids = rank_processes.below(agent.pid)
    os.kill(pids[1], signal.SIGSTOP)
    line = "rank 1 is stopped (SIGSTOP) in others (train.py:7)"
    found = until(str(agent.pid), "--all", prints=lambda text: line in text.splitlines())
    for rank, pid in pids.items():
        assert f"\nrank {rank}, pid {pid}, main thread {pid} python" in found.stdout
    found = until(str(agent.pid), "--json", prints=bool)
    shown = json.loads(found.stdout)
    assert [(each["rank"], each["pid"]) for each in shown["processes"]] == sorted(pids.items())
    assert [each["state"] for each in shown["processes"]] == ["S", "T", "S"]
    assert [each["ranks"] for each in shown["groups"]] == [[1], [0], [2]]
    assert shown["processes"][2]["threads"][0]["frames"][0]["function"] == "last"
    os.kill(pids[1], signal.SIGCONT)


def test_agent_with_rank_variable_is_not_listed_as_a_rank(
    start: Start, until: Command, script: Callable[[str], Path]
) -> None:
    """Some clusters set RANK for the whole node."""
    agent = start("run", "--nproc-per-node=2", script(WAITS), variables={"RANK": "7"})
    until(str(agent.pid), prints=lambda text: text.startswith("ranks 0-1 in others"))


def test_stacks_accepts_pid_of_any_python_process(
    start: Start, until: Command, script: Callable[[str], Path]
) -> None:
    file = script("import time\ndef rest():\n    time.sleep(600)\nrest()\n")
    process = start(file, command=(sys.executable,))
    line = f"process {process.pid} in rest (train.py:3), system call clock_nanosleep"
    found = until(str(process.pid), prints=lambda text: text.startswith(line))
    assert found.stdout.splitlines()[2] == f"process {process.pid}:"
    shown = json.loads(until(str(process.pid), "--json", prints=bool).stdout)
    assert shown["groups"] == [{"ranks": [None], "text": line}]


def test_stacks_rejects_missing_or_non_python_process(relight: Command, start: Start) -> None:
    process = start("600", command=("sleep",))
    found = relight("stacks", str(process.pid))
    assert (found.returncode, found.stdout) == (4, "")
    assert f"process {process.pid} is not a Python process" in found.stderr
    process.kill()
    process.wait()
    found = relight("stacks", str(process.pid))
    assert (found.returncode, found.stdout) == (2, "")
    assert f"no such process on this machine: {process.pid}" in found.stderr
    for number in ("0", "9" * 18):
        assert "no such process" in relight("stacks", number).stderr


def ended(pid: int) -> NodeSnapshot:
    return NodeSnapshot(f"train-{pid}", "train", pid, "n", "r", ("train.py",), "", "default", 1.0,
                        2.0, "ended", 0, 0, 0, "start", 0, 1, 1, 3, "x", "", ())  # fmt: skip


def test_exited_agent_pid_error_shows_its_job(relight: Command, variables: dict[str, str]) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    JobDirectory(variables).keep(ended(process.pid))
    for command in ("stacks", "debug"):
        found = relight(command, str(process.pid))
        job = f"run://relight/train-{process.pid}"
        assert f"process {process.pid} has ended: {job} is FAILED" in found.stderr
        assert found.returncode == 2


def test_ended_job_stays_ended_if_its_pid_is_reused(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    JobDirectory(variables).keep(ended(os.getpid()))
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE,
                             env={**os.environ, "RANK": "0"})  # fmt: skip
    try:
        for command in (stacks, debug):
            with pytest.raises(UsageError, match=rf"train-{os.getpid()} has ended: FAILED"):
                command.main(["train"])
    finally:
        other.communicate()


def test_stacks_finds_local_job_by_handle_or_id(
    relight: Command,
    submitted: Callable[..., str],
    until: Command,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
) -> None:
    """Both of the job's agents respond. For an ended job or a replica, the error has a remedy."""
    (place / "waits.py").write_text(WAITS)
    job = submitted("dist.ddp", "-j", "2x2", "--script", "waits.py")
    lines = [
        "rank 2 in last (waits.py:4), system call clock_nanosleep",
        "ranks 0-1, 3 in others (waits.py:7), system call read",
    ]
    until(job, prints=lambda text: text.splitlines()[:2] == lines)
    until(job.rpartition("/")[2], prints=lambda text: text.splitlines()[:2] == lines)

    part = relight("stacks", f"{job}/waits/0")
    assert part.returncode == 2
    assert "is only a part of a job" in part.stderr

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_processes, "find_job_ranks", lambda job: {})
    with pytest.raises(MachineError, match="has no workers on this machine") as raised:
        stacks.main([job])
    assert "run it on a node of the job" in raised.value.hint

    LocalRecord(str(next((tmp_path / "state" / "jobs").glob("*")))).stop(LIMIT_S)
    over = relight("stacks", job)
    assert over.returncode == 2
    assert "has ended: CANCELLED" in over.stderr
