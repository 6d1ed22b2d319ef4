"""Tries a step that may leave this process in an unusable state. If that happens, a copy of the
process that was forked beforehand continues instead.

    guard --> the process --> its copy, which waits        before and during the step
    guard --> the process                                  success: the copy is killed
    guard --> the former copy                              failure: the process ends

The guard (`preload/guard.py`) receives the copy's pid beforehand. When the process ends for any
reason, the guard kills the process's orphans and then guards the copy.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from relight.host import linux
from relight.host.process_handle import ProcessHandle
from relight.preload.guard import Guard

_POLL_S = 60.0


class UndoneStep(NamedTuple):
    """The result of a step that was tried and undone.

    `reason` is why the step was undone, and `culprit` is the module that caused this. The `lasting`
    field indicates that the result would be the same in the next job if that job has the same
    packages. The `modules` field contains the modules that have been imported so far, in order. The
    `seconds` field is the duration of the step.
    """

    culprit: str
    lasting: bool
    reason: str
    modules: list[str]
    seconds: float


class UnfitError(Exception):
    """Raised if it is unsafe to fork workers from this process in its current state. The message
    says why.

    Args:
        culprit: the module that caused the problem.
        reason: why the process is unfit.
        lasting: whether the cause depends only on the installed packages.
    """

    def __init__(self, culprit: str, reason: str, *, lasting: bool = True) -> None:
        super().__init__(reason)
        self.culprit = culprit
        self.lasting = lasting


def attempt(step: Callable[[int], None], guard: Guard) -> UndoneStep | None:
    """Call `step`. Return None if the step succeeded, or a description of the undone step.

    Args:
        step: raises UnfitError if it must be undone. The step is called with the pid of the waiting
            copy, which is a child that the step did not start.
        guard: the guard of this process.

    Raises:
        OSError: if no process can be forked, or no descriptor is left.
    """
    begin = time.monotonic()
    before = set(sys.modules)
    this = ProcessHandle(os.getpid())
    result = linux.anonymous_file("trial")
    copy = os.fork()
    if copy == 0:
        undone = _take_over(this, result, guard)
        this.close()
        os.close(result)
        return undone._replace(seconds=time.monotonic() - begin)
    this.close()
    try:
        guard.set_heir(copy)
        step(copy)
    except BaseException as error:
        unfit = error if isinstance(error, UnfitError) else UnfitError("", repr(error))
        lasting = "lasting" if unfit.lasting and unfit.culprit else ""
        reason = " ".join(str(unfit).split())
        lines = unfit.culprit, lasting, reason, *(x for x in sys.modules if x not in before)
        os.write(result, "\n".join(lines).encode(errors="replace"))
        os._exit(0)
    os.close(result)
    os.kill(copy, signal.SIGKILL)
    linux.reap(copy, linux.END_LIMIT_S)
    return None


def _take_over(process: ProcessHandle, result: int, guard: Guard) -> UndoneStep:
    """Wait in the copy until the original process has exited, and then take its place."""
    while not process.wait(_POLL_S):
        pass  # wait for the imports; the guard ends both processes if that takes too long
    guard.inherit()
    linux.become_subreaper()
    lines = os.pread(result, os.fstat(result).st_size, 0).decode(errors="replace").split("\n")
    if not lines[1:]:  # also true if the process was killed
        return UndoneStep("", False, "it ends the process", [], 0.0)
    culprit, lasting, reason, *modules = lines
    return UndoneStep(culprit, bool(lasting), reason, modules, 0.0)
