"""Imports modules in a process that will be forked, and finds out whether it may be.

What was imported must not have left more than memory: one thread, no descriptors, no children; it
must not have looked at what is different for each worker; and the script would have got the same.
"""

import os
import signal
import site
import sys
from importlib.machinery import PathFinder
from typing import Any

from relight.host import priority
from relight.host.spawner import HANDLED

_MOST_PRINTED = 65536


class UnfitError(Exception):
    """This process must not be forked for workers; the message says why, for which module."""

    def __init__(self, module: str, message: str) -> None:
        super().__init__(message)
        self.module = module


def preload(setup: dict[str, Any], loaded: set[str], control: int) -> tuple[bytes, bytes]:
    """Import the modules; return what they have printed to stdout and stderr.

    Args:
        setup: `modules`; `learned`: these are what a worker was seen to import, some in vain;
            `gently`: take no time from others; `own`: the variables that each worker has for
            itself; `argv`: the workers' command line.
        loaded: the modules that any worker has loaded by now.
        control: the descriptor of the socket to the agent.

    Raises:
        UnfitError: the process can't be used.
    """
    before = {0, 1, 2, control}
    _check_process("the start of the interpreter", before)
    watched = _watch_environment(set(setup["own"]))
    outputs = [os.memfd_create("printed") for _ in range(2)]
    for fd, output in enumerate(outputs, 1):
        os.dup2(output, fd)
    restore = priority.lower() if setup["gently"] else None
    main = sys.modules["__main__"]
    if "-m" not in setup["argv"][2:3]:
        main.__file__ = setup["argv"][2]  # some libraries ask whether there is one
    modules = _installed(setup["modules"]) if setup["learned"] else setup["modules"]
    for name in modules:
        try:
            __import__(name)
        except BaseException as error:
            if not setup["learned"]:
                raise UnfitError(name, f"{name} can't be imported: {error!r}") from None
        _check_process(name, before | set(outputs))
    if hasattr(main, "__file__"):
        del main.__file__
    if restore is not None:
        restore()
    watched()
    for number in HANDLED:
        if signal.getsignal(number) is None:
            raise UnfitError("", f"a library has its own handler of signal {number}")
    null = os.open(os.devnull, os.O_RDWR)
    printed = []
    for fd, output in enumerate(outputs, 1):
        printed.append(os.pread(output, _MOST_PRINTED, 0))
        os.dup2(null, fd)
        os.close(output)
    os.close(null)
    _check_shadows(setup["argv"], loaded)
    if setup["learned"]:
        _check_files()
    return printed[0], printed[1]


def _check_process(name: str, before: "set[int]") -> None:
    for fd, target in _descriptors().items():
        if fd not in before:
            raise UnfitError(name, f"{name} opens {target}")
    if _threads() > 1:
        # What a library ends before a fork, and starts again after it, does no harm.
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        if _threads() > 1:
            raise UnfitError(name, f"{name} starts a thread")
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return
    raise UnfitError(name, f"{name} starts a process")


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _descriptors() -> dict[int, str]:
    """Return the open descriptors of this process and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass  # that of the listing itself
    return found


def _watch_environment(own: set[str]) -> Any:
    """Notice who reads a variable that each worker has for itself; return what raises then."""
    readers: dict[str, str] = {}
    kind = type(os.environ)

    class Watched(kind):  # type: ignore[misc, valid-type]
        def __getitem__(self, name: str) -> str:
            if name in own:
                frame = sys._getframe(1)
                while frame.f_back and frame.f_globals.get("__name__") in (
                    "os",
                    "collections.abc",
                ):
                    frame = frame.f_back
                readers.setdefault(name, str(frame.f_globals.get("__name__")))
            value: str = super().__getitem__(name)
            return value

    os.environ.__class__ = Watched

    def check() -> None:
        os.environ.__class__ = kind
        for name, reader in readers.items():
            raise UnfitError(reader, f"{reader} reads {name} when it is imported")

    return check


def _check_shadows(argv: list[str], loaded: set[str]) -> None:
    """The script would find modules beside itself first."""
    first = argv[2]
    folder = os.getcwd()
    if first not in ("-m", "-"):
        path = os.path.realpath(first)
        folder = path if os.path.isdir(path) or _is_archive(path) else os.path.dirname(path)
    known = folder in sys.path_importer_cache
    for name in sorted({name.partition(".")[0] for name in sys.modules} - loaded):
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if spec is None or not spec.has_location:
            continue  # built in: nothing goes before it
        other = PathFinder.find_spec(name, [folder])
        if other is not None and other.loader is not None and other.origin != spec.origin:
            raise UnfitError(name, f"the script would import another {name}: {other.origin}")
    if not known:
        sys.path_importer_cache.pop(folder, None)


def _is_archive(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PK\3\4"
    except OSError:
        return False


def _places() -> tuple[str, ...]:
    """Return where the standard library and installed packages are."""
    folders = [os.path.dirname(os.__file__), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return tuple(
        form for folder in folders for form in (folder + os.sep, os.path.realpath(folder) + os.sep)
    )


def _installed(names: list[str]) -> list[str]:
    """Return those that are not the user's own."""
    places = _places()
    fits: dict[str, bool] = {}
    for name in names:
        top = name.partition(".")[0]
        if top not in fits:
            fits[top] = top.isidentifier() and top != "relight" and _is_installed(top, places)
    return [name for name in names if fits[name.partition(".")[0]]]


def _is_installed(top: str, places: tuple[str, ...]) -> bool:
    if top in sys.builtin_module_names:
        return True
    spec = PathFinder.find_spec(top)
    return spec is not None and bool(spec.origin) and str(spec.origin).startswith(places)


def _check_files() -> None:
    places = _places()
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        ours = name.partition(".")[0] in ("relight", "sitecustomize", "__main__")
        # Some libraries have modules without a file that say otherwise (torch.ops: "_ops.py").
        if os.path.isabs(path) and not ours and not path.startswith(places):
            raise UnfitError(name, f"{name} is not an installed module: {path}")
