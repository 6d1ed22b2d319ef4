"""Detects imports that read the script's arguments, because the process that imports the modules
also serves later jobs, which have different arguments.
"""

import sys
from collections.abc import Callable
from operator import index
from typing import Any

from relight.preload.env_tracer import importing_module
from relight.preload.speculative_import import UnfitError

_READS = (
    "__add__", "__contains__", "__eq__", "__ge__", "__gt__", "__iter__", "__le__", "__len__",
    "__lt__", "__mul__", "__ne__", "__repr__", "__reversed__", "__rmul__", "copy",
    "count", "index", "pop",
)  # fmt: skip


class Arguments:
    """Replaces `sys.argv` with a list that contains only the script, and records the modules that
    read other elements.

    Args:
        script: the first element, as the interpreter sets it.
    """

    def __init__(self, script: str) -> None:
        self._real = sys.argv
        self._read_by = ""
        sys.argv = _watched(self._note)([script])
        sys.orig_argv[:] = [sys.orig_argv[0]]

    def end(self) -> None:
        """Restore the list."""
        sys.argv = self._real

    def check(self) -> None:
        """Raise UnfitError if a module has read the command line since the last call."""
        module, self._read_by = self._read_by, ""
        if module:
            raise UnfitError(module, f"{module} reads the script's arguments")

    def _note(self) -> None:
        self._read_by = self._read_by or importing_module(sys._getframe(2))


def _watched(note: Callable[[], None]) -> Any:
    class Watched(list):  # type: ignore[type-arg]
        def __getitem__(self, place: Any) -> Any:
            if isinstance(place, slice) or index(place) != 0:
                note()
            return super().__getitem__(place)

    def noting(name: str) -> Callable[..., Any]:
        original = getattr(list, name)

        def read(self: Any, *arguments: Any) -> Any:
            note()
            return original(self, *arguments)

        return read

    for name in _READS:
        setattr(Watched, name, noting(name))
    return Watched
