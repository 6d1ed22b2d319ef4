"""Finding the agents running on this machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Start

from relight.processes import agent_processes

SLEEPS = "import json, time\nprint('up', flush=True)\ntime.sleep(600)"
LAUNCHES = """
import time, relight
def work():
    open("up", "w").close()
    time.sleep(600)
if __name__ == "__main__":
    relight.launch(work, nproc_per_node=1)
"""
AS_NOBODY = """
import os
from relight.processes import agent_processes as agents
os.setuid(65534)
print(agents.running())
"""


def until(
    pid: int, holds: Callable[[agent_processes.Running | None], bool]
) -> agent_processes.Running | None:
    """Return the agent's description once it fulfils a condition."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        found = next((agent for agent in agent_processes.running() if agent.pid == pid), None)
        if holds(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -m relight run train.py", True),
        ("/usr/bin/python3.11 -m relight launch train.py", True),
        ("python3 /usr/local/bin/relight run train.py", True),
        ("python -X dev -u -m relight run train.py", True),
        ("python -m relight submit dist.ddp", False),
        ("python -m relight", False),
        ("python -m", False),
        ("python -m torch.distributed.run train.py", False),
        ("python train.py relight run", False),
        ("python -c relight run", False),
        ("python -c code -m relight run", False),
        ("python", False),
        ("timeout 9 relight run train.py", False),
        ("bash relight run", False),
        ("", False),
    ],
)
def test_agent_is_recognised_by_its_command_line(line: str, expected: bool) -> None:
    assert (agent_processes.arguments(line.split()) is not None) is expected


@pytest.mark.parametrize("flags", [(), ("--preload=json",)], ids=["cold", "warm"])
def test_agent_is_listed_with_its_workers_and_memory(
    start: Start, script: Callable[[str], Path], flags: tuple[str, ...]
) -> None:
    """The entry has its run id, its workers, the total memory, and the part used by preloaded
    modules.
    """
    before = time.monotonic()
    job = start("run", "--nproc-per-node=2", "--rdzv-id=mine", *flags, script(SLEEPS))
    assert job.stdout is not None
    assert [job.stdout.readline() for _ in range(2)] == [b"up\n"] * 2
    found = until(
        job.pid,
        lambda agent: (
            agent is not None and len(agent.workers) == 2 and bool(agent.warm_memory) is bool(flags)
        ),
    )
    assert found is not None
    assert found.run_id == "mine"
    for worker in found.workers:
        assert b"train.py" in Path(f"/proc/{worker}/cmdline").read_bytes()
    assert 0 <= found.seconds <= time.monotonic() - before + 0.1
    assert found.memory > 5 << 20
    assert bool(found.warm_pid) is bool(flags)
    assert 0 < found.warm_memory < found.memory if flags else not found.warm_memory
    job.kill()
    job.wait(LIMIT_S)
    until(job.pid, lambda agent: agent is None)


def test_agent_waiting_for_nodes_is_listed(
    start: Start, script: Callable[[str], Path], tmp_path: Path
) -> None:
    meet = ("--nnodes=2", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}", "--rdzv-id=late")
    job = start("run", *meet, script(SLEEPS))
    assert job.stderr is not None
    while b"node" not in job.stderr.readline():  # it prints the reason for waiting
        pass
    found = until(job.pid, lambda agent: agent is not None)
    assert found is not None
    assert (found.workers, found.run_id, found.warm_pid) == ((), "", 0)
    assert agent_processes.arguments(found.command) == [*meet, str(tmp_path / "train.py")]


def test_orphaned_child_of_worker_is_not_listed_as_worker(
    start: Start, script: Callable[[str], Path]
) -> None:
    text = "import os, time\nos.system('sleep 600 & sleep 600 &')\n" + SLEEPS
    job = start("run", script(text))
    assert job.stdout is not None
    assert job.stdout.readline() == b"up\n"
    found = until(job.pid, lambda agent: agent is not None and bool(agent.workers))
    assert found is not None
    assert len(found.workers) == 1


def test_agents_started_by_local_scheduler_are_listed(
    start: Start, script: Callable[[str], Path], tmp_path: Path
) -> None:
    """The process that supervises them isn't listed."""
    variables = {"HOME": str(tmp_path), "RELIGHT_STATE_DIR": str(tmp_path / "state")}
    path = script(SLEEPS)
    job = start("submit", "dist.ddp", "-j", "1x2", "--script", path, variables=variables)
    assert job.stderr is not None
    while not job.stderr.readline().endswith(b":up\n"):
        pass
    everything = agent_processes.running()
    (found,) = [agent for agent in everything if str(path) in agent.command]
    job.terminate()
    job.wait(LIMIT_S)
    assert len(found.workers) == 2
    assert not [agent for agent in everything if found.pid in agent.workers]


def test_agent_started_from_a_python_program_is_listed(tmp_path: Path) -> None:
    """An agent started by `relight.launch` is recognised by its spawner."""
    path = tmp_path / "x.py"
    path.write_text(LAUNCHES)
    with subprocess.Popen([sys.executable, path], cwd=tmp_path) as program:
        try:
            deadline = time.monotonic() + LIMIT_S
            children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
            while not children.read_text().split():
                assert time.monotonic() < deadline
                time.sleep(0.05)
            agent = int(children.read_text().split()[0])
            found = until(agent, lambda agent: agent is not None and bool(agent.workers))
            assert found is not None
            assert agent_processes.arguments(found.command) is not None
        finally:
            program.terminate()
            program.wait(LIMIT_S)


@pytest.mark.needs_root
def test_agents_owned_by_other_users_are_not_listed(
    start: Start, script: Callable[[str], Path]
) -> None:
    job = start("run", script(SLEEPS))
    until(job.pid, lambda agent: agent is not None and bool(agent.workers))
    found = subprocess.run(
        [sys.executable, "-c", AS_NOBODY],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert found.stdout == "[]\n"


ORPHANS = """
import os, signal
if not os.fork():
    if os.fork():
        os._exit(0)  # the other one has no parent of this job any more
    print("up", flush=True)
    signal.pause()
signal.pause()
"""


def test_orphaned_fork_of_agent_is_not_listed_as_agent(tmp_path: Path) -> None:
    path = tmp_path / "relight"
    path.write_text(ORPHANS)
    command = [sys.executable, str(path), "run"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            found = [each.pid for each in agent_processes.running() if str(path) in each.command]
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert found == [process.pid]
