"""The root cause of a failed generation, how certain it is, and why."""

import signal
from collections import Counter
from typing import Any

import pytest
from worker_ends import (
    AT_EXIT,
    CLEANS_UP,
    CRASHED,
    KILL,
    LOST,
    PRINTED,
    READS,
    REDUCES,
    RESET,
    TERM,
    WAITED,
    end,
    error,
)

from relight.core.diagnosis import blame, causes
from relight.core.diagnosis.causes import Certainty, Role, Verdict, role
from relight.core.diagnosis.failure_text import diagnose
from relight.core.diagnosis.stack_text import NO_CODE, SHUTTING_DOWN
from relight.core.failure import ErrorReport, Failure, FailureKind, WorkerEnd, WorkerState

OVER = WorkerState(SHUTTING_DOWN, (), False)
DURING = "During handling of the above exception, another exception occurred:"


def judge(*ends: Failure, succeeded: tuple[int, ...] = (), world_size: int = 0) -> Verdict:
    return causes.judge(ends, succeeded, world_size)


def stopped(rank: int = 0, doing: WorkerState | None = None, **known: Any) -> Failure:
    """Return a worker that was asked to stop two seconds before it exited."""
    known = {"exitcode": -TERM, "stop_signal": TERM, "stopping_s": 2.0, "at": 3.0, **known}
    return end(rank, doing=doing, **known)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (end(exitcode=7), Role.OWN),
        (end(report=error()), Role.OWN),
        (end(exitcode=-KILL, evidence="out of memory"), Role.OWN),
        (end(exitcode=7, report=PRINTED), Role.OWN),
        (end(report=LOST), Role.VICTIM),
        (end(report=RESET), Role.VICTIM),
        (end(report=error("the server closed the connection", "ConnectionError")), Role.VICTIM),
        (end(report=error("timed out", "requests.exceptions.ConnectionError")), Role.OWN),
        (end(report=error("reset by https://host/x", "ConnectionResetError")), Role.OWN),
        (end(report=error("another rank has failed", "recovery.GroupBrokenError")), Role.VICTIM),
        (end(report=error("lost connection to the parameter server", "Lost")), Role.VICTIM),
        (end(report=error("the loss was lost in connection 3", "Lost")), Role.OWN),
        (end(last_lines=("ConnectionResetError: [Errno 104]",)), Role.VICTIM),
        (end(report=error()._replace(cause="ConnectionResetError: lost")), Role.VICTIM),
        (stopped(), Role.STOPPED),
        (stopped(exitcode=-KILL), Role.STOPPED),
        (stopped(exitcode=143), Role.STOPPED),
        (stopped(exitcode=1), Role.STOPPED),
        (stopped(doing=OVER, exitcode=1), Role.REPORTED),
        (stopped(doing=OVER, exitcode=143), Role.STOPPED),
        (stopped(doing=OVER), Role.STOPPED),
        (stopped(report=PRINTED), Role.STOPPED),
        (stopped(report=CRASHED), Role.STOPPED),
        (stopped(exitcode=127, evidence="the program could not be started"), Role.REPORTED),
        (stopped(report=PRINTED, evidence="the disk is full"), Role.STOPPED),
        (stopped(exitcode=1, report=error("", "KeyboardInterrupt")), Role.STOPPED),
        (stopped(exitcode=1, report=error("got SIGTERM", "Stop")), Role.STOPPED),
        (stopped(exitcode=1, report=error("loader is killed by signal: 15")), Role.STOPPED),
        (stopped(exitcode=1, report=error()._replace(is_interrupted=True)), Role.STOPPED),
    ],
)
def test_failures_are_classified_by_cause(failure: Failure, expected: Role) -> None:
    assert role(failure) is expected


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"printed_s": 2.5}, Role.REPORTED),
        ({"printed_s": 1.5}, Role.STOPPED),
        ({"doing": READS}, Role.STOPPED),
        ({"doing": READS._replace(in_program=False)}, Role.REPORTED),
        ({"doing": OVER}, Role.REPORTED),
        ({"doing": WorkerState(NO_CODE, (), False)}, Role.REPORTED),
        ({"doing": OVER, "printed_s": 1.9}, Role.REPORTED),
        ({"doing": CLEANS_UP}, Role.REPORTED),
        ({"doing": CLEANS_UP._replace(handling="SystemExit: 1")}, Role.STOPPED),
        ({}, Role.STOPPED),
    ],
    ids=["printed before", "printed after", "was working", "was in an atexit function",
         "had finished", "was in a C exit function",
         "was over, read later", "was cleaning up",
         "was leaving", "nobody knows"],
)  # fmt: skip
def test_exception_raised_before_the_stop_is_the_ranks_own_failure(
    known: dict[str, Any], expected: Role
) -> None:
    """The time of the traceback shows this, or else the stack taken just before the stop."""
    assert role(stopped(exitcode=1, report=error(), **known)) is expected


def test_rank_that_quotes_the_exception_of_another_rank_is_not_the_cause() -> None:
    """It may report the errors that it gathered from all ranks before they fail."""
    header = "Traceback (most recent call last):"
    said = "AssertionError: tokenizer hash differs"
    lines = (header, "RuntimeError: checks failed on ranks [3]", header, said)
    gathered = error("checks failed on ranks [3]", "RuntimeError", where="a.py:18")
    by_cause = gathered._replace(lines=lines, cause=said, cause_where="a.py:7 in check")
    in_message = gathered._replace(lines=lines, message=f"rank 3 failed:\n{said}")
    wrapped = by_cause._replace(
        lines=(header, said, "", DURING, "", header, "RuntimeError: checks failed on ranks [3]")
    )
    cause = end(3, at=3.0, report=error("tokenizer hash differs", "AssertionError"))
    for report, rank in ((by_cause, 3), (in_message, 3), (wrapped, 0)):
        verdict = judge(end(0, at=1.0, report=report), cause)
        assert (verdict.root.rank, verdict.certainty) == (rank, Certainty.PROVEN)
    alone = judge(end(0, at=1.0, report=by_cause._replace(message="1 of 4 failed\nrank 3:")))
    assert (alone.root.rank, alone.certainty, alone.ranks) == (0, Certainty.LIKELY, (0, 3))
    assert alone.why == "its message quotes an exception, perhaps one on rank 3"
    named = end(0, at=1.0, report=by_cause._replace(message="[rank7]: try again"))
    assert judge(named, world_size=4).certainty is Certainty.PROVEN


def test_root_cause_is_only_likely_among_simultaneous_failures() -> None:
    """The agent may notice them in a different order."""
    first = end(1, at=1.0, report=error())
    for at, report, certainty in (
        (1.01, error("'labels'", "KeyError", where="a.py:3"), Certainty.LIKELY),
        (1.01, error("bad batch 7"), Certainty.PROVEN),  # the same place
        (1.01, error("bad batch", where="rank1.py:12"), Certainty.PROVEN),  # the same exception
        (3.0, error("'labels'", "KeyError", where="a.py:3"), Certainty.PROVEN),
    ):
        verdict = judge(first, end(0, at=at, report=report))
        assert (verdict.root, verdict.certainty) == (first, certainty)


@pytest.mark.parametrize(
    ("exitcode", "had_handler", "was_stopped"),
    [
        (1, False, False),
        (1, True, True),
        (1, None, True),
        (-TERM, False, True),
        (-KILL, False, True),
        (0, False, True),
    ],
)
def test_worker_without_signal_handler_that_returns_an_exit_code_was_not_stopped(
    exitcode: int, had_handler: bool | None, was_stopped: bool
) -> None:
    ended = WorkerEnd(0, exitcode, 2.0, TERM, 0.1)
    found = causes.without_late_signal(ended, had_handler)
    assert found == (ended if was_stopped else WorkerEnd(0, exitcode, 2.0, 0))


def test_only_eof_on_a_pipe_counts_as_a_lost_connection() -> None:
    """Pipes and files both raise EOFError without a message."""
    report = error("", "EOFError")
    assert role(end(report=report)) is Role.OWN
    line = '  File "/usr/lib/python3.11/multiprocessing/connection.py", line 383, in _recv'
    assert role(end(report=report._replace(lines=(line,)))) is Role.VICTIM


def test_nccl_watchdog_abort_is_blamed_on_a_peer() -> None:
    words = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)"
    aborted = error("Aborted", "fatal error", FailureKind.CRASHED, "")
    assert role(end(exitcode=-signal.SIGABRT, report=aborted, words=words)) is Role.VICTIM


def test_rank_that_fails_during_cleanup_is_not_the_root_cause() -> None:
    """The first failure lost a connection to some server, which looks like a lost peer."""
    first = end(1, at=1.0, report=RESET)
    verdict = judge(stopped(0, READS, exitcode=1, report=error()), first)
    assert verdict.root is first
    assert verdict.certainty is Certainty.PROVEN
    assert verdict.why == "no other rank had failed or ended before"


def test_rank_cleaning_up_after_an_exception_is_the_root_cause() -> None:
    """The rank closes its connections first, but is the last to exit."""
    culprit = stopped(3, CLEANS_UP)
    verdict = judge(end(0, at=1.0, report=RESET), end(1, at=1.0, report=LOST), culprit)
    assert verdict.root is culprit
    assert verdict.certainty is Certainty.LIKELY
    assert verdict.why == "it was handling ValueError: bad record before it was stopped"


def test_rank_working_inside_an_except_block_has_not_failed() -> None:
    """Like the other ranks, the rank continues without the missing file."""
    below = CLEANS_UP._replace(works_below=True)
    assert role(stopped(0, below)) is Role.STOPPED
    first = end(1, at=1.0, report=RESET)
    verdict = judge(first, stopped(0, below))
    assert (verdict.root, verdict.certainty) == (first, Certainty.PROVEN)
    verdict = judge(end(1, at=1.0, report=WAITED), stopped(0, below))
    assert (verdict.rule, verdict.root.rank) == ("elsewhere", 0)
    assert verdict.detail == "rank 0 was handling ValueError: bad record (a.py:7)"


def test_message_that_names_the_absent_rank_is_quoted() -> None:
    """After a monitored_barrier, the other ranks only refer to rank 0."""
    refers = error(
        "Rank 1 successfully reached monitoredBarrier, but received errors", "RuntimeError"
    )
    names = error("[Rank 0]: Rank 2 failed to pass monitoredBarrier in 3000 ms", "RuntimeError")
    reader = stopped(2, READS)
    verdict = judge(end(1, at=1.0, report=refers), end(0, at=1.1, report=names), reader)
    assert (verdict.rule, verdict.root, verdict.symptom.rank) == ("elsewhere", reader, 0)


def test_exception_handled_by_all_ranks_is_not_the_root_cause() -> None:
    others = [
        end(0, at=1.0, report=WAITED._replace(cause=CLEANS_UP.handling)),
        stopped(1, REDUCES._replace(handling=CLEANS_UP.handling, works_below=True)),
    ]
    for other in others:
        verdict = judge(end(2, at=1.0, report=WAITED), other, stopped(3, CLEANS_UP))
        assert (verdict.rule, verdict.root.rank) == ("elsewhere", 3)
        assert not verdict.detail


def test_rank_in_an_except_block_may_have_closed_the_connection() -> None:
    """The rank may be waiting there to retry, and none of the messages is from torch."""
    first = end(1, at=1.0, report=RESET)
    expected = CLEANS_UP._replace(handling="FileNotFoundError: [Errno 2] No such file: 'x'")
    verdict = judge(first, stopped(0, expected))
    assert (verdict.root, verdict.certainty) == (first, Certainty.LIKELY)
    assert verdict.why == (
        f"the connection may have been to rank 0, which was handling {expected.handling}"
    )
    assert judge(first, end(2, at=1.0, report=RESET), stopped(0, CLEANS_UP)).root.rank == 0
    raised = stopped(0, CLEANS_UP, exitcode=1, report=error("bad record"))
    assert judge(first, raised).root is raised  # the exception ended the rank


def test_rank_with_an_exception_in_flight_outranks_a_single_lost_connection() -> None:
    first = end(1, at=1.0, report=RESET)
    verdict = judge(first, stopped(0, READS), stopped(2, CLEANS_UP))
    assert (verdict.root.rank, verdict.certainty) == (2, Certainty.LIKELY)
    assert verdict.why == "rank 1 had lost a connection, perhaps to it"
    both = stopped(0, READS._replace(handling=CLEANS_UP.handling, works_below=True))
    assert judge(first, both, stopped(2, CLEANS_UP)).root is first


def test_lost_connection_may_have_been_to_a_rank_that_printed_an_exception() -> None:
    """A server prints the exception of a request, closes the connection, and keeps running."""
    lost = end(1, at=1.0, report=RESET)
    server = stopped(0, READS, report=PRINTED, went_on=True, printed_s=2.1)
    verdict = judge(lost, server)
    assert (verdict.root, verdict.certainty) == (lost, Certainty.LIKELY)
    assert verdict.why == (
        "the connection may have been to rank 0; rank 0 had printed: ValueError: bad batch at "
        "/srv/job/train.py:12 in step"
    )
    at_once = server._replace(printed_s=1.9)  # a thread closes its connections before it prints
    assert judge(lost, at_once).certainty is Certainty.LIKELY
    later = server._replace(printed_s=1.6)
    for other in (later, server._replace(went_on=None)):
        assert judge(lost, other).certainty is Certainty.PROVEN


def test_lost_connection_may_have_been_to_a_victim_whose_thread_had_failed() -> None:
    """The thread of a server fails first. Later, its rank's collective fails as well."""
    lost = end(1, at=1.0, report=RESET)
    said = "Exception in thread server: KeyError: 'momentum' (server.py:19 in serve)"
    server = end(0, at=2.0, report=LOST, words=said)
    verdict = judge(lost, server)
    assert (verdict.root, verdict.symptom) == (server, lost)
    headline = diagnose([lost, server]).headline()
    assert headline.startswith(f"probably rank 0: it had printed {said}; then rank 1 raised ")
    assert judge(lost, server._replace(words="epoch 3 done")).certainty is Certainty.PROVEN


def test_exceptions_of_waiting_coroutines_are_unseen() -> None:
    lost = end(1, at=1.0, report=error("0 bytes read on a total of 4 expected bytes",
                                       "asyncio.exceptions.IncompleteReadError"))  # fmt: skip
    line = 'File "/usr/lib/python3.11/asyncio/runners.py", line 118, in run'
    assert judge(lost, stopped(0, READS)).certainty is Certainty.PROVEN
    verdict = judge(lost, stopped(0, READS._replace(stack=(line,))))
    assert (verdict.rule, verdict.certainty) == ("lost_connection", Certainty.LIKELY)
    verdict = judge(end(1, report=error()), stopped(0, READS._replace(stack=(line,))))
    assert verdict.why == "no other rank is known to have failed before"


@pytest.mark.parametrize(
    ("message", "type_"),
    [("unpack requires a buffer of 4 bytes", "struct.error"), ("Ran out of input", "EOFError"),
     ("Expecting value: line 1 column 1 (char 0)", "json.decoder.JSONDecodeError")],
)  # fmt: skip
def test_rank_with_an_exception_in_flight_outranks_one_that_received_nothing(
    message: str, type_: str
) -> None:
    """A closed socket returns an empty string."""
    report = error(message, type_)
    failed = end(1, at=1.0, report=report)
    assert judge(failed, stopped(0, CLEANS_UP)).root.rank == 0
    assert judge(failed, stopped(0, READS)).root is failed


def test_rank_in_an_except_block_may_have_failed_before_the_first_exit() -> None:
    first = end(1, at=1.0, report=error("the server hung up"))
    verdict = judge(first, stopped(0, CLEANS_UP))
    assert (verdict.root, verdict.certainty) == (first, Certainty.LIKELY)
    assert verdict.why == "rank 0 was handling ValueError: bad record (a.py:7)"
    alike = end(1, at=1.0, report=error("bad record"))
    assert judge(alike, stopped(0, CLEANS_UP)).certainty is Certainty.PROVEN


@pytest.mark.parametrize(
    ("message", "root"),
    [
        ("rank 0 hung up", 0),
        ("another rank has asked to abort", 0),
        ("lost contact with other workers", 0),
        ("the file of another run is here", 1),
        ("rank=0 is gone", 0),
        ("rank 10 hung up", 1),
        ("rank 0.5 is closed", 1),
        ("the batch of rank=0 changed", 1),
        ("rank 0 has an unexpected number of batches", 1),
        ("failed: expected a rank 0 tensor", 1),
        ("failed: rank-0 tensor", 1),
        ("low-rank 0 approximation failed", 1),
        ("node rank 0 failed", 1),
        ("RankFailed: rank #0 timed out", 0),
        ("local rank 0 failed", 1),
        ("expected a tensor of rank 0, got rank 2", 1),
    ],
)
def test_rank_named_in_the_first_exception_while_handling_its_own_is_the_cause(
    message: str, root: int
) -> None:
    verdict = judge(end(1, at=1.0, report=error(message)), stopped(0, CLEANS_UP))
    assert (verdict.root.rank, verdict.certainty) == (root, Certainty.LIKELY)
    lost = end(2, at=0.9, report=RESET)
    assert (
        judge(lost, end(1, at=1.0, report=error(message)), stopped(0, CLEANS_UP)).root.rank == root
    )


def test_lost_rank_is_blamed_although_another_rank_handles_an_exception() -> None:
    other = stopped(2, CLEANS_UP._replace(handling="KeyError: 'x'"))
    ends = [end(1, at=1.0, report=error("rank 0 hung up")), other, stopped(0, CLEANS_UP)]
    for order in (ends, ends[::-1]):
        assert judge(*order).root.rank == 0


def test_ranks_that_handle_exceptions_are_not_compared_with_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Comparing each of 1,000 ranks with all others took minutes."""
    calls: Counter[str] = Counter()
    real = blame.from_failure

    def counted(failure: Failure) -> blame.Blame:
        calls["blame"] += 1
        return real(failure)

    monkeypatch.setattr(blame, "from_failure", counted)
    ends = [
        stopped(rank, CLEANS_UP._replace(handling=f"ValueError: {rank}")) for rank in range(2, 40)
    ]
    judge(end(0, at=1.0, report=RESET), end(1, at=1.2, report=error()), *ends)
    assert calls["blame"] <= 3 * 40


CHAINED = LOST._replace(cause="ValueError: bad shard", cause_where="a.py:7 in load")
IN_FINALLY = REDUCES._replace(handling="ValueError: bad shard", handling_where="a.py:7 in load")


@pytest.mark.parametrize(
    "failed",
    [
        end(1, at=2.0, report=CHAINED),
        stopped(1, exitcode=1, report=CHAINED),
        stopped(1, doing=IN_FINALLY),
        stopped(1, doing=IN_FINALLY, exitcode=1, report=CHAINED),
    ],
)
def test_rank_that_lost_its_peers_while_handling_its_own_exception_is_the_likely_cause(
    failed: Failure,
) -> None:
    verdict = judge(end(0, at=1.0, report=LOST), failed)
    assert (verdict.root.rank, verdict.certainty) == (1, Certainty.LIKELY)
    headline = diagnose([end(0, at=1.0, report=LOST), failed]).headline()
    assert headline.startswith("probably rank 1: it ")
    assert "ValueError: bad shard" in headline


@pytest.mark.parametrize(
    "other",
    [
        end(0, at=1.0, report=CHAINED),  # both ranks handle the same exception
        stopped(0, READS),
    ],
)
def test_exception_that_a_victim_may_have_recovered_from_is_not_the_cause(other: Failure) -> None:
    assert judge(other, end(1, at=2.0, report=CHAINED)).rule != "failed_in_cleanup"


@pytest.mark.parametrize("final", [error("", "KeyboardInterrupt"), error("got SIGTERM", "Stop")])
def test_exception_of_a_stop_request_is_no_failed_cleanup(final: ErrorReport) -> None:
    """The signal arrived while the rank was handling an exception."""
    report = final._replace(cause="KeyError: 'k'", cause_where="a.py:7 in load")
    verdict = judge(end(0, at=1.0, report=LOST), stopped(1, exitcode=1, report=report))
    assert verdict.rule == "first_victim"


@pytest.mark.parametrize("cause", ["SystemExit: 1", "SIGTERM: 15"])
def test_stop_request_of_a_victim_is_not_the_cause(cause: str) -> None:
    failed = end(1, at=2.0, report=CHAINED._replace(cause=cause))
    verdict = judge(end(0, at=1.0, report=LOST), failed)
    assert (verdict.rule, verdict.detail) == ("first_victim", "")


@pytest.mark.parametrize(
    "cause",
    [
        "StopIteration", "queue.Empty", "FileNotFoundError: [Errno 2] No such file: 'x'",
        "FileExistsError: [Errno 17] File exists: 'x'", "ImportError: no fast path",
        "ModuleNotFoundError: No module named 'apex'", "NotImplementedError",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
    ],
)  # fmt: skip
def test_everyday_exception_of_a_victim_is_not_the_cause(cause: str) -> None:
    failed = end(1, at=2.0, report=CHAINED._replace(cause=cause))
    verdict = judge(end(0, at=1.0, report=LOST), failed)
    assert (verdict.rule, verdict.detail) == ("first_victim", f"rank 1 was handling {cause}")
    assert judge(end(0, at=1.0, report=LOST), failed._replace(rank=2)).rule == "first_victim"


def test_rank_waiting_in_its_cleanup_is_no_mismatch_of_sizes() -> None:
    """It waits in another collective than the others, whose size differs."""
    text = "[enforce fail at /x/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes."
    aborted = error(f"{text} 1336 vs 4", "EnforceNotMet", FailureKind.CRASHED, "")
    for failed in (end(1, at=2.0, report=CHAINED), stopped(1, doing=IN_FINALLY)):
        verdict = judge(end(0, -signal.SIGABRT, report=aborted), failed, world_size=2)
        assert (verdict.rule, verdict.root.rank) == ("failed_in_cleanup", 1)


def test_reason_is_true_if_ranks_of_other_nodes_are_unknown() -> None:
    """They may have failed before, or have exited with 0 when they were stopped."""
    root = end(0, at=1.0, report=error())
    assert judge(root, stopped(1, READS), world_size=2).why == "no other rank had failed before"
    assert judge(root, succeeded=(1,), world_size=2).why == "no other rank had failed before"
    for others in ([stopped(1, READS), stopped(2)], [stopped(1, READS)]):
        verdict = judge(root, *others, world_size=3)
        assert verdict.why == "no other rank is known to have failed before"
        assert verdict.certainty is Certainty.PROVEN


@pytest.mark.parametrize(
    ("failure", "certainty"),
    [
        (end(exitcode=5), Certainty.UNKNOWN),
        (end(exitcode=5, report=PRINTED), Certainty.UNKNOWN),
        (end(report=error()._replace(source="raise E(str(e)) from None")), Certainty.UNKNOWN),
        (end(report=error()), Certainty.PROVEN),
        (end(exitcode=-KILL), Certainty.PROVEN),
    ],
)
def test_exit_that_may_hide_a_lost_peer_is_uncertain_after_a_rank_has_left(
    failure: Failure, certainty: Certainty
) -> None:
    verdict = judge(failure, succeeded=(1,), world_size=2)
    assert verdict.certainty is certainty
    left = "rank 1 had already finished (exit code 0); rank 0 may have needed it"
    assert verdict.detail == (left if certainty is Certainty.UNKNOWN else "")


@pytest.mark.parametrize(
    ("message", "type_"),
    [("timed out", "TimeoutError"), ("", "TimeoutError"), ("timed out", "socket.timeout"),
     ("The read operation timed out", "TimeoutError"), ("", "_queue.Empty")],
)  # fmt: skip
def test_rank_that_waited_in_vain_may_not_be_the_cause(message: str, type_: str) -> None:
    """Another rank, a server or a thread is late, and the exception doesn't say which."""
    waited = end(0, at=1.0, report=error(message, type_))
    verdict = judge(waited, stopped(1, READS))
    assert (verdict.root, verdict.certainty) == (waited, Certainty.UNKNOWN)
    assert verdict.why == "nothing arrived in time, perhaps because of another rank"
    lines = diagnose([waited, stopped(1, READS)]).render(formed_at=0, ended="", verdict="")
    assert lines[0].startswith("rank 0 raised ")
    assert "  when it failed, rank 1 was in read (data.py:41)" in lines
    assert judge(waited).certainty is Certainty.PROVEN
    told = waited._replace(words="ERROR: the producer has no data")
    assert judge(told, stopped(1, READS)).certainty is Certainty.PROVEN
    verdict = judge(waited, stopped(1, CLEANS_UP))
    assert (verdict.root.rank, verdict.certainty) == (1, Certainty.LIKELY)


def test_rank_handling_lost_connection_is_a_victim() -> None:
    first = end(0, at=1.0, report=LOST)
    doing = CLEANS_UP._replace(handling=f"RuntimeError: {LOST.message}")
    assert judge(first, stopped(1, doing)).symptom is first
    doing = CLEANS_UP._replace(handling="ConnectionResetError: lost")
    verdict = judge(first, stopped(1, doing))  # the connection may have been to any server
    assert (verdict.root.rank, verdict.certainty) == (1, Certainty.LIKELY)


def test_exception_followed_by_more_output_is_only_a_likely_cause() -> None:
    doubt = "it printed more after that: no data"
    verdict = judge(end(1, report=error()._replace(doubt=doubt)))
    assert (verdict.certainty, verdict.why) == (Certainty.LIKELY, doubt)
    exited = judge(end(1, exitcode=3, report=error()._replace(doubt=doubt)))
    assert exited.certainty is Certainty.PROVEN


def test_root_cause_may_exit_later_than_its_victim() -> None:
    """The root cause seems to have printed its traceback only after the other rank had exited."""
    culprit = end(1, 9, at=3.0)
    verdict = judge(end(0, at=1.0, report=RESET), culprit)
    assert verdict.root is culprit
    assert verdict.certainty is Certainty.LIKELY
    assert verdict.why == "rank 0 had lost a connection 2.0 s before, perhaps to it"
    verdict = judge(end(0, at=1.0, report=LOST), culprit)  # no other rank could have been lost
    assert (verdict.root, verdict.certainty) == (culprit, Certainty.PROVEN)


def test_failure_of_slowly_exiting_rank_is_dated_by_its_traceback() -> None:
    """A Python process that has imported torch takes seconds to exit."""
    culprit = end(1, at=3.0, report=error(), printed_s=2.5)
    verdict = judge(end(0, at=1.0, report=LOST), culprit)
    assert verdict.root is culprit
    assert verdict.certainty is Certainty.PROVEN
    assert judge(end(0, at=1.0), culprit).root is culprit


def test_earliest_failure_not_caused_by_a_peer_is_the_root_cause() -> None:
    assert judge(end(1, at=2.0), end(0, at=1.0)).root.rank == 0


def test_exception_in_stopped_rank_is_likely_cause_of_lost_connections() -> None:
    """It is unknown when the exception was printed, and no stack of the rank was taken."""
    culprit = stopped(1, exitcode=1, report=error())
    verdict = judge(end(0, at=1.0, report=LOST), culprit)
    assert verdict.root is culprit
    assert verdict.certainty is Certainty.LIKELY
    assert judge(end(0, at=1.0, report=RESET), culprit).root.rank == 0


def test_lost_connection_possibly_to_a_peer_is_only_a_likely_cause() -> None:
    """Either a peer had exited, or its stack was not taken."""
    for others in ([stopped(1)], [end(1, at=0.5, report=LOST)]):
        assert judge(end(0, at=1.0, report=RESET), *others).certainty is Certainty.LIKELY
    unseen = judge(end(0, at=1.0, report=RESET), world_size=2)  # rank 1 exited with 0 when stopped
    assert unseen.certainty is Certainty.LIKELY


@pytest.mark.parametrize("doing", [OVER, READS._replace(in_program=False), None])
def test_report_says_lost_connection_may_have_been_to_a_finished_rank(
    doing: WorkerState | None,
) -> None:
    """The rank had exited with 0, was shutting down, or was in an exit function. However close in
    time, this may be a coincidence.
    """
    leaving = [stopped(1, doing)] if doing else []
    verdict = judge(end(0, at=1.0, report=RESET), *leaving, succeeded=() if doing else (1,))
    assert (verdict.root.rank, verdict.ranks) == (0, (0, 1))
    assert verdict.certainty is Certainty.UNKNOWN
    assert verdict.detail == "the connection may have been to rank 1, which had left the script"


def test_report_says_lost_connection_may_have_been_to_a_rank_without_python_code() -> None:
    """The rank may be in an exit function written in C, or may not have started yet."""
    without_code = stopped(1, WorkerState(NO_CODE, (), False))
    verdict = judge(end(0, at=1.0, report=RESET), without_code, stopped(2, READS))
    assert (verdict.root.rank, verdict.ranks) == (0, (0, 1))
    assert verdict.certainty is Certainty.UNKNOWN
    assert verdict.detail == (
        "the connection may have been to rank 1, which was not running Python code (starting or "
        "exiting)"
    )


def test_reason_of_finished_rank_is_shown_with_lost_connection() -> None:
    told = end(1, 0)._replace(words="no data left")
    verdict = judge(end(0, at=1.0, report=RESET), told, succeeded=(1,))
    assert verdict.detail.endswith(
        "rank 1, which had left the script; rank 1 had printed: no data left"
    )


def test_only_rank_without_a_lost_connection_is_the_suspect() -> None:
    """If only some of the others lost a connection, the connection may have been to any server."""
    lost = [end(rank, at=1.0, report=RESET) for rank in (1, 2)]
    verdict = judge(*lost, stopped(0, READS))
    assert (verdict.root.rank, verdict.certainty) == (0, Certainty.LIKELY)
    assert verdict.says == "rank 0 was in read (data.py:41)"
    assert verdict.why == "rank 0 lost no connection, but all others did"
    assert judge(lost[0], stopped(0, READS)).root.rank == 1
    assert judge(*lost, stopped(0, READS), stopped(3, READS)).root.rank == 1


def test_only_rank_without_a_lost_connection_may_be_in_an_exit_handler() -> None:
    lost = [end(rank, at=1.0, report=RESET) for rank in (0, 2)]
    verdict = judge(*lost, stopped(1, WorkerState(NO_CODE, (), False)))
    assert (verdict.root.rank, verdict.certainty) == (1, Certainty.LIKELY)
    assert verdict.says == "rank 1 was not running Python code (starting or exiting)"
    assert verdict.why == "rank 1 lost no connection, but all others did"


def test_rank_that_fails_at_a_different_location_is_the_likely_cause() -> None:
    """On a busy machine, an agent may notice all lost connections simultaneously."""
    peers = [end(r, at=1.0, report=RESET._replace(where=f"t.py:{r} in reduce")) for r in (0, 2)]
    odd = end(1, at=1.1, report=RESET._replace(where="t.py:32"))
    verdict = judge(*peers, odd)
    assert (verdict.root, verdict.certainty) == (odd, Certainty.LIKELY)
    assert verdict.why == "ranks 0, 2 lost a connection at the same time, all in the same function"
    for others in ([*peers, odd._replace(at=3.0)], [*peers, odd, stopped(3)], [peers[0], odd]):
        assert judge(*others).root.rank == 0
    assert judge(*peers, odd, succeeded=(3,)).root.rank == 0
    assert judge(*peers, odd, world_size=4).root.rank == 0


@pytest.mark.parametrize(
    ("ends", "succeeded", "says", "ranks"),
    [
        ([end(0, report=WAITED), stopped(1, READS), stopped(2, REDUCES)], (),
         "rank 1 was in read (data.py:41)", (1,)),
        ([end(0, report=LOST), stopped(1, READS)], (), "rank 1 was in read (data.py:41)", (1,)),
        ([end(0, report=WAITED), stopped(1, READS._replace(place=f" is stuck{READS.place}"))], (),
         "rank 1 was stuck in read (data.py:41)", (1,)),
        ([end(0, report=LOST)], (2, 1), "ranks 1-2 finished early (exit code 0)", (1, 2)),
        ([end(0, report=LOST), stopped(1, OVER)], (), "rank 1 had left the script", (1,)),
        (
            [end(0, report=LOST),
             end(1, -signal.SIGABRT, last_lines=("terminate called without an active exception",))],
            (), "rank 1 reached the end of the script and aborted at exit (SIGABRT)", (1,),
        ),
        (
            [end(0, report=WAITED), stopped(1, WorkerState(" in barrier (a.py:9)", ("x",), True)),
             stopped(2, REDUCES), stopped(3, REDUCES)], (),
            "the ranks were in different collectives: rank 1 in barrier (a.py:9), "
            "ranks 2-3 in all_reduce (train.py:8)", (1,),
        ),
    ],
    ids=["late", "lost, elsewhere", "in a state", "exited early", "leaving", "aborted at exit",
         "other order"],
)  # fmt: skip
def test_rank_that_others_waited_for_is_blamed_if_no_rank_failed(
    ends: list[Failure], succeeded: tuple[int, ...], says: str, ranks: tuple[int, ...]
) -> None:
    verdict = judge(*ends, succeeded=succeeded)
    assert (verdict.says, verdict.ranks, verdict.symptom.rank) == (says, ranks, 0)
    assert verdict.certainty is Certainty.LIKELY


@pytest.mark.parametrize("exitcode", [1, -signal.SIGABRT])
def test_rank_that_aborts_at_exit_is_root_cause_of_lost_connections(exitcode: int) -> None:
    lost = [stopped(rank, None, report=LOST, printed_s=0.1, stopping_s=0.2) for rank in (0, 1)]
    first = end(2, exitcode, last_lines=AT_EXIT[1:])
    verdict = judge(first, *(each._replace(exitcode=1) for each in lost))
    assert (verdict.root, verdict.rule) == (
        first, "left_early" if exitcode == -signal.SIGABRT else "own_failure",
    )  # fmt: skip
    assert judge(first, stopped(0, None)).rule == "own_failure"


def test_report_quotes_exception_printed_by_rank_that_left_early() -> None:
    """The rank may have handled the exception and returned, or called sys.exit."""
    lost = end(0, report=LOST)
    told = end(1, 0, report=PRINTED)
    said = "rank 1 had printed: ValueError: bad batch at /srv/job/train.py:12 in step"
    verdict = judge(lost, told, succeeded=(1,))
    assert (verdict.says, verdict.root) == ("rank 1 finished early (exit code 0)", told)
    assert (verdict.detail, verdict.hint) == (said, "")
    verdict = judge(lost, told._replace(report=None, words="FATAL: no data"), succeeded=(1,))
    assert verdict.detail == "rank 1 had printed: FATAL: no data"
    verdict = judge(lost, stopped(1, OVER, report=PRINTED))
    assert (verdict.says, verdict.detail) == ("rank 1 had left the script", said)
    assert not verdict.hint
    aborted = end(1, -signal.SIGABRT, last_lines=AT_EXIT[1:], words="FATAL: no data")
    assert judge(lost, aborted).detail == "rank 1 had printed: FATAL: no data"
    assert not judge(lost, aborted._replace(words=AT_EXIT[1])).detail
    survived = told._replace(report=PRINTED._replace(others=(0,)), words="FATAL: no data")
    assert judge(lost, survived, succeeded=(1,)).detail == "rank 1 had printed: FATAL: no data"
    # Peers are not trusted.
    assert not judge(lost, end(2, 0, report=PRINTED), succeeded=(1,)).detail


def test_rank_that_failed_while_shutting_down_is_the_root_cause() -> None:
    culprit = stopped(1, OVER, exitcode=1, report=PRINTED)
    verdict = judge(end(0, at=1.0, report=LOST), culprit)
    assert (verdict.root, verdict.rule) == (culprit, "own_failure")


def traceback(function: str, line: int) -> ErrorReport:
    """Return the exception that a rank raised in a collective."""
    text = (
        "Traceback (most recent call last):",
        f'  File "/srv/train.py", line {line}, in <module>',
        f"    dist.{function}(x)",
        '  File "/x/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper',
        "    return func(*args, **kwargs)",
        f'  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 3, in {function}',
        "    work.wait()",
        "RuntimeError: Timed out waiting 10000ms for recv operation to complete",
    )
    report = error("Timed out waiting 10000ms for recv operation to complete", "RuntimeError")
    return report._replace(lines=text, where=f"/srv/train.py:{line}")


def test_timed_out_collectives_are_compared_by_traceback() -> None:
    """The suspect is the same whichever rank exits first."""
    reduces, waits = traceback("all_reduce", 10), traceback("barrier", 11)
    for order in ((0, 1, 2), (2, 1, 0)):
        ends = [
            end(rank, at=float(order[rank]), report=waits if rank == 1 else reduces)
            for rank in range(3)
        ]
        verdict = judge(*ends)
        assert verdict.root.rank == 1
        assert verdict.says == (
            "the ranks were in different collectives: rank 1 in barrier (train.py:11), "
            "ranks 0, 2 in all_reduce (train.py:10)"
        )


def test_report_on_different_collectives_describes_one_blamed_rank() -> None:
    """Otherwise the report shows one rank's exception and another rank's pid."""
    reduces, waits = traceback("all_reduce", 10), traceback("barrier", 11)
    ends = [end(rank, at=2.0, report=reduces) for rank in (0, 1)]
    verdict = judge(*ends, end(2, at=3.0, report=waits))
    assert verdict.root.rank == verdict.symptom.rank == 2
    tied = judge(end(0, at=2.0, report=reduces), end(1, at=1.0, report=waits))
    assert tied.certainty is Certainty.UNKNOWN
    assert tied.root.rank == tied.symptom.rank == 1


def test_no_rank_is_blamed_if_ranks_were_in_a_broadcast_and_another_call() -> None:
    """A broadcast returns at its root before the other ranks have entered it."""
    sends, waits = traceback("broadcast", 10), traceback("barrier", 11)
    ends = [end(rank, at=2.0, report=sends) for rank in (0, 1)]
    verdict = judge(*ends, end(2, at=3.0, report=waits))
    assert verdict.certainty is Certainty.UNKNOWN
    assert verdict.ranks == (0, 1, 2)


def in_init(rank: int, missing: int) -> Failure:
    """Return a worker that waited in vain for a rank in init_process_group."""
    key = f"/default_pg/0//cpu//0/{missing}"
    message = f"wait timeout after 8000ms, keys: {key}"
    return end(rank, report=error(message, "torch.distributed.DistStoreError"))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
@pytest.mark.parametrize("wrong", [0, 2], ids=["all are rank 1", "rank 2 is rank 1"])
def test_rank_that_waits_for_itself_called_itself_another_rank(
    order: tuple[int, ...], wrong: int
) -> None:
    found = diagnose([in_init(rank, wrong) for rank in order], (), 3)
    assert found.ranks == (wrong,)
    assert found.verdict.certainty is Certainty.PROVEN
    assert found.headline().startswith(
        f"rank {wrong} called init_process_group with a different rank; then ranks 0-2 raised "
    )


def test_rank_that_others_wait_for_in_init_is_not_said_to_have_a_different_rank() -> None:
    late = diagnose([in_init(1, 0), in_init(2, 0), stopped(0, READS)], (), 3)
    assert late.verdict.rule == "elsewhere"
    assert diagnose([in_init(1, 0), in_init(2, 0)], (), 3).verdict.rule == "first_victim"


def test_rank_that_never_joined_the_group_is_blamed() -> None:
    """It may be trying to reach the store at an address of its own."""
    joins = WorkerState(" in init_process_group (a.py:3)", (), True)
    verdict = judge(in_init(0, 1), stopped(1, joins), world_size=2)
    assert (verdict.rule, verdict.ranks, verdict.certainty) == (
        "absent_rank", (1,), Certainty.LIKELY,
    )  # fmt: skip
    assert verdict.detail == "rank 1 was in init_process_group (a.py:3)"
    evidence = "it was trying to connect to h:1; relight had set MASTER_ADDR=g and MASTER_PORT=2"
    elsewhere = stopped(1, joins)._replace(evidence=evidence)
    assert judge(in_init(0, 1), elsewhere, world_size=2).detail == evidence


def differing(rank: int, other: int, aspects: str) -> Failure:
    """Return a worker that raised torch's report on collectives that don't match."""
    found = (
        f"Rank {rank} is running collective: F(OpType=X), but Rank {other} is running collective"
    )
    text = f"Detected mismatch between collectives on ranks. {found}: F(OpType=Y)."
    text += f"Collectives differ in the following aspects: \t {aspects}"
    return end(rank, report=error(text, "RuntimeError"))


def test_rank_that_all_others_name_differs_from_them() -> None:
    """Every rank raises torch's message, and none is proven to be wrong."""
    dtypes = "Tensor Tensor dtypes: Floatvs Double"
    ends = [differing(0, 2, dtypes), differing(1, 2, dtypes), differing(2, 0, dtypes)]
    verdict = judge(*ends)
    assert (verdict.ranks, verdict.certainty) == ((2,), Certainty.LIKELY)
    assert verdict.says == (
        "rank 2 differed from ranks 0-1 in a collective: Tensor dtypes: Float vs Double "
        "(rank 2 vs rank 0)"
    )
    alone = judge(differing(0, 1, "Op type: ALLREDUCEvs BARRIER"), stopped(1, REDUCES))
    assert (alone.ranks, alone.certainty) == ((0, 1), Certainty.UNKNOWN)
    assert alone.says == (
        "the collectives of ranks 0-1 differ: Op type: ALLREDUCE vs BARRIER (rank 0 vs rank 1)"
    )


def test_ranks_that_chose_different_ports_are_listed() -> None:
    """The port that each rank expects may be set by the script, for example to a random one."""
    evidence = f"relight had set MASTER_ADDR=h and MASTER_PORT=1{blame.OWN_PORT}"
    ends = [
        end(rank, report=error(f"The client socket has timed out after 6000ms while trying to "
            f"connect to (127.0.0.1, {port}).", "DistNetworkError"), evidence=evidence)
        for rank, port in ((0, 5001), (1, 5002))
    ]  # fmt: skip
    verdict = judge(*ends)
    assert verdict.why == (
        "the ranks need one MASTER_ADDR and MASTER_PORT, but tried 127.0.0.1:5001 (rank 0), "
        "127.0.0.1:5002 (rank 1)"
    )
    assert verdict.root.evidence == "relight had set MASTER_ADDR=h and MASTER_PORT=1"
    # A rank that was stopped while it was trying has no message, only evidence.
    trying = ends[1]._replace(report=error("Socket Timeout", "DistNetworkError"))
    assert judge(ends[0], trying).why == evidence


def test_exit_function_that_a_rank_was_in_is_named() -> None:
    uploads = WorkerState(" in upload (a.py:9)", (), False, in_program=False)
    verdict = judge(end(0, report=LOST), stopped(1, uploads), world_size=2)
    assert verdict.says == "rank 1 had left the script and was in upload (a.py:9)"


def test_rank_that_reaches_no_other_store_is_likely_the_cause() -> None:
    """The store may be served by another rank that was late."""
    message = "The client socket has timed out after 3000ms while trying to connect to (h, 5001)."
    store = "the process group uses another store, at h:1"
    failed = end(1, report=error(message, "DistNetworkError"), evidence=store)
    verdict = judge(failed, stopped(0, READS), world_size=2)
    assert (verdict.rule, verdict.ranks or (verdict.root.rank,), verdict.certainty) == (
        "other_store", (1,), Certainty.LIKELY,
    )  # fmt: skip


def test_earlier_errors_of_victims_are_part_of_the_proof() -> None:
    failed = end(0, at=3.0, report=error())
    verdict = judge(failed, end(1, at=2.0, report=LOST), end(2, at=2.5, report=LOST))
    assert (verdict.root, verdict.certainty) == (failed, Certainty.PROVEN)
    assert verdict.why == "ranks 1-2 only reported a lost or late peer"


def test_majority_in_a_collective_is_not_blamed() -> None:
    calls = ["barrier", "all_gather", *["all_reduce"] * 3]
    ends = [end(rank, report=traceback(name, 10 + len(name))) for rank, name in enumerate(calls)]
    verdict = judge(*ends)
    assert (verdict.certainty, verdict.ranks) == (Certainty.LIKELY, (0,))


def test_no_rank_is_blamed_if_as_many_were_in_each_collective() -> None:
    ends = [end(0, report=traceback("all_reduce", 10)), end(1, report=traceback("barrier", 11))]
    verdict = judge(*ends)
    assert (verdict.certainty, verdict.ranks) == (Certainty.UNKNOWN, (0, 1))


def test_gloo_abort_without_location_is_reported_as_tensor_size_mismatch() -> None:
    """Gloo aborts the rank that was sent too much, and the others lose their connection to it."""
    text = "[enforce fail at /x/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes."
    aborted = error(f"{text} 1336 vs 668", "EnforceNotMet", FailureKind.CRASHED, "")
    lost = traceback("all_reduce", 8)._replace(message=LOST.message)
    ends = end(0, -signal.SIGABRT, report=aborted), end(1, at=0.3, report=lost)
    verdict = judge(*ends, world_size=3)
    assert verdict.says == (
        "ranks passed tensors of different sizes or types to all_reduce (train.py:8): "
        "rank 0 expected 668 bytes from rank 1 and received 1336"
    )
    assert verdict.ranks == (0, 1)
    assert judge(*ends).why == "rank 0 expected 668 bytes and received 1336"


def test_ranks_that_blame_each_other_leave_the_root_cause_unknown() -> None:
    verdict = judge(end(1, at=1.0, report=WAITED), stopped(0, REDUCES), stopped(2, REDUCES))
    assert (verdict.root.rank, verdict.certainty) == (1, Certainty.UNKNOWN)


def test_waiting_for_a_nonexistent_rank_is_a_proven_cause() -> None:
    text = "wait timeout after 8000ms, keys: /default_pg/0//cpu//0/2"
    failure = end(0, report=error(text, "DistStoreError"))
    verdict = judge(failure, world_size=2)
    assert verdict.why == "waiting for rank 2, but this job has only ranks 0-1"
    assert verdict.certainty is Certainty.PROVEN
    assert judge(failure, world_size=3).certainty is Certainty.UNKNOWN


def test_first_exception_is_named_if_all_ranks_were_stopped() -> None:
    quiet, loud = stopped(0, at=1.0), stopped(1, exitcode=1, report=error())
    verdict = judge(quiet, loud)
    assert (verdict.root, verdict.certainty) == (loud, Certainty.UNKNOWN)


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection "
        "closed by peer [127.0.0.1]:14259. This is typically caused by a remote worker crashing.",
        "RuntimeError: [/x/gloo/transport/tcp/pair.cc:537] Read error [::1]:1: Connection reset "
        "by peer.",
        "RuntimeError: [/x/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation",
        "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms",
        "DistStoreError: wait timeout after 3000ms, keys: /default_pg/0//cpu//0/1",
        "DistStoreError: Timed out after 5 seconds waiting for clients. 1/2 clients joined.",
        "DistNetworkError: The client socket has timed out after 4000ms while trying to connect",
        "DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network "
        "error, NCCL version 2.27.3\nncclRemoteError: A call failed possibly due to a network",
        "DistBackendError: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(1)",
        "torch.distributed.DistNetworkError: Socket Timeout",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
)
def test_message_about_lost_peer_marks_rank_as_victim(message: str) -> None:
    """The messages are those of torch, NCCL and the operating system."""
    type_, _, text = message.partition(": ")
    assert role(end(report=error(text, type_))) is Role.VICTIM


def test_timeout_raised_in_torch_is_blamed_on_a_peer() -> None:
    line = '  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 3, in barrier'
    report = error("Socket Timeout", "RuntimeError")
    assert blame.determine(report._replace(lines=(line,)), ()) is blame.Blame.PEER
    assert blame.determine(report, ()) is blame.Blame.NOBODY


def test_connection_lost_by_another_library_is_not_blamed_on_a_peer() -> None:
    report = error("Connection closed by peer", "RedisError")
    assert blame.determine(report, ()) is blame.Blame.CONNECTION


@pytest.mark.parametrize(
    "message",
    [
        "EOFError: Ran out of input",
        "RuntimeError: CUDA error: device-side assert triggered",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "FileNotFoundError: [Errno 2] No such file or directory: 'peer.txt'",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x4 and 5x6)",
        "TimeoutError: the data set is locked",
        "RuntimeError: Timed out waiting 5000ms for NFS lock /ckpt/.lock",
        "RuntimeError: Socket Timeout",
        "RuntimeError: wait timeout after 5000ms",
    ],
)
def test_error_unrelated_to_peers_is_the_ranks_own_failure(message: str) -> None:
    type_, _, text = message.partition(": ")
    assert role(end(report=error(text, type_))) is Role.OWN


@pytest.mark.parametrize(
    ("end", "place", "expected"),
    [
        (WorkerEnd(1, 0, 4.0, 0), "", True),
        (WorkerEnd(1, 0, 6.0, 0), "", False),
        (WorkerEnd(1, 0, 5.1, TERM), " has ended (zombie)", True),
        (WorkerEnd(1, 0, 5.1, TERM), SHUTTING_DOWN, True),
        (WorkerEnd(1, 0, 5.1, TERM), " in read (data.py:41)", False),
        (WorkerEnd(1, 0, 5.1, TERM), "", False),
    ],
    ids=["before", "after", "had exited", "was leaving", "was working", "no stack"],
)
def test_rank_that_exited_with_0_before_the_stop_counts_as_succeeded(
    end: WorkerEnd, place: str, expected: bool
) -> None:
    """The first failure is at 5 s. A process closes its connections before it can be reaped, so a
    rank that fails because of that may be reaped first.
    """
    doing = WorkerState(place, (), False) if place else None
    assert causes.had_succeeded(end, 5.0, doing) is expected
    assert not causes.had_succeeded(end._replace(exitcode=1), 5.0, doing)


@pytest.mark.parametrize(
    "message",
    [
        "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != "
        "nullptr. Unable to find address for: eth99",
        "ncclSystemError: System call failed.\nLast error:\nBootstrap : no socket interface found",
    ],
)
def test_missing_network_interface_blames_nobody(message: str) -> None:
    """GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names an interface of another machine."""
    report = ErrorReport(FailureKind.RAISED, "RuntimeError", message, "", "", ())
    assert blame.determine(report, ()) is blame.Blame.NOBODY
