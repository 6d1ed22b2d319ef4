"""`relight shim`: makes relight replace torchrun in one environment, or undoes that.

The command writes a .pth file, which Python reads at startup in that environment. If the
environment has no `torchrun`, the command also creates one.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from relight.base import env as environment
from relight.base.env import Environment
from relight.base.errors import EXIT_OK, MachineError, UsageError
from relight.base.text import did_you_mean
from relight.cli.exec import SHIM
from relight.cli.jobs.common import Page, read_arguments, say
from relight.flags.spec import Flag

VERBS = ("install", "remove", "status")
EXIT_NOT_INSTALLED = 1
PAGE = Page(
    "shim install|remove|status [--venv DIR]",
    (
        "Replaces torchrun with relight in one environment: its torchrun,",
        "python -m torch.distributed.run, python -m torch.distributed.launch and",
        "torch.distributed.launcher then start relight. `remove` undoes this.",
    ),
    (
        Flag("venv", str, "", "DIR", "the environment [the active one (VIRTUAL_ENV, CONDA_PREFIX), "
             "or otherwise relight's]"),
    ),
    ("relight shim install --venv .venv", "relight shim remove --venv .venv"),
    f"exit code: {EXIT_NOT_INSTALLED} if it is not installed (status)",
)  # fmt: skip
_OLDEST = (3, 11)
_ASK = (
    "import json, sys, sysconfig as s; print(json.dumps([s.get_path('purelib'), "
    "s.get_path('scripts'), sys.version_info[:2], sys.prefix]))"
)
_FOLDER = os.path.join(SHIM, "site")
_HOOK = (
    f"import sys\nsys.path.insert(0, {_FOLDER!r})\n"
    "try:\n import relight_hook\n relight_hook.install()\nexcept ImportError: pass\n"
    f"finally: sys.path.remove({_FOLDER!r})"
)
_HOOK_LINE = f"import sys; exec({_HOOK!r})\n"
"""The .pth line that loads the hook if its directory still exists."""
_MARK = "Written by `relight shim install`"
_TORCHRUN = f"""\
#!/bin/sh
'''exec' %s "$0" "$@"
' '''
# {_MARK}; `relight shim remove` deletes it.
import sys
from relight.__main__ import entry

sys.argv.insert(1, "run")
entry()
"""


class Place(NamedTuple):
    """An environment, with its Python and the paths of the shim's files."""

    python: str
    prefix: str
    hook: str
    torchrun: str


def main(argv: list[str]) -> int:
    """Run `relight shim`.

    Raises:
        UsageError: if the verb is unknown, or the environment does not exist.
        MachineError: if files can't be written or removed.
    """
    parsed = read_arguments(argv, PAGE, 1, 1, "one of " + ", ".join(VERBS))
    verb = parsed.command[0]
    if verb not in VERBS:
        hint = did_you_mean(verb, VERBS, f"relight {PAGE.usage}")
        raise UsageError(f"unknown relight shim command: {verb}", hint=hint)
    place = find(parsed.values["venv"], environment.read())
    if verb == "status":
        return _status(place)
    try:
        (_install if verb == "install" else _remove)(place)
    except OSError as error:
        raise MachineError(f"can't change {error.filename}: {error.strerror}") from None
    return EXIT_OK


def find(folder: str, env: Environment) -> Place:
    """Find an environment.

    Args:
        folder: the folder on the command line, or an empty string.
        env: the environment variables of this process.

    Raises:
        UsageError: if the environment's Python is missing or too old.
    """
    python = sys.executable
    chosen = folder or env.get("VIRTUAL_ENV") or env.get("CONDA_PREFIX")
    if chosen:
        python = os.path.join(os.path.abspath(chosen), "bin", "python")
    elif sys.prefix == sys.base_prefix:
        raise UsageError(
            "no environment is active, and relight is not installed in one",
            hint="choose the environment with --venv DIR",
        )
    try:
        done = subprocess.run(
            [python, "-I", "-c", _ASK], capture_output=True, text=True, check=True
        )
        packages, programs, version, prefix = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        raise UsageError(
            f"{chosen or sys.prefix} is not a Python environment: {python} does not run",
            hint="pass the directory that contains bin/python to --venv",
        ) from None
    if tuple(version) < _OLDEST:
        raise UsageError(
            f"{python} is Python {'.'.join(map(str, version))}; relight needs "
            f"{'.'.join(map(str, _OLDEST))}"
        )
    hook = os.path.join(packages, "relight_shim.pth")
    return Place(python, prefix, hook, os.path.join(programs, "torchrun"))


def _install(place: Place) -> None:
    Path(place.hook).write_text(_HOOK_LINE, encoding="utf-8")
    if not os.path.lexists(place.torchrun):
        fd = os.open(place.torchrun, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
        with open(fd, "w", encoding="utf-8") as file:
            file.write(_TORCHRUN % shlex.quote(place.python))
    undo = f"relight shim remove --venv {shlex.quote(place.prefix)}"
    say(f"torchrun in {place.prefix} now starts relight; undo with {undo}")


def _remove(place: Place) -> None:
    found = os.path.lexists(place.hook)
    if found:
        os.unlink(place.hook)
    if _is_own(place.torchrun):
        os.unlink(place.torchrun)
    gone = "starts torch's launcher again" if found else "did not start relight"
    say(f"torchrun in {place.prefix} {gone}")


def _status(place: Place) -> int:
    try:
        line = Path(place.hook).read_text(encoding="utf-8")
    except FileNotFoundError:
        print(f"{place.prefix}: not installed")
        return EXIT_NOT_INSTALLED
    if line == _HOOK_LINE:
        print(f"{place.prefix}: torchrun starts this relight")
    else:
        print(f"{place.prefix}: installed by a different relight; see {place.hook}")
    return EXIT_OK


def _is_own(path: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return _MARK in file.read(1000)
    except OSError:
        return False
