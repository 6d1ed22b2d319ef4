"""Makes this Python interpreter start relight where it would start torchrun.

An interpreter that was started as `torchrun`, `-m torch.distributed.run` or `-m
torch.distributed.launch` is replaced by `relight run` or `relight launch` before torch is imported.
In any other program, relight's `elastic_launch` is installed in `torch.distributed.launcher.api`
when that module is imported.

This file's directory is briefly on each program's sys.path, so it must not contain any other
modules. If the Python version is too old for relight, torch's launcher is used, and a message
explains why.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

OLDEST = (3, 11)
MODULES = {"torch.distributed.run": "run", "torch.distributed.launch": "launch"}
API = "torch.distributed.launcher.api"
HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))


class Finder:
    """Finds torch's launcher, and this relight installation even if it isn't on sys.path."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Return the spec for relight or for torch's launcher, or None for any other module."""
        if name == "relight":
            from importlib.machinery import PathFinder

            return PathFinder.find_spec(name, [os.path.dirname(PACKAGE)])
        if name != API:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec and finder is not self else None
            if spec is not None:
                spec.loader = Loader(spec.loader)
                return spec
        return None


FINDER = Finder()


class Loader:
    """Loads torch's launcher, and replaces its functions with relight's."""

    def __init__(self, loader: "Any") -> None:
        self.loader = loader

    def create_module(self, spec: "ModuleSpec") -> "Any":
        """Delegate to torch's own loader."""
        return self.loader.create_module(spec)

    def exec_module(self, module: "ModuleType") -> None:
        """Execute the module, and then replace its functions."""
        self.loader.exec_module(module)
        if sys.version_info < OLDEST:
            sys.stderr.write(
                f"relight: note: torch's own launcher is used: relight needs Python "
                f"{OLDEST[0]}.{OLDEST[1]}, and {sys.executable} is {sys.version.split()[0]}\n"
            )
            return
        from relight.torch_launcher.replacement import replace_in

        replace_in(module)

    def __getattr__(self, name: str) -> "Any":
        return getattr(self.loader, name)


def command(words: "list[str]") -> "list[str] | None":
    """Convert a Python command line to a relight command line, or return None if it starts a
    different program.

    Args:
        words: Python's command line, as in sys.orig_argv.
    """
    place = 1
    while place < len(words):
        word = words[place]
        if word == "--check-hash-based-pycs":
            place += 1
        elif not word.startswith("-") or word == "-":
            return _becomes(words[:place], _command_of_script(word), words[place + 1 :])
        elif not word.startswith("--"):
            for at, letter in enumerate(word[1:], 1):
                value = word[at + 1 :]
                if letter == "c":
                    return None
                if letter == "m":
                    options = words[:place] + ([word[:at]] if at > 1 else [])
                    rest = words[place + 1 :]
                    if not value and rest:
                        value, rest = rest[0], rest[1:]
                    return _becomes(options, MODULES.get(value), rest)
                if letter in "WX":
                    place += not value
                    break
        place += 1
    return None


def _becomes(python: "list[str]", own: "str | None", rest: "list[str]") -> "list[str] | None":
    # With -P, files in the working directory can't hide standard library modules.
    return [*python, "-P", "-m", "relight", own, *rest] if own else None


def _command_of_script(path: str) -> "str | None":
    """Return the relight command that replaces one of torch's scripts, or None for any other
    script.
    """
    folder, name = os.path.split(path)
    if name in ("run.py", "launch.py"):
        is_torchs = os.path.abspath(folder).endswith(os.path.join("torch", "distributed"))
        return name[: -len(".py")] if is_torchs else None
    if name != "torchrun":
        return None
    try:
        with open(path, "rb") as file:
            return "run" if b"torch.distributed.run" in file.read(4096) else None
    except OSError:
        return None


def install() -> None:
    """Replace this process with relight, or install the import hook."""
    if sys.version_info >= OLDEST and sys.executable:
        words = command(sys.orig_argv)
        if words is not None:
            os.execv(sys.executable, words)
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)
