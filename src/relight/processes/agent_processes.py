"""Lists the agents that are running on this machine. The information comes from /proc alone
(proc(5)), without contacting the agents.

An agent is recognized by its command line. An agent's workers are the children of its spawners,
which are recognized by their process names (`processes/spawner.py`, `preload/warm_fork.py`). Other
users' agents are included only if the caller is root.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
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


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int
    flags: int
    name: str
    seconds: float
    words: tuple[str, ...]


def lives(pid: int) -> bool:
    """Return whether a process is alive, even if it is stopped."""
    return system.is_running(pid) or system.is_stopped(pid)


def running() -> list[Running]:
    """Return this user's agents, in pid order.

    Raises:
        UsageError: if proc(5) is missing.
    """
    processes = {process.pid: process for process in _processes()}
    children: dict[int, list[_Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    return [
        _describe(process, children)
        for _, process in sorted(processes.items())
        if arguments(process.words) is not None and not _is_fork(process, processes)
    ]


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


def _is_fork(process: _Process, processes: Mapping[int, _Process]) -> bool:
    """Return whether a process was forked by an agent and still has the agent's command line. Both
    the process's flags and its parent are checked, because the parent may have exited, and because
    gVisor doesn't show flags.
    """
    parent = processes.get(process.parent)
    is_parents = parent is not None and parent.words == process.words
    return is_parents or bool(process.flags & _PF_FORKNOEXEC)


def _describe(agent: _Process, children: dict[int, list[_Process]]) -> Running:
    own = children.get(agent.pid, [])
    below = [child for guard in own for child in children.get(guard.pid, [])]  # `stand_guard`
    own = [child for child in own + below if child.name in (_COLD, _WARM)]
    holders = [child.pid for child in own]
    # A worker's orphans are also children of the spawner, but most of them are not session leaders.
    workers = [w for pid in holders for w in children.get(pid, []) if w.session == w.pid]
    warm = next((child.pid for child in own if child.name == _WARM), 0)
    known = next(filter(None, (_variables(worker.pid) for worker in workers)), {})
    return Running(
        pid=agent.pid,
        run_id=known.get("TORCHELASTIC_RUN_ID", ""),
        workers=tuple(sorted(worker.pid for worker in workers)),
        seconds=agent.seconds,
        memory=sum(system.memory(pid) for pid in _tree(agent.pid, children)),
        warm_pid=warm,
        warm_memory=system.memory(warm) if warm else 0,
        command=agent.words,
        job=known.get("RELIGHT_JOB_ID", ""),
        slow_ranks=slow_ranks.shown_by(agent.pid),
    )


def _tree(pid: int, children: dict[int, list[_Process]]) -> Iterator[int]:
    left = [pid]
    while left:
        yield (pid := left.pop())
        left += [child.pid for child in children.get(pid, ())]


def _processes() -> Iterator[_Process]:
    user = os.geteuid()
    try:
        since_boot = float(_read("/proc/uptime").split()[0])
    except FileNotFoundError:
        raise UsageError("can't list agents: this system has no /proc", hint="give a job") from None
    ticks = os.sysconf("SC_CLK_TCK")
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            if user not in (0, os.stat(f"/proc/{name}").st_uid):
                continue
            stat, _, rest = _read(f"/proc/{name}/stat").rpartition(")")
            words = _read(f"/proc/{name}/cmdline").rstrip("\0").split("\0")
        except OSError:
            continue  # it has exited in the meantime
        state, parent, *fields = rest.split()
        if state not in "ZX":
            seconds = max(0.0, since_boot - int(fields[17]) / ticks)
            short = stat.partition("(")[2]
            session, flags = int(fields[1]), int(fields[4])
            yield _Process(int(name), int(parent), session, flags, short, seconds, tuple(words))


def _variables(pid: int) -> dict[str, str]:
    try:
        pairs = [text.partition("=") for text in _read(f"/proc/{pid}/environ").split("\0")]
    except OSError:
        return {}
    return {name: value for name, _, value in pairs}


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
