"""The patterns of a .dockerignore file, for paths to leave out of a copy.

The rules are Docker's (github.com/moby/patternmatcher): a pattern is matched against the whole path
and its parents, so `data` does not match `x/data` but matches `data/x`. `*` does not match slashes,
`**` does. The last pattern that matches decides, `!` includes a path again, also below an ignored
directory.
"""

import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relight.job.patterns import regex_of


class Pattern(NamedTuple):
    """One line. `takes_back` is true for `!`; `text` is without it."""

    text: str
    regex: re.Pattern[str]
    takes_back: bool


def parse(lines: Iterable[str]) -> list[Pattern]:
    """Return the patterns of the lines of a file."""
    found = []
    for line in lines:
        word = line.strip()
        if not word or word.startswith("#"):
            continue
        takes_back = word.startswith("!")
        text = posixpath.normpath(word.removeprefix("!").strip()).lstrip("/")
        regex = regex_of(text)
        if text not in ("", ".") and regex is not None:
            whole = re.compile(f"(?:{regex})(?:/.*)?", re.DOTALL)
            found.append(Pattern(text, whole, takes_back))
    return found


def verdict(patterns: Sequence[Pattern], path: str, is_directory: bool) -> bool | None:
    """Return whether a path is ignored; None if no pattern matches.

    Args:
        patterns: in the order of the file.
        path: relative to the directory of the file.
        is_directory: an ignored directory is visited if `!` may re-include paths below it.
    """
    last = next((each for each in reversed(patterns) if each.regex.fullmatch(path)), None)
    if last is None:
        return None
    if last.takes_back or not is_directory:
        return not last.takes_back
    return not any(each.takes_back and _may_be_below(each.text, path) for each in patterns)


def _may_be_below(pattern: str, directory: str) -> bool:
    """Return whether a pattern with this text may match something below a directory."""
    literal = re.split(r"[*?\[\\]", pattern, maxsplit=1)[0]
    return literal.startswith(f"{directory}/") or (
        literal != pattern and f"{directory}/".startswith(literal)
    )
