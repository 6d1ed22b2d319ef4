"""A stopped spawner (SIGSTOP) delays neither the end of the job nor anybody who waits for it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Start
from test_orphans import below, marked, marker, wait_until_gone, wait_until_up  # noqa: F401

from relight.events.event_types import SpawnerLost, WorkerExited
from relight.host.loop import Loop
from relight.processes.worker_processes import Workers

Script = Callable[..., Path]
KINDS = [("--preload=off",), ("--preload=json",)]
IDS = ["cold", "warm"]
TREE = """
import subprocess, sys, time
subprocess.Popen(["setsid", "sleep", sys.argv[1]])
subprocess.Popen(["sleep", sys.argv[1]])
time.sleep(1000)
"""
# Acts like a debugger: PTRACE_SEIZE, then PTRACE_INTERRUPT.
HOLD = """
import ctypes, os, sys
libc, pid = ctypes.CDLL(None), int(sys.argv[1])
for request in (0x4206, 0x4207):
    assert libc.ptrace(request, pid, None, None) == 0
os.waitpid(pid, 0x40000000)
print("held", flush=True)
os.waitpid(pid, 0x40000000)  # its end
"""


def spawner_pid(agent: int, name: str = "spawner of") -> int:
    """Return the pid of the process that is the parent of this agent's workers."""
    for pid in below(agent):
        try:
            if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        except OSError:
            pass  # it has exited
    raise AssertionError("the agent has none")


def stop(pid: int) -> None:
    """Stop a process, and wait until it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + LIMIT_S
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def agent(
    request: pytest.FixtureRequest,
    start: Start,
    script: Script,
    marker: str,
) -> "subprocess.Popen[bytes]":
    """A job with two workers whose spawner is stopped."""
    process = start("run", *request.param, "--nproc-per-node=2", "--shutdown-timeout=300",
                    script(TREE), marker, stderr=subprocess.DEVNULL)  # fmt: skip
    wait_until_up(marker, 7)  # the agent, two workers, and two sleeps for each worker
    stop(spawner_pid(process.pid))
    return process


@pytest.mark.parametrize("agent", KINDS, ids=IDS, indirect=True)
def test_job_with_suspended_spawner_can_be_terminated(
    agent: "subprocess.Popen[bytes]",
    marker: str,
) -> None:
    """A signal to the agent wakes its spawner, and the job ends as usual."""
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert marked(marker) == []


@pytest.mark.parametrize("agent", KINDS, ids=IDS, indirect=True)
def test_suspended_spawner_cleans_up_when_agent_is_killed(
    agent: "subprocess.Popen[bytes]",
    marker: str,
) -> None:
    """The kernel wakes the spawner when the agent exits, and the spawner cleans up."""
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    wait_until_gone(marker, LIMIT_S)


def test_spawner_held_by_debugger_is_killed(
    start: Start,
    script: Script,
    marker: str,
) -> None:
    """If SIGCONT doesn't wake a spawner, it is killed a second later, with everything below it."""
    agent = start("run", "--shutdown-timeout=300", script(TREE), marker, stderr=subprocess.DEVNULL)
    wait_until_up(marker, 4)
    tracer = start("-c", HOLD, str(spawner_pid(agent.pid)), command=(sys.executable,))
    assert tracer.stdout is not None
    assert tracer.stdout.readline() == b"held\n"
    for _ in range(2):
        agent.send_signal(signal.SIGTERM)
        time.sleep(0.1)  # two concurrent signals would be merged
    assert agent.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert marked(marker) == []


def test_workers_that_were_never_started_are_not_reported_as_killed() -> None:
    """If the process that should start the workers fails, that is the reason, and not SIGKILL."""

    def fork(plans: object, scratch: str) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            os._exit(70)
        theirs.close()
        return pid, ours

    loop, seen = Loop(), []
    workers = Workers(loop, [], [0], "", lambda event, _: seen.append(event), fork)
    loop.run_until(lambda: any(isinstance(event, SpawnerLost) for event in seen))
    workers.close()
    loop.close()
    assert seen == [WorkerExited(0, 127), SpawnerLost(70)]
    assert "the program could not be started: the worker spawner" in workers.evidence[0]
    assert workers.evidence[0].endswith("ended with 70")


RESTARTS = """
import os, pathlib, sys, time
restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
pathlib.Path("up" + restart).touch()
while restart == "0" and not os.path.exists("go"):
    time.sleep(0.01)
sys.exit(restart == "0")
"""


@pytest.mark.parametrize("flags", KINDS, ids=IDS)
def test_signals_sent_to_spawner_do_not_end_workers(
    start: Start, script: Script, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """A signal to it ends neither the workers nor, after they have ended, a warm spawner."""
    logs = tmp_path / "logs"
    agent = start("run", *flags, "--max-restarts=1", f"--log-dir={logs}", script(RESTARTS))
    deadline = time.monotonic() + LIMIT_S
    while not (tmp_path / "up0").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pid = spawner_pid(agent.pid)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGABRT):
        os.kill(pid, number)
    (tmp_path / "go").touch()
    assert agent.wait(LIMIT_S) == 0
    lines = next(logs.glob("*/events.jsonl")).read_text().splitlines()
    found = [event for event in map(json.loads, lines) if event["event"] == "WorkersForked"]
    assert [event["warm"] for event in found] == [True, True] * ("json" in flags[0])
    exits = [json.loads(line)["exitcode"] for line in lines if '"event": "WorkerExited"' in line]
    assert exits == [1, 0]
