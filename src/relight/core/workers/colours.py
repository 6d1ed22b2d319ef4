"""Colours tracebacks in terminal output in the same way as CPython 3.13 (Lib/traceback.py,
Lib/_colorize.py). Output is coloured only if it goes to a terminal. `FORCE_COLOR` enables colours
even if TERM is `dumb`. This module is loaded only after a failure.
"""

import re
from collections.abc import Callable

from relight.core.diagnosis.traceback_lines import (
    frame_of,
    in_box,
    is_chained,
    is_exception,
    is_header,
    is_marks,
)

_RED, _BOLD_RED, _MAGENTA, _BOLD_MAGENTA = "\x1b[31m", "\x1b[1;31m", "\x1b[35m", "\x1b[1;35m"
_RESET = "\x1b[0m"
_PLACE = re.compile(r'File (".+"), line (\d+)(?:, in (.+))?$')
_EXCEPTION = re.compile(r"(?P<type>[\w.<>]+)(?:: (?P<message>.*))?$")
_MARKED = re.compile(r"~+|\^+")


def are_wanted(get: Callable[[str], str]) -> bool:
    """Return whether the environment enables colours on a terminal.

    Args:
        get: returns an environment variable, or an empty string if it is not set.
    """
    if get("PYTHON_COLORS") in ("0", "1"):
        return get("PYTHON_COLORS") == "1"
    if get("NO_COLOR"):
        return False
    return bool(get("FORCE_COLOR")) or get("TERM") != "dumb"


def coloured(text: str) -> str:
    """Colour the locations, exceptions and underlined code in a string's tracebacks."""
    lines = text.split("\n")
    result: list[str] = []
    inside = False
    for number, line in enumerate(lines):
        marks = lines[number + 1] if number + 1 < len(lines) else ""
        if is_header(line):
            inside = True
        elif not inside:
            pass
        elif frame_of(line) is not None:
            line = _PLACE.sub(_coloured_place, line)
        elif is_marks(line):
            line = _underlined(line, line)
        elif in_box(line).startswith(" "):
            line = _underlined(line, marks) if is_marks(marks) else line
        elif is_exception(line) and not is_chained(line):
            line = _EXCEPTION.sub(_coloured_exception, line)
            inside = in_box(line) != line  # a box contains several tracebacks
        result.append(line)
    return "\n".join(result)


def _coloured_place(match: "re.Match[str]") -> str:
    file, line, function = (each and f"{_MAGENTA}{each}{_RESET}" for each in match.groups())
    return f"File {file}, line {line}" + (f", in {function}" if function else "")


def _coloured_exception(match: "re.Match[str]") -> str:
    message = match["message"]
    end = f": {message and _MAGENTA + message + _RESET}" if message is not None else ""
    return f"{_BOLD_MAGENTA}{match['type']}{_RESET}{end}"


def _underlined(line: str, marks: str) -> str:
    """Return a line with its marked columns coloured."""
    parts, end = [], 0
    for match in _MARKED.finditer(marks):
        first, last = match.span()
        colour = _RED if match[0].startswith("~") else _BOLD_RED
        if first < len(line):
            parts += [line[end:first], colour, line[first:last], _RESET]
            end = last
    return "".join([*parts, line[end:]])
