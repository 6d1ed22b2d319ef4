"""Implements the warm spawner, which imports modules once and forks each worker
(docs/decisions/0011-warm.md).

The warm spawner is started with the workers' command line and environment, and calls `serve` before
the interpreter reaches the script (`worker/hook/sitecustomize.py`). `serve` returns only in a
worker. The warm spawner itself never runs the user's script; it serves one generation after
another.

If the warm spawner is meant to outlive the job, it becomes a warm process
(`preload/warm_process.py`). One fork of that process is the warm spawner of this job, and another
fork is the warm spawner of the next job.

The warm spawner sends the agent the lines described in `preload`, then `guard PID` if it is a warm
process, and then `ready PID MODULES MIB`, or `unfit REASON` as the last line. For each generation,
it receives a plan (`processes/generation_pipe.py`) and a socket from the agent. It then uses this
socket in the same way as the spawner in `processes/spawner.py`. When the generation is over, it
sends `ended` and waits for the next one. When the agent has exited, it kills all workers and exits.
"""

import atexit
import gc
import io
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from relight.base.errors import EXIT_INTERNAL, describe_bug
from relight.host import linux, priority
from relight.host.descriptors import raise_limit, restore_limit
from relight.host.files import remove_tree
from relight.preload.env_tracer import Watch
from relight.preload.guard import AgentProcess, Guard, stand_guard
from relight.preload.importer import preload
from relight.preload.lazy_modules import Deferred, Imports, references, third_party
from relight.preload.random_state import RandomState
from relight.preload.speculative_import import UnfitError
from relight.processes import generation_pipe
from relight.processes.generation_pipe import GenerationPlan, WorkerPlan
from relight.processes.spawner import Spawner

if TYPE_CHECKING:
    from relight.preload.keep_warm import Lasting

_END_LIMIT_S = 10.0


class _WorkerForked(BaseException):
    """Raised in a worker to unwind the stack up to `serve`."""

    def __init__(self, plan: WorkerPlan) -> None:
        self.plan = plan


class _GenerationSpawner(Spawner):
    def __init__(self, plan: GenerationPlan, notes: "_Notes") -> None:
        super().__init__(plan)
        self._notes = notes

    def _reap(self) -> bool:
        self._notes.pass_on()
        return super()._reap()

    def become_worker(self, plan: WorkerPlan, spawner: int, mask: Any) -> NoReturn:
        del mask  # signals stay blocked until it is an interpreter again
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != spawner:
            os._exit(1)  # the spawner exited before it could be watched
        os.setsid()
        for fd, number in ((self.stdin, 0), (plan.stdout, 1), (plan.stderr, 2)):
            os.dup2(fd, number)
        self.restore_action()
        self.agent.detach()
        linux.close_all_but({0, 1, 2, *linux.libffi_descriptors()})
        restore_limit()  # last, because it takes a descriptor
        raise _WorkerForked(plan)


class _Notes:
    """Messages from workers to the agent about variables that have made the preloaded modules
    unusable.

    Args:
        control: the socket connected to the agent.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pid = os.getpid()
        self._fd = linux.anonymous_file("notes")
        self._end = 0

    def write(self, variable: str) -> None:
        """Report a variable that the script or a library has set before an import, as
        `script NAME=VALUE`. Called in a worker.
        """
        with open(f"/proc/{self._pid}/fd/{self._fd}", "ab", buffering=0) as file:
            file.write(b"wrote " + variable.encode("unicode_escape") + b"\n")
        os.kill(self._pid, signal.SIGCHLD)

    def pass_on(self) -> None:
        """Send new messages to the agent."""
        if size := os.fstat(self._fd).st_size - self._end:
            self._control.sendall(os.pread(self._fd, size, self._end))
            self._end += size


class _Changes(NamedTuple):
    """The variables that the interpreter and the imports have set or changed, and those that they
    have removed.
    """

    changed: Mapping[str, str]
    removed: frozenset[str]

    @classmethod
    def since(cls, started_with: Mapping[str, str]) -> "_Changes":
        """Return the changes relative to the environment that this process was started with."""
        now = dict(os.environ)
        changed = {name: value for name, value in now.items() if started_with.get(name) != value}
        return cls(changed, frozenset(started_with.keys() - now.keys()))


def serve(
    setup: dict[str, Any],
    control_fd: int,
    loaded: set[str],
    variables: dict[str, str],
    watch: Watch,
    record: Callable[[MutableMapping[str, str]], None],
) -> None:
    """Import the modules, then fork workers for the agent. Returns only in workers.

    Args:
        setup: the agent's instructions (`warm/preloading.py`).
        control_fd: the socket connected to the agent.
        loaded: the names of the modules that every worker has loaded by this time.
        variables: the environment that this process was started with. This function clears it.
        watch: finds modules that depend on a variable that differs between workers.
        record: records a worker's imports if a variable requests that, and removes the variable.
    """
    control = socket.socket(fileno=control_fd)
    short = _read("comm").rstrip(b"\n")
    # The collector skips objects that are frozen below; otherwise a worker would copy all shared
    # pages. When a worker is about to exit, the collector must see every object, so that
    # destructors run.
    atexit.register(gc.unfreeze)
    lasting: Lasting | None = None
    try:
        if setup["keep"]:
            from relight.preload import keep_warm

            lasting = keep_warm.Lasting(setup, loaded)
        agent = None if lasting else AgentProcess.parent(control_fd)
        guard = stand_guard(
            agent,
            lasting.until if lasting is not None else (),
            stays_low=setup["in_background"],
        )
        if lasting is not None:
            lasting.show(guard.pid)
        linux.become_subreaper()
        restore = (
            priority.lower(stays_low=setup["in_background"]) if setup["low_priority"] else None
        )
        random_state = RandomState()
        descriptors: list[int] = [control_fd]
        checks = [random_state.temporary.check]
        if agent is not None:
            descriptors += agent.process.descriptors
        if lasting is not None:
            descriptors.append(lasting.lock)
            descriptors += (fd for each in lasting.until for fd in each.descriptors)
            checks += (lasting.arguments.check, lasting.inputs.check)

        def tell(line: str) -> None:
            if lasting is not None:
                lasting.show_progress()
            _send(control, line, must_arrive=lasting is None)

        printed, needs = preload(setup, loaded, tell, watch, checks, guard, descriptors)
        random_state.end()
        hidden = third_party(loaded)
        for name, others in references(hidden).items():
            needs.setdefault(name, set()).update(others)
        imports = Imports(needs, watch.reads, watch.prefixes, setup["writes"])
        changes = _Changes.since(variables)
        if lasting is not None:
            lasting.end_imports(variables, watch)
            guard.end_imports()
    except Exception as error:
        linux.end_children(_END_LIMIT_S)
        why = str(error) if isinstance(error, UnfitError) else repr(error)
        _send(control, f"unfit {why}")
        os._exit(0)
    modules = len(sys.modules) - len(loaded)
    variables.clear()
    gc.freeze()
    if restore is not None:
        restore()
    mib = linux.memory(os.getpid()) / 2**20
    try:
        if lasting is not None:
            control, agent, guard = _begin_job(lasting, control, setup["agent"])
        assert agent is not None
        linux.rename_process(f"warm spawner of {agent.process.pid}", exactly=True)
        # From here on, this process cleans up when the guard ends, even if it is stopped.
        guard.outlive_guard()
        raise_limit()  # for the descriptors of all workers
        notes = _Notes(control)
        _send(control, f"ready {os.getpid()} {modules} {mib:.1f}")
        plan, mask = _serve_generations(control, agent, notes, guard)
    except Exception as error:
        why = describe_bug(error) if agent is None else repr(error)  # it may come from an import
        _send(control, f"unfit {why}", must_arrive=False)
        os._exit(EXIT_INTERNAL)
    try:
        control.detach()
        variables = dict(plan.variables)
        record(variables)
        _become(plan._replace(variables=variables), changes, short, printed, random_state)
        Deferred(hidden, imports, notes.write, (plan.argv, plan.variables))
        linux.restore_signals(mask)
    except Exception as error:
        os.write(2, f"relight: this worker could not be forked: {error!r}\n".encode())
        os._exit(EXIT_INTERNAL)


def _begin_job(
    lasting: "Lasting", control: socket.socket, pid_of_agent: int
) -> tuple[socket.socket, AgentProcess, Guard]:
    """Serve agents as the warm process. Return only in a job's warm spawner."""
    job = lasting.serve(control, pid_of_agent)
    guard = stand_guard(job.agent, [job.warm_process])
    linux.become_subreaper()
    _send(job.control, f"guard {guard.pid}")
    return job.control, job.agent, guard


def _send(control: socket.socket, line: str, *, must_arrive: bool = True) -> None:
    """Send a line to the agent.

    Raises:
        OSError: if the agent has exited and the line must arrive.
    """
    try:
        control.sendall(line.encode(errors="replace") + b"\n")
    except OSError:
        if must_arrive:
            raise


def _serve_generations(
    control: socket.socket, agent: AgentProcess, notes: _Notes, guard: Guard
) -> tuple[WorkerPlan, Any]:
    while generation := generation_pipe.receive(control):
        scratch = generation.scratch
        guard.remove_if_orphaned(scratch)
        mask = linux.block_signals()
        spawner = _GenerationSpawner(generation, notes)
        try:
            none_left = spawner.run(mask)
        except _WorkerForked as born:
            return born.plan, mask
        if not none_left:
            break  # the agent no longer relies on this process
        spawner.end()
        linux.restore_signals(mask)
        if scratch and (spawner.abandoned or agent.process.has_ended()):
            remove_tree(scratch)
    os._exit(0)


def _become(
    plan: WorkerPlan,
    changes: _Changes,
    short: bytes,
    printed: tuple[bytes, bytes],
    random_state: RandomState,
) -> None:
    """Make this fork look like an interpreter that was started for this worker and has imported the
    modules itself.
    """
    linux.show_as(short, b"".join(os.fsencode(word) + b"\0" for word in plan.argv))
    linux.show_environment(plan.variables)
    os.environ.clear()
    os.environ.update((x, y) for x, y in plan.variables.items() if x not in changes.removed)
    os.environ.update(changes.changed)
    sys.orig_argv[:] = plan.argv
    _, _, first, *rest = plan.argv
    sys.argv[:] = ["-m", *rest[1:]] if first == "-m" else [first, *rest]
    _reopen_streams()
    for fd, text in zip((1, 2), printed, strict=True):
        while text:  # repeat the output of the imports in each worker
            text = text[os.write(fd, text) :]
    random_state.renew()
    _restart_clock()
    for name in [name for name in sys.modules if name.partition(".")[0] == "relight"]:
        for path in getattr(sys.modules[name], "__path__", ()):
            sys.path_importer_cache.pop(path, None)
        del sys.modules[name]


def _restart_clock() -> None:
    """Make the milliseconds in log records (`relativeCreated`) start from now instead of from an
    import in an earlier job.
    """
    logging: Any = sys.modules.get("logging")
    began = getattr(logging, "_startTime", None)  # nanoseconds since Python 3.13
    if began is not None:
        logging._startTime = time.time_ns() if isinstance(began, int) else time.time()


def _reopen_streams() -> None:
    """Reinitialize the standard streams for their new descriptors. The stream objects stay the
    same.

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
