"""Unix sockets of processes of one user, in a directory that only that user can enter.

The directory is `$XDG_RUNTIME_DIR/relight`, or `/tmp/relight-UID` where no session has made one
(`/tmp/relight-UID-1`, … where another user has taken that name: files.own_directory).
Whoever connects still asks the kernel whose process it is (SO_PEERCRED, unix(7)). Agents load this
file while their workers run, so it imports little.
"""

import errno
import os
import socket
import stat
import struct
from collections.abc import Mapping
from typing import NamedTuple

from relight.host import files

JOBS, OF_JOB = "jobs", ".sock"
"""The directory below, in which agents have their sockets, and how the names of these end."""
_CREDENTIALS = struct.Struct("3i")
_BACKLOG = 16
NEW = ".new"
"""Suffix of sockets that do not listen yet."""
_OTHERS = 0o077
_SHARED = "/tmp"  # noqa: S108  # files.own_directory checks what it finds there


class Peer(NamedTuple):
    """The process at the other end of a socket."""

    pid: int
    user: int


def directory(variables: Mapping[str, str], below: str = "") -> str:
    """Return this user's directory, or one below it; make it if it does not exist.

    Args:
        variables: the environment.
        below: a name in it.

    Raises:
        OSError: if it can't be made, or is not this user's alone.
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
    """Return a listening socket, which gets its name only once it listens: `connect` removes
    sockets that refuse connections as leftovers of dead processes.

    Raises:
        OSError: if it can't be made, or this system does not say who connects (macOS).
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
    """Return a connection to the process that listens on a socket, with a time limit; None if
    nobody listens, in which case the socket is removed.
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
        pass  # it has just been removed, or its process does not answer
    connection.close()
    return None


def peer(connection: socket.socket) -> Peer:
    """Return the process at the other end; the pid is 0 for a process in another container."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(data)
    return Peer(pid, user)


def _make(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _shortened(path: str) -> tuple[int, str]:
    """Return a path for the kernel, which takes at most 107 bytes for a socket, and a descriptor
    that must be open as long as it is used.
    """
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
    return folder, f"/proc/self/fd/{folder}/{os.path.basename(path)}"
