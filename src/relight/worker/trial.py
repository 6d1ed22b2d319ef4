"""Does something that may spoil this process; if it has, a copy from before goes on instead.

    guard --> the process --> its copy, which waits        before and while something is tried
    guard --> the process                                  it went well: the copy is killed
    guard --> what was the copy                            it did not: the process ends

The guard (`worker/guard.py`) is told beforehand which process is the copy. When the process ends,
however it ends, the guard kills what it has left and looks after the copy.
"""

import os
import select
import signal
import time
from collections.abc import Callable

from relight.host import linux
from relight.typed import NamedTuple
from relight.worker.guard import Guard

_MOST = 4096


class Spoiled(NamedTuple):
    """Something was tried and has been undone.

    `reason` says why it can't be, and `culprit` is the module that is to blame; `seconds` is the
    time that it took.
    """

    culprit: str
    reason: str
    seconds: float


class UnfitError(Exception):
    """Workers must not be forked from this process as it is now; the message says why.

    Args:
        culprit: the module that is to blame.
        reason: why.
    """

    def __init__(self, culprit: str, reason: str) -> None:
        super().__init__(reason)
        self.culprit = culprit


def attempt(step: Callable[[int, int], None], guard: Guard) -> Spoiled | None:
    """Call `step`; return what has happened if it is as if that had not been done.

    Args:
        step: raises UnfitError if what it has done must be undone. It gets the pid of a child and
            a descriptor that are not its own.
        guard: is above this process.

    Raises:
        OSError: no process or no descriptor is to be had.
    """
    begin = time.monotonic()
    this = os.pidfd_open(os.getpid())
    read, write = os.pipe()
    copy = os.fork()
    if copy == 0:
        os.close(write)
        spoiled = _take_over(this, read, guard)
        os.close(this)
        os.close(read)
        return spoiled._replace(seconds=time.monotonic() - begin)
    os.close(read)
    os.close(this)
    try:
        guard.follow(copy)
        step(copy, write)
    except BaseException as error:
        culprit = error.culprit if isinstance(error, UnfitError) else ""
        why = str(error) if isinstance(error, UnfitError) else repr(error)
        os.write(write, f"{culprit}\n{why}".encode(errors="replace")[:_MOST])
        os._exit(0)
    os.close(write)
    os.kill(copy, signal.SIGKILL)
    os.waitpid(copy, 0)
    return None


def _take_over(process: int, read: int, guard: Guard) -> Spoiled:
    """Wait in the copy until the process is gone, and be it."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.poll()
    guard.inherit()
    linux.become_subreaper()
    os.set_blocking(read, False)
    try:
        culprit, _, reason = os.read(read, _MOST).decode(errors="replace").partition("\n")
    except BlockingIOError:
        culprit = reason = ""
    return Spoiled(culprit, reason or "it ends the process", 0.0)
