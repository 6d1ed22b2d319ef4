"""Manages the sockets of warm processes in the directory that `user_sockets` provides, and defines
the messages that are sent over them.

A socket's name is derived from the program that the process can fork workers for (`name`).
"""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from typing import NamedTuple

from relight.base import fields
from relight.host import files, user_sockets
from relight.warm.fork_compat import Variables

_LOCK = "lock-"
_RANDOM_BYTES = 6


class Description(NamedTuple):
    """A warm process's description of itself, sent to clients.

    The `script` field is the workers' program. The `asked` field contains the modules that were
    requested, and `learned` are the modules from --preload=auto. The `modules` field is the number
    of imported modules, including their dependencies. The `writes` field contains the names of
    environment variables that the script sets before its imports. The `facts` and `variables`
    fields must match those of a job (`warm/fork_compat.py`). The `why_not` field is the reason why
    jobs may no longer use the process, or empty. The process was created `age_s` seconds ago.
    The `jobs` field is the number of jobs that are using the process, and `uses` is the number of
    jobs that have used it. The process has been idle for `idle_s` seconds, and exits after it has
    been idle for `stays_s` seconds.
    """

    pid: int
    script: str
    asked: tuple[str, ...]
    learned: bool
    modules: int
    writes: tuple[str, ...]
    facts: dict[str, str]
    variables: Variables
    why_not: str
    age_s: float
    idle_s: float
    stays_s: float
    jobs: int
    uses: int


class BeingMade(NamedTuple):
    """A warm process that is importing its modules, with the pid of its guard and the workers'
    program.

    The process has imported `imported` of `modules` modules so far. It started at `began_s` on the
    monotonic clock, and has a low priority if `is_low_priority` is set. If `guard` is 0, nothing is
    known, because the process is just starting, or uses a different relight version.
    """

    guard: int = 0
    script: str = ""
    modules: int = 0
    began_s: float = 0.0
    is_low_priority: bool = False
    imported: int = 0

    def text(self) -> bytes:
        """Return the content to write to the locked file."""
        return json.dumps(fields.plain(self._replace(imported=0))).encode() + b"\n"

    @classmethod
    def parse(cls, text: bytes) -> "BeingMade":
        """Parse the content of a locked file: `text`, then the number of imported modules."""
        described, _, imported = text.partition(b"\n")
        try:
            known: BeingMade = fields.record(cls, fields.decode(described))
        except fields.Malformed:
            return cls()
        return known._replace(imported=int(imported) if imported.strip().isdigit() else 0)


class SocketDirectory:
    """The directory that contains the sockets of this user's warm processes.

    Args:
        variables: the environment.

    Raises:
        OSError: if the directory can't be created, or if other users have access to it.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.path = user_sockets.directory(variables)

    def sockets(self, of: str = "") -> list[str]:
        """Return the paths of the sockets with this name, or of all sockets, newest first."""
        names = [
            name
            for name in os.listdir(self.path)
            if not (name.startswith(_LOCK) or name.endswith(user_sockets.NEW))
            and name.startswith(f"{of}." if of else "")
        ]
        return files.newest_first(os.path.join(self.path, name) for name in names)

    def new(self, name: str) -> tuple[str, int]:
        """Return the path for a new socket, and the descriptor of a locked file. As long as any
        process has that file open, a process with this name counts as being created.

        Raises:
            BlockingIOError: if another process with this name is being created.
            OSError: if the file can't be created.
        """
        path = os.path.join(self.path, f"{name}.{secrets.token_hex(_RANDOM_BYTES)}")
        while True:
            lock = os.open(self._lock(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                raise
            if os.fstat(lock).st_nlink:
                return path, lock
            os.close(lock)  # `unlock` has removed the file in the meantime

    def being_made(self, name: str) -> BeingMade | None:
        """Return the process with this name that is being created, or None."""
        return self._owner(self._lock(name))

    def all_being_made(self) -> list[BeingMade]:
        """Return all processes that are being created, if something is known about them."""
        names = [name for name in os.listdir(self.path) if name.startswith(_LOCK)]
        found = [self._owner(os.path.join(self.path, name)) for name in names]
        return [made for made in found if made is not None and made.guard]

    def _lock(self, name: str) -> str:
        return os.path.join(self.path, f"{_LOCK}{name}")

    @staticmethod
    def _owner(path: str) -> BeingMade | None:
        """Return the process that has locked a file, or None if it is not locked."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return BeingMade.parse(os.read(file, 1 << 16))
        except OSError:
            pass
        finally:
            os.close(file)
        return None


def unlock(lock: int) -> None:
    """Remove a file that `SocketDirectory.new` locked, and close its descriptor."""
    with contextlib.suppress(OSError):
        os.unlink(os.readlink(f"/proc/self/fd/{lock}"))
    os.close(lock)


def name(*what: str) -> str:
    """Return the socket name for all processes that can fork workers for the same program."""
    text = "\0".join(what).encode(errors="surrogateescape")
    return hashlib.sha256(text).hexdigest()[:24]
