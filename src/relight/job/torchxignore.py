"""Implements the patterns in a .torchxignore file, which exclude paths from a copy.

The rules are TorchX's (torchx.workspace.api, nightly 2026-10), not git's. A pattern is matched
against the whole path, so `data` does not match `x/data`, but `*` also matches slashes. `#` begins
a comment anywhere in a line, and spaces around a pattern are ignored. The last matching pattern
takes precedence. A pattern that begins with `!` re-includes a path. Below a re-included directory,
only the patterns after that one apply.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

ALWAYS = "Dockerfile.torchx"


def parse(lines: Iterable[str]) -> list[str]:
    """Parse the lines of a file into patterns."""
    texts = (line.partition("#")[0].strip() for line in lines)
    return [text for text in texts if text not in ("", ".")]


def verdict(patterns: Sequence[str], path: str, _is_directory: bool) -> bool | None:
    """Return whether a path is ignored, or None if no pattern matches.

    Args:
        patterns: the patterns, in file order.
        path: the path, relative to the file's directory. None of its parent directories may be
            ignored.
    """
    if path == ALWAYS:
        return False
    start, parts = 0, path.split("/")
    for depth in range(1, len(parts)):
        start += _last("/".join(parts[:depth]), patterns[start:]) + 1
    number = _last(path, patterns[start:])
    return None if number < 0 else not _takes_back(patterns[start + number], path)


def _last(path: str, patterns: Sequence[str]) -> int:
    """Return the index of the last matching pattern, or -1 if none matches."""
    for number in range(len(patterns) - 1, -1, -1):
        if fnmatchcase(path, patterns[number]) or _takes_back(patterns[number], path):
            return number
    return -1


def _takes_back(pattern: str, path: str) -> bool:
    return pattern.startswith("!") and fnmatchcase(path, pattern[1:])
