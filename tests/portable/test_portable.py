"""Features that work without Linux, tested on a Linux that imitates macOS or Windows."""

import inspect
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, Start, long
from test_orphans import CHILD, ELSEWHERE, END, marked, marker, wait_until_gone, wait_until_up

import relight
from portable import exceptions
from relight.agent import missing_at_init
from relight.core.group.messages import GenerationFormed
from relight.core.ranks import Generation, GenerationId, Place
from relight.host import linux, portable
from relight.net.store_port import StorePort
from relight.processes.worker_processes import Workers

__all__ = ["marker"]

HERE = Path(__file__).parent
MACOS = (sys.executable, str(HERE / "fake_system.py"), "darwin")
WINDOWS = (sys.executable, str(HERE / "fake_system.py"), "win32")
TREE = (CHILD + ELSEWHERE + END).format
OF_TWO = 10


def used() -> set[str]:
    """Return the names from `system` that the launcher uses."""
    texts = (path.read_text() for path in Path(relight.__file__).parent.rglob("*.py"))
    return {name for text in texts for name in re.findall(r"\bsystem\.(\w+)", text)}


@pytest.mark.parametrize("name", sorted(used()))
def test_linux_and_portable_modules_have_the_same_functions(name: str) -> None:
    """Every function that the launcher uses from `system` has the same arguments."""
    one, other = getattr(linux, name), getattr(portable, name)
    if inspect.isfunction(one):
        assert str(inspect.signature(one)) == str(inspect.signature(other))
    if inspect.isclass(one) and one.__module__ == linux.__name__:
        public = {name for name in vars(one) if not name.startswith("_")}
        assert public == {name for name in vars(other) if not name.startswith("_")}


STRICT = """
import os, select, sys
sys.path.insert(0, {here!r})
import fake_system
fake_system.become("darwin")
def refused(what):
    try:
        what()
    except (AttributeError, FileNotFoundError, ImportError) as error:
        return type(error).__name__
import importlib
for what in (
    lambda: os.pipe2(0), lambda: os.pidfd_open(1), lambda: os.memfd_create("x"),
    lambda: os.sched_getaffinity(0), lambda: select.epoll(), lambda: open("/proc/self/stat"),
    lambda: os.open("/proc/self/stat", 0), lambda: os.listdir("/proc"),
    lambda: importlib.import_module("relight.host.linux"),
    lambda: importlib.import_module("_ctypes"),
):
    print(refused(what))
print(sys.platform, os.path.exists("/proc/self"), os.path.exists("/"))
"""


@pytest.mark.processes
def test_fake_macos_lacks_linux_features() -> None:
    """Jobs on the fake macOS can't use them by accident."""
    program = STRICT.format(here=str(HERE))
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout.split() == [
        *["AttributeError"] * 5, *["FileNotFoundError"] * 3, *["ModuleNotFoundError"] * 2,
        "darwin", "False", "True",
    ], result.stderr  # fmt: skip


FAILS_ONCE = """
import os, sys
print("rank", os.environ["RANK"], "attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])
if os.environ["TORCHELASTIC_RESTART_COUNT"] < os.environ["GOOD"] and os.environ["RANK"] == "1":
    raise ValueError("no luck")
"""


@pytest.mark.parametrize(("good", "code"), [("1", 0), ("2", 1)])
def test_single_node_job_runs_on_macos(
    good: str, code: int, tmp_path: Path, launch: Launch
) -> None:
    """It restarts, writes its logs, and reports the failure."""
    script = tmp_path / "train.py"
    script.write_text(FAILS_ONCE)
    result = launch(
        "run", "--nproc-per-node=2", "--max-restarts=1", "--tee=3", "--log-dir=logs", script,
        command=MACOS, GOOD=good,
    )  # fmt: skip
    assert result.returncode == code, result.stderr
    for attempt in (0, 1):  # rank 0 may be stopped before it has printed anything
        assert f"[default1]:rank 1 attempt {attempt}\n" in result.stdout
        (log,) = tmp_path.glob(f"logs/*/attempt_{attempt}/1/stdout.log")
        assert log.read_text() == f"rank 1 attempt {attempt}\n"
    assert "rank 1 raised ValueError: no luck" in result.stderr
    assert "Traceback" not in result.stderr.partition("relight: rank 1 raised")[0].replace(
        "[default1]:Traceback", ""
    )


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (
            ("run", "--nnodes=1:2", "--no-python", "echo", "started"),
            "a multi-node job (--nnodes)",
        ),
        (("run", "--numa-binding=node", "--no-python", "echo", "started"), "--numa-binding"),
        (("coordinator",), "relight coordinator"),
        (("warm",), "relight warm"),
    ],
)
def test_error_states_which_feature_requires_linux(
    words: tuple[str, ...], what: str, launch: Launch
) -> None:
    """The error is one line, and nothing is started."""
    result = launch(*words, command=MACOS)
    assert (result.returncode, result.stdout) == (2, "")
    first, hint = result.stderr.splitlines()
    assert first == f"relight: error: {what} needs Linux"
    assert hint.startswith("hint: ")


def test_preload_flag_on_macos_prints_a_note(launch: Launch, tmp_path: Path) -> None:
    """--preload only makes restarts faster, so the job runs without it."""
    (tmp_path / "train.py").write_text("print('trained')")
    result = launch("run", "--preload=json", "train.py", command=MACOS)
    assert (result.returncode, result.stdout) == (0, "trained\n")
    assert "note: --preload has no effect" in result.stderr


def test_job_without_a_status_socket_prints_nothing_about_it(
    launch: Launch, tmp_path: Path
) -> None:
    """Nothing is printed even after a second, when Linux opens a socket for `relight status`."""
    script = tmp_path / "train.py"
    script.write_text("import time; time.sleep(1.5)")
    result = launch("run", script, command=MACOS)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("name", exceptions.REASONS)
def test_each_listed_exception_is_an_existing_test(name: str) -> None:
    """`make portable` skips these."""
    file, _, test = name.partition("[")[0].partition("::")
    assert f"def {test}" in (HERE.parent / file).read_text()


def holders(agent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]


@pytest.mark.parametrize(
    "who", [long("agent"), long("holder"), "both", "all of their name", "one is stopped"]
)
def test_guardian_terminates_leftover_processes(
    who: str, start: Start, tmp_path: Path, marker: str
) -> None:
    """Workers, their descendants and the guardian end when the agent, the spawner or both are
    killed or stopped.
    """
    program = tmp_path / "tree.sh"
    program.write_text(TREE(marker=marker, lifetime="600", code=0))
    agent = start("run", "--nproc-per-node=2", "--no-python", "sh", program, command=MACOS)
    wait_until_up(marker, OF_TWO)
    (holder,) = holders(agent.pid)
    guardian = guardian_of(holder)
    if who == "one is stopped":
        os.kill(holder, signal.SIGSTOP)
        agent.kill()
    elif who == "all of their name":
        for pid in marked("fake_system.py"):
            if os.getpgid(pid) in (agent.pid, holder):
                os.kill(pid, signal.SIGKILL)
    else:
        for pid in {"agent": [agent.pid], "holder": [holder]}.get(who, [agent.pid, holder]):
            os.kill(pid, signal.SIGKILL)
    wait_until_gone(marker)
    _, errors = agent.communicate(timeout=LIMIT_S)
    if who == "holder":
        assert agent.returncode == 137
        assert b"the worker spawner" in errors
    wait_for(lambda: not pipes(guardian))


def test_child_processes_are_killed_before_their_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this process is killed midway, the guardian must find the remaining ones, and only its
    parent can find a process in its own session.
    """
    row = portable._PsRow
    rows = [row(1, 0, 1, gone=False), row(10, 1, 10, gone=False)]
    rows += [row(pid, pid - 1, pid, gone=False) for pid in (11, 12)]
    signals = []

    def kill(pid: int, number: int) -> None:
        signals.append((number, pid))
        if number == signal.SIGKILL:
            rows[:] = [each for each in rows if each.pid != pid]

    monkeypatch.setattr(portable, "_processes", lambda: list(rows))
    monkeypatch.setattr(os, "kill", kill)
    portable.sweep({10}, ())
    assert signals[:3] == [(signal.SIGSTOP, pid) for pid in (10, 11, 12)]
    assert signals[3:] == [(signal.SIGKILL, pid) for pid in (12, 11, 10)]


def pipes(pid: int) -> set[str]:
    try:
        found = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:  # it has ended
        return set()
    return {name for name in found if name.startswith("pipe:")}


def guardian_of(holder: int) -> int:
    """Return the guardian of the workers' parent. It may start later than the workers."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := [pid for pid in marked("-I\0-S\0") if pipes(pid) & pipes(holder)]):
        assert time.monotonic() < deadline, "the guardian did not come up"
        time.sleep(0.01)
    (pid,) = found
    return pid


WATCHES = "import sys; from relight.processes.guardian import watch; watch(*map(int, sys.argv[1:]))"


@pytest.mark.parametrize("holder_is", ["stopped", "gone"])
def test_late_guardian_still_terminates_leftover_processes(holder_is: str, start: Start) -> None:
    """It wakes a stopped parent even if the agent exited before the guardian's first check. It
    ends workers even if the parent had exited before the agent's exit was noticed.
    """
    told, tell = os.pipe()
    watched, alive = os.pipe()
    fds = (told, os.open(os.devnull, os.O_WRONLY), watched)
    holder, worker = start("600", command=("sleep",)), start("600", command=("sleep",))
    os.write(tell, f"holder {holder.pid}\nbegan {worker.pid}\n".encode())
    if holder_is == "stopped":
        holder.send_signal(signal.SIGSTOP)
        os.close(alive)
    else:
        holder.kill()
        holder.wait()
    guardian = start(*map(str, fds), command=(sys.executable, "-c", WATCHES), pass_fds=fds)
    if holder_is == "stopped":
        wait_for(lambda: not stopped(holder.pid))
    else:
        wait_for(lambda: not select.select([told], [], [], 0)[0])  # the guardian has read the lines
        os.close(alive)
    for fd in (*fds, tell):
        os.close(fd)
    assert guardian.wait(LIMIT_S) == 0
    assert worker.poll() == -signal.SIGKILL


def stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:  # it has ended
        return False


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_workers_run_without_guardian(tmp_path: Path, launch: Launch) -> None:
    """It may have been killed, or may have failed to start."""
    (tmp_path / "run.py").write_text(
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "import fake_system; fake_system.become('darwin')\n"
        "from relight.cli.main import entry\n"
        "sys.executable = '/no/python'\n"
        "entry()\n"
    )
    command = (sys.executable, "run.py")
    result = launch("run", "--no-python", "sh", "-c", "sleep 0.2; echo trained", command=command)
    assert (result.returncode, result.stdout) == (0, "trained\n"), result.stderr


@pytest.mark.parametrize("words", [("run", "--no-python"), ("submit", "utils.sh")])
def test_escaped_daemon_does_not_delay_end_of_job(
    words: tuple[str, ...], marker: str, launch: Launch, tmp_path: Path
) -> None:
    """A process that can't be found is left behind, together with its end of a pipe."""
    daemon = f"setsid sh -c 'sleep {marker} &' & sleep 0.3; echo done"
    variables = {"RELIGHT_STATE_DIR": str(tmp_path)}
    result = launch(*words, "sh", "-c", daemon, timeout=LIMIT_S, command=MACOS, **variables)
    for pid in marked(marker):
        os.kill(pid, signal.SIGKILL)
    assert result.returncode == 0, result.stderr
    assert "done\n" in result.stdout + result.stderr


LAUNCHES = """
import os, sys, time
import relight
def work(marker):
    import subprocess
    subprocess.run(["sleep", marker])
relight.launch(work, sys.argv[1])
"""


def test_launched_job_ends_when_its_caller_exits(start: Start, tmp_path: Path, marker: str) -> None:
    """This holds even if the caller is killed."""
    script = tmp_path / "launches.py"
    script.write_text(LAUNCHES)
    caller = start(script, marker, command=(*MACOS, "python"))
    wait_until_up(marker, 2)
    caller.kill()
    caller.wait()
    wait_until_gone(marker)


@pytest.mark.parametrize("command", ["run", "launch", "coordinator", "doctor"])
def test_unsupported_system_is_rejected_with_one_line_error(command: str, launch: Launch) -> None:
    """The error names the supported systems."""
    result = launch(command, "train.py", command=WINDOWS)
    assert (result.returncode, result.stdout) == (2, "")
    first, hint = result.stderr.splitlines()
    assert first == (
        "relight: error: relight runs workers on Linux and, on a single node, macOS; this is win32"
    )
    assert hint.startswith("hint: ")


def test_client_commands_work_without_linux(launch: Launch, tmp_path: Path) -> None:
    """Queries and submissions work wherever Python does. Running something locally is rejected."""
    home = {"HOME": str(tmp_path), "RELIGHT_HOME": str(tmp_path), "USERNAME": "ann"}
    job = ("dist.ddp", "-j", "1x1", "--image", "mine:1", "-m", "train")
    dryrun = launch("submit", "-s", "docker", "--dryrun", *job, command=WINDOWS, **home)
    assert dryrun.returncode == 0, dryrun.stderr
    assert "relight run" in dryrun.stdout
    listed = launch("schedulers", command=WINDOWS, **home)
    assert listed.returncode == 0, listed.stderr
    local = launch("submit", "-s", "local", *job, command=WINDOWS, **home)
    assert local.returncode == 2
    assert local.stderr.startswith("relight: error: relight runs workers on Linux")


class Come(StorePort):
    most_clients = 3
    served = True

    def __init__(self) -> None:
        pass


def test_arrived_workers_are_counted_without_proc_filesystem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store knows how many workers have arrived, but not which ones."""
    monkeypatch.setattr(missing_at_init.os.path, "isdir", lambda path: False)
    place = Place(0, 1, 0, 4, 4, "default", 0, 4)
    formed = GenerationFormed(Generation(GenerationId(0, "c"), 0, "127.0.0.1", 1, ""), place)
    workers = Workers.__new__(Workers)
    text = "3 of 4 workers have reached init_process_group"
    assert missing_at_init.explain(workers, (), formed, Come()) == text
    assert missing_at_init.explain(workers, (), formed, None) == ""
