"""Classifies the lines in a traceback, and converts other traceback formats to Python's.

Supported formats are those of CPython 3.11 to 3.14 (Lib/traceback.py), rich, ray
(python/ray/exceptions.py), and loggers that escape newlines, for example in JSON.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple


class TracebackLine(NamedTuple):
    """A line like `File "file", line 12, in function`. For a SyntaxError, the `function` field is
    empty.
    """

    file: str
    line: str
    function: str

    @property
    def library(self) -> str:
        """The installed package or standard library module that contains the file, such as `torch`,
        or an empty string.
        """
        match = _LIBRARY.match(self.file) or _CYTHON.fullmatch(self.file)
        return match[1].removesuffix(".py") if match is not None else ""

    @property
    def starter(self) -> bool:
        """Whether the frame only starts the user's program (`-m`, `--run-path`, or a function)."""
        return self.file == "<frozen runpy>" or self.file.endswith(_STARTERS)

    @property
    def own(self) -> bool:
        """Whether the frame is in the user's own code, which means neither in a library nor in code
        compiled from a string.
        """
        return not (self.library or self.starter or self.file.startswith("<"))

    @property
    def outermost(self) -> bool:
        """Whether Python's main thread may have started here."""
        return self.function in ("", "<module>", "_run_module_as_main") or self.starter


HEADER = "Traceback (most recent call last):"
ORIGINAL = f"Original {HEADER}"
"""The line with which torch introduces the traceback of another process or thread within a
message.
"""
FRAMED = f"│ {HEADER}"
"""The header that replaces the top edge of a box drawn by rich."""
_STARTERS = ("/relight/worker/call.py",)
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|[]PX^_][^\x07\x1b\n]*+(?:\x07|\x1b\\)?|[ -/]*+[0-~])?"
)
_MOVES = re.compile(r"\x08{2,}|\x1b\[\d*[ABEFG]|\x1b\[[\d;]*[Hf]")
"""Codes with which a program goes back to overwrite its own output."""
IN_THREAD = re.compile(
    r"Exception in thread |Task exception was never |Process _?[A-Z]\w*-\d[\d:]*:"
)
"""The line above an exception that ended a thread, an asyncio task or a child process.
multiprocessing names a process after its class, such as `Process-1:2` or `SpawnPoolWorker-3`.
"""
_BAR = re.compile(r"\r[^\r\n]{0,500}?\[(?:\d+:)?\d+:\d\d[<,][^\]\r\n]{0,300}\](?=[^\s\],])")
"""A progress bar of tqdm, followed by text on the same line."""
_LONGEST_BAR = 1000
_CONTINUES = " ,.:;)]}%…"
_OF_BAR = re.compile(
    r"(?P<number>\d[\d.,:]*)|(?P<fill>[\s#=>.\-_|/\\*\u2500-\u25ff\u2800-\u28ff]+)|.", re.DOTALL
)
"""A number, a part that is drawn, such as a spinner, or any other character of a progress bar."""
# C0, C1, lone surrogates, zero-width characters, and characters that change the text direction.
_CONTROL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]"
)
_FRAME = re.compile(
    r'^[ >]*(?:\| *)*File "(?P<file>.+)", line (?P<line>\d+)(?:,? in (?P<function>.+))?$'
)
_EXCEPTION = re.compile(
    r"^(?!(?i:debug|info|note|warn|warning|error|critical|fatal)\b)"
    r"(?P<type>[^\W\d][\w.<>]*)(?:: (?P<message>.*))?$",
    re.DOTALL,
)
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
MORE_FRAMES = "  ..."
"""Python's faulthandler shows at most 100 frames (MAX_FRAME_DEPTH in Python/traceback.c)."""
_FATAL = re.compile(r"^Fatal Python error: (?P<message>.+)$")
_IN_BOX = re.compile(r"^ +\| ?")
_MARKS = re.compile(r"^[ |]*[~^][ ~^]*$")
_LIBRARY = re.compile(r".*/(?:(?:site|dist)-packages|lib(?:64)?/python3[.\d]*)/([^/]+)")
_CYTHON = re.compile(r"(\w+)[\w/.]*\.(?:pyx|pxi|pxd)")
"""A file compiled by Cython. Its path is relative to its build directory, such as
`pandas/_libs/hashtable_class_helper.pxi`.
"""
_IN_RICH = re.compile(r"^([^│]+):(\d+) in ?([^│]*)$")
_IN_RAY = re.compile(r"^(?P<error>ray\.exceptions\.RayTaskError)(?:\(\w+\))?: (?P<task>ray::.*)$")
_ESCAPED = {
    '"': re.compile(r'(?:[^"\\]|\\.)*+'),
    "'": re.compile(r"(?:[^'\\]|\\.)*+"),
}
"""Patterns for the rest of a string with escaped newlines, by quotation mark."""
_IN_STRING = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_NUMBERS = re.compile(r"(?<![\w/])/(?:[\w.+@~-]++/)++|0x[0-9a-fA-F]+|\d+")
_OF_GROUP = re.compile(r"\(\d+ sub-exceptions?\): ")
_MORE_MEMBERS = re.compile(r"and (\d+) more exceptions?")
_MEMBERS = 3
"""Maximum number of exceptions that represent a group."""
_REPEATED = re.compile(r"^ *\[Previous line repeated (?P<frames>\d+) more times?\]$")
"""Python prints this instead of the fourth and further frames of a recursion."""
_OMITTED = re.compile(
    r"^ *… (?:(?P<links>\d[\d,]*) more exceptions?)?(?: and )?"
    r"(?:(?P<frames>\d[\d,]*) frames?(?: of (?P<names>[^…]+?))?)?(?: and )?"
    r"(?:(?P<lines>\d[\d,]*) more lines?)? …$"
)


def clean(text: str) -> str:
    """Remove characters that move the cursor, hide text or reorder text."""
    text = _ESCAPE.sub("", _MOVES.sub("\r", text)).replace("\r\n", "\n")
    if "\r" in text:
        lines = _BAR.sub(r"\g<0>\n", text).split("\n")
        text = "\n".join(map(_without_bar, lines)).replace("\r", "\n")
    return _CONTROL.sub("\ufffd", text.expandtabs(4))


def _without_bar(line: str) -> str:
    """Separate the text at the end of a line from the progress bar in front of it. The text follows
    something that resembles the previous state of the bar.
    """
    line = line.rstrip()
    *states, before, last = ["", "", *filter(str.strip, line.split("\r"))]
    if not before or len(before) > _LONGEST_BAR:
        return line
    shape = _shape_of_bar(before)
    found = list(_OF_BAR.finditer(last[: 2 * _LONGEST_BAR]))[: len(shape)]
    end = found[-1].end()
    text = last[end:]
    if not text or text[0] in _CONTINUES or _shape_of_bar(last[:end]) != shape:
        return line  # the bar is longer than before
    if text[0].islower() and last[end - 1].isalpha() and _shape_of_bar(states[-1]) != shape:
        return line  # a word in it may be longer
    return f"{line[: len(line) - len(text)]}\n{text}"


def _shape_of_bar(text: str) -> list[str]:
    """Return what all states of a progress bar have in common."""
    matches = _OF_BAR.finditer(text[:_LONGEST_BAR])
    return [match.lastgroup or match[0] for match in matches]


# Kinds of lines.


def frame_of(line: str) -> TracebackLine | None:
    """Parse a line as a traceback frame, with or without a box around it."""
    match = _FRAME.match(line)
    if match is None:
        return None
    return TracebackLine(match["file"], match["line"], match["function"] or "")


def is_header(line: str) -> bool:
    """Return whether a traceback begins here, possibly after a progress bar."""
    return line.rstrip().endswith(HEADER)


def is_chained(line: str) -> bool:
    """Return whether a line separates a traceback from the next one in the chain."""
    return in_box(line) in _CHAINED


def is_stated_cause(line: str) -> bool:
    """Return whether a line says that an exception is the cause of the next one, as opposed to its
    context.
    """
    return in_box(line) == _CHAINED[1]


def is_marks(line: str) -> bool:
    """Return whether a line underlines part of the source line above it."""
    return _MARKS.match(line) is not None


def is_exception(line: str) -> bool:
    """Return whether a line looks like the type of an exception and its message."""
    return _EXCEPTION.match(in_box(line)) is not None


def in_box(line: str) -> str:
    """Remove the box around a line of an ExceptionGroup. Other lines are unchanged."""
    return _IN_BOX.sub("", line)


def is_member(line: str) -> bool:
    """Return whether a line, without its box, is an exception in a group, or the number of those
    that Python omitted.
    """
    is_known = _EXCEPTION.match(line) or _MORE_MEMBERS.fullmatch(line)
    return bool(is_known) and not is_header(line)


def fatal_message(line: str) -> str:
    """Return the text of Python's fatal error message if it begins here, or an empty string."""
    match = _FATAL.match(line)
    return match["message"] if match is not None else ""


def split_exception(text: str) -> tuple[str, str]:
    """Split an exception into its type (possibly empty) and its message."""
    match = _EXCEPTION.match(text)
    if match is None:
        return "", text
    name = match["type"].rpartition(".")[2]
    # A module's only exception, such as zlib.error
    return match["type"] if name == "error" else name, match["message"] or ""


def in_one_line(message: str) -> str:
    """Join the message of an ExceptionGroup, whose first line ends with an exception and whose
    further lines are other exceptions. Other messages are unchanged.
    """
    first, *others = message.split("\n")
    if not (others and _OF_GROUP.search(first)):
        return message
    omitted = _MORE_MEMBERS.fullmatch(others[-1])
    if omitted is not None:
        others.pop()
    text = "; ".join([first, *others[: _MEMBERS - 1]])
    more = max(0, len(others) - _MEMBERS + 1) + _number(omitted and omitted[1])
    return f"{text}; and {more} more" if more > 0 else text


def without_other_members(text: str) -> str:
    """Remove all exceptions but the first from the message of an ExceptionGroup."""
    match = _OF_GROUP.search(text)
    if match is None:
        return text
    return text[: match.end()] + re.split(r"\n|; ", text[match.end() :], maxsplit=1)[0]


def without_numbers(text: str) -> str:
    """Remove numbers that may differ between ranks that failed in the same way, such as addresses,
    ranks and sizes, and the directories of absolute paths.
    """
    return _NUMBERS.sub("#", text)


# Omitted lines.


def omitted(lines: Sequence[str]) -> list[str]:
    """Return the line that replaces omitted lines, or nothing if the omitted lines are
    uninformative. If some of the omitted lines themselves replace other lines, these other lines
    are included in the count.
    """
    frames = count = links = 0
    before = 0
    names: dict[str, None] = {}
    only_libraries = True
    for line in lines:
        if (frame := frame_of(line)) is not None:
            frames += 1
            only_libraries &= not frame.own
            if frame.library:
                names[frame.library] = None
        elif (match := _OMITTED.match(line)) is not None:
            links += _number(match["links"])
            frames += _number(match["frames"])
            before += _number(match["lines"])
            names.update(
                dict.fromkeys((match["names"] or "").split(", ") if match["names"] else ())
            )
        elif (match := _REPEATED.match(line)) is not None:
            frames += _number(match["frames"])
        elif is_chained(line):
            links += 1
        elif line.strip() and not is_marks(line) and not is_header(line):
            count += 1
    parts = [f"{links:,} more exception{'s' if links > 1 else ''}"] if links else []
    if frames:
        of = f" of {', '.join(list(names)[:3])}" if names and only_libraries else ""
        parts.append(f"{frames:,} frame{'s' if frames > 1 else ''}{of}")
        count = 0  # only source lines, and the exceptions themselves
    if count == len(lines) == 1:
        return [*lines]  # its replacement would be no shorter
    if count := count + before:
        parts.append(f"{count:,} more line{'s' if count > 1 else ''}")
    return [f"  … {' and '.join(parts)} …"] if parts else []


def is_omission(line: str) -> bool:
    """Return whether a line replaces omitted lines."""
    return _OMITTED.match(line) is not None


def without_middle(lines: Sequence[str], most: int) -> list[str]:
    """Return at most `most` lines. If lines are omitted, a line in the middle replaces them."""
    if len(lines) <= most:
        return list(lines)
    begin = most // 2
    end = len(lines) - (most - begin - 1)
    return [*lines[:begin], *omitted(lines[begin:end]), *lines[end:]]


def _number(text: str | None) -> int:
    # Workers may print arbitrary text that looks like such a line.
    return int(text.replace(",", "")) if text and len(text) < 20 else 0


# Other traceback formats.


def as_python(lines: Sequence[str]) -> list[str]:
    """Convert other traceback formats to the format that Python prints."""
    result: list[str] = []
    inside = False
    for line in lines:
        if not inside and line.startswith("╭─") and HEADER[:-1] in line:
            inside = True
            result.append(FRAMED)
        elif not inside:
            above = result[-1] if result else ""
            is_source = line.startswith("    ") and (above.startswith("    ") or frame_of(above))
            result += [line] if is_source else _as_python(line)
        elif not line.startswith("│"):  # the frame ends, or the process was killed in it
            inside = False
            if not line.startswith("╰─"):
                result.append(line)
        elif line.startswith("│ ❱"):
            result.append(f"    {line.strip('│❱ ').lstrip('0123456789').strip('│ ')}")
        elif (match := _IN_RICH.match(line.strip("│ "))) is not None:
            file, number, function = match.groups()
            result.append(f'  File "{file}", line {number}, in {function}')
    return result


def _as_python(line: str) -> list[str]:
    if line.startswith("ray"):
        if (match := _IN_RAY.match(line)) is not None:
            return [f"{match['error']}: {match['task']}", ORIGINAL]
        task, found, rest = line.rpartition(" (pid=")
        begins = found and task.startswith("ray::") and rest.endswith(")")
        return [f"{line} {HEADER}"] if begins else [line]
    begin = line.find(f"{HEADER}\\n")
    if begin < 0:
        return [line]
    text = line[begin:]
    quoted = _ESCAPED.get(line[begin - 1 : begin])
    if quoted is not None and (match := quoted.match(text)) is not None:
        text = match[0]
    text = clean(_IN_STRING.sub(_unescaped, text)).rstrip("\n")
    return [*([line[:begin]] if begin else []), *text.split("\n")]


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return {"n": "\n", "t": "\t", "r": "\r"}.get(code, code)
