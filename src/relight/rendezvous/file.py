"""The register in a directory that all nodes see: `--rdzv-backend=file`.

A job has two files there: its record, and a lock that is held for the moment of each change, never
while anybody waits. Each renewal changes a counter in the record. Whoever has seen the same counter
for the time to live by a clock of its own may take the record; the clocks of nodes are never
compared. A record is written beside the old one, flushed and renamed: a full disk or a kill leaves
the old one or the new.

What the file system must do:

- Locks of fcntl must exclude the processes of all nodes: local disks, NFS 4, and Lustre mounted
  with `flock` do. NFS mounted with `nolock` or `local_lock` does not, and nobody can tell: two
  nodes may then coordinate at once. Attribute caches do no harm: the directory is opened anew for
  each look, which makes NFS ask the server, unless it is mounted with `nocto`.
- The directory must be the shared one on every node. Where the disk is not mounted, a directory of
  the same name would be another place to meet; so only the last part of the path is ever made.
- A server of NFS that is gone blocks whoever calls (`hard` mounts) until it is back; the record is
  then not renewed, and lapses by the holder's own clock.
- After its server was rebooted, NFS hands out no locks for its grace period (90 s): a coordinator
  that is lost then is replaced only afterwards.
- A machine that dies with the lock keeps it until NFS gives it up, usually 90 s.

The files of a job that has ended are its lock, which is empty, and nothing else.
"""

import _thread
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from relight.core import fields
from relight.errors import UsageError
from relight.rendezvous.host_names import safe_name
from relight.rendezvous.register import NOBODY, Record, Register
from relight.typed import NamedTuple, TypeVar

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
"""Locks of fcntl exclude other processes only, and end when this one closes the file anywhere."""

_T = TypeVar("_T")


class _Found(NamedTuple):
    """What is in the record's file. `revision` is empty where there is none.

    What is not a record counts as that of somebody unknown.
    """

    token: str = ""
    value: str = ""
    revision: str = ""
    beat: int = 0
    ttl_s: float = 0.0


def open(endpoint: str, job: str, pairs: Mapping[str, str]) -> Register:
    """Return the register of a job in the directory `endpoint`; see `register.Open`."""
    del pairs  # the settings of the group are not for registers
    if not os.path.isabs(endpoint) or "\0" in endpoint:
        raise UsageError(
            f"--rdzv-endpoint={endpoint}: expected the full path of a directory",
            hint="--rdzv-endpoint=/DIRECTORY on a disk that all nodes share",
        )
    return FileRegister(endpoint, job)


class FileRegister:
    """The record of one job.

    Args:
        directory: where it is.
        job: the id of the job.
    """

    def __init__(self, directory: str, job: str) -> None:
        self.own_address = ""
        self._directory = directory
        self._name = safe_name(job)
        self._token = os.urandom(16).hex()
        self._turn = 0
        self._seen = _Found()
        self._since = 0.0

    def hold(self, value: str, ttl_s: float) -> Record:
        """Take the record, renew it or look; see `Register`."""
        return self._explaining(lambda: self._hold(value, ttl_s))

    def evict(self, record: Record, patience_s: float = 0.0) -> bool:
        """Remove the record of a dead holder; see `Register`."""
        return bool(record.revision) and self._explaining(lambda: self._evict(record, patience_s))

    def release(self) -> None:
        """Give the record back if it is ours."""
        if self._turn:
            self._explaining(lambda: self._remove(lambda found: found.token == self._token))

    def close(self) -> None:
        """Nothing is open between two calls."""

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
        with self._opened() as directory:  # no lock: most calls end here
            found = self._look(directory, ttl_s)
        if not value or (found.revision and found.token != self._token):
            return self._record(found)
        with self._locked() as directory:
            started = time.monotonic()
            found = self._look(directory, ttl_s)
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

    def _look(self, directory: int, ttl_s: float) -> _Found:
        """Return what is in the record, nothing if it has not been renewed for its time."""
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
        import json

        data = json.dumps(fields.plain(found)).encode()
        new = f"{self._name}.new"
        file = self._open(directory, new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            while data:
                data = data[os.write(file, data) :]
            os.fsync(file)
        except OSError:
            os.unlink(new, dir_fd=directory)  # it may be the last free block
            raise
        finally:
            os.close(file)
        if time.monotonic() - started > _FROZEN_S:
            raise OSError(f"writing in {self._directory} took too long: the lock may be lost")
        os.rename(new, self._name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)

    def _remove(self, is_meant: Callable[[_Found], bool]) -> bool:
        with self._locked() as directory:
            found = self._read(directory)
            if not found.revision or not is_meant(found):
                return False
            os.unlink(self._name, dir_fd=directory)
            os.fsync(directory)
            return True

    def _open(self, directory: int, name: str, flags: int) -> int:
        """Open one of the files, and nothing that blocks, such as a FIFO."""
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            file = os.open(name, flags, 0o600, dir_fd=directory)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a FIFO that nobody reads
                raise self._no_file(name) from None
            missing = error.errno == errno.ENOENT and flags & os.O_CREAT
            if missing and os.fstat(directory).st_nlink:  # it was not removed meanwhile
                raise UsageError(
                    f"--rdzv-endpoint={self._directory}: no files can be made there",
                    hint="--rdzv-endpoint=/DIRECTORY on a disk that all nodes share",
                ) from None
            raise
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise self._no_file(name)
        return file

    def _no_file(self, name: str) -> UsageError:
        return UsageError(
            f"--rdzv-endpoint={self._directory}: {name} in it is no regular file",
            hint="remove it: the directory is for the records of jobs only",
        )

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the directory; make it if it is missing."""
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
                f"--rdzv-endpoint={self._directory}: there is no directory {parent}",
                hint="is the shared disk mounted on this node?",
            ) from None

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the lock, of which the end of the process is the end; open the directory anew."""
        import fcntl

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
        """Do something; say what an error of the system means here."""
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
                    f"{what}: this file system has no locks",
                    hint="mount it with locks (NFS without nolock, Lustre with flock)",
                ) from None
            if error.errno in _FULL:
                raise OSError(f"{self._directory} is full: {error.strerror}") from None
            raise OSError(f"{self._directory}: {error.strerror}") from None


def _hint(number: int) -> str:
    if number == errno.ENOTDIR:
        return "it must be a directory on a disk that all nodes share"
    return "the directory and what is in it must be writable for this user on every node"


def _parsed(data: bytes) -> _Found:
    try:
        found: _Found = fields.record(_Found, fields.decode(data))
        if found.revision:
            return found
    except fields.Malformed:
        pass
    from hashlib import sha256

    return _Found(revision=f"unknown.{sha256(data).hexdigest()}")


def _locker(file: int) -> str:
    """Return who has locked a file, for people."""
    import fcntl
    import struct

    layout = "hhqqi4x"  # struct flock of 64 bit Linux
    try:
        asked = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        process = struct.unpack(layout, fcntl.fcntl(file, fcntl.F_GETLK, asked))[4]
    except (OSError, struct.error):
        process = 0
    if process > 0 and os.path.exists(f"/proc/{process}"):
        return f"process {process}, which may be stopped"
    return "a process of another node"
