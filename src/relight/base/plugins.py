"""Loads plug-ins, which are entry points in other packages
(https://packaging.python.org/en/latest/specifications/entry-points/).
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from relight.base.errors import UsageError
from relight.base.fields import printable
from relight.base.text import closest_match

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


def check(flag: str, name: str, known: Sequence[str], group: str, hint: str = "") -> None:
    """Reject the value of a flag that is neither a known name nor a plug-in in a group.

    Raises:
        UsageError: as described.
    """
    known = (*known, *sorted(find(group)))
    if name not in known:
        meant = closest_match(name.lower(), known)
        raise UsageError(
            f"{flag}={name} is not one of {', '.join(known)}"
            + (f"; did you mean {meant}?" if meant else ""),
            hint=hint
            or f"plug-ins are entry points of group {group}, installed in relight's Python "
            "environment",
        )


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
