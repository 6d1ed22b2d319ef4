"""Derives findings about a machine from the facts that `inspection.py` collects, without side
effects.
"""

from typing import NamedTuple

from relight.base.text import format_size, pluralize
from relight.base.values import NO_LIMIT
from relight.health.finding import ERROR, OK, WARNING, Finding

MIB, GIB = 1 << 20, 1 << 30

_MIN_FILES, _FEW_FILES = 256, 1024
_MIN_TASKS, _FEW_TASKS = 256, 2048
_MANY_HOLDERS = 6

SHM_REMEDY = (
    "use docker run --shm-size=16g or --ipc=host; in Kubernetes, mount an emptyDir with medium: "
    "Memory at /dev/shm; otherwise, mount -o remount,size=16g /dev/shm"
)
TMP_REMEDY = "free space there, or set TMPDIR to a directory with more space"
MEMORY_REMEDY = "raise the container's --memory, or the batch job's memory limit"
HOLDERS_REMEDY = "stop them if they are no longer needed (nvidia-smi shows their memory use)"


class Disk(NamedTuple):
    """A directory's size and free space in bytes, and why it is not writable (empty if it is)."""

    path: str
    size: int
    free: int
    error: str = ""


class Accelerators(NamedTuple):
    """The accelerators of a machine.

    `present` is their number according to the bus or the driver. The `usable` field is the number
    of accelerators whose device files can be opened. The `visible` field is the number that a
    worker sees after applying the variables in `hiding`, which are written `NAME=VALUE` and name
    `named` accelerators (-1: unknown). The `driver` field is the driver's version, or empty if none
    is loaded. The `holders` field contains other processes that have an accelerator open.
    """

    present: int = 0
    usable: int = 0
    visible: int = 0
    hiding: str = ""
    named: int = -1
    driver: str = ""
    holders: tuple[str, ...] = ()


class Machine(NamedTuple):
    """Facts about a machine. Sizes are in bytes, and `NO_LIMIT` means unlimited.

    The `tasks_of_user` and `tasks_of_cgroup` fields are how many more threads and processes
    RLIMIT_NPROC and the cgroup allow. The `locked` field is RLIMIT_MEMLOCK. The `rdma` field
    contains the names of InfiniBand and RoCE devices. The `memory` field is the memory left in the
    cgroup. The `own_name` field contains the addresses that the host's own name resolves to, and
    `addresses` contains those of its interfaces, such as `eth0 10.0.0.3`.
    """

    host: str
    shm: Disk
    tmp: Disk
    files: int
    files_hard: int
    tasks_of_user: int
    tasks_of_cgroup: int
    locked: int
    rdma: tuple[str, ...]
    memory: int
    gpus: Accelerators
    python: str
    torch: str
    own_name: tuple[str, ...]
    addresses: tuple[str, ...]


def judge(machine: Machine, *, alone: bool) -> list[Finding]:
    """Return the findings about a machine.

    Args:
        machine: its facts.
        alone: whether this is the only node, so that names and addresses do not matter.
    """
    found = [
        _shared_memory(machine.shm),
        _temporary(machine.tmp),
        _files(machine),
        *_tasks(machine),
        _locked(machine),
        _memory(machine),
        *_gpus(machine.gpus),
        _packages(machine),
        None if alone else _names(machine),
    ]
    return [finding._replace(where=machine.host) for finding in found if finding is not None]


def _shared_memory(shm: Disk) -> Finding:
    name, remedy = "shared memory (/dev/shm)", SHM_REMEDY
    why = "DataLoader workers and NCCL share data there, and crash with a bus error when it is full"
    if shm.error:
        return Finding(ERROR, f"{name} can't be used: {shm.error}", why=why, remedy=remedy)
    if shm.size <= 64 * MIB:
        why = f"this is the default in containers; {why}"
        return Finding(ERROR, f"{name} is only {_size(shm.size)}", why=why, remedy=remedy)
    if shm.size < GIB:
        return Finding(WARNING, f"{name} is only {_size(shm.size)}", why=why, remedy=remedy)
    if shm.free < GIB:
        what = f"{name} has {_size(shm.free)} left of {_size(shm.size)}"
        remedy = f"remove files left there by ended jobs; {remedy}"
        return Finding(WARNING, what, why=why, remedy=remedy)
    return Finding(OK, f"{name} has {_size(shm.free)} free")


def _temporary(tmp: Disk) -> Finding:
    why = "relight, Python and compilers write temporary files there"
    if tmp.error:
        what = f"{tmp.path} is not writable: {tmp.error}"
        return Finding(ERROR, what, why=why, remedy=TMP_REMEDY)
    if tmp.free < 100 * MIB:
        level = ERROR if tmp.free < MIB else WARNING
        what = f"{tmp.path} has {_size(tmp.free)} left"
        return Finding(level, what, why=why, remedy=TMP_REMEDY)
    return Finding(OK, f"{tmp.path} has {_size(tmp.free)} free")


def _files(machine: Machine) -> Finding:
    limit = machine.files
    if limit == NO_LIMIT or limit >= _FEW_FILES:
        return Finding(OK, f"open files: {_count(limit)}")
    can = machine.files_hard
    more = f"ulimit -n {_count(can)}" if can != limit else "raise the hard limit first"
    return Finding(
        ERROR if limit < _MIN_FILES else WARNING,
        f"only {limit} files may be open (ulimit -n)",
        why="DataLoader workers and connections need hundreds; otherwise: 'Too many open files'",
        remedy=f"{more}; docker run --ulimit nofile=65536; LimitNOFILE= in systemd",
    )


def _tasks(machine: Machine) -> list[Finding]:
    findings = [
        Finding(
            ERROR if left < _MIN_TASKS else WARNING,
            f"only {left} more processes and threads can be started ({name})",
            why="each worker needs dozens of threads; otherwise: 'Resource temporarily "
            "unavailable'",
            remedy=remedy,
        )
        for left, name, remedy in (
            (machine.tasks_of_user, "ulimit -u", "raise ulimit -u (/etc/security/limits.conf)"),
            (
                machine.tasks_of_cgroup,
                "the cgroup's pids.max",
                "docker run --pids-limit=-1; the kubelet's podPidsLimit; TasksMax= in systemd",
            ),
        )
        if left != NO_LIMIT and left < _FEW_TASKS
    ]
    return findings or [Finding(OK, "processes and threads are not limited")]


def _locked(machine: Machine) -> Finding | None:
    if not machine.rdma or machine.locked == NO_LIMIT or machine.locked >= 16 * GIB:
        return None
    return Finding(
        WARNING,
        f"only {_size(machine.locked)} of memory may be locked (ulimit -l)",
        why=f"NCCL locks memory for RDMA ({machine.rdma[0]}); otherwise: 'Cannot allocate memory'",
        remedy="ulimit -l unlimited; docker run --ulimit memlock=-1; LimitMEMLOCK=infinity in "
        "systemd",
    )


def _memory(machine: Machine) -> Finding:
    if machine.memory == NO_LIMIT or machine.memory >= GIB:
        return Finding(OK, f"memory of the cgroup: {_size(machine.memory)}")
    return Finding(
        WARNING,
        f"the cgroup has only {_size(machine.memory)} of memory left",
        why="a worker with torch uses about 0.5 GiB; above the limit, it is killed (exit code 137)",
        remedy=MEMORY_REMEDY,
    )


def _gpus(gpus: Accelerators) -> list[Finding]:
    findings = [each for each in (_unusable_gpus(gpus), _used_gpus(gpus)) if each is not None]
    text = f"{pluralize(gpus.visible, 'GPU')} visible to workers" if gpus.visible else "no GPU"
    return findings or [Finding(OK, text)]


def _unusable_gpus(gpus: Accelerators) -> Finding | None:
    if gpus.present and not gpus.usable and not gpus.driver:
        return Finding(
            ERROR,
            f"{pluralize(gpus.present, 'GPU')} on the bus, but no driver is loaded",
            why="CUDA will find no device",
            remedy="install and load the driver (modprobe nvidia; dmesg shows why it fails)",
        )
    if gpus.present and not gpus.usable:
        return Finding(
            ERROR,
            f"the driver has {pluralize(gpus.present, 'GPU')}, but none can be opened",
            why="their device files in /dev are missing or not accessible",
            remedy="use docker run --gpus all; in a batch job, request GPUs (--gres=gpu:N); or "
            "check the permissions of /dev/nvidia*",
        )
    if gpus.usable and not gpus.visible:
        return Finding(
            ERROR,
            f"{pluralize(gpus.usable, 'GPU')}, all hidden by {gpus.hiding}",
            why="workers don't see any GPU",
            remedy="unset it, or list devices, starting at 0",
        )
    if 0 <= gpus.visible < gpus.named:
        return Finding(
            WARNING,
            f"{gpus.hiding} lists {gpus.named} devices, but only {gpus.visible} of them exist",
            why="CUDA stops at the first entry that does not exist",
            remedy=f"list devices that exist: this machine has {pluralize(gpus.usable, 'GPU')}, "
            "starting at 0",
        )
    return None


def _used_gpus(gpus: Accelerators) -> Finding | None:
    if not gpus.holders:
        return None
    shown = ", ".join(gpus.holders[:_MANY_HOLDERS])
    more = len(gpus.holders) - _MANY_HOLDERS
    return Finding(
        WARNING,
        f"other processes are using the GPUs: {shown}{f' and {more} more' if more > 0 else ''}",
        why="processes of an earlier job may still hold GPU memory: 'CUDA out of memory'",
        remedy=HOLDERS_REMEDY,
    )


def _packages(machine: Machine) -> Finding:
    if machine.torch:
        python = f"Python {machine.python}, " if machine.python else ""
        return Finding(OK, f"{python}torch {machine.torch}")
    return Finding(
        WARNING,
        "torch is not installed in the workers' Python environment, or can't be found",
        why="training scripts import it",
        remedy="activate the right environment, or set PYTHON_EXEC to its interpreter",
    )


def _names(machine: Machine) -> Finding:
    outside = [address for address in machine.own_name if not _is_local(address)]
    if outside:
        return Finding(OK, f"its own name resolves to {', '.join(outside)}")
    found = ", ".join(machine.own_name)
    what = f"only to loopback addresses ({found})" if found else "to no address"
    return Finding(
        WARNING,
        f"the machine's own name, {machine.host}, resolves {what}",
        why="gloo listens at that address, where other nodes can't reach it; relight itself does "
        "not use the name",
        remedy="map the name to the machine's address in /etc/hosts, or set GLOO_SOCKET_IFNAME to "
        f"the interface that other nodes can reach{_choice(machine.addresses)}",
    )


def _choice(addresses: tuple[str, ...]) -> str:
    outside = [a for a in addresses if not _is_local(a.rpartition(" ")[2])]
    return f" (here {', '.join(outside[:4])})" if outside else ""


def _is_local(address: str) -> bool:
    return address.startswith(("127.", "fe80:")) or address == "::1"


def _count(limit: int) -> str:
    return "unlimited" if limit == NO_LIMIT else str(limit)


def _size(size: int) -> str:
    return "unlimited" if size == NO_LIMIT else format_size(size)
