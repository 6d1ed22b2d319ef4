"""Did the kernel's out-of-memory killer end a process? Evidence from counters of the cgroup and the
machine.

Nobody tells a parent why its child got SIGKILL. The kernel counts, though: `oom_kill` in
memory.events (cgroup v2), in memory.oom_control (cgroup v1, Linux 4.13), and in /proc/vmstat for
the whole machine.
"""

import os
from typing import NamedTuple


class _Counter(NamedTuple):
    """A file with an `oom_kill` line, what it stands for, and the file with the limit."""

    path: str
    scope: str
    limit_path: str


class OomCounters:
    """The out-of-memory kills so far, so that later ones can be told from them."""

    def __init__(self) -> None:
        self._before = [(counter, _read(counter.path)) for counter in _counters()]

    def evidence(self) -> str:
        """Return what shows that memory ran out since this was made, or an empty string."""
        for counter, before in self._before:
            now = _read(counter.path)
            if before is not None and now is not None and now > before:
                limit = _limit(counter.limit_path)
                kills = now - before
                return (
                    f"out of memory ({counter.scope}{limit}: "
                    f"{kills} kill{'s' if kills > 1 else ''} by the kernel)"
                )
        return ""


def _counters() -> list[_Counter]:
    counters = []
    for controllers, path in _cgroups():
        if controllers == "":
            mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            events, limit = "memory.events", "memory.max"
        elif "memory" in controllers.split(","):
            mounts = ["/sys/fs/cgroup/memory"]
            events, limit = "memory.oom_control", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the host's, and the mount its own root.
        folders = [os.path.normpath(mount + where) for mount in mounts for where in (path, "/")]
        for folder in folders:
            if os.path.exists(f"{folder}/{events}"):
                counters.append(
                    _Counter(f"{folder}/{events}", f"cgroup {path}", f"{folder}/{limit}")
                )
                break
    return [*counters, _Counter("/proc/vmstat", "the whole machine", "")]


def _cgroups() -> list[tuple[str, str]]:
    """Return (controllers, path) of each hierarchy that this process is in (cgroups(7))."""
    try:
        with open("/proc/self/cgroup") as file:
            rows = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    return [(row[1], row[2]) for row in rows if len(row) == 3]


def _read(path: str) -> int | None:
    try:
        with open(path) as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    except (OSError, ValueError):
        pass
    return None


def _limit(path: str) -> str:
    try:
        with open(path) as file:
            limit = int(file.read())
    except (OSError, ValueError):
        return ""
    return f", limit {limit / 2**20:.0f} MiB" if limit < 2**60 else ""
