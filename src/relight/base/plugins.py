"""Loads plug-ins, which are entry points in other packages
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
    """Return the entry points in these groups, keyed by name. If a name occurs several times, the
    first one is used.
    """
    from importlib.metadata import entry_points  # takes 14 ms

    found: dict[str, EntryPoint] = {}
    for group in groups:
        for entry in entry_points(group=group):
            found.setdefault(entry.name, entry)
    return found


def loaded(what: str, load: Callable[[], T]) -> T:
    """Return the result of `load`.

    Raises:
        UsageError: if `load` raised an exception. The error message says that `what` does not load.
    """
    try:
        return load()
    except Exception as error:  # code from another package may raise anything
        raise UsageError(f"can't load {what}: {one_line(error)}") from None


def one_line(error: BaseException) -> str:
    """Format another package's exception as one line that is safe to print on a terminal."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    name = type(error).__name__
    return printable(" ".join(f"{name}: {text}".split()) if text else name, lines=False)
