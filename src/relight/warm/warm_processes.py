"""Finds, takes over, starts and stops warm processes, which keep modules imported between jobs.

A job takes over a process that was created for the same program in the same directory, if a new
process would import exactly the same modules (`warm/fork_compat.py`). The warm process itself
checks that the imported files are unchanged (`preload/warm_process.py`).
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from socket import socket
from typing import Any, NamedTuple

from relight.base import fields
from relight.events.event_types import Event, WarmProcessTaken, WarmProcessUnfit
from relight.host import linux, user_sockets
from relight.host.descriptors import receive
from relight.warm import fork_compat, warm_sockets, warm_spawner
from relight.warm.warm_sockets import BeingMade, Description, SocketDirectory
from relight.warm.warm_spawner import SpawnerHandle
from relight.warm.worker_program import WorkerProgram

ANSWER_S = 5.0
"""The time limit for all warm processes to send their descriptions. This normally takes
milliseconds. Under load, it may take seconds, but cold imports then take even longer.
"""
_MAX = 3
"""The maximum number of warm processes per user. Each of them keeps its modules in memory."""
_LONGEST = 16 << 20
_NO_SESSION = "4294967295"
"""The audit session of a process that was not started from a login."""


class FoundProcess(NamedTuple):
    """A warm process, with the path of its socket, a connection to it, and its description."""

    path: str
    connection: socket
    description: Description


class WarmProcesses:
    """A user's warm processes that can fork workers for one program.

    Args:
        worker: the workers' program.
    """

    def __init__(self, worker: WorkerProgram) -> None:
        self._worker = worker
        self._mine: list[str] = []  # sockets of the processes that this job took over or started

    def take(
        self, asked: Sequence[str], record: Callable[[Event], None]
    ) -> tuple[SpawnerHandle, Description] | None:
        """Take over the newest suitable process for this job. Return that process, or None.

        Args:
            asked: the modules that the process must have been asked to import.
            record: called with the chosen process, and with the reasons why other processes are not
                suitable.
        """
        for found in self._fitting(asked, record):
            if _sends(found.connection, b"take\n"):
                self._mine.append(found.path)
                known = found.description
                record(WarmProcessTaken(known.pid, known.modules, known.age_s, known.uses))
                return SpawnerHandle(known.pid, found.connection, is_lasting=True), known
            found.connection.close()
        return None

    def find(self, asked: Sequence[str]) -> Description | None:
        """Return the newest suitable process, or None, without taking it over."""
        for found in self._fitting(asked, lambda _: None):
            found.connection.close()
            return found.description
        return None

    def _fitting(
        self, asked: Sequence[str], record: Callable[[Event], None]
    ) -> Iterator[FoundProcess]:
        connections = _connect(self._paths())  # the processes check their files in the meantime
        facts = fork_compat.collect() if connections else {}
        for found in _answers(connections):
            if reason := _difference(found.description, self._worker, facts, asked):
                found.connection.close()
                record(WarmProcessUnfit(found.description.pid, reason))
            else:
                yield found

    def being_made(self) -> BeingMade | None:
        """Return the process that is still importing its modules, or None."""
        try:
            return SocketDirectory(self._worker.variables).being_made(_name(self._worker))
        except OSError:
            return None

    def start(self, setup: dict[str, Any], *, is_ahead: bool = False) -> SpawnerHandle:
        """Start a process. When it is ready, it replaces the processes that this job took over or
        started before. If there are too many processes, the least recently used one is stopped.

        Args:
            setup: the instructions for `preload/warm_fork.py`, except for the lifetime.
            is_ahead: whether this process runs without a job.

        Raises:
            BlockingIOError: if another job's process is importing modules now.
            OSError: if the socket directory can't be used, or no process can be forked.
        """
        worker, keep = self._worker, self._worker.keep
        assert keep is not None
        directory = SocketDirectory(worker.variables)
        path, lock = directory.new(_name(worker))
        _end_oldest(directory)
        lasting = {
            "socket": path,
            "replaces": list(self._mine),
            "lock": lock,
            "script": script(worker.argv),
            "stays_s": keep.stays_s,
            "until": [pid for pid in (keep.until, _session()) if pid],
            "began_ns": time.time_ns(),
            "is_ahead": is_ahead,
        }
        argv = warm_spawner.lasting_argv(worker.argv)
        self._mine.append(path)
        try:
            return warm_spawner.start(worker, {**setup, "argv": argv, "keep": lasting})
        finally:
            os.close(lock)

    def discard(self) -> None:
        """Prevent the processes that this job took over or started from being used by other
        jobs.
        """
        for path in self._mine:
            stop(path)

    def _paths(self) -> list[str]:
        try:
            return SocketDirectory(self._worker.variables).sockets(_name(self._worker))
        except OSError:
            return []  # the directory doesn't exist, or belongs to another user


def _connect(paths: Sequence[str]) -> dict[str, socket]:
    """Connect to warm processes, each of which then begins to describe itself."""
    found = ((path, user_sockets.connect(path, ANSWER_S)) for path in paths)
    return {path: connection for path, connection in found if connection is not None}


def _answers(connections: dict[str, socket]) -> Iterator[FoundProcess]:
    """Yield each process as soon as its description arrives. Processes whose descriptions arrive at
    the same time are in the order of their paths. A slow or unresponsive process does not delay the
    others. All other connections are closed at the end.
    """
    until = time.monotonic() + ANSWER_S
    poll, paths, texts = select.poll(), dict[int, str](), dict.fromkeys(connections, b"")
    try:
        for path, connection in connections.items():
            if not linux.is_stopped(user_sockets.peer(connection).pid):
                connection.setblocking(False)
                paths[connection.fileno()] = path
                poll.register(connection, select.POLLIN)
        while paths and (left := until - time.monotonic()) > 0:
            ready = {fd for fd, _ in poll.poll(left * 1000)}
            for fd, path in [each for each in paths.items() if each[0] in ready]:
                more = receive(connections[path], 1 << 16)
                texts[path] += more or b""
                if not _is_complete(texts[path], more):
                    continue
                poll.unregister(fd)
                del paths[fd]
                try:
                    description = fields.record(Description, fields.decode(texts[path]))
                except fields.Malformed:
                    continue
                connection = connections.pop(path)
                connection.settimeout(ANSWER_S)
                yield FoundProcess(path, connection, description)
    finally:
        for connection in connections.values():
            connection.close()


def _is_complete(text: bytes, latest: bytes | None) -> bool:
    """Return whether a description is complete. `latest` is empty at the end of the connection, and
    None if nothing has arrived.
    """
    return latest == b"" or text.endswith(b"\n") or len(text) > _LONGEST


def ask(path: str) -> FoundProcess | None:
    """Return the warm process that listens on a socket, or None if it does not respond."""
    return next(_answers(_connect([path])), None)


def stop(path: str) -> None:
    """Request that a warm process exit as soon as all jobs that use it have finished."""
    if found := ask(path):
        with found.connection:
            _sends(found.connection, b"stop\n")


def stop_imports(guard: int) -> None:
    """Kill a process that is still importing its modules. The argument `guard` is the pid of its
    guard, which then exits.
    """
    for pid in linux.tree(guard):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(guard, signal.SIGCONT)  # the guard may have been stopped


def script(argv: Sequence[str]) -> str:
    """Format a worker's program for display."""
    return " ".join(warm_spawner.program_part(argv)[2:])


def _sends(connection: socket, word: bytes) -> bool:
    try:
        connection.sendall(word)
    except OSError:
        return False
    return True


def _name(worker: WorkerProgram) -> str:
    program = warm_spawner.program_part(worker.argv)
    return warm_sockets.name(worker.program, *program, *sorted(worker.own), os.getcwd())


def _difference(
    description: Description, worker: WorkerProgram, facts: dict[str, str], asked: Sequence[str]
) -> str:
    """Return the reason why a job can't use a warm process, or an empty string if it can."""
    if description.why_not:
        return description.why_not
    if lacking := [name for name in asked if name not in description.asked]:
        return f"it was not told to import {', '.join(lacking)}"
    own = {*worker.own, *description.writes}
    return fork_compat.difference(description.facts, facts) or fork_compat.variable_difference(
        description.variables, worker.variables, own
    )


def _end_oldest(directory: SocketDirectory) -> None:
    """Stop the least recently used processes that no job is using, so that another process can be
    started.
    """
    found = list(_answers(_connect(directory.sockets())))
    for each in found:
        each.connection.close()
    idle = [each for each in found if not each.description.jobs]
    idle.sort(key=lambda each: each.description.idle_s, reverse=True)
    for each in idle[: max(0, len(found) - _MAX + 1)]:
        stop(each.path)


def _session() -> int:
    """Return the topmost ancestor of this process in the same login session. When that ancestor
    exits, the user has logged out. Return 0 outside a login session, as in most containers.
    """
    mine = _identity("self")
    top, pid = 0, os.getppid() if mine[1] not in ("", _NO_SESSION) else 0
    while pid > 1 and _identity(pid) == mine:
        top, pid = pid, linux.parent_pid(pid)
    return top


def _identity(pid: int | str) -> tuple[int, str]:
    """Return a process's user and login session, by the ids that the audit subsystem has
    assigned.
    """
    try:
        with open(f"/proc/{pid}/sessionid") as file:
            return os.fstat(file.fileno()).st_uid, file.read()
    except OSError:
        return -1, ""
