"""Finds the root cause of a failure by comparing how the workers ended.

The cause is not always the first worker to exit, because a worker whose peer fails may exit before
the peer itself has exited. The cause is not always the worst-looking exit either, because a stopped
worker may fail in its own cleanup code. Therefore each worker's exit is classified by its time and
other facts:

    OWN        exited with a nonzero code without being told to, and blames nobody
    REPORTED   was being stopped but had already failed: its exception was printed, or it was in an
               `except` or `finally` block when the agent inspected its stack
    VICTIM     reports that a peer is gone or late, or lost a connection
    STOPPED    ended on request, and any exception it raised then is due to the request

`RULES` are functions that turn the known facts into a verdict. The first verdict returned by any of
them is used. A verdict includes its certainty and its reason. This module is loaded only after a
failure.
"""

import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from relight.base.text import format_ranks
from relight.core.diagnosis import blame
from relight.core.diagnosis.blame import Blame
from relight.core.diagnosis.excerpts import headline
from relight.core.diagnosis.last_words import is_error
from relight.core.diagnosis.stack_text import (
    NO_CODE,
    SHUTTING_DOWN,
    Frame,
    handled_exception,
    has_root,
    place,
)
from relight.core.diagnosis.traceback_lines import (
    IN_THREAD,
    frame_of,
    is_chained,
    is_header,
    split_exception,
    without_numbers,
)
from relight.core.failure import AT_EXIT, ErrorReport, Failure, FailureKind, WorkerEnd, WorkerState

_BY_REQUEST = re.compile(
    r"\b(?:KeyboardInterrupt|SystemExit|SIG(?:TERM|INT|HUP|QUIT|KILL))\b"
    r"|\bsignal: (?:(?:1|2|3|9|15|Hangup|Interrupt|Quit|Killed|Terminated)\b)"
)
"""Exceptions that may be raised by a handler for the agent's SIGTERM, and exceptions about child
processes that the signal killed.
"""
_IN = (" in ", " is ")
"""The prefix of a worker's location, if it is known."""
_MAX_PRINTED = 200
_MAX_PLACES = 3
SHOWN_S = 0.1
"""Shorter times between failures are not shown."""
_AFTER_CLOSE_S = 0.3
"""The longest time between the end of a connection and the output of the exception behind it."""
_AT_ONCE_S = 1.0
"""On a busy machine, failures within this time may be noticed in the wrong order."""
_ENDED = " has ended"
"""The location shown for a worker that had already ended when it was inspected."""
_LOST = re.compile(
    r"""(?<![a-z])(?:
    hung|hang(?:s|ing)?|clos(?:ed?|es|ing)|gone|los(?:e|es|t|ing)|died|dies|dead(?:line)?
    |exit(?:s|ed|ing)?|fail(?:s|ed|ing|ures?)?|disconnect(?:s|ed|ing|ion)?|left|unreachable
    |time[ds]?\ ?out|timeouts?|(?:un)?respon(?:d|ds|ded|ding|ses?|sive)
    |answer(?:s|ed|ing)?|crash(?:es|ed|ing)?
    )(?![a-z])""",
    re.VERBOSE | re.IGNORECASE,
)
"""Words that a script uses for a rank that it has lost."""
_NAMED_RANK = re.compile(
    r"""(?<![a-z_])(?<!local[ _-])(?<!group[ _-])(?<!node[ _-])(?<!low[ _-])(?<!lora[ _-])
    (?<!of\ )(?<!tensor\ )(?<!matrix\ )rank[ #=:]*+(\d++)(?!\w|\.\d)
    (?![ -]?(?:tensor|array|matri|adapter|approximation|update))""",
    re.VERBOSE | re.IGNORECASE,
)
"""A rank named in a message, as opposed to the rank of a tensor or matrix."""
_OTHER_RANK = re.compile(
    r"\b(?:an)?other (?:rank|worker|peer|node)s?\b|\ba (?:peer|remote rank)\b", re.IGNORECASE
)
"""Words that a script uses for a rank that made this rank give up."""
_EVERYDAY = re.compile(
    r"""(?:[\w.]*\.)?(?:
    StopIteration|StopAsyncIteration|GeneratorExit|CancelledError|Empty|Full
    |FileNotFoundError|FileExistsError|IsADirectoryError|NotADirectoryError
    |ImportError|ModuleNotFoundError|NotImplementedError
    |BlockingIOError|InterruptedError|ProcessLookupError|ChildProcessError
    )(?:$|:)""",
    re.VERBOSE,
)
"""Exceptions that programs commonly expect and recover from, such as a missing file or module.
Other ranks' calls say more about such a failure.
"""
_TIMEOUT = re.compile(
    r"(?:socket\.)?(?:TimeoutError|timeout)"
    r"(?:: (?:timed out|The (?:read|write) operation timed out|\[Errno 110\] .*))?|Empty|Full"
)
"""Exceptions that Python raises when a wait for a socket, pipe or queue times out."""
_NO_DATA = re.compile(
    r"(?:struct\.)?error: unpack requires a buffer of \d+ bytes|EOFError: Ran out of input"
    r"|JSONDecodeError: Expecting value: line 1 column 1 \(char 0\)"
)
"""Exceptions that Python raises when it decodes an empty string, as received from a closed
socket.
"""
_COLLECTIVES = re.compile(r"/torch/distributed/(?!elastic|rendezvous)")


class Certainty(Enum):
    """How certain a verdict is."""

    PROVEN = "proven"
    LIKELY = "likely"
    UNKNOWN = "not known"


class Role(Enum):
    """A worker's role in a failure."""

    OWN = "own"
    REPORTED = "reported"
    VICTIM = "victim"
    STOPPED = "stopped"


class Known:
    """The known facts. A job may have thousands of ranks, so the rules don't compare each rank with
    all others.

    Args:
        ends: the nonzero exits.
        succeeded_ranks: the ranks that had exited with code 0 by then.
        world_size: the number of ranks, or 0 if unknown.
        told: the ranks that exited with code 0 but had printed an error.
    """

    def __init__(
        self,
        ends: tuple[Failure, ...],
        succeeded_ranks: tuple[int, ...] = (),
        world_size: int = 0,
        told: tuple[Failure, ...] = (),
    ) -> None:
        self.ends = ends
        self.succeeded_ranks = succeeded_ranks
        self.world_size = world_size
        self.told = told
        self._roles = {failure.rank: role(failure) for failure in ends}
        self._blames = {failure.rank: blame.from_failure(failure) for failure in ends}
        self._blame_counts = Counter(map(self.blame_of, ends))
        self._shared = Counter(text for failure in ends for text in _shared(failure))
        self._raised = Counter(map(_raised, ends))
        self._handled_first = Counter(map(_handled_first, ends))

    def with_role(self, *roles: Role) -> list[Failure]:
        """Return the failures with one of these roles, in order of occurrence."""
        found = [failure for failure in self.ends if self._roles[failure.rank] in roles]
        return sorted(found, key=lambda failure: (since(failure), failure.rank))

    def blame_of(self, failure: Failure) -> Blame:
        """Return whom one of these workers blames."""
        return self._blames[failure.rank]

    def others_blame(self, failure: Failure, whom: Blame) -> int:
        """Return how many workers other than this one blame `whom`."""
        return self._blame_counts[whom] - (self.blame_of(failure) is whom)

    def others_share(self, failure: Failure, handled: str) -> bool:
        """Return whether another worker was handling the same exception, and failed later or was
        stopped while doing so.
        """
        return self._shared[handled] > (handled in _shared(failure))

    def others_raised(self, failure: Failure, raised: str) -> bool:
        """Return whether this exception ended another worker."""
        return self._raised[raised] > (raised == _raised(failure))

    def others_handled(self, failure: Failure) -> bool:
        """Return whether another worker was handling the same exception as this worker when it lost
        its peers, or was stopped.
        """
        return self._handled_first[_handled_first(failure)] > 1


class Verdict(NamedTuple):
    """The cause of a failure.

    The `why` field is the reason of the rule that produced the verdict, and `judge` sets `rule` to
    that rule's name. The `root` field is the rank to investigate, and `symptom` is the failure that
    ended the generation. The two are usually the same. The `ranks` field contains the blamed ranks,
    if they differ from `root`. The headline consists of the fields `says` and `joint` and the
    description of `symptom`, in this order. If the `joint` field is empty, the `says` field is the
    whole headline. The `detail` field is shown right below the headline, and the `hint` field below
    the location.
    """

    certainty: Certainty
    why: str
    root: Failure
    symptom: Failure
    ranks: tuple[int, ...] = ()
    says: str = ""
    joint: str = ""
    detail: str = ""
    hint: str = ""
    rule: str = ""


Rule = Callable[[Known], "Verdict | None"]


def judge(ends: Iterable[Failure], succeeded_ranks: Sequence[int], world_size: int) -> Verdict:
    """Return the cause of a failure.

    Args:
        ends: the nonzero exits, at least one, and the ranks that exited with code 0 but had printed
            an error.
        succeeded_ranks: ranks that exited with code 0 before these exits, without being told to
            stop.
        world_size: the number of ranks, or 0 if unknown.
    """
    every = tuple(ends)
    failed = tuple(each for each in every if each.exitcode)
    told = tuple(each for each in every if not each.exitcode and each.rank in succeeded_ranks)
    known = Known(failed, tuple(sorted(succeeded_ranks)), world_size, told)
    for rule in RULES:
        verdict = rule(known)
        if verdict is not None:
            return verdict._replace(rule=rule.__name__)
    raise AssertionError("the last rule always has a verdict")


def role(failure: Failure) -> Role:
    """Return one worker's role."""
    if not failure.stop_signal:
        return Role.OWN if blame.from_failure(failure) is Blame.NOBODY else Role.VICTIM
    had_failed = had_failed_before(failure)
    if had_failed is False or (had_failed is None and not failure.is_explained):
        return Role.STOPPED
    if blame.from_failure(failure) is not Blame.NOBODY:
        return Role.VICTIM
    return Role.REPORTED if had_failed else Role.STOPPED


def had_failed_before(failure: Failure) -> bool | None:
    """Return whether a worker had failed before it was stopped, or None if unknown."""
    place = failure.state.place
    by_itself = ended_by_itself(failure)
    if by_itself or place.startswith(_ENDED):
        return by_itself
    if handling(failure):
        return True
    if not (failure.is_explained or failure.evidence) or is_by_request(failure):
        return False
    if not failure.is_explained:
        # If there is no traceback, the worker could not be started.
        return failure.report is None and failure.exitcode != -failure.stop_signal
    if failure.printed_s is not None and failure.printed_s > failure.stopping_s:
        return True
    if place.startswith(NO_CODE):
        return True  # it has printed something, so it has started
    if place.startswith(_IN):  # its script was running without an exception, or had finished
        return not failure.state.in_program
    return None if failure.printed_s is None else False


def ended_by_itself(failure: Failure) -> bool:
    """Return whether a worker ended before the agent's signal reached it."""
    if not failure.stop_signal:
        return True
    place = failure.state.place
    if place.startswith(_ENDED):
        return failure.exitcode != -failure.stop_signal
    # While Python shuts down, a signal can't change its exit code.
    return place.startswith(NO_CODE) and 0 < failure.exitcode != 128 + failure.stop_signal


def doubt(failure: Failure) -> str:
    """Return the reason why a worker's exception may not have ended the worker. Without an
    exception or any doubt, return an empty string.
    """
    return failure.explanation.doubt if failure.explanation is not None else ""


def is_by_request(failure: Failure) -> bool:
    """Return whether a worker reports that it, or one of its child processes, was interrupted."""
    report = failure.report
    if report is not None and report.is_interrupted:
        return True
    return bool(_BY_REQUEST.search(blame.last_messages(report, failure.last_lines)))


def since(failure: Failure) -> float:
    """Return the earliest known time of a worker's failure, on the clock of `Failure.at`."""
    printed_s = failure.printed_s if failure.is_explained and failure.printed_s else 0.0
    was_seen = handling(failure) or failure.state.place.startswith(_ENDED)
    return failure.at - max(printed_s, failure.stopping_s if was_seen else 0.0)


def handling(failure: Failure) -> str:
    """Return the exception that a worker was handling when it was inspected, if that exception may
    end the worker.
    """
    state = failure.state
    if state.works_below or state.expects_peers:
        return ""  # it recovered, for example from a missing file
    return "" if _BY_REQUEST.search(state.handling) else state.handling


def is_elsewhere(failure: Failure) -> bool:
    """Return whether a worker was observed doing something other than waiting when it was
    stopped.
    """
    state = failure.state
    return state.in_program and not state.expects_peers and state.place.startswith(_IN)


def collective(failure: Failure) -> tuple[str, str] | None:
    """Return the collective that a worker was in, and the line of the user's code that called the
    collective, such as `all_reduce` and `train.py:8`. Return None if the worker is not known to
    have been in a collective.
    """
    report = failure.explanation
    frames = [frame for line in report.lines if (frame := frame_of(line))] if report else []
    if report is not None and frames:
        stack = [Frame(frame.file, int(frame.line), frame.function) for frame in frames]
        if report.kind is not FailureKind.CRASHED:
            stack.reverse()  # the innermost comes first
        found = place(stack)
        inner = stack[: stack.index(found.where)]
        if any(_COLLECTIVES.search(frame.file) for frame in inner):
            return found.what, f"{found.where.file.rpartition('/')[2]}:{found.where.line}"
    if not failure.state.expects_peers:
        return None
    name, _, at = failure.state.place.removeprefix(" in ").rstrip(")").partition(" (")
    return name, at


def left_script(failure: Failure) -> bool:
    """Return whether a worker was killed during a normal exit, after reaching the end of its script
    without an exception.
    """
    lines, report = failure.last_lines, failure.report
    raised = report is not None and report.kind is FailureKind.RAISED
    return failure.exitcode == -signal.SIGABRT and not raised and AT_EXIT in lines


# The rules.


def own_failure(known: Known) -> Verdict | None:
    """The first worker to fail without blaming anybody is the cause."""
    found = known.with_role(Role.OWN, Role.REPORTED)
    if _lost_a_peer(known):
        found = [failure for failure in found if not left_script(failure)]
    found = [
        failure for failure in found if not (handling(failure) and _may_be_well(failure, known))
    ]
    quoting = _quoting(found)
    found = [failure for failure in found if failure not in quoting]
    if not found:
        return None
    root = found[0]
    # A rank that lost a peer was not the first to fail, but a rank that lost some other connection
    # may have been the first.
    victims = [f for f in known.with_role(Role.VICTIM) if known.blame_of(f) is Blame.CONNECTION]
    earlier = [failure for failure in victims if since(failure) < since(root)]
    if role(root) is Role.REPORTED:
        handled = handling(root)
        why = f"it was handling {handled}" if handled else "it had failed"
        certainty = Certainty.LIKELY if handled else Certainty.PROVEN
        return Verdict(certainty, f"{why} before it was stopped", root, root)
    if not earlier and doubt(root):
        return Verdict(Certainty.LIKELY, doubt(root), root, root)
    other = next((f for f in found[1:] if _is_simultaneous(f, root)), None)
    if not earlier and other is not None:
        later_s = since(other) - since(root)
        when = f"{later_s:.1f} s later" if later_s >= SHOWN_S else "at the same time"
        why = f"rank {other.rank} failed {when} with a different error"
        return Verdict(Certainty.LIKELY, why, root, root)
    # These ranks may have failed first and be cleaning up, or be waiting before they try again.
    others = [failure for failure in known.ends if failure is not root and handling(failure)]
    handlers = [(failure, why) for failure in others if (why := _was_handling(failure, known))]
    waited = not earlier and _may_have_waited(root)
    raised = _raised(root)
    needs_peer = waited or _NO_DATA.fullmatch(raised) or _OTHER_RANK.search(raised)
    for failure, why in handlers:
        if _reports_lost(root, failure.rank) or (needs_peer and _is_in_flight(failure, known)):
            return Verdict(Certainty.LIKELY, why, failure, failure)
    if earlier:
        later = since(root) - since(earlier[0])
        why = f"rank {earlier[0].rank} had lost a connection {later:.1f} s before, perhaps to it"
        return Verdict(Certainty.LIKELY, why, root, root)
    if handlers:
        return Verdict(Certainty.LIKELY, handlers[0][1], root, root)
    if waited and known.with_role(Role.STOPPED):
        why = "nothing arrived in time, perhaps because of another rank"
        return Verdict(Certainty.UNKNOWN, why, root, root, detail=why)
    if known.succeeded_ranks and _may_hide_loss(root):
        gone = format_ranks(known.succeeded_ranks)
        needed = "it" if len(known.succeeded_ranks) == 1 else "them"
        why = (
            f"{gone} had already finished (exit code 0); rank {root.rank} may have needed {needed}"
        )
        return _perhaps_because_of(known.succeeded_ranks, root, known, why)
    named = _named_rank(root, known) if _quoted(root) else None
    if named is not None:
        why = f"its message quotes an exception, perhaps one on rank {named}"
        both = tuple(sorted((named, root.rank)))
        return Verdict(Certainty.LIKELY, why, root, root, both)
    reported = [f for f in known.with_role(Role.VICTIM) if since(f) < since(root)]
    if reported:
        ranks = format_ranks(_failed_ranks(reported))
        why = f"{ranks} only reported a lost or late peer"
        return Verdict(Certainty.PROVEN, why, root, root)
    had = "had" if _are_all_seen(root, known) else "is known to have"
    why = f"no other rank {had} failed before"
    if quoting:
        why = f"{format_ranks(_failed_ranks(quoting))} only reported this exception"
    return Verdict(Certainty.PROVEN, why, root, root)


def _quoting(found: Sequence[Failure]) -> list[Failure]:
    """Return the failures whose messages quote the traceback of another worker's exception."""
    raised = {_raised(failure) for failure in found}
    return [each for each in found if _quoted(each) in raised - {_raised(each), ""}]


def _quoted(failure: Failure) -> str:
    """Return the exception whose traceback is part of a worker's message, or an empty string. An
    exception in the same chain is not part of the message.
    """
    report = failure.explanation
    if report is None or any(map(is_chained, report.lines)):
        return ""
    if sum(map(is_header, report.lines)) < 2:
        return ""
    type_, message = split_exception(report.cause or report.message.rpartition("\n")[2])
    return f"{type_}: {message}" if message else type_


def _named_rank(failure: Failure, known: Known) -> int | None:
    """Return the only other rank of this job that a worker's message names, or None."""
    message = failure.report.message if failure.report is not None else ""
    named = {int(found[1]) for found in _NAMED_RANK.finditer(message)} - {failure.rank}
    named = {rank for rank in named if rank < known.world_size or not known.world_size}
    return named.pop() if len(named) == 1 else None


def _are_all_seen(root: Failure, known: Known) -> bool:
    """Return whether it is known of all other ranks whether they had failed. The ranks of other
    nodes may not have been inspected, and a rank that exited with code 0 when it was stopped is not
    among the ends.
    """
    is_complete = len(known.ends) + len(known.succeeded_ranks) >= known.world_size
    others = [each for each in known.ends if each is not root and each.stop_signal]
    return is_complete and all(map(_is_seen, others))


def _may_hide_loss(failure: Failure) -> bool:
    """Return whether the loss of a peer can't be ruled out as the reason for a failure, because the
    worker exited without an exception, or its exception hides the one that it was handling.
    """
    if not failure.is_explained:
        return failure.exitcode > 0
    return hides_context(failure)


def hides_context(failure: Failure) -> bool:
    """Return whether a worker's exception was raised with `from None`."""
    report = failure.explanation
    return report is not None and report.source.endswith(" from None")


def _is_seen(failure: Failure) -> bool:
    """Return whether an exception that a worker was handling would have been seen. The exceptions
    of waiting coroutines are not.
    """
    doing = failure.doing
    return doing is not None and not any("/asyncio/" in line for line in doing.stack)


def _may_have_waited(failure: Failure) -> bool:
    """Return whether a worker's exception reports that nothing arrived in time on a socket, pipe or
    queue of the script. Whoever should have sent it may be another rank, a server, or a thread.
    """
    if not failure.is_explained or is_error(failure.words):
        return False
    return _TIMEOUT.fullmatch(_raised(failure)) is not None


def _is_simultaneous(failure: Failure, first: Failure) -> bool:
    """Return whether a worker failed in a different way and so soon after the first failure that
    this worker may actually have failed first.
    """
    report, other = failure.report, first.report
    if since(failure) - since(first) > _AT_ONCE_S:
        return False
    if report is None or other is None:
        return failure.exitcode != first.exitcode
    said, known = (
        (without_numbers(f"{r.type}: {r.message}\n{r.cause}"), r.where, r.cause_where)
        for r in (report, other)
    )
    return said[0] != known[0] and said[1:] != known[1:]


def _reports_lost(failure: Failure, rank: int) -> bool:
    """Return whether a worker's exception reports, in the script's own words, that it lost a
    rank.
    """
    message = failure.report.message if failure.report is not None else ""
    named = any(found[1] == str(rank) for found in _NAMED_RANK.finditer(message))
    return named and _LOST.search(message) is not None


def _may_be_well(failure: Failure, known: Known) -> bool:
    """Return whether a worker that was handling an exception may not have failed. This is possible
    if all workers were handling the same exception, or if no other worker has lost this worker as a
    peer. The worker may be waiting in an `except` block before it tries again.
    """
    if failure.is_explained and _raised(failure) == handling(failure):
        return False  # that exception was fatal
    if known.others_share(failure, handling(failure)):
        return True
    lost = known.others_blame(failure, Blame.CONNECTION)
    return not known.others_blame(failure, Blame.PEER) and not 1 < lost == len(known.ends) - 1


def _raised(failure: Failure) -> str:
    """Return the exception that ended a worker in the format used by `handling`, without the
    exception's module.
    """
    if failure.report is None:
        return ""
    name, message = failure.report.type.rpartition(".")[2], failure.report.message
    first = message.strip().partition("\n")[0]
    return f"{name}: {first}" if first else name


def _shared(failure: Failure) -> set[str]:
    """Return the exceptions that a worker was handling when it failed with another one, or when it
    was stopped in a function called from its `except` block.
    """
    report, state = failure.report, failure.state
    found = {report.cause.partition("\n")[0]} if report is not None else set()
    if state.works_below:
        found.add(state.handling)
    return found


def raised_about_then(known: Known) -> Verdict | None:
    """A rank raised an exception of its own at about the time when it was stopped, and another rank
    had lost its connection to that rank.
    """
    if not any(known.blame_of(f) is Blame.PEER for f in known.with_role(Role.VICTIM)):
        return None
    for failure in sorted(known.ends, key=lambda failure: (failure.at, failure.rank)):
        unknown = failure.stop_signal and had_failed_before(failure) is None
        if unknown and failure.is_explained and known.blame_of(failure) is Blame.NOBODY:
            why = "it may have raised this before it was stopped; another rank had lost a peer"
            return Verdict(Certainty.LIKELY, why, failure, failure)
    return None


def missing_rank(known: Known) -> Verdict | None:
    """Ranks are waiting for a rank that does not exist in the job, or that calls itself another
    rank.
    """
    for failure in known.with_role(Role.VICTIM):
        missing = blame.missing_rank(failure)
        if missing == failure.rank:  # a rank sets its own key before it waits for the others
            says = f"rank {missing} called init_process_group with a different rank"
            why = f"rank {missing} was waiting for itself"
            detail = f"{why}; does the script change RANK, or pass a different rank?"
            return Verdict(
                Certainty.PROVEN, why, failure, failure, (missing,), says, "; then ", detail
            )
        if missing is not None and 0 < known.world_size <= missing:
            ranks = format_ranks(range(known.world_size))
            why = f"waiting for rank {missing}, but this job has only {ranks}"
            detail = f"{why}; is the script's world_size correct?"
            return Verdict(Certainty.PROVEN, why, failure, failure, detail=detail)
    return None


def other_address(known: Known) -> Verdict | None:
    """A rank is trying to reach the store at an address that differs from the one set by
    relight.
    """
    found = [f for f in known.with_role(Role.VICTIM) if blame.is_at_other_address(f)]
    if not found:
        return None
    root = found[0]
    tried = {f.rank: at for f in found if (at := blame.address(f)) is not None}
    if len(set(tried.values())) <= 1:
        return Verdict(Certainty.PROVEN, root.evidence, root, root)
    root = root._replace(evidence=root.evidence.removesuffix(blame.OWN_PORT))
    listed = [f"{at[0]}:{at[1]} (rank {rank})" for rank, at in tried.items()]
    why = f"the ranks need one MASTER_ADDR and MASTER_PORT, but tried {', '.join(listed[:3])}"
    return Verdict(Certainty.PROVEN, why, root, root, detail=why)


def other_store(known: Known) -> Verdict | None:
    """A rank couldn't reach a store that the script uses besides that of the process group."""
    root = next((f for f in known.with_role(Role.VICTIM) if blame.is_at_other_store(f)), None)
    if root is None:
        return None
    why = "perhaps the address is wrong, or the rank that serves the store was late"
    return Verdict(Certainty.LIKELY, why, root, root)


def lost_connection(known: Known) -> Verdict | None:
    """One of the script's own connections was lost, and no other worker had failed."""
    found = [f for f in known.with_role(Role.VICTIM) if known.blame_of(f) is Blame.CONNECTION]
    if not found:
        return None
    root = found[0]
    over = [failure for failure in _left_script(known) if failure is not root]
    gone = (*known.succeeded_ranks, *_failed_ranks(over))
    if gone:
        why = f"the connection may have been to {format_ranks(gone)}, which had left the script"
        return _perhaps_because_of(gone, root, known, why)
    if len(found) > 1 and len(found) == len(known.ends) - 1:
        left = elsewhere(known) or _without_code(known, root)
        if left is not None:
            why = f"{format_ranks(left.ranks)} lost no connection, but all others did"
            return left._replace(why=why, hint="")
    odd = _odd_one_out(found) if len(found) == max(len(known.ends), known.world_size) else None
    if odd is not None and odd is not root:
        alike = _failed_ranks([each for each in found if each is not odd])
        why = f"{format_ranks(alike)} lost a connection at the same time, all in the same function"
        return Verdict(Certainty.LIKELY, why, odd, odd)
    others = [f for f in known.ends if f is not root and role(f) is Role.STOPPED]
    # A rank that exited with code 0 when it was stopped is not among the ends.
    seen = len(known.ends) >= known.world_size and all(
        _is_seen(f) and f.state.place.startswith(_IN) for f in others
    )
    earlier = [f for f in known.ends if f is not root and since(f) < since(root)]
    handlers = [f for f in known.ends if f is not root and handling(f)]
    if cause := next((f for f in handlers if _is_in_flight(f, known)), None):
        why = f"rank {root.rank} had lost a connection, perhaps to it"
        return Verdict(Certainty.LIKELY, why, cause, cause)
    victims = [f for f in known.with_role(Role.VICTIM) if f is not root]
    if server := next((f for f in victims if IN_THREAD.match(f.words)), None):
        says = f"rank {server.rank} had printed {server.words}"
        why = f"{says}; the connection may have been to it"
        return Verdict(Certainty.LIKELY, why, server, root, (server.rank,), says, "; then ")
    if handlers:
        to = f"rank {handlers[0].rank}, which was handling {handling(handlers[0])}"
        why, certainty = f"the connection may have been to {to}", Certainty.LIKELY
    elif printers := [f for f in others if _had_printed(f, root)]:
        to = f"rank {printers[0].rank}; {_printed(printers)}"
        why, certainty = f"the connection may have been to {to}", Certainty.LIKELY
    elif (left := _without_code(known, root)) is not None:
        other = left.root
        why = f"the connection may have been to rank {other.rank}, which {absence(other)}"
        return _perhaps_because_of((other.rank,), root, known, why)
    elif seen and not (earlier or root.stop_signal):
        why, certainty = "no other rank had failed or ended before", Certainty.PROVEN
    else:
        why, certainty = "the connection may have been to another rank", Certainty.LIKELY
    return Verdict(certainty, why, root, root)


def _perhaps_because_of(gone: Sequence[int], root: Failure, known: Known, why: str) -> Verdict:
    """Return the verdict on a worker that may have failed because of ranks that had left."""
    ranks, printed = tuple(sorted((*gone, root.rank))), _printed(known.told)
    detail = f"{why}; {printed}" if printed else why
    return Verdict(Certainty.UNKNOWN, why, root, root, ranks, detail=detail)


def _had_printed(failure: Failure, root: Failure) -> bool:
    """Return whether a worker had printed an exception when another worker failed, and kept
    running, like a server that fails to handle a request. A thread closes its connections before
    its exception is printed.
    """
    report = failure.report
    if report is None or not failure.went_on or failure.printed_s is None:
        return False
    is_own = not (report.others or is_by_request(failure) or _EVERYDAY.match(_raised(failure)))
    return is_own and failure.at - failure.printed_s <= since(root) + _AFTER_CLOSE_S


def _is_in_flight(failure: Failure, known: Known) -> bool:
    """Return whether the exception that a worker was handling is more likely to end the worker than
    to be an expected one. Such an exception explains more than a single lost connection, because
    the worker may have closed the connection in its `finally` block.
    """
    handled = handling(failure)
    if _EVERYDAY.match(handled) or blame.blames_peer(handled):
        return False
    return not known.others_share(failure, handled)


def _without_code(known: Known, symptom: Failure) -> Verdict | None:
    """Blame a worker that was still starting, or was in a C function that Python calls at exit."""
    for failure in known.ends:
        if failure.state.place == NO_CODE:
            says = f"rank {failure.rank} was not running Python code (starting or exiting)"
            ranks = (failure.rank,)
            return Verdict(Certainty.LIKELY, "", failure, symptom, ranks, says, " when ")
    return None


def _odd_one_out(found: Sequence[Failure]) -> Failure | None:
    """Return the one worker that was in a different function from all others when they lost their
    connections at about the same time. Return None unless there is exactly one such worker. The
    other workers have lost a common peer, and the agent may have noticed their failures first.
    """
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in found:
        where = failure.report.where if failure.report is not None else ""
        file, _, function = where.partition(" in ")
        groups.setdefault((file.rpartition(":")[0], function), []).append(failure)
    odd = [each[0] for each in groups.values() if len(each) == 1]
    if len(groups) != 2 or len(odd) != 1 or since(odd[0]) - since(found[0]) > _AT_ONCE_S:
        return None
    return odd[0]


def failed_in_cleanup(known: Known) -> Verdict | None:
    """A rank failed on its own and then waited for its peers while it handled its exception, for
    example in `finally: dist.barrier()`. The rank therefore blames its peers, as they blame it.

    A rank may also have recovered from that exception. Therefore the cause remains uncertain, and
    a rank that was late or had left the script is a better explanation.
    """
    if left_early(known) is not None or elsewhere(known) is not None:
        return None
    if not known.with_role(Role.VICTIM):
        return None
    for failure in sorted(known.ends, key=lambda failure: (since(failure), failure.rank)):
        first = _before_cleanup(failure)
        if first is None or _EVERYDAY.match(_handled_first(failure)):
            continue
        if known.others_handled(failure):
            continue
        report = failure.explanation
        why = f"it was waiting for its peers while handling {_handled_first(failure)}"
        if report is not None:
            why = f"while handling it, rank {failure.rank} raised {_with_place(report)}"
        return Verdict(Certainty.LIKELY, why, first, first)
    return None


def _handled_first(failure: Failure) -> str:
    """Return the exception that a worker was handling when it lost its peers, or was stopped."""
    report = failure.explanation
    if report is not None and report.cause:
        return report.cause.partition("\n")[0]
    return failure.state.handling


def _before_cleanup(failure: Failure) -> Failure | None:
    """Return a failure as it would have been without the worker's cleanup, or None if the worker
    had not failed before.
    """
    handled = _handled_first(failure)
    if not handled or _BY_REQUEST.search(handled) or blame.blames_peer(handled):
        return None
    report, state = failure.explanation, failure.state
    if report is not None and report.cause:
        blames = blame.determine(report, failure.last_lines)
        if is_by_request(failure) or blames is Blame.NOBODY:
            return None  # it raised this when it was stopped
        name, _, message = report.cause.partition(": ")
        first = report._replace(
            type=name, message=message, where=report.cause_where, source="", cause="",
            cause_where="",
        )  # fmt: skip
        return failure._replace(report=first)
    if state.works_below or not state.expects_peers:
        return None
    return failure._replace(doing=state._replace(expects_peers=False))


def collectives_differ(known: Known) -> Verdict | None:
    """Ranks were in collectives that don't match, and torch has compared them."""
    own = known.with_role(Role.OWN)
    if not own or blame.difference(own[0]) is None:
        return None
    found = [(each, got) for each in known.ends if (got := blame.difference(each)) is not None]
    odd = set.intersection(*({got.rank, got.other} for _, got in found))
    named = tuple(sorted({rank for _, got in found for rank in (got.rank, got.other)}))
    root, (rank, other, aspects) = next((each for each in found if each[0].rank in odd), found[0])
    ranks, certainty = named, Certainty.UNKNOWN
    every = format_ranks(named)
    says = f"the collectives of {every} differ: {aspects} (rank {rank} vs rank {other})"
    if len(odd) == 1 and len(named) > 2:
        ranks, certainty = tuple(odd), Certainty.LIKELY
        others = format_ranks([each for each in named if each not in odd])
        says = (
            f"{format_ranks(ranks)} differed from {others} in a collective: {aspects} "
            f"(rank {rank} vs rank {other})"
        )
    return Verdict(certainty, says, root, root, ranks, says)


def different_sizes(known: Known) -> Verdict | None:
    """Ranks passed tensors of different sizes to the same collective."""
    for failure in known.with_role(Role.VICTIM):
        sizes = blame.mismatch(failure)
        if sizes is None:
            continue
        places = {found for each in known.ends if (found := collective(each))}
        where, by = "", ""
        ranks: tuple[int, ...] = (failure.rank,)
        if len(places) == 1:
            name, at = places.pop()
            where = f" to {name} ({at})"
            sender = _sender(name, failure.rank, known.world_size)
            if sender is not None:
                by, ranks = f" from rank {sender}", tuple(sorted((failure.rank, sender)))
        why = f"rank {failure.rank} expected {sizes.expected} bytes{by} and received {sizes.sent}"
        says = f"ranks passed tensors of different sizes or types{where}: {why}"
        return Verdict(Certainty.PROVEN, why, failure, failure, ranks, says)
    return None


def _sender(collective: str, rank: int, world_size: int) -> int | None:
    """Return which rank sends to a given rank in gloo's rings (gloo/allreduce.cc and
    gloo/allgather.cc in torch 2.13), or None for other collectives or an unknown number of ranks.
    """
    step = {"all_reduce": 1, "all_gather": -1}.get(collective)
    return None if step is None or world_size < 2 else (rank + step) % world_size


def left_early(known: Known) -> Verdict | None:
    """A rank reached the end of its script while others still needed it."""
    aborted = [failure for failure in known.ends if left_script(failure)]
    victims = _lost_a_peer(known) if aborted else known.with_role(Role.VICTIM)
    if not victims:
        return None
    if aborted:
        root, ranks, printed = aborted[0], _failed_ranks(aborted), _printed(aborted)
        says = f"{format_ranks(ranks)} reached the end of the script and aborted at exit (SIGABRT)"
    elif known.succeeded_ranks:
        root = known.told[0] if known.told else victims[0]
        # Others may lose their connections to a rank before its process has ended.
        ranks, printed = known.succeeded_ranks, _printed(known.told)
        says = f"{format_ranks(ranks)} finished early (exit code 0)"
    elif over := _left_script(known):
        root = next((each for each in over if _printed([each])), over[0])
        ranks, printed = _failed_ranks(over), _printed([root])
        left = f"rank {root.rank} {absence(root)}"
        says = left if len(over) == 1 else f"{format_ranks(ranks)} had left the script"
    else:
        return None
    why = f"{says}; other ranks still needed {'it' if len(ranks) == 1 else 'them'}"
    hint = "" if printed else "perhaps the ranks have different numbers of batches"
    return Verdict(Certainty.LIKELY, why, root, victims[0], ranks, says, "; then ", printed, hint)


def _lost_a_peer(known: Known) -> list[Failure]:
    """Return the victims. Without victims, return the workers that lost a peer while they were
    being stopped, because the agent may notice a worker that aborts at exit before the worker's
    peers fail.
    """
    stopped = known.with_role(Role.STOPPED)
    return known.with_role(Role.VICTIM) or [
        each for each in stopped if each.is_explained and known.blame_of(each) is Blame.PEER
    ]


def without_late_signal(end: WorkerEnd, had_handler: bool | None) -> WorkerEnd:
    """Return how a worker ended, ignoring a stop signal that was sent too late. A stop signal kills
    a worker without a handler for it. If such a worker failed with an exit code instead, it had
    already ended when the signal was sent.

    Args:
        end: how the worker ended.
        had_handler: whether the worker had a handler for the stop signal; None (on some systems
            True) if unknown.
    """
    if had_handler is False and end.stop_signal and end.exitcode > 0:
        return end._replace(stop_signal=0, stopping_s=0.0)
    return end


def had_succeeded(end: WorkerEnd, first_at: float, doing: WorkerState | None) -> bool:
    """Return whether a worker had reached the end of its script before the first failure.

    A process closes its connections before it can be reaped, so a peer that fails as a result may
    be reaped first. This worker is then sent a stop signal although it has already finished.

    Args:
        end: how the worker ended.
        first_at: the time of the first failure, on the same clock.
        doing: the worker's last known state before the stop signal.
    """
    if end.exitcode:
        return False
    if not end.stop_signal:
        return end.at <= first_at
    return doing is not None and (doing.place.startswith(_ENDED) or _is_leaving(doing))


def _is_leaving(doing: WorkerState) -> bool:
    """Return whether a worker's interpreter was shutting down, possibly while running an exit
    function.
    """
    in_exit_function = doing.place.startswith(_IN) and not doing.in_program
    return doing.place == SHUTTING_DOWN or in_exit_function


def _left_script(known: Known) -> list[Failure]:
    """Return the workers that were observed after the end of their script, provided that other
    workers had not yet reached the end of theirs.
    """
    over = [f for f in known.ends if _is_leaving(f.state) and not f.is_explained]
    return over if len(over) < len(known.ends) else []


def _failed_ranks(failures: Sequence[Failure]) -> tuple[int, ...]:
    return tuple(sorted(failure.rank for failure in failures))


def elsewhere(known: Known) -> Verdict | None:
    """A rank was observed in a different location from the other ranks, which were waiting for
    it.
    """
    victims = known.with_role(Role.VICTIM)
    found = [f for f in known.with_role(Role.STOPPED, Role.REPORTED) if is_elsewhere(f)]
    if not victims or not found:
        return None
    ranks = tuple(sorted(failure.rank for failure in found))
    first = min(found, key=lambda failure: failure.rank)
    symptom = next((f for f in victims if blame.absent_ranks(f.report) & set(ranks)), victims[0])
    where = places(found, past=True)
    joint = " when " if where.endswith(")") else ", when "
    why = f"{where} while others waited"
    hint = "perhaps late, or waiting for something"
    return Verdict(
        Certainty.LIKELY, why, first, symptom, ranks, where, joint,
        _printed([first]) or _was_handling(first, known), hint,
    )  # fmt: skip


def _printed(failures: Sequence[Failure]) -> str:
    """Return the last output from the first of these workers that printed anything. The result is
    an exception, such as one raised in a thread, or otherwise the most informative line.
    """
    for failure in failures:
        report, said = failure.report, failure.words
        if report is not None and (report.others or report.kind is FailureKind.CRASHED):
            report = None  # unrelated to the end
        if report is not None and report.type:
            said = _with_place(report)
        if said and AT_EXIT not in said:
            return f"rank {failure.rank} had printed: {said}"
    return ""


def _with_place(report: ErrorReport) -> str:
    at = f" at {report.where}" if report.where else ""
    return f"{report.type}: {headline(report, _MAX_PRINTED)}{at}"


def _was_handling(failure: Failure, known: Known) -> str:
    """Return the exception that this worker was handling, unless another worker shared it."""
    handled = failure.state.handling
    if known.others_share(failure, handled) or known.others_raised(failure, handled):
        return ""
    return f"rank {failure.rank} was handling {handled_exception(failure.state)}" if handled else ""


def absent_rank(known: Known) -> Verdict | None:
    """A rank had not joined the process group."""
    for failure in known.with_role(Role.VICTIM):
        missing = blame.missing_rank(failure)
        absent = next((f for f in known.with_role(Role.STOPPED) if f.rank == missing), None)
        if absent is not None and absent.doing is not None:
            says = f"rank {missing} had not joined the process group"
            where = f"rank {missing} {absence(absent)}"
            if blame.is_at_other_address(absent):
                where = absent.evidence
            return Verdict(
                Certainty.LIKELY, says, absent, failure, (absent.rank,), says, "; then ", where
            )
    return None


def different_collectives(known: Known) -> Verdict | None:
    """The ranks were waiting for each other in different calls."""
    victims = known.with_role(Role.VICTIM)
    where = {f.rank: found for f in known.ends if (found := collective(f))}
    calls: dict[tuple[str, str], list[int]] = {}
    for rank, call in sorted(where.items()):
        calls.setdefault(call, []).append(rank)
    if not victims or len(calls) < 2:
        return None
    ordered = sorted(calls.items(), key=lambda item: (len(item[1]), item[1]))
    listed = ", ".join(f"{format_ranks(ranks)} in {name} ({at})" for (name, at), ranks in ordered)
    names = {name for name, _ in calls}
    what = "collectives" if len(names) > 1 else "calls"
    says = f"the ranks were in different {what}: {listed}"
    ranks = tuple(ordered[0][1])
    certainty = Certainty.LIKELY
    # No call is that of the majority, or ranks need not return from a call at the same time.
    if len(ranks) == len(ordered[-1][1]) or any(map(has_root, names)):
        certainty, ranks = Certainty.UNKNOWN, tuple(sorted(where))
    blamed = [failure for failure in (*victims, *known.ends) if failure.rank in ranks]
    root = blamed[0]
    symptom = root if role(root) is Role.VICTIM else victims[0]
    return Verdict(certainty, says, root, symptom, ranks, says)


def first_victim(known: Known) -> Verdict | None:
    """No rank is known to have failed on its own."""
    victims = known.with_role(Role.VICTIM)
    if not victims:
        return None
    why = "each failed rank was waiting for another one, or had lost its connection to it"
    says = "no rank appears to have failed on its own"
    first = victims[0]
    # It may have recovered from that exception.
    handlers = [f for f in known.ends if f is not first and _before_cleanup(f) is not None]
    handler = next((f for f in handlers if not known.others_handled(f)), None)
    detail = f"rank {handler.rank} was handling {_handled_first(handler)}" if handler else ""
    return Verdict(Certainty.UNKNOWN, why, first, first, (), says, "; first, ", detail)


def first_stopped(known: Known) -> Verdict:
    """All workers were stopped. Choose the first worker that raised an exception, or the very first
    one if none did.
    """
    ends = sorted(known.ends, key=lambda f: (not f.is_explained, f.at, f.rank))
    why = "all ranks were stopped"
    return Verdict(Certainty.UNKNOWN, why, ends[0], ends[0])


RULES: tuple[Rule, ...] = (
    collectives_differ,
    own_failure,
    missing_rank,
    other_address,
    other_store,
    lost_connection,
    failed_in_cleanup,
    different_sizes,
    raised_about_then,
    left_early,
    elsewhere,
    absent_rank,
    different_collectives,
    first_victim,
    first_stopped,
)


def absence(failure: Failure) -> str:
    """Return where a worker was when others needed it, such as `was in read (data.py:41)` or `had
    left the script and was in upload (train.py:9)`, or an empty string if that is unknown.
    """
    state = failure.state
    if state.place == NO_CODE:
        return "was not running Python code (starting or exiting)"
    was = places([failure], past=True).removeprefix(f"rank {failure.rank} ")
    if not _is_leaving(state):
        return was
    in_exit_function = state.place.startswith(_IN)
    return f"had left the script and {was}" if in_exit_function else "had left the script"


def places(failures: Sequence[Failure], *, past: bool = False) -> str:
    """Describe where workers were, such as `rank 2 in read (data.py:41); …`, or `rank 2 was in …`
    if the argument `past` is true. The worker that is most likely the cause comes first.
    """
    groups: dict[tuple[bool, str], list[int]] = {}
    for failure in failures:
        state = failure.state
        if state.place.startswith(_IN):
            groups.setdefault((state.expects_peers, state.place), []).append(failure.rank)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], len(item[1]), item[1]))
    texts = []
    for (_, at), ranks in ordered:
        was = f"{' was' if len(ranks) == 1 else ' were'}{at.removeprefix(' is')}"
        texts.append(f"{format_ranks(ranks)}{was if past else at}")
    return "; ".join(texts[:_MAX_PLACES]) + ("; …" if len(texts) > _MAX_PLACES else "")
