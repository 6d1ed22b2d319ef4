"""Manages the Unix sockets of one user's processes, in a directory that only that user can enter.

The directory is `$XDG_RUNTIME_DIR/relight`, or `/tmp/relight-UID` if the session has not created a
runtime directory (or `/tmp/relight-UID-1` and so on if another user has taken that name, see
files.own_directory). Nevertheless, a connecting process checks with the kernel which user owns the
process at the other end (SO_PEERCRED, unix(7)). This module has few imports, because agents load it
while their workers are running.
"""

import errno
import os
import socket
import stat
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from relight.host import files

JOBS, OF_JOB = "jobs", ".sock"
"""The subdirectory that contains the agents' sockets, and the suffix of their names."""
_CREDENTIALS = struct.Struct("3i")
_BACKLOG = 16
NEW = ".new"
"""Suffix of the names of sockets that are not listening yet."""
_OTHERS = 0o077
_SHARED = "/tmp"  # noqa: S108  # files.own_directory checks what it finds there


class Peer(NamedTuple):
    """The process at the other end of a socket."""

    pid: int
    user: int


def directory(variables: Mapping[str, str], below: str = "") -> str:
    """Return this user's directory or one of its subdirectories, and create that directory if it
    does not exist.

    Args:
        variables: the environment.
        below: the name of a subdirectory.

    Raises:
        OSError: if it can't be created, or other users have access to it.
    """
    base = variables.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(base) and os.path.isdir(base):
        path = os.path.join(base, "relight")
        _make(path)
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if found.st_uid != os.getuid() or found.st_mode & _OTHERS:
            raise PermissionError(errno.EPERM, "other users can enter it", path)
    else:
        path = files.own_directory(_SHARED, _OTHERS)
    if below:
        path = os.path.join(path, below)
        _make(path)
    return path


def listen(path: str) -> socket.socket:
    """Return a listening socket. The socket gets its final name only once it is listening, because
    `connect` treats a socket that refuses connections as left behind by a process that has exited,
    and removes it.

    Raises:
        OSError: if it can't be created, or this system does not identify connecting processes
            (macOS).
    """
    if not hasattr(socket, "SO_PEERCRED"):
        raise OSError(errno.ENOTSUP, "this system does not say who connects")
    listener = socket.socket(socket.AF_UNIX)
    folder, shorter = _shortened(path)
    try:
        listener.bind(shorter + NEW)
        listener.listen(_BACKLOG)
        os.rename(shorter + NEW, shorter)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder)
    listener.setblocking(False)
    return listener


def connect(path: str, timeout_s: float) -> socket.socket | None:
    """Connect to this user's process that listens on a socket, and set a timeout for the
    connection. Return None on failure. If no process is listening, also remove the socket.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout_s)
    try:
        folder, shorter = _shortened(path)
        try:
            connection.connect(shorter)
        finally:
            os.close(folder)
        if peer(connection).user == os.getuid():
            return connection
    except ConnectionRefusedError:
        _remove(path)
    except OSError:
        pass  # it was just removed, or its process does not respond
    connection.close()
    return None


def peer(connection: socket.socket) -> Peer:
    """Return the process at the other end of a connection. Its pid is 0 if it is running in another
    container.
    """
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(data)
    return Peer(pid, user)


def _make(path: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _shortened(path: str) -> tuple[int, str]:
    """Return a path to a socket within the kernel's limit of 107 bytes, and a descriptor that must
    stay open while that path is used.
    """
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
    return folder, f"/proc/self/fd/{folder}/{os.path.basename(path)}"
