"""Runs relight as on macOS, as far as Linux can play it: `python fake_macos.py run train.py`.

What Python does not have there is taken away, and there is no /proc and no /sys. Only this process
and its forks are changed; workers are programs of their own.
"""

import builtins
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

# Availability as the documentation of Python 3.11 to 3.13 has it.
MISSING = {
    os: (
        "pipe2", "memfd_create", "pidfd_open", "waitid", "waitid_result", "P_PIDFD", "eventfd",
        "eventfd_read", "eventfd_write", "splice", "copy_file_range", "posix_fadvise",
        "posix_fallocate", "fdatasync", "getrandom", "setns", "unshare", "getresuid", "getresgid",
        "setresuid", "setresgid", "O_PATH", "O_TMPFILE", "O_DIRECT", "O_LARGEFILE", "O_NOATIME",
        "O_RSYNC", "getxattr", "listxattr", "setxattr", "removexattr",
        *(name for name in dir(os) if name.startswith(("sched_", "SCHED_"))
          and name not in ("sched_yield", "sched_get_priority_max", "sched_get_priority_min")),
    ),
    select: tuple(name for name in dir(select) if "epoll" in name.lower()),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo", "SIGRTMIN", "SIGRTMAX", "SIGPWR",
             "SIGSTKFLT", "SIGPOLL", "SIGCLD"),
    socket: ("MSG_NOSIGNAL", "MSG_CMSG_CLOEXEC", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED",
             "SO_DOMAIN", "SO_PROTOCOL", "SO_BINDTODEVICE", "SO_MARK", "TCP_USER_TIMEOUT",
             "TCP_QUICKACK", "TCP_CORK", "TCP_DEFER_ACCEPT", "AF_NETLINK", "AF_PACKET",
             "SCM_CREDENTIALS"),
    fcntl: ("F_SETSIG", "F_GETSIG", "F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_OFD_SETLK", "F_ADD_SEALS",
            "F_NOTIFY"),
    resource: ("prlimit",),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI"),
}  # fmt: skip
LINUX_ONLY = ("relight.host.linux", "relight.host.warm", "relight.host.priority", "_ctypes")
FILES = ("/proc/", "/sys/")


def become_macos() -> None:
    """Take away what macOS does not have. There is no way back."""
    for module, names in MISSING.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in LINUX_ONLY:
        sys.modules[name] = None  # type: ignore[assignment]  # so that its import fails
    for owner, name in (
        (builtins, "open"), (os, "open"), (os, "listdir"), (os, "scandir"), (os, "stat"),
        (os, "lstat"), (os, "readlink"),
    ):  # fmt: skip
        setattr(owner, name, _without_files(getattr(owner, name)))
    sys.platform = "darwin"


def _without_files(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
        text = "" if isinstance(path, int) else os.fsdecode(path)
        if f"{text}/".startswith(FILES):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
        return function(path, *arguments, **options)

    return call


if __name__ == "__main__":
    become_macos()
    sys.path.pop(0)  # this file's directory, which `python -m relight` does not have
    from relight.cli.main import entry

    entry()
