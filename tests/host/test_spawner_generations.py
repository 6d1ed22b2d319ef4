"""A single spawner for all of a job's generations."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, long

from relight.host import linux
from relight.processes import generation_pipe
from relight.processes.generation_pipe import WorkerPlan
from relight.processes.spawner import SpawnerProcess

SEES = """
import json, os, resource, signal, sys
sees = {
    "descriptors": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                    if os.path.exists(f"/proc/self/fd/{fd}")},
    "stdin": os.fstat(0).st_ino,
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "actions": [str(signal.getsignal(n)) for n in range(1, 32)],
    "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "leads": os.getsid(0) == os.getpid(),
    "parent": os.getppid(),
    "umask": os.umask(0o22),
    "cwd": os.getcwd(),
    "affinity": sorted(os.sched_getaffinity(0)),
    "variables": {k: v for k, v in os.environ.items() if "RESTART" not in k and k[-4:] != "PORT"},
}
sees["descriptors"] = {fd: "pipe" if "pipe" in x else x for fd, x in sees["descriptors"].items()}
for name in ("RELIGHT_ATTEMPT", "TORCHELASTIC_ERROR_FILE"):
    sees["variables"].pop(name, None)
if os.environ["RANK"] == "0":
    with open(f"sees.{os.environ['TORCHELASTIC_RESTART_COUNT']}", "w") as file:
        json.dump(sees, file)
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] != "2")
"""


@pytest.mark.parametrize("workers", [1, long(40)])
def test_workers_in_later_generations_start_like_the_first_ones(
    launch: Launch, script: Callable[[str], Path], tmp_path: Path, workers: int
) -> None:
    """They have the same descriptors, signals, limits, variables and parent."""
    result = launch(
        "run", f"--nproc-per-node={workers}", "--max-restarts=2", script(SEES), cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    first, *later = [json.loads((tmp_path / f"sees.{n}").read_text()) for n in range(3)]
    for each in later:
        assert each == first


def plan() -> WorkerPlan:
    null = os.open(os.devnull, os.O_WRONLY)
    argv = (sys.executable, "-c", "import time; time.sleep(600)")
    return WorkerPlan(0, argv, {}, null, os.dup(null), frozenset(), False)


def start(spawner: SpawnerProcess) -> tuple[int, socket.socket]:
    """Start a worker, and return its guard's pid and the generation's socket."""
    one = plan()
    pid, connection = spawner.fork([one], "")
    for fd in (one.stdout, one.stderr):
        os.close(fd)
    said = b""
    while b"started 0" not in said:
        said += connection.recv(100)
    return pid, connection


def end(connection: socket.socket) -> None:
    connection.sendall(b"end\n")
    connection.shutdown(socket.SHUT_WR)
    said = b""
    while not said.endswith(b"ended\n"):
        data = connection.recv(100)
        assert data, said
        said += data
    connection.close()


def idle_spawner() -> tuple[SpawnerProcess, int, int]:
    """Return a spawner whose first generation is over, its guard's pid, and its own pid."""
    spawner = SpawnerProcess()
    guard, connection = start(spawner)
    end(connection)
    (own,) = linux.tree(guard)
    return spawner, guard, own


def finish(spawner: SpawnerProcess, *pids: int) -> None:
    spawner.close()
    for pid in pids:
        with contextlib.suppress(
            ChildProcessError
        ):  # close() has reaped one that exited immediately
            os.waitpid(pid, 0)


def test_next_generation_reuses_the_spawner() -> None:
    """Only the workers are forked."""
    spawner = SpawnerProcess()
    first, connection = start(spawner)
    end(connection)
    second, connection = start(spawner)
    end(connection)
    assert first == second
    finish(spawner, first)


def test_busy_spawner_is_not_reused_for_next_generation() -> None:
    """If a worker is stuck in an uninterruptible call, for example, another spawner is forked. The
    first one exits once its workers have.
    """
    spawner = SpawnerProcess()
    first, busy = start(spawner)
    second, connection = start(spawner)
    assert first != second
    busy.close()
    os.waitpid(first, 0)
    end(connection)
    finish(spawner, second)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_spawner_killed_between_generations_is_replaced(number: int) -> None:
    """Signals that can be blocked don't end it."""
    spawner = SpawnerProcess()
    first, connection = start(spawner)
    end(connection)
    for child in linux.tree(first):
        os.kill(child, number)
    if number == signal.SIGKILL:
        os.waitpid(first, 0)  # its guard exits with it
    second, connection = start(spawner)
    assert (first != second) == (number == signal.SIGKILL)
    end(connection)
    finish(spawner, second)


def test_spawner_whose_guard_was_killed_is_replaced() -> None:
    """The spawner could continue, but if it were killed along with the agent, nothing would stop
    its workers.
    """
    spawner = SpawnerProcess()
    first, connection = start(spawner)
    end(connection)
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    second, connection = start(spawner)
    assert first != second
    end(connection)
    finish(spawner, second)
    with pytest.raises(ChildProcessError):
        os.waitpid(first, 0)


@pytest.fixture
def subreaper() -> Iterator[None]:
    """Let this process adopt orphans, as an agent does."""
    linux.become_subreaper()
    yield
    linux.become_subreaper(False)


@pytest.mark.usefixtures("subreaper")
def test_idle_spawner_whose_guard_was_killed_leaves_no_zombie() -> None:
    spawner, guard, own = idle_spawner()
    os.kill(guard, signal.SIGKILL)
    os.waitpid(guard, 0)
    assert linux.parent_pid(own) == os.getpid()
    spawner.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(own, os.WNOHANG)


def test_stopped_idle_spawner_exits_when_it_is_closed() -> None:
    spawner, guard, own = idle_spawner()
    for pid in (own, guard):
        os.kill(pid, signal.SIGSTOP)
    spawner.wait(LIMIT_S)
    with pytest.raises(ProcessLookupError):
        os.kill(own, 0)


def test_stopped_spawner_is_resumed_for_next_generation() -> None:
    spawner, first, own = idle_spawner()
    os.kill(own, signal.SIGSTOP)
    second, connection = start(spawner)
    assert first == second
    end(connection)
    finish(spawner, first)


BREAKS = """
import os, signal, socket, struct, sys
from relight.processes.generation_pipe import WorkerPlan
from relight.processes.spawner import SpawnerProcess
me, spawner = os.getpid(), SpawnerProcess()
null = os.open(os.devnull, os.O_WRONLY)
try:
    plan = WorkerPlan(0, ("true",), dict(os.environ), null, null, frozenset(), False)
    pid, connection = spawner.fork([plan], "")
    connection.sendall(b"end\\n")
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(100):
        pass
    spawner._control.sendall(struct.pack("!I", 0))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
finally:
    if os.getpid() != me:
        os.write(1, b"a copy of the agent runs\\n")
"""


@pytest.mark.mistakes
def test_spawner_exits_if_generation_plan_is_unreadable() -> None:
    """It is a fork of the agent, and must not continue running the agent's code."""
    done = subprocess.run(
        [sys.executable, "-c", BREAKS], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert (done.returncode, done.stdout) == (0, "70\n"), done.stderr


def test_idle_spawner_exits_when_agent_is_killed(tmp_path: Path) -> None:
    """If the agent is killed while the spawner waits for a generation, neither a process nor a
    directory is left.
    """
    scratch = tmp_path / "scratch"
    (scratch / "attempt_0").mkdir(parents=True)
    reading, writing = os.pipe()
    agent = os.fork()
    if agent == 0:
        try:
            spawner, one = SpawnerProcess(), plan()
            pid, connection = spawner.fork([one], str(scratch))
            while b"started 0" not in connection.recv(100):
                pass
            end(connection)
            os.write(writing, " ".join(map(str, [pid, *linux.tree(pid)])).encode())
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    pids = list(map(int, os.read(reading, 100).split()))
    watched = [os.pidfd_open(pid) for pid in pids]
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    for fd in watched:
        poll = linux.select.poll()
        poll.register(fd)
        assert poll.poll(1000 * LIMIT_S), "it is still there"
        os.close(fd)
    os.close(reading)
    assert len(pids) == 2
    assert not scratch.exists()


def test_descriptors_sent_in_several_messages_reach_the_right_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system allows at most 253 in one message. Cold and warm workers are sent the same way."""
    monkeypatch.setattr(generation_pipe.descriptors, "raise_limit", lambda: None)
    agent, spawner = socket.socketpair()
    with contextlib.ExitStack() as stack:
        stack.enter_context(agent)
        stack.enter_context(spawner)

        def new() -> int:
            fd = os.memfd_create("output")
            stack.callback(os.close, fd)
            return fd

        sent = [WorkerPlan(n, (), {}, new(), new(), frozenset(), False) for n in range(140)]
        stack.enter_context(generation_pipe.send(agent, sent, "", [new()]))
        plan = generation_pipe.receive(spawner)
        assert plan is not None
        outputs = [fd for worker in plan.workers for fd in (worker.stdout, worker.stderr)]
        for fd in (plan.connection, plan.stdin, *plan.held, *outputs):
            stack.callback(os.close, fd)
        assert [worker.local_rank for worker in plan.workers] == list(range(140))
        before = [os.fstat(fd).st_ino for worker in sent for fd in (worker.stdout, worker.stderr)]
        assert [os.fstat(fd).st_ino for fd in outputs] == before
        assert len(set(before)) == 280
