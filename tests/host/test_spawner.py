"""How the process that holds the workers ends, tested on its own socket."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S

from relight.host import linux
from relight.processes import spawner
from relight.processes.spawner import WorkerPlan


@pytest.mark.parametrize("farewell", [b"", b"end\n"])
def test_workers_are_stopped_when_agent_socket_closes(tmp_path: Path, farewell: bytes) -> None:
    """When the socket closes, the workers are stopped. Their directory is also removed, unless
    the agent has said that it is alive: when an agent is killed, the socket is the first thing to
    close.
    """
    scratch = tmp_path / "scratch"
    (scratch / "attempt_0").mkdir(parents=True)
    null = os.open(os.devnull, os.O_WRONLY)
    plan = WorkerPlan(0, ("sleep", "600"), dict(os.environ), null, null, frozenset(), False)
    pid, agent = spawner.fork([plan], str(scratch))
    os.close(null)
    said = b""
    while not said.endswith(b"\n"):
        said += agent.recv(100)
    agent.sendall(farewell)
    agent.close()
    assert os.waitpid(pid, 0) == (pid, 0)
    worker = int(said.splitlines()[1].split()[2])
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    assert scratch.exists() == bool(farewell)


COUNTERS = """
import os, subprocess, sys, time

def count(name):
    file, number = os.open(name, os.O_WRONLY | os.O_CREAT), 0
    while True:
        number += 1
        os.pwrite(file, str(number).encode(), 0)
        time.sleep(0.005)

if len(sys.argv) == 1:
    for name, there in (("session", True), ("plain", False)):
        subprocess.Popen([sys.executable, __file__, name], start_new_session=there)
    # One whose parent has ended.
    subprocess.run(["sh", "-c", f"{sys.executable} {__file__} orphan & sleep 0.1"])
    sleeper = subprocess.Popen(["sleep", "600"])
    os.kill(sleeper.pid, 19)
    with open("sleeper", "w") as file:
        file.write(str(sleeper.pid))
    count("worker")
count(sys.argv[1])
"""
COUNTING = ("session", "plain", "orphan", "worker")


class Counters:
    """A worker's processes. Each counts in its own file in a directory while it runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "counters.py").write_text(COUNTERS)
        null = os.open(os.devnull, os.O_WRONLY)
        argv = ("sh", "-c", f"cd {directory} && exec {sys.executable} counters.py")
        plan = WorkerPlan(0, argv, dict(os.environ), null, null, frozenset(), False)
        self.pid, self.agent = spawner.fork([plan])
        os.close(null)
        self.until(lambda: all(self.counts().values()))

    def counts(self) -> dict[str, int]:
        paths = {name: self.directory / name for name in COUNTING}
        return {name: int(p.read_text() or 0) if p.exists() else 0 for name, p in paths.items()}

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, self.counts()
            time.sleep(0.005)

    def until_said(self, word: str) -> None:
        said = b""
        while not said.endswith(f"{word}\n".encode()):
            data = self.agent.recv(100)
            assert data, said
            said += data

    def until_all_stand(self) -> None:
        """Return once none of them has counted for a while."""
        last, since = self.counts(), time.monotonic()
        end = since + 20
        while time.monotonic() < since + 0.3:
            assert time.monotonic() < end, "some count on"
            if (now := self.counts()) != last:
                last, since = now, time.monotonic()
            time.sleep(0.01)

    def until_all_run(self) -> None:
        before = self.counts()
        self.until(lambda: all(now > before[name] for name, now in self.counts().items()))

    def end(self) -> None:
        self.agent.close()
        os.waitpid(self.pid, 0)


def test_freeze_and_thaw_cover_all_descendants(tmp_path: Path) -> None:
    """This includes processes in their own sessions and orphans. A process that something else had
    already stopped stays stopped.
    """
    counters = Counters(tmp_path)
    try:
        for _ in range(3):
            counters.agent.sendall(b"lease 1.0\n")
            counters.until_said("frozen")
            counters.until_all_stand()
            counters.agent.sendall(b"lease 0\n")
            counters.until_said("thawed")
            counters.until_all_run()
        assert linux.is_stopped(int((tmp_path / "sleeper").read_text()))
    finally:
        counters.end()


def test_freeze_is_not_ended_by_sigcont_from_elsewhere(tmp_path: Path) -> None:
    """For example, all of a machine's processes are resumed one by one. The frozen ones are frozen
    again immediately.
    """
    counters = Counters(tmp_path)
    try:
        counters.agent.sendall(b"lease 1.0\n")
        counters.until_said("frozen")
        counters.until_all_stand()
        for pid in linux.tree(counters.pid):
            os.kill(pid, signal.SIGCONT)
        counters.until_all_stand()
        assert linux.is_stopped(int((tmp_path / "sleeper").read_text()))
        counters.agent.sendall(b"lease 0\n")
        counters.until_said("thawed")
        counters.until_all_run()
    finally:
        counters.end()
