"""Warm processes that do not answer, as somebody has stopped them or a file system hangs: which
they are, and their end. Only `relight warm` loads this.

Who listens on a socket in this user's directory is known for certain without an answer. Its pid
alone would not do to send it a signal: another process may have the pid by then.
"""

import os
import signal
from typing import NamedTuple

from relight.host import linux, user_sockets
from relight.host.files import read_small

_NAME = b"warm process of"
"""The short name of a warm process (`preload/keep_warm.py`), in full: 15 bytes (prctl(2))."""
_GUARD = "warm guard of "
_LISTENS = "00010000"
"""The flag of a listening socket in /proc/net/unix (__SO_ACCEPTCON, linux/net.h)."""


class SilentProcess(NamedTuple):
    """A process that listens on a socket, and does not answer.

    `is_warm`: it has the name of a warm process. `agents` are those whose jobs use it; these end
    with it.
    """

    path: str
    pid: int
    is_warm: bool
    agents: tuple[int, ...]

    def resume(self) -> None:
        """Continue it if it is stopped, so that it may answer."""
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it. Its guard kills its descendants and exits."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        try:
            linux.signal_if(self.pid, number, self._is_still_there)
        except ProcessLookupError:
            pass  # it has just ended

    def _is_still_there(self) -> bool:
        found = find(self.path)
        return found is not None and found.pid == self.pid


def find(path: str) -> SilentProcess | None:
    """Return the process of this user that listens on a socket, or None.

    A fork of that process may have the socket too for a moment, so the parent counts.
    """
    sockets = _listening(path)
    pids = map(int, filter(str.isdecimal, os.listdir("/proc")))
    holders = [pid for pid in pids if sockets and not sockets.isdisjoint(_open_by(pid))]
    pid = next((pid for pid in holders if linux.parent_of(pid) not in holders), 0)
    if not pid:
        return None
    guards = (_command_line(child) for child in linux.tree(pid))
    agents = [guard.removeprefix(_GUARD) for guard in guards if guard.startswith(_GUARD)]
    numbers = tuple(int(agent) for agent in agents if agent.isdecimal())
    return SilentProcess(path, pid, _read(pid, "comm").startswith(_NAME), numbers)


def _listening(path: str) -> set[str]:
    """Return the listening sockets with this path, as links in /proc/PID/fd name them.

    The kernel shows the path used to bind a socket (`user_sockets.listen`), here one through
    /proc/self/fd, so only its random name counts.
    """
    name = os.path.basename(path)
    with open("/proc/net/unix") as file:
        rows = [line.split() for line in file if name in line]
    return {f"socket:[{row[6]}]" for row in rows
            if row[3] == _LISTENS
            and os.path.basename(row[-1]).removesuffix(user_sockets.NEW) == name}  # fmt: skip


def _open_by(pid: int) -> set[str]:
    found = set()
    try:
        if os.stat(f"/proc/{pid}").st_uid == os.getuid():
            for fd in os.listdir(f"/proc/{pid}/fd"):
                found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    except OSError:
        pass  # it has ended, or has closed a descriptor
    return found


def _command_line(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def _read(pid: int, name: str) -> bytes:
    try:
        return read_small(f"/proc/{pid}/{name}")
    except OSError:
        return b""
