"""Runs background work at the lowest priority, and restores the priority afterwards.

An unprivileged process can't raise its priority again after lowering it with nice(2) or SCHED_IDLE,
and processes that it forks later would inherit the low priority. SCHED_IDLE is therefore used only
if a test shows that it can be undone. Otherwise, the background work sleeps most of the time. If
autogroups are enabled, lowering the priority of the session's autogroup (sched(7)) also helps. Each
worker has its own session.
"""

import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from relight.host import linux

IDLE_S = 15.0
"""How long background work may be starved on a machine whose CPUs are all busy."""
GENTLE_S = 45.0
"""After this many seconds, background work gets normal priority, so that it makes progress at the
same rate as other work.
"""
STARVED_S = 60.0
"""How long work that stays at low priority may be starved at SCHED_IDLE. If half a CPU is
idle, a job's imports finish within this time.
"""
_STARVED_SHARE = 0.25
"""Work that gets less than this fraction of a CPU counts as starved."""
_STARVED_NICE = 19
"""At this nice value, work that competes with one process of normal priority gets 1.4 % of a
CPU. SCHED_IDLE gets 0.3 % (sched(7)). Ranks that wait for each other are therefore slowed
down by no more than that, no matter how long the background work takes.
"""
_SHARE = 4
"""Without SCHED_IDLE, background work runs for 1/N of the time, where N is this number, and leaves
the rest to other processes.
"""
_BUSY_PAUSE = 100
"""Without SCHED_IDLE, work that stays at low priority gets about 1 % of a busy CPU."""
_QUARTER_NICE = 5
"""At this nice value, work that competes with one process of normal priority gets a quarter of a
CPU (sched(7)).
"""
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}.get(platform.machine(), 0)
_IDLE_CLASS = 3 << 13  # linux/ioprio.h


def lower(*, stays_low: bool = False) -> Callable[[], None]:
    """Switch to the lowest priority that can be undone, and return a function that restores the
    previous priority.

    Args:
        stays_low: whether the work must never get normal priority.
    """
    idle = _can_come_back()
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    pacer = _Pacer(stays_low=stays_low)
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


def raise_step_by_step(pid: int, seconds: float, *, stays_low: bool = False) -> float | None:
    """Raise the priority of a process that runs at SCHED_IDLE.

    After `IDLE_S`, the process gets a quarter of a CPU, and after `GENTLE_S`, it gets this
    process's priority. A process that must stay at low priority is raised only to nice 19, and only
    after it has been starved for `STARVED_S`.

    Args:
        pid: the process. Without SCHED_IDLE, it runs only a quarter of the time, and lifts that
            restriction itself.
        seconds: time since the process began its work.
        stays_low: whether the process must never get the priority of this process.

    Returns:
        The number of seconds after the start of the work at which to call this function again, or
        None if that isn't necessary.
    """
    with suppress(OSError):  # it has ended, or this process may not raise a lowered priority
        policy, usual = os.sched_getscheduler(pid), os.getpriority(os.PRIO_PROCESS, 0)
        if stays_low:
            if seconds < STARVED_S:
                return STARVED_S
            if policy != os.SCHED_IDLE:
                return None
            if linux.usage(pid)[0] > seconds * _STARVED_SHARE:
                return seconds + STARVED_S
            _raise(pid, _STARVED_NICE, _STARVED_NICE)
            return None
        if seconds >= GENTLE_S:
            if policy == os.SCHED_IDLE or os.getpriority(os.PRIO_PROCESS, pid) > usual:
                _raise(pid, usual, 0)
                _set_io(0, pid)
        elif seconds >= IDLE_S and policy == os.SCHED_IDLE:
            _raise(pid, usual + _QUARTER_NICE, _QUARTER_NICE)
    if seconds < IDLE_S:
        return IDLE_S
    return GENTLE_S if seconds < GENTLE_S else None


def _raise(pid: int, nice: int, autogroup: int) -> None:
    _set_autogroup(autogroup, pid)
    os.setpriority(os.PRIO_PROCESS, pid, nice)
    os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


class _Pacer:
    """An import finder that pauses briefly before each import. It never finds a module itself."""

    def __init__(self, *, stays_low: bool) -> None:
        self._stays_low = stays_low
        self._worked, self._waited = time.process_time(), _runqueue_wait_s()
        self._until = time.monotonic() + GENTLE_S

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        del name, path, target
        worked = time.process_time() - self._worked
        if worked > 0.01 and (self._stays_low or time.monotonic() < self._until):
            waited = _runqueue_wait_s() - self._waited
            time.sleep(pause_s(worked, waited if self._stays_low else 0.0))
            self._worked, self._waited = time.process_time(), _runqueue_wait_s()


def pause_s(worked_s: float, waited_s: float) -> float:
    """Return how many seconds background work must pause after a period of work. The work is
    limited to a quarter of an idle CPU. On a busy CPU, where it waits about as long as it runs, it
    gets much less.
    """
    return worked_s * (_SHARE - 1) + min(waited_s, worked_s) * _BUSY_PAUSE


def _runqueue_wait_s() -> float:
    """Return how many seconds this process has been waiting for a CPU while it was ready to run
    (Linux, Documentation/scheduler/sched-stats.rst), or 0 if the system does not report that.
    """
    try:
        with open("/proc/self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


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
    return linux.reap(pid, linux.END_LIMIT_S) == 0


def _set_io(priority: int, pid: int = 0) -> None:
    if _IOPRIO_SET:
        linux.system_call(_IOPRIO_SET, 1, pid, priority)


def _set_autogroup(nice: int, pid: int | str = "self") -> None:
    with suppress(OSError), open(f"/proc/{pid}/autogroup", "w") as file:
        file.write(str(nice))  # fails if autogroups are disabled, or were changed a moment ago
