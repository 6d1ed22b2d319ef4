"""Which processes are the ranks of a job: those with RANK in their environment (environ(7)).

A rank is the first process with RANK on the way down from an agent; what it starts, such as the
workers of a DataLoader, inherits the variable and is none. If a rank is a shell script, the Python
process below it stands for it.
"""

import os
from collections.abc import Iterable

from relight.host import system
from relight.host.stacks import elf

_MOST = 100_000
"""No rank is as high."""
_MOST_VARIABLES = 1 << 20
"""Most bytes of an environment that are read."""


def below(pid: int) -> dict[int, int]:
    """Return the pids of the ranks that a process has started, or is, by rank."""
    # Parents come first in `tree`, so a process is looked at after its parent.
    return _ranks([pid, *system.tree(pid)])


def of_job(job: str) -> dict[int, int]:
    """Return the pids of the ranks of a job on this machine, by rank.

    Args:
        job: the value of RELIGHT_JOB_ID in their environment.
    """
    mark = f"RELIGHT_JOB_ID={job}".encode()
    found = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    members = {pid for pid in found if mark in _variables(pid)}
    roots = sorted(pid for pid in members if system.parent_of(pid) not in members)
    ranks: dict[int, int] = {}
    for root in roots:
        ranks = below(root) | ranks
    return ranks


def python_of(pid: int) -> int:
    """Return a process, or the first one below it that runs Python if it does not itself."""
    return next((each for each in (pid, *system.tree(pid)) if elf.is_python(each)), pid)


def _ranks(pids: Iterable[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    inside: set[int] = set()
    for pid in pids:
        rank = _rank(pid)
        if system.parent_of(pid) in inside:
            inside.add(pid)
        elif rank is not None:
            inside.add(pid)
            found.setdefault(rank, python_of(pid))
    return found


def _rank(pid: int) -> int | None:
    mark = b"RANK="
    value = next((v[len(mark) :] for v in _variables(pid) if v.startswith(mark)), b"")
    return int(value) if value.isdigit() and len(value) < 7 and int(value) < _MOST else None


def _variables(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read(_MOST_VARIABLES).split(b"\0")
    except OSError:
        return []  # it has ended, or belongs to another user
