"""Deduplicates terminal output. A line that several ranks print is shown once, with a note.

    Loading tokenizer           shown on arrival; the same line from ranks 1-7 is dropped
    Loading weights
    [ranks 1-7] the same 2 lines

Lines are never delayed. A line that another rank printed within the last 0.1 s is dropped, but a
rank's own repetitions are shown. The note follows 0.1 s after the first line, so that one note
covers a block. The note quotes the line if there was other output in between.

Only complete lines that consist of text, tabs and colours are compared. Lines with cursor
movements, such as progress bars, are passed through unchanged. At most 2000 lines and 256 kB are
compared in each 0.1 s window, which limits the memory and time needed. This module is loaded only
if output is written to a terminal.
"""

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence

from relight.base.text import format_ranks

_WINDOW_S = 0.1
_MAX_LINES = 2000
_MAX_BYTES = 256 * 1024
_LONGEST = 4096
_QUOTED = 60
"""Maximum number of characters that a note quotes from a line."""
_PLAIN = re.compile(rb"(?:[^\x00-\x08\x0a-\x1f\x7f]|\x1b\[[\d;:]*m)*+\r?")
_COLOUR = re.compile(rb"\x1b\[[\d;:]*m|\r")


class _Shown:
    """A line shown on the terminal, with its arrival time, its position, and the ranks that have
    printed it.
    """

    __slots__ = ("at", "first", "line", "others", "place")

    def __init__(self, line: bytes, at: float, place: int, first: int) -> None:
        self.line, self.at, self.place, self.first = line, at, place, first
        self.others: set[int] = set()

    def lacks(self, rank: int) -> bool:
        return rank != self.first and rank not in self.others


class RepeatedLines:
    """The most recent lines on one terminal. All times are in seconds on the same clock."""

    def __init__(self) -> None:
        self._shown: deque[_Shown] = deque()
        self._by_line: dict[bytes, list[_Shown]] = {}
        """The entries for each distinct line, in order. A rank that has printed one entry for a
        line has also printed all earlier entries for that line.
        """
        self._size = 0
        self._place = 0
        """The number of lines and other pieces of output shown so far."""
        self._ranks: set[int] = set()
        self._due: float | None = None

    def output(self, rank: int, data: bytes, now: float, *, inside: bool) -> bytes:
        """Filter a rank's output and return the part to show.

        Args:
            rank: the rank.
            data: the output.
            now: the current time.
            inside: whether the output continues a line.
        """
        self._ranks.add(rank)
        while self._shown and self._shown[0].at <= now - _WINDOW_S and not self._shown[0].others:
            self._forget_first()
        *lines, rest = data.split(b"\n")
        shown = []
        if inside and lines:
            shown.append(lines.pop(0))
            self._place += 1
        shown += [line for line in lines if self._is_new(rank, line, now)]
        shown.append(rest)
        self._place += bool(rest)
        return b"\n".join(shown)

    def interrupt(self) -> None:
        """Record that other output has been shown."""
        self._place += 1

    def deadline(self) -> float | None:
        """Return the time at which to call `notes`, or None if no note is pending."""
        return self._due

    def notes(self, now: float) -> list[str]:
        """Return the notes that are due."""
        latest = now - _WINDOW_S
        return self._notes(
            lambda line: line.at <= latest or 1 + len(line.others) == len(self._ranks)
        )

    def all_notes(self) -> list[str]:
        """Return the notes for all lines, and forget the lines."""
        return self._notes(lambda _: True)

    def check(self) -> None:
        """Check the invariants."""
        assert len(self._shown) <= _MAX_LINES
        assert self._size == sum(len(each.line) for each in self._shown) <= _MAX_BYTES
        assert sum(map(len, self._by_line.values())) == len(self._shown)
        assert (self._due is not None) == any(each.others for each in self._shown)

    def _is_new(self, rank: int, line: bytes, now: float) -> bool:
        same = self._by_line.get(line, ())
        index = bisect_left(same, True, key=lambda each: each.lacks(rank))
        if index < len(same):
            found = same[index]
            found.others.add(rank)
            self._due = min(self._due or found.at + _WINDOW_S, found.at + _WINDOW_S)
            return False
        self._place += 1
        has_room = len(self._shown) < _MAX_LINES and self._size + len(line) <= _MAX_BYTES
        if has_room and (same or (len(line) <= _LONGEST and _PLAIN.fullmatch(line))):
            new = _Shown(line, now, self._place, rank)
            self._shown.append(new)
            self._by_line.setdefault(line, []).append(new)
            self._size += len(line)
        return True

    def _forget_first(self) -> _Shown:
        first = self._shown.popleft()
        self._size -= len(first.line)
        same = self._by_line[first.line]
        del same[0]
        if not same:
            del self._by_line[first.line]
        return first

    def _notes(self, is_due: Callable[[_Shown], bool]) -> list[str]:
        groups: dict[tuple[int, ...], list[_Shown]] = {}
        while self._shown and is_due(self._shown[0]):
            line = self._forget_first()
            if line.others:
                groups.setdefault(tuple(sorted((line.first, *line.others))), []).append(line)
        self._due = min((each.at + _WINDOW_S for each in self._shown if each.others), default=None)
        notes = []
        for ranks, lines in groups.items():
            text = self._note(ranks, lines)
            if text:
                notes.append(text)
                self._place += 1
        return notes

    def _note(self, ranks: Sequence[int], lines: Sequence[_Shown]) -> str:
        firsts = {line.first for line in lines}
        others = [rank for rank in ranks if firsts != {rank}]
        count = len(lines)
        places = [line.place for line in lines]
        if places == list(range(self._place - count + 1, self._place + 1)):
            what = f"the same {count} lines" if count > 1 else "the same"
        else:
            what = next(filter(None, map(_quoted, lines)), "")
            if what and count > 1:
                what += f" (and {count - 1} more of the lines above)"
        return f"[{format_ranks(others)}] {what}" if what else ""


def _quoted(line: _Shown) -> str:
    text = _COLOUR.sub(b"", line.line).decode(errors="replace").strip()
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"
