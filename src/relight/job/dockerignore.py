"""Implements the patterns in a .dockerignore file, which exclude paths from a copy.

The rules are Docker's (github.com/moby/patternmatcher). A pattern is matched against the whole path
and its parents, so `data` does not match `x/data` but does match `data/x`. `*` does not match
slashes, but `**` does. The last matching pattern takes precedence. A pattern that begins with `!`
re-includes a path, even one below an ignored directory.
"""

import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relight.job.patterns import to_regex


class Pattern(NamedTuple):
    """A line with a pattern. The `takes_back` field is true if the line begins with `!`, which
    `text` omits.
    """

    text: str
    regex: re.Pattern[str]
    takes_back: bool


def parse(lines: Iterable[str]) -> list[Pattern]:
    """Parse the lines of a file into patterns."""
    found = []
    for line in lines:
        word = line.strip()
        if not word or word.startswith("#"):
            continue
        takes_back = word.startswith("!")
        text = posixpath.normpath(word.removeprefix("!").strip()).lstrip("/")
        regex = to_regex(text)
        if text not in ("", ".") and regex is not None:
            whole = re.compile(f"(?:{regex})(?:/.*)?", re.DOTALL)
            found.append(Pattern(text, whole, takes_back))
    return found


def verdict(patterns: Sequence[Pattern], path: str, is_directory: bool) -> bool | None:
    """Return whether a path is ignored, or None if no pattern matches.

    Args:
        patterns: the patterns, in file order.
        path: the path, relative to the file's directory.
        is_directory: whether the path is a directory. An ignored directory is visited if `!` may
            re-include paths below it.
    """
    last = next((each for each in reversed(patterns) if each.regex.fullmatch(path)), None)
    if last is None:
        return None
    if last.takes_back or not is_directory:
        return not last.takes_back
    return not any(each.takes_back and _may_be_below(each.text, path) for each in patterns)


def _may_be_below(pattern: str, directory: str) -> bool:
    """Return whether a pattern might match a path below a directory."""
    literal = re.split(r"[*?\[\\]", pattern, maxsplit=1)[0]
    return literal.startswith(f"{directory}/") or (
        literal != pattern and f"{directory}/".startswith(literal)
    )
