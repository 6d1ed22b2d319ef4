"""Detects which environment variables imports depend on before any worker exists.

Each variable that differs between workers (`RANK`, …) has a unique marker value while modules are
imported. A module that reads such a variable by name depends on it. A module that iterates over all
variables, for example to find those with a certain prefix, depends on a variable only if its marker
is found in objects that remain after the import.
"""

import gc
import os
import random
import re
import sys
from collections.abc import Collection, ItemsView, Iterator, ValuesView
from itertools import chain, compress, filterfalse, repeat
from operator import is_
from types import CodeType
from typing import Any

from relight.preload.speculative_import import UnfitError

_TRANSPARENT_MODULES = ("os", "collections.abc", "_collections_abc")
_NAME = re.compile("[A-Z][A-Z0-9]*_[A-Z0-9_]*")
_VIEWS = (ItemsView.__iter__.__code__, ValuesView.__iter__.__code__)
"""Code that reads values in a loop over `items()` or `values()`. The loop can't be identified by
its `f_lasti`, because CPython 3.12 moves it by two bytes when it specializes the loop.
"""
_CALLERS = 4
_DIGITS = 18


class Watch:
    """Watches `os.environ` and `os.environb` from the time when this object is created.

    Args:
        own: the variables that differ between workers.

    Attributes:
        reads: the variables that were read by name, grouped by the modules that read them.
        prefixes: name prefixes, grouped by the modules that iterated over all variables.
    """

    def __init__(self, own: Collection[str]) -> None:
        self.reads: dict[str, set[str]] = {}
        self.prefixes: dict[str, set[str]] = {}
        # The search must not find the values in this object itself, so they are stored as negative
        # numbers.
        draw = random.Random(os.urandom(16)).randrange  # noqa: S311
        self._marks = {name: -draw(10 ** (_DIGITS - 1), 10**_DIGITS) for name in own}
        self._first = ("", "")
        self._iterated_by = ""
        self._iteration: tuple[Any, int] = (None, 0)
        self._yielded = ""
        self._seen: set[Any] = set()
        self._kind: Any = type(os.environ)
        watched = _watched(self._kind, self)
        for environment in (os.environ, os.environb):
            environment.__class__ = watched
        self._had = self._set_marks()

    def end(self) -> None:
        """Restore the environment."""
        self._remove_marks()
        for environment in (os.environ, os.environb):
            environment.__class__ = self._kind
        self._iteration = (None, 0)
        self._seen.clear()

    def begin(self) -> None:
        """Begin a new check."""
        self._first, self._iterated_by = ("", ""), ""

    def check(self) -> None:
        """Raise UnfitError if a module depends on a variable that differs between workers. Only
        imports since the last `begin` count.
        """
        if self._first[0]:
            module, name = self._first
            raise UnfitError(module, f"{module} reads {name} when it is imported")
        if self._iterated_by:
            self._iteration = (None, 0)  # a frame that has ended holds the last value that it read
            self._remove_marks()
            found = _search(self._marks)
            if found and gc.collect():
                found = _search(self._marks)
            self._set_marks()
            if found:
                by = self._iterated_by
                raise UnfitError(by, f"{by} reads all variables and keeps {found}")

    def _set_marks(self) -> dict[Any, Any]:
        # The C library's copy of the environment is not changed, so programs that an import runs
        # get the real values.
        data: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
        had = {name: data.get(os.fsencode(name)) for name in self._marks}
        data.update((os.fsencode(name), b"%d" % -mark) for name, mark in self._marks.items())
        return had

    def _remove_marks(self) -> None:
        data: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
        for name, value in self._had.items():
            key = os.fsencode(name)
            mark = b"%d" % -self._marks[name]
            if data.get(key) == mark:
                del data[key]
                if value is not None:
                    data[key] = value

    def _note_read(self, name: str) -> None:
        """Record that a variable was read."""
        frame = _caller()
        iterated, at = self._iteration
        if name in self._marks:
            if frame is iterated and (frame.f_lasti == at or name == self._yielded):
                self._iterated_by = self._iterated_by or importing_module(
                    frame
                )  # part of iterating over all
                return
            if not self._first[0]:
                self._first = importing_module(frame), name
        elif frame is iterated and (frame.f_lasti == at or sys._getframe(2).f_code in _VIEWS):
            return
        self.reads.setdefault(importing_module(frame), set()).add(name)

    def _note_search(self, name: str) -> None:
        """Record that a module has checked whether a variable exists. Variables that differ between
        workers are ignored, because they exist in every worker.
        """
        if name not in self._marks:
            self.reads.setdefault(importing_module(_caller()), set()).add(name)

    def _note_iteration(self, names: Iterator[Any]) -> Iterator[Any]:
        """Record that a module has iterated over all variables."""
        frame = _caller()
        module = importing_module(frame)
        self._iteration = frame, frame.f_lasti
        if frame.f_code not in self._seen:
            self._seen.add(frame.f_code)
            prefixes = self.prefixes.setdefault(module, {module.partition(".")[0].upper() + "_"})
            for _ in range(_CALLERS):
                prefixes.update(_names_in(frame))
                if frame.f_back is None:
                    break
                frame = frame.f_back
        for name in names:
            self._yielded = os.fsdecode(name)
            yield name


def _watched(kind: Any, watch: Watch) -> Any:
    class Watched(kind):  # type: ignore[misc]
        def __getitem__(self, name: Any) -> Any:
            if isinstance(name, (str, bytes)):
                watch._note_read(os.fsdecode(name))
            return super().__getitem__(name)

        def __contains__(self, name: Any) -> bool:
            # Whether a variable exists may differ between jobs, or depend on whether the script has
            # set it.
            if isinstance(name, (str, bytes)):
                watch._note_search(os.fsdecode(name))
            try:
                return self.encodekey(name) in self._data
            except TypeError:
                return bool(super().__contains__(name))

        def __iter__(self) -> Iterator[Any]:
            return watch._note_iteration(super().__iter__())

    return Watched


def _caller() -> Any:
    """Return the stack frame that is using the environment."""
    frame: Any = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__") in (*_TRANSPARENT_MODULES, __name__):
        frame = frame.f_back
    return frame


def importing_module(frame: Any) -> str:
    """Return the module for which a stack frame is running. If the frame belongs to the standard
    library, return the module that called it.
    """
    first = ""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        top = name.partition(".")[0]
        if top == "relight":
            break
        first = first or name
        if top not in sys.stdlib_module_names and top != "_frozen_importlib_external":
            return name
        frame = frame.f_back
    return first


def _names_in(frame: Any) -> set[str]:
    """Return a stack frame's constants and local values that look like parts of a variable name."""
    values: list[Any] = list(frame.f_code.co_consts)
    if frame.f_code.co_name != "<module>":
        values += frame.f_locals.values()
    values += [item for value in values if isinstance(value, (tuple, frozenset)) for item in value]
    return {value for value in values if isinstance(value, str) and _NAME.fullmatch(value)}


def _search(marks: dict[str, int]) -> str:
    """Return the variable whose marker value occurs in objects left behind by modules, or an empty
    string.

    Markers inside objects that the garbage collector can't traverse are not found.
    """
    found: list[Any] = gc.get_objects()
    kinds: dict[type, set[Any]] = {str: set(), bytes: set(), int: set()}
    seen: set[int] = set()
    while found:
        held = gc.get_referents(*found)
        types = list(map(type, held))

        def of(kind: type, held: list[Any] = held, types: list[type] = types) -> Iterator[Any]:
            return compress(held, map(is_, types, repeat(kind)))

        for kind, values in kinds.items():
            values.update(of(kind))
        # Objects that the collector tracks are already included, and most of the others are empty.
        inner = chain(filterfalse(gc.is_tracked, of(dict)), filterfalse(gc.is_tracked, of(tuple)))
        new = {id(thing): thing for thing in filter(None, inner)}
        new.update((id(code), code.co_consts) for code in of(CodeType))
        found = [new[key] for key in new.keys() - seen]
        seen.update(new)
    text, data = "\0".join(kinds[str]), b"\0".join(kinds[bytes])
    for name, mark in marks.items():
        digits = str(-mark)
        if -mark in kinds[int] or digits in text or digits.encode() in data:
            return name
    return ""
