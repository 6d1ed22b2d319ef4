"""Nothing is left behind: whatever kills the agent, all processes that it started end."""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import FIRST_WARM, LIMIT_S, PORTABLE, Launch, Start, long

MOMENTS = 24
AT_ONCE = 8

# A child that ignores SIGTERM, a grandchild in its own session, another one without any trace of
# our environment, and a daemon whose parents have exited. All of them have the marker in their
# command line.
CHILD = "trap '' TERM\nsleep {marker} &\n"
ELSEWHERE = """setsid sleep {marker} &
env -i setsid /bin/sh -c 'sleep {marker} & sleep {marker}' &
"""
DAEMON = "(setsid sh -c 'sleep {marker} &' &)\n"
END = "sleep {lifetime}\nexit {code}\n"
# Without a subreaper, a process without a living parent or a shared session can't be found
# (docs/macos.md).
TREE = CHILD + ELSEWHERE + ("" if PORTABLE else DAEMON) + END
SHORT_TREE = CHILD + END if PORTABLE else TREE
OF_TWO = 10 if PORTABLE else 12
"""The number of marked processes that two workers have."""


def marked(marker: str) -> list[int]:
    """Return the pids of running processes whose command line contains the marker."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes()
            state = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if marker.encode() in words and state != b"Z":
            found.append(int(name))
    return found


def wait_until_gone(marker: str, limit_s: float = LIMIT_S) -> None:
    """Wait until no marked processes are left."""
    deadline = time.monotonic() + limit_s
    while left := marked(marker):
        assert time.monotonic() < deadline, f"still alive: {left}"
        time.sleep(0.01)


def holders(pid: int) -> list[int]:
    """Return the processes between an agent and its workers, from the top down."""
    found = []
    while found[1:] == []:
        (pid,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        found.append(pid)
        if PORTABLE:
            break
    return found


def below(agent: int) -> list[int]:
    """Return an agent's children and grandchildren."""
    found = [agent]
    for _ in range(2):
        for pid in list(found):
            try:
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            except OSError:
                continue  # it has exited
            found += [int(child) for child in children if int(child) not in found]
    return found[1:]


def is_fork_of_agent(pid: int) -> bool:
    """Return whether this is a guard, spawner, or worker that has not set its own name yet."""
    own = b""
    try:
        while pid > 1:
            name = Path(f"/proc/{pid}/cmdline").read_bytes()
            if name == own:
                return True
            own = own or name
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return True  # it has just exited
    return False


def wait_until_up(marker: str, count: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while (up := sum(not is_fork_of_agent(pid) for pid in marked(marker))) < count:
        assert time.monotonic() < deadline, f"{up} of {count} processes came up"
        time.sleep(0.01)


@pytest.fixture
def marker() -> str:
    """The argument of a sleep command that is unique on this machine."""
    return f"{random.randrange(10**6, 10**7)}.{random.randrange(10**6, 10**7)}"


@pytest.fixture
def bystanders() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Processes unrelated to the agent. They must survive the test."""
    processes = [
        subprocess.Popen(["sleep", "600"]),
        subprocess.Popen(["setsid", "sleep", "600"]),
    ]
    yield processes
    ended = [process.args for process in processes if process.poll() is not None]
    for process in processes:
        process.kill()
        process.wait()
    assert not ended, f"killed although not ours: {ended}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("life", [long("long"), "restarting"])
def test_no_process_outlives_agent_killed_at_any_moment(
    life: str, tmp_path: Path, start: Start, marker: str, bystanders: object
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    tree, lifetime, code = (TREE, "600", 0) if life == "long" else (SHORT_TREE, "0.02", 1)
    program = tmp_path / "tree.sh"
    program.write_text(tree.format(marker=marker, lifetime=lifetime, code=code))
    for _ in range(MOMENTS // AT_ONCE):
        agents = [
            start("run", "--nproc-per-node=2", "--max-restarts=1000", "--shutdown-timeout=0.01",
                  "--no-python", "sh", program, stdout=subprocess.DEVNULL,
                  stderr=subprocess.DEVNULL)
            for _ in range(AT_ONCE)
        ]  # fmt: skip
        moments = sorted((chance.uniform(0.02, 0.8), agent) for agent in agents)
        begin = time.monotonic()
        for moment, agent in moments:
            time.sleep(max(0.0, begin + moment - time.monotonic()))
            agent.send_signal(signal.SIGKILL)
            agent.wait()
        wait_until_gone(marker)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_no_process_outlives_agent_however_it_ends(
    number: int, tmp_path: Path, start: Start, marker: str, bystanders: object
) -> None:
    """Even descendants that left the session and ignore SIGTERM end."""
    program = tmp_path / "tree.sh"
    program.write_text(TREE.format(marker=marker, lifetime="600", code=0))
    agent = start(
        "run", "--nproc-per-node=2", "--shutdown-timeout=0.2", "--no-python", "sh", program
    )
    wait_until_up(marker, OF_TWO)
    agent.send_signal(number)
    agent.wait(LIMIT_S)
    wait_until_gone(marker)


def test_no_process_outlives_successful_job(
    tmp_path: Path, launch: Launch, marker: str, bystanders: object
) -> None:
    """Background processes that workers leave behind also end."""
    program = tmp_path / "tree.sh"
    program.write_text(SHORT_TREE.format(marker=marker, lifetime="0.1", code=0))
    result = launch("run", "--nproc-per-node=2", "--no-python", "sh", program)
    assert result.returncode == 0, result.stderr
    assert marked(marker) == []


@pytest.mark.skipif(PORTABLE, reason="the system does not show processes")
def test_background_process_left_by_successful_worker_is_reported(
    tmp_path: Path, launch: Launch, marker: str
) -> None:
    """The user may have intended it to keep running. A process that ends on its own, like
    multiprocessing's, is not named.
    """
    program = tmp_path / "leaves.py"
    program.write_text(
        "import subprocess, sys\n"
        "if sys.argv[2] == 'stays':\n"
        "    subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "elif sys.argv[2] == 'ends':\n"
        "    subprocess.Popen(['cat'], stdin=subprocess.PIPE, start_new_session=True)\n"
    )
    named = re.compile(
        r"relight: ended with the job: sleep \(pid \d+\), left running by the workers"
    )
    for what in ("stays", "ends", "none"):
        result = launch("run", program, marker, what)
        assert result.returncode == 0, result.stderr
        assert bool(named.search(result.stderr)) == (what == "stays"), result.stderr
        assert ("ended with" in result.stderr) == (what == "stays"), result.stderr


def test_no_process_outlives_killed_spawner(
    tmp_path: Path, start: Start, marker: str, bystanders: object
) -> None:
    """The report names the spawner."""
    program = tmp_path / "tree.sh"
    program.write_text(TREE.format(marker=marker, lifetime="600", code=0))
    agent = start("run", "--nproc-per-node=2", "--no-python", "sh", program)
    wait_until_up(marker, OF_TWO)
    os.kill(holders(agent.pid)[-1], signal.SIGKILL)
    _, errors = agent.communicate(timeout=LIMIT_S)
    assert agent.returncode == 137
    assert b"the worker spawner" in errors
    assert marked(marker) == []


@pytest.mark.skipif(PORTABLE, reason="there is no guard")
def test_no_process_outlives_agent_killed_while_stopping_spawner(
    tmp_path: Path, start: Start
) -> None:
    """The guard is killed first. The spawner is still alive and cleans up, and the agent must not
    kill it before it has done so.
    """
    jobs = []
    for number in range(6):
        marker = f"{random.randrange(10**6, 10**7)}.{random.randrange(10**6, 10**7)}"
        tree = tmp_path / f"tree{number}"
        tree.write_text(TREE.format(marker=marker, lifetime="600", code=0))
        agent = start("run", "--no-python", "sh", tree, stderr=subprocess.DEVNULL)
        jobs.append((marker, agent))
    for number, (marker, agent) in enumerate(jobs):
        wait_until_up(marker, OF_TWO // 2)
        guard, _ = holders(agent.pid)
        os.kill(guard, signal.SIGKILL)
        time.sleep(0.001 * number)
        with contextlib.suppress(ProcessLookupError):  # it failed when its workers ended
            os.kill(agent.pid, signal.SIGKILL)
    for marker, agent in jobs:
        agent.wait(LIMIT_S)
        wait_until_gone(marker)


WARM_TREE = "import os, sys; os.execv('/bin/sh', ['sh', *sys.argv[1:]])"


@pytest.mark.skipif(PORTABLE, reason="tests/portable kills the two processes that there are")
@pytest.mark.parametrize("kind", ["cold", "warm"])
def test_no_process_outlives_job_if_two_of_its_processes_are_killed(
    kind: str, tmp_path: Path, start: Start, script: Callable[[str], Path], bystanders: object
) -> None:
    """Two of agent, spawner, and guard are killed, either together or one after the other while one
    is stopped. The job directory is also removed, unless the agent was stopped.
    """
    jobs = []
    # Written only once: if it were rewritten, a job that starts at that moment would run an empty
    # script.
    program = ("--no-python", "sh") if kind == "cold" else ("--preload=json", script(WARM_TREE))
    for number in range(4):
        marker = f"{random.randrange(10**6, 10**7)}.{random.randrange(10**6, 10**7)}"
        tree, scratch = tmp_path / f"tree{number}", tmp_path / f"tmp{number}"
        tree.write_text(TREE.format(marker=marker, lifetime="600", code=0))
        scratch.mkdir()
        agent = start("run", *program, tree, variables={"TMPDIR": str(scratch)},
                      stderr=subprocess.DEVNULL, command=FIRST_WARM)  # fmt: skip
        jobs.append((marker, agent, scratch))
    for number, (marker, agent, _) in enumerate(jobs):
        wait_until_up(marker, OF_TWO // 2)
        guard, holder = holders(agent.pid)
        if number == 0:
            # On a busy machine, the spawner could end first, and the guard leaves the directory to
            # an agent that is still alive.
            os.kill(holder, signal.SIGSTOP)
            agent.kill()
            agent.wait(LIMIT_S)
        if number == 3:
            os.kill(agent.pid, signal.SIGSTOP)
            os.kill(holder, signal.SIGKILL)
            time.sleep(0.1)
        victims = (holder,), (agent.pid, guard), (guard, holder), (agent.pid,)
        for pid in victims[number]:
            with contextlib.suppress(ProcessLookupError):  # ended by the survivor
                os.kill(pid, signal.SIGKILL)
    for number, (marker, agent, scratch) in enumerate(jobs):
        agent.wait(LIMIT_S)
        wait_until_gone(marker)
        deadline = time.monotonic() + LIMIT_S
        while number != 3 and (left := list(scratch.rglob("*"))):
            assert time.monotonic() < deadline, f"job {number} left {left}"
            time.sleep(0.01)


def test_job_directory_is_always_removed(
    tmp_path: Path, start: Start, launch: Launch, marker: str
) -> None:
    """The directory is removed even if the agent is killed. If everything that could remove it is
    killed, the next job does so, and removes nothing else.
    """
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    variables = {"TMPDIR": str(scratch)}
    alone, agent, lost = (
        start("run", "--no-python", "sleep", marker, variables=variables) for _ in range(3)
    )
    wait_until_up(marker, 6)  # the agents and their workers
    assert len(list(scratch.iterdir())) == 3
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    deadline = time.monotonic() + LIMIT_S
    while len(list(scratch.iterdir())) > 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    alone.send_signal(signal.SIGSTOP)  # it removes other jobs' directories a second after it starts
    pids = [lost.pid, *holders(lost.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in reversed(pids):  # the end of a parent continues its child
        os.kill(pid, signal.SIGKILL)
    lost.wait()
    assert len(list(scratch.iterdir())) == 2
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    for name in ("relight_mine", "relight_00000000_1", "other"):
        (scratch / name).mkdir()
    (scratch / f"relight_{boot}_2").symlink_to(scratch / "other")
    (scratch / f"relight_{boot}_3").mkdir()
    assert launch("run", "--no-python", "true", TMPDIR=str(scratch)).returncode == 0
    left = {path.name for path in scratch.iterdir()}
    assert left > {"relight_mine", "relight_00000000_1", "other", f"relight_{boot}_2"}
    assert len(left) == 5  # including the directory of the live agent
    alone.send_signal(signal.SIGCONT)
    alone.send_signal(signal.SIGTERM)
    assert alone.wait(LIMIT_S) == 143
    wait_until_gone(marker)
    assert len(list(scratch.iterdir())) == 4


def test_waiting_agent_has_no_job_directory(
    tmp_path: Path, start: Start, script: Callable[[str], Path]
) -> None:
    """The agent waits for other nodes, or for --preload to finish its imports."""
    scratch = tmp_path / "tmp"
    (tmp_path / "lib").mkdir()
    scratch.mkdir()
    (tmp_path / "lib" / "slow.py").write_text("import time; time.sleep(600)")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        endpoint = f"--rdzv-endpoint=127.0.0.1:{sock.getsockname()[1]}"
    waits = ("--nnodes=2", "--rdzv-backend=c10d", endpoint, "--rdzv-id=1", "-v")
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(tmp_path / "lib")])
    for flags, said in ((waits, b"rendezvous at"), (("--preload=slow", "-v"), b"preload")):
        agent = start("run", *flags, script("print('ran')"), command=FIRST_WARM,
                      variables={"TMPDIR": str(scratch), "PYTHONPATH": path})  # fmt: skip
        assert agent.stderr is not None
        while said not in (line := agent.stderr.readline()):
            assert line
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        assert list(scratch.iterdir()) == []
