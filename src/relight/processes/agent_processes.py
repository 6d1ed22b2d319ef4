"""Lists the agents that are running on this machine. The information comes from /proc alone
(proc(5)), without contacting the agents.

An agent is recognized by its command line. An agent's workers are the children of its spawners,
which are recognized by their process names (`processes/spawner.py`, `preload/warm_fork.py`). Other
users' agents are included only if the caller is root.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from relight.base.errors import UsageError
from relight.host import system
from relight.processes import straggler_reports as slow_ranks

_COLD, _WARM = "worker spawner ", "warm spawner of"
"""The spawners' process names, truncated to the 15 characters that the kernel keeps."""
_PF_FORKNOEXEC = 0x40
"""The flag of a process that was forked and has not executed a program since then
(include/linux/sched.h).
"""


class Running(NamedTuple):
    """A running agent on this machine. Memory is in bytes, and shared pages count proportionally
    (PSS).

    The `run_id` field is empty while the agent has no workers. The `job` field is the id of its
    job, or empty. The `warm_pid` field is the pid of the warm spawner (with the imported --preload
    modules), or 0. The `memory` field includes the warm spawner's memory. The `slow_ranks` field
    describes any slow ranks (--watch-slow-ranks).
    """

    pid: int
    run_id: str
    workers: tuple[int, ...]
    seconds: float
    memory: int
    warm_pid: int
    warm_memory: int
    command: tuple[str, ...]
    job: str = ""
    slow_ranks: str = ""


def lives(pid: int) -> bool:
    """Return whether a process is alive, even if it is stopped."""
    return system.is_running(pid) or system.is_stopped(pid)


def running() -> list[Running]:
    """Return this user's agents, in pid order.

    Raises:
        UsageError: if proc(5) is missing.
    """
    since_boot = _read("/proc/uptime").split()
    if not since_boot:
        raise UsageError("can't list agents: this system has no /proc", hint="give a job")
    user, found = os.geteuid(), []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        words = _words(pid)
        if arguments(words) is None:
            continue
        with suppress(OSError, IndexError):  # it has exited in the meantime
            stat = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
            if user in (0, os.stat(f"/proc/{pid}").st_uid) and not _is_fork(words, stat):
                began = int(stat[19]) / os.sysconf("SC_CLK_TCK")
                found.append(_describe(pid, words, max(0.0, float(since_boot[0]) - began)))
    return found


def arguments(words: Sequence[str]) -> list[str] | None:
    """Return the arguments that follow `relight run` or `relight launch` in a command line in which
    Python runs relight as a script or with -m. Return None for any other command line.
    """
    if not words or not os.path.basename(words[0]).startswith("python"):
        return None
    rest = iter(words[1:])
    for word in rest:
        if word in ("-X", "-W"):
            next(rest, "")
        elif word == "-c":  # relight.launch uses it, followed by -m and the other arguments
            if "relight.__main__" not in next(rest, ""):
                return None
        elif word == "-m" or not word.startswith("-"):
            name = next(rest, "") if word == "-m" else os.path.basename(word)
            found = name == "relight" and next(rest, "") in ("run", "launch")
            return list(rest) if found else None
    return None


def _is_fork(words: tuple[str, ...], stat: Sequence[str]) -> bool:
    """Return whether a process was forked by an agent and still has the agent's command line. Both
    the process's flags and its parent are checked, because the parent may have exited, and because
    gVisor doesn't show flags.
    """
    return _words(int(stat[1])) == words or bool(int(stat[6]) & _PF_FORKNOEXEC)


def _describe(pid: int, words: tuple[str, ...], seconds: float) -> Running:
    own = system.child_pids(pid)
    own += [child for guard in own for child in system.child_pids(guard)]  # `stand_guard`
    cold, warm = ([child for child in own if _name(child) == name] for name in (_COLD, _WARM))
    workers = [
        child
        for spawner in (*cold, *warm)
        for child in system.child_pids(spawner)
        if _leads_session(child)
    ]
    known = next(filter(None, map(_variables, workers)), {})
    return Running(
        pid=pid,
        run_id=known.get("TORCHELASTIC_RUN_ID", ""),
        workers=tuple(sorted(workers)),
        seconds=seconds,
        memory=sum(map(system.memory, (pid, *system.tree(pid)))),
        warm_pid=warm[0] if warm else 0,
        warm_memory=system.memory(warm[0]) if warm else 0,
        command=words,
        job=known.get("RELIGHT_JOB_ID", ""),
        slow_ranks=slow_ranks.shown_by(pid),
    )


def _leads_session(pid: int) -> bool:
    """Return whether a child of a spawner is a worker. A worker's orphans are also children of the
    spawner, but most of them are not session leaders.
    """
    try:
        return os.getsid(pid) == pid and lives(pid)
    except OSError:
        return False


def _words(pid: int) -> tuple[str, ...]:
    return tuple(_read(f"/proc/{pid}/cmdline").rstrip("\0").split("\0"))


def _name(pid: int) -> str:
    return _read(f"/proc/{pid}/comm").removesuffix("\n")


def _variables(pid: int) -> dict[str, str]:
    pairs = [text.partition("=") for text in _read(f"/proc/{pid}/environ").split("\0")]
    return {name: value for name, equals, value in pairs if equals}


def _read(path: str) -> str:
    """Return a file's content, or an empty string if the process has exited."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""
