"""Findings about a machine, by table, and observations on a real one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LIMIT_S, RELIGHT, Launch, clean_environment

from relight.base.env import Environment
from relight.health import inspection
from relight.health.finding import ERROR, OK, WARNING
from relight.health.machine_findings import GIB, MIB, NO_LIMIT, Accelerators, Disk, Machine, judge

GOOD = Machine(
    host="node1",
    shm=Disk("/dev/shm", 64 * GIB, 60 * GIB),
    tmp=Disk("/tmp", 64 * GIB, 60 * GIB),
    files=65536,
    files_hard=65536,
    tasks_of_user=NO_LIMIT,
    tasks_of_cgroup=NO_LIMIT,
    locked=NO_LIMIT,
    rdma=("mlx5_0",),
    memory=NO_LIMIT,
    gpus=Accelerators(8, 8, 8, driver="580.1"),
    python="3.11.7",
    torch="2.13.0",
    own_name=("10.0.0.1",),
    addresses=("lo 127.0.0.1", "eth0 10.0.0.1"),
)


@pytest.mark.parametrize(
    ("changes", "level", "words", "remedy"),
    [
        ({"shm": Disk("/dev/shm", 64 * MIB, 60 * MIB)}, ERROR, "64 MiB", "--shm-size"),
        ({"shm": Disk("/dev/shm", 512 * MIB, 500 * MIB)}, WARNING, "512 MiB", "--ipc=host"),
        ({"shm": Disk("/dev/shm", 8 * GIB, 20 * MIB)}, WARNING, "20 MiB left", "remove"),
        ({"shm": Disk("/dev/shm", 0, 0, "No such file")}, ERROR, "No such file", "mount"),
        ({"tmp": Disk("/tmp", GIB, 0)}, ERROR, "/tmp has 0 bytes left", "TMPDIR"),
        ({"tmp": Disk("/tmp", GIB, 50 * MIB)}, WARNING, "50 MiB left", "TMPDIR"),
        ({"tmp": Disk("/t", 0, 0, "Permission denied")}, ERROR, "/t is not writable: Permission",
         "TMPDIR"),
        ({"files": 64}, ERROR, "only 64 files", "ulimit -n 65536"),
        ({"files": 512, "files_hard": 512}, WARNING, "only 512 files", "hard limit"),
        ({"files": 1024}, OK, "", ""),
        ({"files": NO_LIMIT}, OK, "", ""),
        ({"tasks_of_user": 100}, ERROR, "only 100 more", "ulimit -u"),
        ({"tasks_of_cgroup": 1000}, WARNING, "pids.max", "--pids-limit"),
        ({"locked": 8 * MIB}, WARNING, "8 MiB of memory may be locked", "memlock"),
        ({"locked": 8 * MIB, "rdma": ()}, OK, "", ""),
        ({"memory": 700 * MIB}, WARNING, "only 700 MiB", "--memory"),
        ({"gpus": Accelerators(8, 0, 0)}, ERROR, "8 GPUs on the bus, but no driver", "driver"),
        ({"gpus": Accelerators(8, 0, 0, driver="580")}, ERROR, "none can be opened", "--gpus all"),
        ({"gpus": Accelerators(8, 8, 0, "CUDA_VISIBLE_DEVICES=", driver="580")}, ERROR,
         "all hidden by CUDA_VISIBLE_DEVICES=", "unset"),
        ({"gpus": Accelerators(2, 2, 1, "CUDA_VISIBLE_DEVICES=0,7", 2, "580")}, WARNING,
         "lists 2 devices, but only 1 of them", "this machine has 2 GPUs"),
        ({"gpus": Accelerators(1, 1, 1, holders=("python (pid 7)",))}, WARNING,
         "python (pid 7)", "stop"),
        ({"gpus": Accelerators()}, OK, "", ""),
        ({"torch": ""}, WARNING, "torch is not installed", "PYTHON_EXEC"),
        ({"own_name": ("127.0.1.1",)}, WARNING, "only to loopback addresses (127.0.1.1)",
         "GLOO_SOCKET_IFNAME"),
        ({"own_name": ()}, WARNING, "resolves to no address", "here eth0 10.0.0.1"),
    ],
)  # fmt: skip
def test_each_machine_fault_yields_one_finding_with_a_remedy(
    changes: dict[str, object], level: str, words: str, remedy: str
) -> None:
    """A machine without faults causes none."""
    wrong = [f for f in judge(GOOD._replace(**changes), alone=False) if f.level != OK]
    if level == OK:
        assert wrong == []
        return
    (found,) = wrong
    assert (found.level, found.where) == (level, "node1")
    assert words in found.what
    assert remedy in found.remedy
    assert found.why


def test_healthy_machine_produces_no_warnings_or_errors() -> None:
    """A single node needs no name."""
    assert {f.level for f in judge(GOOD, alone=False)} == {OK}
    assert {f.level for f in judge(GOOD._replace(own_name=()), alone=True)} == {OK}


def tree(root: Path, files: dict[str, str]) -> str:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return str(root)


def test_available_memory_is_minimum_over_parent_cgroups(tmp_path: Path) -> None:
    """Page cache doesn't count as used."""
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/memory.max": "1000000",
            "sys/fs/cgroup/job/memory.current": "900000",
            "sys/fs/cgroup/job/memory.stat": "anon 1\ninactive_file 300000\n",
            "sys/fs/cgroup/job/step/memory.max": "max",
            "sys/fs/cgroup/job/step/pids.max": "100",
            "sys/fs/cgroup/job/step/pids.current": "40",
        },
    )
    seen = inspection.read(Environment({}), {}, root)
    assert (seen.memory, seen.tasks_of_cgroup) == (400000, 60)


def test_huge_cgroup_v1_limit_means_no_limit(tmp_path: Path) -> None:
    """Version 1 represents "unlimited" as a huge number."""
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "8:pids:/a\n4:memory:/a\n0::/\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/pids/a/pids.max": "50",
        },
    )
    seen = inspection.read(Environment({}), {}, root)
    assert (seen.memory, seen.tasks_of_cgroup) == (NO_LIMIT, 50)


def nvidia(root: Path, count: int, usable: int, *, loaded: bool = True) -> str:
    files = {}
    for number in range(count):
        pci = f"0000:0{number}:00.0"
        files[f"sys/bus/pci/devices/{pci}/class"] = "0x030200"
        files[f"sys/bus/pci/devices/{pci}/vendor"] = "0x10de"
        if loaded:
            files[f"proc/driver/nvidia/gpus/{pci}/information"] = f"Device Minor: \t {number}\n"
        if number < usable:
            files[f"dev/nvidia{number}"] = ""
    if loaded:
        files["sys/module/nvidia/version"] = "580.65.06"
    return tree(root, files)


@pytest.mark.parametrize(
    ("count", "usable", "loaded", "variables", "expected"),
    [
        (4, 4, True, {}, Accelerators(4, 4, 4, driver="580.65.06")),
        (4, 0, True, {}, Accelerators(4, 0, 0, driver="580.65.06")),
        (4, 0, False, {}, Accelerators(4, 0, 0)),
        (2, 2, True, {"CUDA_VISIBLE_DEVICES": "1,5"},
         Accelerators(2, 2, 1, "CUDA_VISIBLE_DEVICES=1,5", 2, "580.65.06")),
        (2, 2, True, {"CUDA_VISIBLE_DEVICES": ""},
         Accelerators(2, 2, 0, "CUDA_VISIBLE_DEVICES=", -1, "580.65.06")),
        (0, 0, False, {}, Accelerators()),
    ],
)  # fmt: skip
def test_present_usable_and_visible_gpus_are_counted_separately(
    tmp_path: Path,
    count: int,
    usable: int,
    loaded: bool,
    variables: dict[str, str],
    expected: Accelerators,
) -> None:
    root = nvidia(tmp_path, count, usable, loaded=loaded)
    assert inspection.gpus(Environment(variables), root) == expected


def test_finding_names_process_that_uses_the_gpu(tmp_path: Path) -> None:
    """A process that has only the driver's own files open isn't named."""
    root = nvidia(tmp_path, 1, 1)
    tree(tmp_path, {"proc/4711/comm": "python\n", "proc/4712/comm": "nvidia-smi\n"})
    for pid, device in ((4711, "nvidia0"), (4712, "nvidiactl")):
        folder = tmp_path / f"proc/{pid}/fd"
        folder.mkdir()
        os.symlink(f"/dev/{device}", folder / "5")
    assert inspection.gpus(Environment({}), root).holders == ("python (pid 4711)",)


def test_doctor_without_flags_checks_the_local_machine(launch: Launch, tmp_path: Path) -> None:
    """Findings are printed as JSON on request."""
    result = launch("doctor", "--json", TMPDIR=str(tmp_path))
    told = json.loads(result.stdout)
    assert told["nodes"] == []
    assert {f["level"] for f in told["findings"]} <= {OK, WARNING, ERROR}
    assert result.returncode == (0 if told["ok"] else 1)
    assert told["machine"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "torch" not in result.stderr


def test_low_file_limit_and_unwritable_tmpdir_are_reported(launch: Launch, tmp_path: Path) -> None:
    shell = ("sh", "-c", 'ulimit -n 100; exec "$@"', "sh", *RELIGHT)
    result = launch("doctor", command=shell, TMPDIR=str(tmp_path / "none"))
    assert result.returncode == 1
    assert "only 100 files may be open" in result.stdout
    assert f"{tmp_path / 'none'} is not writable: No such file" in result.stdout
    assert "-> free space there, or set TMPDIR" in result.stdout


@pytest.mark.needs_root
@pytest.mark.needs_mounts
def test_small_shared_memory_is_reported_as_an_error_with_a_remedy(tmp_path: Path) -> None:
    """Containers have little by default. The hint has the flags that increase it."""
    mount = 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"'
    command = [str(shutil.which("unshare")), "--mount", "sh", "-c", mount, "sh", *RELIGHT, "doctor"]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=LIMIT_S,
        check=False,
    )
    assert result.returncode == 1, result
    assert (
        "shared memory (/dev/shm) is only 64 MiB (this is the default in containers"
        in result.stdout
    )
    assert "--shm-size" in result.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--nnode=2",), "--nnodes=2 without --rdzv-endpoint"),
        (("--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=x"), "needs an endpoint"),
        (("--timeout=0",), "above 0"),
        (("--bogus",), "unknown flag: --bogus"),
    ],
)
def test_invalid_doctor_flags_exit_with_2_before_any_check(
    launch: Launch, flags: tuple[str, ...], words: str
) -> None:
    result = launch("doctor", *flags)
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr


def test_doctor_help_lists_main_flags_and_exit_codes(launch: Launch) -> None:
    text = launch("doctor", "--help").stdout
    for word in ("--nnodes", "--rdzv-endpoint", "--timeout", "--json", "exit code: 0"):
        assert word in text
    assert "--tee" not in text
