"""Finds a worker's exception, and the script's line, in what it printed or wrote to its error file.

The script needs no decorator: Python prints an uncaught exception to stderr, and the agent keeps
the end of each worker's stderr. Supported are

    CPython 3.11 to 3.14   tracebacks (Lib/traceback.py), chained, grouped, coloured, without a
                           beginning, and as torch prints them: `[rank0]: ` before each line
    faulthandler           (Python/traceback.c) when a signal ends Python
    libstdc++              what it prints about an exception in native code before it aborts
    rich                   tracebacks in a frame
    error files            of torch.distributed.elastic.multiprocessing.errors

Any text is accepted: nothing here raises, and the time is linear in the text.
"""

import json
import re
from collections.abc import Sequence

from relight.core.exits import ErrorReport, FailureKind
from relight.typed import NamedTuple


class _Traceback(NamedTuple):
    """Numbers of its first line, of the line with the exception, and of the line after it."""

    start: int
    exception: int
    end: int


class TracebackLine(NamedTuple):
    """One line `File "file", line 12, in function`; no function if a SyntaxError is there."""

    file: str
    line: str
    function: str

    @property
    def library(self) -> str:
        """The installed package or standard module of the file, such as `torch`, or an empty
        string.
        """
        match = _LIBRARY.match(self.file)
        return match[1].removesuffix(".py") if match is not None else ""

    @property
    def starter(self) -> bool:
        """Whether the frame only starts the user's program: `-m`, `--run-path`, or a function."""
        return self.file == "<frozen runpy>" or self.file.endswith(_STARTERS)

    @property
    def own(self) -> bool:
        """Whether the frame is neither in a library nor in code compiled from a string."""
        return not (self.library or self.starter or self.file.startswith("<"))


_STARTERS = ("/relight/worker/call.py",)
_FROM_TEXT = ("<string>", "<stdin>", "<dynamic-code>")
"""Files of code without a file; the last is that of cloudpickle, for functions of a notebook."""
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|[]PX^_][^\x07\x1b\n]*+(?:\x07|\x1b\\)?|[ -/]*+[0-~])?"
)
# C0 and C1, characters that change the text direction, have no width, or are lone surrogates.
_CONTROL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]"
)
_RANK = re.compile(r"^\[rank\d+\]: ", re.MULTILINE)
_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(
    r'^ *(?:\| *)*File "(?P<file>.+)", line (?P<line>\d+)(?:,? in (?P<function>.+))?$'
)
_FRAMED = re.compile(r"^([^│]+):(\d+) in ?([^│]*)$")
_EXCEPTION = re.compile(
    r"^(?!(?i:debug|info|note|warn|warning|error|critical)\b)"
    r"(?P<type>[^\W\d][\w.<>]*)(?:: (?P<message>.*))?$",
    re.DOTALL,
)
_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError): ")
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_NOT_FATAL = re.compile(
    r"^(?:Exception (?:ignored|in) |Task exception was never|Error in (?:atexit|sys\.excepthook)"
    r"|Process \S+:$|--- Logging error)"
)
_LOG = re.compile(
    r"^(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|\[?\d{4}-\d\d-\d\d[ T]|\[?\d\d:\d\d:\d\d"
    r"|(?:\[rank\d+\]:)?\[?[IWEF]\d{4} )"
)
_LOGGED = re.compile(r"^(?:\[?\d.*)?\b(?:WARNING|ERROR|CRITICAL)\b")
_AFTERWARDS = re.compile(
    r"^(?:Fatal Python error|terminate called|Original exception was|\S+\.py:\d+: \w*Warning)"
)
_FATAL = re.compile(r"^Fatal Python error: (?P<message>.+)$")
_STACK = re.compile(r"^(?:Current thread|Thread|Stack) .*\(most recent call first\):$")
_TERMINATE = re.compile(r"^terminate called after throwing an instance of '(?P<type>[^']+)'")
_BOX = re.compile(r"^ +[|+]")
_GROUP = re.compile(r"^ +\+ Exception Group Traceback")
_IN_BOX = re.compile(r"^ +\| ?")
_FIRST_OF_GROUP = re.compile(r"^ +\+-\+-+ 1 -+$")
_NEXT_OF_GROUP = re.compile(r"^ +\+-+(?: \d+ -+)?$")
_MARKS = re.compile(r"^[ |]*[~^][ ~^]*$")
_LIBRARY = re.compile(r".*/(?:(?:site|dist)-packages|lib(?:64)?/python3[.\d]*)/([^/]+)")
_PACKAGE = re.compile(r".*/(?:site|dist)-packages/[^/]+")

_FOREIGN = 10
"""Most foreign lines, such as those of threads in C, between the lines of a traceback."""
_MESSAGE = 100
"""Most lines of a message that are read."""
_LATER = 50
"""More lines than an exit prints: an exception followed by more did not end the process."""
_LIMIT = 4000


def clean(text: str) -> str:
    """Return a text without characters that move the cursor, or hide or reorder text."""
    text = _ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n").expandtabs(4)
    return _CONTROL.sub("\ufffd", text)


def from_stderr(text: str) -> ErrorReport | None:
    """Return the exception that ended a worker, from the end of its stderr; None if there is none.

    The last exception counts. Exceptions that do not end a process (in threads, in destructors, in
    a log) are used only if there is no other.
    """
    lines = _unframed(_RANK.sub("", clean(text)).split("\n"))
    crash = _crash(lines)
    printed: ErrorReport | None = None
    for chain in reversed(_chains(lines)):
        report = _report(lines, chain)
        if report.kind is FailureKind.PRINTED:
            printed = printed or report
        elif crash is None or crash[0] < chain[-1].end or not crash[1].where:
            return report
        else:
            break
    return printed if crash is None else crash[1]


def last_raised(printed: Sequence[str]) -> tuple[list[str], int]:
    """Return the lines that a worker printed up to the end of the exception that ended it, and how
    many they are; no lines if there is no such exception.
    """
    lines = [_RANK.sub("", clean(line.rstrip("\r"))).rpartition("\n")[2] for line in printed]
    for chain in reversed(_chains(lines)):
        if _report(lines, chain).kind is FailureKind.RAISED:
            return lines[: chain[-1].end], chain[-1].end
    return [], 0


def from_error_file(text: str) -> ErrorReport | None:
    """Return the exception in a file written by torch's `@record`, or by the user; None if it can't
    be parsed.
    """
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    details = ""
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        details = str(extra.get("py_callstack", "")) if isinstance(extra, dict) else ""
        message = message.get("message")
    if not isinstance(message, str) or not (message.strip() or details.strip()):
        return None
    kind, text = _split(clean(message).strip())
    report = from_stderr(details)
    if report is None:
        lines = tuple(clean(details).rstrip().split("\n")) if details.strip() else ()
        return ErrorReport(FailureKind.RECORDED, kind, text, "", "", lines)
    if not message.strip():
        kind, text = report.type, report.message
    return report._replace(kind=FailureKind.RECORDED, type=kind, message=text)


def last_lines(text: str, count: int = 3) -> tuple[str, ...]:
    """Return the last lines that are not empty."""
    lines = _RANK.sub("", clean(text)).split("\n")
    return tuple([line for line in lines if line.strip()][-count:])


# Kinds of lines.


def frame_of(line: str) -> TracebackLine | None:
    """Return the frame in a line, in a box or not."""
    match = _FRAME.match(line)
    if match is None:
        return None
    return TracebackLine(match["file"], match["line"], match["function"] or "")


def is_header(line: str) -> bool:
    """Return whether a traceback begins here; a progress bar may stand before it."""
    return line.rstrip().endswith(_HEADER)


def is_chained(line: str) -> bool:
    """Return whether a line separates a traceback from the next one in its chain."""
    return in_box(line) in _CHAINED


def is_marks(line: str) -> bool:
    """Return whether a line underlines the source above it."""
    return _MARKS.match(line) is not None


def is_exception(line: str) -> bool:
    """Return whether a line looks like the type of an exception and its message."""
    return _EXCEPTION.match(in_box(line)) is not None


def is_fatal(line: str) -> bool:
    """Return whether Python's fatal error message begins here."""
    return _FATAL.match(line) is not None


def in_box(line: str) -> str:
    """Return a line of an ExceptionGroup without the box around it; other lines are unchanged."""
    return _IN_BOX.sub("", line)


# From lines to tracebacks.


def _unframed(lines: Sequence[str]) -> list[str]:
    """Return the lines with tracebacks of rich rewritten as Python would print them."""
    result: list[str] = []
    inside = False
    for line in lines:
        if not inside and line.startswith("╭─") and _HEADER[:-1] in line:
            inside = True
            result.append(_HEADER)
        elif not inside:
            result.append(line)
        elif not line.startswith("│"):  # the frame ends, or the process was killed in it
            inside = False
            if not line.startswith("╰─"):
                result.append(line)
        elif line.startswith("│ ❱"):
            result.append(f"    {line.strip('│❱ ').lstrip('0123456789').strip('│ ')}")
        elif (match := _FRAMED.match(line.strip("│ "))) is not None:
            file, number, function = match.groups()
            result.append(f'  File "{file}", line {number}, in {function}')
    return result


def _chains(lines: Sequence[str]) -> list[list[_Traceback]]:
    """Return all tracebacks, grouped by the chains in which Python printed them."""
    chains: list[list[_Traceback]] = []
    for traceback in _tracebacks(lines):
        if chains:
            before = chains[-1][-1].end
            between = [n for n in range(before, traceback.start) if lines[n].strip(' "')]
            if len(between) == 1 and is_chained(lines[between[0]]):
                chains[-1].append(traceback)
                continue
        chains.append([traceback])
    return chains


def _tracebacks(lines: Sequence[str]) -> list[_Traceback]:
    found = []
    number = 0
    if not any(is_header(line) for line in lines[:4]):  # a long one may have lost its beginning
        first = next((n for n in range(min(4, len(lines))) if frame_of(lines[n])), None)
        traceback = _traceback(lines, first, 0)[0] if first is not None else None
        if traceback is not None:
            found.append(traceback)
            number = traceback.end
    while number < len(lines):
        traceback = None
        if is_header(lines[number]):
            traceback, number = _traceback(lines, number, _FOREIGN)
        else:
            if _SYNTAX.match(lines[number]):  # a SyntaxError in the script itself has no header
                above = [n for n in range(max(0, number - 5), number) if frame_of(lines[n])]
                if above:
                    traceback = _Traceback(above[-1], number, number + 1)
            number += 1
        if traceback is not None:
            found.append(traceback)
    return found


def _traceback(lines: Sequence[str], start: int, foreign: int) -> tuple[_Traceback | None, int]:
    """Return the traceback that begins at a line, and the line at which to read on.

    The traceback is None if its exception is missing, as when the process was killed while writing
    it.
    """
    if _BOX.match(lines[start]):
        return _boxed(lines, start)
    number = start + 1
    while number < len(lines) and not is_header(lines[number]):
        line = lines[number]
        if line and not line.startswith(" "):
            if _EXCEPTION.match(line):
                end = _end_of_message(lines, number)
                return _Traceback(start, number, end), end
            foreign -= 1
            if foreign < 0:
                break
        number += 1
    return None, number


def _boxed(lines: Sequence[str], start: int) -> tuple[_Traceback | None, int]:
    """Return the traceback of an ExceptionGroup, as `_traceback` does."""
    exception = None
    end = start + 1
    while end < len(lines) and _is_in_box(lines[end : end + _FOREIGN]):
        if exception is None and is_exception(lines[end]):
            exception = end
        end += 1
    return (None if exception is None else _Traceback(start, exception, end)), end


def _is_in_box(lines: Sequence[str]) -> bool:
    """Return whether the first line belongs to the box of the lines before it. Python draws no box
    around the second and later lines of a message.
    """
    box = next((line for line in lines if _BOX.match(line)), None)
    return box is not None and not _GROUP.match(box)


def _end_of_message(lines: Sequence[str], exception: int) -> int:
    end = exception + 1
    while end < len(lines) and end <= exception + _MESSAGE and not _is_other(lines[end]):
        end += 1
    while end > exception + 1 and lines[end - 1].strip() in ("", '"""'):
        end -= 1
    return end


def _is_other(line: str) -> bool:
    """Return whether a line can't belong to the message above it."""
    frame = frame_of(line)
    return (
        (frame is not None and not frame.function)  # a SyntaxError begins with its place
        or is_chained(line)
        or is_header(line)
        or any(known.match(line) for known in (_NOT_FATAL, _LOG, _AFTERWARDS))
    )


# From tracebacks to a report.


def _report(lines: Sequence[str], chain: Sequence[_Traceback]) -> ErrorReport:
    last = chain[-1]
    before = [line for line in lines[max(0, chain[0].start - 4) : chain[0].start] if line.strip()]
    after = 0
    for line in lines[last.end :]:
        after += bool(line.strip())
        if after > _LATER:
            break
    logged = bool(before and _LOGGED.match(before[-1]))
    end = last.end
    if any(_NOT_FATAL.match(line) for line in before[-2:]) or after > _LATER:
        kind = FailureKind.PRINTED
    elif logged and (after or end > last.exception + 1):
        kind, end = FailureKind.PRINTED, last.exception + 1
    else:
        kind = FailureKind.RAISED
    first, *rest = lines[chain[0].start : end]
    if is_header(first) and not _BOX.match(first):
        first = _HEADER  # without the progress bar before it
    shown = (first, *rest)
    if _BOX.match(lines[last.start]):
        return _group(lines, last, kind, shown)
    type_, message = _split("\n".join(lines[last.exception : end]))
    raised = last
    if len(chain) > 1 and lines[chain[-2].exception] == lines[last.exception]:
        raised = chain[-2]  # the same exception, as another process raised it
    where, source = _place(lines[raised.start : raised.exception])
    return ErrorReport(kind, type_, message, where, source, shown)


def _group(
    lines: Sequence[str], traceback: _Traceback, kind: FailureKind, shown: tuple[str, ...]
) -> ErrorReport:
    """Return the report of an ExceptionGroup: place and message of its first exception."""
    type_, message = _split(in_box(lines[traceback.exception]))
    begin = traceback.exception
    end = traceback.end
    for number in range(traceback.exception + 1, traceback.end):
        if _FIRST_OF_GROUP.match(lines[number]):
            begin = number
        elif _NEXT_OF_GROUP.match(lines[number]):
            end = number
            break
    first = next(
        (
            text
            for text in map(in_box, lines[begin + 1 : end])
            if is_exception(text) and not is_header(text)
        ),
        "",
    )
    where, source = _place(lines[begin:end])
    if not where:
        where, source = _place(lines[traceback.start : traceback.exception])
    return ErrorReport(
        kind, type_, f"{message}: {first}" if first else message, where, source, shown
    )


def _crash(lines: Sequence[str]) -> tuple[int, ErrorReport] | None:
    """Return the line at which a crash message begins, and its report."""
    fatal = terminate = None
    for number, line in enumerate(lines):
        if is_fatal(line):
            fatal = number
        elif _TERMINATE.match(line):
            terminate = number
    shown: list[str] = []
    type_, message, where, source = "fatal error", "", "", ""
    if terminate is not None:
        match = _TERMINATE.match(lines[terminate])
        what = [line.strip() for line in lines[terminate + 1 : terminate + 2]]
        if match is not None and what and what[0].startswith("what():"):
            type_ = match["type"].rpartition("::")[2]
            message = what[0].removeprefix("what():").strip()
            shown += lines[terminate : terminate + 2]
    if fatal is not None:
        match = _FATAL.match(lines[fatal])
        message = message or (match["message"] if match is not None else "")
        stack = _stack(lines, fatal)
        where, source = _place(lines[fatal:stack][::-1])  # the innermost comes first
        shown += [line for line in lines[fatal:stack] if line.strip()]
    if not shown:
        return None
    start = min(number for number in (fatal, terminate) if number is not None)
    return start, ErrorReport(
        FailureKind.CRASHED, type_, message[:_LIMIT], where, source, tuple(shown)
    )


def _stack(lines: Sequence[str], fatal: int) -> int:
    """Return the end of the first thread's stack after a fatal error."""
    number = fatal + 1
    while number < min(len(lines), fatal + 6) and not _STACK.match(lines[number]):
        number += 1
    if number >= len(lines) or not _STACK.match(lines[number]):
        return fatal + 1
    number += 1
    while number < len(lines) and frame_of(lines[number]):
        number += 1
    return number


def _split(text: str) -> tuple[str, str]:
    """Return the type and the message of an exception; an empty type if the text has none."""
    match = _EXCEPTION.match(text[:_LIMIT])
    if match is None:
        return "", text[:_LIMIT]
    return match["type"].rpartition(".")[2], match["message"] or ""


# From frames to the user's own line.


def _place(lines: Sequence[str]) -> tuple[str, str]:
    """Return the innermost place in the user's own code, the last in `lines`, and its source."""
    found = [(number, frame) for number, line in enumerate(lines) if (frame := frame_of(line))]
    if not found:
        return "", ""
    number, frame = found[-1] if not found[-1][1].function else _innermost(found)
    where = f"{frame.file}:{frame.line}"
    if frame.function not in ("", "<module>"):
        where += f" in {frame.function}"
    source = lines[number + 1] if number + 1 < len(lines) else ""
    if not in_box(source).startswith(" ") or frame_of(source) or is_marks(source):
        return where, ""
    return where, in_box(source).strip()


def _innermost(found: Sequence[tuple[int, TracebackLine]]) -> tuple[int, TracebackLine]:
    """Return the user's innermost frame; an installed program counts as the user's."""
    files = [frame.file for _, frame in found]
    packages = [match[0] for file in files if (match := _PACKAGE.match(file)) is not None]
    own = [each for each in found if each[1].own and not _is_stub(each[1].file, files)]
    program = [each for each in found if packages and each[1].file.startswith(packages[0])]
    text = [each for each in found if each[1].file in _FROM_TEXT]
    return (own or program or text or found)[-1]


def _is_stub(file: str, files: Sequence[str]) -> bool:
    """Return whether a file is a console script, which only calls the installed package."""
    prefix, found, _ = file.rpartition("/bin/")
    return bool(found) and any(other.startswith(f"{prefix}/lib") for other in files)
