"""Determines whether the workers on a node are still making progress (--hang-timeout). This module
has no side effects and does not read the clock.

A worker is

    working     it or one of its descendants reads, writes or maps memory
    computing   it only uses CPU time; it may be training on a GPU, or spinning
    idle        neither

A *sign* is a deliberate sign of life: either a byte of output, or a step reported with
`relight.worker.progress`.

The workers on a node are quiet

- after all of them have been idle for `idle_s` without giving a sign, or
- after `silent_s` without a sign or a working worker, if there were regular signs before. Without
  this second rule, a rank in an endless loop would look busy forever.

Both times adapt to the job by increasing to ten times the longest pause that the job has resumed
from. `idle_s` increases only if the user did not set it. The job has hung if the workers on all
nodes are quiet. core/group/membership determines whether this is the case.
"""

from collections.abc import Mapping
from typing import NamedTuple

from relight.base.values import HangTimeout

_BUSY_CPU = 0.05
"""A worker that uses less than this fraction of a CPU is idle. Waiting torch threads use less."""
_BUSY_BYTES = 1024.0
"""Bytes per second. The store heartbeats of NCCL's monitor stay below this."""
_BUSY_FAULTS = 100.0
"""Page faults per second. A loop that only waits does not cause any."""
_MIN_CPU_S = 0.05
"""The system counts CPU time in steps of 0.01 s. A single step proves nothing."""
_WINDOW_S = 1.0
"""Usage is measured over this many seconds, or over the time between two observations if that is
longer.
"""
_TIMES = 10
"""A pause counts as a hang once it is this many times as long as the longest earlier pause."""
_REGULAR = 5
"""Signs count as regular once there have been this many."""


class Usage(NamedTuple):
    """The total resource usage of a worker and all its descendants: CPU time in seconds, bytes
    transferred by read(2) and write(2), and page faults.
    """

    cpu_s: float
    io_bytes: int
    faults: int


class Observation(NamedTuple):
    """One observation of a node's workers.

    The `workers` field is the usage of each running worker, by local rank. The `signs` field
    consists of the number of output bytes and the highest step, and a change in either counts as a
    sign of life.
    """

    workers: Mapping[int, Usage]
    signs: tuple[int, int]


class Quiet(NamedTuple):
    """How many seconds the workers have been inactive, and how many seconds of inactivity are
    allowed.
    """

    seconds: float
    limit_s: float


class Activity:
    """Tracks the activity of one node's workers in one generation.

    Args:
        limits: the limits set by the user.
        every_s: the time between two observations.
    """

    def __init__(self, limits: HangTimeout, every_s: float) -> None:
        self._limits = limits
        self._every_s = every_s
        self._recent: list[tuple[float, Observation]] = []  # the oldest one starts the window
        self._active_at = 0.0  # when they were last seen computing, working or giving a sign
        self._worked_at = 0.0  # when they were last seen working or giving a sign
        self._sign_at = 0.0
        self._signs = 0
        self._longest_pause_s = 0.0  # without any activity
        self._longest_silence_s = 0.0  # without a sign

    def observe(self, seen: Observation | None, now: float) -> Quiet | None:
        """Process an observation. Return how long the workers have been inactive, or None as long
        as no limit has been exceeded.

        Args:
            seen: the observation, or None while the workers can't run because they are frozen.
            now: the current time.
        """
        recent = self._recent
        # After a longer interval, this process or the machine itself was suspended.
        if seen is None or not recent or now - recent[-1][0] > 4 * self._every_s:
            self._recent = [] if seen is None else [(now, seen)]
            self._active_at = self._worked_at = self._sign_at = now
            return None
        while len(recent) > 1 and now - recent[1][0] >= _WINDOW_S:
            del recent[0]
        before_at, before = recent[0]
        seconds = now - before_at
        if seen.signs != recent[-1][1].signs:
            self._on_sign(now)
        elif seconds < _WINDOW_S or _works(before.workers, seen.workers, seconds):
            self._on_activity(now)
            self._worked_at = now
        elif _computes(before.workers, seen.workers, seconds):
            self._on_activity(now)
        recent.append((now, seen))
        return self._quiet(now)

    def _on_sign(self, now: float) -> None:
        self._on_activity(now)
        self._signs += 1
        if self._signs > 1:  # the time before the first sign is spent on imports
            self._longest_silence_s = max(self._longest_silence_s, now - self._sign_at)
        self._worked_at = self._sign_at = now

    def _on_activity(self, now: float) -> None:
        self._longest_pause_s = max(self._longest_pause_s, now - self._active_at)
        self._active_at = now

    def _quiet(self, now: float) -> Quiet | None:
        limits = self._limits
        idle_s = limits.idle_s
        if limits.adapts:
            idle_s = max(idle_s, _TIMES * self._longest_pause_s)
        if now - self._active_at >= idle_s:
            return Quiet(now - self._active_at, idle_s)
        silent_s = max(limits.silent_s, _TIMES * self._longest_silence_s)
        if self._signs >= _REGULAR and now - self._worked_at >= silent_s:
            return Quiet(now - self._worked_at, silent_s)
        return None


def _works(before: Mapping[int, Usage], now: Mapping[int, Usage], seconds: float) -> bool:
    """Return whether a worker is reading, writing or mapping memory, or has lost a process."""
    if before.keys() != now.keys():
        return True
    for rank, usage in now.items():
        io_bytes = usage.io_bytes - before[rank].io_bytes
        faults = usage.faults - before[rank].faults
        if io_bytes < 0 or io_bytes >= _BUSY_BYTES * seconds or faults >= _BUSY_FAULTS * seconds:
            return True
    return False


def _computes(before: Mapping[int, Usage], now: Mapping[int, Usage], seconds: float) -> bool:
    least_s = max(_BUSY_CPU * seconds, _MIN_CPU_S)
    return any(usage.cpu_s - before[rank].cpu_s >= least_s for rank, usage in now.items())
