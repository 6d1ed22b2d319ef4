"""Finds in the kernel's log which processes the out-of-memory killer has killed.

Each read of /dev/kmsg returns one record, `6,1234,5678901,-;text`, with the time since boot in
microseconds (Documentation/ABI/testing/dev-kmsg). The killer logs `Out of memory: Killed process
1234 (python)`, or `Memory cgroup out of memory: Killed process …` (mm/oom_kill.c; before Linux 5.1,
the second half alone), with the pid of the initial namespace. Root may read the log, and others
where kernel.dmesg_restrict is 0. Loaded only after a SIGKILL that relight did not send.
"""

import os
import re
from typing import NamedTuple

_PATH = "/dev/kmsg"
_MOST_RECORDS = 50_000
_LARGEST = 8192
"""No record is larger (PRINTKRB_RECORD_MAX)."""
_KILLED = re.compile(
    rb"^(Memory cgroup out of memory: )?(?:Out of memory[^:]*: )?Killed process (\d+) \((.*?)\)[ ,]"
)
_INITIAL_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO (include/uapi/linux/nsfs.h)."""
_CLOCKS_DIFFER_S = 1.0


class Kill(NamedTuple):
    """A process that the out-of-memory killer has killed. `at` is on the monotonic clock; after a
    suspend of the machine, it is earlier than the kill. `in_cgroup`: the limit of a cgroup was hit.
    """

    pid: int
    name: str
    at: float
    in_cgroup: bool


def kills(since: float) -> list[Kill] | None:
    """Return the kills since then; None if the log can't be read, does not reach as far back, or
    has other pids than this process sees.

    Args:
        since: on the monotonic clock.
    """
    try:
        if os.readlink("/proc/self/ns/pid") != _INITIAL_NAMESPACE:
            return None
        fd = os.open(_PATH, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return parse(_records(fd), since)
    finally:
        os.close(fd)


def parse(records: list[bytes], since: float) -> list[Kill] | None:
    """Return the kills in records of the log, as `kills` does."""
    found: list[Kill] = []
    oldest = float("inf")
    for record in records:
        head, _, text = record.partition(b";")
        fields = head.split(b",")
        if len(fields) < 3 or not fields[2].isdigit():
            continue
        at = int(fields[2]) / 1e6
        oldest = min(oldest, at)
        match = _KILLED.match(text)
        if match and at >= since - _CLOCKS_DIFFER_S:
            name = match[3].decode(errors="replace")
            found.append(Kill(int(match[2]), name, at, match[1] is not None))
    return found if oldest <= since else None


def _records(fd: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < _MOST_RECORDS:
        try:
            found.append(os.read(fd, _LARGEST))
        except BrokenPipeError:
            continue  # records were overwritten; the next read starts after them
        except OSError:
            break  # EAGAIN: no more records
    return found
