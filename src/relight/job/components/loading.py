"""Resolves a component's address to its function.

dist.ddp                 built in
path/file.py:function    in a file
package.module:function  in a module; can also be written package.module.function
alias.function           in a module that a package registers in the group `relight.components`, or
                         TorchX's `torchx.components`; alias.module.function in a package of modules
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from types import ModuleType
from typing import Any

from relight.base.errors import RelightError, UsageError
from relight.base.plugins import one_line
from relight.base.text import closest_match, did_you_mean
from relight.job import components
from relight.job.app import AppDef
from relight.job.components import arguments, torchx_components
from relight.job.components.source import error_location, source_file

GROUP, OF_TORCHX = "relight.components", "torchx.components"
Component = Callable[..., Any]


def find(address: str) -> Component:
    """Return the function at an address, or the class if it has a `build` method.

    Raises:
        UsageError: if the component does not exist, or its file can't be loaded.
    """
    if address in components.names():
        module, name = address.split(".")
        return _load_module(_import(f"{components.__name__}.{module}"), name, address)
    if ":" in address:
        place, _, name = address.rpartition(":")
        if not place or not name:
            raise UsageError(
                f"{address}: expected FILE:FUNCTION or MODULE:FUNCTION",
                hint="path/file.py:function, package.module:function, or one of relight components",
            )
        return _load_file(place, name)
    given = registered(address)
    if address in given:
        return given[address]
    module, _, name = address.rpartition(".")
    if module and not address.endswith(".py") and _exists(module):
        return _load_module(_import(module), name, module)
    known = [*components.names(), *given]
    meant = closest_match(address, known)
    if meant:
        hint = f"did you mean {meant}?"
    elif address.endswith(".py"):
        hint = (
            f"name the function: {address}:FUNCTION; to run a training script, use dist.ddp "
            "--script"
        )
    else:
        hint = f"known: {', '.join(known)}; your own: path/file.py:function"
    raise UsageError(f"unknown component: {address}", hint=hint)


def registered(asked: str = "") -> dict[str, Component]:
    """Return the components provided by other packages, by name. An alias that begins with `_` is
    left out of the name.

    Args:
        asked: the name of the wanted component. If a TorchX package fails to load, for example
            because torchx is missing, that is only an error if the component belongs to that
            package.

    Raises:
        UsageError: if one of these packages can't be loaded.
    """
    from importlib.metadata import entry_points  # 14 ms

    found: dict[str, Component] = {}
    for entry in [*entry_points(group=OF_TORCHX), *entry_points(group=GROUP)]:
        prefix = "" if entry.name.startswith("_") else f"{entry.name}."
        try:
            with redirect_stdout(sys.stderr):
                for below, module in _modules(entry.load()):
                    found |= {prefix + below + n: getattr(module, n) for n in public(module)}
        except (Exception, SystemExit) as error:
            if entry.group == OF_TORCHX and not (prefix and asked.startswith(prefix)):
                continue
            raise UsageError(
                f"can't load the components {entry.name} ({entry.value}): "
                f"{type(error).__name__}: {error}",
                hint=_without_torchx(error),
            ) from None
    return found


def _modules(module: ModuleType) -> Iterator[tuple[str, ModuleType]]:
    """Yield a module and, if it is a package, its submodules, each with its name as a prefix."""
    from pkgutil import walk_packages

    yield "", module
    start = f"{module.__name__}."
    for each in walk_packages(getattr(module, "__path__", ()), start):
        yield each.name.removeprefix(start) + ".", import_module(each.name)


def public(module: ModuleType) -> list[str]:
    """Return the names of the public functions that a module defines."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and not isinstance(value, type)
        and getattr(value, "__module__", "") == module.__name__
    ]


def build(
    address: str,
    words: Sequence[str],
    given: Mapping[str, Any],
    settings: Mapping[str, str],
    launcher: str,
) -> tuple[AppDef, str]:
    """Return the app that a component creates, and the script that a built-in component runs (or
    an empty string).

    Args:
        address: the address of the component.
        words: its command line.
        given: its arguments from JSON or Python.
        settings: its arguments from a settings file.
        launcher: the launcher that built-in components use.

    Raises:
        UsageError: if there is no such component, an argument is invalid, or the component fails.
        HelpAskedError: if the command line contains `--help`.
    """
    function = find(address)
    signature = arguments.read_signature(address, function)
    args, kwargs = arguments.bind(signature, words, settings, given)
    script = kwargs.get("script") if address in components.names() else None
    return call(address, function, args, kwargs, launcher), script or ""


def call(
    address: str, function: Component, args: Sequence[Any], kwargs: dict[str, Any], launcher: str
) -> AppDef:
    """Call a component and return its app.

    Raises:
        UsageError: if it raises an exception, or returns something other than an app.
    """
    token = components.launcher.set(launcher)
    try:
        with redirect_stdout(sys.stderr):  # stdout is reserved for the result
            found = function(*args, **kwargs)
            if isinstance(function, type):
                found = found.build()
    except RelightError:
        raise
    except (Exception, SystemExit) as error:
        where = error_location(error, source_file(function))
        raise UsageError(f"{address} failed in {where}: {one_line(error)}") from None
    finally:
        components.launcher.reset(token)
    return torchx_components.to_app(found, address)


def _load_file(place: str, name: str) -> Component:
    if os.path.isfile(place):
        return _load_module(_load(place), name, place)
    if place.endswith(".py") or "/" in place or not _exists(place):
        what = "file" if place.endswith(".py") or "/" in place else "file or module"
        raise UsageError(f"no such {what}: {place}", hint=_similar(place))
    return _load_module(_import(place), name, place)


def _load_module(module: ModuleType, name: str, place: str) -> Component:
    found = getattr(module, name, None)
    if isinstance(found, type) and hasattr(found, "build"):
        return found
    if callable(found) and not isinstance(found, type):
        return found  # type: ignore[no-any-return]
    known = public(module)
    hint = did_you_mean(name, known, f"it has {', '.join(known) or 'no functions'}")
    what = f"{name} in {place} is not a function" if found is not None else f"no {name} in {place}"
    raise UsageError(f"there is {what}" if found is None else what, hint=hint)


def _load(path: str) -> ModuleType:
    """Import a file, as part of its package if it belongs to one."""
    import importlib.util

    full = os.path.realpath(path)
    for module in list(sys.modules.values()):
        if _is_file(getattr(module, "__file__", None) or "", full):
            return module
    folder, file = os.path.split(full)
    name = os.path.splitext(file)[0]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        name = f"{package}.{name}"
    if folder not in sys.path:
        sys.path.append(folder)
    if "." in name:
        return _import(name, full)
    while name in sys.modules or name in sys.stdlib_module_names:
        name += "_1"
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file", hint="path/file.py:function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader = spec.loader
    try:
        _guarded(lambda: loader.exec_module(module), path)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_file(path: str, full: str) -> bool:
    """Return whether a path leads to the file `full`, without resolving links in vain."""
    try:
        return os.path.samefile(path, full) and os.path.realpath(path) == full
    except OSError:
        return False


def _import(name: str, path: str = "") -> ModuleType:
    found: ModuleType = _guarded(lambda: import_module(name), path or name)
    return found


def _guarded(load: Callable[[], Any], path: str) -> Any:
    """Run a file's own code, converting any exception that it raises to a one-line error."""
    try:
        with redirect_stdout(sys.stderr):
            return load()
    except (Exception, SystemExit) as error:
        hint = _without_torchx(error)
        where = error_location(error, path)
        raise UsageError(f"can't load {where}: {one_line(error)}", hint=hint) from None


def _without_torchx(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "torchx":
        return "use `import relight.job as specs` instead, or pip install torchx-nightly"
    return ""


def _exists(module: str) -> bool:
    """Return whether a module with this name can be found. This imports its parent packages."""
    from importlib.util import find_spec

    if not all(part.isidentifier() for part in module.split(".")):
        return False
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _similar(path: str) -> str:
    folder, name = os.path.split(path)
    try:
        names = [each for each in os.listdir(folder or ".") if each.endswith(".py")]
    except OSError:
        return f"no such directory: {folder}"
    meant = closest_match(name, names)
    return f"did you mean {os.path.join(folder, meant)}?" if meant else "relight components"
