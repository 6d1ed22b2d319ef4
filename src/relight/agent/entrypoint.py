"""Checks that the workers' script, program or module exists before anything is started.

These checks only reject commands that can't possibly work. The workers report all other errors.
"""

import os
import re
import stat
import sys
from typing import TYPE_CHECKING

from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.base.values import AUTO, BACKGROUND
from relight.core.workers.worker_command import (
    same_local_rank,
    suggest_replacement,
    with_local_rank,
)
from relight.flags.spec import LaunchSpec

_SHELL = (".sh", ".bash")
_OF_THE_LAUNCHER = {
    "nnodes", "nproc-per-node", "node-rank", "max-restarts", "standalone", "tee", "redirects",
    "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "preload",
    "keep-warm",
}  # fmt: skip
"""Launcher flags that scripts rarely define. `--log-dir` and `--master-port` are left out because
many scripts do.
"""

_LONGEST = 1 << 20

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec


def check(spec: LaunchSpec, env: Environment, python: str) -> None:
    """Check that the script, program or module exists.

    Raises:
        UsageError: if the workers can't possibly run it.
    """
    if spec.module:
        if python == sys.executable and "$" not in spec.script:
            _check_module(spec.script)
        return
    if spec.script == "-":
        return
    if spec.no_python and not spec.run_path:
        if find_program(spec.script, env) is None:
            from relight.agent import not_found

            raise not_found.no_program(spec.script, env.get("PATH", os.defpath))
        return
    script = with_local_rank(spec.script, 0)
    if os.path.isdir(script):
        if not os.path.isfile(os.path.join(script, "__main__.py")):
            raise UsageError(
                f"{script} is a directory without a __main__.py", hint="pass the path of a file"
            )
    elif not os.path.exists(script):
        from relight.agent import not_found

        raise not_found.no_script(script, spec)
    elif not os.access(script, os.R_OK):
        raise UsageError(f"can't read {script}", hint="check its permissions")
    elif script.endswith(".ipynb"):
        raise UsageError(
            f"{script} is a notebook, but workers run Python files",
            hint=f"jupyter nbconvert --to script {script}",
        )
    elif script.endswith(_SHELL) and _is_for_shells(script):
        raise UsageError(
            f"{script} is a shell script, but workers run Python by default",
            hint=f"relight run [flags] --no-python bash {script} runs it in each worker",
        )


def check_streams(spec: LaunchSpec, local_world_size: int) -> list[str]:
    """Reject a script that is a pipe if a worker couldn't open it, or would read an empty script
    and succeed without doing anything. Return a note for each argument that names a pipe that
    workers can't open.

    Raises:
        UsageError: if at most one worker could read the script.
    """
    words = (*spec.script_args, *(word.partition("=")[2] for word in spec.script_args))
    notes = [
        f"{word} is a shell pipe, such as <(…), which workers can't open; pass a file instead"
        for word in words
        if _is_shell_descriptor(word)
    ]
    script = spec.script
    if spec.module or (spec.no_python and not spec.run_path):
        return notes
    if _is_shell_descriptor(script):
        raise UsageError(
            f"{script} is a shell pipe, such as <(…), which workers can't open",
            hint="write the script to a file",
        )
    several = local_world_size > 1 or spec.max_restarts.most > 0
    if several and (script == "-" or _is_pipe(script)):
        others = (
            f"{local_world_size - 1} of {local_world_size} workers"
            if local_world_size > 1
            else "after a restart, it"
        )
        raise UsageError(
            f"{script} can be read only once; {others} would run an empty program",
            hint="write the script to a file",
        )
    return notes


def _is_shell_descriptor(path: str) -> bool:
    """Return whether a path is an open descriptor of this process that workers don't inherit."""
    found = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d{1,9})", path)
    return found is not None and int(found[1]) > 2 and os.path.exists(path)


def _is_pipe(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False  # the name contains ${local_rank}


def misplaced_flags(spec: LaunchSpec, given: "set[str]") -> list[str]:
    """Return a note if launcher flags follow the script, since they would go to the script rather
    than to the launcher.
    """
    arguments = spec.script_args
    if "--" in arguments:  # everything after it is meant for the script
        arguments = arguments[: arguments.index("--")]
    words = [word for word in arguments if word.startswith("--")]
    names = [word[2:].partition("=")[0].replace("_", "-") for word in words]
    late = [
        word
        for word, name in zip(words, names, strict=True)
        if name in _OF_THE_LAUNCHER and name not in given
    ]
    if not late:
        return []
    return [
        f"{', '.join(dict.fromkeys(late))}: passed to {spec.script}, because it comes after the "
        f"script; put relight's flags before the script"
    ]


def local_rank_notes(spec: LaunchSpec, local_world_size: int, *, is_passed: bool) -> list[str]:
    """Return a note if a script that takes its local rank as an argument appears not to receive it,
    or to receive the same value in all workers. If such a script would exit for that reason, no
    note is needed, because the failure report contains the same hint.

    Args:
        spec: the launch options.
        local_world_size: the number of workers.
        is_passed: whether each script receives `--local-rank=N` (`relight launch`).
    """
    given = same_local_rank(spec.script_args)
    if given and local_world_size > 1:
        flag = given.replace("=", " ").partition(" ")[0]
        return [
            f"all {local_world_size} workers are passed {given}; {flag} '${{local_rank}}' gives "
            "each worker its own rank"
        ]
    is_file = not (spec.module or spec.no_python) and os.path.isfile(spec.script)
    if given or is_passed or not is_file or local_world_size == 1:
        return []
    try:
        with open(spec.script, "rb") as file:
            text = file.read(_LONGEST)
    except OSError:
        return []  # the workers will report it
    if b"--local" not in text:
        return []  # another file may define it, but reading all files takes too long
    if any(word.startswith(("--local_rank", "--local-rank")) for word in spec.script_args):
        return []
    from relight.warm.script_scan import local_rank_flags

    flags, reads_variable, is_required = local_rank_flags((sys.executable, "-u", spec.script))
    if flags and not (reads_variable or is_required):
        return [
            f"{spec.script} appears to read its local rank from {flags[-1]}, which relight run "
            f"does not pass; {suggest_replacement(flags[-1])}"
        ]
    return []


def find_program(name: str, env: Environment) -> str | None:
    """Return the path that execvp(3) would find for a program."""
    folders = [""] if "/" in name else env.get("PATH", os.defpath).split(os.pathsep)
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _is_for_shells(path: str) -> bool:
    """Return whether a file contains something other than Python source, regardless of its name."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        text = file.read()
    try:
        compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return True
    return False


def check_preload(names: "Sequence[str]", python: str) -> None:
    """Check that the `--preload` modules exist, without importing them.

    Raises:
        UsageError: if a module can't possibly exist.
    """
    if names in ((), (AUTO,), (BACKGROUND,)) or python != sys.executable or _hides_places():
        return
    for name in names:
        lacking = _missing(name.split("."), _may_make)
        if lacking is not None:
            from relight.agent import not_found

            raise not_found.no_module(name, *lacking, flag="--preload=", roots=sys.path)


def _check_module(name: str) -> None:
    """Look for a module in this Python, without running code if possible. The workers use the same
    Python, which searches the same directories plus the current one.
    """
    if _hides_places():
        return
    stem = name.removesuffix(".py")
    places = (stem, stem.replace(".", "/")) if stem != name else ()
    is_file = any(os.path.isfile(f"{each}.py") and not os.path.isdir(each) for each in places)
    lacking = ("", "", None) if is_file else _missing(name.split("."), _has_code)
    if lacking is not None:
        from relight.agent import not_found

        raise not_found.no_module(name, *lacking, flag="-m ", roots=[os.getcwd()])


def _hides_places() -> bool:
    """Return whether this Python ignores directories in which the workers search for modules."""
    flags = sys.flags
    return bool(flags.isolated or flags.no_site or flags.ignore_environment or flags.no_user_site)


def _missing(
    parts: list[str], may_know: "Callable[[ModuleSpec, str], bool]"
) -> "tuple[str, str, list[str] | None] | None":
    """Look up each part of a module's dotted name from left to right.

    Returns the package that was found, the name up to the first missing part, and where that part
    was searched for. Returns None if the module may exist.

    Args:
        parts: the parts of the name.
        may_know: returns whether a package may provide the next part without having a file for it.
    """
    package, where = "", None
    for number, part in enumerate(parts):
        found = f"{package}.{part}" if package else part
        try:
            spec = _find(found, where)
        except Exception:  # a third-party finder failed; the workers will report it
            return None
        if spec is None:
            return package, found, where
        following = "".join(parts[number + 1 : number + 2])
        if not following or spec.submodule_search_locations is None or may_know(spec, following):
            return None
        package, where = found, list(spec.submodule_search_locations)
    return None


def _find(name: str, where: list[str] | None) -> "ModuleSpec | None":
    for finder in sys.meta_path:
        spec = finder.find_spec(name, where)
        if spec is not None:
            return spec
    if where is not None:
        return None
    from _frozen_importlib_external import PathFinder  # importlib.machinery takes a millisecond

    return PathFinder.find_spec(name, [os.getcwd()])


def _has_code(package: "ModuleSpec", part: str = "") -> bool:
    """Return whether a package has an `__init__.py` that is not empty."""
    del part
    try:
        return package.origin is not None and os.path.getsize(package.origin) > 0
    except OSError:
        return True


def _may_make(package: "ModuleSpec", part: str) -> bool:
    """Return whether a package may provide a module without a file, because its `__init__.py`
    contains the module's name or the name of an import hook. Any other module can be found without
    importing the package.
    """
    if not _has_code(package):
        return False
    try:
        with open(str(package.origin), "rb") as file:
            text = file.read()
    except OSError:
        return True
    ways = (b"__path__", b"meta_path", b"path_hooks", part.encode())
    return not str(package.origin).endswith(".py") or any(way in text for way in ways)
