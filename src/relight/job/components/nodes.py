"""`--name EXPERIMENT/RUN` and `-j NODESxWORKERS`, as TorchX reads them."""

import os
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from relight.errors import UsageError
from relight.job.resources import named_resources

DEFAULT_EXPERIMENT = "default-experiment"
_MOST = 100_000
_DIGITS = 1000
"""More than these Python does not read."""


class Name(NamedTuple):
    """What tracks a run, and the name of its app."""

    experiment: str
    run: str


class JobSize(NamedTuple):
    """A `-j`: at least `least` and at most `most` nodes, each with `workers`."""

    least: int
    most: int
    workers: int

    @property
    def text(self) -> str:
        """What --nnodes takes."""
        return str(self.most) if self.least == self.most else f"{self.least}:{self.most}"


def parse_name(
    name: str, script: str | None, m: str | None, script_args: Sequence[str] = ()
) -> Name:
    """Return experiment and run of `EXPERIMENT/RUN`, `EXPERIMENT/`, `/RUN` or `RUN`; what is not
    there comes from the script or module.

    Raises:
        UsageError: there is not exactly one of script and module.
    """
    if not (script or m):
        refuse_script(script_args)
    default = role_name(script, m)
    experiment, slash, run = name.partition("/")
    if not slash:
        experiment, run = "", name
    return Name(experiment or DEFAULT_EXPERIMENT, run or default)


def refuse_script(args: Sequence[str]) -> None:
    """Refuse a script that is given as the first of its own arguments.

    Raises:
        UsageError: it looks like one; the hint says how it is given.
    """
    first, *rest = args or [""]
    if first.endswith(".py"):
        words = shlex.join(["--script", first, *(["--", *rest] if rest else [])])
        raise UsageError(f"{first} comes where arguments of a script are", hint=f"type {words}")


def role_name(script: str | None, m: str | None) -> str:
    """Return the name of the role that runs a script or a module.

    Raises:
        UsageError: there is not exactly one of them.
    """
    if (not script) == (not m):
        both = "both are there" if script else "none is there"
        hint = "--script train.py, or -m my.train"
        raise UsageError(f"exactly one of --script and -m is needed: {both}", hint=hint)
    if m:
        if m.endswith("."):
            raise UsageError(f"-m {m}: expected the name of a module, as in my.train")
        return m.rpartition(".")[2]
    return os.path.splitext(os.path.basename(script or ""))[0]


def parse_nodes(j: str) -> JobSize:
    """Return what `MIN:MAXxWORKERS`, `NODESxWORKERS` or `WORKERS` says.

    Raises:
        UsageError: it is none of these, or such a job can't be.
    """
    nodes, times, workers = j.rpartition("x")
    least, colon, most = nodes.rpartition(":")
    numbers = [*([least] if colon else ()), *([most] if times else ()), workers]
    if not all(map(_is_number, numbers)):
        raise UsageError(f"-j {j!r}: expected NODESxWORKERS", hint="as in -j 2x8, or -j 2:4x8")
    nodes = most or "1"
    return _checked(j, JobSize(int(least or nodes), int(nodes), int(workers)))


def parse_nodes_of(h: str, j: str) -> JobSize:
    """Return what `NODES` or `NODESxWORKERS` says, with as many workers as `h` has GPUs if they are
    not said.

    Raises:
        UsageError: it is neither, or the resource has no GPU.
    """
    gpus = named_resources[h].gpu
    if _is_number(j):
        if gpus < 1:
            raise UsageError(
                f"-j {j}: {h} has no GPU to count workers by", hint=f"say how many: -j {j}x8"
            )
        return _checked(j, JobSize(int(j), int(j), gpus))
    nodes, _, workers = j.partition("x")
    if not _is_number(nodes) or not _is_number(workers):
        raise UsageError(f"-j {j}: expected NODESxWORKERS or NODES", hint="as in -j 2x8")
    return _checked(j, JobSize(int(nodes), int(nodes), int(workers)))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < _DIGITS


def _checked(j: str, nodes: JobSize) -> JobSize:
    if nodes.least > nodes.most:
        raise UsageError(f"-j {j}: at least {nodes.least} nodes are more than at most {nodes.most}")
    if not nodes.least:
        raise UsageError(f"-j {j}: a job has at least one node")
    if max(nodes.most, nodes.workers) > _MOST:
        raise UsageError(f"-j {j}: more than {_MOST} nodes, or workers of a node")
    if not nodes.workers:
        raise UsageError(f"-j {j}: a node has at least one worker")
    return nodes
