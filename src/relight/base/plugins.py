"""Plug-ins: entry points of other packages
(https://packaging.python.org/en/latest/specifications/entry-points/).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from relight.base.errors import UsageError
from relight.base.fields import printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


def find(*groups: str) -> "dict[str, EntryPoint]":
    """Return the entry points of groups by name; the first of a name counts."""
    from importlib.metadata import entry_points  # 14 ms

    found: dict[str, EntryPoint] = {}
    for group in groups:
        for entry in entry_points(group=group):
            found.setdefault(entry.name, entry)
    return found


def loaded(what: str, load: Callable[[], T]) -> T:
    """Return what `load` returns.

    Raises:
        UsageError: if it raised an exception: `what` does not load.
    """
    try:
        return load()
    except Exception as error:  # of another package
        raise UsageError(f"can't load {what}: {one_line(error)}") from None


def one_line(error: BaseException) -> str:
    """Return an exception of another package in one line that is harmless on a terminal."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    name = type(error).__name__
    return printable(" ".join(f"{name}: {text}".split()) if text else name, lines=False)
