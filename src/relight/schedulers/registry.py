"""Finds schedulers by name. The module of a scheduler is imported on first use."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from relight.base import plugins
from relight.base.errors import UsageError
from relight.base.text import did_you_mean
from relight.schedulers.api import Scheduler

GROUP, OF_TORCHX = "relight.schedulers", "torchx.schedulers"
_CLASSES = {
    "local": "Local",
    "docker": "Docker",
    "slurm": "Slurm",
    "ssh": "Ssh",
    "kubernetes": "Kubernetes",
    "aws_batch": "AwsBatch",
    "ray": "Ray",
}
_NOT_FOR_SUBMISSION = {"run": "Run"}
ALIASES = {"local_cwd": "local", "local_docker": "docker"}
"""TorchX's names for schedulers."""


def find(name: str) -> Scheduler:
    """Look up a scheduler by name.

    Args:
        name: the scheduler's name or alias, or the name of an entry point in the group
            `relight.schedulers`. The entry point refers to a module with a `make` function, or to
            such a function.

    Raises:
        UsageError: if no scheduler has this name, or it can't be loaded.
    """
    own = ALIASES.get(name, name)
    if found := {**_CLASSES, **_NOT_FOR_SUBMISSION}.get(own):
        module = import_module(f"relight.schedulers.{own}.scheduler")
        made: Scheduler = getattr(module, found)()
        return made
    if entry := plugins.find(GROUP).get(name):
        return plugins.loaded(f"the scheduler {name} ({entry.value})", lambda: _make(entry.load()))
    if theirs := plugins.find(OF_TORCHX).get(name):
        raise UsageError(
            f"the scheduler {name} ({theirs.value}) is written for TorchX, which has a different "
            "scheduler interface",
            hint=(
                f"use torchx run -s {name}, or see docs/clusters/your-own.md to port it (entry "
                "point group relight.schedulers)"
            ),
        )
    known = names()
    hint = did_you_mean(name, [*known, *ALIASES], f"known: {', '.join(known)}")
    raise UsageError(f"unknown scheduler: {name}", hint=hint)


def names() -> list[str]:
    """Return the names of all schedulers, without aliases."""
    return list(dict.fromkeys([*_CLASSES, *plugins.find(GROUP)]))


def aliases(name: str) -> list[str]:
    """Return TorchX's names for a scheduler."""
    return [alias for alias in ALIASES if same(alias, name)]


def same(one: str, other: str) -> bool:
    """Return whether two names refer to the same scheduler."""
    return ALIASES.get(one, one) == ALIASES.get(other, other)


def choose() -> str:
    """Return the name of the most suitable scheduler on this machine (`-s auto`)."""
    return max(names(), key=_affinity)


def _affinity(name: str) -> int:
    try:
        return find(name).affinity()
    except Exception:  # the scheduler may come from another package
        return 0


def _make(found: Any) -> Scheduler:
    make: Callable[[], Scheduler] = getattr(found, "make", found)
    return make()
