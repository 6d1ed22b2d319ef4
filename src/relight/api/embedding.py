"""`relight.run` provides `relight run` to programs that embed it, such as frameworks.

    import relight
    spec = relight.RunSpec("train.py", ["--lr", "0.1"], nproc_per_node=4, max_restarts=3)
    result = relight.run(spec, on_event=print, timeout_s=3600)
    if result.exit_code:
        print(result.cause)

The spec is converted to a `relight run` command line, which runs either in this process or in a
child process that exits whenever the parent process does. Either way, the job's state is derived
from the agent's events. A child process sends its events through a pipe as pickles. This is safe
because both processes belong to the same user.
"""

import contextlib
import fcntl
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from relight.agent.start import make_agent
from relight.api.function import (
    check_list,
    check_texts,
    copy_output,
    job_variables,
    signals_held,
    start_agent,
    time_limit,
)
from relight.base import env as environment
from relight.base import exit_signals
from relight.base.env import Environment
from relight.base.errors import (
    EXIT_HUNG,
    EXIT_INTERNAL,
    InternalError,
    RelightError,
    UsageError,
    describe_bug,
    signal_exit_code,
    signal_name,
)
from relight.core.failure import Failure
from relight.core.group.messages import JobEnded
from relight.events.event_types import (
    Ended,
    Event,
    Formed,
    Restarting,
    SignalReceived,
    WorkerExited,
    WorkerStarted,
)
from relight.flags import site
from relight.flags.arguments import ParsedFlags, parse, to_spec
from relight.host import system

OnEvent = Callable[[Event], None]
_NOT_IN_PROCESS = ("preload", "keep-warm")
"""Flags that can't be used with `in_process`, because they start processes that are tied to the
agent's process.
"""


class RunSpec(NamedTuple):
    """The job for `relight.run` on this node, as specified by the user. `spec.LaunchSpec` contains
    the validated values of all flags.

    Attributes:
        script: a script, module or program.
        args: its arguments.
        module: whether `script` is a module, as in `python -m`.
        nproc_per_node: number of workers on this node, or a keyword that `--nproc-per-node`
            accepts.
        min_nodes: minimum number of nodes.
        max_nodes: maximum number of nodes; None means `min_nodes`.
        max_restarts: number of restarts after failures, or a string such as `3/1h`.
        rdzv_backend: the rendezvous backend for multi-node jobs, as for `--rdzv-backend`.
        rdzv_endpoint: its endpoint, as for `--rdzv-endpoint`.
        rdzv_id: the job id, which must be the same on all of its nodes.
        env: variables for the workers, in addition to those of this process.
        flags: more `relight run` flags, such as `["--tee=3"]`. This process's PET_ variables are
            ignored.
    """

    script: str
    args: Sequence[str] = ()
    module: bool = False
    nproc_per_node: int | str = 1
    min_nodes: int = 1
    max_nodes: int | None = None
    max_restarts: int | str = 0
    rdzv_backend: str = ""
    rdzv_endpoint: str = ""
    rdzv_id: str = ""
    env: Mapping[str, str] = {}
    flags: Sequence[str] = ()

    def command_line(self) -> list[str]:
        """Return the arguments of `relight run`."""
        most = self.min_nodes if self.max_nodes is None else self.max_nodes
        words = [f"--nnodes={self.min_nodes}:{most}", f"--nproc-per-node={self.nproc_per_node}",
                 f"--max-restarts={self.max_restarts}"]  # fmt: skip
        meeting = {"backend": self.rdzv_backend, "endpoint": self.rdzv_endpoint, "id": self.rdzv_id}
        words += [f"--rdzv-{name}={text}" for name, text in meeting.items() if text]
        words += [*self.flags, *["-m"] * self.module]
        return [*words, "--", self.script, *self.args]


class RunResult(NamedTuple):
    """The outcome of a job on this node. A failed job is reported as a result, not an exception.

    Attributes:
        exit_code: the exit code of `relight run`: 0, the root cause's exit code, or one from
            docs/exit-codes.md; 124 if `timeout_s` expired.
        reason: a short phrase that says why the job ended.
        exit_codes: exit codes of this node's workers in the last generation, keyed by rank. An exit
            code is negative if a signal killed the worker. Workers that never started are missing.
        restarts: number of times the job was restarted after a failure.
        cause: the worker that was the root cause, on any node, or None if the cause wasn't a
            worker.
        failures: this node's workers in the last generation that failed or were stopped. `when` is
            the wall-clock time. `at` is only meaningful for ordering. It is a negative number of
            seconds, relative to when this node reported the failures to the group or, for `cause`,
            to when the group decided on the cause.
        report: the lines of the failure report, as shown to users.
        timed_out: whether the job was stopped after `timeout_s`.
    """

    exit_code: int
    reason: str
    exit_codes: dict[int, int]
    restarts: int
    cause: Failure | None
    failures: tuple[Failure, ...]
    report: tuple[str, ...]
    timed_out: bool


def run(
    spec: RunSpec,
    *,
    on_event: OnEvent | None = None,
    timeout_s: float | None = None,
    in_process: bool = False,
) -> RunResult:
    """Run this node's workers and return the outcome of the job.

    Worker output appears on this process's `sys.stdout` and `sys.stderr`. Ctrl-C stops all workers
    and then raises KeyboardInterrupt. The workers are also stopped if this process exits for any
    reason.

    Args:
        spec: the job.
        on_event: called with each job event (docs/events.md), in the thread that calls `run`. If it
            raises, the workers are stopped and `run` raises the same exception.
        timeout_s: seconds until the workers are stopped, at most 2,000,000 (23 days); None or
            infinity means no limit.
        in_process: run the agent in this process instead of a child process, which avoids starting
            another Python interpreter. The agent forks, so use this only in programs that have no
            threads or child processes and a small memory footprint. A signal that stops the job is
            delivered to this process once all workers have exited.

    Raises:
        UsageError: if the spec is invalid. Nothing was started.
        MachineError: if this machine can't run the job.
    """
    limit_s = time_limit("timeout_s", timeout_s)
    if on_event is not None and not callable(on_event):
        raise UsageError(f"on_event={on_event!r}: expected a function with one argument, or None")
    words, env, parsed = _parsed(spec)
    job = _Job(on_event)
    if in_process:
        return _run_here(parsed, env, job, limit_s)
    return _run_child(words, env.variables, job, limit_s)


def _parsed(spec: RunSpec) -> tuple[list[str], Environment, ParsedFlags]:
    """Return a spec's command line and environment, and the parsed command line."""
    if not isinstance(spec, RunSpec):
        raise UsageError(
            f"relight.run takes a RunSpec, not {spec!r}",
            hint=(
                "relight.run(relight.RunSpec('train.py', nproc_per_node=4)); use relight.launch "
                "for functions"
            ),
        )
    check_texts(spec.flags, spec.env)
    check_list("args", spec.args)
    if not isinstance(spec.script, str):
        raise UsageError(f"script={spec.script!r}: expected a string", hint=f"'{spec.script}'")
    if not isinstance(spec.module, bool):
        raise UsageError(f"module={spec.module!r}: expected True or False")
    words, env = spec.command_line(), Environment({**job_variables(), **spec.env})
    parsed = parse(words, env, site=site.load(env))
    if parsed.command != (spec.script, *spec.args):
        raise UsageError(
            f"flags={[*spec.flags]!r}: {parsed.command[0]!r} is not a flag",
            hint="pass the script as `script` and its arguments as `args`",
        )
    to_spec(parsed)
    return words, env, parsed


class _Job:
    """Builds a job's result from the job's events.

    Args:
        on_event: the user's callback.
    """

    def __init__(self, on_event: OnEvent | None) -> None:
        self._on_event = on_event
        self._ranks: dict[int, int] = {}
        self._exit_codes: dict[int, int] = {}
        self._restarts = 0
        self._reason = ""
        self.exit_code: int | None = None
        """The exit code reported by the agent, or None until the agent reports one."""
        self.report = _Report(None, ())

    def take(self, event: Event) -> None:
        """Process an event and pass it to the user's callback."""
        match event:
            case Formed():
                self._ranks, self._exit_codes = {}, {}
            case WorkerStarted():
                self._ranks[event.local_rank] = event.rank
            case WorkerExited() if event.local_rank in self._ranks:
                self._exit_codes[self._ranks[event.local_rank]] = event.exitcode
            case Restarting():
                self._restarts = event.restart
            case Ended():
                self._reason, self.exit_code = event.reason, event.exit_code
        if self._on_event is not None:
            self._on_event(event)

    def result(self, exit_code: int, reason: str, stopped_after_s: float | None) -> RunResult:
        """Return the result.

        Args:
            exit_code: the agent's exit code.
            reason: why the agent ended, used if the agent itself did not report a reason.
            stopped_after_s: the time limit after which the agent was stopped, or None.
        """
        end, failures = self.report
        timed_out = stopped_after_s is not None and exit_code != 0
        own = self._reason or reason
        return RunResult(
            exit_code=EXIT_HUNG if timed_out else exit_code,
            reason=f"stopped after {stopped_after_s:g} s (timeout_s)" if timed_out else own,
            exit_codes=dict(sorted(self._exit_codes.items())),
            restarts=self._restarts,
            cause=end.root if end is not None else None,
            failures=failures,
            report=end.report if end is not None else (),
            timed_out=timed_out,
        )


# Running the agent in a child process.


class _Report(NamedTuple):
    """An agent's final report, which says how the job ended and which local workers failed."""

    end: JobEnded | None
    failures: tuple[Failure, ...]


def _run_child(
    words: Sequence[str], variables: Mapping[str, str], job: _Job, timeout_s: float | None
) -> RunResult:
    agent, readers = None, list[threading.Thread]()
    stopped_after_s = refusal = None
    try:
        with signals_held():
            agent, messages, readers = _start_child(words, variables)
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if ends_at is None else max(0.0, ends_at - time.monotonic())
            try:
                message = messages.get(timeout=left)
            except queue.Empty:
                stopped_after_s, ends_at = timeout_s, None
                agent.terminate()
                continue
            if message is None:
                break
            if isinstance(message, RelightError):
                refusal = message
            elif isinstance(message, _Report):
                job.report = message
            else:
                job.take(message)
        agent.wait()
    except BaseException:
        if agent is not None:
            _stop(agent)
        raise
    finally:
        for reader in readers:
            reader.join()
    if refusal is not None:
        raise refusal
    return job.result(*_describe_exit(agent, job.exit_code), stopped_after_s)


def _start_child(
    words: Sequence[str], variables: Mapping[str, str]
) -> "tuple[subprocess.Popen[bytes], queue.SimpleQueue[Any], list[threading.Thread]]":
    """Start an agent. Return the agent's process, a queue of the agent's messages that ends with
    None, and the threads that read its messages and its output.
    """
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    output = _output()
    # This process's stdout may be closed, but its descriptor number must not be reused.
    read, tell = (_above_standard(fd) for fd in os.pipe())
    try:
        command = [sys.executable, "-m", "relight", "run", *words]
        agent = start_agent(command, variables, output, tell=tell)
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(tell)
    readers = [threading.Thread(target=_receive, args=(read, messages), daemon=True)]
    for source, name in ((agent.stdout, "stdout"), (agent.stderr, "stderr")):
        if source is not None:
            readers.append(threading.Thread(target=copy_output, args=(source, name), daemon=True))
    for reader in readers:
        reader.start()
    return agent, messages, readers


def _output() -> int | None:
    """Return the destination of an agent's output. The result is this process's stdout and stderr,
    or pipes if Python code displays the output elsewhere, as in a notebook.
    """
    streams = sys.stdout, sys.stderr
    if None in streams or not all(map(_is_open, (1, 2))):
        return subprocess.DEVNULL
    if streams != (sys.__stdout__, sys.__stderr__):
        return subprocess.PIPE
    _flush()
    return None


def _above_standard(fd: int) -> int:
    """Move a descriptor above the range used by stdin, stdout and stderr."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _flush() -> None:
    """Flush this process's output before another process prints."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _receive(fd: int, messages: "queue.SimpleQueue[Any]") -> None:
    """Read the child's messages in a dedicated thread, so that the agent never waits for the user's
    callback.
    """
    with open(fd, "rb") as source:
        while True:
            try:
                messages.put(pickle.load(source))  # noqa: S301  # written by our own child
            except (EOFError, pickle.UnpicklingError):  # the child exited or was killed
                break
    messages.put(None)


def _stop(agent: "subprocess.Popen[bytes]") -> None:
    """Stop an agent and its workers. If Ctrl-C is pressed again, or a signal handler raises an
    exception, kill them immediately.
    """
    while agent.poll() is None:
        agent.terminate()
        try:
            agent.wait()
        except BaseException:  # noqa: S112  # the first exception is raised
            continue


def _describe_exit(agent: "subprocess.Popen[bytes]", told: int | None) -> tuple[int, str]:
    """Return an agent's exit code and a description of how it ended.

    The subprocess module reports 0 for a child whose exit status is lost, for example in a program
    that ignores SIGCHLD or reaps all children. Therefore 0 is trusted only if the agent itself
    reported it.
    """
    code = agent.returncode
    if code == 0 and told is None:
        how = (
            f"how the agent (pid {agent.pid}) ended is unknown, because this program handles "
            "SIGCHLD"
        )
        return EXIT_INTERNAL, how
    code = code or told or 0
    if code < 0:
        how = f"the agent (pid {agent.pid}) was killed by {signal_name(-code)}"
        return signal_exit_code(-code), how
    return code, f"the agent (pid {agent.pid}) exited with code {code}"


def entry(fd: int) -> NoReturn:
    """Run `relight run` in the child process, with this process's arguments.

    Args:
        fd: the descriptor to write messages to.
    """
    exit_signals.exit_on_signals()
    os.set_inheritable(fd, False)

    def tell(message: object) -> None:
        data = memoryview(pickle.dumps(message))
        with contextlib.suppress(OSError):  # the parent has exited, and so will this process
            while data:
                data = data[os.write(fd, data) :]

    def send_event(event: Event) -> None:
        tell(event)
        if isinstance(event, Ended):
            tell(_Report(agent.node.end, agent.node.failures))

    code = EXIT_INTERNAL
    try:
        env = environment.read()
        parsed = parse(sys.argv[2:], env, site=site.load(env))
        agent = make_agent(to_spec(parsed), parsed.given, env)
        agent.journal.listeners.append(lambda recorded: send_event(recorded.event))
        code = agent.run()
    except RelightError as error:
        tell(error)
        code = error.exit_code
    except Exception as error:
        hint = "please report it, with these lines and the command"
        bug = InternalError(f"internal error in relight (a bug): {describe_bug(error)}", hint=hint)
        tell(bug)
    exit_signals.quick_exit(code)


# Running the agent in this process.


def _run_here(
    parsed: ParsedFlags, env: Environment, job: _Job, timeout_s: float | None
) -> RunResult:
    _check_process(parsed.given)
    raised: list[BaseException] = []
    received: list[int] = []
    stopped_after_s = None

    def take(event: Event) -> None:
        if isinstance(event, SignalReceived):
            received.append(event.number)
        if isinstance(event, Ended):
            job.report = _Report(agent.node.end, agent.node.failures)
        try:
            job.take(event)
        except BaseException as error:
            if not raised:
                agent.loop.call_after(0, agent.interruption.stop)
            raised.append(error)

    def stop() -> None:
        nonlocal stopped_after_s
        stopped_after_s = timeout_s
        agent.interruption.stop()

    spec = to_spec(parsed)._replace(preload=())  # the default also starts a process
    with _as_before():
        agent = make_agent(spec, parsed.given, env)
        agent.journal.listeners.append(lambda recorded: take(recorded.event))
        if timeout_s is not None:
            agent.loop.call_after(timeout_s, stop)
        exit_code = agent.run(keeps_process=True)
    if raised:
        raise raised[0]
    if received and agent.interruption.signals:
        signal.raise_signal(received[0])
    return job.result(exit_code, "", stopped_after_s)


def _check_process(given: Collection[str]) -> None:
    """Check that an agent may run in this process.

    Raises:
        UsageError: if that is unsafe.
    """
    system.require_linux("in_process=True")
    from relight.host import linux

    found = [name for name in _NOT_IN_PROCESS if name in given]
    why = ""
    if threading.current_thread() is not threading.main_thread():
        why = "only the main thread receives signals"
    elif threading.active_count() > 1:
        names = [each.name for each in threading.enumerate()[1:]]
        why = f"this program has threads ({', '.join(names[:3])}), and the agent forks"
    elif not all(map(_is_open, (0, 1, 2))):
        why = "stdin, stdout or stderr of this program is closed"
    elif linux.children():
        why = "this program has child processes, which the agent might mistake for workers"
    elif found:
        why = f"the --{found[0]} process needs a separate agent"
    if why:
        raise UsageError(f"in_process=True: {why}", hint="without it, the agent is a child")


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    """Restore the process state that the agent changed."""
    import resource

    from relight.host import linux

    _flush()
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    wakeup_fd = signal.set_wakeup_fd(-1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    subreaper = linux.is_subreaper()
    try:
        yield
    finally:
        linux.become_subreaper(subreaper)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        signal.set_wakeup_fd(wakeup_fd)
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)
