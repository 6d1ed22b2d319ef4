"""Runs relight as on Windows, as far as Linux can play it: `python fake_windows.py submit …`.

Paths stay those of Linux; what Python does not have on Windows is taken away.
"""

import os
import select
import signal
import socket
import sys

MISSING = {
    os: (
        "fork", "forkpty", "execve", "execvpe", "posix_spawn", "posix_spawnp", "pipe2", "setsid",
        "getsid", "getpgid", "killpg", "setpgid", "getuid", "geteuid", "getgid", "getegid",
        "getgroups", "setuid", "mkfifo", "mknod", "statvfs", "fstatvfs", "sysconf", "uname",
        "openpty", "ttyname", "fchmod", "fchown", "chown", "lchown", "pread", "pwrite", "readv",
        "writev", "sendfile", "waitid", "WNOHANG", "memfd_create", "pidfd_open", "eventfd",
        "getpriority", "setpriority", "nice", "getloadavg", "confstr", "O_CLOEXEC", "O_NONBLOCK",
        "O_NOCTTY", "O_NOFOLLOW", "O_DIRECTORY", "O_SYNC", "posix_fallocate", "posix_fadvise",
        *(name for name in dir(os) if name.startswith("sched_")),
    ),
    select: tuple(name for name in dir(select) if "poll" in name.lower() or name == "PIPE_BUF"),
    signal: (
        "pthread_sigmask", "pthread_kill", "sigwait", "sigpending", "sigtimedwait", "sigwaitinfo",
        "pidfd_send_signal", "SIG_BLOCK", "SIG_UNBLOCK", "SIG_SETMASK", "alarm", "setitimer",
        "siginterrupt", "pause",
        *(name for name in dir(signal) if name.startswith("SIG") and not name.startswith("SIG_")
          and name not in ("SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM")),
    ),
    socket: ("AF_UNIX", "send_fds", "recv_fds", "SCM_RIGHTS", "MSG_NOSIGNAL"),
}  # fmt: skip
MODULES = ("fcntl", "termios", "resource", "pwd", "grp", "tty", "pty", "syslog", "_ctypes",
           "relight.host.linux", "relight.host.portable")  # fmt: skip


def become_windows() -> None:
    """Take away what Windows does not have. There is no way back."""
    import asyncio
    import multiprocessing
    import shutil
    import subprocess
    import tempfile

    del asyncio, multiprocessing, shutil, subprocess, tempfile  # loaded as what they are here
    for module, names in MISSING.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # so that its import fails
    sys.platform = "win32"


if __name__ == "__main__":
    become_windows()
    sys.path.pop(0)  # this file's directory, which `python -m relight` does not have
    from relight.cli.main import entry

    entry()
