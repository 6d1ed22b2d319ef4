"""Provides a token for jobs that are started without one. The token is stored in the user's home
directory, which all nodes in a cluster can read.

With a plain `srun relight run`, there is no process that could create a token for all agents. But
the agents share the user's home directory, which in a cluster is usually on a network file system.
The file `token` in relight's state directory there proves to each agent that a peer runs as the
same user. The first job creates the file. The file is never created on a local file system, where
other nodes would not see it. An existing file is always used.
"""

import os
import secrets
from contextlib import suppress
from typing import NamedTuple

from relight.base import env as environment
from relight.base.env import Environment

NAME = "token"
_OTHERS = 0o077
_LIMIT = 4096
_NETWORK = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "panfs", "pvfs2", "glusterfs",
     "fuse.ceph", "fuse.glusterfs", "fuse.juicefs", "cifs", "smb3", "afs", "vast")
)  # fmt: skip
"""The types of file systems that the nodes in a cluster share, as /proc/mounts names them."""


class UserToken(NamedTuple):
    """The path of this user's token file, or an empty string and a note on why an existing file is
    ignored.
    """

    path: str
    note: str = ""


def find(env: Environment, mounts: str = "/proc/self/mounts") -> UserToken:
    """Return this user's token file. The file is created if it is missing and can be created.

    Args:
        env: the environment.
        mounts: the path of the mount table, as described in proc(5).
    """
    directory = environment.state_directory(env)
    path = os.path.join(directory, NAME)
    if not os.path.exists(path) and _is_shared(directory, mounts):
        with suppress(OSError):  # fails on a full or read-only disk
            _make(directory, path)
    if not os.path.lexists(path):
        return UserToken("")
    why, remedy = _problem(path)
    if why:
        return UserToken("", f"ignoring the token in {path}: {why}; {remedy}")
    return UserToken(path)


def _make(directory: str, path: str) -> None:
    os.makedirs(directory, 0o700, exist_ok=True)
    partial = f"{path}.{secrets.token_hex(8)}"
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32) + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        # Many agents on many nodes do this at the same time; the first file is kept.
        with suppress(FileExistsError):
            os.link(partial, path)
    finally:
        os.unlink(partial)


def _problem(path: str) -> tuple[str, str]:
    """Return why a file can't be used, and what to do about it. Only this user may be able to write
    and read the file.
    """
    try:
        found = os.stat(path)
        if found.st_uid != os.geteuid():
            return "it belongs to another user", "delete it"
        if found.st_mode & _OTHERS:
            why = f"other users have access to it (mode {found.st_mode & 0o777:04o})"
            return why, f"run `chmod 600 {path}`"
        with open(path, "rb") as file:
            is_empty = not file.read(_LIMIT).strip()
    except OSError as error:
        return error.strerror or str(error), "make it readable, or delete it"
    return ("it is empty", "delete it") if is_empty else ("", "")


def _is_shared(directory: str, mounts: str) -> bool:
    """Return whether a directory is on a network file system. The directory doesn't have to exist
    yet.
    """
    path = os.path.realpath(directory)
    try:
        with open(mounts) as file:
            rows = [line.split() for line in file]
    except (OSError, UnicodeDecodeError):
        return False
    below = [
        (len(place), kind)
        for _, place, kind, *_ in (row for row in rows if len(row) > 2)
        if path == place or path.startswith(place.rstrip("/") + "/")
    ]
    return bool(below) and max(below, key=lambda each: each[0])[1] in _NETWORK
