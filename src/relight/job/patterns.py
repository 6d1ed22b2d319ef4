"""Implements the patterns in a .gitignore file, which exclude paths from a copy.

The rules are git's (gitignore(5)). The last matching pattern takes precedence, a pattern that
begins with `!` re-includes a path, and paths below an ignored directory are not visited.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": " \\t", "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9", "graph": "\\x21-\\x7e", "lower": "a-z", "print": "\\x20-\\x7e",
    "punct": "!-/:-@\\[-`{-~", "space": "\\s", "upper": "A-Z", "xdigit": "0-9a-fA-F",
}  # fmt: skip


class Pattern(NamedTuple):
    """A line with a pattern. The `takes_back` field is true if the line begins with `!`. If `whole`
    is true, the pattern is matched against the whole path instead of its last component. The
    `regex` field is None for a line that never matches in git, such as `[`.
    """

    regex: re.Pattern[str] | None
    takes_back: bool
    directories_only: bool
    whole: bool


def parse(lines: Iterable[str]) -> tuple[Pattern, ...]:
    """Parse the lines of an ignore file into patterns, skipping comments and empty lines."""
    found = []
    for line in lines:
        text = line.rstrip("\r\n")
        while text.endswith((" ", "\t")) and not text.endswith("\\ "):
            text = text[:-1]
        if text and not text.startswith("#"):
            found.append(_pattern(text))
    return tuple(found)


def verdict(patterns: Sequence[Pattern], path: str, is_directory: bool) -> bool | None:
    """Return whether a path is ignored, given that its directory is not, or None if no pattern
    matches.

    Args:
        patterns: the patterns, in file order.
        path: the path, relative to the file's directory, with `/` as the separator.
        is_directory: whether the path is a directory; false for a symbolic link, regardless of its
            target.
    """
    name = path.rpartition("/")[2]
    for pattern in reversed(patterns):
        if pattern.regex is None or (pattern.directories_only and not is_directory):
            continue
        if pattern.regex.fullmatch(path if pattern.whole else name):
            return not pattern.takes_back
    return None


def _pattern(text: str) -> Pattern:
    takes_back = text.startswith("!")
    text = text.removeprefix("!")
    directories_only = text.endswith("/")
    text = text.removesuffix("/")
    whole = "/" in text
    regex = to_regex(text.removeprefix("/"))
    compiled = None if regex is None else re.compile(regex, re.DOTALL)
    return Pattern(compiled, takes_back, directories_only, whole)


def to_regex(text: str) -> str | None:
    """Convert a pattern to a regular expression, or return None if it never matches, such as
    `[`.
    """
    out = ""
    at = 0
    while at < len(text):
        char = text[at]
        if char == "*":
            end = at
            while text[end : end + 1] == "*":
                end += 1
            starts = at == 0 or text[at - 1] == "/"
            if end - at == 2 and starts and end == len(text):
                out += ".*"
            elif end - at == 2 and starts and text[end] == "/":
                out += "(?:.*/)?"
                end += 1
            else:
                out += "[^/]*"
            at = end
            continue
        at += 1
        if char == "?":
            out += "[^/]"
        elif char == "[":
            at, brackets = _brackets(text, at)
            if not brackets:
                return None
            out += "(?!/)" + brackets
        elif char == "\\":
            if at == len(text):
                return None
            out += re.escape(text[at])
            at += 1
        else:
            out += re.escape(char)
    return out


def _brackets(text: str, at: int) -> tuple[int, str]:
    """Parse the bracket expression `[…]` that begins just before `at`. Return the position after it
    and its regex. The regex is empty if the bracket is not closed or contains an unknown [:class:].
    """
    negated = text[at : at + 1] in ("!", "^")
    at += negated
    inside = ""
    first = True
    while at < len(text):
        if text[at] == "]" and not first:
            if not inside:
                return at + 1, "." if negated else "(?!)"
            return at + 1, f"[{'^' if negated else ''}{inside}]"
        first = False
        if text.startswith("[:", at):
            end = text.find("]", at + 2)
            name = text[at + 2 : end - 1] if end > at + 2 and text[end - 1] == ":" else None
            if end < 0 or (name is not None and name not in _CLASSES):
                return at, ""
            if name is not None:
                inside += _CLASSES[name]
                at = end + 1
                continue
        low, at = _one(text, at)
        high = low
        if text[at : at + 1] == "-" and text[at + 1 : at + 2] not in ("", "]"):
            high, at = _one(text, at + 1)
        # For a reversed range, git uses the first character.
        inside += f"{re.escape(low)}-{re.escape(max(low, high))}"
    return at, ""


def _one(text: str, at: int) -> tuple[str, int]:
    """Return the next character of a bracket expression, unescaped, and the position after it."""
    at += text[at] == "\\" and at + 1 < len(text)
    return text[at], at + 1
