"""A process above the one that preloads, for as long as its imports run.

What an import starts can leave its session, and lose its parent. Only a process above it can find
it then, and the agent, which is one, may be killed with SIGKILL.

    agent --> guard --> the process that imports --> whatever its imports start

When the agent is gone, the guard kills all below it. When the imports are done, it goes, and the
process is the agent's own child, who is a subreaper. If the process ends, the guard ends likewise:
the agent sees of the one what it would see of the other.
"""

import os
import select
import signal
import time
from collections.abc import Callable

from relight.host import linux
from relight.typed import NoReturn

_END_LIMIT_S = 10.0
_LOOK_S = 0.0005


def stand_guard(control: int) -> Callable[[], None]:
    """Go on in a child, and stay above it; return, in the child, what sends the guard away.

    Args:
        control: the descriptor of the socket to the agent, which is the parent of this process.

    Raises:
        OSError: no process or no descriptor is to be had.
    """
    agent, guard = os.getppid(), os.getpid()
    linux.become_subreaper()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid:
        _watch(pid, agent, control)
    linux.die_with_parent(signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def send_away() -> None:
        linux.die_with_parent(signal.SIGCONT)
        os.kill(guard, signal.SIGKILL)
        while os.getppid() == guard:
            time.sleep(_LOOK_S)

    return send_away


def _watch(pid: int, agent: int, control: int) -> NoReturn:
    """See to it that nothing outlives the agent; end as the child does."""
    try:
        linux.die_with_parent(signal.SIGCONT)  # one that is stopped must see that the agent is gone
        child = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(child, select.POLLIN)
        poll.register(control, 0)  # its other end is closed
        while os.getppid() == agent:
            ready = dict(poll.poll())
            if control in ready:
                break
            if child in ready:
                _, status = os.waitpid(pid, 0)
                linux.end_children(_END_LIMIT_S)
                _end_as(status)
        linux.end_children(_END_LIMIT_S)
    finally:
        os._exit(1)


def _end_as(status: int) -> NoReturn:
    """End this process as another one has ended."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
