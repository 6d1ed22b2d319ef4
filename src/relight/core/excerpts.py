"""Shortens a long traceback to its most telling lines, within the rows of a report.

The least telling lines are dropped first: frames of libraries, marks under the source, all but the
first lines of a message, earlier tracebacks of a chain, then the user's frames, outermost first.
The user's innermost frame and the exceptions stay.
"""

from collections.abc import Iterable, Sequence

from relight.core.tracebacks import (
    frame_of,
    in_box,
    is_chained,
    is_exception,
    is_fatal,
    is_header,
    is_marks,
)

WIDTH = 80
"""Columns of a terminal. A longer line counts as the several rows that it fills."""
_MESSAGE = 3
_LINE = 2
"""Most rows of a line, except for the last exception, whose reason may stand at its end."""
_BESIDE = 3
"""Rows that stay for the lines before the exception."""


def excerpt(lines: Sequence[str], rows: int) -> list[str]:
    """Return a traceback shortened to `rows` rows, or to 3 if that is more."""
    lines = without_starters(lines)
    last = max((number for number, line in enumerate(lines) if is_exception(line)), default=-1)
    sizes = {last: WIDTH * max(_LINE, rows - _BESIDE)}
    lines = [_cut_line(line, sizes.get(n, WIDTH * _LINE)) for n, line in enumerate(lines)]
    order = _least_telling(lines)

    def kept(dropped: int) -> list[str]:
        return with_gaps(lines, order[:dropped])

    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if rows_of(kept(middle)) <= rows else (middle + 1, high)
    return _end_of(kept(low), max(rows, 3))


def cut(text: str, size: int) -> str:
    """Return at most `size` characters; an ellipsis marks a cut. The cut is at the end of a
    sentence, or else of a word, if one ends in the second half; never at a colon, because the
    reason follows it.
    """
    if len(text) <= size:
        return text
    sentence = max(text.rfind(mark, size // 2, size - 2) for mark in (". ", "; ")) + 1
    end = sentence or text.rfind(" ", size // 2, size - 1)
    return f"{text[:end]} …" if end > 0 and text[end - 1] != ":" else f"{text[: size - 1]}…"


def cut_left(text: str, size: int) -> str:
    """Return at most `size` characters from the end, which tells most in a path."""
    return text if len(text) <= size else f"…{text[1 - size :]}"


def rows_of(lines: Sequence[str]) -> int:
    """Return how many rows lines take on a terminal."""
    return sum(max(1, -(-len(line) // WIDTH)) for line in lines)


def _end_of(lines: Sequence[str], rows: int) -> list[str]:
    """Return as many last lines as fit into `rows` rows."""
    first = len(lines)
    while first and (rows := rows - rows_of(lines[first - 1 : first])) >= 0:
        first -= 1
    return list(lines[first:])


def _cut_line(line: str, size: int) -> str:
    frame = frame_of(line)
    if frame is not None and len(line) > size:
        file = cut_left(frame.file, max(20, size - (len(line) - len(frame.file))))
        line = line.replace(frame.file, file, 1)
    return cut(line, size)


def without_starters(lines: Sequence[str]) -> list[str]:
    """Return a traceback without the frames that only start the user's program: also without that
    of a `python -c` which runs it by runpy (`--run-path`).
    """
    kept: list[str] = []
    inside, text_at = False, -1
    for line in lines:
        frame = frame_of(line)
        if frame is not None:
            inside = frame.starter
            if inside and text_at >= 0:
                del kept[text_at:]
            text_at = len(kept) if frame.file == "<string>" else -1
        elif not line.startswith(" "):
            inside = False
        if not inside:
            kept.append(line)
    return kept


def frames_of_torch(lines: Sequence[str]) -> list[list[int]]:
    """Return the numbers of the lines of each frame in torch's own files."""
    frames: list[list[int]] = []
    inside = False
    for number, line in enumerate(lines):
        found = frame_of(line)
        if found is not None:
            inside = found.library == "torch"
            if inside:
                frames.append([number])
        elif inside and in_box(line).startswith(" "):
            frames[-1].append(number)
        else:
            inside = False
    return frames


def _least_telling(lines: Sequence[str]) -> list[list[int]]:
    """Return groups of line numbers that may be left out, in the order in which to drop them."""
    library: list[list[int]] = []
    own: list[list[int]] = []
    marks: list[int] = []
    message: list[list[int]] = []
    headers: list[list[int]] = []
    frame: list[int] | None = None
    in_message = False
    for number, line in enumerate(lines):
        found = frame_of(line)
        if found is not None:
            frame, in_message = [number], False
            (own if found.own else library).append(frame)
        elif in_message and not (is_header(line) or is_chained(line)):
            message.append([number])
        elif frame is not None and in_box(line).startswith(" "):
            frame.append(number)
            if is_marks(line):
                marks.append(number)
        else:
            boxed = line.startswith(" ") and line.lstrip()[:1] in ("|", "+")
            frame, in_message = None, is_exception(line) and not boxed
            if is_header(line) and not boxed:
                headers.append([number])
    if lines and is_fatal(lines[0]):  # the innermost frame comes first
        library.reverse()
        own.reverse()
    last = [library.pop()] if own and library else []
    first_lines = message[:_MESSAGE] if len(headers) < 2 else []
    return [
        *library,
        *([marks] if marks else []),
        *reversed(message[len(first_lines) :]),
        *headers[:-1],
        *last,
        *own[:-1],
        *reversed(first_lines),
    ]


def with_gaps(lines: Sequence[str], parts: Iterable[Sequence[int]]) -> list[str]:
    """Return the lines without those with the numbers in `parts`; what is left out is named."""
    dropped = {number for part in parts for number in part}
    kept: list[str] = []
    gap: list[str] = []
    for number, line in enumerate(lines):
        if number in dropped:
            gap.append(line)
        else:
            kept += [*_gap(gap), line]
            gap = []
    return [*kept, *_gap(gap)]


def _gap(gap: Sequence[str]) -> list[str]:
    """Return the line that replaces dropped lines; none if nothing of interest was dropped."""
    frames = [frame for line in gap if (frame := frame_of(line)) is not None]
    if frames:
        names = list(dict.fromkeys(frame.library for frame in frames if frame.library))
        of = f" of {', '.join(names[:3])}" if names else ""
        return [f"  … {len(frames)} frame{'s' if len(frames) > 1 else ''}{of} …"]
    left = sum(1 for line in gap if line.strip() and not is_marks(line) and not is_header(line))
    return [f"  … {left} more line{'s' if left > 1 else ''} …"] if left else []
