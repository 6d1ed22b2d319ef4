"""The guard: the parent process of the warm spawner.

A process that an import starts can leave its session, and lose its parent. Then only a subreaper
ancestor can find it. The agent is such an ancestor, but it may be killed with SIGKILL.

    agent --> guard --> warm spawner --> processes that its imports start

When the agent is gone, the guard kills all its descendants. If the warm spawner ends, the guard
kills its orphans and exits the same way: to the agent, the guard's exit looks like the warm
spawner's. A warm spawner may have an heir (`worker/trial.py`): then the guard kills all other
orphans, and guards the heir. `host/linux.py` has the guard of workers that start cold.

A warm process (`worker/warm_process.py`) outlives the agent that has started it, so its guard
watches no agent. The guards that it forks, one for each job, watch the agent of the job, and it.
"""

import os
import select
import signal
import time

from relight.host import linux, priority
from relight.host.files import remove_tree
from relight.typed import NamedTuple, NoReturn

_END_LIMIT_S = 10.0


class Agent(NamedTuple):
    """The agent that a guard watches: its pid, a descriptor of the process (pidfd), and that of the
    socket to it.
    """

    pid: int
    pidfd: int
    control: int

    @classmethod
    def parent(cls, control: int) -> "Agent":
        """Return the agent that is the parent of this process; exit if it is gone."""
        pid = os.getppid()
        agent = cls(pid, os.pidfd_open(pid), control)
        if os.getppid() != pid:
            os._exit(1)
        return agent

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return has_ended(self.pidfd)


def has_ended(pidfd: int) -> bool:
    """Return whether a process has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


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


def stand_guard(agent: Agent | None, warm_process: int | None = None) -> Guard:
    """Fork, continue in the child, and stay as its guard in the parent; return, in the child, the
    guard.

    Args:
        agent: the agent, whose end is the end of this process; None for a warm process.
        warm_process: a descriptor of the warm process that has forked this one (pidfd): its end is
            the end of this process, too.

    Raises:
        OSError: no process can be forked, or no descriptor is left.
    """
    linux.become_subreaper()
    from_child, to_guard = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    from_guard, to_child = os.pipe()
    guard = Guard(os.getpid(), to_guard, from_guard)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid:
        _watch(pid, agent, warm_process, from_child, to_child)
    os.close(from_child)
    os.close(to_child)
    guard.attach()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return guard


def _watch(
    pid: int, agent: Agent | None, warm_process: int | None, from_child: int, to_child: int
) -> NoReturn:
    """Kill all descendants when the agent or the warm process ends; exit as the child does. Raise
    the priority of a child that has lowered it: its imports would last for ever where all
    processors are busy.
    """
    begin = time.monotonic()
    try:
        linux.rename_process(f"warm guard of {agent.pid}" if agent else "warm guard")
        if agent is None:
            linux.show_environment({})  # the job's that has started it
            linux.close_all_but({0, 1, 2, from_child, to_child})
        linux.die_with_parent(signal.SIGCONT)  # a stopped guard must see that its parent is gone
        child = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(child, select.POLLIN)
        if agent is not None:
            poll.register(agent.pidfd, select.POLLIN)
            poll.register(agent.control, 0)  # its other end is closed
        if warm_process is not None:
            poll.register(warm_process, select.POLLIN)
        raise_at: float | None = priority.IDLE_S
        while True:
            left = None if raise_at is None else begin + raise_at - time.monotonic()
            ready = dict(poll.poll(None if left is None else max(0.0, left) * 1000))
            raise_at = priority.raise_step_by_step(pid, time.monotonic() - begin)
            if ready.keys() - {child}:
                break
            if child in ready:
                _, status = os.waitpid(pid, 0)
                pid, scratch = _read_requests(from_child)
                linux.end_children(_END_LIMIT_S, [pid])
                if not _is_child(pid):
                    _leave(agent, scratch, status)
                poll.unregister(child)
                os.close(child)
                child = os.pidfd_open(pid)
                poll.register(child, select.POLLIN)
                raise_at = priority.raise_step_by_step(pid, time.monotonic() - begin)
                os.write(to_child, b"\n")
        if warm_process not in ready:  # the child sees the end of the agent, too, and cleans up
            linux.let_end(pid, child)
        linux.end_children(float("inf"))
        _leave(agent, _read_requests(from_child)[1], 0)
    finally:
        os._exit(1)


def _is_child(pid: int) -> bool:
    """Return whether this is our child; /proc may omit a child while another ends."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return False
    return pid > 0


def _leave(agent: Agent | None, scratch: str, status: int) -> NoReturn:
    if scratch and agent is not None and agent.has_ended():
        remove_tree(scratch)
    linux.end_as(status)


def _read_requests(from_child: int) -> tuple[int, str]:
    """Return the last heir and directory that were sent to the guard; 0 for no heir."""
    try:
        *lines, _ = os.read(from_child, 1 << 16).split(b"\n")
    except BlockingIOError:
        lines = []
    heirs = [int(line) for line in lines if line.isdigit()]
    paths = [os.fsdecode(line) for line in lines if not line.isdigit()]
    return heirs[-1] if heirs else 0, paths[-1] if paths else ""
