"""Finds a worker's exception, and the line of the script that raised it, in the worker's output or
error file.

The script doesn't need a decorator, because Python prints an uncaught exception to stderr, and the
agent keeps the end of each worker's stderr. The following formats are supported:

    CPython 3.11 to 3.14   tracebacks (Lib/traceback.py), chained, grouped, coloured, without their
                           beginning, or as torch prints them, with `[rank0]: ` before each line
    faulthandler           output when a signal ends Python (Python/traceback.c)
    libstdc++              the message about an exception in native code before the abort
    rich, ray, JSON        see core/diagnosis/traceback_lines
    other processes        exceptions from data loaders, pools and spawned processes, within
                           messages (torch/_utils.py, torch/multiprocessing/spawn.py) or as a cause
                           (multiprocessing/pool.py, concurrent/futures/process.py)
    error files            from torch.distributed.elastic.multiprocessing.errors

The functions accept any text and never raise an exception. Their running time is linear in the
length of the text.
"""

import json
import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from relight.core.diagnosis.traceback_lines import (
    FRAMED,
    HEADER,
    MORE_FRAMES,
    ORIGINAL,
    TracebackLine,
    as_python,
    clean,
    fatal_message,
    frame_of,
    in_box,
    in_one_line,
    is_chained,
    is_exception,
    is_header,
    is_marks,
    is_member,
    is_omission,
    is_stated_cause,
    split_exception,
    without_middle,
)
from relight.core.failure import ErrorReport, FailureKind


class _Traceback(NamedTuple):
    """The line numbers of a traceback's first line, its exception, and the line after its end. It
    `is_quoted` if it is part of the message above it.
    """

    start: int
    exception: int
    end: int
    is_quoted: bool = False


class _Raised(NamedTuple):
    """An exception in a chain, with the number of the line that contains it and the number of the
    line after its message.

    The `stack` field has the tracebacks that lead to the exception, with the outermost first. For
    an exception from another process, the other process's traceback follows the traceback of the
    process that re-raised the exception.
    """

    exception: int
    end: int
    stack: tuple[_Traceback, ...]


class _Member(NamedTuple):
    """The last exception in the chain of an exception in a group, with the numbers of the lines of
    its traceback. It `is_late` if its task had been cancelled.
    """

    text: str
    start: int
    end: int
    depth: int
    is_late: bool


class ProgramFacts(NamedTuple):
    """Known facts about a worker's program.

    The `went_on` field says whether the program kept running after the last traceback (None if
    unknown). The `is_function` field is true if the program is a user function, so that tracebacks
    of uncaught exceptions begin in that function and not in a module. The `script` field is the
    program's file name, or empty if unknown. Tracebacks that begin in a different file come from
    other processes.
    """

    went_on: bool | None = None
    is_function: bool = False
    script: str = ""


_UNKNOWN = ProgramFacts()


class _Link(Enum):
    """How a traceback relates to the chain before it."""

    SEPARATE = "it begins another chain"
    CHAINED = "one of Python's sentences is between the two"
    QUOTED = "it is part of the last exception's message"
    REST = "it is part of the same message as an earlier quoted traceback"


class _Chain(NamedTuple):
    """One or more exceptions, in the order they were raised, and their positions."""

    start: int
    end: int
    raised: tuple[_Raised, ...]


_OF_WORKER = re.compile(r"/relight/worker/\w+\.py$")
"""Modules that run a script in an existing process."""
_WRAPPERS = ("ProcessRaisedException", "RayTaskError")
"""Exceptions that wrap an exception from another process."""
_FROM_TEXT = ("<string>", "<stdin>", "<dynamic-code>")
"""File names of code without a file. Functions from a notebook that were pickled by cloudpickle
have the last of these names.
"""
_RANK = re.compile(r"^(?:\[rank\d+\]: )+", re.MULTILINE)
"""The prefix of each nonempty line that torch's excepthook prints, possibly followed by another
one in a quoted log.
"""
_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError): ")
_NOT_FATAL = re.compile(
    r"^(?:Exception (?:ignored|in) |Task exception was never|Error in (?:atexit|sys\.excepthook)"
    r"|Process \S+:$|--- Logging error)"
)
_LOGGING = "--- Logging error ---"
_IGNORED = re.compile(r"^(?:Exception ignored |Error in atexit)")
_WITHOUT_STARTERS = re.compile(r"^Error executing job with overrides")
"""The message that Hydra prints before the fatal traceback, which lacks the outermost frames."""
_LOG = re.compile(
    r"^(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\b|\[?\d{4}-\d\d-\d\d[ T]|\[?\d\d:\d\d:\d\d"
    r"|(?:\[rank\d+\]:)?\[?[IWEF]\d{4} )"
)
_LOGGED = re.compile(r"^(?:\[?\d.*)?\b(?:WARNING|ERROR|CRITICAL)\b|.*[=:] ?[\"']$")
"""A line that a logger prints before a traceback, or a line whose last string contains the
traceback.
"""
_RECORD = re.compile(r"^(?:\[?\d.*)?\b(?:WARNING|ERROR|CRITICAL)\b.*[^\"']$")
_AFTERWARDS = re.compile(
    r"^(?:Fatal Python error|terminate called|Original exception was|\S+\.py:\d+: \w*Warning"
    r"|Set the environment variable HYDRA_FULL_ERROR|[^|\n]{0,80}\d%\|"
    r"|(?:Call stack|usage|Usage|wandb): ?|\[[IWEF] )"
)
_REMOTE = re.compile(r"^[\w.]*RemoteTraceback: *$")
"""The line that multiprocessing, concurrent.futures and loky print before another process's
traceback.
"""
_AT_EXIT = re.compile(r"^(?:\[?[IW](?: |\d{4} )|wandb: |\S+\.py:\d+: \w*Warning)")
"""Messages that libraries print, possibly many times, while a process exits."""
_NO_FRAME = "<no Python frame>"
"""How faulthandler prints a stack without frames (dump_traceback in Python/traceback.c)."""
_STACK = re.compile(r"^(?:Current thread|Thread|Stack) .*\(most recent call first\):$")
_ABORTED = "Aborted"
_ABORTS = re.compile(
    r"^(?!(?i:note|info|debug|warn)).*(?:"
    r"(?i:\bassert\w*\b.{0,300}\bfail|\bfail.{0,80}\bassert)|[Cc]heck fail|corrupt"
    r"|invalid (?:pointer|size|next)|double free|malloc"
    r"|free\(\)|Watchdog|watchdog|\b(?:abort|fatal|FATAL|terminat)|stack smashing)"
    r"|^(?:\[rank\d+\]:)?\[[EF]"
)
"""Messages that the C library, glog and NCCL print before they call abort(3)."""
_NEAR = 5
_TERMINATE = re.compile(r"^terminate called after throwing an instance of '(?P<type>[^']+)'")
_BOX = re.compile(r"^ +[|+]")
_GROUP = re.compile(r"^ +\+ Exception Group Traceback")
_MEMBER = re.compile(r"^ +\+-(?:\+-)?-*(?: (?:\d+|\.\.\.) -+)?$")
"""The line before or after an exception in a group. In place of the exceptions after the fifteenth,
Python prints `...`.
"""
_RAISES = re.compile(
    r"""^\ +(?:raise\ [\w.]+\(|assert\ .*,\ *\(?)
    (?P<quote>["'])(?P<literal>(?:(?!(?P=quote))[^\\])+)(?P=quote)\)?(?:\ from\ .*)?$""",
    re.VERBOSE,
)
"""A source line that raises an exception whose message is a literal."""
_FORMATS = re.compile(
    r"""^\ +raise\ [\w.]+\(f(?P<quote>["'])(?:(?!(?P=quote))[^\\])*\}
    (?P<end>(?:(?!(?P=quote))[^\\{}]){4,})(?P=quote)\)(?:\ from\ .*)?$""",
    re.VERBOSE,
)
"""A source line that raises an exception whose message contains values and ends with a literal."""
_ONE_LINE = re.compile(
    r"""^(?:ModuleNotFoundError:\ No\ module\ named\ '[\w.]+'(?:;\ .*)?
    | ImportError:\ cannot\ import\ name\ '\w+'\ from\ .*
    | (?:FileNotFound|FileExists|Permission|NotADirectory|IsADirectory|OS|Connection\w*|BrokenPipe
      |BlockingIO)Error:\ \[Errno\ \d+\]\ .*
    | KeyError:\ (?:'[^']*'|"[^"]*"|-?\d+)
    | NameError:\ name\ '\w+'\ is\ not\ defined.*
    | AttributeError:\ .*\ has\ no\ attribute\ '\w+'.*
    | IndexError:\ [\w\ ]+\ out\ of\ range
    | ZeroDivisionError:\ .*\bby\ zero
    | UnboundLocalError:\ .*
    | UnicodeDecodeError:\ .*
    )$""",
    re.VERBOSE,
)
"""Exceptions that Python itself raises."""
_QUOTES = re.compile(r"""^ +(?:raise|assert|if\b.*:\ raise)\b.*\\n(?:[{"']|%[sr])""")
"""A source line that raises an exception whose message contains a value after a newline."""
_LONGEST_SOURCE = 500
_PACKAGE = re.compile(r".*/(?:site|dist)-packages/[^/]+")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?|\b(?:nan|inf)\b")

_INTERRUPTS = ("SystemExit", "KeyboardInterrupt", "GeneratorExit")
"""Exceptions raised by signal handlers and in generators. The last one never ends a program on its
own.
"""
_CONTROL_FLOW = (*_INTERRUPTS, "StopIteration", "StopAsyncIteration", "CancelledError", "Empty")
"""Exceptions that aren't errors, and therefore can't be the cause of an error, unless
`raise … from` says so.
"""

_FOREIGN = 10
"""Maximum number of foreign lines, such as lines from C threads, within a traceback."""
_MESSAGE = 100
"""Maximum number of lines in a message, not counting indented lines and list entries that resemble
the lines before them. A program that continued after an exception may also print lines that
resemble each other, but these don't follow a colon and are not indented.
"""
_MAX_LINES = 200
"""Maximum number of lines in a report. If a report is longer, its middle is left out."""
_LATER = 50
"""An exiting process prints fewer lines than this, so an exception that is followed by more lines
did not end the process.
"""
_LOOKED_AT = 200
"""Maximum number of lines to examine after an exception, counting empty lines."""
_LIMIT = 4000


def keep(head: str, tail: str, newlines: int) -> str:
    """Join two parts of a long stderr, with a line in the middle that counts the omitted lines.

    Args:
        head: a part that begins up to three lines before the header of the last traceback, because
            these lines may name a thread or a logger.
        tail: the end of the stderr.
        newlines: the number of newlines between the two parts.
    """
    rest = tail.partition("\n")[2]  # drop the first line, whose beginning is missing
    is_whole = head.endswith("\n")
    count = newlines + is_whole
    mark = [f"  … {count:,} more line{'s' if count > 1 else ''} …\n"] if count else []
    return "".join([head, *([] if is_whole else [" …\n"]), *mark, rest])


def from_stderr(text: str, program: ProgramFacts = _UNKNOWN) -> ErrorReport | None:
    """Find the exception that ended a worker in the last part of its stderr, or return None.

    The last exception is used. Exceptions that don't end a process are only used as a fallback.
    This applies to exceptions in threads, destructors, logs or other processes, and to exceptions
    that the program handled.
    """
    return _ending(*_parsed(text), program)[1]


def printed_before(text: str) -> ErrorReport | None:
    """Return the last exception printed before the fatal exception, such as an exception in a
    thread, or None. If the fatal exception is unknown, return None.
    """
    lines, chains = _parsed(text)
    at, ending = _ending(lines, chains)
    if ending is None or ending.kind is FailureKind.PRINTED or not at:
        return None
    before = chains[at - 1]
    title = lines[max(0, before.start - 1) : before.start + 1]
    if any(line.startswith(_LOGGING) for line in title):
        return None  # logging failed, not the script
    report = _report(lines, before)
    if (report.type, report.message) == (ending.type, ending.message):
        return None  # it was logged and raised again
    return report._replace(kind=FailureKind.PRINTED)


def besides(text: str, program: ProgramFacts = _UNKNOWN) -> tuple[list[str], list[str]]:
    """Return the lines of a worker's stderr that are not in tracebacks, in two parts: the lines
    before and the lines after the end of the last traceback. Without a traceback, all lines are in
    the second part.
    """
    lines, chains = _parsed(text)
    before: list[str] = []
    end = 0
    for chain in chains:
        before += lines[end : chain.start]
        last = chain.raised[-1]
        printed = _report(lines, chain, program).kind is FailureKind.PRINTED
        end = last.exception + 1 if printed and not _BOX.match(lines[chain.start]) else chain.end
    return [line for line in before if not _NOT_FATAL.match(line)], lines[end:]


def last_raised(printed: Sequence[str]) -> tuple[list[str], int]:
    """Return the lines that a worker printed up to the end of its fatal exception, and the number
    of these lines. Without such an exception, return no lines.
    """
    cleaned = [clean(line.rstrip("\r")).rpartition("\n")[2] for line in printed]
    lines = [_RANK.sub("", line) for line in cleaned]
    for chain in reversed(_chains(lines, _hooked(cleaned))):
        if _report(lines, chain).kind is FailureKind.RAISED:
            return lines[: chain.end], chain.end
    return [], 0


def from_error_file(text: str) -> ErrorReport | None:
    """Parse the exception in a file written by torch's `@record` or by the user. Return None if the
    file can't be parsed.
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
        lines = clean(details).rstrip().split("\n") if details.strip() else []
        shown = tuple(without_middle(lines, _MAX_LINES))
        return ErrorReport(FailureKind.RECORDED, kind, text, "", "", shown)
    if not message.strip():
        kind, text = report.type, report.message
    return report._replace(kind=FailureKind.RECORDED, type=kind, message=text)


def last_lines(text: str, count: int = 3) -> tuple[str, ...]:
    """Return the last nonempty lines."""
    lines = _RANK.sub("", clean(text)).split("\n")
    return tuple([line for line in lines if line.strip()][-count:])


def _parsed(text: str) -> tuple[list[str], list[_Chain]]:
    """Return the lines in the format that Python prints, and their tracebacks."""
    printed = clean(text).split("\n")
    hooked = _hooked(printed)
    lines = [_RANK.sub("", line) for line in printed]
    before, within, after = (
        as_python(part)
        for part in (lines[: hooked.start], lines[hooked.start : hooked.stop], lines[hooked.stop :])
    )
    whole, begin = [*before, *within, *after], len(before)
    return whole, _chains(whole, range(begin, begin + len(within)))


def _hooked(printed: Sequence[str]) -> range:
    """Return the numbers of the lines that torch's excepthook printed last. It prints one uncaught
    exception, with `[rank0]: ` before each line. A worker may start other ranks itself.
    """
    end = len(printed)
    while end and not _RANK.match(printed[end - 1]):
        end -= 1
    if not end:
        return range(0)
    prefix = printed[end - 1].partition(" ")[0]
    begin = end
    while begin and (
        not (line := printed[begin - 1]) or line.startswith(f"{prefix} ") or is_omission(line)
    ):
        begin -= 1
    while begin < end and not printed[begin]:
        begin += 1
    return range(begin, end) if is_header(printed[begin]) else range(0)


# From lines to tracebacks.


def _chains(lines: Sequence[str], hooked: range = range(0)) -> list[_Chain]:
    """Return all tracebacks, grouped into the chains in which Python printed them.

    Args:
        lines: the worker's output.
        hooked: the numbers of the lines that contain a single uncaught exception and nothing else.
    """
    groups: list[list[_Traceback]] = []
    quoted: _Traceback | None = None  # the first one in the last group
    for traceback in _tracebacks(lines):
        before = groups[-1][-1] if groups else None
        link = _link(lines, before, quoted, traceback, hooked) if before else _Link.SEPARATE
        if link is _Link.SEPARATE:
            groups.append([traceback])
            quoted = None
        elif link is _Link.REST:
            groups[-1][-1] = groups[-1][-1]._replace(end=traceback.end)
        elif link is _Link.QUOTED:
            groups[-1].append(traceback._replace(is_quoted=True))
            quoted = quoted or traceback
        else:
            groups[-1].append(traceback)
    for group in groups:
        if group[-1].start in hooked and group[-1].end < hooked.stop:
            group[-1] = group[-1]._replace(end=hooked.stop)
    return [_Chain(group[0].start, group[-1].end, tuple(_raised(lines, group))) for group in groups]


def _link(
    lines: Sequence[str],
    before: _Traceback,
    quoted: _Traceback | None,
    traceback: _Traceback,
    hooked: range,
) -> _Link:
    """Return how a traceback relates to the traceback before it, and to the first one that a
    message in the same chain quotes.
    """
    between = [line for line in lines[before.end : traceback.start] if line.strip(' "')]
    # Between two of these lines is only an exception that was never raised from Python code.
    if between and is_chained(between[0]) and is_chained(between[-1]):
        return _Link.CHAINED
    if not between and _quotes(lines, before, traceback):
        return _Link.QUOTED
    if before.start in hooked and traceback.start in hooked:
        return _Link.QUOTED if quoted is None else _Link.REST
    if quoted is None or not _is_outermost(lines, quoted):
        return _Link.SEPARATE
    above = lines[traceback.start - 1].rstrip()
    return _Link.SEPARATE if above and not above.endswith(":") else _Link.REST


def _quotes(lines: Sequence[str], outer: _Traceback, traceback: _Traceback) -> bool:
    """Return whether an exception's message contains the traceback that follows it."""
    if lines[traceback.start].startswith(ORIGINAL):
        return True
    if _is_whole(lines, outer.exception):
        return False
    source = _source_above(lines, outer.exception)
    return lines[outer.end - 1].rstrip().endswith(":") or _QUOTES.match(source) is not None


def _raised(lines: Sequence[str], group: Sequence[_Traceback]) -> list[_Raised]:
    """Return the exceptions in a chain in the order they were raised."""
    raised: list[_Raised] = []
    quoting: list[_Traceback] = []
    telling: list[_Raised] = []

    def end_quote() -> None:
        if quoting:
            inner = raised.pop()
            raised.append(inner._replace(stack=(*quoting, *inner.stack)))
            quoting.clear()
        raised.extend(reversed(telling))
        telling.clear()

    for traceback in group:
        if traceback.is_quoted and _is_reraise(lines, raised[-1], traceback):
            quoting += raised.pop().stack
        elif traceback.is_quoted:
            telling.append(raised.pop())
        elif (quoting or telling) and _is_outermost(lines, traceback):
            end_quote()
        new = _Raised(traceback.exception, traceback.end, (traceback,))
        text = lines[new.exception]
        same = next((n for n, each in enumerate(raised) if lines[each.exception] == text), None)
        if same is not None:
            # The same exception, raised again by another process or an outer block.
            inner = [part for each in reversed(raised[same:]) for part in each.stack]
            del raised[same:]
            new = new._replace(stack=(traceback, *inner))
        raised.append(new)
    end_quote()
    return raised


def _is_reraise(lines: Sequence[str], outer: _Raised, traceback: _Traceback) -> bool:
    """Return whether an exception whose message contains another exception's traceback re-raises
    that exception on behalf of another process or thread, instead of merely reporting it.
    """
    if lines[traceback.start].startswith(ORIGINAL):
        return True
    type_, message = _split(lines[outer.exception])
    same = type_ == _split(lines[traceback.exception])[0]
    return type_ in _WRAPPERS or (same and (not message or type_ in message))


def _is_outermost(lines: Sequence[str], traceback: _Traceback) -> bool:
    """Return whether a traceback probably begins at the start of Python's main thread."""
    header = lines[traceback.start]
    if header == FRAMED or not is_header(header):
        return True  # typer omits frames, or the beginning may be lost
    frames = map(frame_of, lines[traceback.start : traceback.exception])
    first = next((frame for frame in frames if frame is not None), None)
    return first is None or first.outermost


def _tracebacks(lines: Sequence[str]) -> list[_Traceback]:
    found = []
    number = 0
    if not any(is_header(line) for line in lines[:4]):  # the beginning of a long one may be lost
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
    """Return the traceback that begins at a given line, and the line at which parsing continues.

    The traceback is None if its exception is missing, for example because the process was killed
    while it was writing the traceback.
    """
    if _BOX.match(lines[start]):
        return _boxed(lines, start)
    number = start + 1
    while number < len(lines) and not is_header(lines[number]):
        line = lines[number]
        if line and not line.startswith(" "):
            if is_exception(line):
                end = _find_message_end(lines, number)
                return _Traceback(start, number, end), end
            foreign -= 1
            if foreign < 0:
                break
        number += 1
    return None, number


def _boxed(lines: Sequence[str], start: int) -> tuple[_Traceback | None, int]:
    """Parse an ExceptionGroup's traceback. The return value is the same as for `_traceback`."""
    exception = None
    end = start + 1
    while end < len(lines) and _is_in_box(lines[end : end + _FOREIGN]):
        if exception is None and is_exception(lines[end]):
            exception = end
        end += 1
    return (None if exception is None else _Traceback(start, exception, end)), end


def _is_in_box(lines: Sequence[str]) -> bool:
    """Return whether the first of these lines belongs to the same box as the lines before it.
    Python does not draw a box around the second and later lines of a message.
    """
    box = next((line for line in lines if _BOX.match(line)), None)
    return box is not None and not _GROUP.match(box)


def _find_message_end(lines: Sequence[str], exception: int) -> int:
    end = exception + 1
    if _is_whole(lines, exception):
        return end
    shapes: set[str] = set()
    is_list = lines[exception].rstrip().endswith(":")
    while end < len(lines) and not _is_other(line := lines[end]):
        shape = _shape(line)
        if end == exception + 1 and line.strip():
            is_list = is_list or _shape(lines[exception]).endswith(shape)
        if end <= exception + _MESSAGE:
            shapes.add(shape)
            is_list = is_list or line.startswith("  ")
        elif line.strip() and not line.startswith(" "):
            is_cut = end + 1 < len(lines) and is_omission(lines[end + 1])
            if not is_cut and not (is_list and shape in shapes):
                break
        end += 1
    while end > exception + 1 and lines[end - 1].strip() in ("", '"""'):
        end -= 1
    return end


def _is_whole(lines: Sequence[str], exception: int) -> bool:
    """Return whether an exception's message is known to have at most one line, because the message
    is empty, comes from Python itself, or matches the literal in the source line above. A program
    that caught the exception may print anything after the message. Notes (PEP 678) would also be
    printed after it, but are rare.
    """
    line = lines[exception].rstrip()
    message = split_exception(line)[1]
    if not message:
        return not line.endswith(":")
    source = _source_above(lines, exception)
    raised = _RAISES.match(source)
    if raised is not None:
        return raised["literal"] == message
    formatted = _FORMATS.match(source)
    if formatted is not None and message.endswith(formatted["end"]):
        return True
    return _ONE_LINE.match(line) is not None


def _source_above(lines: Sequence[str], exception: int) -> str:
    """Return the last source line of the traceback above an exception."""
    number = exception - 1
    while number > 0 and is_marks(lines[number]):
        number -= 1
    return lines[number][:_LONGEST_SOURCE]


def _shape(line: str) -> str:
    """Return the part of a line that is the same in all lines that report the same problem about
    different things.
    """
    return _NUMBER.sub("#", line)


def _is_other(line: str) -> bool:
    """Return whether a line can't be part of the message above it."""
    frame = frame_of(line)
    return (
        (frame is not None and not frame.function)  # a SyntaxError begins with its location
        or is_chained(line)
        or is_header(line)
        or any(known.match(line) for known in (_NOT_FATAL, _LOG, _AFTERWARDS, _REMOTE))
    )


# From tracebacks to a report.


def _ending(
    lines: Sequence[str], chains: Sequence[_Chain], program: ProgramFacts = _UNKNOWN
) -> tuple[int, ErrorReport | None]:
    """Return the number of exception chains that were printed before a worker's fatal exception,
    and the report on that exception.
    """
    crash = _crash(lines)
    printed: tuple[int, ErrorReport] | None = None
    for number, chain in reversed(list(enumerate(chains))):
        report = _report(lines, chain, program)
        if report.kind is FailureKind.PRINTED:
            ignored = chains[number + 1 : number + 2] if printed and is_ignored(printed[1]) else []
            later = lines[chain.raised[-1].exception + 1 : ignored[0].start] if ignored else []
            outranks = ignored and not (is_ignored(report) or any(map(_is_own_output, later)))
            if not printed or outranks:
                printed = number, report
        elif crash is None or crash[0] < chain.end or not crash[1].where:
            return number, _with_quoted(lines, chain, chains[number + 1 : number + 2], report)
        else:
            break
    if crash is not None:
        return sum(chain.start < crash[0] for chain in chains), crash[1]
    return printed or (0, None)


def is_ignored(report: ErrorReport) -> bool:
    """Return whether Python ignored an exception, for example in a destructor or an atexit
    function. Such an exception ends nothing, and is often printed after the reason for an exit.
    """
    return bool(report.lines) and _IGNORED.match(report.lines[0]) is not None


def _is_own_output(line: str) -> bool:
    return bool(line.strip()) and not _IGNORED.match(line)


def _report(lines: Sequence[str], chain: _Chain, program: ProgramFacts = _UNKNOWN) -> ErrorReport:
    last = chain.raised[-1]
    before = [line for line in lines[max(0, chain.start - 4) : chain.start] if line.strip()]
    rest = lines[chain.end : chain.end + _LOOKED_AT]
    after = sum(1 for line in rest if line.strip() and not _AT_EXIT.match(line))
    boxed = _BOX.match(lines[last.stack[0].start]) is not None
    end = chain.end
    header = [line for line in before[-2:] if _NOT_FATAL.match(line)][-1:]
    if header or (after > _LATER and program.went_on is not False):
        kind = FailureKind.PRINTED
    elif program.went_on or _was_handled(
        lines, last, before, followed=after > 0 or end > last.exception + 1, program=program
    ):
        kind = FailureKind.PRINTED
        end = end if boxed else last.exception + 1  # the next lines may not belong to the message
    else:
        kind = FailureKind.RAISED
    if kind is FailureKind.PRINTED and before and _RECORD.match(before[-1]):
        header = [before[-1]]
    shown = (*header, *_shown(lines, chain, end))
    if boxed:
        report = _group(lines, last.stack[0], kind, shown)
    else:
        said = lines[last.exception : end]
        if last.end < chain.end == end:  # the message quotes a traceback
            said = lines[last.exception : last.end]
            if said[-1].rstrip().endswith(":"):
                said = [*said, lines[chain.raised[-2].exception]]
        type_, message = _split("\n".join(said))
        report = ErrorReport(kind, type_, message, *_place(lines, last.stack), shown)
    cause, cause_where = _cause(lines, chain, report)
    *before_last, last_type = [_type(lines, each) for each in chain.raised]
    interrupted = last_type in _INTERRUPTS[:2] or any(each in _INTERRUPTS for each in before_last)
    if cause:
        report = report._replace(cause=cause, cause_where=cause_where)
    return report._replace(is_interrupted=interrupted)


def _with_quoted(
    lines: Sequence[str], chain: _Chain, following: Sequence[_Chain], report: ErrorReport
) -> ErrorReport:
    """Return a report that includes the traceback quoted in its exception's message. The quoted
    traceback comes from another process or machine, follows directly, and lacks the outermost
    frame.
    """
    if not following or following[0].start != chain.end or report.kind is not FailureKind.RAISED:
        return report
    quoted = following[0]
    if _is_outermost(lines, quoted.raised[0].stack[0]):
        return report
    last = quoted.raised[-1]
    type_, message = _split(in_box(lines[last.exception]))
    where, _ = _place(lines, last.stack)
    shown = (*report.lines, *_shown(lines, quoted, quoted.end))
    report = report._replace(lines=tuple(without_middle(shown, _MAX_LINES)))
    if report.cause:
        return report
    return report._replace(cause=f"{type_}: {message}" if message else type_, cause_where=where)


def _was_handled(
    lines: Sequence[str],
    last: _Raised,
    before: Sequence[str],
    *,
    followed: bool,
    program: ProgramFacts,
) -> bool:
    """Return whether an exception was printed by the program itself, a logger or another process,
    so that the program could continue. Such an exception was caught in a function, or was logged
    and followed by more output.
    """
    if before and _LOGGED.match(before[-1]) and followed:
        return True
    if any(_WITHOUT_STARTERS.match(line) for line in before):
        return False
    outermost = last.stack[0]
    return not (program.is_function or _is_outermost(lines, outermost)) or _is_other_program(
        lines, outermost, program.script
    )


def _is_other_program(lines: Sequence[str], traceback: _Traceback, script: str) -> bool:
    """Return whether a traceback begins in a program other than the worker's script."""
    if not script or lines[traceback.start] != HEADER:
        return False
    frame = next((f for line in lines[traceback.start : traceback.exception]
                  if (f := frame_of(line)) is not None), None)  # fmt: skip
    if frame is None or frame.function != "<module>" or _OF_WORKER.search(frame.file):
        return False
    return frame.file.rpartition("/")[2] != script


def _shown(lines: Sequence[str], chain: _Chain, end: int) -> tuple[str, ...]:
    """Return the lines of a report, shortened and without the progress bar that precedes them."""
    exception = chain.raised[-1].exception + 1
    stack = [HEADER if line == FRAMED else line for line in lines[chain.start : exception]]
    stack = [line for number, line in enumerate(stack) if line or _is_near_link(stack, number)]
    if is_header(stack[0]) and not _BOX.match(stack[0]):
        stack[0] = HEADER
    message = lines[exception:end]
    if len(stack) + len(message) <= _MAX_LINES:
        return (*stack, *message)
    half = _MAX_LINES // 2
    size = min(len(message), max(half, _MAX_LINES - len(stack)))
    return (*without_middle(stack, _MAX_LINES - size), *without_middle(message, size))


def _is_near_link(lines: Sequence[str], number: int) -> bool:
    """Return whether a line is next to one that links two tracebacks. Python prints empty lines
    there, whereas loguru prints them after each frame.
    """
    return any(map(is_chained, lines[max(0, number - 1) : number + 2]))


def _type(lines: Sequence[str], raised: _Raised) -> str:
    return _split(in_box(lines[raised.exception]))[0]


def _cause(lines: Sequence[str], chain: _Chain, report: ErrorReport) -> tuple[str, str]:
    """Return the first error in a chain and the location where it was raised, unless the chain's
    last error is the same error or includes it.
    """
    for each in chain.raised[:-1]:
        type_, message = _split(in_box(lines[each.exception]))
        near = lines[each.end : each.end + _NEAR]
        link = next((line for line in near if in_box(line).strip()), "")
        stated = type_ not in _INTERRUPTS and is_stated_cause(link)
        if type_ and (stated or type_ not in _CONTROL_FLOW):
            if message and message in report.message:
                break
            outer = each.stack[0]
            if _BOX.match(lines[outer.start]):
                message = in_one_line(_group(lines, outer, report.kind, ()).message)
            where, _ = _place(lines, each.stack)
            package = _PACKAGE.match(report.where)
            program = package is not None and where.startswith(package[0])
            if TracebackLine(where, "", "").library and not program:
                where = ""  # it is not in the user's code
            return f"{type_}: {message}" if message else type_, where
    return "", ""


def _group(
    lines: Sequence[str], traceback: _Traceback, kind: FailureKind, shown: tuple[str, ...]
) -> ErrorReport:
    """Return the report on an ExceptionGroup, with the location of its most relevant exception, and
    the location where the group itself was raised. The first line of the message ends with the
    most relevant exception, and each further line is another exception.
    """
    type_, message = _split(in_box(lines[traceback.exception]))
    members = _members(lines, traceback)
    where, source = _place_in(lines[traceback.start : traceback.exception])
    group_where = ""
    if members:
        message = f"{message}: " + "\n".join(member.text for member in members)
        place = _place_in(lines[members[0].start : members[0].end])
        if place[0]:
            where, source, group_where = *place, where
    return ErrorReport(kind, type_, message[:_LIMIT], where, source, shown, cause_where=group_where)


def _members(lines: Sequence[str], group: _Traceback) -> list[_Member]:
    """Return the exceptions in an ExceptionGroup, including those in nested groups. Exceptions from
    cancelled tasks come last, because they are the least relevant.
    """
    found: list[_Member] = []
    begin = group.exception + 1
    for end in range(begin, group.end + 1):
        if end < group.end and not _MEMBER.match(lines[end]):
            continue
        links = [number for number in range(begin, end) if is_chained(lines[number])]
        start = links[-1] + 1 if links else begin
        texts = [in_box(line) for line in lines[start:end]]
        text = next((t for t in texts if is_member(t)), "")
        is_group = end < group.end and _is_first(lines[end])
        depth = _depth(lines[start]) if start < end else 0
        is_caused = links and not any(in_box(line).strip() for line in lines[begin : links[0]])
        while is_caused and found and found[-1].depth > depth:
            found.pop()  # members of the group that is the cause of this exception
        if text and not is_group:
            before = [in_box(line) for line in lines[begin:start]]
            is_late = any(_split(t)[0] == "CancelledError" for t in (*before, text))
            found.append(_Member(text, start, end, depth, is_late))
        begin = end + 1
    return sorted(found, key=lambda member: member.is_late)


def _is_first(line: str) -> bool:
    """Return whether the first exception of a group begins after this line."""
    return line.lstrip().startswith("+-+")


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _crash(lines: Sequence[str]) -> tuple[int, ErrorReport] | None:
    """Return the first line of a crash message, and its report."""
    every = range(len(lines))
    fatal = max((n for n in every if fatal_message(lines[n])), default=None)
    terminate = max((n for n in every if _TERMINATE.match(lines[n])), default=None)
    shown: list[str] = []
    type_, message, where, source = "fatal error", "", "", ""
    if terminate is not None:
        match = _TERMINATE.match(lines[terminate])
        what = [line.strip() for line in lines[terminate + 1 : terminate + 2]]
        if match is not None and what and what[0].startswith("what():"):
            type_ = match["type"]
            message = what[0].removeprefix("what():").strip()
            shown += lines[terminate : terminate + 2]
    if fatal is not None:
        message = message or fatal_message(lines[fatal])
        if message == _ABORTED and (reason := _reason(lines[:fatal])):
            message = reason.strip()
            shown.append(reason)
        begin, end = _stack(lines, fatal)
        where, source = _place_in(lines[begin:end][::-1])  # the innermost frame comes first
        shown += [line for line in [lines[fatal], *lines[begin:end]] if line.strip()]
    if not shown:
        return None
    start = min(number for number in (fatal, terminate) if number is not None)
    lines = without_middle(shown, _MAX_LINES)
    return start, ErrorReport(
        FailureKind.CRASHED, type_, message[:_LIMIT], where, source, tuple(lines)
    )


def _reason(before: Sequence[str]) -> str:
    """Return the reason that C or C++ code printed just before calling abort(3), such as a failed
    assertion, memory corruption or a timeout in NCCL's watchdog. Return an empty string if the code
    did not call abort.
    """
    near = [line for line in before[-_NEAR:] if line.strip()]
    if not near or any(frame_of(line) for line in near):
        return ""
    return near[-1] if _ABORTS.search(near[-1]) else ""


def _stack(lines: Sequence[str], fatal: int) -> tuple[int, int]:
    """Return the bounds of the crashed thread's stack, or of the first stack if no Python thread
    crashed.
    """
    near = range(fatal + 1, min(len(lines), fatal + 6))
    first = next((n for n in near if _STACK.match(lines[n])), None)
    if first is None:
        return fatal + 1, fatal + 1
    number = begin = first
    while number < len(lines) and _is_stack_line(lines[number]):
        if lines[number].startswith("Current thread"):
            begin = number
            break
        number += 1
        if number < len(lines) and not lines[number].strip():
            number += 1  # an empty line between two threads
    end = begin + 1
    while end < len(lines) and frame_of(lines[end]):
        end += 1
    if lines[end : end + 1] == [MORE_FRAMES]:
        end += 1
    return begin, end


def _is_stack_line(line: str) -> bool:
    # A C++ thread that ran Python code earlier is listed without frames.
    return bool(_STACK.match(line) or frame_of(line)) or line.strip() == _NO_FRAME


def _split(text: str) -> tuple[str, str]:
    return split_exception(text[:_LIMIT])


# From frames to the user's own line.


def _place(lines: Sequence[str], stack: Sequence[_Traceback]) -> tuple[str, str]:
    """Return the innermost location in the user's own code, and its source line."""
    return _place_in([line for part in stack for line in lines[part.start : part.exception]])


def _place_in(lines: Sequence[str]) -> tuple[str, str]:
    """Return the last location in the user's own code within the given lines, and its source
    line.
    """
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
    return where, "" if is_omission(source) else in_box(source).strip()


def _innermost(found: Sequence[tuple[int, TracebackLine]]) -> tuple[int, TracebackLine]:
    """Return the innermost frame in the user's code. An installed program counts as the user's
    code.
    """
    files = [frame.file for _, frame in found]
    packages = [match[0] for file in files if (match := _PACKAGE.match(file)) is not None]
    own = [each for each in found if each[1].own and not _is_stub(each[1].file, files)]
    program = [each for each in found if packages and each[1].file.startswith(packages[0])]
    text = [each for each in found if each[1].file in _FROM_TEXT]
    return (own or program or text or found)[-1]


def _is_stub(file: str, files: Sequence[str]) -> bool:
    """Return whether a file is a console script that only calls the installed package."""
    prefix, found, _ = file.rpartition("/bin/")
    return bool(found) and any(other.startswith(f"{prefix}/lib") for other in files)
