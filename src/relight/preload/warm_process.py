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
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from relight.base import fields
from relight.host import free_memory, linux, user_sockets
from relight.host.descriptors import receive
from relight.host.loop import Alarm, Fd, Loop, Timer
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


class _Guard(NamedTuple):
    process: ProcessHandle
    agent: ProcessHandle


class _JobBegun(BaseException):
    """Raised in a child that serves a job, to leave the loop."""

    def __init__(self, job: JobConnection) -> None:
        self.job = job


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
        self._connections: dict[socket.socket, Timer] = {}
        """Agents that have not replied yet, and the end of their time."""
        self._guards: list[_Guard] = []
        self._uses = -1 if is_ahead else 0
        self._is_ending = False
        self._loop = Loop()
        self._began = self._idle_since = self._loop.now()
        self._idle = Alarm(self._loop, self._end)
        self._idle.set_after(idle_s)
        self._loop.on_readable(self._listener, self._accept)
        for process in until:
            self._loop.on_readable(process, partial(self._end_on, process))
        self._folder = _watch(path)
        if self._folder >= 0:
            self._loop.on_readable(self._folder, self._on_change)
        self._pressure = select.epoll()  # readable when the kernel reports memory pressure
        if (pressure := _pressure()) >= 0:
            self._pressure.register(pressure, select.EPOLLPRI)
        self._loop.on_readable(self._pressure, self._on_pressure)

    def run(self, first: socket.socket, agent: int) -> JobConnection:
        """Serve agents. Return only in a child, which serves a single job.

        Args:
            first: the connection to the agent that started this process.
            agent: the pid of that agent.
        """
        try:
            self._take(first, agent)
            self._loop.run_until(lambda: self._is_ending and not self._guards)
        except _JobBegun as begun:
            return begun.job
        os._exit(0)

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
        now = self._loop.now()
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
        self._loop.on_readable(connection, partial(self._obey, connection))
        self._connections[connection] = self._loop.call_at(
            now + _ANSWER_S, partial(self._close, connection)
        )
        if description.why_not:
            self._end()

    def _obey(self, connection: socket.socket) -> None:
        word = receive(connection, 16)
        if word == b"take\n" and not self._is_ending:
            self._connections.pop(connection).cancel()
            self._loop.forget(connection)
            self._take(connection, user_sockets.peer(connection).pid)
            return
        self._close(connection)
        if word == b"stop\n":
            self._end()

    def _close(self, connection: socket.socket) -> None:
        self._connections.pop(connection).cancel()
        self._loop.forget(connection)
        connection.close()

    def _take(self, control: socket.socket, agent: int) -> None:
        """Fork the guard for a job.

        Raises:
            _JobBegun: in the guard.
        """
        try:
            control.setblocking(True)
            process = ProcessHandle(agent)
        except OSError:
            control.close()  # agent exited or in another container, or no descriptor left
            return
        if _is_closed(control):  # by now, the pid may belong to another process
            control.close()
            process.close()
            return
        this, pid = None, -1
        try:
            this = ProcessHandle(os.getpid())
            pid = os.fork()
        except OSError as error:
            with contextlib.suppress(OSError):
                control.sendall(f"unfit it can't be forked: {error.strerror}\n".encode())
        if this is not None and pid == 0:
            # Closing them later would close different descriptors with the same numbers.
            self._loop.close()
            self._pressure.close()
            for other in (self._listener, *self._connections):
                other.close()
            kept = (control.fileno(), *process.descriptors, *this.descriptors)
            linux.close_all_but({0, 1, 2, *kept, *linux.libffi_descriptors()})
            raise _JobBegun(JobConnection(control, AgentProcess(process, control.fileno()), this))
        if this is not None:
            this.close()
        control.close()
        if pid < 0:
            process.close()
            return
        self._uses += 1
        self._idle.set(None)
        # A descriptor is available, because two were just closed.
        guard = _Guard(ProcessHandle(pid), process)
        self._guards.append(guard)
        self._loop.on_readable(guard.process, partial(self._on_guard_exit, guard))
        self._loop.on_readable(guard.agent, partial(self._on_agent_exit, guard))

    def _on_guard_exit(self, guard: _Guard) -> None:
        """Reap a guard. If the guard was killed, kill its descendants."""
        self._guards.remove(guard)
        self._loop.forget(guard.process)
        self._loop.forget(guard.agent)
        linux.reap(guard.process.pid, _END_LIMIT_S)
        guard.process.close()
        guard.agent.close()
        linux.end_children(_END_LIMIT_S, [each.process.pid for each in self._guards])
        self._idle_since = self._loop.now()
        if not self._guards:
            self._idle.set_after(self._idle_s)

    def _on_agent_exit(self, guard: _Guard) -> None:
        """Send SIGCONT to the guard of a job whose agent has exited, in case the guard is
        stopped.
        """
        self._loop.forget(guard.agent)
        os.kill(guard.process.pid, signal.SIGCONT)

    def _on_pressure(self) -> None:
        """End this process if memory is scarce. If only other processes are waiting for memory,
        that would not help them.
        """
        if free_memory.why_scarce():
            self._end_on(self._pressure)

    def _on_change(self) -> None:
        """End this process if its socket no longer exists. Other changes to the directory don't
        matter.
        """
        with contextlib.suppress(BlockingIOError):
            os.read(self._folder, 1 << 16)
        if not self._has_socket():
            self._end_on(self._folder)

    def _has_socket(self) -> bool:
        try:
            return os.lstat(self._path).st_ino == self._inode
        except OSError:
            return False

    def _end_on(self, fd: Fd) -> None:
        """End this process because of an event, which is no longer waited for."""
        self._loop.forget(fd)
        self._end()

    def _end(self) -> None:
        """Stop accepting jobs, and exit once no job is running."""
        if self._is_ending:
            return
        self._is_ending = True
        self._loop.forget(self._listener)
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
