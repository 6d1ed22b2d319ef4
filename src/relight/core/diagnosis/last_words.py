"""Finds the most informative line in a worker's output, excluding tracebacks.

Programs commonly report the reason why they exit in the following ways:

    argparse, click, typer,    usage errors, with or without a frame
    fire, hydra, absl
    loggers and print          `FATAL: …`, `2026-01-02 ERROR …`, `config error: …`, lines of JSON
    shells, C, C++, Rust, Go   `line 3: foo: command not found`, `Assertion … failed`,
                               `terminate called …`, `panicked at …`, `panic: …`

The functions accept any text and never raise an exception. Their running time is linear in the
length of the text.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from relight.core.diagnosis.excerpts import cut
from relight.core.diagnosis.traceback_lines import (
    clean,
    frame_of,
    is_exception,
    is_header,
    is_marks,
    without_numbers,
)
from relight.core.diagnosis.tracebacks import ProgramFacts, besides
from relight.core.failure import ErrorReport, FailureKind

_LINES = 30
"""Number of lines at the end of the output to consider, not counting noise."""
_LOOKED_AT = 500
"""Number of lines at the end of the output to read. A program may print a lot while it shuts
down.
"""
_LONGEST = 1000
"""Number of characters of each line to examine."""
_NOISE = re.compile(
    r"""^\W*$
    | ^(?:\[rank\d+\]:)?\[?[WI]\d{4}[ ] | Warning:\  | \bwarnings\.warn\( | \bNCCL\ (?:INFO|WARN)\b
    | ^\W*+(?:\d[^A-Za-z]*+(?:[\w.]++\W++){0,4}?)?(?:[\w.]++\ [-:|]\ )?(?:DEBUG|INFO|WARN|WARNING)\b
    | \blevel=(?i:debug|info|warn) | "(?:level|levelname|severity)":\ ?"(?i:debug|info|warn)
    | ^\[Gloo\]\ Rank\ \d
    | ^(?i:debug|info|note|warn|warning)\b
    | \d%\| | \b(?:it/s|s/it)\b | ^(?!.*\b(?:ERROR|FATAL|CRITICAL)\b).*[█━#=]{5}
    | ^(?i:usage):\ | ^Try\ '.*--help' | ^For\ detailed\ information
    | ^wandb: | ^Set\ the\ environment\ variable\ HYDRA_FULL_ERROR | ^Error\ executing\ job\ with
    | RemoteTraceback:\ *$ | ^During\ handling\ of | ^The\ above\ exception\ was
    | ^Fatal\ Python\ error:\  | ^(?:Current\ thread|Thread)\ 0x | ^Extension\ modules:
    | \b(?i:un(?:caught|handled)\ exception):?$
    | \bAn\ error\ has\ been\ caught\ in\ function\ '.*:$
    | ^\ *<no\ Python\ frame> | ^Call\ stack:$
    | ^(?:Message:\ ['"] | Arguments:\ [(]) | ^future:\ <Task\b
    | resource_tracker: | <omitting\ python\ frames>
    | ^object\ (?:address|refcount|type|type\ name|repr)\ *:\  | ^lost\ sys\.stderr$""",
    re.VERBOSE,
)
_NATIVE_FRAME = re.compile(
    r"""^\s*+(?:==\d+==\s*)?(?:frame\ )?\#\d+:?\s
    | ^\s*+(?:\d+:\ |@\ +)0x[0-9a-f]+\b
    | ^\s*+(?:\[[^\]\s]+\]\s)?(?:\[\ *\d+\]\s)?[^\s(]*+\([^()]*\+0x[0-9a-f]+\)\s?\[0x[0-9a-f]+\]
    | ^\s++\d++:\s++<?\w+::\S
    | ^\s++at\ \S+:\d+(?::\d+)?$""",
    re.VERBOSE,
)
"""Frames of C++, Rust and sanitizers, and of glibc's backtrace(3)."""
_PROGRESS = re.compile(
    r"""^\W*+(?:\d[^A-Za-z]*+(?:[\w.]++\W++){0,4}?)?(?:[\w.]++\ [-:|]\ )?(?:DEBUG|INFO)\b
    | \blevel=(?i:debug|info) | "(?:level|levelname|severity)":\ ?"(?i:debug|info)
    | \d%\| | \b(?:it/s|s/it)\b""",
    re.VERBOSE,
)
"""Lines that a program prints while it makes progress."""
_ERROR = re.compile(
    r"""(?:\b(?:[A-Z]\w*Error|(?i:error|fatal|critical|panic|abort|aborted))\b
      \ *(?:\]|:|\|)(?!\ *[-+]?\d*\.\d))
    | \b(?:ERROR|FATAL|CRITICAL|PANIC)\b | \blevel=(?i:error|fatal|critical)\b
    | ^\[?(?:rank\d+\]:\[)?[EF]\d{4}[ ]
    | (?i:\bassert(?:ion)?\b.*\bfailed\b | \bpanicked\ at\b | \bout\ of\ memory\b)
    | (?i:\bcommand\ not\ found\b | \bsegmentation\ fault\b | \bcore\ dumped\b)
    | (?i:\bno\ such\ (?:option|command)\b | \bunrecognized\ arguments\b | ^could\ not\ )
    | ^terminate\ called\b | ^(?:\S+:\ )*Killed\b""",
    re.VERBOSE,
)
"""Patterns that mark an error."""
_LIKELY = re.compile(
    r"\b(?:could(?: not|n't)|can(?: ?not|'t)|unable to|fail(?:ed|ure|s)|not found|no such|denied"
    r"|refused|invalid|unknown|missing|must be|not allowed|giving up|gave up|aborting|exceeded"
    r"|unsupported|unexpected|double free|corrupt(?:ed|ion)|errors?)\b",
    re.IGNORECASE,
)
"""Words that suggest a failure. A line that contains such a word may also be merely informative."""
_IGNORED = "Exception ignored "
"""The header of an exception in a destructor, which ends nothing."""
_LEAVES = re.compile(
    r"(?i)\b(?:leav(?:e|es|ing)|exit(?:s|ing|ed)?|stop(?:s|ping|ped)?|quit(?:s|ting)?|early|enough"
    r"|reached|done|saved|finish(?:es|ed)?|complet(?:e|es|ed)|converged"
    r"|exhausted|empty|nothing|no (?:more|\w+ (?:left|found|remain\w*))|giving up|ran out)\b"
)
"""Words with which a program explains why it ends."""
_AT_END = 10
"""Number of lines at the end of the output that may give this reason."""
_ADVICE = re.compile(r"(?i)\(.*\)$|(?:hint|help|tip):|please\b")
_WITH_ADVICE = 160
"""Number of characters of a reason and the advice after it that fit into a headline."""
_BOX = re.compile(r"^╭─+ Error ─")
_LEVEL = re.compile(r'"(?:level|levelname|severity)": ?"(error|fatal|critical)', re.IGNORECASE)
_RECORD = re.compile(r"^\W*(?:\d|(?:ERROR|FATAL|CRITICAL)\b|(?:rank\d+\]:\[)?[EF]\d{4} )")
"""The beginning of a line printed by a logger, as opposed to the output of `sys.exit`."""
_IN_JSON = re.compile(r'^\{.*?"(?:msg|message|event)": ?"((?:[^"\\]|\\.)++)"')


def words(stderr_tail: str, stdout_tail: str, elsewhere: Collection[str] = ()) -> str:
    """Return the most informative line in a worker's last output, excluding tracebacks, or an empty
    string if the worker printed nothing.

    The most informative line is the first error after the last traceback, or an error before that
    traceback if nothing follows it. Without an error, it is the last line of stderr or, if stderr
    is empty, of stdout. Lines that healthy ranks have also printed have a lower priority.

    Args:
        stderr_tail: the end of stderr.
        stdout_tail: the end of stdout.
        elsewhere: the lines printed by healthy ranks, as returned by `lines_without_numbers`.
    """
    before, after = map(_telling, besides(stderr_tail))
    if after and without_numbers(after[-1]) not in elsewhere:
        after = [line for line in after if without_numbers(line) not in elsewhere]
    found = _first_error(after or before)
    if not (found or after):
        printed = _telling(clean(stdout_tail[-_LINES * _LONGEST :]).split("\n"))
        after = printed or before
    return (found or _last(after))[:_LONGEST]


def before_crash(tail: str, elsewhere: Collection[str]) -> str:
    """Return the most informative of the lines that a worker printed right before a signal ended
    it, or an empty string. Lines before progress messages, or before lines that ranks without a
    crash have also printed, are unrelated to the crash, and so is a traceback.

    Args:
        tail: the end of stderr or stdout.
        elsewhere: the lines printed by ranks that did not crash, as returned by
            `lines_without_numbers`.
    """
    lines = besides(tail)[1][-_LOOKED_AT:]
    shapes = Counter(without_numbers(line.strip()) for line in lines)
    kept: list[str] = []
    for line in reversed(lines):
        if _NATIVE_FRAME.match(line[:_LONGEST]):
            continue  # many of them are alike without their addresses
        shape = without_numbers(line.strip())
        is_repeated = shapes[shape] > 1 and not is_error(line)
        if shape and (is_repeated or shape in elsewhere or _PROGRESS.search(line[:_LONGEST])):
            break
        kept.append(line)
    found = _telling(kept[::-1])
    return (_first_error(found) or (found[-1] if found else ""))[:_LONGEST]


def parting(stderr_tail: str, stdout_tail: str, elsewhere: Collection[str]) -> str:
    """Return the reason that a worker printed before it exited with code 0, although other workers
    still needed it, or an empty string. The reason is a line about the end of something or, on
    stderr, any last line. No other worker has printed it.

    Args:
        stderr_tail: the end of stderr.
        stdout_tail: the end of stdout.
        elsewhere: the lines printed by other ranks, as returned by `lines_without_numbers`.
    """
    for tail in stderr_tail, stdout_tail:
        last = [line.strip() for line in clean(tail).split("\n") if line.strip()][-_AT_END:]
        for line in reversed(last):
            found = _from_json(line[:_LONGEST]) or line[:_LONGEST]
            if _LEAVES.search(found) and without_numbers(line) not in elsewhere:
                return found
    said = words(stderr_tail, "")
    return "" if without_numbers(said) in elsewhere else said


def after_traceback(stderr_tail: str, program: ProgramFacts, late: int = 0) -> str:
    """Return the last informative line after a worker's last traceback, or an empty string.

    Args:
        stderr_tail: the end of stderr.
        program: the facts about the worker's program.
        late: the number of bytes at the end of stderr to ignore.
    """
    text = "\n".join(besides(stderr_tail, program)[1]).encode(errors="replace")
    after = _telling(text[: max(0, len(text) - late)].decode(errors="replace").split("\n"))
    return after[-1][:_LONGEST] if after else ""


def weighed(report: ErrorReport, more: str) -> ErrorReport:
    """Return a worker's exception. If the worker printed `more` after the exception, and it is
    unknown whether its program had ended by then, the exception is marked as doubtful. The output
    may come from `sys.exit`, or from a function that Python calls at exit.
    """
    if report.kind is not FailureKind.RAISED or not more:
        return report
    if is_error(more) and not _RECORD.match(more):
        return report._replace(kind=FailureKind.PRINTED)
    return report._replace(doubt=f"it printed more after that: {more}")


def lines_without_numbers(texts: Iterable[str]) -> frozenset[str]:
    """Return the lines in the given strings, as they would be shown, with all numbers removed."""
    lines = {line.strip() for text in texts for line in clean(text).split("\n")}
    lines |= {found for line in lines if (found := _from_json(line[:_LONGEST]))}
    return frozenset(map(without_numbers, lines))


def record(line: str) -> str:
    """Return the message in the line before a traceback, such as `ERROR:root:it failed`."""
    return (_from_json(line) or line.strip()).rstrip(" :")


def is_error(line: str) -> bool:
    """Return whether a line is marked as an error."""
    return _ERROR.search(line[:_LONGEST]) is not None


def _last(lines: Sequence[str]) -> str:
    """Return the last line. If it only gives advice, return the line before it as well, because
    that line has the reason, unless it is one of several that differ only in numbers, which shows
    progress.
    """
    *before, last = lines or [""]
    if not before or not _ADVICE.match(last[:_LONGEST]):
        return last
    *earlier, reason = before
    if without_numbers(reason) in map(without_numbers, earlier):
        return last
    return f"{cut(reason, max(_WITH_ADVICE - len(last) - 1, _WITH_ADVICE // 2))} {last}"


def _first_error(lines: Sequence[str]) -> str:
    for known in (_ERROR, _LIKELY):
        for line, following in zip(lines, [*lines[1:], ""], strict=False):
            if known.search(line[:_LONGEST]):
                return f"{line} {following}".strip() if line.endswith(":") else line
    return ""


def _telling(lines: Sequence[str]) -> list[str]:
    """Return the last lines, excluding warnings, progress bars and usage messages. An error message
    that typer prints in a box counts as one line.
    """
    kept: list[str] = []
    is_warning = False
    boxed: list[str] | None = None
    is_ignored = False
    for line in [line for line in lines if line.strip()][-_LOOKED_AT:]:
        if boxed is not None and line.startswith("│"):
            boxed.append(line.strip("│ "))
            continue
        if boxed:
            kept.append(f"Error: {' '.join(boxed)}")
        boxed = [] if _BOX.match(line) else None
        indented = line.startswith(" ")
        if is_ignored and is_exception(line):
            is_ignored = False  # only this line is the exception that was ignored
            continue
        if indented and is_warning:
            continue  # the source line of the warning
        is_ignored = line.startswith(_IGNORED)
        short = line[:_LONGEST]
        is_warning = _NOISE.search(short) is not None
        is_frame = frame_of(short) or is_marks(short) or _NATIVE_FRAME.match(short)
        if not (is_warning or is_ignored or is_header(line) or is_frame):
            kept.append(_from_json(short) or line.strip())
    if boxed:
        kept.append(f"Error: {' '.join(boxed)}")
    return kept[-_LINES:]


def _from_json(line: str) -> str:
    """Return the message in a JSON line, or an empty string."""
    match = _IN_JSON.match(line)
    if match is None:
        return ""
    level = _LEVEL.search(line)
    return f"{level[1].upper()}: {match[1]}" if level else match[1]
