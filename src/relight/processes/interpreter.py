"""Chooses the workers' Python interpreter.

torchrun is always installed in the same environment as torch, so its own Python is always the right
one. relight may be installed separately from torch (`pipx install`, `uv tool install`). It uses the
first of the following that applies:

    PYTHON_EXEC         as under torchrun
    relight's own       if torch is installed with it, or if it was named (`python -m relight`)
    the active one      from VIRTUAL_ENV or CONDA_PREFIX; if both are set, the first on PATH
    relight's own

A Python that is merely on PATH is not used, because the user has not chosen it. `remedy` suggests
such a Python.
"""

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from relight.base.env import Environment

if TYPE_CHECKING:
    from relight.host.loop import Loop

_FINDS = (
    "import importlib.util as u, sys; sys.path = [each for each in sys.path if each]; "
    "sys.exit(u.find_spec(sys.argv[1]) is None)"
)
"""Finds installed modules only. `python -c` would also search the current directory."""
_POLL_S = 1.0
"""How long to wait for a response from another Python, while the loop keeps running."""


def choose(env: Environment) -> str:
    """Return the workers' interpreter, as a path or as a name on PATH."""
    named = env.get("PYTHON_EXEC")
    if named:
        return named
    active = _active(env)
    return active if active and _is_program() and not _has_torch() else sys.executable


def explain(python: str, env: Environment) -> str:
    """Return the reason why the workers use a different Python from the launcher's, or an empty
    string if they use the same one.
    """
    if python == sys.executable:
        active = _active(env)
        return f"workers run relight's own Python, not that of {active}" if active else ""
    source = "PYTHON_EXEC" if env.get("PYTHON_EXEC") else "the active environment"
    return f"workers run {python} (from {source}); relight runs {sys.executable}"


def remedy(python: str, env: Environment, module: str, loop: "Loop") -> str:
    """Return a hint about a module that the workers' Python doesn't have, if there is another
    Python on PATH.

    Args:
        python: the workers' Python.
        env: the workers' environment.
        module: the module's name, as given in the error.
        loop: the loop of this process; it keeps running because other nodes wait for heartbeats.
    """
    import shutil  # only needed after a failure

    from relight.processes import helper

    places = env.get("PATH", os.defpath)
    usual = shutil.which("python", path=places) or shutil.which("python3", path=places)
    if not usual or _is_same(os.path.dirname(usual), os.path.dirname(python)):
        return ""
    has_it = False
    with suppress(OSError):  # that Python can't be queried
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        command = [usual, "-c", _FINDS, module.partition(".")[0]]
        try:
            other_python = helper.Helper(command, env.variables, null, null)
        finally:
            os.close(null)
        other_python.watch(loop, lambda: None)
        loop.run_until(lambda: other_python.exitcode is not None, _POLL_S)
        has_it = other_python.exitcode == 0 and other_python.error is None
        other_python.close()
    other = f"; {usual} has it, so activate its environment, or set PYTHON_EXEC" if has_it else ""
    return f"workers ran {python}{other}"


def _active(env: Environment) -> str:
    """Return the Python of the active environment, or an empty string if that is relight's own
    Python.
    """
    path = env.get("PATH").split(os.pathsep)

    def place(folder: str) -> int:
        programs = os.path.join(folder, "bin")
        return path.index(programs) if programs in path else len(path)

    folders = [folder for folder in map(env.get, ("VIRTUAL_ENV", "CONDA_PREFIX")) if folder]
    folders.sort(key=place)
    for folder in folders:
        python = os.path.join(folder, "bin", "python")
        if os.access(python, os.X_OK):
            return "" if _is_same(folder, sys.prefix) else python
    return ""


def _is_program() -> bool:
    """Return whether this process was started as the program `relight`, as opposed to `python -m`
    or `python -c`.
    """
    main = sys.modules["__main__"]
    return hasattr(main, "__file__") and getattr(main, "__spec__", None) is None


def _has_torch() -> bool:
    from importlib.util import find_spec  # takes a millisecond

    spec = find_spec("torch")
    return spec is not None and spec.origin is not None


def _is_same(folder: str, other: str) -> bool:
    return os.path.realpath(folder) == os.path.realpath(other)
