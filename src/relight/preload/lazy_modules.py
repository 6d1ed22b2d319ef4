"""Hides the preloaded modules of a warm worker until its script imports them.

As a result, `sys.modules` has the same content as in a cold worker, and the script's import of a
module can be intercepted. At that point, the environment variables must have the same values as
when the module was preloaded. The script must also find the same module, and must not have replaced
any module that the preloaded module needs. Otherwise the worker restarts as a cold worker, by
executing its own command line.

    import torch  -->  Deferred.find_spec  -->  _Loader.exec_module  -->  torch and its dependencies
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

NATIVE = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "TBB_",
    "MKLDNN_", "ONEDNN_", "DNNL_", "TORCH_", "PYTORCH_", "ATEN_", "KINETO_", "NPY_", "ACC_",
    "GFORTRAN_", "ARROW_", "JE_ARROW_",
)  # fmt: skip
"""Variables that compiled code reads with `getenv` when it is loaded. They were found by
intercepting `getenv` with LD_PRELOAD while torch, numpy and others were imported.
"""
_OF_TORCH = ("TORCH_", "PYTORCH_", "ATEN_", "KINETO_")
"""Prefixes of variables that are only read by modules that need torch."""
LATER = (
    "TORCH_NCCL_", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NVML_BASED_CUDA_CHECK",
)  # fmt: skip
"""Variables that compiled code reads only when an accelerator or a process group is set up."""
_IRREVERSIBLE = frozenset({
    "os.chdir", "os.fork", "os.forkpty", "os.kill", "os.link", "os.mkdir", "os.posix_spawn",
    "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.system", "os.truncate",
    "builtins.input", "socket.bind", "socket.connect", "socket.sendto", "subprocess.Popen",
})  # fmt: skip
"""Audit events that rule out restarting a script from the beginning."""
_SECOND_NAME = "__mp_main__"
"""The name that multiprocessing adds for the script when it is imported. The warm process has
imported it long before, but in a cold worker, a package such as torch imports it after its first
modules. The order matters, because pickle searches all modules for objects from C, such as torch's
memory formats, and keys in the cache of torch.compile depend on the module that it finds. If the
script imports multiprocessing before the package, the order differs from that in a cold worker.
"""
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Imports(NamedTuple):
    """Metadata about the preloaded imports.

    The `needs` field maps each module to the modules that it needs. The `reads` and `prefixes`
    fields come from `preload/env_tracer.py`. The `values` field contains the variables that the
    script set before these imports.
    """

    needs: Mapping[str, set[str]]
    reads: Mapping[str, set[str]]
    prefixes: Mapping[str, set[str]]
    values: Mapping[str, str]


class Deferred:
    """An import finder for the hidden modules, placed first in `sys.meta_path`.

    Args:
        names: the hidden modules.
        imports: metadata about their imports.
        tell: called with the name of a variable, to report its value to the warm spawner.
        restart: the command line and the environment of this worker.
    """

    def __init__(
        self,
        names: Iterable[str],
        imports: Imports,
        tell: Callable[[str], None],
        restart: tuple[tuple[str, ...], Mapping[str, str]],
    ) -> None:
        self._hidden = {name: sys.modules.pop(name) for name in names}
        self._imports = imports
        self._report = tell
        self._restart = restart
        self._pid = os.getpid()
        self._expected = {**os.environ, **imports.values}
        self._putenv: dict[str, str | None] = {}
        self._set_by: dict[str, str] = {}
        self._irreversible = False
        if self._hidden:
            sys.meta_path.insert(0, self)
            sys.addaudithook(self._audit)

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """Return a hidden module's original spec, but with a different loader."""
        del path, target
        module = self._hidden.get(name)
        if module is None:
            return None
        known = getattr(module, "__spec__", None)
        origin, loader = getattr(known, "origin", None), getattr(known, "loader", None)
        if other := self._found_instead(name, origin):
            self._restart_cold(
                f"the script imports a different {name} ({other}) from the preloaded one",
                "continues with it, but preloaded modules use the preloaded one",
            )
            for each in [x for x in self._hidden if x == name or x.startswith(f"{name}.")]:
                del self._hidden[each]
            return None
        spec = ModuleSpec(name, _Loader(self, loader), origin=origin)  # type: ignore[arg-type]
        if known is not None:
            spec.submodule_search_locations = known.submodule_search_locations
            spec.cached = known.cached
            spec.has_location = known.has_location
        return spec

    def show(self, name: str) -> ModuleType:
        """Put a module and the modules that it needs into `sys.modules`, and return the module."""
        module = self._hidden[name]
        needed = self._needed(name)
        self._check(name, needed)
        for other in [other for other in self._hidden if other in needed]:
            preloaded = self._hidden.pop(other)
            if other != name and sys.modules.get(other, preloaded) is not preloaded:
                self._restart_cold(
                    f"the script puts its own {other} into sys.modules before it imports {name}",
                    "continues, but preloaded modules use the installed one",
                )
                continue
            sys.modules[other] = preloaded
        if _SECOND_NAME in sys.modules:
            sys.modules[_SECOND_NAME] = sys.modules.pop(_SECOND_NAME)
        if not self._hidden:
            self._end()
        return module

    def _needed(self, name: str) -> set[str]:
        found = {name}
        left = [name]
        while left:
            name = left.pop()
            new = {*self._imports.needs.get(name, ()), name.rpartition(".")[0]} - found
            new &= self._hidden.keys()
            found |= new
            left += new
        return found

    def _check(self, name: str, names: set[str]) -> None:
        """Check that the environment variables have the same values as when these modules, required
        by an import, were preloaded.

        Python code reads `os.environ`. Compiled code reads the process's own environment, which
        `os.putenv` can change separately.
        """
        python = dict(os.environ)
        own = {k: v for k, v in {**python, **self._putenv}.items() if v is not None}
        for now, is_read in ((python, self._is_read), (own, self._is_read_natively)):
            if now == self._expected:
                continue
            both = now.keys() | self._expected.keys()
            changed = {name for name in both if now.get(name) != self._expected.get(name)}
            for variable in sorted(changed):
                if is_read(variable, names):
                    self._on_changed_variable(variable, name, now.get(variable))

    def _is_read(self, variable: str, names: set[str]) -> bool:
        """Return whether one of these modules has read a variable from `os.environ`."""
        for name in names:
            if variable in self._imports.reads.get(name, ()):
                return True
            if variable.startswith(tuple(self._imports.prefixes.get(name, ()))):
                return True
        return False

    def _is_read_natively(self, variable: str, names: set[str]) -> bool:
        """Return whether one of these modules is compiled and reads a variable from the process's
        own environment.
        """
        if not variable.startswith(NATIVE) or variable.startswith(LATER):
            return False
        if variable.startswith(_OF_TORCH):
            names = {name for name in names if self._needs_torch(name)}
        specs = [getattr(self._hidden[name], "__spec__", None) for name in names]
        origins = [str(getattr(spec, "origin", None)) for spec in specs]
        return any(origin.endswith(tuple(EXTENSION_SUFFIXES)) for origin in origins)

    def _needs_torch(self, name: str) -> bool:
        needs = {name, *self._imports.needs.get(name, ())}
        return any(other.partition(".")[0].startswith(("torch", "functorch")) for other in needs)

    def _found_instead(self, name: str, origin: str | None) -> str:
        """Return the place where a cold worker would find a different package with this name,
        because the script has changed `sys.path`. The result is empty if it would find the
        preloaded package.
        """
        spec = None if "." in name or not origin else PathFinder.find_spec(name)
        if spec is None or spec.loader is None or spec.origin == origin:
            return ""
        found = spec.origin or name
        return "" if os.path.realpath(found) == os.path.realpath(str(origin)) else found

    def _on_changed_variable(self, variable: str, name: str, value: str | None) -> None:
        library = self._set_by.get(variable, "")
        assignment = variable if value is None else f"{variable}={value}"
        self._restart_cold(
            f"{library or 'the script'} sets {variable} before it imports {name}, which was "
            "preloaded without this setting",
            "continues, with the value that was set at import time",
            report=("library " if library else "script ") + assignment,
        )
        if value is None:
            del self._expected[variable]
        else:
            self._expected[variable] = value

    def _restart_cold(self, why: str, otherwise: str, report: str = "") -> None:
        """Restart as a cold worker, unless the script has done something that can't be repeated.

        Args:
            why: the cause, as human-readable text.
            otherwise: the consequence if the worker can't be restarted.
            report: the variable to report to the warm spawner.
        """
        again = not self._irreversible and os.getpid() == self._pid
        if report:
            self._report(report)  # this writes to a file
        what = "restarts without preloaded modules" if again else otherwise
        os.write(2, f"relight: {why}; this worker {what}\n".encode(errors="replace"))
        if again:
            argv, variables = self._restart
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as when a program starts
                signal.signal(number, signal.SIG_DFL)
            start = os.execve if "/" in argv[0] else os.execvpe
            start(argv[0], argv, variables)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record actions of the script that can't be repeated, and changes to the environment."""
        if event in ("os.putenv", "os.unsetenv"):
            self._set_by[os.fsdecode(arguments[0])] = _importing_library()
        if event == "os.putenv":
            self._putenv[os.fsdecode(arguments[0])] = os.fsdecode(arguments[1])
        elif event == "os.unsetenv":
            self._putenv[os.fsdecode(arguments[0])] = None
        if self._irreversible:
            return
        if event in _IRREVERSIBLE:
            self._irreversible = "__pycache__" not in str(arguments[:1])
        elif event == "open" and len(arguments) > 2 and arguments[2] & _CHANGES:
            path = str(arguments[0])
            self._irreversible = "__pycache__" not in path and not path.startswith(
                ("/dev/", "/proc/")
            )

    def _end(self) -> None:
        self._irreversible = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader:
    """Loads a preloaded module. Everything else is delegated to the module's own loader."""

    def __init__(self, deferred: Deferred, loader: Any) -> None:
        self._deferred = deferred
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that the import system creates an empty module."""
        del spec

    def exec_module(self, module: ModuleType) -> None:
        """Make the import return the preloaded module."""
        name = module.__name__
        preloaded = self._deferred.show(name)
        if sys.modules.get(name) is not preloaded:
            sys.modules[name] = preloaded
        if not isinstance(preloaded, ModuleType) or module is preloaded:
            return
        module.__dict__.update(vars(preloaded))  # for callers that create it without an import

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _importing_library() -> str:
    """Return the installed package whose import, still in progress, has led to this call. The
    result is empty if the call comes from the script, or from a package's function that the script
    has called.
    """
    frame: Any = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if frame.f_code.co_name == "<module>":
            name = str(frame.f_globals.get("__name__")).partition(".")[0]
            return name if f"-packages{os.sep}" in path else ""
        frame = frame.f_back
    return ""


def third_party(loaded: set[str]) -> list[str]:
    """Return the modules that are neither in the standard library nor loaded by every
    interpreter.
    """
    known = {*sys.stdlib_module_names, "relight", "sitecustomize", "usercustomize"}
    known.update(("__main__", "__mp_main__"))
    return [
        name
        for name, module in sys.modules.items()
        if name not in loaded and module is not None and name.partition(".")[0] not in known
    ]


def references(names: Iterable[str]) -> dict[str, set[str]]:
    """Return a map from each module to the other modules whose objects it references, and the
    modules below it.
    """
    found: dict[str, set[str]] = {}
    for name in names:
        module = sys.modules.get(name)
        above = name.rpartition(".")[0]
        if not hasattr(sys.modules.get(above), "__path__"):
            # The parent isn't a package, for example because compiled code created the submodule.
            # No import would find it.
            found.setdefault(above, set()).add(name)
        if not isinstance(module, ModuleType):
            continue
        others = found.setdefault(name, set())
        for value in list(vars(module).values()):
            kind = type(value)
            if issubclass(kind, ModuleType):
                other = value.__dict__.get("__name__")
            elif kind is FunctionType:
                other = value.__module__
            elif issubclass(kind, type):
                other = value.__dict__.get("__module__")
            else:
                continue
            # A package has all its modules as attributes, no matter which module imports them.
            if isinstance(other, str) and not other.startswith(f"{name}."):
                others.add(other)
    return found
