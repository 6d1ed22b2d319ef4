"""Controls the warm spawner, a process that imports modules once and then forks each generation's
workers.

This module is the agent's side. The code of the process itself is in `preload/warm_fork.py`.
"""

import errno
import json
import os
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from relight.base.errors import signal_name
from relight.events.event_types import PreloadReady
from relight.host import linux
from relight.host.descriptors import receive, restore_limit
from relight.host.loop import Loop
from relight.processes import generation_pipe, spawner
from relight.processes.generation_pipe import WorkerPlan
from relight.warm.worker_program import WorkerProgram, hook, variable

ANSWER_S = 10.0
"""How long a generation waits for the warm spawner to fork the workers before the workers are
started cold.
"""
_FORK_S = 10.0
"""How long a fork through an intermediate process may take. That process may have been stopped."""
_ROOM = " " * 16384
"""An argument that reserves memory in a process that outlives the job. /proc shows the arguments of
later jobs from this memory.
"""
_DO_NOTHING = "import os; os.write({fd}, b'unfit it starts without sitecustomize\\n')"


class SpawnerHandle(NamedTuple):
    """The socket and the pid of either a newly started process, or a warm process that has accepted
    a job. If `is_lasting` is set, the process outlives the job, and forks a guard and a warm
    spawner for the job.
    """

    pid: int
    control: socket.socket
    is_lasting: bool


class WarmSpawnerOwner(Protocol):
    """Receives messages from a warm spawner. The event loop calls these methods."""

    def ready(self, event: PreloadReady) -> None:
        """Called when the modules have been imported and the spawner can fork workers."""

    def without(self, module: str, reason: str, seconds: float) -> None:
        """Called with a module that the spawner did not preload, and how long the module's import
        took.
        """

    def learned(self, unfit: dict[str, str], directories: list[str]) -> None:
        """Called before `ready` with the modules that can never be preloaded, each with the module
        that is the cause, and with the directories of installed packages.
        """

    def wrote(self, name: str, value: str | None, *, by_library: bool) -> None:
        """Called with an environment variable that a worker's script has set before an import, or
        that a library has set during its own import. None means that the variable was removed.
        """

    def lost(self, spawner: "WarmSpawner", reason: str, *, retry: bool) -> None:
        """Called when the spawner can no longer be used. The owner then stops the spawner. If
        `retry` is true, another spawner may work.
        """


class WarmSpawner:
    """A warm spawner, from its start to its end. The spawner exits when this process exits.

    Args:
        loop: the agent's loop.
        origin: the handle of the process, from `start` or `warm/warm_processes.py`.
        owner: receives the spawner's messages.

    Attributes:
        began: the time when the spawner was started, on the loop's clock.
        guard: the pid of the spawner's guard, or 0 while a process that is to outlive the job is
            importing modules.
        pid: the spawner's pid or, until it is ready, the pid of the process that imports the
            modules.
        importing: the module that is currently being imported, or an empty string.
        importing_since: the time when that import began, on the loop's clock.
        is_lasting: whether the process that has imported the modules outlives the job.
        is_ready: whether the spawner can fork workers.
        is_stopped: whether `stop` has been called.

    Raises:
        OSError: if no descriptor is left.
    """

    def __init__(self, loop: Loop, origin: SpawnerHandle, owner: WarmSpawnerOwner) -> None:
        self.is_ready = self.is_stopped = False
        self._loop = loop
        self._owner = owner
        self.importing, self.importing_since = "", loop.now()
        self.began = loop.now()
        self._left_out = ""
        self._buffer = b""
        self.pid, self._control = origin.pid, origin.control
        self.guard = 0 if origin.is_lasting else origin.pid
        self._child = None if origin.is_lasting else linux.Child(origin.pid)
        self.is_lasting = origin.is_lasting
        self._control.setblocking(False)
        loop.on_readable(self._control, self.hear)

    def send(self, plans: Sequence[WorkerPlan], scratch: str, held: Sequence[int]) -> socket.socket:
        """Send a generation's plans, and the descriptors to keep open as long as there are workers.
        Return the agent's end of the generation's socket.

        Raises:
            OSError: if the plans can't be sent, or no descriptor is left.
        """
        return generation_pipe.send(self._control, plans, scratch, held)

    def wait_forked(self, connection: socket.socket) -> bool:
        """Wait until a generation's workers have been forked. Return False if forking fails."""
        words: list[bytes] = []

        def hear() -> None:
            self._loop.forget(connection)
            words.append(receive(connection, 7, socket.MSG_PEEK) or b"")

        self._signal(signal.SIGCONT)  # in case it is stopped
        self._loop.on_readable(connection, hear)
        # If the connection is closed, the reason arrives on the control socket.
        self._loop.run_until(lambda: any(words) or self.is_stopped, ANSWER_S)
        self._loop.forget(connection)
        return words == [b"holder "]

    def describe_progress(self, state: str) -> str:
        """Return `state`, followed by the module that the spawner was importing. The module is
        omitted if all modules have been imported.
        """
        return f"{state}; it imported {self.importing}" if self.importing else state

    def stop(self) -> None:
        """Kill the spawner. The caller still has to wait for the spawner's guard."""
        self.is_ready = False
        self.is_stopped = True
        self._loop.forget(self._control)
        self._control.close()
        self._signal(signal.SIGKILL)
        if self._child is not None:
            self._child.close()

    def _signal(self, number: int) -> None:
        """Send a signal to the spawner and to its guard, but not to a process that outlives the
        job.
        """
        if self._child is not None:
            self._child.send(number)

    def hear(self) -> None:
        """Process the messages that have arrived, without waiting for more."""
        data = receive(self._control, 65536)
        if data is None:
            return
        if not data:
            self._owner.lost(self, self.describe_progress(self._describe_exit()), retry=True)
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode(errors="replace").partition(" ")
            if word == "guard":
                try:
                    self._child = linux.Child(int(rest))
                except OSError as error:
                    self._owner.lost(self, f"its guard has ended: {error.strerror}", retry=True)
                    return
                self.guard = int(rest)
            elif word == "ready":
                pid, modules, mib = rest.split()
                self.pid = int(pid)
                if self._child is not None:
                    self._child.guards(self.pid)
                self.is_ready = True
                self.importing = ""
                numbers = int(modules), self._loop.now() - self.began, float(mib)
                self._owner.ready(PreloadReady(self.pid, *numbers, self._left_out))
            elif word == "left_out":
                self._left_out = rest
            elif word == "learned":
                self._owner.learned(**json.loads(rest))
            elif word == "importing":
                self.importing, self.importing_since = rest, self._loop.now()
            elif word == "wrote":
                who, _, assignment = line[len(b"wrote ") :].partition(b" ")
                self._owner.wrote(*variable(assignment), by_library=who == b"library")
            elif word == "without":
                name, seconds, reason = rest.split(" ", 2)
                self._owner.without(name, reason, float(seconds))
            elif word == "unfit":
                self._owner.lost(
                    self, rest, retry=False
                )  # another spawner would fail in the same way
                return

    def _describe_exit(self) -> str:
        """Describe how a warm spawner that has closed its socket ended, without reaping it."""
        if self._child is None:
            return "it has ended"
        poll = select.poll()
        poll.register(self._child, select.POLLIN)
        if not poll.poll(1000):
            return "it has closed its socket"
        try:
            end = os.waitid(os.P_PID, self.guard, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            end = None  # the generation that used it, or a warm process, has reaped it
        if end is None:
            return "it has ended"
        if end.si_code == os.CLD_EXITED:
            return f"it ended with {end.si_status}"
        return f"it was killed by {signal_name(end.si_status)}"


def start(worker: WorkerProgram, setup: Mapping[str, Any]) -> SpawnerHandle:
    """Start an interpreter that inherits only a socket and a file with its instructions.

    The interpreter exits when this process exits, unless `setup["keep"]` specifies otherwise.

    Raises:
        OSError: if no process can be forked, or no descriptor is left.
    """
    keep = setup["keep"]
    ours, theirs = socket.socketpair()
    described = linux.anonymous_file("relight-setup")
    os.write(described, json.dumps(setup).encode())
    parent = 0 if keep else os.getpid()
    fds: tuple[int, ...] = (theirs.fileno(), described)
    variables = {**worker.variables, **hook("check:{},{}".format(*fds), worker.variables)}
    if keep:
        fds = (*fds, keep["lock"])
        variables["RELIGHT_ROOM"] = _ROOM
    argv = (worker.argv[0], "-u", "-c", _DO_NOTHING.format(fd=theirs.fileno()))
    mask = linux.block_signals()
    try:
        pid = _fork_away() if keep else linux.fork()
        if pid == 0:
            _exec(parent, fds, worker.program, argv, variables, mask)
    except OSError:
        ours.close()
        raise
    finally:
        linux.restore_signals(mask)
        os.close(described)
        theirs.close()
    return SpawnerHandle(pid, ours, bool(keep))


def lasting_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command line for a process that outlives the job, based on a worker's command
    line. The script's arguments are replaced with blanks, which reserve space in /proc/PID/cmdline
    for the arguments of other jobs.
    """
    return (*program_part(argv), _ROOM)


def program_part(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the part of a worker's command line that precedes the script's arguments."""
    return tuple(argv[: 4 if argv[2] == "-m" else 3])


def _fork_away() -> int:
    """Fork a process that does not become a child of this process, although this process is a
    subreaper. Return the new process's pid, or 0 in the new process.

    Raises:
        OSError: if no process can be forked, or no descriptor is left.
    """
    reading, writing = os.pipe()
    linux.become_subreaper(False)
    try:
        middle = linux.fork()
        if middle == 0:
            number = 0
            try:
                number = os.fork()
            except OSError as error:
                number = -(error.errno or 1)
            if number == 0:
                return 0
            os.write(writing, b"%d" % number)
            os._exit(0)
        if not select.select([reading], [], [], _FORK_S)[0]:
            os.kill(middle, signal.SIGKILL)
            os.write(writing, b"%d" % -errno.ETIMEDOUT)
        pid = int(os.read(reading, 32))
        linux.reap(middle, _FORK_S)
    finally:
        linux.become_subreaper()
        os.close(reading)
        os.close(writing)
    if pid < 0:
        raise OSError(-pid, os.strerror(-pid))
    return pid


def _exec(
    parent: int,
    fds: tuple[int, ...],
    program: str,
    argv: tuple[str, ...],
    variables: Mapping[str, str],
    mask: Any,
) -> None:
    try:
        if parent:
            linux.die_with_parent(signal.SIGKILL)
        if parent in (0, os.getppid()):
            os.setsid()
            restore_limit()
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            for fd in fds:
                os.set_inheritable(fd, True)
            linux.close_all_but({0, 1, 2, *fds})
            spawner.default_signals(spawner.own_actions())
            linux.restore_signals(mask)
            os.execve(program, argv, variables)
    finally:
        os._exit(127)
