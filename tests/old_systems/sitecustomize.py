"""Disable Python functions and system calls in each Python that has this directory on PYTHONPATH.

    LACKS      names that CPython lacks, as in `os.pidfd_open signal.pidfd_send_signal`
    REFUSES    system calls and the error of each, as in `pidfd_open:ENOSYS memfd_create:EPERM`;
               `prctl=36:EINVAL` is a call with this first argument
    HIDES      files that can't be opened, as in `/proc/*/environ`
    NO         modules that can't be imported

A system call filter (seccomp(2)) is inherited by everything that the process starts, so the
variable is removed.
"""

import errno
import fnmatch
import importlib
import os
import struct
import sys

_NUMBERS = {
    "x86_64": {
        "prctl": 157, "sched_getscheduler": 145, "sched_setscheduler": 144,
        "sched_getaffinity": 204, "sched_setaffinity": 203, "setpriority": 141, "ioprio_set": 251,
        "inotify_init1": 294, "inotify_add_watch": 254, "memfd_create": 319, "waitid": 247,
        "prlimit64": 302, "epoll_create1": 291, "keyctl": 250, "process_vm_readv": 310,
    },
    "aarch64": {
        "prctl": 167, "sched_getscheduler": 120, "sched_setscheduler": 119,
        "sched_getaffinity": 123, "sched_setaffinity": 122, "setpriority": 140, "ioprio_set": 30,
        "inotify_init1": 26, "inotify_add_watch": 27, "memfd_create": 279, "waitid": 95,
        "prlimit64": 261, "epoll_create1": 20, "keyctl": 219, "process_vm_readv": 270,
    },
}  # fmt: skip
_EVERYWHERE = {"pidfd_open": 434, "pidfd_send_signal": 424, "close_range": 436}
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h
_NUMBER, _FIRST_ARGUMENT = 0, 16  # offsets in struct seccomp_data
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def lack(names: list[str]) -> None:
    """Remove names from modules."""
    for name in names:
        module, _, attribute = name.partition(".")
        delattr(importlib.import_module(module), attribute)


def refuse(calls: list[str]) -> None:
    """Make system calls fail."""
    import ctypes

    numbers = {**_NUMBERS[os.uname().machine], **_EVERYWHERE}
    program: list[tuple[int, int, int, int]] = []
    for call in calls:
        words, _, error = call.partition(":")
        name, _, argument = words.partition("=")
        program += [(_LOAD, 0, 0, _NUMBER), (_IF_EQUAL, 0, 3 if argument else 1, numbers[name])]
        if argument:
            program += [(_LOAD, 0, 0, _FIRST_ARGUMENT), (_IF_EQUAL, 0, 1, int(argument))]
        program.append((_RETURN, 0, 0, _ERRNO | getattr(errno, error)))
    program.append((_RETURN, 0, 0, _ALLOW))
    packed = b"".join(struct.pack("HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(packed)
    order = struct.pack("HP", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), *[ctypes.c_ulong(0)] * 3),
        (_PR_SET_SECCOMP, ctypes.c_ulong(_FILTER), order),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def hide(patterns: list[str]) -> None:
    """Make files seem to be missing."""

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        path = arguments[0] if event == "open" else None
        if isinstance(path, str) and any(fnmatch.fnmatch(path, each) for each in patterns):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    sys.addaudithook(audit)


def become() -> None:
    """Apply the settings from the environment."""
    if calls := os.environ.pop("REFUSES", "").split():
        refuse(calls)
    if patterns := os.environ.get("HIDES", "").split():
        hide(patterns)
    for module in os.environ.get("NO", "").split():
        sys.modules[module] = None  # type: ignore[assignment]
    lack(os.environ.get("LACKS", "").split())


become()
