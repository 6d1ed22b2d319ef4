"""The patterns of a .torchxignore file: which paths of a directory are not copied.

The rules are TorchX's (torchx.workspace.api, nightly 2026-10), not git's: a pattern is matched
against the whole path, so `data` does not match `x/data`, but `*` matches slashes too; `#` begins a
comment anywhere in a line; spaces around a pattern are ignored. The last pattern that matches
decides, `!` includes a path again, and below a directory that was included again only the patterns
after that one count.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

ALWAYS = "Dockerfile.torchx"


def parse(lines: Iterable[str]) -> list[str]:
    """Return the patterns of the lines of a file."""
    texts = (line.partition("#")[0].strip() for line in lines)
    return [text for text in texts if text not in ("", ".")]


def verdict(patterns: Sequence[str], path: str) -> bool | None:
    """Return whether a path is ignored; None if no pattern matches.

    Args:
        patterns: in the order of the file.
        path: relative to the directory of the file; its parent directories are not ignored.
    """
    if path == ALWAYS:
        return False
    start, parts = 0, path.split("/")
    for depth in range(1, len(parts)):
        start += _last("/".join(parts[:depth]), patterns[start:]) + 1
    number = _last(path, patterns[start:])
    return None if number < 0 else not _takes_back(patterns[start + number], path)


def _last(path: str, patterns: Sequence[str]) -> int:
    """Return the index of the last pattern that matches, -1 if none does."""
    for number in range(len(patterns) - 1, -1, -1):
        if fnmatchcase(path, patterns[number]) or _takes_back(patterns[number], path):
            return number
    return -1


def _takes_back(pattern: str, path: str) -> bool:
    return pattern.startswith("!") and fnmatchcase(path, pattern[1:])
