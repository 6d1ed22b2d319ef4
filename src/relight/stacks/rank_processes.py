"""Finds a job's ranks, which are processes with RANK in their environment (environ(7)).

A rank is the topmost process that has RANK. Its descendants, such as DataLoader workers, inherit
the variable but aren't ranks. Agents, guards and spawners aren't ranks either, even if a cluster
sets RANK for the whole node. If a rank is a shell script, its first descendant that runs Python is
used instead.
"""

import os

from relight.base.errors import UsageError
from relight.host import devices, system
from relight.processes import agent_processes
from relight.stacks import elf

_LAUNCHERS = (b"worker spawner ", b"warm spawner of", b"worker guard of")
"""The process names of relight's launchers, truncated as the kernel does
(`processes/spawner.py`).
"""
_MAX = 100_000
"""A number that is larger than any rank."""
_MAX_VARIABLES = 1 << 20
"""The maximum number of bytes read from an environment."""


def below(pid: int) -> dict[int, int]:
    """Find the ranks among a process and its descendants, and return their pids by rank."""
    found: dict[int, int] = {}
    inside: set[int] = set()
    for each in (pid, *system.tree(pid)):  # `tree` lists parents before children
        if system.parent_pid(each) in inside:
            inside.add(each)
            continue
        rank = _rank(each)
        if rank is not None and not _launches(each):
            inside.add(each)
            found.setdefault(rank, find_python(each))
    return found


def find_job_ranks(job: str) -> dict[int, int]:
    """Find a job's ranks on this machine, and return their pids by rank.

    Args:
        job: the value of RELIGHT_JOB_ID in the environment of the ranks.

    Raises:
        UsageError: if several roles have the same rank.
    """
    mark = os.fsencode(f"RELIGHT_JOB_ID={job}")
    pids = [int(name) for name in devices.entries("/proc") if name.isdecimal()]
    members = {pid for pid in pids if mark in _variables(pid)}
    ranks: dict[int, int] = {}
    for root in sorted(pid for pid in members if system.parent_pid(pid) not in members):
        for rank, pid in below(root).items():
            if ranks.setdefault(rank, pid) != pid:
                raise UsageError(
                    f"{job} has several worker groups on this machine: processes {ranks[rank]} "
                    f"and {pid} are both rank {rank}",
                    hint="pass an agent's pid (see relight status)",
                )
    return ranks


def find_python(pid: int) -> int:
    """Return the process itself if it runs Python, or the first of its descendants that does."""
    return next((each for each in (pid, *system.tree(pid)) if elf.is_python(each)), pid)


def _rank(pid: int) -> int | None:
    mark = b"RANK="
    value = next((v[len(mark) :] for v in _variables(pid) if v.startswith(mark)), b"")
    return int(value) if value.isdigit() and len(value) < 7 and int(value) < _MAX else None


def _launches(pid: int) -> bool:
    """Return whether a process is an agent, or belongs to an agent."""
    if _read(f"/proc/{pid}/comm").rstrip(b"\n") in _LAUNCHERS:
        return True
    words = os.fsdecode(_read(f"/proc/{pid}/cmdline")).rstrip("\0").split("\0")
    return agent_processes.arguments(words) is not None


def _variables(pid: int) -> list[bytes]:
    return _read(f"/proc/{pid}/environ").split(b"\0")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_VARIABLES)
    except OSError:
        return b""  # the process has exited, or belongs to another user
