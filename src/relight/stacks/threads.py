"""The operating system's view of a process's threads (proc(5))."""

import os
from typing import NamedTuple

from relight.stacks.process_memory import StackError, forbidden, gone

_CALLS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv",
        20: "writev", 23: "select", 34: "pause", 35: "nanosleep", 42: "connect", 43: "accept",
        44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 56: "clone", 58: "vfork",
        61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync",
        128: "rt_sigtimedwait", 130: "rt_sigsuspend", 202: "futex",
        219: "restart_syscall", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid",
        257: "openat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4",
    },
    "aarch64": {
        22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 56: "openat", 63: "read",
        64: "write", 65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64", 72: "pselect6",
        73: "ppoll", 82: "fsync", 95: "waitid", 98: "futex", 101: "nanosleep",
        115: "clock_nanosleep", 128: "restart_syscall", 133: "rt_sigsuspend",
        137: "rt_sigtimedwait", 202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom",
        211: "sendmsg", 212: "recvmsg", 220: "clone", 242: "accept4", 260: "wait4",
    },
}  # fmt: skip
"""Blocking system calls, by number (arch/x86/entry/syscalls/syscall_64.tbl,
include/uapi/asm-generic/unistd.h).
"""
_MAX = 1000


class Task(NamedTuple):
    """A thread that the system knows. The `inner_id` field is the thread's id in the process's own
    pid namespace.
    """

    native_id: int
    inner_id: int
    name: str
    waits_in: str


def tasks(pid: int) -> list[Task]:
    """Return up to 1000 threads of a process, main thread first.

    Raises:
        StackError: if the process has exited.
    """
    try:
        numbers = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        raise gone(pid) from None
    except OSError as error:
        raise forbidden(pid, error) from None
    numbers.sort(key=lambda number: (number != pid, number))
    return [_task(f"/proc/{pid}/task/{number}", number) for number in numbers[:_MAX]]


def process_state(pid: int) -> str:
    """Return the letter that /proc shows for the state of a process.

    Raises:
        StackError: if the process has exited, or if /proc is missing.
    """
    letter = _fields(f"/proc/{pid}/status").get("State", "")[:1]
    if not letter and not os.path.exists("/proc/self/status"):
        raise StackError(
            f"can't read the stack of process {pid}: this system has no /proc",
            hint=f"pip install py-spy; py-spy dump --pid {pid}",
        )
    if not letter:
        raise gone(pid)
    return letter


def _task(folder: str, number: int) -> Task:
    fields = _fields(f"{folder}/status")
    inner = fields.get("NSpid", "").split()[-1:]  # Linux 4.1
    name = _read(f"{folder}/comm").rstrip("\n")
    return Task(number, int(inner[0]) if inner else number, name, _waits_in(folder))


def _waits_in(folder: str) -> str:
    """Return the system call or kernel function in which a thread is waiting, or an empty string if
    it is unknown. Reading either of them requires permission to trace the process.
    """
    words = _read(f"{folder}/syscall").split()
    if words and words[0].lstrip("-").isdecimal():
        calls = _CALLS.get(os.uname().machine, {})
        number = int(words[0])
        return calls.get(number, f"call {number}") if number >= 0 else ""
    if words[:1] == ["running"]:
        return ""
    place = _read(f"{folder}/wchan").strip()
    return "" if place == "0" else place


def _fields(path: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in _read(path).splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""  # the thread has ended, or the kernel does not show this
