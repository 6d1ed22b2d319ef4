"""Runs background work at the lowest priority, and restores the priority afterwards.

Without privileges, a priority lowered by nice(2) or SCHED_IDLE can't be raised again, and processes
that are forked later would inherit it. So SCHED_IDLE is used only where a trial shows that it can
be undone; otherwise the work sleeps most of the time. A low priority of the session's autogroup
(sched(7)) helps as well, where autogroups are enabled; each worker has its own session.
"""

import os
import platform
import sys
import time
from collections.abc import Callable

from relight.host import linux
from relight.typed import Any

_SHARE = 4
"""Without SCHED_IDLE: one part of the time in this many is for work, the rest for others."""
_QUARTER_NICE = 5
"""Gives a quarter of a processor beside one process of normal priority (sched(7))."""
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}.get(platform.machine(), 0)
_IDLE_CLASS = 3 << 13  # linux/ioprio.h


def lower() -> Callable[[], None]:
    """Take the lowest priority that can be undone; return the function that undoes it."""
    idle = _can_come_back()
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    pacer = _Pacer()
    if not idle:
        sys.meta_path.insert(0, pacer)
    _set_io(_IDLE_CLASS)
    _set_autogroup(19)

    def restore() -> None:
        _set_autogroup(0)
        _set_io(0)
        if idle:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        else:
            sys.meta_path.remove(pacer)

    return restore


def raise_to_quarter(pid: int) -> None:
    """Raise a process that got hardly any time at SCHED_IDLE to a quarter of a processor.

    Do nothing if it is not at SCHED_IDLE: without it, background work runs a quarter of the time.
    """
    try:
        if os.sched_getscheduler(pid) == os.SCHED_IDLE:
            _set_autogroup(_QUARTER_NICE, pid)
            nice = os.getpriority(os.PRIO_PROCESS, pid) + _QUARTER_NICE
            os.setpriority(os.PRIO_PROCESS, pid, nice)
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
    except OSError:
        pass  # it has ended


class _Pacer:
    """An import finder that delays each import; it finds no module itself."""

    def __init__(self) -> None:
        self._worked = time.process_time()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        del name, path, target
        worked = time.process_time() - self._worked
        if worked > 0.01:
            time.sleep(worked * (_SHARE - 1))
            self._worked = time.process_time()


def _can_come_back() -> bool:
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    pid = os.fork()
    if pid == 0:
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def _set_io(priority: int) -> None:
    if _IOPRIO_SET:
        linux.system_call(_IOPRIO_SET, 1, 0, priority)


def _set_autogroup(nice: int, pid: int | str = "self") -> None:
    try:
        with open(f"/proc/{pid}/autogroup", "w") as file:
            file.write(str(nice))
    except OSError:
        pass  # autogroups are disabled, or were changed a moment ago
