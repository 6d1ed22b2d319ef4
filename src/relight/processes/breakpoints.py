"""Finds the processes on this machine that are waiting at a breakpoint (worker/breakpoint.py)."""

import os
import socket
from collections.abc import Iterable

from relight.base.errors import MachineError
from relight.host import system, user_sockets

_NAME = "@relight-breakpoint-"
"""The part of these processes' socket names that precedes the pid, as shown in /proc/net/unix
(unix(7)).
"""
_LISTENS = 0x10000
"""The flag that marks a listening socket: __SO_ACCEPTCON in linux/net.h."""


def waiting() -> dict[int, bool]:
    """Return a map with the pids of processes at a breakpoint. The value for a pid is true if no
    debugger is attached yet.
    """
    found: dict[int, bool] = {}
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return {}
    for line in lines:
        words = line.split()
        pid = words[-1].removeprefix(_NAME) if words else ""
        if words and words[-1].startswith(_NAME) and pid.isdecimal():
            listens = bool(int(words[3], 16) & _LISTENS)
            found[int(pid)] = listens or found.get(int(pid), False)
    return found


def any_below(pids: Iterable[int]) -> bool:
    """Return whether any of these processes, or any of their descendants, is at a breakpoint."""
    found = waiting()
    return bool(found) and any(one in found for pid in pids for one in (pid, *system.tree(pid)))


def connect(pid: int) -> socket.socket:
    """Attach to a process that is waiting at a breakpoint.

    Raises:
        MachineError: if it is no longer waiting, or belongs to another user.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"\0{_NAME[1:]}{pid}")
    except OSError as error:
        connection.close()
        raise MachineError(f"process {pid} is no longer waiting: {error.strerror}") from None
    other, user = user_sockets.peer(connection)
    if other != pid or (os.geteuid() and user != os.geteuid()):
        connection.close()
        raise MachineError(
            f"process {pid} belongs to another user (uid {user})",
            hint="only its user or root can debug it",
        )
    return connection
