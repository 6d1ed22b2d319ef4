r"""Reads the kernel log, and finds the processes that the out-of-memory killer killed.

Each read of /dev/kmsg returns one record, `6,1234,5678901,-;text`, with the time since boot in
microseconds and unprintable bytes as `\xNN` (Documentation/ABI/testing/dev-kmsg). The killer logs
`Out of memory: Killed process 1234 (python)`, or `Memory cgroup out of memory: Killed process …`
(mm/oom_kill.c; before Linux 5.1, only the second half), with the pid in the initial namespace.
Before that, Linux 5.0 and later log `oom-kill:constraint=…`, which names the cgroup that reached
its limit, but not for every kill. Root may always read the log. Other users may read it if
kernel.dmesg_restrict is 0. Loaded only after a failure.
"""

import os
import re
from typing import NamedTuple

_PATH = "/dev/kmsg"
_MAX_RECORDS = 50_000
_LARGEST = 8192
"""The maximum size of a record (PRINTKRB_RECORD_MAX)."""
_ESCAPE = re.compile(rb"\\x(5c|[89a-f][0-9a-f])")
"""A backslash, or a byte outside ASCII. Control characters stay escaped, for the terminal's sake.
"""
_KILLED = re.compile(
    rb"^(Memory cgroup out of memory: )?(?:Out of memory[^:]*: )?Killed process (\d+) \((.*?)\)[ ,]"
)
_VICTIM = re.compile(rb"^oom-kill:.*,oom_memcg=(.*),task_memcg=.*,pid=(\d+),uid=")
_INITIAL_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO (include/uapi/linux/nsfs.h)."""
CLOCKS_DIFFER_S = 1.0
"""The maximum difference between the kernel log's clock and the monotonic clock."""


class Kill(NamedTuple):
    """A process that was killed by the out-of-memory killer.

    The `at` field is the time of the kill on the monotonic clock. If the machine has been
    suspended, `at` is too early. The `in_cgroup` field indicates that a cgroup reached its limit,
    and `cgroup` is that cgroup's path, or empty if the log doesn't name it.
    """

    pid: int
    name: str
    at: float
    in_cgroup: bool
    cgroup: str = ""


def kills(since: float) -> list[Kill] | None:
    """Return the out-of-memory kills since a point in time. Return None if the log can't be read,
    doesn't go back far enough, or contains pids from a different namespace than this process's.

    Args:
        since: on the monotonic clock.
    """
    found = records() if sees_all_pids() else None
    return None if found is None else parse(found, since)


def sees_all_pids() -> bool:
    """Return whether the pids in the kernel log belong to this process's pid namespace."""
    try:
        return os.readlink("/proc/self/ns/pid") == _INITIAL_NAMESPACE
    except OSError:
        return False


def records(path: str = _PATH) -> list[bytes] | None:
    """Return the records in the kernel log, oldest first, or None if the log can't be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    found: list[bytes] = []
    try:
        while len(found) < _MAX_RECORDS:
            try:
                line = os.read(fd, _LARGEST)
            except BrokenPipeError:
                continue  # records were overwritten; the next read starts after them
            except OSError:
                break  # EAGAIN: no more records
            if not line:
                break  # not the device
            found.append(line)
    finally:
        os.close(fd)
    return found


def record(line: bytes) -> tuple[float, bytes] | None:
    """Return a record's time on the monotonic clock and its unescaped text, or None if the line
    isn't a record.
    """
    head, _, text = line.partition(b";")
    fields = head.split(b",")
    if len(fields) < 3 or not fields[2].isdigit():
        return None
    return int(fields[2]) / 1e6, _ESCAPE.sub(lambda byte: bytes([int(byte[1], 16)]), text)


def parse(lines: list[bytes], since: float) -> list[Kill] | None:
    """Do the same as `kills`, but with log records that have already been read."""
    found: list[Kill] = []
    cgroups: dict[int, str] = {}
    oldest = float("inf")
    for at, text in filter(None, map(record, lines)):
        oldest = min(oldest, at)
        if victim := _VICTIM.match(text):
            cgroups[int(victim[2])] = victim[1].decode(errors="replace")
        elif match := _KILLED.match(text):
            pid, in_cgroup = int(match[2]), match[1] is not None
            cgroup = cgroups.pop(pid, "") if in_cgroup else ""
            if at >= since - CLOCKS_DIFFER_S:
                name = match[3].decode(errors="replace")
                found.append(Kill(pid, name, at, in_cgroup, cgroup))
    return found if oldest <= since else None
