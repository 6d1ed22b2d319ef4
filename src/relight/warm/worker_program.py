"""Describes the program that workers on this node run, and the environment variables that load
relight's hook into them.

This module imports as little as possible, because each job with `--max-restarts` needs it before
the workers start.
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
    """The program, arguments and environment variables that are the same for all workers on this
    node.

    `own` contains the names of variables that differ between workers, and `program` is a path.
    The `keep` field is how long the process with the modules outlives the job, or None if it
    doesn't. The `in_background` field indicates that the modules are imported only for restarts. In
    that case, no worker waits for the imports, and the imports only use resources that would
    otherwise be idle.
    """

    program: str
    argv: tuple[str, ...]
    variables: Mapping[str, str]
    own: tuple[str, ...]
    local_world_size: int
    keep: KeepWarm | None = None
    in_background: bool = False


def hook(task: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that make an interpreter run `hook/sitecustomize.py` at
    startup.
    """
    folder = os.path.join(os.path.dirname(os.path.dirname(__file__)), "worker", "hook")
    before = variables.get("PYTHONPATH")
    hook = {"RELIGHT_HOOK": task}
    if before is None:
        return {**hook, "PYTHONPATH": folder}
    both = folder + os.pathsep + before if before else folder
    return {**hook, "PYTHONPATH": both, "RELIGHT_PYTHONPATH": before}


def variable(line: bytes) -> tuple[str, str | None]:
    """Parse the name and the value of a variable that a script has set, or removed (None)."""
    name, equals, value = line.decode("unicode_escape").partition("=")
    return name, value if equals else None


def files() -> tuple[tuple[int, int], ...]:
    """Identify the files that a preloading process loads at startup, so that the agent can detect
    whether they still belong to its own version.
    """
    package, found = os.path.dirname(os.path.dirname(__file__)), []
    for path in _FILES:
        try:
            status = os.stat(os.path.join(package, path))
        except OSError:
            continue
        found.append((status.st_ino, status.st_mtime_ns))
    return tuple(found)
