"""Finds symbols in the executable, or in libpython, of a running process (ELF-64, elf(5))."""

import os
import struct
from functools import lru_cache

from relight.host.stacks.memory import StackError
from relight.typed import NamedTuple

_SYMBOLS = ("_PyRuntime", "Py_Version")
_DYNSYM, _SYMTAB = 11, 2
_DYN = 3
_LOAD = 1
_MOST_BYTES = 256 * 1024 * 1024


class Addresses(NamedTuple):
    """Where two variables of CPython are in a process. Py_Version exists since 3.11."""

    runtime: int
    version: int


def find(pid: int) -> Addresses:
    """Return the addresses of CPython's variables in a process.

    Raises:
        StackError: it is no Python 3.11 or later, or it is gone.
    """
    for path, base in _images(pid).items():
        # The file as the process sees it, which may be in a container.
        outside = f"/proc/{pid}/root{path}"
        try:
            stat = os.stat(outside)
            found = _symbols(outside, stat.st_mtime_ns, stat.st_size)
        except (OSError, struct.error, ValueError):
            continue  # it is not ELF-64, or was replaced since
        if found is not None:
            is_moved, runtime, version = found
            offset = base if is_moved else 0
            return Addresses(runtime + offset, version + offset)
    raise StackError(f"pid {pid} is no Python of version 3.11 or later")


def _images(pid: int) -> dict[str, int]:
    """Return the executable and the libpython of a process, with the addresses of their begin."""
    try:
        executable = os.readlink(f"/proc/{pid}/exe")
        with open(f"/proc/{pid}/maps", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        raise StackError(f"there is no process {pid}") from None
    except OSError as error:
        raise StackError(f"pid {pid} can't be read: {error.strerror}") from None
    images: dict[str, int] = {}
    for line in lines:
        fields = line.split(None, 5)
        if len(fields) == 6 and int(fields[2], 16) == 0:
            path = fields[5]
            if path == executable or os.path.basename(path).startswith("libpython"):
                images.setdefault(path, int(fields[0].partition("-")[0], 16))
    return images


@lru_cache(maxsize=32)
def _symbols(path: str, mtime_ns: int, size: int) -> tuple[bool, int, int] | None:
    """Return whether a file may be loaded anywhere, and the values of the symbols, then relative to
    its begin; None if it has not both.
    """
    del mtime_ns
    if size > _MOST_BYTES:
        return None
    with open(path, "rb") as file:
        header = file.read(64)
        if header[:5] != b"\x7fELF\x02":
            return None
        (kind,) = struct.unpack_from("<H", header, 16)
        programs, sections = struct.unpack_from("<QQ", header, 32)
        program_size, program_count, section_size, count = struct.unpack_from("<4H", header, 54)
        first = 0
        file.seek(programs)
        table = file.read(program_size * program_count)
        for index in range(program_count):
            if struct.unpack_from("<I", table, index * program_size)[0] == _LOAD:
                (first,) = struct.unpack_from("<Q", table, index * program_size + 16)
                break
        file.seek(sections)
        table = file.read(section_size * count)
        found: dict[str, int] = {}
        for index in range(count):
            at = index * section_size
            (section,) = struct.unpack_from("<I", table, at + 4)
            if section in (_DYNSYM, _SYMTAB):
                offset, length, link = struct.unpack_from("<QQI", table, at + 24)
                names = struct.unpack_from("<QQ", table, link * section_size + 24)
                _read_section(file.fileno(), (offset, length), names, found)
        if len(found) < len(_SYMBOLS):
            return None
        is_moved = kind == _DYN
        runtime, version = (found[name] - is_moved * first for name in _SYMBOLS)
        return is_moved, runtime, version


def _read_section(
    fd: int, symbols: tuple[int, int], names: tuple[int, int], found: dict[str, int]
) -> None:
    """Add the symbols of one section that are wanted and not found yet."""
    text = os.pread(fd, min(names[1], _MOST_BYTES), names[0])
    wanted = {}
    for name in set(_SYMBOLS) - found.keys():
        at = text.find(b"\0" + name.encode() + b"\0")
        if at >= 0:
            wanted[at + 1] = name
    if not wanted:
        return
    table = os.pread(fd, min(symbols[1], _MOST_BYTES), symbols[0])
    for place, _, _, section, value, _ in struct.iter_unpack(
        "<IBBHQQ", table[: len(table) // 24 * 24]
    ):
        symbol = wanted.get(place)
        if symbol and section:
            found.setdefault(symbol, value)
