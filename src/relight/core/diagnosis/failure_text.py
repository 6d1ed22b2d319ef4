"""The failure report, which fits on a screen, and the data that nodes exchange for it.

`core/diagnosis/causes` determines which worker is the cause. Workers that ended with the same
symptoms, which are the exception and its location, are merged with the cause. This module is loaded
only after a failure.
"""

import re
import signal
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from relight.base.errors import signal_exit_code, signal_name
from relight.base.fields import fit
from relight.base.text import format_duration, format_ranks
from relight.core.diagnosis import blame, causes, flight_recorder_text, loaders
from relight.core.diagnosis.causes import Certainty, Role, Verdict, role
from relight.core.diagnosis.excerpts import WIDTH, count_rows, cut, cut_left, excerpt, headline
from relight.core.diagnosis.last_words import is_error, record
from relight.core.diagnosis.traceback_lines import (
    IN_THREAD,
    MORE_FRAMES,
    TracebackLine,
    frame_of,
    is_header,
    without_numbers,
)
from relight.core.diagnosis.tracebacks import is_ignored
from relight.core.failure import CRASHES, ErrorReport, Failure, FailureKind, WorkerState

_ROWS = 25
"""Number of terminal rows that the report takes up, at `WIDTH` columns."""
_WHAT = 3 * WIDTH - 40
"""Maximum length of the text that describes what happened to one worker."""
_FOLLOWED = 2 * WIDTH - 40
"""Maximum length of the text that describes what happened to one worker in the list of
consequences.
"""
_LOG = 8 * WIDTH - len("log: ")
"""Maximum number of characters in the log path. A longer path would leave too little space for the
traceback.
"""
_MIN_EVIDENCE = 5
"""If fewer rows than this are left for the traceback and its blank lines, the consequences are
shortened.
"""
_OF_CHILD = re.compile(
    r"CalledProcessError|BrokenPipeError|BrokenProcessPool|^EOFError|"
    r"(?:worker|process)\b.*\b(?:exited|died|ended|is killed|terminated)\b",
    re.IGNORECASE,
)
"""Messages that point to a failure in another process."""
_IMPLICIT = "During handling of the above exception"
"""Only `raise … from` states a cause. An exception raised in an `except` block may have a different
cause.
"""
_AT_ONCE_S = 2.0
"""A worker that was killed later than this after the stop signal did not exit in response to it."""
_EXIT_CODE = re.compile(r"exited with code \d+")
_IN_WAIT_FOR = re.compile(r"(?:asyncio\.exceptions\.)?CancelledError")
"""The cause of every TimeoutError from asyncio.wait_for. It says nothing about the reason."""
_SIGCHLD_HANDLER = "/torch/utils/data/_utils/signal_handling.py"
_MAX_CONSEQUENCES = 4
_MAX_RECORDED = 7
"""Maximum number of rows for information from torch's flight recorder."""
_RECORDED = 1000
"""Maximum length of each string in a failure that is sent to other nodes."""
_MAX_LINES, _MAX_LAST = 200, 10
_MAX_OTHERS = 100
_NOTED_S = 0.3
"""Exceptions printed more than this many seconds before the exit are reported with their age."""
_AGED_S = 2.0
"""Tracebacks printed more than this many seconds before the worker's end are shown with their
age.
"""
_OLD_S = 5.0
"""An exception older than this did not cause the exit, even if torch shut down slowly."""
_SHARED = 256 * 1024
"""Maximum total number of characters in a node's failures, so that they fit into a message."""


class Diagnosis(NamedTuple):
    """The cause of a failure, the failures with the same symptoms, and the consequences."""

    verdict: Verdict
    same: tuple[Failure, ...]
    consequences: tuple[Failure, ...]

    @property
    def root(self) -> Failure:
        """The failure of the rank to investigate."""
        return self.verdict.root

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that are blamed for the failure."""
        own = (self.root.rank, *(failure.rank for failure in self.same))
        return self.verdict.ranks or tuple(sorted(own))

    @property
    def exit_code(self) -> int:
        """The exit code of the failure that ended the job, as a shell would report it."""
        failure = self.verdict.symptom
        raised = failure.is_explained and -failure.exitcode not in CRASHES
        stopped = not causes.ended_by_itself(failure)
        if failure.aborted_at_exit or (stopped and (raised or role(failure) is Role.REPORTED)):
            return 1  # Python's exit code after an exception
        return shell_exit_code(failure.exitcode)

    @property
    def first_sign(self) -> Failure:
        """The failure that gives the time of the report. A rank that is blamed for its absence may
        end long after its peers have failed.
        """
        return min(self.root, self.verdict.symptom, key=causes.since)

    def headline(self) -> str:
        """Return what happened, in one line."""
        root, symptom = self.root, self.verdict.symptom
        where = _location(symptom)
        at = f" at {where}"
        if causes.handling(symptom) and not symptom.is_explained:
            at = f"; the exception came from {where}"
        elif symptom.evidence:
            at = f"; it was at {where}"  # the evidence may be about something else
        if not where or self.verdict.says or _in_signal_handler(symptom.report):
            at = ""
        return f"{self._what()}{at} (pid {root.pid} on {root.host})"

    def render(self, *, formed_at: float, ended: str, verdict: str) -> list[str]:
        """Return the lines of the report, which says what happened, why, where, when, to which
        workers, and with what consequences.

        The report takes up at most 25 terminal rows.

        Args:
            formed_at: when the generation was formed, on the clock of `Failure.at`.
            ended: the time of day of the failure, as text.
            verdict: the consequence for the job, such as the reason why it does not restart.
        """
        root, symptom = self.root, self.verdict.symptom
        lines = [self._what(), *self._reasons()]
        where = _location(symptom)
        # The first line begins with a different rank.
        is_other = root is not symptom or bool(self.verdict.says and self.verdict.joint)
        if where:
            at = f"rank {symptom.rank} at " if is_other else ""
            if not (symptom.is_explained or causes.handling(symptom)):
                # It is the place of the exception that was printed, and not of the exit.
                at = f"rank {symptom.rank}: " if is_other else ""
                at += "last traceback at "
            elif _in_signal_handler(symptom.report):
                at += "interrupted at "
            lines.append(f"  {at}{cut_left(where, 2 * WIDTH - 2 - len(at))}")
            report = symptom.explanation
            if report is not None and report.source:
                lines.append(cut(f"    {report.source}", WIDTH))
        after_place = len(lines)
        first = f"first rank {root.rank} " if self.same else ""
        if is_other:
            first = f"rank {root.rank} "
        who = (
            f"  {first}on {root.host}: local rank {root.local_rank}, "
            f"pid {root.pid}; {'' if self.first_sign is root else 'first error '}{ended}, "
            f"after {format_duration(causes.since(self.first_sign) - formed_at, digits=1)}"
        )
        lines.append(cut(who, 2 * WIDTH))
        hint = self._hint()
        lines += [cut(f"  {hint}", 4 * WIDTH)] if hint else []  # it may contain two paths
        end = [f"log: {cut_left(root.log, _LOG)}"] if root.log else []
        end.append(f"exit code {self.exit_code}; {verdict}")
        # The agent's prefix takes up a little of the first row.
        room = _ROWS - count_rows([f"relight: {lines[0]}", *lines[1:], *end])
        followed = _consequences(self.consequences, symptom, 2)
        recorded = self._recorded(_MAX_RECORDED)
        if room - count_rows([*followed, *recorded]) < _MIN_EVIDENCE:
            followed = _consequences(self.consequences, symptom, 1)
        evidence = self._evidence(room - count_rows([*followed, *recorded]))
        caller = _caller(symptom) if where else None
        if caller is not None and not any(frame_of(line) == caller for line in evidence):
            at = f"  called at {caller.file.rpartition('/')[2]}:{caller.line}"
            lines.insert(after_place, cut(at, WIDTH))
            room -= 1
            evidence = self._evidence(room - count_rows([*followed, *recorded]))
        left = room - count_rows([*evidence, *followed])
        recorded = self._recorded(min(left, _MAX_RECORDED))
        return [*lines, *evidence, *followed, *recorded, *end]

    def _evidence(self, room: int) -> list[str]:
        """Return the symptom's traceback or output. If that is not the output of the blamed rank,
        it has a title.
        """
        symptom = self.verdict.symptom
        if symptom.rank in self.ranks:
            return _evidence(symptom, room)
        lines = _evidence(symptom, room - 1)
        if len(lines) > 1 and symptom.is_explained:
            lines.insert(1, f"the traceback of rank {symptom.rank}:")
        return lines

    def _recorded(self, most: int) -> list[str]:
        """Return the information from torch's flight recorder about ranks that waited for each
        other.
        """
        if role(self.verdict.symptom) is not Role.VICTIM:
            return []
        every = dict.fromkeys([self.root, self.verdict.symptom, *self.same, *self.consequences])
        return flight_recorder_text.lines(every, most)

    def _what(self) -> str:
        verdict = self.verdict
        says, joint = verdict.says, verdict.joint
        if says and not joint:
            return cut(self._probably(says), _WHAT)
        alike = [f for f in self.same if f is not verdict.symptom]
        named = format_ranks([verdict.symptom.rank, *(failure.rank for failure in alike)])
        happened = what_happened(verdict.symptom, many=bool(alike))
        if any(_differs_in_numbers(what_happened(f, many=True), happened) for f in alike):
            happened = f"{happened.removesuffix('.')} (rank {verdict.symptom.rank} shown)"
        if says:
            return f"{self._probably(says)}{joint}{named} {happened}"
        if verdict.certainty is Certainty.LIKELY:
            return f"probably {named}: {_pronoun(named)} {happened}"
        return f"{named} {happened}"

    def _whose_cause(self) -> str:
        """Return a note if the messages of the causes differ among ranks that failed in the same
        way.
        """
        symptom = self.verdict.symptom
        causes = {each.report.cause for each in (symptom, *self.same) if each.report is not None}
        return f" (rank {symptom.rank} shown)" if len(causes) > 1 else ""

    def _probably(self, says: str) -> str:
        """Return `rank 2 was …` as `probably rank 2: it was …` if this is a likely cause."""
        ranks = format_ranks(self.verdict.ranks)
        if self.verdict.certainty is not Certainty.LIKELY or not says.startswith(f"{ranks} "):
            return says
        predicate = says.removeprefix(f"{ranks} ")
        return f"probably {ranks}: {_pronoun(ranks)} {predicate}"

    def _reasons(self) -> list[str]:
        """Return lines with more information about the cause."""
        verdict, symptom = self.verdict, self.verdict.symptom
        lines = [verdict.detail] if verdict.detail else []
        who = f"rank {symptom.rank}" if verdict.says else "it"  # not the subject of the headline
        if verdict.says and not verdict.joint and role(symptom) is Role.VICTIM:
            if -symptom.exitcode not in CRASHES:
                lines.append(f"rank {symptom.rank} {what_happened(symptom)}")
        elif verdict.certainty is Certainty.LIKELY and not (
            verdict.says or causes.handling(symptom)
        ):
            lines.append(verdict.why)
        report, explanation = symptom.report, symptom.explanation
        lost_loader = loaders.lost_one(symptom)
        if lost_loader or explanation is None:
            pass  # torch's exceptions about a lost loader depend on timing
        elif explanation.cause:
            at = f" at {explanation.cause_where}" if explanation.cause_where else ""
            is_context = any(line.startswith(_IMPLICIT) for line in explanation.lines)
            link = "while handling" if is_context else "caused by"
            if not _IN_WAIT_FOR.fullmatch(explanation.cause):
                lines.append(f"{link} {_cause(explanation)}{at}{self._whose_cause()}")
        elif explanation.cause_where:
            lines.append(f"the exception group was raised at {explanation.cause_where}")
        is_separate = explanation is not None and explanation.kind is not FailureKind.CRASHED
        evidence = loaders.other_evidence(symptom.evidence)
        if evidence and (is_separate or lost_loader or _explains_output(symptom)):
            lines.append(evidence)
        elif symptom.is_explained and self._adds_something(symptom):
            lines.append(f"before that, {who} printed: {symptom.words}")
        elif symptom.words and report is not None and _explains(report, symptom):
            printed = printed_exception(report, _WHAT, places=True)
            lines.append(f"before that, {who} printed: {printed}")
        every = [symptom, self.root, *self.same, *self.consequences]
        if failure := next((each for each in every if each.gpu_error), None):
            rank = "" if failure is symptom else f"rank {failure.rank}: "
            lines.append(f"{rank}{failure.gpu_error}")
        return [cut(f"  {line}", 4 * WIDTH) for line in lines]

    def _adds_something(self, failure: Failure) -> bool:
        """Return whether a worker's other output reports an error that differs from its
        exception.
        """
        report, words = failure.report, failure.words
        if report is None or report.kind is FailureKind.CRASHED or failure.aborted_at_exit:
            return False
        of_child = _OF_CHILD.search(f"{report.type}: {report.message[:_RECORDED]}")
        if not (is_error(words) or (words and of_child)):
            return False
        said = headline(report, _WHAT)
        return not said or (said not in words and words not in said)

    def _hint(self) -> str:
        """Return one line that may help users understand the cause."""
        verdict, symptom = self.verdict, self.verdict.symptom
        if symptom.aborted_at_exit or causes.left_script(symptom):
            return "a C++ thread was still running at exit (SIGABRT)"
        if blame.last_messages(symptom.report, ()).startswith(("BdbQuit", "bdb.BdbQuit")):
            return "pdb was quit, or had no terminal; breakpoint() waits for `relight debug`"
        if verdict.hint:
            return verdict.hint
        if symptom.is_explained and _in_signal_handler(symptom.report):
            return (
                "torch detected this in a signal handler, "
                "which can interrupt the script at any line"
            )
        report = symptom.report
        overflows = report is not None and report.lines[-1:] == (MORE_FRAMES,)
        if overflows and symptom.exitcode == -signal.SIGSEGV:
            return "probably a stack overflow: the stack has more than 100 frames"
        if self.same and causes.hides_context(symptom):
            return "from None hides the reason; it may differ between these ranks"
        if verdict.certainty is Certainty.UNKNOWN:
            others = [f for f in self.consequences if role(f) is Role.STOPPED]
            if where := causes.places(others, past=True):
                return f"when it failed, {where}"
            running = [failure.rank for failure in others]
            return f"{format_ranks(running)} still running" if running else ""
        return ""


def shell_exit_code(exitcode: int) -> int:
    """Return the exit code as a shell reports it. This is the process's own exit code, or 128 + n
    for signal n.
    """
    return signal_exit_code(-exitcode) if exitcode < 0 else exitcode


def waited_for_others(failure: Failure) -> bool:
    """Return whether a worker may have been waiting for other workers, either because its location
    is known or because it blames a peer.
    """
    return failure.doing is not None or blame.from_failure(failure) is not blame.Blame.NOBODY


def diagnose(
    failures: Iterable[Failure], succeeded_ranks: Sequence[int] = (), world_size: int = 0
) -> Diagnosis:
    """Return the cause of a failure. The arguments are the same as for `causes.judge`."""
    every = sorted(with_others(failures), key=lambda failure: (failure.at, failure.rank))
    verdict = causes.judge(every, succeeded_ranks, world_size)
    ends = [failure for failure in every if failure.exitcode]
    symptoms = _symptoms(verdict.symptom)
    same: list[Failure] = []
    consequences: list[Failure] = []
    for failure in ends:
        if failure.rank == verdict.symptom.rank:
            continue
        alike = symptoms is not None and _symptoms(failure) == symptoms
        (same if alike else consequences).append(failure)
    if verdict.says and not verdict.joint:
        consequences, same = sorted([*same, *consequences], key=_time), []
    same.sort(key=lambda failure: failure.rank)
    return Diagnosis(verdict, tuple(same), tuple(consequences))


def with_others(failures: Iterable[Failure]) -> list[Failure]:
    """Mark exceptions as merely printed if they did not end their worker. An exception did not end
    its worker if the same exception was also printed by ranks that kept running until they were
    stopped. The argument `others` contains these ranks.
    """
    ends = list(failures)
    went_on: dict[object, list[int]] = {}
    for each in ends:
        if each.stop_signal and each.went_on and each.report is not None:
            went_on.setdefault(_printed(each.report), []).append(each.rank)
    return [
        each._replace(report=each.report._replace(kind=FailureKind.PRINTED, doubt="", others=ranks))
        if not each.stop_signal
        and each.report is not None
        and each.report.kind in (FailureKind.RAISED, FailureKind.PRINTED)
        and (ranks := tuple(sorted(went_on.get(_printed(each.report), ()))[:_MAX_OTHERS]))
        else each
        for each in ends
    ]


def _printed(report: ErrorReport) -> tuple[str, ...]:
    """Return a traceback without the numbers in its messages, so that it can be compared with
    others. All frames are compared, because an exception that a function prints before it tries
    again is different from an uncaught exception.
    """
    return tuple(line if frame_of(line) else without_numbers(line) for line in report.lines)


def _time(failure: Failure) -> tuple[float, int]:
    return failure.at, failure.rank


def _pronoun(ranks: str) -> str:
    return "they" if ranks.startswith("ranks") else "it"


def _differs_in_numbers(text: str, other: str) -> bool:
    return text != other and without_numbers(text) == without_numbers(other)


def _in_signal_handler(report: ErrorReport | None) -> bool:
    """Return whether the exception comes from torch's data loader because one of its processes
    ended.
    """
    frames = [frame for line in report.lines if (frame := frame_of(line))] if report else []
    return bool(frames) and frames[-1].file.endswith(_SIGCHLD_HANDLER)


def _location(failure: Failure) -> str:
    """Return the place in the user's own code where a worker failed."""
    report = failure.report
    if report is not None and (failure.is_explained or _may_have_ended(failure)):
        return report.where
    return failure.state.handling_where if causes.handling(failure) else ""


def _caller(failure: Failure) -> TracebackLine | None:
    """Return the place where the user's code called a function that raised an exception on purpose,
    for example to reject an argument.
    """
    report = failure.explanation
    if report is None or not report.source.startswith("raise"):
        return None
    frames = [frame for line in report.lines if (frame := frame_of(line))]
    for caller, frame in reversed(list(pairwise(frames))):
        if report.where.startswith(f"{frame.file}:{frame.line} in "):
            return caller if caller.own else None
    return None


def _may_have_ended(failure: Failure) -> bool:
    """Return whether an exception that a worker printed right before its exit may have ended the
    worker, despite evidence to the contrary.
    """
    report, age_s = failure.report, failure.printed_s
    if report is None or report.others or failure.exitcode < 0:
        return False
    if failure.words or not causes.ended_by_itself(failure):
        return False
    return age_s is None or age_s < _OLD_S


def repeatable(failure: Failure) -> tuple[object, ...] | None:
    """Return a key that is the same for equal failures, if this failure is likely to happen again
    in the same way. An exception in the script and wrong arguments are likely to happen again.
    Return None for other failures.
    """
    if role(failure) is not Role.OWN or failure.exitcode < 0:
        return None
    if failure.is_explained:
        symptoms = _symptoms(failure)  # it may have handled it and failed for another reason
        said = map(without_numbers, (failure.words, causes.doubt(failure)))
        return (*symptoms, *said) if symptoms is not None else None
    # argparse
    refused = failure.exitcode == 2 and any(": error: " in line for line in failure.last_lines)
    return _symptoms(failure) if refused else None


def shared(failures: Iterable[Failure], now: float) -> tuple[Failure, ...]:
    """Return this node's failures in the form in which they are sent to other nodes. Times are
    relative to the present, and text is shortened. If there are many failures, the least likely
    causes are sent without text.
    """
    short_ones, room = [], _SHARED
    ordered = sorted(failures, key=_likeliest_first)
    lowest: dict[str, int] = {}  # one stack is enough for ranks in the same location
    for failure in sorted(ordered, key=lambda failure: failure.rank):
        if failure.doing is not None:
            lowest.setdefault(failure.doing.place, failure.rank)
    for failure in ordered:
        short = failure._replace(
            host=fit(failure.host, "host"),
            at=round(failure.at - now, 6),
            report=None, last_lines=(), evidence="", log="", words="",
            when=_short(failure.when),
            gpu_error=_short(failure.gpu_error),
            doing=_doing(failure, False),
        )  # fmt: skip
        # Shortening the text of hundreds of workers would take seconds.
        if _size(failure._replace(doing=None), _RECORDED // 2) <= room:
            report = failure.report
            whole = short._replace(
                report=report and _shortened(report),
                last_lines=tuple(_short(line) for line in failure.last_lines[-_MAX_LAST:]),
                evidence=_short(failure.evidence),
                log=_short(failure.log),
                words=_short(failure.words),
                doing=_doing(failure, failure.rank in lowest.values()),
            )
            size = _size(whole)
            if size <= room:
                short, room = whole, room - size
        short_ones.append(short)
    return tuple(short_ones)


def _likeliest_first(failure: Failure) -> tuple[int, float, int]:
    return list(Role).index(role(failure)), failure.at, failure.rank


def _shortened(report: ErrorReport) -> ErrorReport:
    return report._replace(
        type=_short(report.type),
        message=_short(report.message, "message"),
        where=fit(cut_left(report.where, _RECORDED)),
        source=_short(report.source),
        lines=tuple(_short(line) for line in report.lines[-_MAX_LINES:]),
        cause=_short(report.cause),
        cause_where=_short(report.cause_where),
        doubt=_short(report.doubt),
    )


def _doing(failure: Failure, shows_stack: bool) -> WorkerState | None:
    doing = failure.doing
    if doing is None:
        return None
    stack = tuple(_short(line) for line in doing.stack) if shows_stack else ()
    return doing._replace(
        place=_short(doing.place),
        stack=stack,
        handling=_short(doing.handling),
        handling_where=_short(doing.handling_where),
    )


def _short(text: str, field: str = "") -> str:
    return cut(fit(text[: _RECORDED + 1], field), _RECORDED)


def _size(failure: Failure, most: int = _RECORDED) -> int:
    """Return the size of the text to share, if each string is shortened to `most` characters."""
    report, doing = failure.report, failure.doing
    texts = [failure.evidence, failure.gpu_error, failure.log, failure.words]
    texts += failure.last_lines[-_MAX_LAST:]
    if report is not None:
        texts += [report.type, report.message, report.where, report.source]
        texts += [*report.lines[-_MAX_LINES:], report.cause, report.cause_where, report.doubt]
    if doing is not None:
        texts += [doing.place, doing.handling, doing.handling_where, *doing.stack]
    return sum(min(len(text), most) for text in texts)


def what_happened(failure: Failure, *, many: bool = False, most: int = _WHAT) -> str:
    """Describe what happened to one worker or, if the argument `many` is true, to each of several
    workers. The description is part of a line and has at most `most` characters.
    """
    report = failure.explanation
    if loaders.lost_one(failure):
        return cut(f"lost a DataLoader worker process, which {loaders.how_lost(failure)}", most)
    if report is not None and report.kind is not FailureKind.CRASHED:
        return cut(_exception(report, most), most)
    evidence, by_itself = failure.evidence, causes.ended_by_itself(failure)
    handled = causes.handling(failure)
    if failure.stop_signal and handled:
        return cut(f"was handling {handled} when it was stopped", most)
    if failure.exitcode >= 0:
        number = failure.exitcode - 128
        text = f"exited with code {failure.exitcode}"
        if number in (*CRASHES, signal.SIGKILL, signal.SIGTERM):
            text += f" (128 + {signal_name(number)})"
        elif 256 - failure.exitcode in (*CRASHES, signal.SIGKILL, signal.SIGTERM):
            number = failure.exitcode - 256  # from a Popen return code
            text += f", which is sys.exit({number}), perhaps for a process that was killed by "
            text += signal_name(-number)
            text += _after_printing(failure, most) if by_itself else ""
        elif by_itself:
            text += _after_printing(failure, most)
    else:
        number = -failure.exitcode
        text = f"{'were' if many else 'was'} killed by {signal_name(number)}"
        if report is not None and report.message != signal.strsignal(number):
            evidence = f"{report.type}: {headline(report, _WHAT)}"
        elif number in CRASHES and by_itself and not evidence and failure.words:
            text += f" after printing: {failure.words}"
        elif number == signal.SIGPIPE and by_itself and not evidence:
            text += ", probably because it wrote to a pipe or socket without a reader"
        elif by_itself and not (evidence or number in CRASHES):
            evidence = "not sent by relight"
    if evidence and not _explains_output(failure):
        text += f": {evidence}"
    return cut(text, most)


def _explains_output(failure: Failure) -> bool:
    """Return whether a failure's evidence is about the output that precedes it in the headline, so
    that a line of its own is easier to read.
    """
    return failure.exitcode > 0 and bool(failure.words) and causes.ended_by_itself(failure)


def _after_printing(failure: Failure, most: int) -> str:
    """Return a worker's last output before its exit. If the output is old, its age is included."""
    report = failure.report
    if failure.words:
        return f" after printing: {failure.words}"
    if report is None or not report.type:
        return ""
    if report.others:
        return "; none of its output explains why"
    said = printed_exception(report, most)
    if failure.printed_s is None or failure.printed_s < _NOTED_S:
        return f" after printing: {said}"
    return f", {format_duration(failure.printed_s, digits=1)} after printing: {said}"


def printed_exception(report: ErrorReport, most: int, *, places: bool = False) -> str:
    """Return an exception, preceded by the line before its traceback, such as `Exception in thread
    reader:`, and with the argument `places` followed by its location.
    """
    said = f"{report.type}: {headline(report, most)}"
    if report.lines and not is_header(report.lines[0]):
        said = f"{record(report.lines[0])}: {said}"
    at = f" ({report.where.rpartition('/')[2]})" if report.where else ""
    return f"{said}{at}" if places else said


def ended_thread(report: ErrorReport) -> bool:
    """Return whether an exception ended a thread, an asyncio task or a child process that did not
    handle it.
    """
    is_printed = report.kind is FailureKind.PRINTED and not report.others
    return is_printed and bool(report.lines) and IN_THREAD.match(report.lines[0]) is not None


def _explains(report: ErrorReport, failure: Failure) -> bool:
    """Return whether an exception that was printed before a worker's last line of output adds a
    reason.
    """
    if ended_thread(report):
        return True
    is_printed = report.kind is FailureKind.PRINTED and report.type and not report.others
    if is_ignored(report):
        return False
    at_the_end = failure.printed_s is not None and failure.printed_s < _AGED_S
    return bool(is_printed) and at_the_end and failure.exitcode > 0 and not is_error(failure.words)


def _exception(report: ErrorReport, most: int) -> str:
    said = f"raised {report.type}" if report.type else "reported"
    message = headline(report, most - len(said) - 2)
    return f"{said}: {message}" if message or not report.type else said


def _cause(report: ErrorReport) -> str:
    """Return the first line of the first exception in a chain, or an empty string."""
    name, joint, message = report.cause.partition(": ")
    return f"{name.partition(chr(10))[0]}{joint}{headline(report._replace(message=message), _WHAT)}"


def _symptoms(failure: Failure) -> tuple[object, ...] | None:
    """Return a key that is the same for equal failures, or None if the failure is only a
    consequence.
    """
    report = failure.explanation
    if report is not None:
        if failure.stop_signal and causes.is_by_request(failure):
            return None
        first_line = without_numbers(headline(report, _WHAT))
        # The message of the cause may name a rank's own file or shard.
        name, blames = report.cause.partition(": ")[0], role(failure) is Role.VICTIM
        # Each rank may have its own copy of the program.
        places = (each.rpartition("/")[2] for each in (report.where, report.cause_where))
        return report.type, first_line, name, blames, *places
    by_request = failure.exitcode in (-failure.stop_signal, -signal.SIGKILL)
    speaks = bool(failure.evidence or failure.last_lines)
    if failure.stop_signal and (by_request or not speaks):
        return None
    return failure.exitcode, failure.evidence, *map(without_numbers, failure.last_lines)


def _evidence(root: Failure, room: int) -> list[str]:
    """Return the traceback, or else the worker's last output, in at most `room` rows."""
    report = root.report
    printed = () if report is None else report.lines
    if root.is_explained:
        return ["", *excerpt(printed, room - 2), ""] if printed else [""]
    size = WIDTH if printed or room < 2 * len(root.last_lines) + 3 else 2 * WIDTH
    last = [line for line in root.last_lines if line not in printed][-max(1, room - 3) :]
    lines = [cut(f"  {line}", size) for line in last]
    if lines:
        lines = ["", "its last output:", *lines]
    left = room - count_rows(lines) - 3
    if report is not None and printed and left >= 3:
        title = "its last traceback"
        if root.printed_s is not None and root.printed_s >= _AGED_S:
            title += f", {format_duration(root.printed_s, digits=1)} before its end"
        if report.others:
            title += f"; {format_ranks(report.others)} printed it and kept running"
        title = cut(f"{title}:", 2 * WIDTH)
        lines += ["", title, *excerpt(printed, left + 1 - count_rows([title]))]
    raised = root.exitcode == 1  # Python's exit code after an exception
    explained = is_error(root.words) if raised else root.words
    if not (lines or root.evidence or explained) and root.exitcode > 0:
        hidden = "; use @record to report errors that go elsewhere" if raised else ""
        lines = [f"  it printed nothing to stderr{hidden}"]
    return [*lines, ""]


def _consequences(failures: Sequence[Failure], symptom: Failure, most_rows: int) -> list[str]:
    """Return the lines about the consequences. Workers that ended in the same way share at most
    `most_rows` rows.
    """
    root_at = causes.since(symptom)

    def ending(failure: Failure, *, many: bool) -> str:
        happened = _consequence(failure, many=many)
        words = symptom.words if is_error(symptom.words) else ""
        alike = words and without_numbers(failure.words) == without_numbers(words)
        return f"printed the same, {happened}" if alike and _was_stopped(failure) else happened

    groups: dict[str, list[Failure]] = {}
    for failure in failures:
        happened = ending(failure, many=False)
        code = _EXIT_CODE.search(happened)
        like = f"{code[0] if code else ''} {without_numbers(happened)}"
        groups.setdefault(like, []).append(failure)
    rows = []
    for first, *others in groups.values():
        when = "" if _was_stopped(first) else _how_much_later([first, *others], root_at)
        ranks = format_ranks([first.rank, *(failure.rank for failure in others)])
        happened = ending(first, many=bool(others))
        if any(ending(failure, many=True) != happened for failure in others):
            ranks += f" (rank {first.rank} shown)"
        text = f"  {ranks}: {when}{happened}"
        rows.append(_in_rows(text) if most_rows > 1 else cut(text, WIDTH))
    if len(rows) > _MAX_CONSEQUENCES + 1:
        rest = [f.rank for group in list(groups.values())[_MAX_CONSEQUENCES:] for f in group]
        rows = [
            *rows[:_MAX_CONSEQUENCES],
            cut(f"  {format_ranks(rest)}: ended in other ways", WIDTH),
        ]
    return ["other ranks:", *rows] if rows else []


def _how_much_later(failures: Sequence[Failure], root_at: float) -> str:
    """Return when workers failed, as in `0.5 s later, ` or `0.1 s to 2 s later, `."""
    later = sorted(causes.since(failure) - root_at for failure in failures)
    if later[-1] < causes.SHOWN_S:
        return ""
    begin, end = (format_duration(max(seconds, 0.0), digits=1) for seconds in (later[0], later[-1]))
    return f"{end if begin == end else f'{begin} to {end}'} later, "


def _in_rows(text: str) -> str:
    """Truncate a line to one row if a sentence ends in that row. Otherwise truncate the line to two
    rows, to keep the reason.
    """
    row = cut(text, WIDTH)
    return row if row == text or row.endswith((". …", "; …")) else cut(text, 2 * WIDTH)


def describe_exit(failure: Failure) -> str:
    """Describe how a worker ended, as part of a line in the list of consequences and in JSON."""
    return _consequence(failure, many=False)


def _consequence(failure: Failure, *, many: bool) -> str:
    if not _was_stopped(failure):
        return cut(f"{what_happened(failure, many=many, most=_FOLLOWED)}{_loss(failure)}", _WHAT)
    # A worker without a handler for the signal also receives SIGKILL, and either signal may end it.
    text = f"stopped by the agent ({signal_name(failure.stop_signal)})"
    if failure.exitcode == -signal.SIGKILL and failure.stopping_s >= _AT_ONCE_S:
        text += f", killed {format_duration(failure.stopping_s)} later"
    signalled = failure.exitcode in (-failure.stop_signal, -signal.SIGTERM, -signal.SIGKILL)
    report = failure.explanation
    by_request = causes.is_by_request(failure) or (signalled and failure.printed_s is None)
    if report is not None and not by_request:
        said = _exception(report, _FOLLOWED)
        return said if _raised_first(failure) else f"stopped by the agent, then {said}"
    interrupted = failure.report is not None and failure.report.type == "KeyboardInterrupt"
    if failure.exitcode == -signal.SIGINT and interrupted:
        return f"{text}, and raised KeyboardInterrupt"  # Python then sends itself SIGINT
    if failure.exitcode < 0 and not signalled:
        return f"killed by {signal_name(-failure.exitcode)} while being stopped by the agent"
    if not signalled:
        text += f", then exited with code {failure.exitcode}"
    return text


def _raised_first(failure: Failure) -> bool:
    """Return whether a worker raised its exception before it was stopped. A signal whose default
    action ended the worker can't have raised anything.
    """
    if failure.exitcode == -failure.stop_signal:
        return True
    return failure.printed_s is not None and failure.printed_s > failure.stopping_s


def _loss(failure: Failure) -> str:
    """Return the lost connection that a victim's exception has as its cause, unless its own message
    says so, such as ` after RuntimeError: Connection closed by peer`.
    """
    report = failure.explanation
    if report is None or not report.cause:
        return ""
    if blame.determine(report._replace(cause=""), ()) is not blame.Blame.NOBODY:
        return ""
    return f" after {_cause(report)}" if role(failure) is Role.VICTIM else ""


def _was_stopped(failure: Failure) -> bool:
    return role(failure) is Role.STOPPED
