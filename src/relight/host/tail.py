"""Reads lines from files that are still growing, and from files that are created later."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from relight.base.errors import MachineError
from relight.base.text import LineBuffer
from relight.host import files

_POLL_S = 0.2


def _pause() -> None:
    time.sleep(_POLL_S)


def lines(
    find: Callable[[], Sequence[str]],
    is_live: Callable[[], bool],
    wait: Callable[[], object] = _pause,
) -> Iterator[str]:
    """Yield the same lines as `lines_by_path`, without the files' paths."""
    return (line for _, line in lines_by_path(find, is_live, wait))


def lines_by_path(
    find: Callable[[], Sequence[str]],
    is_live: Callable[[], bool],
    wait: Callable[[], object] = _pause,
) -> Iterator[tuple[str, str]]:
    """Yield the lines of files, each with its file's path, and then the lines that are added later,
    including an incomplete last line.

    Args:
        find: returns the paths, in the order in which to read them.
        is_live: returns whether more lines may follow. After it returns false, everything is read
            one last time.
        wait: waits until it is time to check again.

    Raises:
        MachineError: if a file can't be read.
    """
    opened: dict[str, tuple[BinaryIO, LineBuffer]] = {}
    try:
        while True:
            more = is_live()
            for path in find():
                if path not in opened:
                    opened[path] = _open(path), LineBuffer()
                file, buffer = opened[path]
                while data := file.read(1 << 20):
                    for line in buffer.feed(data):
                        yield path, line.decode(errors="replace")
            if not more:
                break
            wait()
        for path, (_, buffer) in opened.items():
            if buffer.rest:
                yield path, buffer.rest.decode(errors="replace")
    finally:
        for file, _ in opened.values():
            file.close()


def _open(path: str) -> BinaryIO:
    try:
        return files.opened(path)
    except OSError as error:
        raise MachineError(f"can't read {path}: {error.strerror}") from None
