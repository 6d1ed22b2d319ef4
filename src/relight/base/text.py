"""Text utilities that split incoming data into lines, format durations, counts and lists of hosts
and ranks, and suggest spelling corrections.
"""

from collections.abc import Iterable, Iterator, Sequence


class LineBuffer:
    """Splits data that arrives in chunks into lines. The `rest` attribute holds the last line if it
    is still incomplete.
    """

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that this chunk completes, without their line endings."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        return lines


def split_lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines in data that arrives in chunks, including an incomplete last line."""
    buffer = LineBuffer()
    for piece in pieces:
        for line in buffer.feed(piece):
            yield line.decode(errors="replace")
    if buffer.rest:
        yield buffer.rest.decode(errors="replace")


def last_line(text: str) -> str:
    """Return the last line that is not blank, without surrounding white space, or an empty
    string.
    """
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def format_names(hosts: Sequence[str]) -> str:
    """Format a list of host names. A long list is shortened."""
    shown = ", ".join(hosts[:8])
    return f"{shown} and {len(hosts) - 8} more" if len(hosts) > 8 else shown


def format_duration(seconds: float, digits: int = 0) -> str:
    """Format a duration as `45 s`, `10 min`, `9 min 12 s` or `3 h 5 min`. Durations below one
    minute have `digits` decimals.
    """
    if round(seconds, digits) < 60:
        return f"{max(0.0, seconds):.{digits}f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left} s" if left else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def format_ranks(ranks: Sequence[int]) -> str:
    """Format rank numbers, such as `rank 3`, `ranks 0-3, 5` or `ranks 0, 2, 4, … (64 in all)`."""
    text = _ranges(ranks)
    if len(text) > 40:
        text = f"{text[:32].rpartition(', ')[0]}, … ({len(ranks)} in all)"
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"


def _ranges(ranks: Iterable[int]) -> str:
    """Format sorted numbers as ranges, such as `0-3, 5` for 0, 1, 2, 3, 5."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][-1] == rank - 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ", ".join("-".join(map(str, part)) for part in parts)


def format_size(size: float) -> str:
    """Format a number of bytes as `512 bytes`, `64 MiB` or `1.57 GiB`."""
    unit = "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"


def pluralize(number: int, word: str) -> str:
    """Return a number with its noun, such as `1 node` or `2 nodes`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def closest_match(word: str, known: "list[str] | tuple[str, ...]", *, cutoff: float = 0.6) -> str:
    """Return the entry in `known` that is most similar to `word`, or an empty string.

    The argument `cutoff` is the minimum similarity, from 0 to 1 (difflib).
    """
    import difflib  # rarely needed, only for error messages

    matches = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return matches[0] if matches else ""


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a hint that suggests the entry in `known` that is most similar to `word`. If no entry
    is similar, return `otherwise`.
    """
    meant = closest_match(word, list(known))
    return f"did you mean {meant}?" if meant else otherwise
