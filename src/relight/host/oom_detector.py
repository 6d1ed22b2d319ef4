"""Determines whether the kernel's out-of-memory killer killed a worker.

The kernel doesn't report to a process why its child received SIGKILL. The following sources contain
evidence, with the most reliable source first:

    the kernel log       names each process that the kernel killed: proof that it did or did not
                         kill the worker (kernel_log)
    memory.events        counts the kills in a cgroup (v2) and notifies watchers (inotify), so each
                         kill has a time; the verdict is "probably" or "probably not"
    memory.oom_control   has the same count (cgroup v1, Linux 4.13) without a time; the verdict is
                         "perhaps"
    /proc/vmstat         counts the kills on the whole machine; the verdict is "perhaps"
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from relight.host import system
from relight.host.files import read_small
from relight.host.loop import Alarm, Loop

if TYPE_CHECKING:
    from relight.host.kernel_log import Kill

_ROOT = "/sys/fs/cgroup"
_UNLIMITED = 2**60
_SAME_S = 5.0
"""A process may have been killed this many seconds before it ended, because the kernel frees its
memory first.
"""
_PAUSE_S = 0.1
"""The minimum time between two reads of a counter that keeps changing close to its limit."""


class _Cgroup(NamedTuple):
    """A memory cgroup: its path in the hierarchy, the hierarchy's mount point, and its files."""

    path: str
    mount: str
    counter: str
    limit: str


class OomKills:
    """Detects out-of-memory kills that happen after this object has been created.

    Args:
        proc: where proc(5) is mounted.
        root: where cgroups are mounted.
        log: returns the kills in the kernel log since a point in time, or None if they are unknown.
    """

    def __init__(
        self,
        proc: str = "/proc",
        root: str = _ROOT,
        log: "Callable[[float], list[Kill] | None] | None" = None,
    ) -> None:
        self._cgroup = _memory_cgroup(f"{proc}/self/cgroup", root)
        self._counter = self._cgroup.counter if self._cgroup is not None else ""
        self._vmstat = f"{proc}/vmstat"
        self._log = log
        self._began = time.monotonic()
        self._before = self._last = _read(self._counter)
        self._machine_before = _read(self._vmstat)
        self._times: list[float] | None = None
        """The times of the counter's increases, or None if the counter isn't being watched."""
        self._inotify = -1
        self._loop: Loop | None = None
        self._alarm: Alarm | None = None

    def watch(self, loop: Loop) -> None:
        """Record the times of kills from now until `close`, if the kernel reports them."""
        if self._counter.endswith("memory.events"):
            self._inotify = system.inotify_open((self._counter, system.IN_MODIFY))
        if self._inotify >= 0:
            self._times, self._loop = [], loop
            self._alarm = Alarm(loop, self._listen)
            self._listen()

    def close(self) -> None:
        """Stop watching, but keep the findings so far."""
        if self._inotify >= 0 and self._loop is not None and self._alarm is not None:
            self._note()
            self._alarm.set(None)
            self._loop.forget(self._inotify)
            os.close(self._inotify)
            self._inotify = -1

    def explain_kill(self, pid: int, at: float) -> str:
        """Return a sentence about whether a process that received SIGKILL ran out of memory.

        Args:
            pid: the process.
            at: when it ended, on the monotonic clock.
        """
        logged = self._logged()
        if logged is None:
            return self._counted(at) or self._nobody()
        own = next((kill for kill in logged if kill.pid == pid), None)
        if own is None:
            before = [kill for kill in logged if kill.at <= at]
            return f"{self._nobody()}{_other(before[-1], at) if before else ''}"
        limit, place = self._place_of(own)
        return f"out of memory{limit}: the kernel killed it{place} (kernel log)"

    def explain_child_kill(self, at: float, *, is_worker: bool) -> str:
        """Return a sentence about whether a worker's child process that received SIGKILL ran out of
        memory. The result is empty if there is no sign of a lack of memory.

        Args:
            at: when the worker ended, on the monotonic clock.
            is_worker: whether the worker is a shell that exited with the status of that process.
        """
        logged = self._logged()
        if logged is None:
            return self._counted(at) or (self._nobody() if is_worker else "")
        near = [kill for kill in logged if at - _SAME_S <= kill.at <= at + _PAUSE_S]
        if not near:
            return self._nobody() if is_worker else ""
        kill = near[-1]
        limit, place = self._place_of(kill)
        what = f"process {kill.pid} ({kill.name})"
        return f"probably out of memory{limit}: the kernel killed {what}{place} (kernel log)"

    def _logged(self) -> "list[Kill] | None":
        if self._log is not None:
            return self._log(self._began)
        from relight.host import kernel_log  # only after a failure

        return kernel_log.kills(self._began)

    def _counted(self, at: float) -> str:
        """Describe the kill that the counters show for this time, or return an empty string."""
        here = _increase(self._before, _read(self._counter))
        if here and self._cgroup is not None:
            if self._inotify >= 0:
                self._note()
            limit = _format_limit(_limit(self._cgroup))
            place = f" in {_name(self._cgroup.path)}"
            if not self._times:
                return f"perhaps out of memory{limit}: the kernel killed {_processes(here)}{place}"
            ago = min(abs(at - each) for each in self._times)
            if ago > _SAME_S:
                other = f"the kernel killed another process {ago:.1f} s before"
                return f"probably not out of memory: {other}"
            return f"probably out of memory{limit}: the kernel killed {_processes(here)}{place}"
        machine = _increase(self._machine_before, _read(self._vmstat))
        if not machine:
            return ""
        if here is None:
            return (
                f"perhaps out of memory: the kernel killed {_processes(machine)} "
                "somewhere on this machine in the meantime"
            )
        return (
            "probably not out of memory: "
            f"the kernel killed {_processes(machine)} in the meantime, but in other cgroups"
        )

    def _nobody(self) -> str:
        return "" if self._machine_before is None else NOBODY

    def _place_of(self, kill: "Kill") -> tuple[str, str]:
        """Return the memory limit and the path of the cgroup that the kernel log names, as phrases
        for a message. Both are empty if no cgroup had reached its limit. A worker may have entered
        another cgroup than this process's. In a cgroup namespace, the log's paths are longer.
        """
        if not kill.in_cgroup:
            return "", ""
        if not kill.cgroup:
            return "", " in a cgroup that had reached its limit"
        own = self._cgroup
        limit = 0 if own is None else _limit_at(f"{own.mount}/{kill.cgroup}/{own.limit}")
        if own is not None and own.path.strip("/") and kill.cgroup.endswith(own.path):
            limit = limit or _limit_at(f"{own.mount}/{own.path}/{own.limit}")
        return _format_limit(limit), f" in {_name(kill.cgroup)}"

    def _listen(self) -> None:
        if self._loop is not None:
            self._note()
            self._loop.on_readable(self._inotify, self._on_change)

    def _on_change(self) -> None:
        self._note()
        if self._loop is not None and self._alarm is not None:
            self._loop.on_readable(self._inotify, None)
            self._alarm.set_after(_PAUSE_S)

    def _note(self) -> None:
        """Record whether the counter increased."""
        with suppress(BlockingIOError):
            os.read(self._inotify, 4096)
        now = _read(self._counter)
        if _increase(self._last, now) and self._times is not None:
            self._times.append(time.monotonic())
        self._last = now if now is not None else self._last


NOBODY = "neither relight nor the out-of-memory killer sent it"
"""The explanation for a SIGKILL whose sender is unknown."""


def _other(kill: "Kill", at: float) -> str:
    return f"; the latter killed process {kill.pid} {at - kill.at:.1f} s before"


def _memory_cgroup(memberships: str, root: str) -> _Cgroup | None:
    """Return this process's memory cgroup (cgroups(7)), or None if the cgroup's counter can't be
    read.
    """
    try:
        rows = [line.split(":", 2) for line in os.fsdecode(read_small(memberships)).split("\n")]
    except OSError:
        return None
    for _, controllers, path in (row for row in rows if len(row) == 3):
        if controllers == "":
            mount, counter, limit = root, "memory.events", "memory.max"
        elif "memory" in controllers.split(","):
            mount, counter, limit = f"{root}/memory", "memory.oom_control", "memory.limit_in_bytes"
        else:
            continue
        # In a container, the path may be the one on the host, with the cgroup mounted as the root.
        for where in (path, "/"):
            folder = os.path.normpath(f"{mount}/{where}")
            if _read(f"{folder}/{counter}") is not None:
                return _Cgroup(where, mount, f"{folder}/{counter}", limit)
    return None


def _read(path: str) -> int | None:
    """Return the `oom_kill` counter from a file."""
    with suppress(OSError, ValueError):
        _, found, after = (b"\n" + read_small(path)).partition(b"\noom_kill ")
        if found:
            return int(after.partition(b"\n")[0])
    return None


def _increase(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else max(0, now - before)


def _limit(cgroup: _Cgroup) -> int:
    """Return the smallest limit of a cgroup and its parents, or 0 if none of them has a limit."""
    limits = []
    path = cgroup.path.strip("/")
    while True:
        limits.append(_limit_at(f"{cgroup.mount}/{path}/{cgroup.limit}"))
        if not path:
            return min(filter(None, limits), default=0)
        path = path.rpartition("/")[0]


def _limit_at(path: str) -> int:
    """Return the limit in a file, or 0 without a limit."""
    with suppress(OSError, ValueError), open(os.path.normpath(path)) as file:
        limit = int(file.read())  # fails for `max`, and in the root
        return limit if limit < _UNLIMITED else 0
    return 0


def _format_limit(limit: int) -> str:
    return f" (limit {limit / 2**20:.0f} MiB)" if limit else ""


def _name(path: str) -> str:
    if not path.strip("/"):
        return "its cgroup"
    return f"cgroup {path if len(path) <= 40 else f'…{path[-39:]}'}"


def _processes(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"
