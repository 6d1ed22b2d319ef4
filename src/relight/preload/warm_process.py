"""Implements the warm process. It keeps imported modules in memory after its job has ended, so that
later jobs can use them.

The warm process is the process that has imported the modules (`preload/warm_fork.py`). It listens
on a socket in a directory that only its user can enter, and never runs a script itself:

    agent           connects
    warm process    sends a line of JSON (`Description`): the jobs that it can serve, and whether
                    the files that it imported have changed
    agent           compares this with its job, and sends `take` or `stop` or closes the connection
    warm process    forks a guard and a warm spawner, which serve this agent on this connection as
                    if the agent had started them. The warm process therefore has no access to
                    jobs, and jobs have no access to each other

    warm process --> guard --> warm spawner of a job --> workers
                 --> guard --> warm spawner of another

The warm process ends after a certain time without a job, when memory becomes scarce, when its user
has logged out, when the directory has been removed, when a file that it imported has changed, or on
request. If jobs are running at that time, it rejects new jobs and ends after the last running one.
Between jobs it sleeps until one of these events occurs.
"""

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from relight.base import fields
from relight.host import free_memory, linux, user_sockets
from relight.host.descriptors import receive
from relight.host.process_handle import ProcessHandle
from relight.preload.guard import AgentProcess
from relight.warm.warm_sockets import Description

_ANSWER_S = 2.0
"""How long an agent may take to reply."""
_MAX_CONNECTIONS = 16
_END_LIMIT_S = 1.0
_PRESSURE = b"some 200000 2000000\0"
"""The memory pressure that triggers a check of the free memory: some process has been stalled for
0.2 s within 2 s (Linux, accounting/psi).
"""


class JobConnection(NamedTuple):
    """The parameters for serving a job in a child of the warm process: the job's connection, the
    job's agent, and the warm process.
    """

    control: socket.socket
    agent: AgentProcess
    warm_process: ProcessHandle


class _Connection(NamedTuple):
    socket: socket.socket
    until: float


class _Guard(NamedTuple):
    process: ProcessHandle
    agent: ProcessHandle


class WarmProcess:
    """Forks warm spawners for jobs.

    Args:
        path: the path of the process's socket.
        idle_s: how many seconds the process keeps running without a job.
        until: processes that the process must not outlive.
        describe: returns the description that is sent to agents. Its arguments are the fields that
            this object knows.
        is_ahead: whether the first connection comes from `relight warm start` rather than from a
            job.

    Raises:
        OSError: if the socket can't be created.
    """

    def __init__(
        self,
        path: str,
        idle_s: float,
        until: Sequence[ProcessHandle],
        describe: Callable[..., Description],
        *,
        is_ahead: bool,
    ) -> None:
        self._listener = user_sockets.listen(path)
        self._path = path
        self._inode = os.lstat(path).st_ino
        self._idle_s = idle_s
        self._describe = describe
        self._connections: dict[int, _Connection] = {}
        self._guards: dict[int, _Guard] = {}
        self._began = self._idle_since = time.monotonic()
        self._uses = -1 if is_ahead else 0
        self._is_ending = False
        self._forgotten: set[int] = set()
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)
        self._folder, self._pressure = _watch(path), _pressure()
        self._ends = {*(each.fileno() for each in until), self._pressure}
        """Descriptors on which any event makes this process end."""
        for fd in {self._folder, *self._ends} - {-1}:
            self._poll.register(fd, select.POLLPRI if fd == self._pressure else select.POLLIN)

    def run(self, first: socket.socket, agent: int) -> JobConnection:
        """Serve agents. Return only in a child, which serves a single job.

        Args:
            first: the connection to the agent that started this process.
            agent: the pid of that agent.
        """
        if job := self._take(first, agent):
            return job
        while self._guards or not self._is_ending:
            self._forgotten.clear()
            for fd, _ in self._poll.poll(self._wait_ms()):
                if fd not in self._forgotten and (job := self._serve(fd)):
                    return job
            now = time.monotonic()
            for fd in [fd for fd, each in self._connections.items() if each.until <= now]:
                self._close(fd)
            if not self._guards and now >= self._idle_since + self._idle_s:
                self._end()
        os._exit(0)

    def _serve(self, fd: int) -> JobConnection | None:
        if fd == self._listener.fileno():
            self._accept()
        elif fd in self._connections:
            return self._obey(fd)
        elif fd in self._guards:
            self._on_guard_exit(fd)
        elif fd == self._folder:
            self._on_change()
        elif fd == self._pressure and not free_memory.why_scarce():
            pass  # others are waiting for memory, but ending this process would not help them
        elif fd in self._ends:
            self._forget(fd)
            self._end()
        else:
            self._on_agent_exit(fd)
        return None

    def _wait_ms(self) -> float | None:
        """Return how many milliseconds to sleep, or None to sleep until the next event."""
        ends = [each.until for each in self._connections.values()]
        if not self._guards:
            ends.append(self._idle_since + self._idle_s)
        # poll(2) truncates to whole milliseconds, so it would return slightly too early.
        return max(0.0, min(ends) - time.monotonic()) * 1000 + 1 if ends else None

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # the agent has exited, or no descriptor is left
        known = user_sockets.peer(connection)
        if known.user != os.getuid() or len(self._connections) >= _MAX_CONNECTIONS:
            connection.close()
            return
        connection.settimeout(_ANSWER_S)
        now = time.monotonic()
        try:
            description = self._describe(
                age_s=now - self._began,
                idle_s=0.0 if self._guards else now - self._idle_since,
                stays_s=self._idle_s,
                uses=max(0, self._uses),
                jobs=len(self._guards),
            )
        except Exception:  # its files can't be checked; that must not end running jobs
            connection.close()
            self._end()
            return
        try:
            connection.sendall(json.dumps(fields.plain(description)).encode() + b"\n")
        except OSError:
            connection.close()
            return
        self._connections[connection.fileno()] = _Connection(connection, now + _ANSWER_S)
        self._poll.register(connection, select.POLLIN)
        if description.why_not:
            self._end()

    def _obey(self, fd: int) -> JobConnection | None:
        connection = self._connections[fd].socket
        word = receive(connection, 16)
        if word == b"take\n" and not self._is_ending:
            del self._connections[fd]
            self._forget(fd)
            return self._take(connection, user_sockets.peer(connection).pid)
        self._close(fd)
        if word == b"stop\n":
            self._end()
        return None

    def _close(self, fd: int) -> None:
        self._forget(fd)
        self._connections.pop(fd).socket.close()

    def _take(self, control: socket.socket, agent: int) -> JobConnection | None:
        """Fork the guard for a job. Return the job's connection in the guard, and None in this
        process.
        """
        try:
            control.setblocking(True)
            process = ProcessHandle(agent)
        except OSError:
            control.close()  # agent exited or in another container, or no descriptor left
            return None
        if _is_closed(control):  # by now, the pid may belong to another process
            control.close()
            process.close()
            return None
        this, pid = None, -1
        try:
            this = ProcessHandle(os.getpid())
            pid = os.fork()
        except OSError as error:
            with contextlib.suppress(OSError):
                control.sendall(f"unfit it can't be forked: {error.strerror}\n".encode())
        if this is not None and pid == 0:
            for other in (self._listener, *(each.socket for each in self._connections.values())):
                other.detach()  # or it would close a different descriptor with the same number
            kept = (control.fileno(), *process.descriptors, *this.descriptors)
            linux.close_all_but({0, 1, 2, *kept, *linux.libffi_descriptors()})
            return JobConnection(control, AgentProcess(process, control.fileno()), this)
        if this is not None:
            this.close()
        control.close()
        if pid < 0:
            process.close()
            return None
        self._uses += 1
        guard = ProcessHandle(pid)  # a descriptor is available, because two were just closed
        self._guards[guard.fileno()] = _Guard(guard, process)
        self._poll.register(guard, select.POLLIN)
        self._poll.register(process, select.POLLIN)
        return None

    def _on_guard_exit(self, fd: int) -> None:
        """Reap a guard. If the guard was killed, kill its descendants."""
        self._forget(fd)
        guard = self._guards.pop(fd)
        linux.reap(guard.process.pid, _END_LIMIT_S)
        guard.process.close()
        self._forget(guard.agent.fileno())
        guard.agent.close()
        linux.end_children(_END_LIMIT_S, [each.process.pid for each in self._guards.values()])
        self._idle_since = time.monotonic()

    def _on_agent_exit(self, fd: int) -> None:
        """Send SIGCONT to the guard of a job whose agent has exited, in case the guard is
        stopped.
        """
        self._forget(fd)
        for guard in self._guards.values():
            if guard.agent.fileno() == fd:
                os.kill(guard.process.pid, signal.SIGCONT)

    def _on_change(self) -> None:
        """End this process if its socket no longer exists. Other changes to the directory don't
        matter.
        """
        with contextlib.suppress(BlockingIOError):
            os.read(self._folder, 1 << 16)
        if not self._has_socket():
            self._forget(self._folder)
            self._end()

    def _has_socket(self) -> bool:
        try:
            return os.lstat(self._path).st_ino == self._inode
        except OSError:
            return False

    def _forget(self, fd: int) -> None:
        """Stop watching a descriptor. The descriptor may be closed and reused before earlier events
        have been handled.
        """
        self._forgotten.add(fd)
        with contextlib.suppress(KeyError):
            self._poll.unregister(fd)

    def _end(self) -> None:
        """Stop accepting jobs, and exit once no job is running."""
        if self._is_ending:
            return
        self._is_ending = True
        self._forget(self._listener.fileno())
        self._listener.close()
        if self._has_socket():
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def _watch(path: str) -> int:
    """Return a descriptor that becomes readable when a file is removed, or -1 if no descriptor is
    left.
    """
    events = linux.IN_DELETE | linux.IN_MOVED_FROM | linux.IN_DELETE_SELF | linux.IN_MOVE_SELF
    return linux.inotify_open((os.path.dirname(path), events))


def _pressure() -> int:
    """Return a descriptor that has an exceptional condition when memory is low, or -1 if the system
    doesn't report that.
    """
    try:
        fd = os.open("/proc/pressure/memory", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        os.write(fd, _PRESSURE)
    except OSError:
        os.close(fd)
        return -1
    return fd


def _is_closed(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0))
