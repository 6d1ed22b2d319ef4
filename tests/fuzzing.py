"""Values of a type, and near misses, generated from type annotations. The types are those that the
code reads with `base/fields`. They are found in its source, so a new one is fuzzed without being
listed here.

All randomness comes from one seed chosen by hypothesis: building each value with its strategies
would take a hundred times as long. `FUZZ_EXAMPLES=60000 pytest …` tries more examples than the few
that the test suite has time for.
"""

import ast
import importlib
import json
import os
import random
import re
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import relight
from relight.base import fields

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "300"))

_EDGES = [-1, 0, 1, 2, 15, 127, 128, 255, 256, 65535, 65536, 1 << 20, 1 << 40, 1 << 62]
_TEXTS = ["", "a", "b", "ValueError: x", "Connection reset by peer", "a\nb\n", "é" * 4096]
_NAMES = ["", "a", "b", "node-12", "fd77::1", "é" * 255]
ODD = ["\x1b[2J\x1b[31m", "\t", "\r", "\x9b31m", "\u202e", "\ud800", "\0", "../x", "x" * 256,
        "x" * 4097, "Infinity", "1e999"]  # fmt: skip
_NO_NUMBERS = [-2, (1 << 62) + 1, -(1 << 62), 10**400, 1e300, float("inf"), float("-inf"), 5e-324]


def kinds_of(union: Any) -> tuple[Any, ...]:
    """Return the types in a union, or the type itself."""
    return union.__args__ if isinstance(union, UnionType) else (union,)


@cache
def entering() -> tuple[Any, ...]:
    """Return all types that the code reads with `fields.record` and `fields.message`."""
    root = Path(relight.__file__).parent
    found: dict[Any, None] = {}
    for path in sorted(root.rglob("*.py")):
        name = ".".join(("relight", *path.relative_to(root).with_suffix("").parts))
        for words in read_in(path.read_text(), name):
            found.update(dict.fromkeys(kinds_of(getattr(importlib.import_module(name), words))))
    return tuple(found)


def read_in(text: str, name: str) -> list[str]:
    """Return the types that a module reads and names literally in its source."""
    found = list[str]()
    if not re.search(r"\bfields(?:\.record|\.message| import)\b", text):
        return found  # parsing takes much longer

    def look(node: ast.AST, inside: str) -> None:
        match node:
            case ast.ClassDef():
                inside = node.name
            case ast.ImportFrom(module=fields.__name__, names=names):
                taken = {each.name for each in names} & {"record", "message"}
                assert not taken, f"{name} must write fields.{taken.pop()}, or it is not found"
            case ast.Call(func=ast.Attribute(ast.Name("fields"), "record" | "message")):
                words = ast.unparse(node.args[0])
                found.append(inside if words == "cls" else words)
        for child in ast.iter_child_nodes(node):
            look(child, inside)

    look(ast.parse(text), "")
    assert len(found) == len(re.findall(r"\bfields\.(?:record|message)\b", text)), name
    return found


class Chance(random.Random):
    """Random values."""

    def valid(self, annotation: Any, field: str = "") -> Any:
        """Return a value that a field can hold, and therefore also a record or a message."""
        if isinstance(annotation, UnionType):
            return self.valid(self.choice(annotation.__args__), field)
        if annotation is NoneType:
            return None
        if annotation is bool:
            return self.random() < 0.5
        if annotation in (int, float):
            least, most = fields._BOUNDS.get(
                field, fields._INT if annotation is int else (-9e9, 9e9)
            )
            if self.random() < 0.5:
                return annotation(max(least, min(most, self.choice(_EDGES))))
            return (self.randint if annotation is int else self.uniform)(least, most)
        if annotation is str and field in fields._EXACT:
            some = self.randbytes(self.randrange(12))  # as the system returns it, not always UTF-8
            return self.choice(ODD) if self.random() < 0.3 else os.fsdecode(some)
        if annotation is str:
            known = _NAMES if field in fields._NAMES else _TEXTS
            return self.choice(known) if self.random() < 0.8 else self.letters(str.isprintable)
        if hasattr(annotation, "_fields"):
            inner = annotation.__annotations__.items()
            return annotation(*(self.valid(kind, name) for name, kind in inner))
        if isinstance(annotation, type) and issubclass(annotation, Enum):
            return self.choice(list(annotation))
        count = self.randrange(4)
        if annotation.__origin__ is tuple:
            return tuple(self.valid(annotation.__args__[0], field) for _ in range(count))
        key, value = annotation.__args__
        return {self.valid(key, field): self.valid(value, field) for _ in range(count)}

    def letters(self, fit: Any = lambda letter: True) -> str:
        """Return random text."""
        letters = (chr(int(self.random() ** 3 * 0x11000)) for _ in range(self.randrange(12)))
        return "".join(filter(fit, letters))

    def junk(self, depth: int = 3) -> Any:
        """Return any JSON value, and some values beyond JSON."""
        match self.randrange(8 if depth else 6):
            case 0:
                return self.choice([None, True, False])
            case 1:
                return self.choice(_EDGES)
            case 2:
                return self.choice(_NO_NUMBERS)
            case 3:
                return self.choice([0.0, -1.5, self.uniform(-1e15, 1e15)])
            case 4:
                return self.choice(ODD)
            case 5:
                return self.letters()
            case 6:
                return [self.junk(depth - 1) for _ in range(self.randrange(4))]
            case _:
                return {self.letters(): self.junk(depth - 1) for _ in range(self.randrange(4))}

    def near(self, value: Any) -> Any:
        """Return a JSON object in which up to three places were replaced or removed."""
        for _ in range(self.randrange(4)):
            inside: Any = None
            here = value
            while isinstance(here, dict | list) and here:
                inside = here
                step = self.choice(list(here) if isinstance(here, dict) else range(len(here)))
                here = here[step]
                if self.random() < 0.3:
                    break
            if inside is None:
                return self.junk()
            if self.random() < 0.8:
                inside[step] = self.junk()
            else:
                del inside[step]
        return value

    def written(self, value: Any) -> bytes:
        """Return JSON in which infinity is written so that the parser accepts it."""
        return json.dumps(value).replace("Infinity", "1e999").encode()


def fuzzed(test: Any, *, most: int = EXAMPLES) -> Any:
    """Run a test many times, with a new `chance` each time."""
    many = settings(max_examples=most, phases=(Phase.explicit, Phase.generate))
    return many(given(chance=st.integers(0, 1 << 64).map(Chance))(test))
