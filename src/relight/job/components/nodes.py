"""`--name EXPERIMENT/RUN` and `-j NODESxWORKERS`, parsed as in TorchX."""

import os
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from relight.base.errors import UsageError
from relight.base.values import Nodes, parse_nodes, parse_nproc
from relight.job.resources import named_resources

DEFAULT_EXPERIMENT = "default-experiment"
_MAX = 100_000


class Name(NamedTuple):
    """The experiment that tracks a run, and the name of its app."""

    experiment: str
    run: str


class JobSize(NamedTuple):
    """A `-j` value: the number of nodes, and of workers per node."""

    nodes: Nodes
    workers: int

    def __str__(self) -> str:
        return f"{self.nodes}x{self.workers}"


def parse_name(
    name: str, script: str | None, m: str | None, script_args: Sequence[str] = ()
) -> Name:
    """Parse `EXPERIMENT/RUN`, `EXPERIMENT/`, `/RUN` or `RUN`; missing parts are derived from the
    script or module.

    Raises:
        UsageError: unless exactly one of script and module is given.
    """
    if not (script or m):
        refuse_script(script_args)
    default = role_name(script, m)
    experiment, slash, run = name.partition("/")
    if not slash:
        experiment, run = "", name
    return Name(experiment or DEFAULT_EXPERIMENT, run or default)


def refuse_script(args: Sequence[str]) -> None:
    """Reject a script that was passed as the first script argument.

    Raises:
        UsageError: if the argument looks like a script; the hint shows the right form.
    """
    first, *rest = args or [""]
    if first.endswith(".py"):
        words = shlex.join(["--script", first, *(["--", *rest] if rest else [])])
        raise UsageError(
            f"{first} would be passed to the script as an argument", hint=f"type {words}"
        )


def role_name(script: str | None, m: str | None) -> str:
    """Return the name of the role that runs a script or a module.

    Raises:
        UsageError: unless exactly one is given.
    """
    if (not script) == (not m):
        given = "got both" if script else "got neither"
        hint = "--script train.py, or -m my.train"
        raise UsageError(f"exactly one of --script and -m is required, {given}", hint=hint)
    if m:
        if m.endswith("."):
            raise UsageError(f"-m {m}: expected a module name, such as my.train")
        return m.rpartition(".")[2]
    stem = os.path.splitext(os.path.basename(script or ""))[0]
    return "-".join(stem.split())  # the name is part of directories and log prefixes


def parse_size(j: str) -> JobSize:
    """Parse `MIN:MAXxWORKERS`, `NODESxWORKERS` or `WORKERS`.

    Raises:
        UsageError: if the form is wrong or the size is impossible.
    """
    match = re.fullmatch("(?:([0-9]{1,18}(?::[0-9]{1,18})?)x)?([0-9]{1,18})", j)
    if match is None:
        raise UsageError(
            f"-j {j!r}: expected NODESxWORKERS", hint="for example -j 2x8, or -j 2:4x8"
        )
    return _size(j, match[1] or "1", match[2])


def parse_job_size(h: str, j: str) -> JobSize:
    """Parse `NODES` or `NODESxWORKERS`; WORKERS defaults to the number of GPUs in the resource `h`.

    Raises:
        UsageError: if the form is wrong, the size is impossible, or the resource has no GPUs.
    """
    gpus = named_resources[h].gpu
    match = re.fullmatch("([0-9]{1,18})(?:x([0-9]{1,18}))?", j)
    if match is None:
        raise UsageError(f"-j {j}: expected NODESxWORKERS or NODES", hint="for example -j 2x8")
    if not match[2] and gpus < 1:
        raise UsageError(
            f"-j {j}: {h} has no GPUs, so the number of workers is unknown",
            hint=f"give the number of workers: -j {j}x8",
        )
    return _size(j, match[1], match[2] or str(gpus))


def _size(j: str, nodes: str, workers: str) -> JobSize:
    try:
        size = JobSize(parse_nodes(nodes), int(parse_nproc(workers)))
    except ValueError as error:
        raise UsageError(f"-j {j}: {error}") from None
    if max(size.nodes.max_nodes, size.workers) > _MAX:
        raise UsageError(f"-j {j}: more than {_MAX} nodes or workers per node")
    return size
