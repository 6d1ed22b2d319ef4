"""What the kernel counts tells whether a worker was killed for lack of memory."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S, RELIGHT, Launch

from relight.host.memory import OomCounters

NONE_SENT = "neither relight nor the out-of-memory killer sent it"
HUGE = "9223372036854771712"


class Machine:
    """A made-up /proc and /sys/fs/cgroup."""

    def __init__(self, directory: Path) -> None:
        self.proc = directory / "proc"
        self.root = directory / "cgroup"
        self.write("proc/vmstat", "nr_free_pages 7\noom_kill 3\n")

    def write(self, name: str, text: str) -> None:
        path = self.proc.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def counters(self) -> OomCounters:
        return OomCounters(str(self.proc), str(self.root))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_kill_in_a_cgroup_of_version_2_is_named_with_its_limit(machine: Machine) -> None:
    """The smallest limit on the way up."""
    machine.write("proc/self/cgroup", "0::/user/job\n")
    machine.write("cgroup/user/job/memory.events", "low 0\noom 9\noom_kill 2\n")
    machine.write("cgroup/user/job/memory.max", "max\n")
    machine.write("cgroup/user/memory.max", f"{64 * 2**20}\n")
    counters = machine.counters()
    assert counters.kills() == ""
    assert counters.evidence() == NONE_SENT
    machine.write("cgroup/user/job/memory.events", "low 0\noom 9\noom_kill 3\n")
    machine.write("proc/vmstat", "oom_kill 4\n")
    expected = "out of memory (limit 64 MiB): the kernel killed one process in cgroup /user/job"
    assert counters.evidence() == counters.kills() == expected
    machine.write("cgroup/user/job/memory.events", "oom_kill 4\n")
    assert "killed 2 processes in cgroup" in counters.evidence()


def test_of_a_long_cgroup_path_the_end_is_shown(machine: Machine) -> None:
    path = f"/kubepods.slice/{'a' * 64}/{'b' * 20}.scope"
    machine.write("proc/self/cgroup", f"0::{path}\n")
    machine.write(f"cgroup{path}/memory.events", "oom_kill 0\n")
    counters = machine.counters()
    machine.write(f"cgroup{path}/memory.events", "oom_kill 1\n")
    assert counters.evidence().endswith(f" in cgroup …{'a' * 12}/{'b' * 20}.scope")


def test_a_kill_in_a_cgroup_of_version_1_is_named_with_its_limit(machine: Machine) -> None:
    """The memory controller has a hierarchy of its own, and numbers for `no limit`."""
    machine.write("proc/self/cgroup", "9:name=systemd:/x\n4:memory:/job\n0::/\nnonsense\n")
    control = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
    machine.write("cgroup/memory/job/memory.oom_control", control.format(0))
    machine.write("cgroup/memory/job/memory.limit_in_bytes", HUGE)
    counters = machine.counters()
    machine.write("cgroup/memory/job/memory.oom_control", control.format(1))
    assert counters.evidence() == "out of memory: the kernel killed one process in cgroup /job"


def test_a_kill_in_a_container_is_found_below_its_own_root(machine: Machine) -> None:
    """In a container the path is the host's, and the mount is the container's own root."""
    machine.write("proc/self/cgroup", "0::/kubepods/pod1\n")
    machine.write("cgroup/memory.events", "oom_kill 0\n")
    machine.write("cgroup/memory.max", f"{2**30}\n")
    counters = machine.counters()
    machine.write("cgroup/memory.events", "oom_kill 1\n")
    assert counters.evidence() == (
        "out of memory (limit 1024 MiB): the kernel killed one process in its cgroup"
    )


def test_a_kill_elsewhere_is_no_proof(machine: Machine) -> None:
    """If another process was killed for lack of memory, the text says that it was elsewhere."""
    machine.write("proc/self/cgroup", "0::/job\n")
    machine.write("cgroup/job/memory.events", "oom_kill 0\n")
    counters = machine.counters()
    machine.write("proc/vmstat", "oom_kill 5\n")
    assert counters.evidence() == (
        "probably not out of memory: the kernel killed 2 processes meanwhile, but in other cgroups"
    )


def test_without_a_cgroup_the_text_says_perhaps(machine: Machine) -> None:
    """Where only the machine counts, the text says perhaps; where nothing counts, nothing."""
    counters = machine.counters()
    assert counters.evidence() == NONE_SENT
    machine.write("proc/vmstat", "oom_kill 4\n")
    assert counters.evidence() == (
        "perhaps out of memory: the kernel killed one process somewhere on this machine meanwhile"
    )
    machine.write("proc/vmstat", "nr_free_pages 7\n")
    assert counters.kills() == ""
    blind = machine.counters()
    assert blind.evidence() == ""


EATER = """
import os, sys, time
if os.environ["RANK"] != "1":
    time.sleep(600)
kept = []
while True:
    kept.append(b"x" * 2**20)
"""


def limited_cgroup(mebibytes: int) -> tuple[Path, str]:
    """Make a memory cgroup; return its directory and its path in the hierarchy."""
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


def test_a_worker_killed_for_lack_of_memory_is_reported_so(
    cgroup: tuple[Path, str], launch: Launch, script: Callable[[str], Path]
) -> None:
    """A worker that the kernel kills for lack of memory is reported so, with the limit."""
    directory, name = cgroup
    path = script(EATER)
    enter = f'echo $$ > {directory}/cgroup.procs && exec "$@"'
    result = launch("-c", enter, "sh", *RELIGHT, "run", "--nproc-per-node=2", path, command=("sh",))
    assert result.returncode == 137, result.stderr
    first = result.stderr[result.stderr.index("relight: rank") :].split("\n")[0]
    assert first == (
        "relight: rank 1 was killed by SIGKILL: "
        f"out of memory (limit 64 MiB): the kernel killed one process in cgroup {name}"
    )
