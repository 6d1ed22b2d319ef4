"""Imports modules in a process that will be forked, and finds out whether it may be.

What was imported must not have left more than memory of its own: one thread, no descriptors, no
children, nothing shared, no timer; it must not have looked at what is different for each worker, or
changed what the interpreter still needs; and the script would have got the same.
"""

import os
import signal
import site
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder

from relight.host import linux, priority
from relight.typed import Any

_MOST_PRINTED = 65536
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


class UnfitError(Exception):
    """This process must not be forked for workers; the message says why, for which module."""

    def __init__(self, module: str, message: str) -> None:
        super().__init__(message)
        self.module = module


def preload(
    setup: dict[str, Any],
    loaded: set[str],
    control: int,
    watched: Callable[[], tuple[str, str] | None],
) -> tuple[bytes, bytes]:
    """Import the modules; return what they have printed to stdout and stderr.

    Args:
        setup: `modules`; `learned`: these are what a worker was seen to import, some in vain;
            `gently`: take no time from others; `own`: the variables that each worker has for
            itself; `argv`: the workers' command line.
        loaded: the modules that any worker has loaded by now.
        control: the descriptor of the socket to the agent.
        watched: says who has read a variable that each worker has for itself.

    Raises:
        UnfitError: the process can't be used.
    """
    before = _Before({0, 1, 2, control})
    before.check("the start of the interpreter")
    outputs = [os.memfd_create("printed") for _ in range(2)]
    for fd, output in enumerate(outputs, 1):
        os.dup2(output, fd)
    before.descriptors.update(outputs)
    restore = priority.lower() if setup["gently"] else None
    main = sys.modules["__main__"]
    if setup["argv"][2] not in ("-m", "-"):
        # Some libraries ask whether there is one.
        main.__file__ = os.path.abspath(setup["argv"][2])
    modules = setup["modules"]
    if setup["learned"]:
        modules = _installed(modules)
        names = _packages(setup["modules"]) - _packages(modules) - {"relight"}
        left_out = [n for n in sorted(names) if n.isidentifier() and PathFinder.find_spec(n)]
        os.write(control, f"left_out {' '.join(left_out)}\n".encode(errors="replace"))
    for name in modules:
        if name in sys.modules:
            continue
        os.write(control, f"importing {name}\n".encode(errors="replace"))
        try:
            __import__(name)
        except BaseException as error:
            if not setup["learned"]:
                why = f"{name} can't be imported: {error!r}{_hint(error, setup['argv'])}"
                raise UnfitError(name, why) from None
        before.check(name)
    if hasattr(main, "__file__"):
        del main.__file__
    if restore is not None:
        restore()
    if reader := watched():
        raise UnfitError(reader[0], "{} reads {} when it is imported".format(*reader))
    if signal.getsignal(signal.SIGCHLD) is None:
        raise UnfitError("", "a library has its own handler of SIGCHLD")
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


class _Before:
    """What this process was before the imports, and must still be after each.

    Args:
        descriptors: those that may be open.
    """

    def __init__(self, descriptors: set[int]) -> None:
        self.descriptors = descriptors
        self._directory = os.readlink("/proc/self/cwd")
        self._path = list(sys.path)

    def check(self, name: str) -> None:
        """Raise UnfitError if the import of this module has left something."""
        for fd, target in _descriptors().items():
            if fd not in self.descriptors:
                raise UnfitError(name, f"{name} opens {target}")
        if _threads() > 1:
            # What a library ends before a fork, and starts again after it, does no harm.
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            if _threads() > 1:
                raise UnfitError(name, f"{name} starts a thread")
        if linux.children():
            raise UnfitError(name, f"{name} starts a process")
        if _shares_memory():
            raise UnfitError(name, f"{name} makes memory that processes share")
        if any(signal.getitimer(timer) != (0.0, 0.0) for timer in _TIMERS):
            raise UnfitError(name, f"{name} starts a timer")
        if os.readlink("/proc/self/cwd") != self._directory:
            raise UnfitError(name, f"{name} changes the working directory")
        if sys.path[: len(self._path)] != self._path:
            # The script's directory would come before what was put there.
            raise UnfitError(name, f"{name} changes sys.path, not only its end")


def _shares_memory() -> bool:
    """Return whether this process has memory that stays shared after a fork (proc(5), maps)."""
    with open("/proc/self/maps", "rb") as file:
        modes = {line.split(maxsplit=2)[1] for line in file}
    return any(mode[1:2] == b"w" and mode[3:4] == b"s" for mode in modes)


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


def _check_shadows(argv: list[str], loaded: set[str]) -> None:
    """The script would find modules beside itself first."""
    folder = _folder(argv)
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


def _folder(argv: list[str]) -> str:
    """Return where the script would look for modules first."""
    if argv[2] in ("-m", "-"):
        return os.getcwd()
    path = os.path.realpath(argv[2])
    return path if os.path.isdir(path) or _is_archive(path) else os.path.dirname(path)


def _hint(error: BaseException, argv: list[str]) -> str:
    name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    beside = name and PathFinder.find_spec(name.partition(".")[0], [_folder(argv)])
    return "; modules beside the script are not preloaded" if beside else ""


def _is_archive(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PK\3\4"
    except OSError:
        return False


def _places() -> tuple[str, ...]:
    """Return where the standard library and installed packages are; of the latter, a cluster may
    have more on PYTHONPATH.
    """
    folders = [os.path.dirname(os.__file__), *site.getsitepackages()]
    folders += [p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")]
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


def _packages(names: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


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
