"""The kernel's counters show whether a worker was killed by the OOM killer."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import LIMIT_S, RELIGHT, Launch

from relight.agent import postmortem
from relight.core.failure import ErrorReport, Failure, FailureKind
from relight.host.kernel_log import Kill, parse
from relight.host.loop import Loop
from relight.host.oom_detector import OomKills

NONE_SENT = "neither relight nor the out-of-memory killer sent it"
PID = 4711
HUGE = "9223372036854771712"


class Machine:
    """A fake /proc and /sys/fs/cgroup."""

    def __init__(self, directory: Path) -> None:
        self.proc = directory / "proc"
        self.root = directory / "cgroup"
        self.write("proc/vmstat", "nr_free_pages 7\noom_kill 3\n")

    def write(self, name: str, text: str) -> None:
        path = self.proc.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def kills(self, log: list[Kill] | None = None) -> OomKills:
        return OomKills(str(self.proc), str(self.root), lambda since: log)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_oom_kill_in_cgroup_v2_is_reported_with_memory_limit(machine: Machine) -> None:
    """The limit is the smallest one among the enclosing cgroups."""
    machine.write("proc/self/cgroup", "0::/user/job\n")
    machine.write("cgroup/user/job/memory.events", "low 0\noom 9\noom_kill 2\n")
    machine.write("cgroup/user/job/memory.max", "max\n")
    machine.write("cgroup/user/memory.max", f"{64 * 2**20}\n")
    kills = machine.kills()
    assert kills.explain_child_kill(0.0, is_worker=False) == ""
    assert kills.explain_kill(PID, 0.0) == NONE_SENT
    machine.write("cgroup/user/job/memory.events", "low 0\noom 9\noom_kill 3\n")
    machine.write("proc/vmstat", "oom_kill 4\n")
    expected = (
        "perhaps out of memory (limit 64 MiB): the kernel killed one process in cgroup /user/job"
    )
    assert (
        kills.explain_kill(PID, 0.0) == kills.explain_child_kill(0.0, is_worker=False) == expected
    )
    machine.write("cgroup/user/job/memory.events", "oom_kill 4\n")
    assert "killed 2 processes in cgroup" in kills.explain_kill(PID, 0.0)


def test_long_cgroup_path_is_shortened_to_its_end(machine: Machine) -> None:
    path = f"/kubepods.slice/{'a' * 64}/{'b' * 20}.scope"
    machine.write("proc/self/cgroup", f"0::{path}\n")
    machine.write(f"cgroup{path}/memory.events", "oom_kill 0\n")
    kills = machine.kills()
    machine.write(f"cgroup{path}/memory.events", "oom_kill 1\n")
    assert kills.explain_kill(PID, 0.0).endswith(f" in cgroup …{'a' * 12}/{'b' * 20}.scope")


def test_oom_kill_in_cgroup_v1_is_reported_with_memory_limit(machine: Machine) -> None:
    """The memory controller has its own hierarchy, and a number that means `no limit`."""
    machine.write("proc/self/cgroup", "9:name=systemd:/x\n4:memory:/job\n0::/\nnonsense\n")
    control = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
    machine.write("cgroup/memory/job/memory.oom_control", control.format(0))
    machine.write("cgroup/memory/job/memory.limit_in_bytes", HUGE)
    kills = machine.kills()
    machine.write("cgroup/memory/job/memory.oom_control", control.format(1))
    assert kills.explain_kill(PID, 0.0) == (
        "perhaps out of memory: the kernel killed one process in cgroup /job"
    )


def test_oom_kill_in_container_is_found_in_its_root_cgroup(machine: Machine) -> None:
    """In a container, the path is relative to the host and the mount is the container's
    own root.
    """
    machine.write("proc/self/cgroup", "0::/kubepods/pod1\n")
    machine.write("cgroup/memory.events", "oom_kill 0\n")
    machine.write("cgroup/memory.max", f"{2**30}\n")
    kills = machine.kills()
    machine.write("cgroup/memory.events", "oom_kill 1\n")
    assert kills.explain_kill(PID, 0.0) == (
        "perhaps out of memory (limit 1024 MiB): the kernel killed one process in its cgroup"
    )


def test_oom_kill_in_another_cgroup_is_reported_as_unlikely_cause(machine: Machine) -> None:
    """The text says that some other process was killed for lack of memory."""
    machine.write("proc/self/cgroup", "0::/job\n")
    machine.write("cgroup/job/memory.events", "oom_kill 0\n")
    kills = machine.kills()
    machine.write("proc/vmstat", "oom_kill 5\n")
    assert kills.explain_kill(PID, 0.0) == (
        "probably not out of memory: the kernel killed 2 processes in the meantime, "
        "but in other cgroups"
    )


def test_machine_wide_oom_kill_is_reported_as_possible_cause(machine: Machine) -> None:
    """If only the machine-wide counter changed, the text says `perhaps`. Without any counter,
    the text is empty.
    """
    kills = machine.kills()
    assert kills.explain_kill(PID, 0.0) == NONE_SENT
    machine.write("proc/vmstat", "oom_kill 4\n")
    assert kills.explain_kill(PID, 0.0) == (
        "perhaps out of memory: the kernel killed one process somewhere on this machine in the "
        "meantime"
    )
    machine.write("proc/vmstat", "nr_free_pages 7\n")
    assert kills.explain_child_kill(0.0, is_worker=False) == ""
    blind = machine.kills()
    assert blind.explain_kill(PID, 0.0) == ""


IN_CGROUP = (
    b"6,1,0,-;booted",
    b"6,2,900000000,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,"
    b"mems_allowed=0,oom_memcg=/old,task_memcg=/old,task=python,pid=4711,uid=0\n",
    b"3,7,900000000,-;Memory cgroup out of memory: Killed process 4711 (python) total-vm:61872kB",
    b"3,8,994000000,-;Memory cgroup out of memory: Killed process 4712 (cc1 plus) total-vm:1kB",
    b"3,9,999000000,c;Out of memory: Killed process 4713 (python) total-vm:61872kB\n SUBSYSTEM=x",
    b"6,10,999500000,-;Someone said: Killed process 4714 (python) total-vm",
    b"nonsense",
    b"6,11;;",
)


def test_oom_killed_processes_are_read_from_kernel_log() -> None:
    expected = [Kill(4712, "cc1 plus", 994.0, True), Kill(4713, "python", 999.0, False)]
    assert parse(list(IN_CGROUP), 950.0) == expected


OF_CHILD_CGROUP = (
    b"6,1,0,-;booted",
    b"6,8,994000000,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,"
    b"mems_allowed=0,oom_memcg=/step,task_memcg=/step/rank,task=python,pid=4712,uid=0\n",
    b"3,9,994000100,-;Memory cgroup out of memory: Killed process 4712 (python) total-vm:1kB\n",
    b"3,10,995000000,-;Memory cgroup out of memory: Killed process 4713 (python) total-vm:1kB\n",
    b"6,11,996000000,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,"
    b"mems_allowed=0,global_oom,task_memcg=/job,task=python,pid=4714,uid=0\n",
    b"3,12,996000100,-;Out of memory: Killed process 4714 (python) total-vm:1kB\n",
)


def test_oom_kill_has_only_the_cgroup_that_kernel_log_names_for_its_process() -> None:
    found = parse(list(OF_CHILD_CGROUP), 950.0)
    assert found is not None
    assert [(kill.pid, kill.cgroup) for kill in found] == [(4712, "/step"), (4713, ""), (4714, "")]


def test_escaped_names_in_kernel_log_are_decoded() -> None:
    """Control characters stay escaped."""
    found = parse(
        [
            b"6,1,0,-;booted",
            b"6,8,994000000,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,"
            b"mems_allowed=0,oom_memcg=/my\\x5cx2djob.service,task_memcg=/x,task=p,pid=4712,uid=0",
            b"3,9,994000100,-;Memory cgroup out of memory: Killed process 4712 (\\xc3\\xa9\\x0a) ",
        ],
        950.0,
    )
    assert found == [Kill(4712, "é\\x0a", 994.0001, True, "/my\\x2djob.service")]


def test_kernel_log_that_starts_too_late_is_not_used() -> None:
    assert parse(list(IN_CGROUP[1:]), 890.0) is None
    assert parse([], 890.0) is None


def test_kernel_log_confirms_or_rules_out_oom_kill(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/job\n")
    machine.write("cgroup/job/memory.events", "oom_kill 0\n")
    machine.write("cgroup/job/memory.max", f"{2**30}\n")
    kills = machine.kills([Kill(4712, "python", 94.0, True), Kill(4713, "python", 99.5, False)])
    machine.write("cgroup/job/memory.events", "oom_kill 2\n")
    assert kills.explain_kill(4712, 94.1) == (
        "out of memory: the kernel killed it in a cgroup that had reached its limit (kernel log)"
    )
    assert kills.explain_kill(4713, 99.6) == "out of memory: the kernel killed it (kernel log)"
    assert kills.explain_kill(PID, 100.0) == (
        f"{NONE_SENT}; the latter killed process 4713 0.5 s before"
    )
    assert kills.explain_kill(PID, 90.0) == NONE_SENT


def test_oom_kill_report_names_cgroup_from_kernel_log_and_its_limit(machine: Machine) -> None:
    """A worker may be in another cgroup than the agent."""
    machine.write("proc/self/cgroup", "0::/job\n")
    machine.write("cgroup/job/memory.events", "oom_kill 0\n")
    machine.write("cgroup/job/memory.max", f"{2**30}\n")
    machine.write("cgroup/step/memory.max", f"{300 * 2**20}\n")
    kills = machine.kills(
        [Kill(4712, "python", 94.0, True, "/step"), Kill(4713, "tok", 99.5, True, "/removed")]
    )
    assert kills.explain_kill(4712, 94.1) == (
        "out of memory (limit 300 MiB): the kernel killed it in cgroup /step (kernel log)"
    )
    assert kills.explain_child_kill(99.6, is_worker=False) == (
        "probably out of memory: the kernel killed process 4713 (tok) in cgroup /removed "
        "(kernel log)"
    )


def test_limit_of_own_cgroup_is_found_in_a_cgroup_namespace(machine: Machine) -> None:
    """The kernel log has the path on the host."""
    machine.write("proc/self/cgroup", "0::/job\n")
    machine.write("cgroup/job/memory.events", "oom_kill 0\n")
    machine.write("cgroup/job/memory.max", f"{2**30}\n")
    kills = machine.kills([Kill(4712, "python", 94.0, True, "/lxc/c1/job")])
    assert kills.explain_kill(4712, 94.1) == (
        "out of memory (limit 1024 MiB): the kernel killed it in cgroup /lxc/c1/job (kernel log)"
    )


def test_oom_killed_child_is_identified_from_kernel_log(machine: Machine) -> None:
    kills = machine.kills([Kill(4712, "pt_data_worker", 94.0, False)])
    assert kills.explain_child_kill(95.0, is_worker=False) == (
        "probably out of memory: the kernel killed process 4712 (pt_data_worker) (kernel log)"
    )
    assert kills.explain_child_kill(105.0, is_worker=False) == ""
    assert kills.explain_child_kill(105.0, is_worker=True) == NONE_SENT


KILLED = [
    "CalledProcessError: Command 'tok' died with <Signals.SIGKILL: 9>.",
    "CalledProcessError: Command 'tok' returned non-zero exit status 137.",
    "BrokenProcessPool: A process in the process pool was terminated abruptly",
    "ProcessExitedException: process 0 terminated with signal SIGKILL",
    "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ",
    "RuntimeError: tokenizer failed (-9)",
    "RuntimeError: the prefetcher ended with code -9",
]


@pytest.mark.parametrize("is_raised", [True, False], ids=["raised", "printed"])
@pytest.mark.parametrize(
    ("message", "is_child"),
    [
        *((each, True) for each in KILLED),
        ("KeyError: 137", False),
        ("ValueError: lr 1e-9", False),
        ("RuntimeError: failed at step 137", False),
        ("RuntimeError: training exited at epoch 137", False),
    ],
)
def test_oom_killed_child_is_reported_if_the_worker_noticed_its_death(
    machine: Machine, message: str, is_child: bool, is_raised: bool
) -> None:
    kills = machine.kills([Kill(4712, "tok", 94.0, False)])
    report = ErrorReport(FailureKind.RAISED, *message.split(": ", 1), "", "", (message,))
    failure = Failure(
        0, 0, "vm", PID, 1, 95.0, 0, report if is_raised else None,
        ("loading", message), "", "",
    )  # fmt: skip
    workers = SimpleNamespace(oom_kills=kills, loaders={})
    found = postmortem._explain_sigkill(failure, "loading\n", workers)
    expected = "probably out of memory: the kernel killed process 4712 (tok) (kernel log)"
    assert found == (expected if is_child else "")


@pytest.mark.parametrize(
    ("later_s", "expected"),
    [
        (0.0, "probably out of memory: the kernel killed one process in cgroup /job"),
        (60.0, "probably not out of memory: the kernel killed another process 60.0 s before"),
    ],
)
def test_time_of_oom_kill_is_taken_from_counter_change(
    machine: Machine, later_s: float, expected: str
) -> None:
    machine.write("proc/self/cgroup", "0::/job\n")
    machine.write("cgroup/job/memory.events", "oom_kill 0\n")
    loop, kills = Loop(), machine.kills()
    try:
        kills.watch(loop)
        machine.write("cgroup/job/memory.events", "oom_kill 1\n")
        loop.run_once(LIMIT_S)
        assert kills.explain_kill(PID, time.monotonic() + later_s) == expected
    finally:
        kills.close()
        loop.close()


EATER = """
import os, sys, time
if os.environ["RANK"] != "1":
    time.sleep(600)
kept = []
while True:
    kept.append(b"x" * 2**20)
"""


def limited_cgroup(mebibytes: int) -> tuple[Path, str]:
    """Create a memory cgroup, and return its directory and its path in the hierarchy."""
    name = f"relight-test-{os.getpid()}"
    limit = str(mebibytes * 2**20)
    swaps = len(Path("/proc/swaps").read_text().splitlines()) > 1
    for root, file, swap in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max"),
    ):
        directory = root / name
        if not (root / "cgroup.procs").exists():
            continue
        try:
            directory.mkdir()
        except OSError as error:
            pytest.skip(f"no cgroup can be made here: {error.strerror}")
        try:
            (directory / file).write_text(limit)
            if swaps:
                (directory / swap).write_text("0" if file == "memory.max" else limit)
        except OSError as error:
            directory.rmdir()
            pytest.skip(f"memory can't be limited here: {error.strerror}")
        return directory, f"/{name}"
    pytest.skip("no memory cgroups here")


@pytest.fixture
def cgroup() -> Iterator[tuple[Path, str]]:
    directory, name = limited_cgroup(64)
    yield directory, name
    deadline = time.monotonic() + LIMIT_S
    while (directory / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    directory.rmdir()


def test_oom_killed_worker_is_reported_with_memory_limit(
    cgroup: tuple[Path, str], launch: Launch, script: Callable[[str], Path]
) -> None:
    """The kernel really kills this worker for lack of memory."""
    directory, name = cgroup
    path = script(EATER)
    enter = f'echo $$ > {directory}/cgroup.procs && exec "$@"'
    result = launch("-c", enter, "sh", *RELIGHT, "run", "--nproc-per-node=2", path, command=("sh",))
    assert result.returncode == 137, result.stderr
    first = result.stderr[result.stderr.index("relight: rank") :].split("\n")[0]
    assert first == (
        "relight: rank 1 was killed by SIGKILL: "
        f"out of memory (limit 64 MiB): the kernel killed it in cgroup {name} (kernel log)"
    )


HANDLED = """
import os, subprocess, sys
if os.environ["RANK"] == "1":
    eats = "kept = [b'x' * 2**20 for _ in range(200)]"
    assert subprocess.run([sys.executable, "-c", eats]).returncode == -9
    os.kill(os.getpid(), 9)
"""


SILENT = """
import os, subprocess, sys
if os.environ["RANK"] == "1":
    eats = "kept = [b'x' * 2**20 for _ in range(200)]"
    sys.exit(subprocess.run([sys.executable, "-c", eats]).returncode != 0)
"""


def test_worker_exit_is_explained_by_oom_kill_of_its_child(
    cgroup: tuple[Path, str], launch: Launch, script: Callable[[str], Path]
) -> None:
    directory, _ = cgroup
    path = script(SILENT)
    enter = f'echo $$ > {directory}/cgroup.procs && exec "$@"'
    result = launch("-c", enter, "sh", *RELIGHT, "run", "--nproc-per-node=2", path, command=("sh",))
    assert result.returncode == 1, result.stderr
    said = "rank 1 exited with code 1: probably out of memory (limit 64 MiB): the kernel killed"
    assert said in result.stderr


def test_oom_kill_of_child_is_not_blamed_if_worker_handled_it(
    cgroup: tuple[Path, str], launch: Launch, script: Callable[[str], Path]
) -> None:
    directory, _ = cgroup
    path = script(HANDLED)
    enter = f'echo $$ > {directory}/cgroup.procs && exec "$@"'
    result = launch("-c", enter, "sh", *RELIGHT, "run", "--nproc-per-node=2", path, command=("sh",))
    assert result.returncode == 137, result.stderr
    assert f"rank 1 was killed by SIGKILL: {NONE_SENT}; the latter killed process" in result.stderr
