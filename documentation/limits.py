"""Writes docs/limits.md, which lists relight's limits and what happens when they are reached.

    python -m documentation.limits

`documentation/limits.toml` names the constant that defines each limit, which stays where it is
used, and a test that reaches the limit.
"""

import ast
import importlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from documentation.blocks import ROOT
from relight.base.text import format_size

PAGE = ROOT / "docs" / "limits.md"
SOURCE = ROOT / "src" / "relight"
_HEAD = """\
<!-- written by python -m documentation.limits -->

# Limits

The limits of queues, sizes, retries and waits: no peer, worker or disk can hold a job up or exhaust
its memory. Limits that a flag sets, such as `--shutdown-timeout`, are in [From
torchrun](from-torchrun.md). The values are read from the code;
`documentation/limits.toml` names a test for each.

"""


class Limit(NamedTuple):
    """A limit: its group, its constant as `module:NAME` below src/relight, the limited quantity,
    the effect of reaching the limit, a test that reaches it (`FILE::NAME`), and its unit (seconds
    for names that end in _S).
    """

    group: str
    constant: str
    limits: str
    then: str
    test: str
    unit: str = "s"

    @property
    def place(self) -> tuple[str, str]:
        """The constant's file, relative to the package, and the constant's name."""
        file, _, name = self.constant.partition(":")
        return file, name

    @property
    def value(self) -> float:
        """The value of the constant in the code."""
        file, name = self.place
        module = importlib.import_module(f"relight.{file.removesuffix('.py').replace('/', '.')}")
        return float(getattr(module, name))

    @property
    def shown(self) -> str:
        """The value, formatted with its unit."""
        if self.unit == "bytes":
            return format_size(self.value)
        return f"{self.value:,.15g} {self.unit}".rstrip()


LIMITS = tuple(
    Limit(group, **row)
    for group, rows in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
    for row in rows
)


def bounds_of(folder: str) -> Iterator[str]:
    """Yield a folder's constants that are named as a maximum, formatted as in `Limit.constant`."""
    for path in sorted((SOURCE / folder).glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name.lstrip("_").startswith("MAX_"):
                    yield f"{folder}/{path.name}:{name}"


def page() -> str:
    """Return the content of the page."""
    lines, group = [_HEAD.rstrip("\n")], ""
    for limit in LIMITS:
        if limit.group != group:
            group = limit.group
            lines += ["", f"## {group}", "", "| what | limit | at the limit |", "|---|---|---|"]
        lines.append(f"| {limit.limits} | {limit.shown} | {limit.then} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
