"""Finds trackers by name, including those from other packages."""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from relight.base import plugins, trackers
from relight.base.errors import RelightError, UsageError
from relight.base.text import did_you_mean

GROUPS = ("relight.tracker", "torchx.tracker")
"""Entry point groups for trackers from other packages. Each entry point is a function that takes a
configuration.
"""
_MODULES = {"fsspec": "relight.tracker.file_system", "mlflow": "relight.tracker.mlflow_runs"}


def names_and_configs(variables: Mapping[str, str]) -> dict[str, str | None]:
    """Return the name and configuration of each tracker that the environment variables specify. The
    variables are the same as in TorchX.
    """
    names = variables.get(trackers.TRACKERS, "")
    return {
        name: variables.get(trackers.config_variable(name))
        for name in filter(None, map(str.strip, names.split(",")))
    }


def configured(variables: Mapping[str, str]) -> list[Any]:
    """Return the trackers that the environment variables specify. Print a warning for each tracker
    that can't be loaded.
    """
    found = []
    for name, config in names_and_configs(variables).items():
        try:
            found.append(load(name, config))
        except RelightError as error:  # the run continues without this tracker
            warnings.warn(f"relight: {error}", stacklevel=3)
    return found


def load(name: str, config: str | None) -> Any:
    """Load a tracker.

    Args:
        name: `fsspec`, `mlflow`, an entry point, or `module:function`.
        config: the configuration, passed to the tracker's function.

    Raises:
        UsageError: if the name is unknown, the import fails, or the configuration is invalid.
    """
    make = _find(name)
    try:
        return make(config)
    except RelightError:
        raise
    except Exception as error:
        why = plugins.one_line(error)
        raise UsageError(f"tracker {name} does not accept config={config}: {why}") from None


def _find(name: str) -> Callable[[str | None], Any]:
    if name in _MODULES:  # preferred to TorchX's trackers, which have the same names
        made: Callable[[str | None], Any] = import_module(_MODULES[name]).create
        return made
    from importlib.metadata import EntryPoint  # the import takes 14 ms

    others = plugins.find(*GROUPS)
    entry = others.get(name) or (EntryPoint(name, name, "") if ":" in name else None)
    if entry is None:
        known = [*_MODULES, *others]
        hint = did_you_mean(name, known, f"known: {', '.join(known)}; or module:function")
        raise UsageError(f"unknown tracker: {name}", hint=hint)
    found: Callable[[str | None], Any] = plugins.loaded(f"the tracker {name}", entry.load)
    return found
