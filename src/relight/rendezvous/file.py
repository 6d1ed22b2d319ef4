"""A registry in a directory that all nodes share (`--rdzv-backend=file`).

A job has two files in the directory: its record, and a lock that is held only while the record is
being changed, never while a process is waiting. Each renewal changes a counter in the record. A
process may take the record if the counter hasn't changed for the record's whole time to live, as
measured by that process's own clock. Clocks on different nodes are never compared. A new record is
written to a separate file, flushed, and renamed over the old one, so that a killed process leaves
either the old or the new record. If the disk is full, the old record is overwritten in place,
because most file systems don't need additional space for that. A full disk therefore never makes a
coordinator lose its record, and the record of a holder that has exited can still be taken. If a
machine fails during such a write, it may leave an unreadable record, which expires like any other.

File system requirements:

- fcntl locks must exclude processes on all nodes, as they do on local disks, NFS 4, and Lustre
  mounted with `flock`. If NFS is mounted with `nolock` or `local_lock`, the locks don't exclude
  processes on other nodes, and two nodes may be coordinator at the same time. A process can't
  detect such a mount. Attribute caches are harmless, because the directory is reopened for each
  read, which makes NFS query the server unless it is mounted with `nocto`.
- The directory must be the same shared directory on every node. If the disk isn't mounted on a
  node, that node must not use a local directory with the same name instead. For that reason, only
  the last component of the path is ever created.
- While an NFS server is down, callers block (on `hard` mounts). In the meantime, the record is not
  renewed, and the holder gives it up when its time to live has passed by the holder's own clock.
- After an NFS server reboots, it doesn't grant locks during its grace period (90 s). A coordinator
  that is lost during the grace period is only replaced when the grace period ends.
- If a machine fails while it holds the lock, NFS releases the lock later, usually after 90 s. A
  process that is stopped (SIGSTOP) while it holds the lock keeps the lock until the process is
  continued or killed.

After a job has ended, only its empty lock file remains.
"""

import _thread
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeVar

from relight.base import fields
from relight.base.errors import UsageError
from relight.rendezvous.leader_lock import NOBODY, Record, job_key

_LONGEST = 64 * 1024
_LOCK_S = 2.0
_PAUSE_S = 0.01
_FROZEN_S = 20.0
_NEVER = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.EISDIR,
    errno.ENAMETOOLONG,
}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_LOCKS = {errno.ENOTSUP, errno.ENOSYS}

_OF_THIS_PROCESS = _thread.allocate_lock()
"""fcntl locks only exclude other processes, and are released when any code in this process closes
the file.
"""

_T = TypeVar("_T")


class _Found(NamedTuple):
    """The content of the record's file. `revision` is empty without a record.

    An invalid record is treated as belonging to an unknown holder.
    """

    token: str = ""
    value: str = ""
    revision: str = ""
    beat: int = 0
    ttl_s: float = 0.0


def open(endpoint: str, job: str) -> "FileRegister":
    """Return a job's registry in the directory `endpoint`."""
    if not os.path.isabs(endpoint) or "\0" in endpoint:
        raise UsageError(
            f"--rdzv-endpoint={endpoint}: expected the full path of a directory",
            hint="use --rdzv-endpoint=/DIRECTORY on shared storage",
        )
    return FileRegister(endpoint, job)


class FileRegister:
    """A job's record in a shared directory.

    Args:
        directory: the record's directory.
        job: the job's id.
    """

    def __init__(self, directory: str, job: str) -> None:
        self.own_address = ""
        self._directory = directory
        self._name = job_key(job)
        self._token = os.urandom(16).hex()
        self._turn = 0
        self._seen = _Found()
        self._since = 0.0

    def hold(self, value: str, ttl_s: float) -> Record:
        """Take, renew or read the record, as described in `LeaderLock`."""
        return self._explaining(lambda: self._hold(value, ttl_s))

    def evict(self, record: Record, patience_s: float = 0.0) -> bool:
        """Remove the record of a holder that has exited, as described in `LeaderLock`."""
        return bool(record.revision) and self._explaining(lambda: self._evict(record, patience_s))

    def release(self) -> None:
        """Release the record if it belongs to this object."""
        if self._turn:
            self._explaining(lambda: self._remove(lambda found: found.token == self._token))

    def close(self) -> None:
        """Do nothing, because files are closed after each call."""

    def _evict(self, record: Record, patience_s: float) -> bool:
        if not patience_s:
            return self._remove(lambda found: found.revision == record.revision)
        with self._opened() as directory:
            seen = self._read(directory)
        if seen.revision != record.revision:
            return False
        time.sleep(patience_s)
        return self._remove(lambda found: found == seen)

    def _hold(self, value: str, ttl_s: float) -> Record:
        with self._opened() as directory:  # usually no lock is needed
            found = self._read_lease(directory, ttl_s)
        if not value or (found.revision and found.token != self._token):
            return self._record(found)
        with self._locked() as directory:
            started = time.monotonic()
            found = self._read_lease(directory, ttl_s)
            if found.revision and found.token != self._token:
                return self._record(found)
            if not found.revision:
                self._turn += 1
                found = _Found(self._token, revision=f"{self._token}.{self._turn}")
            found = found._replace(value=value, beat=found.beat + 1, ttl_s=ttl_s)
            self._write(directory, found, started)
            return self._record(found)

    def _record(self, found: _Found) -> Record:
        if not found.revision:
            return NOBODY
        return Record(found.value, found.revision, found.token == self._token)

    def _read_lease(self, directory: int, ttl_s: float) -> _Found:
        """Read the record, and return an empty one if it was not renewed within its time to
        live.
        """
        started = time.monotonic()
        found = self._read(directory)
        if not found.revision or found.token == self._token:
            return found
        if found != self._seen:
            self._seen, self._since = found, time.monotonic()
        elif started - self._since >= max(ttl_s, found.ttl_s):
            return _Found()
        return found

    def _read(self, directory: int) -> _Found:
        try:
            file = self._open(directory, self._name, os.O_RDONLY)
        except FileNotFoundError:
            return _Found()
        try:
            data = os.read(file, _LONGEST)
        finally:
            os.close(file)
        return _parsed(data)

    def _write(self, directory: int, found: _Found, started: float) -> None:
        data = json.dumps(fields.plain(found)).encode()
        new = f"{self._name}.new"

        def check() -> None:
            if time.monotonic() - started > _FROZEN_S:
                raise OSError(
                    f"writing to {self._directory} took too long, so the lock may have been lost"
                )

        try:
            self._write_file(directory, new, data, os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=directory)  # it may occupy the last free blocks
            check()
            try:
                size = os.stat(self._name, dir_fd=directory, follow_symlinks=False).st_size
            except FileNotFoundError:
                raise error from None
            self._write_file(directory, self._name, data.ljust(size), 0)
            return
        check()
        os.rename(new, self._name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)

    def _write_file(self, directory: int, name: str, data: bytes, flags: int) -> None:
        file = self._open(directory, name, os.O_WRONLY | flags)
        try:
            while data:
                data = data[os.write(file, data) :]
            os.fsync(file)
        finally:
            os.close(file)

    def _remove(self, is_meant: Callable[[_Found], bool]) -> bool:
        with self._locked() as directory:
            found = self._read(directory)
            if not found.revision or not is_meant(found):
                return False
            os.unlink(self._name, dir_fd=directory)
            os.fsync(directory)
            return True

    def _open(self, directory: int, name: str, flags: int) -> int:
        """Open one of the files without blocking, even if it is a FIFO."""
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            file = os.open(name, flags, 0o600, dir_fd=directory)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a FIFO without a reader
                raise self._no_file(name) from None
            missing = error.errno == errno.ENOENT and flags & os.O_CREAT
            if missing and os.fstat(directory).st_nlink:  # the directory still exists
                raise UsageError(
                    f"--rdzv-endpoint={self._directory}: can't create files there",
                    hint="use --rdzv-endpoint=/DIRECTORY on shared storage",
                ) from None
            raise
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise self._no_file(name)
        return file

    def _no_file(self, name: str) -> UsageError:
        return UsageError(
            f"--rdzv-endpoint={self._directory}: {name} in it is not a regular file",
            hint="remove it; the directory must contain only job records",
        )

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the directory, creating it if necessary."""
        flags = os.O_RDONLY | os.O_DIRECTORY
        try:
            directory = os.open(self._directory, flags)
        except FileNotFoundError:
            self._make()
            directory = os.open(self._directory, flags)
        try:
            yield directory
        finally:
            os.close(directory)

    def _make(self) -> None:
        try:
            os.mkdir(self._directory, 0o700)
        except FileExistsError:
            pass
        except FileNotFoundError:
            parent = os.path.dirname(self._directory.rstrip("/"))
            raise UsageError(
                f"--rdzv-endpoint={self._directory}: no such directory: {parent}",
                hint="check that the shared storage is mounted on this node",
            ) from None

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the lock, and reopen the directory. If this process exits, the lock is also
        released.
        """
        name = f"{self._name}.lock"
        deadline = time.monotonic() + _LOCK_S
        if not _OF_THIS_PROCESS.acquire(timeout=_LOCK_S):
            raise OSError(f"{self._directory}/{name} is locked by another thread of this process")
        try:
            with self._opened() as directory:
                file = self._open(directory, name, os.O_RDWR | os.O_CREAT)
            try:
                while True:
                    try:
                        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except OSError as error:
                        if error.errno not in (errno.EAGAIN, errno.EACCES):
                            raise
                    if time.monotonic() > deadline:
                        raise OSError(
                            f"{self._directory}/{name} has been locked for {_LOCK_S:g} s by "
                            f"{_locker(file)}"
                        )
                    time.sleep(_PAUSE_S)
                with self._opened() as directory:
                    yield directory
            finally:
                os.close(file)
        finally:
            _OF_THIS_PROCESS.release()

    def _explaining(self, step: Callable[[], _T]) -> _T:
        """Call `step`, and add an explanation to any system error that it raises."""
        try:
            return step()
        except OSError as error:
            if error.errno is None:
                raise
            what = f"--rdzv-endpoint={self._directory}: {error.strerror}"
            if error.errno in _NEVER:
                raise UsageError(what, hint=_hint(error.errno)) from None
            if error.errno in _NO_LOCKS:
                raise UsageError(
                    f"{what}: this file system does not support locks",
                    hint="mount it with locks (NFS without nolock, Lustre with flock)",
                ) from None
            if error.errno in _FULL:
                raise OSError(f"{self._directory} is full: {error.strerror}") from None
            raise OSError(f"{self._directory}: {error.strerror}") from None


def _hint(number: int) -> str:
    if number == errno.ENOTDIR:
        return "it must be a directory on shared storage"
    return "the directory and its contents must be writable by this user on every node"


def _parsed(data: bytes) -> _Found:
    with suppress(fields.Malformed):
        found: _Found = fields.record(_Found, fields.decode(data))
        if found.revision:
            return found
    from hashlib import sha256

    return _Found(revision=f"unknown.{sha256(data).hexdigest()}")


def _locker(file: int) -> str:
    """Describe the process that has locked a file."""
    import struct

    layout = "hhqqi4x"  # struct flock on 64-bit Linux
    try:
        asked = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        process = struct.unpack(layout, fcntl.fcntl(file, fcntl.F_GETLK, asked))[4]
    except (OSError, struct.error):
        process = 0
    if process > 0 and os.path.exists(f"/proc/{process}"):
        return f"process {process}, which may be suspended"
    return "a process on another node"
