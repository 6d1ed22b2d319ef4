"""Examines this machine's limits, disks, devices and names. A limit that can't be read is treated
as unlimited.

The facts come from getrlimit(2), statvfs(3), cgroups(7), proc(5) and Linux's sysfs, and from
`host.devices` for the accelerators visible to a worker.
"""

import fcntl
import os
import resource
import socket
import struct
import tempfile
import threading
from collections.abc import Callable
from typing import TypeVar

from relight.base.env import Environment
from relight.base.values import NO_LIMIT
from relight.health.machine_findings import Accelerators, Disk, Machine
from relight.host import devices, files, free_memory
from relight.host.devices import content, entries

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_UNLIMITED = 2**60
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/renderD")
_NO_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-")
_NAME_S = 0.7
T = TypeVar("T")


def read(env: Environment, facts: dict[str, str], root: str = "/") -> Machine:
    """Return the facts about this machine.

    Args:
        env: the workers' environment.
        facts: as returned by `host.env_fingerprint.collect`.
        root: where /proc, /dev and /sys are; for tests.
    """
    files, files_hard = _limits(resource.RLIMIT_NOFILE)
    host = socket.gethostname()
    return Machine(
        host=host,
        shm=disk(os.path.join(root, "dev/shm")),
        tmp=disk(env.get("TMPDIR") or tempfile.gettempdir()),
        files=files,
        files_hard=files_hard,
        tasks_of_user=_user_tasks_left(root),
        tasks_of_cgroup=free_memory.cgroup_left(root, free_memory.TASKS),
        locked=_limits(resource.RLIMIT_MEMLOCK)[0],
        rdma=tuple(entries(os.path.join(root, "sys/class/infiniband"))),
        memory=free_memory.cgroup_left(root, free_memory.MEMORY),
        gpus=gpus(env, root),
        python=facts.get("Python", ""),
        torch=facts.get("torch", ""),
        own_name=with_time_limit(_NAME_S, lambda: resolve_addresses(host)) or (),
        addresses=_interfaces(root),
    )


def with_time_limit(seconds: float, call: Callable[[], T]) -> T | None:
    """Return the result of a call that may block, or None if it takes longer than `seconds`."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads are available
        return None
    thread.join(seconds)
    return found[0] if found else None


def resolve_addresses(host: str) -> tuple[str, ...]:
    """Return the addresses that a host name resolves to. The result is empty if the name can't be
    resolved.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def disk(path: str) -> Disk:
    """Return a directory's size and free space, and whether it is writable."""
    try:
        status = os.statvfs(path)
        with tempfile.NamedTemporaryFile(dir=path, prefix="relight-doctor-") as file:
            file.write(b"\0")
            file.flush()
    except OSError as error:
        return Disk(path, 0, 0, error.strerror or str(error))
    return Disk(path, status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail)


def gpus(env: Environment, root: str = "/") -> Accelerators:
    """Return this machine's accelerators, and how many of them are visible to a worker."""
    bare = Environment({})
    present = max(_gpus_on_bus(root), len(entries(os.path.join(root, "proc/driver/nvidia/gpus"))))
    usable = devices.gpus(bare, root)
    hiding = [name for name in _HIDING if name in env.variables]
    named = -1
    if len(hiding) == 1:
        words = env.variables[hiding[0]].split(",")
        named = len(words) if all(map(str.strip, words)) else -1
    return Accelerators(
        present=max(present, len(usable)),
        usable=len(usable),
        visible=len(devices.gpus(env, root)),
        hiding=", ".join(f"{name}={env.variables[name]}" for name in hiding),
        named=named,
        driver=driver(root),
        holders=_gpu_processes(root) if usable else (),
    )


def driver(root: str = "/") -> str:
    """Return the version of the GPU driver, or an empty string if no driver is loaded."""
    version = content(os.path.join(root, "sys/module/nvidia/version"))
    if version:
        return version
    amd = os.path.join(root, "sys/module/amdgpu")
    return (content(os.path.join(amd, "version")) or "amdgpu") if os.path.isdir(amd) else ""


def open_files(pid: str, proc: str = "/proc") -> set[str]:
    """Return the files that a process has open. The result is empty if the process belongs to
    another user or has exited.
    """
    try:
        return set(files.open_descriptors(f"{proc}/{pid}/fd").values())
    except OSError:
        return set()


def collect_facts(machine: Machine) -> dict[str, str]:
    """Return additional facts that are expected to be the same on all nodes."""
    found = {"GPUs": str(machine.gpus.visible)}
    if machine.gpus.driver:
        found["GPU driver"] = machine.gpus.driver
    low, _, high = content("/proc/sys/net/ipv4/ip_local_port_range").partition("\t")
    if low.isdecimal() and high.strip().isdecimal():
        found["port range"] = f"{low}-{high.strip()}"
    return found


def _gpus_on_bus(root: str) -> int:
    """Return the number of NVIDIA GPUs on the bus, whether or not a driver is loaded."""
    folder = os.path.join(root, "sys/bus/pci/devices")
    found = 0
    for name in entries(folder):
        kind = content(os.path.join(folder, name, "class"))
        if kind.startswith(("0x0300", "0x0302")):
            found += content(os.path.join(folder, name, "vendor")) == "0x10de"
    return found


def _gpu_processes(root: str) -> tuple[str, ...]:
    """Return the other processes that have a GPU open. Only processes that this user may inspect
    are included.
    """
    found = []
    for pid in entries(os.path.join(root, "proc")):
        if not pid.isdecimal() or int(pid) == os.getpid():
            continue
        files = open_files(pid, os.path.join(root, "proc"))
        if any(f.startswith(_DEVICES) and not f.startswith(_NO_DEVICES) for f in files):
            found.append(f"{content(os.path.join(root, 'proc', pid, 'comm'))} (pid {pid})")
    return tuple(found)


def _limits(kind: int) -> tuple[int, int]:
    soft, hard = resource.getrlimit(kind)
    return tuple(  # type: ignore[return-value]  # two of them
        NO_LIMIT if limit == resource.RLIM_INFINITY or limit > _UNLIMITED else limit
        for limit in (soft, hard)
    )


def _user_tasks_left(root: str) -> int:
    """Return how many more processes and threads this user may start. For root, the number is
    unlimited.
    """
    limit = _limits(resource.RLIMIT_NPROC)[0]
    if limit == NO_LIMIT or os.geteuid() == 0:
        return NO_LIMIT
    used = 0
    for pid in entries(os.path.join(root, "proc")):
        try:
            if pid.isdecimal() and os.stat(os.path.join(root, "proc", pid)).st_uid == os.geteuid():
                used += len(entries(os.path.join(root, "proc", pid, "task")))
        except OSError:
            continue
    return max(0, limit - used)


def _interfaces(root: str) -> tuple[str, ...]:
    """Return the addresses of this machine's network interfaces that are up."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("16s24x", name.encode()[:15])
            try:
                answer = fcntl.ioctl(sock, _SIOCGIFADDR, request)
            except OSError:
                continue  # no IPv4 address
            found.append(f"{name} {socket.inet_ntoa(answer[20:24])}")
    for line in content(os.path.join(root, "proc/net/if_inet6")).splitlines():
        fields = line.split()
        if len(fields) == 6:
            address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))
            found.append(f"{fields[5]} {address}")
    return tuple(found)
