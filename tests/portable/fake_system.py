"""Runs relight as on macOS or Windows, as far as Linux can imitate them.

Examples are `python fake_system.py darwin run train.py` and `python fake_system.py win32 submit …`.
To run a program that calls relight, use `python fake_system.py darwin python script.py`, or `-m` or
`-c` instead of the script.

Parts of Python that don't exist there are removed from this process, its forks, and any relight
programs that they start. Workers are separate programs and aren't changed. Paths remain Linux's.
"""

import builtins
import errno
import fcntl
import importlib
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class System(NamedTuple):
    """A system's missing parts: names in modules, modules, and files by path prefix.

    `loaded` lists standard library modules with different code there. They are imported in their
    Linux form.
    """

    missing: dict[Any, tuple[str, ...]]
    modules: tuple[str, ...]
    files: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()


# Availability as documented for Python 3.11 to 3.13.
_MACOS = System(
    {
        os: (
            "pipe2", "memfd_create", "pidfd_open", "waitid", "waitid_result", "P_PIDFD", "eventfd",
            "eventfd_read", "eventfd_write", "splice", "copy_file_range", "posix_fadvise",
            "posix_fallocate", "fdatasync", "getrandom", "setns", "unshare", "getresuid",
            "getresgid", "setresuid", "setresgid", "O_PATH", "O_TMPFILE", "O_DIRECT", "O_LARGEFILE",
            "O_NOATIME", "O_RSYNC", "getxattr", "listxattr", "setxattr", "removexattr",
            *(name for name in dir(os) if name.startswith(("sched_", "SCHED_")) and name not in
              ("sched_yield", "sched_get_priority_max", "sched_get_priority_min")),
        ),
        select: tuple(name for name in dir(select) if "epoll" in name.lower()),
        signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo", "SIGRTMIN", "SIGRTMAX",
                 "SIGPWR", "SIGSTKFLT", "SIGPOLL", "SIGCLD"),
        socket: ("MSG_NOSIGNAL", "MSG_CMSG_CLOEXEC", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED",
                 "SO_DOMAIN", "SO_PROTOCOL", "SO_BINDTODEVICE", "SO_MARK", "TCP_USER_TIMEOUT",
                 "TCP_QUICKACK", "TCP_CORK", "TCP_DEFER_ACCEPT", "AF_NETLINK", "AF_PACKET",
                 "SCM_CREDENTIALS"),
        fcntl: ("F_SETSIG", "F_GETSIG", "F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_OFD_SETLK",
                "F_ADD_SEALS", "F_NOTIFY"),
        resource: ("prlimit",),
        time: ("CLOCK_BOOTTIME", "CLOCK_TAI"),
    },
    ("relight.host.linux", "relight.warm.preloading", "relight.warm.warm_spawner",
     "relight.warm.watched_worker", "relight.host.priority", "_ctypes"),
    files=("/proc/", "/sys/"),
)  # fmt: skip
_WINDOWS = System(
    {
        os: (
            "fork", "forkpty", "execve", "execvpe", "posix_spawn", "posix_spawnp", "pipe2",
            "setsid", "getsid", "getpgid", "killpg", "setpgid", "getuid", "geteuid", "getgid",
            "getegid", "getgroups", "setuid", "mkfifo", "mknod", "statvfs", "fstatvfs", "sysconf",
            "uname", "openpty", "ttyname", "fchmod", "fchown", "chown", "lchown", "pread", "pwrite",
            "readv", "writev", "sendfile", "waitid", "WNOHANG", "memfd_create", "pidfd_open",
            "eventfd", "getpriority", "setpriority", "nice", "getloadavg", "confstr", "O_CLOEXEC",
            "O_NONBLOCK", "O_NOCTTY", "O_NOFOLLOW", "O_DIRECTORY", "O_SYNC", "posix_fallocate",
            "posix_fadvise", *(name for name in dir(os) if name.startswith("sched_")),
        ),
        select: tuple(name for name in dir(select) if "poll" in name.lower() or name == "PIPE_BUF"),
        signal: (
            "pthread_sigmask", "pthread_kill", "sigwait", "sigpending", "sigtimedwait",
            "sigwaitinfo", "pidfd_send_signal", "SIG_BLOCK", "SIG_UNBLOCK", "SIG_SETMASK", "alarm",
            "setitimer", "siginterrupt", "pause",
            *(name for name in dir(signal) if name.startswith("SIG") and name[3] != "_" and name
              not in ("SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM")),
        ),
        socket: ("AF_UNIX", "send_fds", "recv_fds", "SCM_RIGHTS", "MSG_NOSIGNAL"),
    },
    ("fcntl", "termios", "resource", "pwd", "grp", "tty", "pty", "syslog", "_ctypes",
     "relight.host.linux", "relight.host.portable"),
    loaded=("asyncio", "multiprocessing", "shutil", "subprocess", "tempfile"),
)  # fmt: skip
SYSTEMS = {"darwin": _MACOS, "win32": _WINDOWS}
_RELIGHT = ("relight", "relight.schedulers.processes.executor")
"""Modules other than workers that relight starts in a separate interpreter."""


def become(name: str) -> None:
    """Permanently remove everything that the system with this `sys.platform` lacks."""
    system = SYSTEMS[name]
    for module in system.loaded:
        importlib.import_module(module)
    for owner, names in system.missing.items():
        for missing in names:
            if hasattr(owner, missing):
                delattr(owner, missing)
    for module in system.modules:
        sys.modules[module] = None  # type: ignore[assignment]  # so that its import fails
    if system.files:
        for owner, function in (
            (builtins, "open"), (os, "open"), (os, "listdir"), (os, "scandir"), (os, "stat"),
            (os, "lstat"), (os, "readlink"),
        ):  # fmt: skip
            setattr(owner, function, _without(system.files, getattr(owner, function)))
    sys.platform = name
    start_nested(name)


def start_nested(name: str) -> None:
    """Make relight programs started by this process run as on that system."""
    begin, execve = subprocess.Popen.__init__, getattr(os, "execve", None)

    def popen(self: Any, args: Any, *more: Any, **options: Any) -> None:
        begin(self, _nested(name, args), *more, **options)

    def execute(path: Any, args: Any, variables: Any) -> None:
        assert execve is not None
        execve(path, _nested(name, args), variables)

    subprocess.Popen.__init__ = popen  # type: ignore[method-assign]
    if execve is not None:
        os.execve = execute  # type: ignore[assignment]


def _nested(name: str, command: Any) -> Any:
    if isinstance(command, str) or list(command[:1]) != [sys.executable]:
        return command
    words = [word for word in command[1:] if word != "-P"]
    is_program = words[:1] == ["-m"] and words[1] in _RELIGHT
    if is_program or (words[:1] == ["-c"] and "system.end_with_parent" in words[1]):
        return [sys.executable, os.path.abspath(__file__), name, "python", *words]
    return command


def run_python(words: Sequence[str]) -> None:
    """Run whatever an interpreter with these arguments would run."""
    option, *rest = words
    if option == "-m":
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif option == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        exec(rest[0], vars(sys.modules["__main__"]))
    else:
        sys.argv[:] = words
        sys.path.insert(0, os.path.dirname(option))
        runpy.run_path(option, run_name="__main__")


def _without(files: tuple[str, ...], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
        text = "" if isinstance(path, int) else os.fsdecode(path)
        if f"{text}/".startswith(files):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
        return function(path, *arguments, **options)

    return call


if __name__ == "__main__":
    become(sys.argv.pop(1))
    sys.path.pop(0)  # this file's directory, which `python -m relight` doesn't have
    if sys.argv[1:2] == ["python"]:
        run_python(sys.argv[2:])
    else:
        from relight.cli.main import entry

        entry()
