"""Shortens a long traceback to its most informative lines, so that it fits into a report.

The least informative lines are dropped first. The order is: library frames, markers below source
lines, all but the first lines of a message, all but the first exception in a group, headers of
earlier tracebacks in a chain, the exceptions between the first and the last one in a chain, and
finally the user's frames, starting with the outermost. The user's innermost frame and the first and
last exceptions are kept.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from relight.core.diagnosis.traceback_lines import (
    fatal_message,
    frame_of,
    in_box,
    in_one_line,
    is_chained,
    is_exception,
    is_header,
    is_marks,
    is_omission,
    omitted,
)
from relight.core.failure import ErrorReport

WIDTH = 80
"""Terminal width in columns. A longer line counts as several rows, as many as it fills."""
_MESSAGE = 3
_LINE = 2
"""Maximum number of rows per line. This limit does not apply to the last exception, whose message
may end with the reason.
"""
_BESIDE = 3
"""Number of rows reserved for the lines before the exception."""
_SHORTEST = 40
"""Minimum size at which a truncated string keeps an address."""
_SEARCHED = 4000
"""Maximum number of characters that are searched for addresses."""
_ADDRESS = re.compile(
    r"""\bport:?\ ?\d++
    | \[[0-9a-fA-F.:]++\]:\d++
    | [\[(][\w.:-]++\]?,\ ?\d++\)
    | (?<![\w.-])[\w-]++(?:\.[\w-]++)++(?<!\.py)(?<!\.cc)(?<!\.cpp):\d++
    | \blocalhost:\d++
    | (?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])""",
    re.VERBOSE,
)
_FIRST_OF_GROUP = re.compile(r"^ +\+-\+-+ 1 -+$")
_NEXT_OF_GROUP = re.compile(r"^ +\+-+ (?:[2-9]|\d\d+) -+$")
"""The separator that Python prints before the second and later exceptions of an ExceptionGroup."""
_WITHOUT_REASON = re.compile(r"while [a-z]+ing |\d+ validation errors? for ")
"""The first lines of messages from YAML and pydantic. The reason is in the next line that isn't
indented, and in the line after it.
"""
_COMMAND = re.compile(
    r"Command '(?P<command>.*)' (?P<end>(?:returned non-zero exit|died with|timed out).*)",
    re.DOTALL,
)
"""The message of CalledProcessError and TimeoutExpired (Lib/subprocess.py)."""
_UNTELLING = (
    re.compile(
        r"\[(?:enforce\ fail\ at\ )?[^\]\s]+\.(?:cc|cpp|cu|cuh|cxx|h|hpp):\d+\]\ ?"
        r"(?:(?:(?:false|\w+\ ?[=!<>]=?\ ?\w+)?\.\ )(?=[^\W\d]{3}))?"
    ),
    re.compile(r"\[/[^\]\s]+:\d+\] "),
    re.compile(r"(?<=\.) This is typically caused by a remote worker (?:crashing|hanging).*"),
    re.compile(r"(?<=NCCL error) in: \S+:\d+(?=, )"),
    re.compile(
        r'^.{0,200}?INTERNAL ASSERT FAILED at "[^"\n]+":\d+, please report a bug to PyTorch\. '
        r"?(?=.)"
    ),
)
"""Parts of messages that are useless to users. These are the locations in torch's own source code
where an error was detected, such as `[/pytorch/…/pair.cc:553] ` and `[enforce fail at
alloc_cpu.cpp:127] err == 0. `, and gloo's guess after `Connection closed by peer`. That guess is
wrong if the peer left early or was stopped.
"""


def excerpt(lines: Sequence[str], rows: int) -> list[str]:
    """Shorten a traceback to `rows` rows, or to 3 if `rows` is smaller."""
    lines = without_starters(lines)
    last = max((number for number, line in enumerate(lines) if is_exception(line)), default=-1)
    sizes = {last: WIDTH * max(_LINE, rows - _BESIDE)}
    lines = [_cut_line(line, sizes.get(n, WIDTH * _LINE)) for n, line in enumerate(lines)]
    order = _droppable_lines(lines)

    def kept(dropped: int) -> list[str]:
        return with_gaps(lines, order[:dropped])

    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if count_rows(kept(middle)) <= rows else (middle + 1, high)
    return _last_rows(kept(low), max(rows, 3))


def headline(report: ErrorReport, most: int) -> str:
    """Return an exception's message in at most `most` characters. The result consists of the
    message's first line, followed by the next lines if they contain the reason. Parts that are
    useless to users, such as a location in C++ code, are removed.
    """
    message = in_one_line(report.message)
    for untelling in _UNTELLING:
        message = untelling.sub("", message)
    if (command := _COMMAND.fullmatch(message)) is not None:
        room = max(most - len(command["end"]) - len("Command '' "), _SHORTEST)
        said = " ".join(command["command"].replace("\\n", " ").split())
        message = f"Command '{cut(said, room)}' {command['end']}"
    lines = [line.rstrip() for line in message.split("\n") if line.strip()]
    text, *rest = lines or [""]
    text = text.strip()
    if _WITHOUT_REASON.match(text):
        reason = next((n for n, line in enumerate(rest) if not line[0].isspace()), len(rest))
        said = " ".join(map(str.strip, rest[reason : reason + 2])).rstrip(":")
        # `token: …` would look like a secret.
        text += f"{', ' if text.startswith('while') else ': '}{said}" if said else ""
    while rest and text.endswith(":"):
        text += f" {rest.pop(0).strip()}"
    return cut(text, most)


def cut(text: str, size: int) -> str:
    """Truncate a string to at most `size` characters, and mark removed text with an ellipsis. The
    string is truncated after the last sentence or, failing that, after the last word that ends in
    its second half. A string is never truncated at a colon, because the reason follows the colon.
    If an address would be lost, text before the address is removed instead.
    """
    if len(text) <= size:
        return text
    kept = _cut(text, size)
    if size < _SHORTEST:
        return kept
    end = len(kept) - 2
    searched = text[:_SEARCHED]
    address = next((a for a in _ADDRESS.finditer(searched) if a.end() > end), None)
    if address is None or len(address[0]) > 3 * size // 4:
        return kept
    begin = address.start()
    room = max(size // 2, size - begin, len(address[0]) + 2)
    tail = text[begin:]
    if len(tail) > room:
        tail = _cut(tail, room, least=len(address[0]))
    if tail.endswith("…"):  # text was removed twice, so this is not the end of a sentence
        tail = tail.rstrip(" .;…") + " …"
    if begin + len(tail) <= size:
        return text[:begin] + tail
    return f"{_cut(text[:begin], size - len(tail) - 1)} {tail}"


def _cut(text: str, size: int, least: int = 0) -> str:
    """Return the beginning of a string longer than `size`, with at least `least` characters."""
    least = max(least, size // 2)
    sentence = max(text.rfind(mark, least, size - 2) for mark in (". ", "; ")) + 1
    end = sentence or text.rfind(" ", least, size - 1)
    if end <= 0 or text[end - 1] == ":":
        return f"{text[: size - 1]}…"
    return f"{text[:end]} …"


def cut_left(text: str, size: int) -> str:
    """Return at most `size` characters from the end of a path, because the end is the most
    informative part.
    """
    return text if len(text) <= size else f"…{text[1 - size :]}"


def count_rows(lines: Sequence[str]) -> int:
    """Return how many rows the lines take up on a terminal."""
    return sum(max(1, -(-len(line) // WIDTH)) for line in lines)


def _last_rows(lines: Sequence[str], rows: int) -> list[str]:
    """Return as many lines from the end as fit into `rows` rows."""
    first = len(lines)
    while first and (rows := rows - count_rows(lines[first - 1 : first])) >= 0:
        first -= 1
    return list(lines[first:])


def _cut_line(line: str, size: int) -> str:
    frame = frame_of(line)
    if frame is not None and len(line) > size:
        file = cut_left(frame.file, max(20, size - (len(line) - len(frame.file))))
        line = line.replace(frame.file, file, 1)
    return cut(line, size)


def without_starters(lines: Sequence[str]) -> list[str]:
    """Remove the frames that only start the user's program from a traceback. One of these is the
    frame of the `python -c` command that runs the program with runpy (`--run-path`).
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


def torch_frames(lines: Sequence[str]) -> list[list[int]]:
    """Return the line numbers of each traceback frame that is in torch's own files."""
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


def _droppable_lines(lines: Sequence[str]) -> list[list[int]]:
    """Return groups of line numbers that may be dropped, in the order in which to drop them."""
    library: list[list[int]] = []
    own: list[list[int]] = []
    marks: list[int] = []
    message: list[list[int]] = []
    headers: list[list[int]] = []
    links: list[int] = []
    root: list[int] = []
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
            if is_chained(line) and not boxed:
                root = root if links or not own else own[-1]
                links.append(number)
    if lines and fatal_message(lines[0]):  # the innermost frame comes first
        library.reverse()
        own.reverse()
    last = [library.pop()] if own and library else []
    between = [range(begin, end) for begin, end in pairwise(links)]
    first_lines = message[:_MESSAGE] if len(headers) < 2 else []
    members = _droppable_members(lines)
    return [
        *library,
        *([marks] if marks else []),
        *reversed(message[len(first_lines) :]),
        *map(list, reversed(members)),
        *headers[:-1],
        *map(list, between),
        *last,
        *(frame for frame in own[:-1] if frame is not root),
        *([root] if root and root is not own[-1] else []),
        *reversed(first_lines),
    ]


def _droppable_members(lines: Sequence[str]) -> list[range]:
    """Return the line numbers of all but the most relevant exception of a group, with the least
    relevant last. Exceptions from cancelled tasks are the least relevant.
    """
    later = [number for number, line in enumerate(lines) if _NEXT_OF_GROUP.match(line)]
    first = next((n for n, line in enumerate(lines) if _FIRST_OF_GROUP.match(line)), None)
    members = [range(begin, end) for begin, end in pairwise([*later, len(lines)])]
    if first is None or not members:
        return members
    members.insert(0, range(first + 1, later[0]))
    members.sort(key=lambda member: any("CancelledError" in lines[n] for n in member))
    return members[1:]


def with_gaps(lines: Sequence[str], parts: Iterable[Sequence[int]]) -> list[str]:
    """Remove the lines whose numbers are in `parts`, and replace each gap with a note."""
    dropped = {number for part in parts for number in part}
    kept: list[str] = []
    gap: list[str] = []
    for number, line in enumerate(lines):
        if number in dropped or is_omission(line):
            gap.append(line)
        else:
            kept += [*omitted(gap), line]
            gap = []
    return [*kept, *omitted(gap)]
