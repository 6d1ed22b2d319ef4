"""What a worker printed, or wrote to its error file, before it died -> its exception and the
script's line.

The texts are those of CPython 3.11 to 3.14 (Lib/traceback.py, Python/pythonrun.c), of faulthandler,
and the error file of torch.distributed.elastic.multiprocessing.errors. No decorator is needed in
the script: Python prints an exception that nobody catches to stderr, and the agent has the end of
each worker's stderr.
"""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(
    r'^\s*(?:\|\s*)*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:,? in (?P<function>.+))?$'
)
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$", re.DOTALL)
_SYNTAX = re.compile(r"^(SyntaxError|IndentationError|TabError): ")
_FATAL = re.compile(r"^Fatal Python error: (?P<message>.+)$", re.MULTILINE)
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_NOT_FATAL = ("Exception ignored in", "Exception in thread", "Exception in callback")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3[.\d]*/|^<")


class Report(NamedTuple):
    """An exception as the worker told it.

    `where` is the last line in the user's own code, such as `train.py:42 in step: loss.backward()`.
    """

    type: str
    message: str
    where: str
    lines: tuple[str, ...]


def from_stderr(text: str) -> Report | None:
    """Return the exception that ended a worker, from the end of its stderr; None if there is none.

    The last traceback counts, chained ones included. Tracebacks that do not end a process (in
    threads, in destructors) are passed over where there is another.
    """
    lines = text.splitlines()
    ignored: Report | None = None
    for start in reversed([i for i, line in enumerate(lines) if line.rstrip().endswith(_HEADER)]):
        before = next((line for line in reversed(lines[:start]) if line.strip()), "")
        if before in _CHAINED:
            continue
        report = _parse(lines[start:])
        if report is None:
            continue
        if not before.startswith(_NOT_FATAL):
            return report
        ignored = ignored or report
    return _syntax_error(lines) or _fatal(text) or ignored


def from_error_file(text: str) -> Report | None:
    """Return the exception in a file written by torch's `@record`, or by the user; None if it has
    no sense.
    """
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        return None
    if isinstance(message, str):
        headline, details = message, ""
    elif isinstance(message, dict) and isinstance(message.get("message"), str):
        headline = message["message"]
        extra = message.get("extraInfo")
        details = str(extra.get("py_callstack", "")) if isinstance(extra, dict) else ""
    else:
        return None
    report = from_stderr(details)
    if report is not None:
        return report
    kind, text = _split_exception(headline)
    return Report(kind, text, "", tuple(details.splitlines()))


def last_lines(text: str, count: int = 3) -> tuple[str, ...]:
    """Return the last lines that are not empty."""
    return tuple([line for line in text.splitlines() if line.strip()][-count:])


def _parse(lines: Sequence[str]) -> Report | None:
    """Parse a traceback, and those chained to it, from the first line on."""
    end = 0
    exception_at = None
    inside = True
    for number, line in enumerate(lines[1:], 1):
        bare = line.lstrip(" |+-")
        if line.rstrip().endswith(_HEADER):
            inside = True
        elif bare in _CHAINED:
            inside = False
        elif inside and line and not line[0].isspace():
            if _EXCEPTION.match(line) is None:
                break
            exception_at, end, inside = number, number, False
        elif inside:
            continue
        elif exception_at is not None and not line.strip():
            # The end, unless a chained traceback follows.
            follows = [text for text in lines[number + 1 : number + 2] if text in _CHAINED]
            if not follows:
                break
        elif exception_at is not None and line.startswith(_NOT_FATAL):
            break
        elif exception_at is not None and number - exception_at <= 8:
            end = number  # a message of several lines
        else:
            break
    if exception_at is None:
        return _group(lines)
    kind, message = _split_exception("\n".join(lines[exception_at : end + 1]))
    return Report(kind, message, _where(lines[:exception_at]), tuple(lines[: end + 1]))


def _group(lines: Sequence[str]) -> Report | None:
    """Parse the traceback of an ExceptionGroup, whose lines are all drawn inside a box."""
    box = [line for line in lines if line.lstrip().startswith(("|", "+"))]
    for line in box:
        bare = line.lstrip(" |+-")
        match = _EXCEPTION.match(bare)
        if match is not None and not bare.startswith("Exception Group"):
            return Report(
                match["type"], match["message"] or "", _where(box), tuple(lines[: len(box)])
            )
    return None


def _syntax_error(lines: Sequence[str]) -> Report | None:
    for number in range(len(lines) - 1, -1, -1):
        if _SYNTAX.match(lines[number]):
            start = max((i for i in range(number) if _FRAME.match(lines[i])), default=number)
            kind, message = _split_exception(lines[number])
            where = _where(lines[start:number], syntax=True)
            return Report(kind, message, where, tuple(lines[start : number + 1]))
    return None


def _fatal(text: str) -> Report | None:
    """Parse what faulthandler prints when a signal ends Python: the innermost frame comes first."""
    match = _FATAL.search(text)
    if match is None:
        return None
    lines = text[match.start() :].splitlines()
    end = next((i for i, line in enumerate(lines) if line.startswith("Extension modules")), None)
    lines = [line for line in lines[:end] if line.strip()]
    frames = [line for line in lines if _FRAME.match(line)]
    return Report("fatal error", match["message"], _where(frames[::-1]), tuple(lines))


def _where(lines: Sequence[str], *, syntax: bool = False) -> str:
    """Return the innermost frame of the user's own code, or of any where there is none."""
    frames = [(i, match) for i, line in enumerate(lines) if (match := _FRAME.match(line))]
    own = [(i, match) for i, match in frames if syntax or not _LIBRARY.search(match["file"])]
    if not (own or frames):
        return ""
    index, match = (own or frames)[-1]
    where = f"{match['file']}:{match['line']}"
    if match["function"] and match["function"] != "<module>":
        where += f" in {match['function']}"
    source = lines[index + 1].strip() if index + 1 < len(lines) else ""
    if source and not _FRAME.match(lines[index + 1]) and set(source) - set("~^ |"):
        where += f": {source.lstrip('| ')}"
    return where


def _split_exception(text: str) -> tuple[str, str]:
    match = _EXCEPTION.match(text)
    if match is None:
        return "", text
    return match["type"].rpartition(".")[2], match["message"] or ""
