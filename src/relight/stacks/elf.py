"""Finds the addresses of interpreter symbols in a process, from its ELF files (elf(5)).

The symbols are in the executable or in libpython*.so. `.dynsym` always contains them, because
extension modules need them, whereas a stripped file has no `.symtab`. Python 3.13 and later also
have a `.PyRuntime` section (Include/internal/pycore_runtime.h), which begins with `_PyRuntime`.
"""

import errno
import os
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from relight.stacks.process_memory import StackError, forbidden, gone

RUNTIME = "_PyRuntime"
_NAMES = (RUNTIME, "Py_Version", "PyCode_Type", "PyUnicode_Type", "PyBytes_Type")
_SECTION = b".PyRuntime"
_PAGE = 4096
_MAX_HEADERS = 2000
_MAX_SYMBOLS = 64 << 20
"""The maximum size of a symbol table in bytes."""
_MAX_MAPS = 8 << 20
"""The maximum number of bytes read from /proc/PID/maps."""
_SYMTAB, _DYNSYM = 2, 11
_LOAD = 1
_DYNAMIC_FILE = 3
_known: dict[tuple[int, int, int, int], dict[str, int]] = {}
"""The symbols of each file, by its identity, because reading them takes long."""
_MAX_FILES = 16


class _Mapping(NamedTuple):
    start: int
    offset: int
    path: str


class _Section(NamedTuple):
    name: int
    kind: int
    address: int
    offset: int
    size: int
    link: int


def addresses(pid: int) -> dict[str, int]:
    """Return the addresses of `_PyRuntime` and of other required symbols in a process.

    Raises:
        StackError: if the process isn't a Python process, has exited, or may not be read.
    """
    try:
        mappings = _mappings(pid)
    except (FileNotFoundError, ProcessLookupError):
        raise gone(pid) from None
    except OSError as error:
        raise forbidden(pid, error) from None
    executable = _executable(pid)
    for mapping in mappings:
        name = os.path.basename(mapping.path)
        if mapping.path != executable and not name.startswith("libpython"):
            continue
        try:
            found = _read_symbols(pid, mapping, is_executable=mapping.path == executable)
        except (OSError, struct.error, ValueError, OverflowError):
            continue  # the file was replaced on disk, or isn't a supported ELF file
        if RUNTIME in found:
            return found
    if any(_may_be_python(mapping.path) for mapping in mappings):
        raise StackError(
            f"the Python in process {pid} is not CPython for 64-bit Linux, or its file has been "
            "replaced since",
            hint="pip install py-spy, which is then used",
            unreadable=True,
        )
    raise StackError(
        f"process {pid} is not a Python process: it runs {executable or 'no program'}",
        hint="give the pid of an agent, a worker or any other Python process",
    )


def is_python(pid: int) -> bool:
    """Return whether a process contains CPython, judging by the names of the files that it has
    mapped.
    """
    if _may_be_python(_executable(pid)):
        return True  # its mappings, which may be thousands, don't matter
    try:
        return any(_may_be_python(mapping.path) for mapping in _mappings(pid))
    except OSError:
        return False


def has_left(pid: int) -> bool:
    """Return whether a process has exited, or is exiting so that the system is already freeing its
    memory. Return False if this is unknown because /proc is missing.
    """
    try:
        os.readlink(f"/proc/{pid}/exe")
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ESRCH) and os.path.lexists("/proc/self/exe")
    return False


def _may_be_python(path: str) -> bool:
    return os.path.basename(path).startswith(("libpython", "python", "pypy"))


def _mappings(pid: int) -> list[_Mapping]:
    """Return the first mapping of each file, sorted by address."""
    with open(f"/proc/{pid}/maps", "rb") as file:
        text = os.fsdecode(file.read(_MAX_MAPS))
    found: dict[str, _Mapping] = {}
    for line in text.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/"):
            start = int(fields[0].partition("-")[0], 16)
            found.setdefault(fields[5], _Mapping(start, int(fields[2], 16), fields[5]))
    return list(found.values())


def _executable(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def _read_symbols(pid: int, mapping: _Mapping, *, is_executable: bool) -> dict[str, int]:
    """Return the addresses of the symbols that a file defines in a process."""
    # Open the file through /proc, which shows it as the process sees it, even if the process runs
    # in its own container.
    path = f"/proc/{pid}/exe" if is_executable else f"/proc/{pid}/root{mapping.path}"
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        header = os.pread(fd, 64, 0)
        if header[:6] != b"\x7fELF\x02\x01":  # a 64-bit little-endian file
            return {}
        bias = _bias(fd, header, mapping)
        status = os.fstat(fd)
        key = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        found = _known.get(key)
        if found is None:
            if len(_known) == _MAX_FILES:
                _known.clear()
            found = _known[key] = _values(fd, header)
        return {name: value + bias for name, value in found.items()}
    finally:
        os.close(fd)


def _values(fd: int, header: bytes) -> dict[str, int]:
    """Return the values of the symbols in an ELF file."""
    sections = list(_sections(fd, header))
    found: dict[str, int] = {}
    for kind in (_DYNSYM, _SYMTAB):
        for section in sections:
            if section.kind == kind and RUNTIME not in found:
                found |= _defined(fd, section, sections)
    if RUNTIME not in found:
        found |= _section_address(fd, header, sections)
    return found


def _bias(fd: int, header: bytes, mapping: _Mapping) -> int:
    """Return the load bias: the difference between the mapping's address and the address in the
    file.
    """
    if struct.unpack_from("<H", header, 16)[0] != _DYNAMIC_FILE:
        return 0
    offset, size, number = _table(header, 32, 54)
    for at in range(0, min(number, _MAX_HEADERS) * size, size):
        entry = os.pread(fd, 56, offset + at)
        kind, _, place, address = struct.unpack_from("<IIQQ", entry)
        if kind == _LOAD and place // _PAGE * _PAGE == mapping.offset:
            return mapping.start - int(address) // _PAGE * _PAGE
    raise ValueError("no segment of the file is mapped there")


def _table(header: bytes, place: int, sizes: int) -> tuple[int, int, int]:
    """Return a table's offset in the file, the size of each entry, and the number of entries."""
    offset: int = struct.unpack_from("<Q", header, place)[0]
    size, number = struct.unpack_from("<HH", header, sizes)
    return offset, size, number


def _sections(fd: int, header: bytes) -> Iterator[_Section]:
    offset, size, number = _table(header, 40, 58)
    data = os.pread(fd, min(number, _MAX_HEADERS) * size, offset)
    for at in range(0, len(data) - 63, max(size, 64)):
        name, kind, _, address, place, length, link = struct.unpack_from("<IIQQQQI", data, at)
        yield _Section(name, kind, address, place, min(length, _MAX_SYMBOLS), link)


def _defined(fd: int, table: _Section, sections: Sequence[_Section]) -> dict[str, int]:
    """Return the addresses of the symbols that one of a file's tables defines."""
    if table.link >= len(sections):
        return {}
    names = sections[table.link]
    texts = os.pread(fd, names.size, names.offset)
    symbols = os.pread(fd, table.size, table.offset)
    found: dict[str, int] = {}
    for name in _NAMES:
        for index in _places(b"\0" + name.encode() + b"\0", texts, 1):
            # Each 24-byte entry begins with the index of its name.
            for at in _places(struct.pack("<I", index + 1), symbols, 24):
                _, _, section, value = struct.unpack_from("<IBxHQ", symbols, at)
                if section and value:  # otherwise, the symbol is only used here
                    found.setdefault(name, value)
    return found


def _places(part: bytes, whole: bytes, step: int) -> Iterator[int]:
    """Yield the positions of `part` in `whole` that are multiples of `step`."""
    at = whole.find(part)
    while at >= 0:
        if at % step == 0:
            yield at
        at = whole.find(part, at + 1)


def _section_address(fd: int, header: bytes, sections: Sequence[_Section]) -> dict[str, int]:
    index = struct.unpack_from("<H", header, 62)[0]
    if index >= len(sections):
        return {}
    texts = os.pread(fd, sections[index].size, sections[index].offset)
    for section in sections:
        if texts[section.name :].startswith(_SECTION + b"\0"):
            return {RUNTIME: section.address}
    return {}
