"""Formats the status line that a terminal shows while the agent is waiting, and determines when the
line has to change.
"""

import re

from relight.base.text import format_duration

_LEFT = re.compile(r"(?<=\(join timeout in )(?:(\d+) h ?)?(?:(\d+) min ?)?(?:(\d+) s)?(?=\)$)")
"""Matches the end of a line from core/group/group_messages."""
_CLEAR, _DIM, _PLAIN = "\r\x1b[K", "\x1b[2m", "\x1b[0m"


def line(what: str, waited_s: float, columns: int) -> str:
    """Return a status line that fits into one row of the terminal.

    Args:
        what: the event that the agent is waiting for.
        waited_s: how long it has been waiting so far.
        columns: the width of the terminal, or 0 if unknown.
    """
    text = f"relight: {format_duration(waited_s)}: {what}"
    text = "".join(each if each.isprintable() else "?" for each in text)
    most = (columns or 80) - 1  # after the last column, some terminals start the next row
    return text if len(text) <= most else text[: max(most - 1, 0)] + "…"


def drawn(text: str, *, coloured: bool) -> str:
    """Return the bytes that replace a terminal's current line with this text."""
    return _CLEAR + (f"{_DIM}{text}{_PLAIN}" if coloured and text else text)


def until_next(waited_s: float) -> float:
    """Return how many seconds remain until the status line changes."""
    return 1.0 - waited_s % 1.0


def counted_down(text: str, passed_s: float) -> str:
    """Update the remaining time in a line that `core/group/group_messages` formatted `passed_s`
    seconds ago.
    """

    def now_left(match: "re.Match[str]") -> str:
        hours, minutes, seconds = (int(each or 0) for each in match.groups())
        return format_duration(max(0.0, hours * 3600 + minutes * 60 + seconds - passed_s))

    return _LEFT.sub(now_left, text)
