"""Implements the spawner, the process that starts, signals and reaps the workers, and outlives the
agent.

A process that is killed with SIGKILL can't clean up after itself, so another process has to do it.
The agent forks the spawner when it is about to start the first workers, and sends it the later
generations (`processes/generation_pipe.py`). The spawner is the parent of all workers and the
subreaper of all their descendants, so no process escapes, not even a process that calls setsid or
whose parent has exited. When a generation's socket is closed, for any reason, the spawner kills all
of its workers and their descendants. Normal shutdown takes the same path, so it is exercised on
every run. A live agent sends `end` first. If the socket is closed without `end`, the spawner also
does the agent's cleanup. The spawner exits after the agent has exited.

    agent --fork--> guard --fork--> spawner --fork, exec--> workers --> whatever they start

If the spawner itself is killed, PR_SET_PDEATHSIG kills the workers, and the guard inherits and
kills their descendants (`linux.stand_guard`). The guard and the agent are also subreapers. Each of
these processes kills only its own children, whose pids can't have been reused, because no other
process reaps them. Processes in an uninterruptible call can't be killed, and neither can another
user's processes, such as those started with `sudo`. The spawner reports them to the agent, which
decides how long to wait. If the agent has exited, the spawner and its guard give up after a while.

Workers may have a lease, which limits how long they may run. When the lease expires, the workers
and all their descendants are frozen (SIGSTOP) until it is renewed (`processes/freezer.py`). The
spawner freezes them, so that this works even if the agent itself is stopped.

The lines on a generation's socket are listed below. RANK is a local rank, and TIME is
CLOCK_MONOTONIC in seconds, which all processes on a machine share.

    agent to spawner    signal RANK NUMBER
                        kill                        kill all workers and their descendants
                        lease TIME                  0 means no lease
                        start RANK                  start a worker in place of one that ended;
                                                    its plan comes with it (generation_pipe)
                        orphans PID                 kill the descendants of an ended worker in its
                                                    session; PID was the worker's
                        end
    spawner to agent    holder PID                  its own pid; the agent forked its guard
                        started RANK PID
                        unborn RANK ERRNO           the worker could not be forked
                        failed RANK ERRNO           its program could not be executed
                        exited RANK EXITCODE TIME
                        remains PID REFUSED         the process still exists a second after SIGKILL;
                                                    REFUSED is 1 if we may not signal it
                        frozen, thawed              the lease has expired, or has been renewed
                        ended                       all workers have exited; the spawner waits for
                                                    the next generation
                        leaving                     all workers have exited; the spawner exits
                        refused ERRNO PATH          the system refused something; PATH may be empty
                        broken REASON               the spawner has a bug
"""

import errno
import gc
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from relight.base.errors import EXIT_INTERNAL, EXIT_MACHINE, describe_bug
from relight.base.text import LineBuffer
from relight.host import system
from relight.host.descriptors import restore_limit
from relight.host.files import remove_tree
from relight.processes import generation_pipe
from relight.processes.generation_pipe import GenerationPlan, WorkerPlan

_TELL_S = 1.0
"""How long after SIGKILL the spawner reports processes that still exist."""
_POLL_S = 1.0
"""How often the spawner checks for those processes as long as none of them exits."""
_ORPHANS_S = 0.5
"""How long an ended worker's descendants may take to exit before its replacement starts."""
_REAP_S = 1.0
"""How long the agent waits for an idle spawner to exit after killing it."""
_IGNORED_BY_PYTHON = (int(signal.SIGPIPE), int(signal.SIGXFSZ))
"""Python ignores these signals for itself. They are reset to the default action in the workers, as
subprocess does.
"""

if TYPE_CHECKING:
    from relight.processes.freezer import Freezer


class Spawner:
    """The parent process of one generation's workers.

    Args:
        plan: the workers.

    Attributes:
        abandoned: whether the agent has exited without sending `end`.
    """

    def __init__(self, plan: GenerationPlan) -> None:
        self.plans = {worker.local_rank: worker for worker in plan.workers}
        self.stdin = plan.stdin
        self.scratch = plan.scratch
        self.held = plan.held
        self.agent = socket.socket(fileno=plan.connection)
        self.local_rank_of: dict[int, int] = {}
        self.pid_of: dict[int, int] = {}
        self.buffer = LineBuffer()
        self._fds: list[int] = []
        """Descriptors that came with a command that has not been received completely."""
        self._mask: Any = None
        self.freezer: Freezer | None = None
        """Enforces the workers' lease. None until a lease is set."""
        self.abandoned = True
        self._action_before = signal.getsignal(signal.SIGCHLD)
        self._pipe = (-1, -1)
        self._kill_began = 0.0
        self._told: set[int] = set()
        """The pids of processes that have been reported to the agent because they survived
        SIGKILL.
        """

    def run(self, mask: Any) -> bool:
        """Start the workers, and supervise them until the agent closes its socket or exits. Return
        whether no process is left.

        All signals must be blocked, and all except SIGCHLD stay blocked, because a spawner is not
        controlled by signals. The argument `mask` is the workers' signal mask
        (`system.block_signals`).
        """
        self._mask = mask
        wake_read = self._wake_on_exits()
        poll = select.poll()
        poll.register(self.agent, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        holder = f"holder {os.getpid()}"
        self.tell("\n".join([holder, *(self._start(plan, mask) for plan in self.plans.values())]))
        system.unblock_sigchld()
        self._detach()
        while True:
            ready = dict(poll.poll(self._until_lease_ends()))
            if wake_read in ready:
                os.read(wake_read, 4096)
            # Process exits first, because a worker that has already exited must not be signalled.
            self._reap()
            if self.agent.fileno() in ready and not self._obey():
                return self._end_everything()
            self._keep_lease()

    def _detach(self) -> None:
        """Close the descriptors that only workers need."""
        os.close(self.stdin)

    def end(self) -> None:
        """Notify the agent that the generation is over, and restore this process's state from
        before the generation.
        """
        self.tell("ended")  # first, so that the agent can prepare the next one, or exit
        self.agent.close()
        system.block_signals()
        self.restore_action()
        while signal.sigtimedwait(signal.valid_signals(), 0):
            pass  # signals that this process received in the meantime
        for fd in (*self._pipe, *self.held):
            os.close(fd)

    def restore_action(self) -> None:
        """Restore the SIGCHLD handling from before the generation."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, self._action_before)

    def _until_lease_ends(self) -> float | None:
        """Return the number of milliseconds until the lease must be checked, or None if there is no
        lease.
        """
        now = time.monotonic()
        look_at = self.freezer.next_check(now) if self.freezer is not None else None
        return None if look_at is None else max(0.0, look_at - now) * 1000

    def _keep_lease(self) -> None:
        """Freeze the workers if their lease has expired, and thaw them once the lease is
        renewed.
        """
        if self.freezer is not None and self.freezer.look(time.monotonic()):
            self.tell("frozen" if self.freezer.frozen else "thawed")

    def _wake_on_exits(self) -> int:
        """Make SIGCHLD only write to a pipe, and return the descriptor to read from."""
        self._pipe = wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        return wake_read

    def _start(self, plan: WorkerPlan, mask: Any) -> str:
        """Start a worker, and return the line to send to the agent."""
        own = os.getpid()
        number = 0
        try:
            pid = system.fork_worker()
        except OSError as error:
            pid, number = -1, error.errno or errno.EAGAIN
        if pid == 0:
            self.become_worker(plan, own, mask)
        for fd in {plan.stdout, plan.stderr}:  # so that later workers don't inherit copies
            os.close(fd)
        if pid < 0:
            return f"unborn {plan.local_rank} {number}"
        self.local_rank_of[pid] = plan.local_rank
        self.pid_of[plan.local_rank] = pid
        return f"started {plan.local_rank} {pid}"

    def become_worker(self, plan: WorkerPlan, spawner: int, mask: Any) -> NoReturn:
        """Become a worker. Called in a child of the spawner."""
        try:
            system.die_with_parent(signal.SIGKILL)
            if os.getppid() != spawner:
                os._exit(1)  # the spawner exited before it could be watched
            os.setsid()
            if plan.cpus:
                os.sched_setaffinity(0, plan.cpus)
            for fd, number in ((self.stdin, 0), (plan.stdout, 1), (plan.stderr, 2)):
                os.dup2(fd, number)
            restore_limit()
            # A signal that arrived after the fork takes effect now, as it would on the program.
            system.restore_signals(mask)
            self.execute(plan)
        except OSError as error:
            self.tell(f"failed {plan.local_rank} {error.errno}")
        finally:
            os._exit(127)

    def execute(self, plan: WorkerPlan) -> None:
        """Execute the worker's program. This method does not return.

        Raises:
            OSError: if it can't be executed.
        """
        start = os.execve if "/" in plan.argv[0] else os.execvpe
        start(plan.argv[0], plan.argv, plan.variables)

    def _obey(self) -> bool:
        """Carry out the agent's commands. Return False once the agent's end of the socket is
        closed.
        """
        try:
            # A single call never returns data beyond a message that carries descriptors (unix(7)).
            data, fds, _, _ = socket.recv_fds(self.agent, 4096, 4)
        except OSError:
            data, fds = b"", []
        if not data:
            return False
        for fd in fds:
            os.set_inheritable(fd, False)
        self._fds += fds
        for line in self.buffer.feed(data):
            words = line.split()
            if words[0] == b"signal":
                self._signal(int(words[1]), int(words[2]))
            elif words[0] == b"orphans":
                self._end_orphans(int(words[1]))
            elif words[0] == b"start":
                self._replace(int(words[1]))
            elif words[0] == b"kill":
                self._end_everything()
            elif words[0] == b"lease":
                self._set_lease(float(words[1]))
            elif words[0] == b"end":
                self.abandoned = False
        return True

    def _end_orphans(self, session: int) -> None:
        """Kill the descendants of an ended worker, including those that become orphans because of
        the kills.
        """
        end = time.monotonic() + _ORPHANS_S
        while left := self._orphans(session):
            for pid in left:
                with suppress(PermissionError):  # it belongs to another user
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() >= end:
                return  # they are waited for at the end of the generation
            time.sleep(0.002)
            self._reap()

    def _orphans(self, session: int) -> list[int]:
        """Return the pids of this process's children that are in an ended worker's session. Because
        no other process reaps them, none of these pids can have been reused.
        """
        found = []
        for pid in system.child_pids(os.getpid()):
            try:
                if pid not in self.local_rank_of and os.getsid(pid) == session:
                    found.append(pid)
            except OSError:
                continue  # not permitted to query it
        return found

    def _replace(self, local_rank: int) -> None:
        """Start a worker to replace a worker that has ended."""
        fds, self._fds = self._fds, []
        plan, self.stdin = generation_pipe.receive_worker(local_rank, fds)
        self.plans[local_rank] = plan
        self.tell(self._start(plan, self._mask))
        os.close(self.stdin)

    def _set_lease(self, until: float) -> None:
        """Set the lease. The freezer's code is loaded before it is needed, because the disk that
        holds it may be lost later.
        """
        if until and self.freezer is None:
            from relight.processes.freezer import Freezer

            self.freezer = Freezer()
        if self.freezer is not None:
            self.freezer.until = until

    def _signal(self, local_rank: int, number: int) -> None:
        pid = self.pid_of.get(local_rank)
        if pid is None:
            return
        if self.plans[local_rank].signal_group:
            try:
                os.killpg(pid, number)
            except (ProcessLookupError, PermissionError):
                os.kill(pid, number)  # the worker is between fork and setsid
        else:
            os.kill(pid, number)

    def _reap(self) -> bool:
        """Reap children that have ended. Return False when no children are left."""
        lines: list[str] = []
        try:
            while True:
                pid, status = system.reap_any()
                if pid == 0:
                    return True
                local_rank = self.local_rank_of.pop(pid, None)
                if local_rank is not None:
                    del self.pid_of[local_rank]
                    exitcode = os.waitstatus_to_exitcode(status)
                    lines.append(f"exited {local_rank} {exitcode} {time.monotonic()!r}")
        except ChildProcessError:
            return False
        finally:
            if lines:
                self.tell("\n".join(lines))

    def _end_everything(self) -> bool:
        """Kill all children, and the orphans that the spawner adopts, until no process is left.
        Return False if processes are left when the agent gives up, or when the time limit after the
        agent's exit has passed.
        """
        poll = select.poll()
        poll.register(self._pipe[0], select.POLLIN)
        poll.register(self.agent, 0)  # only to detect that both directions are closed
        is_alone, wait_s = False, 0.01
        self._kill_began = self._kill_began or time.monotonic()
        while True:
            left = system.kill_children()
            if not self._reap():
                return True
            passed = time.monotonic() - self._kill_began
            if passed >= _TELL_S and (news := left.keys() - self._told):
                self._told |= news
                self.tell("\n".join(f"remains {pid} {left[pid]:d}" for pid in sorted(news)))
            refused = bool(left) and all(left.values())
            limit_s = system.REFUSED_LIMIT_S if refused else system.END_LIMIT_S
            if is_alone and passed >= limit_s:
                return False
            ready = dict(poll.poll(wait_s * 1000))
            wait_s = min(2 * wait_s, _POLL_S)
            if self._pipe[0] in ready:
                os.read(self._pipe[0], 4096)
                wait_s = 0.01
            if self.agent.fileno() in ready:
                poll.unregister(self.agent)
                is_alone = True

    def tell(self, line: str) -> None:
        """Send a line to the agent, if the agent is alive."""
        try:
            self.agent.sendall(line.encode() + b"\n")
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise


def own_actions() -> tuple[int, ...]:
    """Return the signals that this process has a handler for, and those that only Python
    ignores.
    """
    handled = (n for n in range(1, signal.NSIG) if callable(signal.getsignal(n)))
    return (*handled, *_IGNORED_BY_PYTHON)


def default_signals(numbers: Iterable[int]) -> None:
    """Reset these signals to their default action. Other signals that are ignored stay ignored."""
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


class SpawnerProcess:
    """The agent's interface to its spawner. A single spawner process serves all generations if it
    survives that long and if the system supports that.
    """

    def __init__(self) -> None:
        self.held: Callable[[], Sequence[int]] = tuple
        """Returns descriptors that a spawner keeps open as long as it has workers. The first
        generation's guard keeps the descriptors that existed when the guard was forked.
        """
        self._pid = 0
        self._idle_pid = 0
        """The spawner's own pid, as reported by the spawner once it waits for a generation; 0 until
        then.
        """
        self._control: socket.socket | None = None

    def fork(self, plans: Sequence[WorkerPlan], scratch: str) -> tuple[int, socket.socket]:
        """Start a generation's workers. Return the pid of the process that was forked for the first
        generation, and the agent's end of this generation's socket.

        Args:
            plans: the workers.
            scratch: a directory that the agent removes when it exits, or empty. If the agent was
                killed, the spawner removes it.

        Raises:
            OSError: if the process can't be forked, or descriptors are exhausted.
        """
        if self._control is not None and self._continue_idle(self._control):
            self._idle_pid = 0
            with suppress(BrokenPipeError, ConnectionResetError):  # it was killed just now
                return self._pid, generation_pipe.send(self._control, plans, scratch, self.held())
        self.close()
        if not system.SPAWNER_STAYS:
            return fork(plans, scratch)
        control, theirs = socket.socketpair()
        with theirs:
            self._pid, connection = _fork(plans, scratch, theirs, held=self.held())
        self._control = control
        return self._pid, connection

    def close(self) -> None:
        """Let the spawner exit. If the spawner has workers, it exits after they have ended."""
        if self._control is None:
            return
        pid = self._hear_idle(self._control)
        self._control.close()
        self._control, self._idle_pid = None, 0
        with suppress(OSError):  # they have exited
            if pid and system.parent_pid(pid) == os.getpid():  # its guard was killed
                os.kill(pid, signal.SIGKILL)
                system.reap(pid, _REAP_S)
            elif pid:  # in case another program stopped them
                os.kill(self._pid, signal.SIGCONT)
                self._continue(pid)
        with suppress(ChildProcessError):  # it was reaped together with its last generation
            system.reap(self._pid, 0)  # in case it was killed while idle

    def wait(self, limit_s: float) -> None:
        """Close the spawner, and wait until it has exited. This is for embedding programs that
        outlive the job.
        """
        if self._control is not None:
            self.close()
            with suppress(ChildProcessError):  # it has been reaped
                system.reap(self._pid, limit_s)

    def _continue_idle(self, control: socket.socket) -> bool:
        """Return whether the spawner is idle and both the spawner and its guard still exist. The
        spawner sends its pid to report that it is idle. Send it SIGCONT, in case another program
        has stopped it.
        """
        pid = self._hear_idle(control)
        try:
            if not pid or system.parent_pid(pid) != self._pid:
                return False
            self._continue(pid)
        except OSError:
            return False
        return True

    def _hear_idle(self, control: socket.socket) -> int:
        """Return the spawner's pid if the spawner is waiting for a generation, or 0 otherwise."""
        with suppress(OSError):  # it has not sent anything, or has exited
            self._idle_pid = int(control.recv(20, socket.MSG_DONTWAIT) or 0) or self._idle_pid
        return self._idle_pid

    def _continue(self, pid: int) -> None:
        system.signal_if(pid, signal.SIGCONT, lambda: system.parent_pid(pid) == self._pid)


def fork(plans: Sequence[WorkerPlan], scratch: str = "") -> tuple[int, socket.socket]:
    """Fork a spawner for a single generation, and return the same values as `SpawnerProcess.fork`.

    Raises:
        OSError: if the process can't be forked, or descriptors are exhausted.
    """
    return _fork(plans, scratch, None)


def fork_helper(
    plan: WorkerPlan, stdin: int, call: Callable[[], object] | None
) -> tuple[int, socket.socket]:
    """Fork a spawner for a process that isn't a worker, and return the same values as
    `SpawnerProcess.fork`.

    Args:
        plan: the process, with local rank 0.
        stdin: the process's standard input.
        call: a function to run instead of a program, with only the three standard descriptors.

    Raises:
        OSError: if the process can't be forked, or descriptors are exhausted.
    """
    return _fork([plan], "", None, stdin, call, of="helper")


def _fork(
    plans: Sequence[WorkerPlan],
    scratch: str,
    control: socket.socket | None,
    stdin: int = 0,
    call: Callable[[], object] | None = None,
    *,
    held: Collection[int] = (),
    of: str = "worker",
) -> tuple[int, socket.socket]:
    ours, theirs = socket.socketpair()
    agent = _Agent(os.getpid(), own_actions(), of)
    # A signal must not reach the spawner while it still shares the agent's wake-up pipe.
    mask = system.block_signals()
    try:
        pid = system.fork()
        if pid == 0:
            plan = GenerationPlan(list(plans), theirs.detach(), stdin, scratch)
            _live(_FirstSpawner(plan, agent, call), control, held, mask)
    except OSError:
        ours.close()
        raise
    finally:
        system.restore_signals(mask)
        theirs.close()
    return pid, ours


class _Agent(NamedTuple):
    """The agent that has forked a spawner: its pid, the signals that it handles, and the kind of
    processes that the spawner starts (`of`).
    """

    pid: int
    actions: Sequence[int]
    of: str


class _FirstSpawner(Spawner):
    """The spawner of the first generation. The agent forks it, so it inherits the plan from the
    agent's memory.
    """

    def __init__(
        self, plan: GenerationPlan, parent: _Agent, call: Callable[[], object] | None
    ) -> None:
        super().__init__(plan)
        self.parent = parent
        self._call = call

    def leave_agent(self, keep: Collection[int]) -> None:
        """Leave the agent's session, and drop its signal handling and all its descriptors except
        those in `keep`.
        """
        os.setsid()
        system.become_subreaper()
        system.die_with_parent(signal.SIGCONT)  # even a stopped spawner must notice
        default_signals(self.parent.actions)  # doing this in a worker would copy pages
        outputs = [fd for plan in self.plans.values() for fd in (plan.stdout, plan.stderr)]
        system.close_all_but({0, 1, 2, self.stdin, self.agent.fileno(), *keep, *outputs})

    def execute(self, plan: WorkerPlan) -> None:
        if self._call is None:
            super().execute(plan)
            return
        self.restore_action()
        self.agent.detach()
        system.close_all_but({0, 1, 2})
        self._call()
        os._exit(0)

    def _detach(self) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in {0, 1, 2, self.stdin}:
            os.dup2(null, fd)
        os.close(null)
        system.rename_process(f"{self.parent.of} spawner of {self.parent.pid}")


def _live(
    first: _FirstSpawner, control: socket.socket | None, held: Collection[int], mask: Any
) -> NoReturn:
    """Run as the spawner of the first generation and of the generations that arrive through
    `control`.
    """
    gc.disable()  # finalizing the agent's objects here would close our descriptors
    spawner: Spawner = first
    try:
        to_guard = system.stand_guard(first.parent.pid, first.parent.of, held)
        controls = () if control is None else (control.fileno(),)
        first.leave_agent({to_guard, *controls, *held})
        parents = first.parent.pid, os.getppid()
        told = ""
        while True:
            if spawner.scratch != told and to_guard >= 0:
                told = spawner.scratch
                _tell_guard(to_guard, told)
            none_left = spawner.run(mask)
            if spawner.scratch and (spawner.abandoned or os.getppid() not in parents):
                remove_tree(spawner.scratch)
            if control is None or not none_left:
                spawner.tell("leaving")
                os._exit(0)
            plan = _next_plan(spawner, control)
            if plan is None:
                os._exit(0)
            spawner = Spawner(plan)
    except OSError as error:
        if spawner.agent.fileno() >= 0:  # not while between two generations
            spawner.tell(f"refused {error.errno or 0} {error.filename or ''}")
        os._exit(EXIT_MACHINE)
    except BaseException as error:
        spawner.tell(f"broken {describe_bug(error)}")
    finally:  # none of the agent's code may run after this
        os._exit(EXIT_INTERNAL)


def _tell_guard(to_guard: int, scratch: str) -> None:
    with suppress(BrokenPipeError):  # it was killed; the agent detects that and ends this process
        os.write(to_guard, os.fsencode(scratch))


def _next_plan(spawner: Spawner, control: socket.socket) -> GenerationPlan | None:
    """End a generation, and return the plan for the next generation, or None if the agent has
    exited.
    """
    with suppress(OSError):  # the agent has exited
        control.send(b"%d\n" % os.getpid())
    spawner.end()
    plan = generation_pipe.receive(control)
    if plan is None and spawner.scratch:
        remove_tree(spawner.scratch)  # a live agent has already removed it
    return plan
