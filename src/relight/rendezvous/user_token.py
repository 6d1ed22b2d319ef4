"""Provides a token for jobs that are started without one. The token is stored in the user's home
directory, which all nodes in a cluster can read.

With a plain `srun relight run`, there is no process that could create a token for all agents. But
the agents share the user's home directory, which in a cluster is usually on a network file system.
The file `token` in relight's state directory there proves to each agent that a peer runs as the
same user. The first job creates the file. The file is not created on a local file system, because
other nodes would not see it. An existing file is always used.
"""

import os
import secrets
from contextlib import suppress

from relight.base import env as environment
from relight.base.env import Environment

NAME = "token"
_NETWORK = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "panfs", "pvfs2", "glusterfs",
     "fuse.ceph", "fuse.glusterfs", "fuse.juicefs", "cifs", "smb3", "afs", "vast")
)  # fmt: skip
"""The types of file systems that the nodes in a cluster share, as /proc/mounts names them."""


def find(env: Environment, mounts: str = "/proc/self/mounts") -> str:
    """Return the path of this user's token file, or an empty string. The file is created if it is
    missing and can be created.

    Args:
        env: the environment.
        mounts: the path of the mount table, as described in proc(5).
    """
    directory = environment.state_directory(env)
    path = os.path.join(directory, NAME)
    if not os.path.exists(path) and _is_shared(directory, mounts):
        with suppress(OSError):  # fails on a full or read-only disk
            _make(directory, path)
    return path if _is_ours(path) else ""


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


def _is_ours(path: str) -> bool:
    """Return whether only this user can have written a file, and only this user can read it."""
    try:
        found = os.stat(path)
        with open(path, "rb") as file:
            return found.st_uid == os.geteuid() and not found.st_mode & 0o077 and bool(file.read(1))
    except OSError:
        return False


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
