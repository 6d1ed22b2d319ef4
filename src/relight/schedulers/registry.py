"""Finds schedulers by name. A scheduler's module is imported on first use."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from relight.base.errors import UsageError
from relight.base.text import did_you_mean
from relight.schedulers.api import Scheduler

GROUP, OF_TORCHX = "relight.schedulers", "torchx.schedulers"
_MODULES = {
    "local": "relight.schedulers.local.scheduler",
    "docker": "relight.schedulers.docker.scheduler",
    "slurm": "relight.schedulers.slurm.scheduler",
    "ssh": "relight.schedulers.ssh.scheduler",
    "kubernetes": "relight.schedulers.kubernetes.scheduler",
    "aws_batch": "relight.schedulers.aws_batch.scheduler",
    "ray": "relight.schedulers.ray.scheduler",
}
_NOT_FOR_SUBMISSION = {"run": "relight.schedulers.run.scheduler"}
ALIASES = {"local_cwd": "local", "local_docker": "docker"}
"""TorchX's names."""


def find(name: str) -> Scheduler:
    """Return a scheduler.

    Args:
        name: its name or alias, or that of an entry point of the group `relight.schedulers`, which
            is a module with a function `make`, or such a function.

    Raises:
        UsageError: no scheduler has this name, or it does not load.
    """
    module = _MODULES.get(ALIASES.get(name, name)) or _NOT_FOR_SUBMISSION.get(name)
    if module is not None:
        return _make(import_module(module))
    for entry in _entries():
        if entry.name == name:
            try:
                return _make(entry.load())
            except Exception as error:
                why = " ".join(f"{type(error).__name__}: {error}".split())
                raise UsageError(
                    f"the scheduler {name} ({entry.value}) does not load: {why}"
                ) from None
    theirs = {entry.name: entry for entry in _entries(OF_TORCHX)}
    if name in theirs:
        raise UsageError(
            f"the scheduler {name} ({theirs[name].value}) is written for TorchX, whose schedulers "
            "have other verbs than relight's",
            hint=f"torchx run -s {name} sends jobs to it; docs/clusters/your-own.md says how "
            "a scheduler of relight is made (entry point group relight.schedulers)",
        )
    known = names()
    hint = did_you_mean(name, [*known, *ALIASES], f"known: {', '.join(known)}")
    raise UsageError(f"there is no scheduler {name}", hint=hint)


def names() -> list[str]:
    """Return the names of all schedulers, without aliases."""
    return list(dict.fromkeys([*_MODULES, *(entry.name for entry in _entries())]))


def same(one: str, other: str) -> bool:
    """Return whether two names mean the same scheduler."""
    return ALIASES.get(one, one) == ALIASES.get(other, other)


def choose() -> str:
    """Return the name of the scheduler that suits this machine best (`-s auto`)."""
    return max(names(), key=_affinity)


def _affinity(name: str) -> int:
    try:
        return find(name).affinity()
    except Exception:  # of another package, perhaps
        return 0


def _make(found: Any) -> Scheduler:
    make: Callable[[], Scheduler] = getattr(found, "make", found)
    return make()


def _entries(group: str = GROUP) -> list[Any]:
    from importlib.metadata import entry_points  # 14 ms

    return list(entry_points(group=group))
