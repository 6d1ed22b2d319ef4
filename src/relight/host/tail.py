"""Reads the lines of files that may grow, and of files that come later."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from relight.base.errors import MachineError
from relight.host import files

_POLL_S = 0.2


def lines(find: Callable[[], Sequence[str]], goes_on: Callable[[], bool]) -> Iterator[str]:
    """Return the lines of files, as `lines_by_path` does."""
    return (line for _, line in lines_by_path(find, goes_on))


def lines_by_path(
    find: Callable[[], Sequence[str]], goes_on: Callable[[], bool]
) -> Iterator[tuple[str, str]]:
    """Return the lines of files with their paths, then those that are added, including an
    incomplete last one.

    Args:
        find: returns the paths, in the order in which they are read.
        goes_on: returns whether more may come; all is read once more after it has returned false.

    Raises:
        MachineError: if a file can't be read.
    """
    opened: dict[str, BinaryIO] = {}
    rests: dict[str, bytes] = {}
    try:
        while True:
            more = goes_on()
            for path in find():
                if path not in opened:
                    opened[path] = _open(path)
                while data := opened[path].read(1 << 20):
                    *complete, rests[path] = (rests.get(path, b"") + data).split(b"\n")
                    for line in complete:
                        yield path, line.decode(errors="replace")
            if not more:
                break
            time.sleep(_POLL_S)
        for path, rest in rests.items():
            if rest:
                yield path, rest.decode(errors="replace")
    finally:
        for file in opened.values():
            file.close()


def _open(path: str) -> BinaryIO:
    try:
        return files.opened(path)
    except OSError as error:
        raise MachineError(f"can't read {path}: {error.strerror}") from None
