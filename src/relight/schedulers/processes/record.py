"""Reads and writes a local job's files, which are its state and a lock that its executor holds.

The files are in the job's directory, below `local/`:

    state.json   written by the executor at each change, replaced atomically; blanks at its end
                 reserve room for later states, in case the disk is full by then
    lock         locked (flock) while the executor is alive, because a pid alone proves nothing
    executor.log the executor's own messages, normally empty
"""

import json
import os
import signal
import threading
import time
from typing import Any, NamedTuple

from relight.base import fields
from relight.base.errors import UsageError
from relight.host import files
from relight.host.waiting import wait_until
from relight.job.app import AppState

POLL_S = 0.05
_RESERVED = 4096
_MAX_BYTES = 1 << 26
"""The number of bytes reserved for a state. The state of a job with 5000 replicas takes up a third
of this.
"""
_ATTEMPTS = 5
_READING = threading.Lock()
_latest: dict[tuple[str, bool, int, int], dict[str, Any] | None] = {}


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _set_unique_mtime(fd: int) -> None:
    """Set a unique modification time, because the kernel only updates its clock for file times
    every few milliseconds.
    """
    now = time.time_ns()
    os.utime(fd, ns=(now, now))


class ReplicaState(NamedTuple):
    """A replica's state, the reason why it failed, and the files for its streams."""

    role: str
    replica: int
    state: AppState
    exitcode: int | None
    error: str
    stdout: str
    stderr: str
    combined: str
    pid: int


class JobState(NamedTuple):
    """A job's state, and its executor's pid."""

    scheduler: str
    app_id: str
    name: str
    log_dir: str
    state: AppState
    message: str
    submitted: str
    host: str
    pid: int
    restarts: int
    replicas: tuple[ReplicaState, ...]


class LocalRecord:
    """A job's state on disk, which any process can read.

    Args:
        directory: the job's directory.
    """

    def __init__(self, directory: str) -> None:
        self.directory = os.path.join(directory, "local")
        self._state = os.path.join(self.directory, "state.json")
        self._lock = os.path.join(self.directory, "lock")
        self.executor_log = os.path.join(self.directory, "executor.log")
        self._reserved = 0

    def make(self) -> None:
        """Create the directory for a new job.

        Raises:
            UsageError: if the job already exists, or the directory can't be written.
        """
        try:
            os.mkdir(self.directory, 0o700)
        except FileExistsError:
            raise UsageError(f"the job in {self.directory} was already submitted") from None
        except OSError as error:
            raise UsageError(f"can't write to {self.directory}: {error.strerror}") from None

    def lock(self) -> int:
        """Lock the job until this process exits, and return the lock's descriptor."""
        import fcntl  # not available on other operating systems

        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd

    def is_locked(self) -> bool:
        """Return whether the executor is alive."""
        import fcntl

        try:
            fd = os.open(self._lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            # The check uses a shared lock, so that two checks at the same time don't mistake each
            # other for the executor.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def write(self, state: dict[str, Any]) -> None:
        """Replace the state. If the disk is full, use the space that the first state reserved.

        Raises:
            OSError: if the disk can't be written to at all.
        """
        text = json.dumps(state).encode()
        self._reserved = self._reserved or len(text) + _RESERVED * (1 + len(state["replicas"]))
        text = text.ljust(self._reserved)
        temporary = f"{self._state}.new"
        try:
            with open(temporary, "wb", opener=_private) as file:
                file.write(text)
                _set_unique_mtime(file.fileno())
            os.replace(temporary, self._state)
        except OSError:
            if os.path.exists(temporary):
                os.unlink(temporary)
            if not os.path.exists(self._state):
                raise
            with open(self._state, "r+b") as file:
                file.write(text)
                file.flush()
                _set_unique_mtime(file.fileno())

    def read(self) -> dict[str, Any] | None:
        """Return the state, or None if the job does not exist."""
        held = self.is_locked()  # first, because the last state is written under the lock
        state = self._load()
        if state is None:
            return None
        if state["state"] == "RUNNING" and not held:
            state["state"] = "FAILED"
            state["message"] = f"the process that ran it (pid {state['pid']}) was killed"
            for replica in state["replicas"]:
                if replica["state"] in ("PENDING", "RUNNING"):
                    replica.update(state="FAILED", error="killed with the process that ran it")
        return state

    def latest(self) -> dict[str, Any] | None:
        """Return the same result as `read`, but parse it only once and share it among all threads.
        Callers must not modify the result.
        """
        with _READING:
            held = self.is_locked()
            try:
                found = os.stat(self._state)
            except OSError:
                return None
            version = (self._state, held, found.st_ino, found.st_mtime_ns)
            if version not in _latest:
                state = self.read()
                _latest.clear()
                _latest[version] = state
            return _latest[version]

    def _load(self) -> dict[str, Any] | None:
        for number in range(_ATTEMPTS):
            if number:
                time.sleep(POLL_S)  # it is being overwritten in place, because the disk is full
            try:
                with files.opened(self._state) as file:
                    state = fields.decode(file.read(_MAX_BYTES))
            except OSError:
                return None
            except fields.Malformed:
                continue
            try:
                found: dict[str, Any] = fields.plain(fields.record(JobState, state))
            except fields.Malformed:
                return None
            return found
        return None

    def stop(self, limit_s: float) -> bool:
        """Request that the executor stop the job, and return whether the job ends within the time
        limit.
        """
        state = self.read()
        if state is None or state["state"] != "RUNNING":
            return True
        try:
            from relight.host import system

            # The lock is still held, so the pid is the executor's.
            system.signal_if(state["pid"], signal.SIGTERM, self.is_locked)
        except ProcessLookupError:
            return True
        return wait_until(lambda: not self.is_locked(), limit_s, POLL_S)
