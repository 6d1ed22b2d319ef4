"""The warm spawner: imports modules once and forks each worker (docs/decisions/0011-warm.md).

It is started with the workers' command line and environment, and `serve` is called before the
interpreter reaches the script (`hook/sitecustomize.py`). In a worker, and only there, `serve`
returns. The warm spawner itself never runs the user's script; it serves one generation after the
other.

Lines to the agent: those of `preload`, then `ready PID MODULES SECONDS MIB`, or `unfit REASON` as
the last one. From the agent, for each generation: a count and that many descriptors
(`host/warm_spawner.py`). One is a socket on which this process then acts as the spawner of
`host/spawner.py`; when the generation is over, it sends `ended` and waits for the next one. When
the agent is gone, it kills all workers and exits.
"""

import atexit
import errno
import gc
import io
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Collection, Mapping

from relight.errors import EXIT_INTERNAL
from relight.host import linux, priority
from relight.host.descriptors import raise_limit, restore_limit
from relight.host.files import remove_tree
from relight.host.spawner import Spawner, WorkerPlan
from relight.typed import Any, NoReturn
from relight.worker.deferred import Deferred, Imports, references, third_party
from relight.worker.guard import Guard, stand_guard
from relight.worker.preload import preload
from relight.worker.random_state import RandomState
from relight.worker.trial import UnfitError
from relight.worker.watch import Watch

COUNT = struct.Struct("!I")
"""The count of a generation's descriptors."""
MOST_AT_ONCE = 250
"""Descriptors in one message (SCM_MAX_FD of Linux is 253)."""


_END_LIMIT_S = 10.0


class _WorkerForked(BaseException):
    """Unwinds to `serve` in a worker."""

    def __init__(self, plan: WorkerPlan) -> None:
        self.plan = plan


class _GenerationSpawner(Spawner):
    def __init__(
        self,
        plans: list[WorkerPlan],
        agent: socket.socket,
        pid_of_agent: int,
        stdin: int,
        notes: "_Notes",
    ) -> None:
        super().__init__(plans, agent, pid_of_agent)
        self._stdin = stdin
        self._notes = notes
        self._before = signal.getsignal(signal.SIGCHLD)
        self._pipe = (-1, -1)

    def _prepare(self) -> int:
        self._pipe = self.wake_on_exits()
        return self._pipe[0]

    def _detach(self) -> None:
        os.close(self._stdin)

    def _reap(self, options: int) -> bool:
        self._notes.pass_on()
        return super()._reap(options)

    def become_worker(self, plan: WorkerPlan, spawner: int, mask: Collection[int]) -> NoReturn:
        del mask  # until it is an interpreter again
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != spawner:
            os._exit(1)  # the spawner died before it could be watched
        os.setsid()
        for fd, number in ((self._stdin, 0), (plan.stdout, 1), (plan.stderr, 2)):
            os.dup2(fd, number)
        self._restore_action()
        self.agent.detach()
        linux.close_all_but({0, 1, 2})
        restore_limit()  # after it, as that takes a descriptor
        raise _WorkerForked(plan)

    def end(self) -> None:
        """Restore the state from before a generation, which is over."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._restore_action()
        while signal.sigtimedwait(signal.valid_signals(), 0):
            pass  # signals that arrived for this process meanwhile
        for fd in self._pipe:
            os.close(fd)
        self.tell("ended")
        self.agent.close()

    def _restore_action(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, self._before)


class _Notes:
    """Workers' notes for the agent about variables that made the preloaded modules unusable.
    They are messages of the type `wrote`.

    Args:
        control: the socket to the agent.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pid = os.getpid()
        self._fd = os.memfd_create("notes")
        self._end = 0

    def write(self, variable: str) -> None:
        """Report, in a worker, the value to which the script sets a variable before it imports."""
        with open(f"/proc/{self._pid}/fd/{self._fd}", "ab", buffering=0) as file:
            file.write(b"wrote " + variable.encode("unicode_escape") + b"\n")
        os.kill(self._pid, signal.SIGCHLD)

    def pass_on(self) -> None:
        """Send new notes to the agent."""
        if size := os.fstat(self._fd).st_size - self._end:
            self._control.sendall(os.pread(self._fd, size, self._end))
            self._end += size


def serve(
    setup: dict[str, Any],
    control_fd: int,
    loaded: set[str],
    variables: Mapping[str, str],
    watch: Watch,
) -> None:
    """Import the modules, then fork workers for the agent. Returns in workers only.

    Args:
        setup: the agent's instructions (`host/warm_spawner.py`).
        control_fd: the socket to the agent.
        loaded: the names of the modules that any worker has loaded by now.
        variables: the environment that this process was started with.
        watch: finds modules that depend on a variable that differs between workers.
    """
    control = socket.socket(fileno=control_fd)
    short = _read("comm").rstrip(b"\n")
    agent = os.getppid()
    begin = time.monotonic()
    # The collector skips objects that are frozen below, or a worker would copy all shared pages. At
    # a worker's end, after all else, it must see every object, so that destructors run.
    atexit.register(gc.unfreeze)
    try:
        guard = stand_guard(control_fd)
        linux.become_subreaper()
        restore = priority.lower() if setup["gently"] else None
        random_state = RandomState()
        printed, needs = preload(setup, loaded, control_fd, watch, random_state.temporary, guard)
        random_state.end()
        hidden = third_party(loaded)
        for name, others in references(hidden).items():
            needs.setdefault(name, set()).update(others)
        imports = Imports(needs, watch.reads, watch.prefixes, setup["writes"])
        notes = _Notes(control)
    except Exception as error:
        linux.end_children(_END_LIMIT_S)
        why = str(error) if isinstance(error, UnfitError) else repr(error)
        control.sendall(f"unfit {why}\n".encode(errors="replace"))
        os._exit(0)
    linux.rename_process(f"warm spawner of {agent}")
    seconds, modules = time.monotonic() - begin, len(sys.modules) - len(loaded)
    gc.freeze()
    # From here on, this process cleans up when the guard ends, also when stopped.
    guard.outlive_guard()
    if restore is not None:
        restore()
    raise_limit()  # for the descriptors of all workers
    mib = linux.memory(os.getpid()) / 2**20
    control.sendall(f"ready {os.getpid()} {modules} {seconds:.3f} {mib:.1f}\n".encode())
    try:
        plan, mask = _serve_generations(control, agent, notes, guard)
    except Exception as error:
        control.sendall(f"unfit {error!r}\n".encode(errors="replace"))
        os._exit(EXIT_INTERNAL)
    try:
        control.detach()
        _become(plan, variables, short, printed, random_state)
        Deferred(hidden, imports, notes.write, (plan.argv, plan.variables))
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    except Exception as error:
        os.write(2, f"relight: this worker could not be forked: {error!r}\n".encode())
        os._exit(EXIT_INTERNAL)


def _serve_generations(
    control: socket.socket, agent: int, notes: _Notes, guard: Guard
) -> tuple[WorkerPlan, set[int]]:
    parents = agent, guard.pid
    while frame := _receive(control):
        plans, (connection, stdin), scratch = frame
        guard.remove_if_orphaned(scratch)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        with socket.socket(fileno=connection) as generation:
            spawner = _GenerationSpawner(plans, generation, agent, stdin, notes)
            try:
                spawner.run(mask)
            except _WorkerForked as born:
                return born.plan, mask
            spawner.end()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if scratch and (spawner.abandoned or os.getppid() not in parents):
            remove_tree(scratch)
    os._exit(0)


def _receive(control: socket.socket) -> tuple[list[WorkerPlan], list[int], str] | None:
    """Return the next generation's plans, the socket and stdin for it, and its directory."""
    header = _exactly(control, COUNT.size)
    if header is None:
        return None
    (count,) = COUNT.unpack(header)
    fds: list[int] = []
    while len(fds) < count:
        data, some, flags, _ = socket.recv_fds(control, 1, MOST_AT_ONCE)
        if not data:
            return None
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        fds += some
    described = fds.pop(0)
    frame = json.loads(os.pread(described, os.fstat(described).st_size, 0))
    os.close(described)
    plans = [
        WorkerPlan(
            local_rank=number,
            argv=tuple(plan["argv"]),
            variables=plan["variables"],
            stdout=fds[2 + 2 * number],
            stderr=fds[3 + 2 * number],
            cpus=frozenset(),
            signal_group=False,
        )
        for number, plan in enumerate(frame["plans"])
    ]
    return plans, fds[:2], frame["scratch"]


def _exactly(control: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        try:
            more = control.recv(size - len(data))
        except OSError:
            more = b""
        if not more:
            return None
        data += more
    return data


def _become(
    plan: WorkerPlan,
    started_with: Mapping[str, str],
    short: bytes,
    printed: tuple[bytes, bytes],
    random_state: RandomState,
) -> None:
    """Make this fork equal to an interpreter that was started for this worker and has imported the
    modules.
    """
    linux.show_as(short, b"".join(os.fsencode(word) + b"\0" for word in plan.argv))
    _set_variables(plan.variables, started_with)
    sys.orig_argv[:] = plan.argv
    _, _, first, *rest = plan.argv
    sys.argv[:] = ["-m", *rest[1:]] if first == "-m" else [first, *rest]
    _reopen_streams()
    for fd, text in zip((1, 2), printed, strict=True):
        while text:  # repeat in each worker what the imports have printed
            text = text[os.write(fd, text) :]
    random_state.renew()
    for name in [name for name in sys.modules if name.partition(".")[0] == "relight"]:
        for path in getattr(sys.modules[name], "__path__", ()):
            sys.path_importer_cache.pop(path, None)
        del sys.modules[name]


def _set_variables(wanted: Mapping[str, str], started_with: Mapping[str, str]) -> None:
    """Set the worker's variables; keep changes that the interpreter and imports have made."""
    now = dict(os.environ)
    changed = {name: value for name, value in now.items() if started_with.get(name) != value}
    removed = started_with.keys() - now.keys()
    os.environ.clear()
    os.environ.update({name: wanted[name] for name in wanted if name not in removed})
    os.environ.update(changed)


def _reopen_streams() -> None:
    """Reinitialize the standard streams for their new descriptors; they stay the same objects.

    Output is unbuffered, as with -u.
    """
    for fd, stream in enumerate((sys.__stdin__, sys.__stdout__, sys.__stderr__)):
        text: Any = stream
        reading = fd == 0
        buffer = open(fd, "rb" if reading else "wb", buffering=-1 if reading else 0, closefd=False)
        raw: Any = buffer.raw if isinstance(buffer, io.BufferedReader) else buffer
        raw.name = ("<stdin>", "<stdout>", "<stderr>")[fd]
        line_buffering, write_through = text.line_buffering, text.write_through
        text.__init__(buffer, text.encoding, text.errors, "\n", line_buffering, write_through)
        text.mode = "r" if reading else "w"


def _read(name: str) -> bytes:
    try:
        with open(f"/proc/self/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""
