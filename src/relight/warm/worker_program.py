"""The program of this node's workers, and the variables that load relight's hook into them.

This module imports next to nothing, because each job with `--max-restarts` needs it before its
workers start.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

from relight.base.values import KeepWarm

_FILES = (
    "worker/hook/sitecustomize.py",
    "preload/warm_fork.py",
    "preload/importer.py",
    "processes/spawner.py",
    "processes/generation_pipe.py",
)


class WorkerProgram(NamedTuple):
    """The program, arguments and variables that all workers on this node share.

    `own` contains the names of variables that differ between workers, and `program` is a path.
    `keep` is how long the process with the modules outlives the job, or None if it doesn't.
    `in_background` means that the imports are for restarts only. No worker waits for them, and they
    only use resources that would otherwise be idle.
    """

    program: str
    argv: tuple[str, ...]
    variables: Mapping[str, str]
    own: tuple[str, ...]
    local_world_size: int
    keep: KeepWarm | None = None
    in_background: bool = False


def hook(task: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make an interpreter run `hook/sitecustomize.py` at startup."""
    folder = os.path.join(os.path.dirname(os.path.dirname(__file__)), "worker", "hook")
    before = variables.get("PYTHONPATH")
    hook = {"RELIGHT_HOOK": task}
    if before is None:
        return {**hook, "PYTHONPATH": folder}
    both = folder + os.pathsep + before if before else folder
    return {**hook, "PYTHONPATH": both, "RELIGHT_PYTHONPATH": before}


def variable(line: bytes) -> tuple[str, str | None]:
    """Return the name of a variable that a script set, and its value (None if it was removed)."""
    name, equals, value = line.decode("unicode_escape").partition("=")
    return name, value if equals else None


def files() -> tuple[tuple[int, int], ...]:
    """Identify a preloading process's startup files, to detect whether they still belong to this
    agent's version.
    """
    package, found = os.path.dirname(os.path.dirname(__file__)), []
    for path in _FILES:
        try:
            status = os.stat(os.path.join(package, path))
        except OSError:
            continue
        found.append((status.st_ino, status.st_mtime_ns))
    return tuple(found)
