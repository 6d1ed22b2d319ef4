"""Finds trackers by name: built-in ones, and those of other packages."""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from relight.base.errors import RelightError, UsageError
from relight.base.fields import printable
from relight.base.text import did_you_mean

GROUPS = ("relight.tracker", "torchx.tracker")
"""Entry points of other packages, which are functions of a configuration."""
_MODULES = {"fsspec": "relight.tracker.file_system", "mlflow": "relight.tracker.mlflow_runs"}


def names_and_configs(variables: Mapping[str, str]) -> dict[str, str | None]:
    """Return the trackers that variables name, each with its configuration, as TorchX does."""
    names = variables.get("TORCHX_TRACKERS", "")
    return {
        name: variables.get(f"TORCHX_TRACKER_{name.upper()}_CONFIG")
        for name in filter(None, map(str.strip, names.split(",")))
    }


def configured(variables: Mapping[str, str]) -> list[Any]:
    """Return the trackers that variables name; one that does not load is a warning."""
    found = []
    for name, config in names_and_configs(variables).items():
        try:
            found.append(load(name, config))
        except RelightError as error:  # a run continues without records that can't be written
            warnings.warn(f"relight: {error}", stacklevel=3)
    return found


def load(name: str, config: str | None) -> Any:
    """Return a tracker.

    Args:
        name: `fsspec`, `mlflow`, an entry point, or `module:function`.
        config: passed to its function.

    Raises:
        UsageError: the name is unknown, the import fails, or the configuration is invalid.
    """
    make = _find(name)
    try:
        return make(config)
    except RelightError:
        raise
    except Exception as error:
        why = one_line(error)
        raise UsageError(f"the tracker {name} can't be used with config={config}: {why}") from None


def one_line(error: Exception) -> str:
    """Return an exception of another package in one line that is harmless on a terminal."""
    return printable(" ".join(f"{type(error).__name__}: {error}".split()), lines=False)


def _find(name: str) -> Callable[[str | None], Any]:
    if name in _MODULES:  # before TorchX's, which have the same names and the same layout
        made: Callable[[str | None], Any] = import_module(_MODULES[name]).create
        return made
    from importlib.metadata import entry_points

    known = [*_MODULES]
    for group in GROUPS:
        for entry in entry_points(group=group):
            if entry.name == name:
                return _imported(name, entry.load)
            known.append(entry.name)
    module, colon, function = name.partition(":")
    if colon:
        return _imported(name, lambda: getattr(import_module(module), function))
    raise UsageError(
        f"there is no tracker {name}",
        hint=did_you_mean(name, known, f"known: {', '.join(known)}; or module:function"),
    )


def _imported(name: str, load: Callable[[], Any]) -> Callable[[str | None], Any]:
    try:
        found: Callable[[str | None], Any] = load()
    except Exception as error:  # of another package
        why = one_line(error)
        raise UsageError(f"the tracker {name} does not load: {why}") from None
    return found
