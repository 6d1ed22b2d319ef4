"""Imports modules in the process that workers are forked from, and skips modules that can't be
preloaded.

An import must not leave anything behind except private memory. After the import there must be a
single thread, and no new descriptors, children, shared memory or timers. The import must not depend
on anything that differs between workers, or change anything that the interpreter still needs, and
the script must get the same modules as without preloading. Each module is imported on a trial basis
(`preload/speculative_import.py`), and the import is undone if the module can't be preloaded.
"""

import json
import os
import signal
import site
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from itertools import takewhile
from typing import Any

from relight.host import linux
from relight.host.files import open_descriptors
from relight.preload.env_tracer import Watch
from relight.preload.guard import Guard
from relight.preload.speculative_import import UnfitError, attempt

Tell = Callable[[str], None]
"""Sends a line to the agent."""
_PROGRESS = b"%9d"
_TRIAL_S = 1.0
"""How long a trial import of several modules may take. This limits the work that has to be repeated
if the trial fails.
"""
_MAX_PRINTED = 65536
_LEFT_OUT = b"\nrelight: %d more bytes were printed by preloaded modules, and are left out here\n"
_HARMLESS_THREADS = ("jemalloc_bg_thd",)
"""Names of threads of jemalloc (in pyarrow). A forked process doesn't have these threads, but
jemalloc purges memory without them.
"""
_OURS = ("relight", "sitecustomize", "__main__", "__mp_main__")
"""Modules that are loaded in any case. The last name is the one that multiprocessing gives to the
script.
"""
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def preload(
    setup: dict[str, Any],
    loaded: set[str],
    tell: Tell,
    watch: Watch,
    checks: Sequence[Callable[[], None]],
    guard: Guard,
    descriptors: Collection[int],
) -> tuple[tuple[bytes, bytes], dict[str, set[str]]]:
    """Import the modules. Return their output on stdout and stderr, and which modules import each
    module.

    Sends the agent `importing MODULE` for each import, `without MODULE SECONDS REASON` for an
    import that was undone, and `left_out PACKAGES` for packages that are not installed. If the
    modules were learned, also sends `learned JSON`, which says which modules can never be
    preloaded, which modules cause that, and where packages are installed.

    Args:
        setup: contains `modules`; `learned`, true if these are the imports of a watched worker,
            perhaps including failed ones; `culprits`, the modules that are known to be unfit; and
            `argv`, the workers' command line.
        loaded: the modules that every worker has loaded by this time.
        tell: sends the agent a line.
        watch: finds modules that depend on a variable that differs between workers.
        checks: raise UnfitError if a module created a temporary file that workers would share, read
            the script's arguments, or read a file which changed after this process started.
        guard: the guard of this process.
        descriptors: the open descriptors, apart from the guard's.

    Raises:
        UnfitError: if this process can't be used to fork workers.
    """
    outputs = [linux.anonymous_file("printed") for _ in range(2)]
    known = {0, 1, 2, *descriptors, *guard.descriptors, *outputs}
    baseline = _Baseline(known, setup, loaded, watch, checks)
    baseline.check("the start of the interpreter", 0)
    for fd, output in enumerate(outputs, 1):
        os.dup2(output, fd)
    main = sys.modules["__main__"]
    if setup["argv"][2] not in ("-m", "-"):
        # Some libraries check whether the file exists.
        main.__file__ = os.path.abspath(setup["argv"][2])
    imports = _DependencyFinder(dict.fromkeys(setup["culprits"], True))
    _import_all(_wanted(setup, tell), baseline, imports, outputs, tell, guard)
    if setup["learned"]:
        directories = sorted({os.path.dirname(each) for each in _install_directories()})
        found = {"unfit": imports.unfit, "directories": directories}
        tell(f"learned {json.dumps(found)}")
    if hasattr(main, "__file__"):
        del main.__file__
    watch.end()
    null = os.open(os.devnull, os.O_RDWR)
    printed = []
    for fd, output in enumerate(outputs, 1):
        left_out = os.fstat(output).st_size - _MAX_PRINTED
        end = _LEFT_OUT % left_out if left_out > 0 else b""
        printed.append(os.pread(output, _MAX_PRINTED, 0) + end)
        os.dup2(null, fd)
        os.close(output)
    os.close(null)
    return (printed[0], printed[1]), imports.needs


def _wanted(setup: dict[str, Any], tell: Tell) -> list[str]:
    names: list[str] = setup["modules"]
    if setup["learned"]:
        names = _installed(names, setup["argv"])
        others = _packages(setup["modules"]) - _packages(names) - {"relight"}
        left_out = [n for n in sorted(others) if n.isidentifier() and PathFinder.find_spec(n)]
        tell(f"left_out {' '.join(left_out)}")
    return names


def _import_all(
    names: list[str],
    baseline: "_Baseline",
    imports: "_DependencyFinder",
    outputs: list[int],
    tell: Tell,
    guard: Guard,
) -> None:
    """Import those modules that can be preloaded together with all their dependencies.

    Modules that the user named are tried one by one, and other modules in batches. A failed batch
    is undone, but the number of imports that succeeded is remembered. The next step repeats those
    imports, and the step after that tries the failed module alone.
    """
    asked, left = set(names), names
    alone = asked if baseline.is_asked else set()
    unfit: list[str] = []
    fits = False
    at_once: int | None = None
    progress = linux.anonymous_file("progress")
    while left := [x for x in left if x not in sys.modules and not _is_below(x, unfit)]:
        many = list(takewhile(lambda name: name not in alone, left))[:at_once]
        os.pwrite(progress, _PROGRESS % 1, 0)
        printed = [os.fstat(output).st_size for output in outputs]
        undone = attempt(
            partial(_import_some, many or left[:1], baseline, imports, progress, tell), guard
        )
        tried = int(os.pread(progress, len(_PROGRESS % 0), 0))
        if undone is None:
            fits = True
            left = left[tried:]
            at_once = None
            continue
        for output, size in zip(outputs, printed, strict=True):
            os.ftruncate(output, size)
            os.lseek(output, size, os.SEEK_SET)
        if tried > 1:
            at_once = tried - 1
            continue
        name = left[0]
        unfit.append(name)
        culprit = undone.culprit or name
        imports.culprits[culprit] = undone.lasting
        if undone.lasting:
            imports.unfit[name] = culprit
        if name in asked:
            tell(f"without {name} {undone.seconds:.3f} {undone.reason}")
            # Most modules that the failed module imports may still be fit.
            tops = _packages([name, culprit])
            argv = baseline.argv
            others = [
                x for x in _installed(undone.modules, argv) if x.partition(".")[0] not in tops
            ]
            left = [*others, *left]
    os.close(progress)
    if unfit and not fits and not asked & sys.modules.keys():
        raise UnfitError("", "no module is left")


def _import_some(
    names: list[str],
    baseline: "_Baseline",
    imports: "_DependencyFinder",
    progress: int,
    tell: Tell,
    child: int,
) -> None:
    """Import modules for a limited time. The number of modules tried so far is written to the file
    `progress`, from which the copy of this process learns how far this process got.
    """
    end = time.monotonic() + _TRIAL_S
    for number, name in enumerate(names, 1):
        os.pwrite(progress, _PROGRESS % number, 0)
        if name not in sys.modules:
            tell(f"importing {name}")
            baseline.load(name, imports, child)
        if time.monotonic() > end:
            break


def _is_below(name: str, others: list[str]) -> bool:
    return name in others or name.startswith(tuple(f"{other}." for other in others))


class _DependencyFinder:
    """An import finder that records which module imports which other modules, and rejects unfit
    modules and everything that imports them.

    Args:
        culprits: modules that are known to be unfit. The value for a module is True if the module
            can never be preloaded.
    """

    def __init__(self, culprits: dict[str, bool]) -> None:
        self.culprits = culprits
        self.unfit: dict[str, str] = {}
        """Modules that can never be preloaded, each with the module that makes it unfit."""
        self.wanted = ""
        self.needs: dict[str, set[str]] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Never find a module; only raise an error to stop the import of an unsuitable module."""
        del path, target
        if name in self.culprits:
            self.wanted = name
            raise UnfitError(name, f"it needs {name}", lasting=self.culprits[name])
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "<module>":
            frame = frame.f_back
        if frame is not None:
            self.needs.setdefault(str(frame.f_globals.get("__name__")), set()).add(name)


class _Baseline:
    """The state of this process before the imports. No import may change this state.

    Args:
        descriptors: the descriptors that may be open.

    Attributes:
        is_asked: whether the user named the modules.
        argv: the workers' command line.
    """

    def __init__(
        self,
        descriptors: set[int],
        setup: dict[str, Any],
        loaded: set[str],
        watch: Watch,
        checks: Sequence[Callable[[], None]],
    ) -> None:
        self._descriptors = descriptors
        self._directory = os.readlink("/proc/self/cwd")
        self._path = list(sys.path)
        self.argv: list[str] = setup["argv"]
        self.is_asked = not setup["learned"]
        self._known = set(loaded)
        self._watch = watch
        self._checks = *checks, watch.check

    def load(self, name: str, imports: _DependencyFinder, child: int) -> None:
        """Import a module, or raise UnfitError if it can't be preloaded."""
        self._descriptors = set(open_descriptors())
        self._watch.begin()
        sys.meta_path.insert(0, imports)
        try:
            __import__(name)
        except BaseException as error:
            if self.is_asked and not imports.wanted:
                hint = _hint(error, self.argv)
                raise UnfitError(name, f"it can't be imported: {error!r}{hint}") from None
        if imports in sys.meta_path:
            sys.meta_path.remove(imports)
        if imports.wanted:
            lasting = imports.culprits[imports.wanted]
            raise UnfitError(imports.wanted, f"it needs {imports.wanted}", lasting=lasting)
        self.check(name, child)

    def check(self, name: str, child: int) -> None:
        """Raise UnfitError if importing this module has left behind anything other than memory and
        `child`.
        """
        for fd, target in open_descriptors().items():
            if fd not in self._descriptors and fd not in linux.libffi_descriptors():
                raise UnfitError(name, f"{name} opens {target}")
        if _threads() > 1:
            # Threads that a library stops before a fork and restarts afterwards are harmless.
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            if linux.reap(pid, linux.END_LIMIT_S) is None:
                os.kill(pid, signal.SIGKILL)
                raise UnfitError(name, f"after importing {name}, a fork hangs")
            if _threads() > 1:
                raise UnfitError(name, f"{name} starts a thread")
        if set(linux.children()) - {child}:
            raise UnfitError(name, f"{name} starts a process")
        if _shares_memory():
            raise UnfitError(name, f"{name} allocates memory that is shared between processes")
        if any(signal.getitimer(timer) != (0.0, 0.0) for timer in _TIMERS):
            raise UnfitError(name, f"{name} starts a timer")
        if os.readlink("/proc/self/cwd") != self._directory:
            raise UnfitError(name, f"{name} changes the working directory")
        if sys.path[: len(self._path)] != self._path:
            # The script's directory would precede the entries that the import added.
            raise UnfitError(name, f"{name} changes sys.path other than by appending to it")
        if signal.getsignal(signal.SIGCHLD) is None:
            raise UnfitError(name, f"{name} installs its own SIGCHLD handler")
        for check in self._checks:
            check()
        new = sys.modules.keys() - self._known
        check_shadows(self.argv, new)
        if not self.is_asked:
            _check_files(new)
        self._known.update(new)


def _shares_memory() -> bool:
    """Return whether this process has memory that would remain shared after a fork (proc(5),
    maps).
    """
    with open("/proc/self/maps", "rb") as file:
        modes = {line.split(maxsplit=2)[1] for line in file}
    return any(mode[1:2] == b"w" and mode[3:4] == b"s" for mode in modes)


def _threads() -> int:
    """Return the number of threads, excluding those that libraries don't need after a fork."""
    count = 0
    for thread in os.listdir("/proc/self/task"):
        comm = f"/proc/self/task/{thread}/comm"
        with suppress(FileNotFoundError), open(comm) as file:  # not if it has ended
            count += file.read().rstrip("\n") not in _HARMLESS_THREADS
    return count


def check_shadows(argv: list[str], modules: Collection[str]) -> None:
    """Check that no module next to the script shadows a preloaded module."""
    specs = {
        name: getattr(sys.modules.get(name), "__spec__", None)
        for name in sorted(_packages(modules))
    }
    for name, origin in _beside(specs, argv).items():
        reason = f"the script would import a different {name}: {origin}"
        raise UnfitError(name, reason, lasting=False)


def _beside(specs: Mapping[str, ModuleSpec | None], argv: list[str]) -> dict[str, str | None]:
    """Return the packages in this list that a module next to the script would shadow, each with
    that module's path. Built-in packages are never included.
    """
    folder = _folder(argv)
    known = folder in sys.path_importer_cache
    found: dict[str, str | None] = {}
    for name, spec in specs.items():
        is_part = spec is not None and spec.origin is None  # a package without __init__.py
        if spec is not None and (spec.has_location or is_part):
            other = PathFinder.find_spec(name, [folder])
            if other is None or not (is_part or other.loader):
                continue
            if is_part or other.origin != spec.origin:
                found[name] = other.origin or folder
    if not known:
        sys.path_importer_cache.pop(folder, None)
    return found


def _folder(argv: list[str]) -> str:
    """Return the first directory of the script's module search path."""
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


def _install_directories() -> tuple[str, ...]:
    """Return the directories of the standard library and of installed packages, including
    directories that a cluster adds to PYTHONPATH.
    """
    folders = [os.path.dirname(os.__file__), *site.getsitepackages()]
    folders += [p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return tuple(
        form for folder in folders for form in (folder + os.sep, os.path.realpath(folder) + os.sep)
    )


def _installed(names: list[str], argv: list[str]) -> list[str]:
    """Return the modules in this list that are installed, as opposed to the user's own modules on
    PYTHONPATH or next to the script.
    """
    places = _install_directories()
    tops = {top for top in _packages(names) if top.isidentifier() and top != "relight"}
    specs = {top: PathFinder.find_spec(top) for top in tops - {*sys.builtin_module_names}}
    others = {top for top, spec in specs.items() if spec is None or not _is_in(spec, places)}
    fit = tops - others - _beside(specs, argv).keys()
    # Other names can only be used with importlib.import_module, and may contain anything.
    return [
        name
        for name in names
        if name.partition(".")[0] in fit and all(map(str.isidentifier, name.split(".")))
    ]


def _is_in(spec: ModuleSpec, places: tuple[str, ...]) -> bool:
    """Return whether a package is in these directories. If the package doesn't have an
    `__init__.py`, all its parts must be in them.
    """
    paths = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return bool(paths) and all(path.startswith(places) for path in paths)


def _packages(names: Collection[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def _check_files(modules: Collection[str]) -> None:
    places = _install_directories()
    for name in modules:
        path = getattr(sys.modules[name], "__file__", None) or ""
        ours = name.partition(".")[0] in _OURS
        # Some libraries have modules without a file that nevertheless set `__file__` (torch.ops:
        # "_ops.py").
        if os.path.isabs(path) and not ours and not path.startswith(places):
            reason = f"{name} is not an installed module: {path}"
            raise UnfitError(name, reason, lasting=False)
