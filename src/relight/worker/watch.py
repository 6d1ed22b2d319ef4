"""Notices who reads a variable that each worker has for itself, before there are workers."""

import os
import sys
from collections.abc import Callable, Iterator

from relight.typed import Any


def watch_environment(own: set[str]) -> Callable[[], tuple[str, str] | None]:
    """Watch `os.environ` and `os.environb`; return what ends that and tells who was the first to
    read one of these variables, and which.
    """
    readers: list[tuple[str, str]] = []

    def note(name: str) -> None:
        frame = sys._getframe(2)
        while frame.f_back and frame.f_globals.get("__name__") in ("os", "collections.abc"):
            frame = frame.f_back
        readers.append((str(frame.f_globals.get("__name__")), name))

    kind: Any = type(os.environ)

    class Watched(kind):  # type: ignore[misc]
        def __getitem__(self, name: Any) -> Any:
            if isinstance(name, (str, bytes)) and os.fsdecode(name) in own:
                note(os.fsdecode(name))
            return super().__getitem__(name)

        def __iter__(self) -> Iterator[Any]:
            note("all variables")
            return super().__iter__()  # type: ignore[no-any-return]

    for environment in (os.environ, os.environb):
        environment.__class__ = Watched

    def end() -> tuple[str, str] | None:
        for environment in (os.environ, os.environb):
            environment.__class__ = kind
        return readers[0] if readers else None

    return end
