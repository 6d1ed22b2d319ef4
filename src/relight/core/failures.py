"""Finds the root cause among the exits of workers, and writes a report that fits on a screen.

The cause is not always the first to die: a worker whose peer vanishes can be gone before the peer
has finished dying. So exits are sorted into four classes, and the earliest exit of the best class
is the cause:

    OWN        ended other than with 0, unasked, and nothing points to another worker
    REPORTED   was already being stopped by the agent, but left an exception or a crash of its own
    VICTIM     says itself that a peer vanished (connection reset, a collective that timed out, …)
    STOPPED    ended because the agent stopped it

Exits with the cause's symptoms (same exception, same place) are merged with it. This file is loaded
only after a failure.
"""

import re
import signal
from collections.abc import Iterable, Sequence
from enum import IntEnum

from relight.core.excerpts import WIDTH, cut, cut_left, excerpt, rows_of
from relight.core.exits import CRASHES, Doing, ErrorReport, Failure, FailureKind
from relight.core.fields import fit
from relight.core.waiting import duration
from relight.errors import exit_code_of_signal, signal_name
from relight.typed import NamedTuple

_ROWS = 25
"""Rows of a terminal that the report takes, at `WIDTH` columns."""
_WHAT = 2 * WIDTH - 40
"""Most characters for what happened to one worker."""
_LOG = 8 * WIDTH - len("log: ")
"""Most characters of the log path; a longer one would crowd out the traceback."""
_LEAST_EVIDENCE = 5
"""If the traceback and its blank lines have fewer rows, the consequences are shortened."""
_MAX_CONSEQUENCES = 4
_MAX_RECORDED = 7
"""Most rows for what torch's flight recorder says."""
_MAX_PLACES = 3
_IN = (" in ", " is ")
"""How the place of a worker begins if it is known."""
_RECORDED = 1000
"""Most characters of each text of a failure that is sent to other nodes."""
_MAX_LINES, _MAX_LAST = 200, 10
_SHARED = 256 * 1024
"""Most characters of all failures of a node, so that they fit into a message."""


class Class(IntEnum):
    """How likely an exit is the cause, best first."""

    OWN = 0
    REPORTED = 1
    VICTIM = 2
    STOPPED = 3


class Diagnosis(NamedTuple):
    """The root cause, the failures with the same symptoms, and the consequences.

    `succeeded_ranks` are the ranks that had ended with 0, unasked, before the root cause.
    """

    root: Failure
    same: tuple[Failure, ...]
    consequences: tuple[Failure, ...]
    succeeded_ranks: tuple[int, ...] = ()

    @property
    def exit_code(self) -> int:
        """The root cause's own exit code, as a shell would give it."""
        root = self.root
        stopped = root.asked and root.is_explained and -root.exitcode not in CRASHES
        if stopped or root.aborted_at_exit:
            return 1  # what Python exits with after an exception
        return shell_exit_code(root.exitcode)

    def headline(self) -> str:
        """Return what happened, in one line."""
        root = self.root
        at = (
            f" at {root.report.where}"
            if root.is_explained and root.report and root.report.where
            else ""
        )
        return f"{self._what()}{at} (pid {root.pid} on {root.host})"

    def render(self, *, formed_at: float, ended: str, verdict: str) -> list[str]:
        """Return the lines of the report: what, where, who and when, why, and the consequences.

        It takes at most 25 rows of a terminal.

        Args:
            formed_at: when the generation was formed, on the clock of `Failure.at`.
            ended: the time of day, as text.
            verdict: what follows, such as why the job does not restart.
        """
        root = self.root
        lines = [self._what()]
        if root.is_explained and root.report is not None and root.report.where:
            lines.append(f"  {cut_left(root.report.where, 2 * WIDTH - 2)}")
            if root.report.source:
                lines.append(cut(f"    {root.report.source}", WIDTH))
        where = (
            f"  {f'first rank {root.rank} ' if self.same else ''}on {root.host}: "
            f"local rank {root.local_rank}, "
            f"pid {root.pid}; {ended}, after {duration(root.at - formed_at, digits=1)}"
        )
        lines.append(cut(where, 2 * WIDTH))
        hint = self._hint()
        lines += [cut(f"  {hint}", 4 * WIDTH)] if hint else []  # a hint may contain two paths
        end = [f"log: {cut_left(root.log, _LOG)}"] if root.log else []
        end.append(f"exit code {self.exit_code}; {verdict}")
        # The agent's prefix takes a little of the first row.
        room = _ROWS - rows_of([f"relight: {lines[0]}", *lines[1:], *end])
        followed = _consequences(self.consequences, root.at, 2)
        recorded = self._recorded(_MAX_RECORDED)
        if room - rows_of([*followed, *recorded]) < _LEAST_EVIDENCE:
            followed = _consequences(self.consequences, root.at, 1)
        evidence = _evidence(root, room - rows_of([*followed, *recorded]))
        left = room - rows_of([*evidence, *followed])
        recorded = self._recorded(min(left, _MAX_RECORDED))
        return [*lines, *evidence, *followed, *recorded, *end]

    def _recorded(self, most: int) -> list[str]:
        """Return what torch's flight recorder says of ranks that waited for each other."""
        every = [self.root, *self.same, *self.consequences]
        if classify(self.root) is not Class.VICTIM or all(f.collectives is None for f in every):
            return []
        from relight.core import flight_recorder

        return flight_recorder.lines(every, most)

    def _what(self) -> str:
        ranks = [self.root.rank, *(failure.rank for failure in self.same)]
        happened = f"{named_ranks(ranks)} {what_happened(self.root, many=bool(self.same))}"
        if classify(self.root) is not Class.VICTIM:
            return happened
        if late := self._late():
            return f"{_places(late)}, when {happened}"
        if self.succeeded_ranks and _is_of_torch(self.root):
            return f"{named_ranks(self.succeeded_ranks)} ended with 0; then {happened}"
        return happened

    def _late(self) -> list[Failure]:
        """Return the workers for which others waited in vain, if the root cause is a time-out."""
        if classify(self.root) is not Class.VICTIM or not _TIMEOUT.search(_text_of(self.root)):
            return []
        return [failure for failure in self.consequences if _is_late(failure)]

    def _hint(self) -> str:
        """Return one line that may help to understand the cause."""
        root = self.root
        if root.is_explained and root.evidence:
            return root.evidence
        if root.aborted_at_exit:
            return "a C++ thread was still running at exit (SIGABRT)"
        if _text_of(root).startswith(("BdbQuit", "bdb.BdbQuit")):
            return "pdb was quit, or had no terminal; breakpoint() waits for `relight debug`"
        if _MISMATCH.search(_text_of(root)):
            return "ranks pass tensors of different sizes to one collective"
        if classify(root) is Class.VICTIM:
            if late := self._late():
                printed = "".join(map(_had_printed, late))
                return f"they were late, or waited for something that did not come{printed}"
            if not _is_of_torch(root):
                text = (
                    "if the peer is another rank, it is gone or late: "
                    "no worker here failed on its own"
                )
            elif self.succeeded_ranks:
                return "others still needed them: check that all ranks have as many batches"
            else:
                text = "a peer is gone or late, but no worker here failed on its own"
            stopped = [failure for failure in self.consequences if _was_stopped(failure)]
            if any(f.doing and f.doing.place.startswith(_IN) for f in stopped):
                return f"{text}; when it failed, {_places(stopped)}"
            running = [failure.rank for failure in stopped]
            return f"{text}; {named_ranks(running)} still ran" if running else text
        if -root.exitcode == signal.SIGBUS:
            return "SIGBUS is often a full /dev/shm"
        if -root.exitcode in CRASHES and not (root.report and root.report.where):
            return "set PYTHONFAULTHANDLER=1 to get a traceback of the crash"
        return ""


_VICTIM = re.compile(
    r"""Connection(?:Reset|Aborted|Refused)Error | BrokenPipeError | DistNetworkError
    | \bEOFError:\ $
    | Connection\ (?:reset|closed|aborted|refused)\ by\ (?:remote\ )?peer
    | Connection\ closed | Broken\ pipe
    | gloo/transport/ | connectFullMesh | monitoredBarrier
    | ncclRemoteError | ncclSystemError | remote\ process\ exited | NCCL\ communicator\ was\ aborted
    | Watchdog\ caught\ collective\ operation\ timeout
    | collective\ operation\ timeout | Socket\ Timeout | Timed\ out\ waiting\ \d+ms\ for
    | Timed\ out\ after\ \d+\ seconds\ waiting\ for\ clients | wait\ timeout\ after\ \d+ms
    | client\ socket\ has\ timed\ out
    | Application\ timeout\ caused\ pair\ closure
    | (?:recv|send)Value\ failed | Failed\ to\ recv,\ got\ 0\ bytes""",
    re.VERBOSE | re.IGNORECASE,
)
_OF_PYTHON = re.compile(
    r"\b(?:Connection(?:Reset|Aborted|Refused)Error|BrokenPipeError|EOFError)\b"
)
"""Errors of connections that the script itself may have opened, to a peer or to any server."""
_TIMEOUT = re.compile(
    r"timed? ?-?out|failed to pass monitoredBarrier|reached monitoredBarrier", re.IGNORECASE
)
"""A peer was late. A rank that was not waiting for others then is the one that was late."""
_MISMATCH = re.compile(r"op\.preamble\.length <= op\.nbytes")
"""What gloo says if a peer sends more than a rank expects."""
# What a handler of the agent's SIGTERM may raise, and the exit of child processes killed by it.
_BY_REQUEST = re.compile(
    r"KeyboardInterrupt|SystemExit|SIG(?:TERM|INT|HUP|QUIT|KILL)|signal: (?:\d|Terminated|Killed)"
)
# The place in torch's own sources where an error was noticed, `[/pytorch/…/pair.cc:553] `.
_NATIVE_PLACE = re.compile(r"\[/[^\]\s]+:\d+\] ")


def shell_exit_code(exitcode: int) -> int:
    """Return the exit code that a shell gives a process: its own, or 128 + n for signal n."""
    return exit_code_of_signal(-exitcode) if exitcode < 0 else exitcode


def classify(failure: Failure) -> Class:
    """Return the class of one exit."""
    victim = blames_peer(failure.report, failure.last_lines)
    if not failure.asked:
        return Class.VICTIM if victim else Class.OWN
    text = _printed(failure.report, failure.last_lines)
    if not (failure.is_explained or failure.evidence) or _BY_REQUEST.search(text):
        return Class.STOPPED
    return Class.VICTIM if victim else Class.REPORTED


def blames_peer(report: ErrorReport | None, last_lines: Sequence[str]) -> bool:
    """Return whether a worker says itself that another one is gone or late.

    Args:
        report: its exception, if any.
        last_lines: the end of its stderr.
    """
    return _VICTIM.search(_printed(report, last_lines)) is not None


def waited_for_others(failure: Failure) -> bool:
    """Return whether a worker may have waited for others: somebody has looked where it was, or it
    blames a peer.
    """
    return failure.doing is not None or blames_peer(failure.report, failure.last_lines)


def _text_of(failure: Failure) -> str:
    return _printed(failure.report, failure.last_lines)


def _is_of_torch(failure: Failure) -> bool:
    """Return whether the connection that was lost is one between ranks, as far as that is known."""
    lines = failure.report.lines if failure.report is not None else ()
    return not _OF_PYTHON.search(_text_of(failure)) or any("/torch/" in line for line in lines)


def _had_printed(failure: Failure) -> str:
    """Return which exception a worker had printed before, such as that of a thread, as a clause."""
    report = failure.report
    if report is None or not report.type:
        return ""
    at = f" at {report.where}" if report.where else ""
    return f"; rank {failure.rank} had printed {report.type}: {_first_line(report)}{at}"


def _is_late(failure: Failure) -> bool:
    """Return whether a worker, when it was stopped, was not waiting for others."""
    doing = failure.doing
    return doing is not None and not doing.expects_peers and doing.place.startswith(_IN)


def _printed(report: ErrorReport | None, last_lines: Sequence[str]) -> str:
    return f"{report.type}: {report.message}" if report is not None else "\n".join(last_lines)


def diagnose(failures: Iterable[Failure], succeeded_ranks: Iterable[int] = ()) -> Diagnosis:
    """Return the root cause among failed exits; there must be at least one.

    Args:
        failures: the exits other than with 0.
        succeeded_ranks: ranks that had ended with 0, unasked, before.
    """
    root, *rest = sorted(failures, key=_likeliest_first)
    symptoms = _symptoms(root)
    same: list[Failure] = []
    consequences: list[Failure] = []
    for failure in rest:
        alike = symptoms is not None and _symptoms(failure) == symptoms
        (same if alike else consequences).append(failure)
    same.sort(key=lambda failure: failure.rank)
    return Diagnosis(root, tuple(same), tuple(consequences), tuple(sorted(succeeded_ranks)))


def repeatable(failure: Failure) -> tuple[object, ...] | None:
    """Return what this failure and an equal one have in common, if it is likely to happen again in
    the same way: an exception of the script, or wrong arguments. None for other failures.
    """
    if classify(failure) is not Class.OWN or failure.exitcode < 0:
        return None
    if failure.is_explained:
        return _symptoms(failure)
    # argparse
    refused = failure.exitcode == 2 and any(": error: " in line for line in failure.last_lines)
    return _symptoms(failure) if refused else None


def shared(failures: Iterable[Failure], now: float) -> tuple[Failure, ...]:
    """Return this node's failures as they are sent to other nodes: times are relative to now, texts
    are short, and if there are many, the least likely causes have no texts.
    """
    short_ones, room = [], _SHARED
    ordered = sorted(failures, key=_likeliest_first)
    lowest: dict[str, int] = {}  # of ranks in the same place, one stack is enough
    for failure in sorted(ordered, key=lambda failure: failure.rank):
        if failure.doing is not None:
            lowest.setdefault(failure.doing.place, failure.rank)
    for failure in ordered:
        report, shows_stack = failure.report, failure.rank in lowest.values()
        short = failure._replace(
            host=fit(failure.host, "host"),
            at=round(failure.at - now, 6),
            report=report and _shortened(report),
            last_lines=tuple(_short(line) for line in failure.last_lines[-_MAX_LAST:]),
            evidence=_short(failure.evidence),
            log=_short(failure.log),
            when=_short(failure.when),
            doing=_doing(failure, shows_stack),
        )
        size = _size(short)
        if size > room:
            short = short._replace(
                report=None, last_lines=(), evidence="", log="", doing=_doing(failure, False)
            )
        else:
            room -= size
        short_ones.append(short)
    return tuple(short_ones)


def _likeliest_first(failure: Failure) -> tuple[Class, float, int]:
    return classify(failure), failure.at, failure.rank


def _shortened(report: ErrorReport) -> ErrorReport:
    return ErrorReport(
        kind=report.kind,
        type=_short(report.type),
        message=_short(report.message, "message"),
        where=fit(cut_left(report.where, _RECORDED)),
        source=_short(report.source),
        lines=tuple(_short(line) for line in report.lines[-_MAX_LINES:]),
    )


def _doing(failure: Failure, shows_stack: bool) -> Doing | None:
    doing = failure.doing
    if doing is None:
        return None
    stack = tuple(_short(line) for line in doing.stack) if shows_stack else ()
    return doing._replace(place=_short(doing.place), stack=stack)


def _short(text: str, field: str = "") -> str:
    return cut(fit(text[: _RECORDED + 1], field), _RECORDED)


def _size(failure: Failure) -> int:
    report = failure.report
    texts = [failure.evidence, failure.log, *failure.last_lines]
    if report is not None:
        texts += [report.type, report.message, report.where, report.source, *report.lines]
    if failure.doing is not None:
        texts += [failure.doing.place, *failure.doing.stack]
    return sum(map(len, texts))


def what_happened(failure: Failure, *, many: bool = False) -> str:
    """Return what happened to one worker, or to each of `many` workers, as half a line of text."""
    report = failure.report
    if report is not None and failure.is_explained and report.kind is not FailureKind.CRASHED:
        return cut(_exception(report), _WHAT)
    evidence = failure.evidence
    if failure.exitcode >= 0:
        number = failure.exitcode - 128
        text = f"exited with code {failure.exitcode}"
        if number in (*CRASHES, signal.SIGKILL, signal.SIGTERM):
            text += f", as a shell reports {signal_name(number)}"
    else:
        number = -failure.exitcode
        text = f"{'were' if many else 'was'} killed by {signal_name(number)}"
        if (
            failure.is_explained
            and report is not None
            and report.message != signal.strsignal(number)
        ):
            evidence = f"{report.type}: {_first_line(report)}"
        elif not (evidence or failure.asked or number in CRASHES):
            evidence = "relight did not send it"
    return cut(f"{text}: {evidence}" if evidence else text, _WHAT)


def _places(failures: Sequence[Failure]) -> str:
    """Return where workers were, the likeliest cause first: `rank 2 in read (data.py:41); …`."""
    groups: dict[tuple[bool, str], list[int]] = {}
    for failure in failures:
        if failure.doing is not None and failure.doing.place.startswith(_IN):
            key = failure.doing.expects_peers, failure.doing.place
            groups.setdefault(key, []).append(failure.rank)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], len(item[1]), item[1]))
    texts = [f"{named_ranks(ranks)}{place}" for (_, place), ranks in ordered]
    return "; ".join(texts[:_MAX_PLACES]) + ("; …" if len(texts) > _MAX_PLACES else "")


def _exception(report: ErrorReport) -> str:
    message = _first_line(report)
    if not report.type:
        return f"reported: {message}"
    return f"raised {report.type}: {message}" if message else f"raised {report.type}"


def _first_line(report: ErrorReport) -> str:
    return _NATIVE_PLACE.sub("", report.message).strip().partition("\n")[0]


def _symptoms(failure: Failure) -> tuple[object, ...] | None:
    """Return what equal failures have in common; None for a mere consequence."""
    if failure.is_explained and failure.report is not None:
        if _was_stopped(failure):
            return None
        first_line = without_numbers(_first_line(failure.report))
        return failure.report.type, first_line, failure.report.where
    by_request = failure.exitcode in (-failure.asked, -signal.SIGKILL)
    speaks = bool(failure.evidence or failure.last_lines)
    if failure.asked and (by_request or not speaks):
        return None
    return failure.exitcode, failure.evidence, *map(without_numbers, failure.last_lines)


def without_numbers(text: str) -> str:
    """Return a text without what differs between ranks that fail in the same way: addresses, ranks
    and sizes.
    """
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text)


def _evidence(root: Failure, room: int) -> list[str]:
    """Return the traceback, or what else the worker printed last, in at most `room` rows."""
    report = root.report
    if report is not None and root.is_explained:
        return ["", *excerpt(report.lines, room - 2), ""] if report.lines else [""]
    printed = () if report is None else report.lines
    size = WIDTH if printed or room < 2 * len(root.last_lines) + 3 else 2 * WIDTH
    lines = [cut(f"  {line}", size) for line in root.last_lines if line not in printed]
    if lines:
        lines = ["", "the last lines that it printed:", *lines]
    left = room - rows_of(lines) - 3
    if printed and left >= 3:
        lines += ["", "the last traceback that it printed:", *excerpt(printed, left)]
    if not (lines or root.evidence) and root.exitcode > 0:
        # An exception ends Python with 1.
        hidden = "; @record tells relight of errors that go elsewhere" if root.exitcode == 1 else ""
        lines = [f"  it printed nothing to stderr{hidden}"]
    return [*lines, ""]


def _consequences(failures: Sequence[Failure], root_at: float, most_rows: int) -> list[str]:
    """Return the consequences, up to `most_rows` rows for all workers that ended alike."""
    groups: dict[str, list[Failure]] = {}
    for failure in failures:
        groups.setdefault(without_numbers(_consequence(failure, many=False)), []).append(failure)
    rows = []
    for first, *others in groups.values():
        later = first.at - root_at
        shows_time = later >= 0.1 and not _was_stopped(first)
        when = f"{duration(later, digits=1)} later, " if shows_time else ""
        ranks = named_ranks([first.rank, *(failure.rank for failure in others)])
        text = f"  {ranks}: {when}{_consequence(first, many=bool(others))}"
        rows.append(_in_rows(text) if most_rows > 1 else cut(text, WIDTH))
    if len(rows) > _MAX_CONSEQUENCES + 1:
        rest = [f.rank for group in list(groups.values())[_MAX_CONSEQUENCES:] for f in group]
        rows = [
            *rows[:_MAX_CONSEQUENCES],
            cut(f"  {named_ranks(rest)}: ended in other ways", WIDTH),
        ]
    return ["what followed:", *rows] if rows else []


def _in_rows(text: str) -> str:
    """Return a line cut to one row if a sentence ends there, or else to two, to keep the reason."""
    row = cut(text, WIDTH)
    return row if row == text or row.endswith((". …", "; …")) else cut(text, 2 * WIDTH)


def _consequence(failure: Failure, *, many: bool) -> str:
    if not _was_stopped(failure):
        return what_happened(failure, many=many)
    # A worker that has no handler for the signal gets SIGKILL with it, and may end by either.
    text = f"stopped by the agent ({signal_name(failure.asked)})"
    if failure.exitcode not in (-failure.asked, -signal.SIGTERM, -signal.SIGKILL):
        text += f", ended with {shell_exit_code(failure.exitcode)}"
    return text


def _was_stopped(failure: Failure) -> bool:
    return classify(failure) is Class.STOPPED


def named_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 3`, or `ranks 0-3, 5`, or `ranks 0, 2, 4, … (64 in all)`."""
    text = _ranges(ranks)
    if len(text) > 40:
        text = f"{text[:32].rpartition(', ')[0]}, … ({len(ranks)} in all)"
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"


def _ranges(ranks: Iterable[int]) -> str:
    """Return `0-3, 5` for 0, 1, 2, 3, 5."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][-1] == rank - 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ", ".join("-".join(map(str, part)) for part in parts)
