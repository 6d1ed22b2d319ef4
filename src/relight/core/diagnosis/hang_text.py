"""The hang report, which shows which rank is in a different location from the other ranks, and
where that rank is.

When a job hangs, no rank has failed on its own. The ranks are therefore compared by where they were
when they were stopped (`Failure.doing`). A rank that has raised an exception but can't exit,
because one of its threads is still running, is the cause. Ranks that wait for their peers in a
collective are listed last, because the cause is more likely a rank that has not entered that
collective. Among the other ranks, those that can't run, because they are stopped or in an
uninterruptible call, are listed first. They are followed by the smallest group, and then by ranks
that are not waiting for another process to send data to a socket. If two locations have the same
number of ranks, or ranks wait in a call with a root such as broadcast, the suspect is a guess. This
module is loaded only after a hang.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relight.base.errors import EXIT_HUNG
from relight.base.text import format_duration, format_ranks
from relight.core.diagnosis import blame, flight_recorder_text, stack_text
from relight.core.diagnosis.causes import Certainty
from relight.core.diagnosis.excerpts import WIDTH, count_rows, cut, cut_left, excerpt, headline
from relight.core.diagnosis.failure_text import ended_thread, printed_exception
from relight.core.failure import ErrorReport, Failure, FailureKind

_ROWS = 25
_MAX_GROUPS = 8
_MAX_RAISED = 2 * WIDTH
_DOUBTS = {Certainty.PROVEN: "", Certainty.LIKELY: "probably ", Certainty.UNKNOWN: "perhaps "}


class Hang(NamedTuple):
    """The rank to investigate, the other ranks in the same location, and the groups of ranks in
    other locations.

    The `cause` field says how the hang was noticed, such as `no rank has made progress for 5 min`.
    The `succeeded_ranks` field contains the ranks that had exited with code 0.
    """

    root: Failure
    same: tuple[Failure, ...]
    others: tuple[tuple[Failure, ...], ...]
    cause: str
    succeeded_ranks: tuple[int, ...] = ()

    @property
    def exit_code(self) -> int:
        """The job's exit code."""
        return EXIT_HUNG

    def headline(self) -> str:
        """Return what happened, in one line."""
        return f"{self._what()} (pid {self.root.pid} on {self.root.host}); {self.cause}"

    def render(self, *, formed_at: float, ended: str, verdict: str) -> list[str]:
        """Return the lines of the report, which takes up at most 25 terminal rows.

        Args:
            formed_at: when the generation was formed, on the clock of `Failure.at`.
            ended: the time of day as text.
            verdict: the consequence for the job, such as the reason why it does not restart.
        """
        root, lines, raised = self.root, [self._what()], raised_before(self.root)
        if raised is not None and raised.where:
            lines.append(f"  {cut_left(raised.where, 2 * WIDTH - 2)}")
        first = f"first rank {root.rank} " if self.same else ""
        if self._is_mutual:
            first = f"rank {root.rank} "
        where = (
            f"  {first}on {root.host}: local rank {root.local_rank}, pid {root.pid}; "
            f"{ended}, after {format_duration(root.at - formed_at, digits=1)}"
        )
        lines += [*self._handled(), *self._ended_thread()]
        lines += [cut(where, 2 * WIDTH), f"  {self.cause}"]
        if self.is_guess:
            lines.append(
                "  this is a guess: just as many ranks are elsewhere, and neither group is "
                "waiting for the other"
            )
        end = [f"exit code {self.exit_code}; {verdict}"]
        elsewhere = [*self._elsewhere(), *flight_recorder_text.lines(self._every)]
        room = _ROWS - count_rows([f"relight: {lines[0]}", *lines[1:], *elsewhere, *end]) - 3
        stack = [line if stack_text.is_title(line) else f"  {line}" for line in root.state.stack]
        shown = raised.lines if raised is not None else stack
        title = [f"the stack of rank {root.rank}:"] if self._is_mutual and raised is None else []
        shown = excerpt(shown, room - len(title)) if shown and room > len(title) else []
        lines += ["", *title, *shown, ""] if shown else [""]
        return [*lines, *elsewhere, *end]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that may be the cause. If several groups are equally likely, the ranks come
        from all of these groups.
        """
        groups = ((self.root, *self.same), *self._tied)
        return tuple(sorted(failure.rank for group in groups for failure in group))

    @property
    def is_tied(self) -> bool:
        """Whether ranks wait for each other in different calls, and no call is more likely to be
        the wrong one.
        """
        return bool(self._tied)

    @property
    def is_guess(self) -> bool:
        """Whether it is a guess that this rank is hung rather than a rank in another location."""
        mine, other = [self.root, *self.same], self.others[:1]
        alike = bool(other) and _likelihood(mine) == _likelihood(other[0])
        return alike and not _waits(mine) and raised_before(self.root) is None

    @property
    def is_unknown(self) -> bool:
        """Whether no rank is more likely to be the cause than the ranks in other locations."""
        return self.is_tied or self.is_guess

    @property
    def certainty(self) -> Certainty:
        """How certain it is that these ranks are the cause."""
        if self.is_unknown:
            return Certainty.UNKNOWN
        if not self.others or raised_before(self.root) is not None:
            return Certainty.PROVEN
        return Certainty.PROVEN if stack_text.is_stopped(self.root.state) else Certainty.LIKELY

    @property
    def why(self) -> str:
        """Why these ranks are blamed."""
        if self.certainty is not Certainty.LIKELY:
            return self.cause
        if self._is_mutual:
            return f"{self.cause}; the other ranks are in other calls"
        waiting = [failure.rank for group in self.others if _waits(group) for failure in group]
        are = "is" if len(waiting) == 1 else "are"
        return f"{self.cause}; {format_ranks(waiting)} {are} waiting" if waiting else self.cause

    @property
    def _every(self) -> list[Failure]:
        """All ranks, the suspects first."""
        return [self.root, *self.same, *(each for group in self.others for each in group)]

    @property
    def _tied(self) -> list[tuple[Failure, ...]]:
        waiting = [group for group in self.others if _waits(group) and _waits([self.root])]
        # A rank that has sent its part of a broadcast may rightly be further than the others.
        if waiting and any(map(_has_root, ([self.root], *waiting))):
            return waiting
        return [group for group in waiting if len(group) == 1 + len(self.same)]

    @property
    def _is_mutual(self) -> bool:
        """Whether ranks wait for each other, so that the headline names several of them."""
        return _waits([self.root, *self.same]) and any(map(_waits, self.others))

    def _what(self) -> str:
        mine, waiting = [self.root, *self.same], [g for g in self.others if _waits(g)]
        if not self._is_mutual:
            return cut(f"{_DOUBTS[self.certainty]}{_line(mine, hangs=True)}", 3 * WIDTH - 40)
        lines = ", ".join(map(_line, (mine, *waiting)))
        return cut(f"ranks are waiting for each other in different calls: {lines}", 3 * WIDTH - 40)

    def _handled(self) -> list[str]:
        """Return a line about the first rank that waits for its peers while it handles an exception
        of its own, for example in `finally: dist.barrier()`. An exception that all ranks handle is
        expected.
        """
        every = self._every
        seen = [(failure.rank, failure.doing) for failure in every if failure.doing is not None]
        if len(every) > 1 and len({doing.handling for _, doing in seen}) == 1:
            return []
        for rank, doing in seen:
            if doing.expects_peers and doing.handling and not blame.blames_peer(doing.handling):
                handled = stack_text.handled_exception(doing)
                return [cut(f"  rank {rank} was handling {handled}", 2 * WIDTH)]
        return []

    def _ended_thread(self) -> list[str]:
        """Return a line about an exception that ended a thread or child process of a rank, for
        which this rank may be waiting.
        """
        for failure in self._every:
            report = failure.report
            if report is not None and ended_thread(report):
                age_s = failure.printed_s
                when = f"{format_duration(age_s)} before this report, " if age_s is not None else ""
                printed = printed_exception(report, _MAX_RAISED, places=True)
                return [cut(f"  {when}rank {failure.rank} printed: {printed}", 3 * WIDTH)]
        return []

    def _elsewhere(self) -> list[str]:
        over = self.succeeded_ranks
        ended = [f"  {format_ranks(over)} had already finished (exit code 0)"] if over else []
        if not (self.others or ended):
            return ["all ranks are at the same place"]
        rows = [cut(f"  {_line(group)}", WIDTH) for group in self.others[:_MAX_GROUPS]]
        left = [failure.rank for group in self.others[_MAX_GROUPS:] for failure in group]
        rows += [cut(f"  {format_ranks(left)} elsewhere", WIDTH)] if left else []
        return ["other ranks:", *rows, *ended]


def diagnose(
    failures: Iterable[Failure], cause: str, succeeded_ranks: Sequence[int] = ()
) -> Hang | None:
    """Return the ranks that most likely caused a hang, or None if no rank's location is known.

    Args:
        failures: the workers that were stopped.
        cause: how the hang was noticed.
        succeeded_ranks: the ranks that had exited with code 0.
    """
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in sorted(failures, key=lambda failure: failure.rank):
        groups.setdefault((failure.state.place, _exception(failure)), []).append(failure)
    ordered = sorted(groups.values(), key=_likeliest_first)
    if not ordered or ordered[0][0].doing is None:
        return None
    first, *others = ordered
    elsewhere, over = tuple(map(tuple, others)), tuple(sorted(succeeded_ranks))
    return Hang(first[0], tuple(first[1:]), elsewhere, cause, over)


def raised_before(failure: Failure) -> ErrorReport | None:
    """Return the exception that ended a worker's program, although its process could not exit, for
    example because of a running thread. Return None without such an exception, or if the exception
    only reports a late peer.
    """
    report = failure.report
    if failure.state.in_program or report is None:
        return None
    ended = report.kind in (FailureKind.RAISED, FailureKind.RECORDED)
    blames = blame.determine(report, failure.last_lines, failure.words)
    return report if ended and blames is not blame.Blame.PEER else None


def hung(failure: Failure) -> str:
    """Describe where a rank is hung, as part of a line, such as `hangs in read (data.py:41)`."""
    return _doing([failure], hangs=True).strip(": ")


def _waits(group: Sequence[Failure]) -> bool:
    return group[0].state.expects_peers


def _has_root(group: Sequence[Failure]) -> bool:
    return stack_text.has_root(group[0].state.place.removeprefix(" in ").partition(" (")[0])


def _likelihood(group: Sequence[Failure]) -> tuple[bool, bool, bool, bool, int]:
    first = group[0]
    raised = raised_before(first) is not None
    can_run = not stack_text.is_halted(first.state)
    return first.doing is None, not raised, _waits(group), can_run, len(group)


def _likeliest_first(group: Sequence[Failure]) -> tuple[object, ...]:
    receives = stack_text.receives(group[0].state.place)
    return *_likelihood(group), receives, group[0].rank


def _exception(failure: Failure) -> str:
    """Return the exception that had ended a worker's program, such as `ValueError: bad record`, or
    an empty string.
    """
    report = raised_before(failure)
    if report is None:
        return ""
    said = headline(report, _MAX_RAISED)
    return f"{report.type}: {said}" if said else report.type


def _line(group: Sequence[Failure], *, hangs: bool = False) -> str:
    """Return a line such as `rank 2 in read (data.py:41)`, or `rank 2 hangs in …`."""
    return f"{format_ranks([failure.rank for failure in group])}{_doing(group, hangs=hangs)}"


def _doing(group: Sequence[Failure], *, hangs: bool) -> str:
    place, many = group[0].state.place, len(group) > 1
    plural = stack_text.plural(place)
    verb = "" if plural != place or not hangs else " hang" if many else " hangs"
    place = plural if many else place
    raised = _exception(group[0])
    if raised:
        return f" raised {raised}{f', and{verb}' if verb else ','}{place}"
    return f"{verb}{place}"
