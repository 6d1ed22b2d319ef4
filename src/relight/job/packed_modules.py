"""Imports modules in the one-file launcher, which stores all of them in a single archive member.

Compressed together, the modules take up a quarter less space than they would as separate members.
`launcher_file.py` writes the member and adds this file as `relight/packed_modules.py`.

The finder handles only this package's directories. `sys.meta_path` and `sys.path_hooks` are not
modified, because workers forked from a warm process would inherit the change.
"""

import itertools
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MEMBER = "relight/modules"
"""The archive member. It contains a line `PATH SIZE` for each module, then an empty line, and then
the modules' sources. If the launcher is split into parts, the parts contain this text instead,
compressed with zlib.
"""


def pack(sources: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the content of `MEMBER`, given the path (such as `relight/agent/node.py`) and the
    source of each module.
    """
    sources = list(sources)
    index = "".join(f"{path} {len(source)}\n" for path, source in sources)
    return index.encode() + b"\n" + b"".join(source for _, source in sources)


def part(archive: str, number: int) -> str:
    """Return the path of one of the parts that belong to an archive."""
    return f"{archive}.{number}"


class PackedModules:
    """An import finder and loader for packed modules.

    Args:
        archive: the archive's path, used as the prefix of the modules' file names.
        packed: the result of `pack`.
        get_data: returns the content of another file in the archive, given its path.
    """

    def __init__(self, archive: str, packed: bytes, get_data: Callable[[str], bytes]) -> None:
        self._archive = archive
        self.get_data = get_data
        self._sources: dict[str, bytes] = {}
        index, _, rest = packed.partition(b"\n\n")
        begin = 0
        for line in index.decode().split("\n"):
            path, _, size = line.rpartition(" ")
            self._sources[path] = rest[begin : begin + int(size)]
            begin += int(size)

    def folders(self) -> set[str]:
        """Return the virtual directories that contain the modules."""
        return {f"{self._archive}/{path.rpartition('/')[0]}" for path in self._sources}

    def find_spec(self, name: str, target: object = None) -> ModuleSpec | None:
        """Return a packed module's spec, or None for any other module."""
        del target
        place = name.replace(".", "/")
        for path, is_package in ((f"{place}/__init__.py", True), (f"{place}.py", False)):
            if path in self._sources:
                origin = f"{self._archive}/{path}"
                spec = ModuleSpec(name, self, origin=origin, is_package=is_package)  # type: ignore[arg-type]
                spec.has_location = True
                if is_package:
                    spec.submodule_search_locations = [f"{self._archive}/{place}"]
                return spec
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return None, so that the import system creates the module."""
        del spec
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Execute a module in its namespace."""
        source, file = self.get_source(module.__name__), module.__spec__.origin  # type: ignore[union-attr]
        exec(compile(source, str(file), "exec", dont_inherit=True), module.__dict__)  # noqa: S102

    def get_source(self, name: str) -> str:
        """Return a module's source, for display in tracebacks."""
        spec = self.find_spec(name)
        if spec is None:
            raise ImportError(f"no packed module {name}", name=name)
        return self._sources[str(spec.origin)[len(self._archive) + 1 :]].decode()


def install(package: Any) -> None:
    """Make the archive's `relight` package find its packed modules."""
    archive = package.__loader__.archive
    package.__path__ = [f"{archive}/relight"]
    get_data = package.__loader__.get_data
    try:
        packed = get_data(f"{archive}/{MEMBER}")
    except OSError:  # the archive has no such member
        packed = zlib.decompress(b"".join(_parts(archive)))
    modules = PackedModules(archive, packed, get_data)
    for folder in modules.folders():
        sys.path_importer_cache[folder] = modules


def _parts(archive: str) -> Iterator[bytes]:
    paths = (part(archive, number) for number in itertools.count())
    for path in itertools.takewhile(os.path.exists, paths):
        with open(path, "rb") as file:
            yield file.read()
