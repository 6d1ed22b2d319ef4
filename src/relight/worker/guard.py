"""A process above the one that preloads and then holds workers.

What an import starts can leave its session, and lose its parent. Only a process above it can find
it then, and the agent, which is one, may be killed with SIGKILL.

    agent --> guard --> the process that imports --> whatever its imports start

When the agent is gone, the guard kills all below it. If the process ends, the guard kills what it
has left and ends likewise: the agent sees of the one what it would see of the other. A process may
have an heir (`worker/trial.py`): then the guard kills all else that it has left, and stays above
that one. `host/linux.py` has the guard of workers that start cold.
"""

import os
import select
import signal
import time

from relight.host import linux, priority
from relight.host.files import remove_tree
from relight.typed import NoReturn

_END_LIMIT_S = 10.0


class Guard:
    """The process above, as the one that preloads sees it.

    Args:
        pid: the guard.
        told: the descriptor of a pipe to it, for pids of heirs and paths of directories.
        word: the descriptor of a pipe from it.
    """

    def __init__(self, pid: int, told: int, word: int) -> None:
        self.pid = pid
        self._told = told
        self._word = word
        self._tidies = ""
        self.descriptors = told, word

    def attach(self) -> None:
        """Live no longer than the guard, as a child of it; end if it is gone."""
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != self.pid:
            os._exit(1)
        os.setsid()

    def follow(self, heir: int) -> None:
        """Have it look after another process when this one ends."""
        os.write(self._told, b"%d\n" % heir)

    def inherit(self) -> None:
        """Be that process, when what the other has left is gone."""
        self.attach()
        os.read(self._word, 1)

    def stay(self) -> None:
        """From now on, this process ends in good order if the guard is gone, also when stopped."""
        linux.die_with_parent(signal.SIGCONT)

    def tidy(self, scratch: str) -> None:
        """Have it remove a directory if the agent is gone, or none where that is empty."""
        if scratch != self._tidies:
            self._tidies = scratch
            os.write(self._told, os.fsencode(scratch) + b"\n")


def stand_guard(control: int, gentle_s: float) -> Guard:
    """Go on in a child, and stay above it; return, in the child, what it is to know of the guard.

    Args:
        control: the descriptor of the socket to the agent, which is the parent of this process.
        gentle_s: how long, in seconds, it may keep the lowest priority if it has taken that: on a
            machine whose processors are all busy, an import would last for ever.

    Raises:
        OSError: no process or no descriptor is to be had.
    """
    agent = os.getppid()
    linux.become_subreaper()
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    heard, word = os.pipe()
    guard = Guard(os.getpid(), write, heard)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid:
        _watch(pid, agent, control, read, word, time.monotonic() + gentle_s)
    os.close(read)
    os.close(word)
    guard.attach()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return guard


def _watch(
    pid: int, agent: int, control: int, told: int, word: int, gentle_until: float
) -> NoReturn:
    """See to it that nothing outlives the agent; end as the child does."""
    try:
        linux.rename_process(f"warm guard of {agent}")
        linux.die_with_parent(signal.SIGCONT)  # one that is stopped must see that the agent is gone
        child = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(child, select.POLLIN)
        poll.register(control, 0)  # its other end is closed
        while os.getppid() == agent:
            left = gentle_until - time.monotonic()
            ready = dict(poll.poll(left * 1000 if left > 0 else None))
            if time.monotonic() >= gentle_until:
                priority.raise_to_quarter(pid)
            if control in ready:
                break
            if child in ready:
                _, status = os.waitpid(pid, 0)
                pid, scratch = _take(told)
                linux.end_children(_END_LIMIT_S, keep=pid)
                if not _is_child(pid):
                    _leave(agent, scratch, status)
                poll.unregister(child)
                os.close(child)
                child = os.pidfd_open(pid)
                poll.register(child, select.POLLIN)
                if left <= 0:
                    priority.raise_to_quarter(pid)
                os.write(word, b"\n")
        linux.let_end(pid, child)
        linux.end_children(float("inf"))
        _leave(agent, _take(told)[1], 0)
    finally:
        os._exit(1)


def _is_child(pid: int) -> bool:
    """Return whether this is a child of ours; /proc may leave one out while another ends."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return False
    return pid > 0


def _leave(agent: int, scratch: str, status: int) -> NoReturn:
    if scratch and os.getppid() != agent:
        remove_tree(scratch)
    linux.end_as(status)


def _take(told: int) -> tuple[int, str]:
    """Return the latest heir that this process was told of, 0 for none, and the directory."""
    try:
        *lines, _ = os.read(told, 1 << 16).split(b"\n")
    except BlockingIOError:
        lines = []
    heirs = [int(line) for line in lines if line.isdigit()]
    paths = [os.fsdecode(line) for line in lines if not line.isdigit()]
    return heirs[-1] if heirs else 0, paths[-1] if paths else ""
