"""The guard: the parent process of the warm spawner.

A process that an import starts can leave its session, and lose its parent. Then only a subreaper
ancestor can find it. The agent is such an ancestor, but it may be killed with SIGKILL.

    agent --> guard --> warm spawner --> processes that its imports start

When the agent is gone, the guard kills all its descendants. If the warm spawner ends, the guard
kills its orphans and exits the same way: to the agent, the guard's exit looks like the warm
spawner's. A warm spawner may have an heir (`preload/speculative_import.py`): then the guard kills
all other orphans, and guards the heir. `host/linux.py` has the guard of workers that start cold.

A warm process (`preload/warm_process.py`) outlives the agent that has started it, so its guard
watches no agent. While it imports, its guard ends it if it takes too long, or if a process that
it must not outlive has ended. The guards that it forks, one for each job, watch both the agent of
the job and the warm process.
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
"""How long the imports of a warm process may take."""


class AgentProcess(NamedTuple):
    """The agent that a guard watches, and the descriptor of the socket to it."""

    process: ProcessHandle
    control: int

    @property
    def pid(self) -> int:
        """Its pid."""
        return self.process.pid

    @classmethod
    def parent(cls, control: int) -> "AgentProcess":
        """Return the agent that is the parent of this process; exit if it is gone."""
        pid = os.getppid()
        agent = cls(ProcessHandle(pid), control)
        if os.getppid() != pid:
            os._exit(1)
        return agent

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self.process.has_ended()


class Guard:
    """The guard, as its child, the warm spawner, uses it.

    Args:
        pid: the guard's pid.
        to_guard: the descriptor of a pipe to it, for pids of heirs and paths of directories.
        from_guard: the descriptor of a pipe from it.
    """

    def __init__(self, pid: int, to_guard: int, from_guard: int) -> None:
        self.pid = pid
        self._to_guard = to_guard
        self._from_guard = from_guard
        self._directory = ""
        self.descriptors = to_guard, from_guard

    def attach(self) -> None:
        """Have this process, a child of the guard, die with the guard; exit if it is gone."""
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != self.pid:
            os._exit(1)
        os.setsid()

    def set_heir(self, heir: int) -> None:
        """Have the guard guard another process, the heir, when this one ends."""
        os.write(self._to_guard, b"%d\n" % heir)

    def inherit(self) -> None:
        """Continue as the heir, when the orphans of the earlier process are gone."""
        self.attach()
        os.read(self._from_guard, 1)

    def end_imports(self) -> None:
        """Tell the guard of a warm process that all is imported."""
        os.write(self._to_guard, _DONE + b"\n")

    def outlive_guard(self) -> None:
        """From now on, get SIGCONT and not SIGKILL when the guard ends, so that this process can
        clean up, also when stopped.
        """
        linux.die_with_parent(signal.SIGCONT)

    def remove_if_orphaned(self, scratch: str) -> None:
        """Have the guard remove a directory if the agent is gone; none if the path is empty."""
        if scratch != self._directory:
            self._directory = scratch
            os.write(self._to_guard, os.fsencode(scratch) + b"\n")


def stand_guard(
    agent: AgentProcess | None, others: Sequence[ProcessHandle] = (), *, stays_low: bool = False
) -> Guard:
    """Fork, continue in the child, and stay as its guard in the parent; return, in the child, the
    guard.

    Args:
        agent: the agent, whose end is the end of this process; None for a warm process.
        others: other processes whose end is the end of this process: the warm process that has
            forked this one; those that a warm process is not to outlive, as long as it imports.
        stays_low: the child never gets the usual priority while it imports.

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
    """Kill all descendants when the agent or one of the others ends, or when the imports of a warm
    process take too long; exit as the child does. Raise the priority of a child that has lowered
    it: its imports would last for ever where all processors are busy.
    """
    begin = time.monotonic()
    try:
        linux.rename_process(f"warm guard of {agent.pid}" if agent else "warm guard", exactly=True)
        if agent is None:
            linux.show_environment({})  # the job's that has started it
            kept = {fd for other in others for fd in other.descriptors}
            linux.close_all_but({0, 1, 2, from_child, to_child, *kept})
        linux.die_with_parent(signal.SIGCONT)  # a stopped guard must see that its parent is gone
        requests = _Requests(from_child)
        child = ProcessHandle(pid)
        poll = select.poll()
        poll.register(child, select.POLLIN)
        for other in others:
            poll.register(other, select.POLLIN)
        if agent is not None:
            poll.register(agent.process, select.POLLIN)
            poll.register(agent.control, 0)  # its other end is closed
        else:
            poll.register(from_child, select.POLLIN)
        raise_at = priority.raise_step_by_step(pid, 0.0, stays_low=stays_low)
        limit = None if agent else IMPORT_LIMIT_S
        while True:
            passed = time.monotonic() - begin
            times = [at - passed for at in (raise_at, limit) if at is not None]
            ready = dict(poll.poll(max(0.0, min(times)) * 1000 if times else None))
            passed = time.monotonic() - begin
            raise_at = priority.raise_step_by_step(pid, passed, stays_low=stays_low)
            if from_child in ready:
                requests.read()
                if requests.are_imports_done:
                    limit = None
                    poll.unregister(from_child)
                    for other in others:  # it looks after itself now
                        poll.unregister(other)
            if ready.keys() - {child.fileno(), from_child} or (
                limit is not None and passed >= limit
            ):
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
                passed = time.monotonic() - begin
                raise_at = priority.raise_step_by_step(pid, passed, stays_low=stays_low)
                os.write(to_child, b"\n")
        if agent is not None and not ready.keys() & {other.fileno() for other in others}:
            linux.let_end(child)  # it also sees the end of the agent, and cleans up
        linux.end_children(linux.END_LIMIT_S)
        requests.read()
        _leave(agent, requests.directory, 0)
    finally:
        os._exit(1)


class _Requests:
    """Requests from the child of a guard.

    Args:
        fd: the nonblocking pipe from the child.

    Attributes:
        directory: a directory to remove if the agent is gone, or empty.
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
        """Process the child's lines."""
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
    """Return whether this is our child; /proc may omit a child while another ends."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return False
    return pid > 0


def _leave(agent: AgentProcess | None, scratch: str, status: int) -> NoReturn:
    if scratch and agent is not None and agent.has_ended():
        remove_tree(scratch)
    linux.end_as(status)
