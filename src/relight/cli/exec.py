"""`relight exec`: runs a program in an environment where relight replaces torchrun.

The command prepends one directory to PATH and another to PYTHONPATH, and then executes the program
in the same process. Nothing is installed.
"""

import errno
import os
import shutil
import sys
from collections.abc import Mapping
from typing import NoReturn

from relight.agent import not_found
from relight.base import env as environment
from relight.base import package
from relight.base.env import Environment
from relight.base.errors import EXIT_OK, MachineError, UsageError
from relight.cli.jobs.common import Page
from relight.flags.arguments import parse
from relight.stacks import exit_evidence

SHIM = os.path.join(package.DIRECTORY, "torch_launcher", "shim")
PAGE = Page(
    "exec [--] COMMAND …",
    (
        "Runs COMMAND so that it and its child processes start relight instead of torchrun,",
        "python -m torch.distributed.run, python -m torch.distributed.launch and",
        "torch.distributed.launcher. Nothing is installed. For a permanent replacement, use",
        "relight shim install.",
    ),
    (),
    (
        "relight exec accelerate launch --multi_gpu train.py",
        "relight exec ./run_train.sh --steps 100",
        "relight exec sbatch job.sh",
    ),
    "exit code: COMMAND's",
)


def main(argv: list[str]) -> int:
    """Run `relight exec`. This function returns only if the command printed its help.

    Raises:
        UsageError: if the program is missing or can't be found.
        MachineError: if the system refuses to run it.
    """
    first, words = argv[:1], argv[argv[:1] == ["--"] :]
    if first != ["--"] and parse(first, Environment({}), PAGE.flags).values["help"]:
        print(PAGE.text())
        return EXIT_OK
    if not words:
        raise UsageError("relight exec needs a command", hint=f"relight {PAGE.usage}")
    variables = with_shim(environment.read().variables)
    program = shutil.which(words[0], path=variables["PATH"])
    if program is None:
        raise not_found.no_program(words[0], variables["PATH"])
    try:
        _execute(program, words, variables)
    except OSError as error:
        reason, env = "", Environment(variables)
        if error.errno == errno.ENOEXEC:
            reason = exit_evidence.unknown_format(program, env)
        elif error.errno == errno.ENOENT:
            reason = exit_evidence.missing_interpreter(program, env)
        raise MachineError(f"can't run {program}: {reason or error.strerror}") from None


def _execute(program: str, words: list[str], variables: dict[str, str]) -> NoReturn:
    """Replace this process with a program. Like execvp(3), run a script without a `#!` line with
    the shell.
    """
    try:
        os.execve(program, words, variables)
    except OSError as error:
        is_binary = exit_evidence.is_binary(program, Environment(variables))
        if error.errno != errno.ENOEXEC or is_binary:
            raise
    os.execve("/bin/sh", ["sh", program, *words[1:]], variables)


def with_shim(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which relight replaces torchrun."""
    found = {**variables, "RELIGHT_PYTHON": sys.executable}
    for name, folder in (("PATH", "bin"), ("PYTHONPATH", "site")):
        own = os.path.join(SHIM, folder)
        before = found.get(name) or (os.defpath if name == "PATH" else "")
        places = [own, *(place for place in before.split(os.pathsep) if place != own)]
        found[name] = os.pathsep.join(places if before else [own])
    return found
