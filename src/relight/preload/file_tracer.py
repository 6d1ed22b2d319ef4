"""Records the files that imports have read. If one of these files has changed, a new process would
import something different.

    files           are those of modules and of the interpreter, and all others that an import has
                    opened. Of files that are not code, the content is compared. Of the linker's
                    cache, only the entries for the libraries in use are compared. Such files are
                    often rewritten without a change
    directories     are those in which modules are looked up, and others that an import has listed.
                    In the former, only the names that can be imported are compared, so that edits
                    to files that imports haven't read don't matter. In the latter, all names are
                    compared

Two kinds of files are not detected: files that an import has only checked with stat(2), and files
opened by compiled code, except for shared libraries.
"""

import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.machinery import all_suffixes
from typing import Any, NamedTuple

from relight.host.devices import entries
from relight.preload.env_tracer import importing_module
from relight.preload.speculative_import import UnfitError

_SYSTEM = ("/proc/", "/dev/", "/sys/")
_WRITES = os.O_WRONLY | os.O_RDWR
_CACHE = "/etc/ld.so.cache"
_LINKER = ("/etc/ld.so.preload",)
_MAX_DATA = 1 << 20
"""The maximum size in bytes of a file whose content is compared."""
_LISTINGS = ("os.listdir", "os.scandir")
_EVENTS = ("open", "os.exec", "os.posix_spawn", "os.system", "subprocess.Popen", *_LISTINGS)
"""Audit events for opening files, listing directories and running programs."""
_OURS = ("relight", "sitecustomize")
_CLOCK_NS = 20_000_000
"""File systems record the time of the kernel's last clock tick. If a file changed right after this
process started, its recorded time may therefore be earlier than the start time.
"""
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+")
_QUOTED = re.compile(r"""["']([A-Za-z_]\w*)["']""")


class _File(NamedTuple):
    """A file's metadata, compared to detect changes without reading the file."""

    modified_ns: int
    changed_ns: int
    size: int
    inode: int
    device: int


class Inputs:
    """Records all files opened for reading after the creation of this object.

    Args:
        began_ns: when this process was started, in nanoseconds since 1970. The content of files
            that changed after that time may differ from what the imports have read.

    Attributes:
        variables: name prefixes of variables that imports depend on, in addition to those that
            `preload/env_tracer.py` records. They are read by programs that imports run, and by
            `.pth` files.
        words: names of variables that may have been read, before this object existed, by modules
            that `.pth` files import.
    """

    def __init__(self, began_ns: int) -> None:
        self.variables: set[str] = {"COVERAGE_"}
        self.words = _module_words()
        self._began_ns = began_ns - _CLOCK_NS
        self._opened: set[str] = set()
        self._new: dict[str, str] = {}  # data files opened since `check`, each with its module
        self._files: dict[str, _File | None] = {}
        self._contents: dict[str, str] = {}
        self._libraries = ""
        self._directories: dict[str, tuple[int, frozenset[str]]] = {}
        self._listed: dict[str, frozenset[str]] = {}
        self._records = True
        sys.addaudithook(self._note)

    def end(self) -> str:
        """Stop recording, and return a file that has changed since recording began, or an empty
        string.
        """
        self._records = False
        paths = {os.path.abspath(path) for path in self._opened}
        paths.update(_module_files(), _interpreter_files(), _LINKER)
        paths.discard(_CACHE)
        self._files = {path: _file(path) for path in sorted(paths) if _counts(path)}
        self._libraries = _linked()
        self._directories = {path: _directory(path) for path in sorted(_searched())}
        lists = {path for path in self._listed if _counts(path, is_file=False)}
        self._listed = {path: _names(path) for path in sorted(lists - self._directories.keys())}
        self._opened.clear()
        for path, file in self._files.items():
            if path.endswith(".pth"):
                self.variables.update(_VARIABLE.findall(_text(path)))
            is_new = file is not None and file.modified_ns > self._began_ns
            if is_new and self._contents.get(path) != _content(path):
                return f"{path} changed while it was being imported"
        return ""

    def check(self) -> None:
        """Raise UnfitError if a module opened a file that has changed since this process started.
        Only files opened since the last call count.
        """
        new, self._new = self._new, {}
        for path, module in new.items():
            file = _file(path)
            if file is None or not _counts(path):
                continue
            self._contents.setdefault(path, _content(path))
            if file.modified_ns > self._began_ns:
                reason = f"{module} reads {path}, which has changed in the meantime"
                raise UnfitError(module, reason, lasting=False)

    def changed(self) -> str:
        """Describe the first file or directory that has changed, or return an empty string if
        nothing has changed.
        """
        for path, file in self._files.items():
            now = _file(path)
            if now != file:
                if now is not None and self._contents.get(path) == _content(path):
                    self._files[path] = now
                    continue
                what = "was removed" if now is None else "is new" if file is None else "has changed"
                return f"{path} {what}"
        if _linked() != self._libraries:
            return f"{_CACHE} refers to different files for libraries in use"
        for path, (modified_ns, names) in self._directories.items():
            if _modified_ns(path) != modified_ns:
                modified_ns, now_names = _directory(path)
                if now_names != names:
                    which = ", ".join(sorted(now_names ^ names)[:3])
                    return f"{path} contains different modules: {which}"
                self._directories[path] = modified_ns, names
        for path, names in self._listed.items():
            if (now_names := _names(path)) != names:
                return (
                    f"{path} contains different files: {', '.join(sorted(now_names ^ names)[:3])}"
                )
        return ""

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._records or not event.startswith(_EVENTS):
            return
        top = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]
        if top == "relight":
            return  # for example, it reads the script
        if event in _LISTINGS:
            if top != "importlib" and isinstance(arguments[0], (str, bytes)):
                self._listed[os.path.abspath(os.fsdecode(arguments[0]))] = frozenset()
        elif event == "open":
            path, _, flags = arguments
            if isinstance(path, (str, bytes)) and not (isinstance(flags, int) and flags & _WRITES):
                name = os.fsdecode(path)
                self._opened.add(name)
                if _is_data(name):
                    self._new[os.path.abspath(name)] = importing_module(sys._getframe(1))
        else:
            self.variables.add("PATH")


def _counts(path: str, *, is_file: bool = True) -> bool:
    """Return whether a file may differ between jobs. Bytecode files don't count, because their
    source files do.
    """
    is_other = path.startswith(_SYSTEM) or "__pycache__" in path
    return not is_other and os.path.isdir(path) != is_file


def _is_data(path: str) -> bool:
    return not path.endswith((*all_suffixes(), ".pth")) and ".so." not in path


def _content(path: str) -> str:
    """Return a digest of a small file, or a unique value for a large file."""
    data = _read(path, _MAX_DATA + 1)
    return hashlib.sha256(data).hexdigest() if len(data) <= _MAX_DATA else os.urandom(16).hex()


def _linked() -> str:
    """Return a digest of the entries in the linker's cache for the libraries that are in use."""
    words = _read(_CACHE).split(b"\0")
    used = {os.fsencode(os.path.basename(path)) for path in _mapped()}
    found = [word for word in words if word[:1] == b"/" and os.path.basename(word) in used]
    return hashlib.sha256(b"\0".join(found)).hexdigest()


def _module_words() -> set[str]:
    """Return the quoted words in the source of the modules that have been loaded so far. The
    standard library is excluded, because the variables that it reads at interpreter startup have
    known names.
    """
    standard = os.path.dirname(os.__file__) + os.sep
    words = set[str]()
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        is_standard = path.startswith(standard) and "-packages" not in path
        if path.endswith(".py") and not is_standard and name.partition(".")[0] not in _OURS:
            words.update(_QUOTED.findall(_text(path)))
    return words


def _module_files() -> Iterator[str]:
    for module in list(sys.modules.values()):
        path = getattr(module, "__dict__", {}).get("__file__")
        # Some libraries have modules without a file that nevertheless set `__file__` (torch.ops:
        # "_ops.py").
        if isinstance(path, str) and os.path.isabs(path):
            yield path


def _interpreter_files() -> Iterator[str]:
    """Yield the interpreter's program, its shared libraries, and the files that determine its
    import path.
    """
    yield os.path.realpath("/proc/self/exe")
    yield os.path.join(sys.prefix, "pyvenv.cfg")
    yield from _mapped()
    for folder in _searched():
        yield from (os.path.join(folder, name) for name in entries(folder) if name.endswith(".pth"))


def _mapped() -> Iterator[str]:
    """Yield the files that are mapped into memory, such as shared libraries."""
    with open("/proc/self/maps") as file:
        for line in file:
            words = line.split(maxsplit=5)
            if len(words) == 6 and words[5].startswith("/"):
                path = words[5].rstrip("\n")
                if not path.startswith("/memfd:") and not path.endswith(" (deleted)"):
                    yield path


def _searched() -> set[str]:
    """Return the directories that are searched for modules, including directories that do not
    exist.
    """
    found = {path for path in sys.path if path and os.path.isabs(path)}
    found.update(path for path in sysconfig.get_paths().values() if path.endswith("-packages"))
    for module in list(sys.modules.values()):
        places = getattr(module, "__dict__", {}).get("__path__")
        try:
            found.update(path for path in places or () if os.path.isabs(path))
        except Exception:  # noqa: S112  # a package's object may raise any exception
            continue
    return found


def _file(path: str) -> _File | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    times = found.st_mtime_ns, found.st_ctime_ns
    return _File(*times, found.st_size, found.st_ino, found.st_dev)


def _modified_ns(path: str) -> int:
    file = _file(path)
    return 0 if file is None else file.modified_ns


def _directory(path: str) -> tuple[int, frozenset[str]]:
    modified_ns = _modified_ns(path)  # read before the names, to detect a later change next time
    return modified_ns, frozenset(_importable(entries(path)))


def _names(path: str) -> frozenset[str]:
    return frozenset(name for name in entries(path) if name != "__pycache__")


def _importable(names: Iterable[str]) -> Iterator[str]:
    endings = (*all_suffixes(), ".pth", ".egg-link", "-info", ".egg")
    for name in names:
        is_hidden = name.startswith(".") or name == "__pycache__"
        if not is_hidden and (name.endswith(endings) or "." not in name):
            yield name


def _text(path: str) -> str:
    return _read(path, 1 << 16).decode(errors="replace")


def _read(path: str, size: int = -1) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError:
        return b""
