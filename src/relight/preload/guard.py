"""Implements the guard, the warm spawner's parent process.

A process that is started by an import can leave its session, and its parent can exit. After that,
only an ancestor that is a subreaper can find the process. The agent is such an ancestor, but it may
be killed with SIGKILL.

    agent --> guard --> warm spawner --> processes that its imports start

When the agent has exited, the guard kills all its own descendants. If the warm spawner ends, the
guard kills its orphans and exits with the same status, so that the guard's exit looks like the warm
spawner's to the agent. A warm spawner may have an heir (`preload/speculative_import.py`). In that
case, the guard kills all other orphans and guards the heir. The guard for workers that start cold
is in `host/linux.py`.

A warm process (`preload/warm_process.py`) outlives the agent that started it, so its guard does not
watch an agent. While the warm process is importing, its guard ends it if the imports take too long,
or if a process that it must not outlive has ended. The warm process forks another guard for each
job, which watches both the job's agent and the warm process.
"""

import os
import select
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from relight.host import linux, priority
from relight.host.files import remove_tree
from relight.host.process_handle import ProcessHandle

_END_LIMIT_S = 10.0
_DONE = b"done"
IMPORT_LIMIT_S = 600.0
"""The maximum duration of a warm process's imports."""


class AgentProcess(NamedTuple):
    """The agent that a guard watches, and the descriptor of the socket connected to that agent."""

    process: ProcessHandle
    control: int

    @classmethod
    def parent(cls, control: int) -> "AgentProcess":
        """Return the agent that is this process's parent. Exit if the agent has already exited."""
        pid = os.getppid()
        agent = cls(ProcessHandle(pid), control)
        if os.getppid() != pid:
            os._exit(1)
        return agent


class Guard:
    """The interface to the guard for its child, the warm spawner.

    Args:
        pid: the guard's pid.
        to_guard: the descriptor of a pipe to the guard, which carries pids of heirs and paths of
            directories.
        from_guard: the descriptor of a pipe from the guard.
    """

    def __init__(self, pid: int, to_guard: int, from_guard: int) -> None:
        self.pid = pid
        self._to_guard = to_guard
        self._from_guard = from_guard
        self._directory = ""
        self.descriptors = to_guard, from_guard

    def attach(self) -> None:
        """Arrange for this process, a child of the guard, to be killed when the guard exits. Exit
        if the guard has already exited.
        """
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != self.pid:
            os._exit(1)
        os.setsid()

    def set_heir(self, heir: int) -> None:
        """Notify the guard which process (the heir) to guard when this process exits."""
        os.write(self._to_guard, b"%d\n" % heir)

    def inherit(self) -> None:
        """Wait until the previous process's orphans have exited, and then continue as its heir."""
        self.attach()
        os.read(self._from_guard, 1)

    def end_imports(self) -> None:
        """Notify a warm process's guard that all modules have been imported."""
        os.write(self._to_guard, _DONE + b"\n")

    def outlive_guard(self) -> None:
        """Arrange for this process to receive SIGCONT instead of SIGKILL when the guard exits, so
        that it can clean up even if it is stopped.
        """
        linux.die_with_parent(signal.SIGCONT)

    def remove_if_orphaned(self, scratch: str) -> None:
        """Have the guard remove a directory once the agent no longer exists. An empty path cancels
        the request.
        """
        if scratch != self._directory:
            self._directory = scratch
            os.write(self._to_guard, os.fsencode(scratch) + b"\n")


def stand_guard(
    agent: AgentProcess | None, others: Sequence[ProcessHandle] = (), *, stays_low: bool = False
) -> Guard:
    """Fork and continue in the child, while the parent stays behind as its guard. Return the
    child's interface to the guard.

    Args:
        agent: the agent, or None for a warm process. This process ends when the agent exits.
        others: other processes whose end also ends this process. They are the warm process that
            forked this one or, for a warm process that is still importing, the processes that it
            must not outlive.
        stays_low: whether the child must never get normal priority while it is importing.

    Raises:
        OSError: if no process can be forked, or no descriptor is left.
    """
    linux.become_subreaper()
    from_child, to_guard = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    from_guard, to_child = os.pipe()
    guard = Guard(os.getpid(), to_guard, from_guard)
    mask = linux.block_signals()
    pid = os.fork()
    if pid:
        _watch(pid, agent, others, from_child, to_child, stays_low=stays_low)
    os.close(from_child)
    os.close(to_child)
    guard.attach()
    linux.restore_signals(mask)
    return guard


def _watch(
    pid: int,
    agent: AgentProcess | None,
    others: Sequence[ProcessHandle],
    from_child: int,
    to_child: int,
    *,
    stays_low: bool,
) -> NoReturn:
    """Kill all descendants when the agent or one of the other processes ends, or when a warm
    process's imports take too long. Exit with the same status as the child.

    Also raise the priority of a child that has lowered its priority. Otherwise its imports would
    never finish while all CPUs are busy.
    """
    begin = time.monotonic()
    try:
        linux.rename_process(
            f"warm guard of {agent.process.pid}" if agent else "warm guard", exactly=True
        )
        if agent is None:
            linux.show_environment({})  # the environment belongs to the job that started it
            kept = {fd for other in others for fd in other.descriptors}
            linux.close_all_but({0, 1, 2, from_child, to_child, *kept})
        linux.die_with_parent(signal.SIGCONT)  # even a stopped guard must notice that
        requests = _Requests(from_child)
        child = ProcessHandle(pid)
        poll = select.poll()
        poll.register(child, select.POLLIN)
        for other in others:
            poll.register(other, select.POLLIN)
        if agent is not None:
            poll.register(agent.process, select.POLLIN)
            poll.register(agent.control, 0)  # the other end was closed
        else:
            poll.register(from_child, select.POLLIN)
        limit = None if agent else IMPORT_LIMIT_S
        ready = dict[int, int]()
        while limit is None or time.monotonic() - begin < limit:
            passed = time.monotonic() - begin
            raise_at = priority.raise_step_by_step(pid, passed, stays_low=stays_low)
            times = [at - passed for at in (raise_at, limit) if at is not None]
            ready = dict(poll.poll(max(0.0, min(times)) * 1000 if times else None))
            if from_child in ready:
                requests.read()
                if requests.are_imports_done:
                    limit = None
                    poll.unregister(from_child)
                    for other in others:  # it no longer needs to be watched from here
                        poll.unregister(other)
            if ready.keys() - {child.fileno(), from_child}:
                break
            if child.fileno() in ready:
                status = linux.reap(pid, linux.END_LIMIT_S) or 0
                pid = requests.take_heir()
                linux.end_children(_END_LIMIT_S, [pid])
                if not _is_child(pid):
                    _leave(agent, requests.directory, status)
                poll.unregister(child)
                child.close()
                child = ProcessHandle(pid)
                poll.register(child, select.POLLIN)
                os.write(to_child, b"\n")
        if agent is not None and not ready.keys() & {other.fileno() for other in others}:
            linux.let_end(child)  # it also notices that the agent ended, and cleans up
        linux.end_children(linux.END_LIMIT_S)
        requests.read()
        _leave(agent, requests.directory, 0)
    finally:
        os._exit(1)


class _Requests:
    """The requests that a guard has received from its child.

    Args:
        fd: the nonblocking pipe from the child.

    Attributes:
        directory: a directory to remove if the agent no longer exists, or empty.
        are_imports_done: whether a warm process has imported all modules.
    """

    def __init__(self, fd: int) -> None:
        self.directory = ""
        self.are_imports_done = False
        self._fd = fd
        self._heir = 0

    def take_heir(self) -> int:
        """Return the pid of the ended child's heir, or 0."""
        self.read()
        heir, self._heir = self._heir, 0
        return heir

    def read(self) -> None:
        """Process the lines that the child has written."""
        try:
            *lines, _ = os.read(self._fd, 1 << 16).split(b"\n")
        except BlockingIOError:
            return
        for line in lines:
            if line == _DONE:
                self.are_imports_done = True
            elif line.isdigit():
                self._heir = int(line)
            else:
                self.directory = os.fsdecode(line)


def _is_child(pid: int) -> bool:
    """Return whether a pid belongs to a child of this process. /proc isn't reliable here because it
    may omit a child while another child is ending.
    """
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return False
    return pid > 0


def _leave(agent: AgentProcess | None, scratch: str, status: int) -> NoReturn:
    if scratch and agent is not None and agent.process.has_ended():
        remove_tree(scratch)
    linux.end_as(status)
