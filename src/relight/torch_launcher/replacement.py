"""Replaces torch's launcher in this process: `python -m relight.torch_launcher PROGRAM …`."""

import importlib
import os
import runpy
import shutil
import sys
from collections.abc import Sequence
from types import ModuleType

from relight.base.errors import UsageError
from relight.torch_launcher.launcher import elastic_launch, launch_agent

_CALLED_FROM = (
    "torch.distributed.launcher.api", "torch.distributed.launcher", "torch.distributed.run",
)  # fmt: skip
"""The torch modules from which programs import `elastic_launch`."""


def replace_torchs() -> None:
    """Replace `elastic_launch` and `launch_agent` in this process's torch modules.

    This function imports the modules, so it is intended for programs that would import them anyway.

    Raises:
        UsageError: if torch is not installed.
    """
    for name in _CALLED_FROM:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise UsageError(f"can't import {name}: {error}") from None
        replace_in(module)


def replace_in(module: ModuleType) -> None:
    """Replace `elastic_launch` and `launch_agent` in a torch module that defines them."""
    for own in (elastic_launch, launch_agent):
        if hasattr(module, own.__name__):
            setattr(module, own.__name__, own)


def main(argv: Sequence[str]) -> None:
    """Run a program with this launcher instead of torch's.

    Args:
        argv: a script, the name of a Python program on PATH, or `-m` and a module, followed by the
            program's arguments.

    Raises:
        UsageError: if the first argument is not something that can be run.
    """
    is_module, words = argv[:1] == ["-m"], list(argv[argv[:1] == ["-m"] :])
    if not words:
        raise UsageError(
            "no program given",
            hint="python -m relight.torch_launcher accelerate launch train.py",
        )
    program = words[0]
    path = program if os.path.isfile(program) else shutil.which(program)
    if not (is_module or path):
        raise UsageError(f"no such script or program: {program}", hint="use -m for a module")
    replace_torchs()
    if is_module:
        sys.argv = words
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [str(path), *words[1:]]
        sys.path[0] = os.path.dirname(os.path.abspath(str(path)))
        runpy.run_path(str(path), run_name="__main__")
