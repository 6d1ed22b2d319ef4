"""Manages the scratch directory of a job that doesn't keep logs.

The directory contains the workers' error files. It is created when the workers start and removed
when the job ends.

If the agent is killed, its spawner removes the directory. If the spawner is also killed, one of
this user's later jobs removes it. `TMPDIR/relight_<boot>_<random>/lock` is locked (lockf(3)) as
long as the agent is alive. `relight.launch` has a scratch directory of its own. If the process that
called `relight.launch` is killed, its agent exits and removes that directory. All containers and
pid namespaces on a machine share the machine's kernel, and therefore its locks and its boot id. On
a network file system, directories that were created by other machines are not removed.
"""

import errno
import os
import stat
from contextlib import suppress

from relight.host.files import read_small, remove_tree
from relight.host.loop import Loop

_FALLBACKS = ("/dev/shm", "/tmp", "/var/tmp")  # noqa: S108
"""Where the directory is created if TMPDIR is full or missing. Without a scratch directory, workers
don't share memory with their agent and can't be asked to save a checkpoint.
"""
_LOCK = "lock"
_TRIES = 3
_SWEEP_AFTER_S = 1.0
"""How long to wait before abandoned directories are removed, so that removing them does not delay
the start of the workers.
"""
_MAX_INSPECTED = 10_000
"""How many names in TMPDIR to check at most, because a crowded directory must not block the
agent.
"""


class Scratch:
    """Creates and removes a job's scratch directory.

    Args:
        loop: the agent's loop.
        base: the preferred parent directory (TMPDIR), or empty to create no directory.
    """

    def __init__(self, loop: Loop, base: str) -> None:
        self.path = ""
        """The directory's path, or an empty string until the directory is created."""
        self._loop = loop
        self._base = base
        self._lock = -1

    def make(self) -> str:
        """Create the directory if it does not exist, and return its path. If it can't be created
        anywhere, return an empty string, because a job can run without error files.
        """
        for base in (self._base, *_FALLBACKS) if self._base and not self.path else ():
            try:
                self.path, self._lock = make(base)
            except OSError:
                continue
            self._base = base
            self._loop.call_after(_SWEEP_AFTER_S, self._sweep)
            break
        return self.path

    def remove(self) -> None:
        """Remove the directory and its contents, and the directories of agents that no longer
        exist.
        """
        if self.path:
            remove_tree(self.path)
            os.close(self._lock)
            self.path, self._lock = "", -1
        self._sweep()

    def _sweep(self) -> None:
        """Remove this user's scratch directories whose agents no longer exist."""
        boot = _boot() if self._base else ""
        with suppress(OSError):  # the sweep is optional
            if boot and _is_safe(os.stat(self._base)):
                _sweep(self._base, f"relight_{boot}_", self.path)


def make(base: str) -> tuple[str, int]:
    """Create a scratch directory. If this process can't remove it, one of this user's later jobs
    will.

    Returns:
        The directory's path, and its lock, a descriptor to close when the directory is removed.
        This process must not open the file `lock` elsewhere, because closing that descriptor would
        release the lock.

    Raises:
        OSError: if it can't be created.
    """
    for _ in range(_TRIES):
        path = os.path.join(base, f"relight_{_boot()}_{os.urandom(8).hex()}")
        os.mkdir(path, 0o700)
        lock = _take(path)
        if lock >= 0:
            return path, lock
        remove_tree(path)
    raise OSError(errno.EAGAIN, "can't lock a new directory", base)


def _boot() -> str:
    """Return an id that all processes on this machine share until it reboots, or an empty string on
    systems without one.
    """
    try:
        return read_small("/proc/sys/kernel/random/boot_id")[:8].decode(errors="replace")
    except OSError:
        return ""


def _is_safe(base: os.stat_result) -> bool:
    """Return whether a directory's permissions prevent other users from moving this user's
    files.
    """
    shared = base.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not base.st_mode & stat.S_ISVTX
    return base.st_uid in (0, os.geteuid()) and not shared


def _take(path: str) -> int:
    """Lock a newly created directory. Return -1 if another job is about to remove the directory."""
    name = os.path.join(path, _LOCK)
    fd = -1
    try:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.lockf(fd, os.F_TLOCK, 0)
        if os.path.samestat(os.stat(name), os.fstat(fd)):
            return fd
    except OSError as error:
        if fd >= 0 and error.errno in (errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP):
            return fd  # no locks on this file system, so no other job can remove it
    if fd >= 0:
        os.close(fd)
    return -1


def _sweep(base: str, prefix: str, own: str) -> None:
    with os.scandir(base) as entries:
        for _, entry in zip(range(_MAX_INSPECTED), entries, strict=False):
            if not entry.name.startswith(prefix) or entry.path == own:
                continue
            try:
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                    _remove_abandoned(entry.path)
            except OSError:
                continue


def _remove_abandoned(path: str) -> None:
    """Remove a directory if no process holds its lock."""
    try:
        fd = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        # The agent ended, or has not created the lock yet. In the latter case, it creates another
        # directory.
        os.rmdir(path)
        return
    try:
        os.lockf(fd, os.F_TLOCK, 0)
        remove_tree(path)
    finally:
        os.close(fd)
