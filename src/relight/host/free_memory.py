"""Determines how much memory is available to new processes, and whether memory is low.

Sources: cgroups(7), proc(5), Documentation/accounting/psi.rst of Linux.
"""

import os
from typing import NamedTuple

from relight.base.values import NO_LIMIT
from relight.host.devices import cgroups, content, values

PLENTY = 2 << 30
"""A number of bytes that is more than twice the memory of a process that has imported torch, its
CUDA libraries and the HF Trainer.
"""
_UNLIMITED = 2**60


class Limit(NamedTuple):
    """The names of the cgroup files that contain a limit and the current usage, in cgroup versions
    1 and 2. The `cache` field is the entry in memory.stat whose memory counts as free.
    """

    controller: str
    limit2: str
    limit1: str
    used2: str
    used1: str
    cache: str = ""


MEMORY = Limit(
    "memory",
    "memory.max",
    "memory.limit_in_bytes",
    "memory.current",
    "memory.usage_in_bytes",
    "inactive_file",
)
TASKS = Limit("pids", "pids.max", "pids.max", "pids.current", "pids.current")


def available(root: str = "/") -> int:
    """Return how many bytes of memory are available to new processes on this machine and in this
    process's cgroup, or `NO_LIMIT`.
    """
    left = [cgroup_left(root, MEMORY)]
    size = values(os.path.join(root, "proc/meminfo"), ":").get("MemAvailable", "")
    if (number := size.partition(" ")[0]).isdecimal():
        left.append(int(number) * 1024)
    return min((each for each in left if each != NO_LIMIT), default=NO_LIMIT)


def why_scarce(root: str = "/") -> str:
    """Return the reason not to start an optional process because memory is low, or an empty string
    if it can be started.

    Memory pressure is not considered, because the kernel measures it for the whole machine. Another
    container that has reached its own limit increases the pressure, and so does rereading a file
    that was dropped from the cache.
    """
    left = available(root)
    if left == NO_LIMIT or left >= PLENTY:
        return ""
    return f"only {left >> 20} MiB of memory available"


def cgroup_left(root: str, kind: Limit) -> int:
    """Return how much is left before this process's cgroup or one of its ancestors reaches its
    limit, or NO_LIMIT.
    """
    left = []
    for folder, is_unified in cgroups(root, kind.controller):
        limit = content(os.path.join(folder, kind.limit2 if is_unified else kind.limit1))
        if limit.isdecimal() and int(limit) < _UNLIMITED:
            used = content(os.path.join(folder, kind.used2 if is_unified else kind.used1))
            free = int(limit) - (int(used) if used.isdecimal() else 0)
            left.append(max(0, free + _in_stat(folder, kind.cache)))
    return min(left, default=NO_LIMIT)


def _in_stat(folder: str, name: str) -> int:
    stat = values(os.path.join(folder, "memory.stat"), " ") if name else {}
    cached = stat.get(name) or stat.get(f"total_{name}") or ""
    return int(cached) if cached.isdecimal() else 0
