"""Detects kills by the kernel's out-of-memory killer, from counters of the cgroup and the machine.

The kernel does not tell a parent why its child got SIGKILL, but it counts such kills: `oom_kill` in
memory.events (cgroup v2) and in memory.oom_control (cgroup v1, Linux 4.13) for the processes of the
cgroup, whichever limit was hit, and in /proc/vmstat for all processes of the machine.
"""

import os

from relight.host.files import read_small
from relight.typed import NamedTuple

_ROOT = "/sys/fs/cgroup"
_UNLIMITED = 2**60


class _Cgroup(NamedTuple):
    """A memory cgroup: its path in the hierarchy, the hierarchy's mount point, and its files."""

    path: str
    mount: str
    counter: str
    limit: str


class OomCounters:
    """Remembers the number of out-of-memory kills so far, to detect later ones."""

    def __init__(self, proc: str = "/proc", root: str = _ROOT) -> None:
        self._cgroup = _memory_cgroup(f"{proc}/self/cgroup", root)
        self._counter = self._cgroup.counter if self._cgroup is not None else ""
        self._vmstat = f"{proc}/vmstat"
        self._before = _read(self._counter)
        self._machine_before = _read(self._vmstat)

    def kills(self) -> str:
        """Describe the out-of-memory kills since this object was made; empty if there were none."""
        here = _increase(self._before, _read(self._counter))
        if here and self._cgroup is not None:
            limit = _limit(self._cgroup)
            at = f" (limit {limit / 2**20:.0f} MiB)" if limit else ""
            return (
                f"out of memory{at}: the kernel killed {_processes(here)} in {_name(self._cgroup)}"
            )
        machine = _increase(self._machine_before, _read(self._vmstat))
        if not machine:
            return ""
        if here is None:
            return (
                f"perhaps out of memory: the kernel killed {_processes(machine)} "
                "somewhere on this machine meanwhile"
            )
        return (
            "probably not out of memory: "
            f"the kernel killed {_processes(machine)} meanwhile, but in other cgroups"
        )

    def evidence(self) -> str:
        """Describe whether a process that got SIGKILL was killed for lack of memory."""
        found = self.kills()
        if found or self._machine_before is None:
            return found
        return "neither relight nor the out-of-memory killer sent it"


def _memory_cgroup(memberships: str, root: str) -> _Cgroup | None:
    """Return the memory cgroup of this process (cgroups(7)), if its counter can be read."""
    try:
        rows = [line.split(":", 2) for line in os.fsdecode(read_small(memberships)).split("\n")]
    except OSError:
        return None
    for _, controllers, path in (row for row in rows if len(row) == 3):
        if controllers == "":
            mount, counter, limit = root, "memory.events", "memory.max"
        elif "memory" in controllers.split(","):
            mount, counter, limit = f"{root}/memory", "memory.oom_control", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the host's, and the mount its own root.
        for where in (path, "/"):
            folder = os.path.normpath(f"{mount}/{where}")
            if _read(f"{folder}/{counter}") is not None:
                return _Cgroup(where, mount, f"{folder}/{counter}", limit)
    return None


def _read(path: str) -> int | None:
    """Return the `oom_kill` counter in a file."""
    try:
        _, found, after = (b"\n" + read_small(path)).partition(b"\noom_kill ")
        if found:
            return int(after.partition(b"\n")[0])
    except (OSError, ValueError):
        pass
    return None


def _increase(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else max(0, now - before)


def _limit(cgroup: _Cgroup) -> int:
    """Return the smallest limit of a cgroup and its parents; 0 if there is none."""
    limits = []
    path = cgroup.path.strip("/")
    while True:
        try:
            with open(os.path.normpath(f"{cgroup.mount}/{path}/{cgroup.limit}")) as file:
                limits.append(int(file.read()))
        except (OSError, ValueError):
            pass  # `max`, or the root
        if not path:
            return min((limit for limit in limits if limit < _UNLIMITED), default=0)
        path = path.rpartition("/")[0]


def _name(cgroup: _Cgroup) -> str:
    path = cgroup.path
    if not path.strip("/"):
        return "its cgroup"
    return f"cgroup {path if len(path) <= 40 else f'…{path[-39:]}'}"


def _processes(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"
