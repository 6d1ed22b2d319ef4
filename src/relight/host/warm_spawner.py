"""Controls the warm spawner: the process that imports modules once and forks each worker.

`Preload.fork` replaces `spawner.fork`: the warm spawner (`worker/warm_fork.py`) starts the workers
of a generation if it is ready; otherwise they start cold. There is at most one warm spawner.

    named modules   with three workers or more for two processors, the warm spawner starts first,
                    and the first generation waits for it. Otherwise the first worker of the first
                    generation, which starts cold, is watched; when it imports the first of these
                    modules, the warm spawner starts beside it at the lowest priority
    auto            that worker is watched; when it has imported nothing new for a while, the
                    warm spawner starts at the lowest priority
    lost            it starts again, at the lowest priority, when the next generation has begun

Environment variables that the script sets before it imports are adopted: the warm spawner imports
with them. A worker that sets other values restarts itself cold (`worker/deferred.py`), and the next
warm spawner imports with these.

For each generation the agent sends a count and that many descriptors: a file with the plans as
JSON, a socket for the generation, stdin, and each worker's stdout and stderr. The file is in memory
and the messages are small, so that sending never blocks.
"""

import json
import mmap
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence

from relight.errors import MachineError, signal_name
from relight.events import (
    Event,
    PreloadReady,
    PreloadStarted,
    PreloadUnfit,
    PreloadWithout,
    WorkersWarm,
)
from relight.host import linux, spawner
from relight.host.descriptors import restore_limit
from relight.host.loop import Loop, Timer
from relight.host.spawner import WorkerPlan
from relight.typed import NamedTuple

AUTO = "auto"
_COUNT = struct.Struct("!I")
_MOST_AT_ONCE = 250
_ANSWER_S = 10.0
"""How long a generation waits for the warm spawner's forks before it starts cold."""
_END_LIMIT_S = 1.0
_SILENT_S = 10.0
_PATIENCE_S = 120.0
"""How long the first generation waits for named modules. Cold workers import them as well."""
_LEARN_S = 20.0
_LOOK_S = 0.25
_QUIET_S = 5.0
_NAMES_SIZE = 1 << 20
_TRIES = 3
_DO_NOTHING = "import os; os.write({fd}, b'unfit it starts without sitecustomize\\n')"


class Workplace(NamedTuple):
    """The program, arguments and variables that all workers of this node share.

    `own` are the names of variables that differ between workers; `program` is a path; `workers` is
    the number of workers on this node.
    """

    program: str
    argv: tuple[str, ...]
    variables: Mapping[str, str]
    own: tuple[str, ...]
    workers: int


class Preload:
    """Starts, uses and restarts the warm spawner.

    Args:
        loop: the agent's loop.
        workplace: the workers' program and variables.
        modules: the modules to import, or AUTO.
        record: called with events.
        say: called with messages for the user.
    """

    def __init__(
        self,
        loop: Loop,
        workplace: Workplace,
        modules: Sequence[str],
        record: Callable[[Event], None],
        say: Callable[[str], None],
    ) -> None:
        linux.become_subreaper()  # a process that an import has started must not outlive this one
        self._loop = loop
        self._workplace = workplace
        self._learned = tuple(modules) == (AUTO,)
        self._modules = [] if self._learned else list(modules)
        self._record = record
        self._say = say
        self._importing = self._left_out = ""
        self._ready = False
        self._lent = False
        self._cold = 0
        self._why_not = "its modules are not known yet" if self._learned else ""
        self._writes: dict[str, str | None] = {}
        self._written: dict[str, str | None] = {}
        self._tries = _TRIES
        self._control: socket.socket | None = None
        self._child: linux.Child | None = None  # its guard, which is waited for
        self._pid = self._guard = -1
        self._buffer = b""
        self._generations = 0
        self._names: tuple[int, mmap.mmap] | None = None
        self._timer: Timer | None = None
        if self._learned or not _waits(workplace):
            try:
                fd = os.memfd_create("relight-modules")
                os.ftruncate(fd, _NAMES_SIZE)
                self._names = fd, mmap.mmap(fd, _NAMES_SIZE)
            except OSError as error:
                raise MachineError(
                    f"can't make memory for the names of preloaded modules: {error.strerror}",
                    hint="look at `ulimit -n`",
                ) from None
            self._why_not = self._why_not or "the first workers import as fast as it could"
        else:
            self._start(gently=False)

    def settled(self) -> bool:
        """Return whether the first generation can start without waiting."""
        return self._ready or self._control is None or bool(self._generations)

    def wait(self, otherwise: Callable[[], bool]) -> None:
        """Wait, with a limit, until the warm spawner is ready for the first generation."""
        if self.settled():
            return
        end = self._loop.now() + _PATIENCE_S
        timer = self._loop.call_at(end, lambda: None)
        silent = self._loop.call_after(_SILENT_S, self._tell_slow)
        self._loop.run_until(
            lambda: self.settled() or otherwise() or self._loop.now() >= end,
        )
        timer.cancel()
        silent.cancel()

    def _tell_slow(self) -> None:
        if not self.settled():
            what = f"{self._importing} is being imported" if self._importing else "it is starting"
            left = _PATIENCE_S - _SILENT_S
            self._say(
                f"preload: {what} (pid {self._pid}); the workers start when that is done, or in "
                f"{left:.0f} s without it"
            )

    def variables(self, local_rank: int, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that make a worker report its imports, if it is to be watched."""
        if self._names is None or local_rank or self._generations:
            return {}
        return _hook(f"learn:/proc/{os.getpid()}/fd/{self._names[0]}", variables)

    def fork(self, plans: Sequence[WorkerPlan], scratch: str) -> tuple[int, socket.socket]:
        """Start the workers; return the spawner's pid and the agent's end of the socket to it.

        Raises:
            OSError: no process can be forked, or no descriptor is left.
        """
        self._take_leave()
        self._take_over()
        self._generations += 1
        if self._ready and self._control is not None:
            try:
                connection = self._send(self._control, plans, scratch)
            except OSError as error:
                self._lose(f"it can't be told what to do: {error.strerror}")
            else:
                if self._forks(connection):
                    self._lent = True
                    self._record(WorkersWarm(True, ""))
                    return self._guard, connection
                if self._control is not None:
                    self._lose(f"it has not forked the workers in {_ANSWER_S:.0f} s")
                connection.close()  # not before: it would conclude that this process has ended
                self._tries = 0
        self._record(WorkersWarm(False, self._why_not or self._so_far("it is not ready")))
        held = spawner.fork(plans, scratch)
        self._cold = held[0]
        if self._names is not None and self._timer is None:
            if self._learned:
                self._timer = self._loop.call_after(_LEARN_S, lambda: self._learn(0))
            else:
                self._look(self._loop.now() + _LEARN_S)
        elif self._control is None and self._modules and self._tries:
            self._start(gently=True)
        return held

    def close(self) -> None:
        """End the warm spawner and return when it is gone. Its workers must be gone by now."""
        if self._timer is not None:
            self._timer.cancel()
        self._stop()
        self._take_leave()
        linux.end_children(_END_LIMIT_S)
        if self._names is not None:
            self._names[1].close()
            os.close(self._names[0])
            self._names = None

    def _forks(self, connection: socket.socket) -> bool:
        """Wait until the workers of a generation are forked; return False if that fails."""
        words: list[bytes] = []

        def hear() -> None:
            self._loop.forget(connection)
            try:
                words.append(connection.recv(7, socket.MSG_PEEK))
            except OSError:
                words.append(b"")

        def known() -> bool:
            # If the connection ends, the control socket has the reason.
            return any(words) or self._control is None or self._loop.now() >= end

        assert self._child is not None
        self._child.send(signal.SIGCONT)  # in case it is stopped
        end = self._loop.now() + _ANSWER_S
        timer = self._loop.call_at(end, lambda: None)
        self._loop.on_readable(connection, hear)
        self._loop.run_until(known)
        self._loop.forget(connection)
        timer.cancel()
        return words == [b"holder "]

    def _learn(self, size: int) -> None:
        """Start the warm spawner with the first worker's imports, once it imports nothing new."""
        assert self._names is not None
        memory = self._names[1]
        end = memory.find(b"\0")
        slow_to_start = not end and self._generations == 1
        if end != size or slow_to_start:
            self._timer = self._loop.call_after(_QUIET_S, lambda: self._learn(end))
            return
        self._modules = self._seen()
        if self._modules and self._control is None:
            self._start(gently=True)
        else:
            self._why_not = "no worker could be watched"

    def _look(self, until: float) -> None:
        """Start the warm spawner when the first worker imports the first of the named modules."""
        if self._control is not None or not self._tries:
            return
        if self._loop.now() < until and not set(self._seen()).intersection(self._modules):
            self._timer = self._loop.call_after(_LOOK_S, lambda: self._look(until))
        else:
            self._start(gently=True)

    def _seen(self) -> list[str]:
        """Return the first worker's imports, and remember the variables that it has set."""
        assert self._names is not None
        memory = self._names[1]
        lines = memory[: memory.find(b"\0")].split(b"\n")[:-1]
        for line in lines:
            if line[:1] == b"=":
                self._writes.update([_variable(line[1:])])
        return list(dict.fromkeys(x.decode(errors="replace") for x in lines if x[:1] != b"="))

    def _take_over(self) -> None:
        """End a warm spawner that has imported with other variables than the script sets."""
        again = sorted(self._written.keys() & self._writes.keys())
        names = ", ".join(again or sorted(self._written))
        if self._written:
            self._writes.update(self._written)
            self._written.clear()
            values = "not always to the same value" if again else "and imports with that next time"
            self._lose(f"the script sets {names} before it imports, {values}")
            if again:
                self._tries = 0

    # The warm spawner's process.

    def _start(self, *, gently: bool) -> None:
        """Start the warm spawner in its own session; it dies with this process."""
        self._tries -= 1
        self._why_not = self._importing = ""
        place = self._workplace
        setup = {
            "agent": os.getpid(),
            "program": place.program,
            "argv": place.argv,
            "modules": self._modules,
            "learned": self._learned,
            "gently": gently,
            "own": place.own,
            "writes": {n: v for n, v in self._writes.items() if n not in place.own},
            "relight": os.path.dirname(os.path.dirname(os.path.dirname(__file__))),
        }
        try:
            self._guard, self._control = _start(place, json.dumps(setup).encode())
            self._pid = self._guard
            self._child = linux.Child(self._guard)
        except OSError as error:
            self._why_not = f"it can't be started: {error.strerror}"
            self._record(PreloadUnfit(self._why_not, not self._learned))
            return
        self._buffer = b""
        self._loop.on_readable(self._control, self._receive)
        names = f"{len(self._modules)} modules" if self._learned else ",".join(self._modules)
        self._record(PreloadStarted(self._pid, names))

    def _receive(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._lose(self._so_far(self._how_it_ended()))
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode(errors="replace").partition(" ")
            if word == "ready":
                pid, modules, seconds, mib = rest.split()
                self._pid = int(pid)
                assert self._child is not None
                self._child.guards(self._pid)
                self._ready = True
                self._importing = ""
                self._tries = _TRIES
                numbers = int(modules), float(seconds), float(mib)
                self._record(PreloadReady(self._pid, *numbers, self._left_out))
            elif word == "left_out":
                self._left_out = rest
            elif word == "importing":
                self._importing = rest
            elif word == "wrote":
                name, value = _variable(line[len(b"wrote ") :])
                if self._written.setdefault(name, value) != value:
                    self._writes.setdefault(name, None)  # workers set different values
            elif word == "without":
                name, seconds, reason = rest.split(" ", 2)
                self._record(PreloadWithout(name, reason, float(seconds), not self._learned))
            elif word == "unfit":
                self._lose(rest)
                self._tries = 0  # the next attempt would fail in the same way
                return

    def _so_far(self, state: str) -> str:
        return f"{state}; it imported {self._importing}" if self._importing else state

    def _how_it_ended(self) -> str:
        """Describe how the warm spawner, which has closed its socket, ended; do not reap it."""
        poll = select.poll()
        assert self._child is not None
        poll.register(self._child, select.POLLIN)
        if not poll.poll(1000):
            return "it has closed its socket"
        try:
            end = os.waitid(os.P_PIDFD, self._child.fileno(), os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            end = None  # reaped by the generation that used it
        if end is None:
            return "it has ended"
        if end.si_code == os.CLD_EXITED:
            return f"it ended with {end.si_status}"
        return f"it was killed by {signal_name(end.si_status)}"

    def _lose(self, reason: str) -> None:
        """End a warm spawner that is unusable."""
        self._why_not = reason
        self._record(PreloadUnfit(reason, not self._learned))
        self._stop()
        if not self._lent:
            self._take_leave()
            linux.end_children(_END_LIMIT_S, keep=self._cold)  # processes that imports have started

    def _stop(self) -> None:
        self._ready = False
        if self._control is not None:
            self._loop.forget(self._control)
            self._control.close()
            self._control = None
            assert self._child is not None
            self._child.send(signal.SIGKILL)
            self._child.close()

    def _take_leave(self) -> None:
        """Reap a stopped warm spawner, unless the generation that used it has done so."""
        self._lent = False
        if self._control is None and self._guard > 0:
            try:
                os.waitpid(self._guard, 0)
            except ChildProcessError:
                pass
            self._guard = -1

    def _send(
        self, control: socket.socket, plans: Sequence[WorkerPlan], scratch: str
    ) -> socket.socket:
        """Send the plans of a generation; return the agent's end of its socket."""
        workers = [{"argv": plan.argv, "variables": dict(plan.variables)} for plan in plans]
        payload = json.dumps({"plans": workers, "scratch": scratch}).encode()
        outputs = [fd for plan in plans for fd in (plan.stdout, plan.stderr)]
        ours, theirs = socket.socketpair()
        with theirs, open(os.memfd_create("relight-plans"), "wb", buffering=0) as file:
            fds = [file.fileno(), theirs.fileno(), 0, *outputs]
            try:
                file.write(payload)
                control.sendall(_COUNT.pack(len(fds)))
                for first in range(0, len(fds), _MOST_AT_ONCE):
                    socket.send_fds(control, [b"f"], fds[first : first + _MOST_AT_ONCE])
            except OSError:
                ours.close()
                raise
        return ours


def _waits(place: Workplace) -> bool:
    """Return whether the warm spawner is ready sooner than all workers would import by themselves.

    Checking whether modules are fit for it takes a third of the time of their import.
    """
    crowded = 2 * place.workers >= 3 * len(os.sched_getaffinity(0))
    return crowded and not _sets_variables(place.argv[2])


def _sets_variables(script: str) -> bool:
    """Return whether a script seems to write to its environment; the values are known later."""
    try:
        with open(script, "rb") as file:
            text = file.read()
    except OSError:
        return False
    ends = [part.partition(b"]")[2].lstrip()[:2] for part in text.split(b"environ[")[1:]]
    calls = (b"environ.setdefault(", b"environ.update(", b"putenv(")
    return any(x[:1] == b"=" != x[1:] for x in ends) or any(call in text for call in calls)


def _variable(line: bytes) -> tuple[str, str | None]:
    name, equals, value = line.decode("unicode_escape").partition("=")
    return name, value if equals else None


def _hook(task: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make an interpreter run `hook/sitecustomize.py` at startup."""
    folder = os.path.join(os.path.dirname(os.path.dirname(__file__)), "worker", "hook")
    before = variables.get("PYTHONPATH")
    hook = {"RELIGHT_HOOK": task}
    if before is None:
        return {**hook, "PYTHONPATH": folder}
    both = folder + os.pathsep + before if before else folder
    return {**hook, "PYTHONPATH": both, "RELIGHT_PYTHONPATH": before}


def _start(place: Workplace, setup: bytes) -> tuple[int, socket.socket]:
    """Start the interpreter with only a socket and a file that has its instructions."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    described = os.memfd_create("relight-setup")
    os.write(described, setup)
    agent = os.getpid()
    fds = theirs.fileno(), described
    variables = {**place.variables, **_hook("check:{},{}".format(*fds), place.variables)}
    argv = (place.argv[0], "-u", "-c", _DO_NOTHING.format(fd=theirs.fileno()))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _exec(agent, fds, place.program, argv, variables, mask)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(described)
        theirs.close()
    return pid, ours


def _exec(
    agent: int,
    fds: tuple[int, int],
    program: str,
    argv: tuple[str, ...],
    variables: Mapping[str, str],
    mask: set[int],
) -> None:
    try:
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() == agent:
            os.setsid()
            restore_limit()
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            for fd in fds:
                os.set_inheritable(fd, True)
            linux.close_all_but({0, 1, 2, *fds})
            spawner.default_signals()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execve(program, argv, variables)
    finally:
        os._exit(127)
