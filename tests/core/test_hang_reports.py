"""Which rank is the suspect in a hang, and how the report names it."""

import pytest
from test_stack_groups import LIB, MAIN, MODULE, READ, REDUCE, process
from worker_ends import WAITED, error

from relight.core.diagnosis import hang_text
from relight.core.diagnosis.stack_text import (
    Frame,
    ProcessStack,
    ThreadStack,
    doing,
    groups,
)
from relight.core.failure import ErrorReport, Failure, FailureKind

RECEIVE = (Frame("/home/u/net.py", 7, "receive"), MAIN, MODULE)
"""An unrecognisable wait for a peer, in the user's own code."""


def suspects(*stacks: ProcessStack) -> tuple[int, ...]:
    failures = [
        Failure(rank, rank, "h", 1, -15, 0.0, 15, None, (), "", "", doing=doing(stack))
        for rank, stack in enumerate(stacks)
    ]
    hang = hang_text.diagnose(failures, "no rank has made progress for 5 min")
    assert hang is not None
    shown = groups(dict(enumerate(stacks)))  # as in `relight stacks`
    assert shown[0].ranks == (hang.root.rank, *(each.rank for each in hang.same))
    return shown[0].ranks


@pytest.mark.parametrize("state", ["T", "t", "D"])
def test_stopped_or_blocked_rank_is_the_suspect_in_a_tie(state: str) -> None:
    assert suspects(process(*RECEIVE), process(*READ, state=state)) == (1,)


def test_blocked_ranks_are_suspected_before_a_smaller_group() -> None:
    halted = process(*READ, state="D")
    assert suspects(process(*RECEIVE), halted, halted) == (1, 2)


def test_rank_that_never_entered_the_collective_is_the_suspect() -> None:
    assert suspects(process(*REDUCE), process(*REDUCE), process(*READ)) == (2,)


def test_rank_receiving_from_a_socket_is_not_the_suspect_in_a_tie() -> None:
    """Another process has to send, possibly the other rank."""
    receiving = process(*RECEIVE, waits_in="recvfrom")
    assert suspects(receiving, process(*READ)) == (1,)
    assert suspects(process(*READ), process(*READ), receiving) == (2,)


def test_ranks_waiting_for_each_other_may_all_cause_the_hang() -> None:
    """Each rank waits for the others in a different call, and no call has fewer ranks than the
    rest.
    """
    send = (Frame("/x/torch/distributed/distributed_c10d.py", 9, "send"), MAIN, MODULE)
    failures = [
        Failure(rank, rank, "h", 1, -15, 0.0, 15, None, (), "", "", doing=doing(process(*frames)))
        for rank, frames in enumerate((REDUCE, send, READ))
    ]
    tied = hang_text.diagnose(failures[:2], "")
    assert tied is not None and tied.ranks == (0, 1)
    alone = hang_text.diagnose(failures, "")
    assert alone is not None and alone.ranks == (2,)


def test_report_on_ranks_waiting_for_each_other_says_whose_stack_it_shows() -> None:
    send = (Frame("/x/torch/distributed/distributed_c10d.py", 9, "send"), MAIN, MODULE)
    lines = rendered(stopped(0, *REDUCE), stopped(1, *send))
    assert lines[0].startswith("ranks are waiting for each other in different calls: rank 0 in ")
    assert lines[1].startswith("  rank 0 on ")
    assert "the stack of rank 0:" in lines


def test_hang_report_shows_the_exception_that_a_waiting_rank_handles() -> None:
    handled = "IndexError: list index out of range"
    seen = doing(process(*REDUCE))._replace(handling=handled, handling_where="/srv/a.py:7 in f")
    handles = stopped(0, *REDUCE)._replace(doing=seen)
    lines = rendered(handles, stopped(1, *READ))
    assert f"  rank 0 was handling {handled} (a.py:7 in f)" in lines
    lines = rendered(handles, handles._replace(rank=1))
    assert not any("was handling" in line for line in lines)
    lost = seen._replace(handling="RuntimeError: Connection reset by peer")
    lines = rendered(handles._replace(doing=lost), stopped(1, *READ))
    assert not any("handling" in line for line in lines)


def test_rank_ahead_of_a_broadcast_is_not_blamed() -> None:
    """A broadcast returns at its root before the other ranks have received anything, so the rank in
    the minority may be right.
    """
    broadcast = (Frame("/x/torch/distributed/distributed_c10d.py", 9, "broadcast"), MAIN, MODULE)
    hang = hang_text.diagnose([stopped(rank, *broadcast) for rank in (0, 1)], "")
    assert hang is not None and not hang.is_unknown
    ahead = stopped(2, *REDUCE)
    hang = hang_text.diagnose([stopped(0, *broadcast), stopped(1, *broadcast), ahead], "")
    assert hang is not None and hang.is_unknown
    assert hang.ranks == (0, 1, 2)


def test_certainty_of_a_hang_agrees_with_its_headline() -> None:
    """The console shows the headline, and the JSON report both."""
    halted = stopped(0, *READ)._replace(doing=doing(process(*READ, state="T")))
    raised = stopped(0, Frame(f"{LIB}/threading.py", 1590, "_shutdown"), report=error())
    for failures, certainty, doubt in (
        ([stopped(0, *READ)], "proven", ""),
        ([halted, stopped(1, *REDUCE)], "proven", ""),
        ([raised, stopped(1, *RECEIVE)], "proven", ""),
        ([stopped(0, *READ), stopped(1, *REDUCE)], "likely", "probably "),
        ([stopped(0, *READ), stopped(1, *RECEIVE)], "not known", "perhaps "),
        ([halted, halted._replace(rank=1, doing=doing(process(*RECEIVE, state="T")))],
         "not known", "perhaps "),
    ):  # fmt: skip
        hang = hang_text.diagnose(failures, "no progress")
        assert hang is not None and hang.certainty.value == certainty
        assert hang.headline().startswith(f"{doubt}rank 0 ")


def test_rank_kept_alive_by_a_thread_names_it() -> None:
    """Only the main thread has left the script."""
    beat = (Frame(f"{LIB}/threading.py", 327, "Condition.wait"), Frame("/home/u/hb.py", 9, "beat"))
    library = (Frame(f"{LIB}/site-packages/tqdm/_monitor.py", 69, "run"),)
    seen = process(Frame(f"{LIB}/threading.py", 1590, "_shutdown"))
    threads = (
        *seen.threads,
        *(ThreadStack(n, "", "", False, frames) for n, frames in enumerate((beat, library), 2)),
    )
    assert doing(seen._replace(threads=threads)).place == (
        " in _shutdown (threading.py:1590), while another thread is in wait (hb.py:9)"
    )
    busy = process(*READ)
    assert doing(busy._replace(threads=(*busy.threads, *threads[1:]))).place.endswith("py:41)")


def stopped(rank: int, *frames: Frame, report: ErrorReport | None = None) -> Failure:
    seen = doing(process(*frames))
    return Failure(rank, rank, "h", 1, -15, 0.0, 15, report, (), "", "", doing=seen)


def rendered(*failures: Failure, succeeded: tuple[int, ...] = ()) -> list[str]:
    hang = hang_text.diagnose(failures, "no progress", succeeded)
    assert hang is not None
    return hang.render(formed_at=0, ended="now", verdict="over")


def test_rank_that_raised_and_then_hung_in_thread_shutdown_is_the_cause() -> None:
    """The rank is the cause even if others time out first and also wait for a thread."""
    shutdown = Frame("/usr/lib/python3.11/threading.py", 1590, "_shutdown")
    culprit = stopped(1, shutdown, report=error())
    lines = rendered(stopped(0, *READ), culprit, stopped(2, shutdown, report=WAITED))
    assert lines[:2] == [
        "rank 1 raised ValueError: bad batch, and hangs in _shutdown (threading.py:1590)",
        "  /srv/job/train.py:12 in step",
    ]
    assert "ValueError: bad batch" in lines
    assert hang_text.hung(culprit) == (
        "raised ValueError: bad batch, and hangs in _shutdown (threading.py:1590)"
    )


def test_exception_printed_by_rank_that_kept_running_is_not_the_cause() -> None:
    lines = rendered(stopped(0, *REDUCE, report=error()), stopped(1, *READ))
    assert lines[0] == "probably rank 1 hangs in read (data.py:41)"


@pytest.mark.parametrize(
    "header",
    ["Exception in thread lr:", "Process Reader-1:", "Task exception was never retrieved"],
)
def test_hang_report_shows_exception_that_ended_a_thread(header: str) -> None:
    """The rank may be waiting for that thread."""
    report = error(kind=FailureKind.PRINTED)
    ended = stopped(0, *READ, report=report._replace(lines=(header, *report.lines)))
    lines = rendered(ended._replace(printed_s=62.0), stopped(1, *REDUCE))
    assert lines[1] == (
        f"  1 min 2 s before this report, rank 0 printed: {header.rstrip(':')}: ValueError: bad "
        "batch (train.py:12 in step)"
    )
    ignored = report._replace(lines=("Exception ignored in: <Reader>", *report.lines))
    without = rendered(stopped(0, *READ, report=ignored), stopped(1, *REDUCE))
    assert [lines[0], *lines[2:4]] == without[:3]
    assert not any("printed" in line for line in rendered(stopped(0, *READ, report=ignored)))


def test_hang_suspect_is_labelled_a_guess_if_ranks_are_evenly_split() -> None:
    lines = rendered(stopped(0, *READ), stopped(1, *RECEIVE))
    assert lines[0] == "perhaps rank 0 hangs in read (data.py:41)"
    assert (
        "  this is a guess: just as many ranks are elsewhere, and neither group is waiting for "
        "the other"
    ) in lines
    for others in ([stopped(1, *REDUCE)], [stopped(1, *RECEIVE), stopped(2, *RECEIVE)]):
        likely = "probably rank 0 hangs in read (data.py:41)"
        assert rendered(stopped(0, *READ), *others)[0] == likely
    hang = hang_text.diagnose([stopped(0, *READ), stopped(1, *REDUCE)], "no progress", ())
    assert hang is not None and hang.why == "no progress; rank 1 is waiting"
    assert rendered(stopped(0, *READ))[0] == "rank 0 hangs in read (data.py:41)"


def test_stopped_rank_is_reported_as_a_fact() -> None:
    halted = stopped(1, *READ)._replace(doing=doing(process(*READ, state="T")))
    lines = rendered(stopped(0, *REDUCE), halted)
    assert lines[0] == "rank 1 is stopped (SIGSTOP) in read (data.py:41)"


def test_hang_report_lists_exited_ranks_separately() -> None:
    assert "all ranks are at the same place" in rendered(stopped(0, *READ))
    lines = rendered(stopped(0, *READ), succeeded=(2, 1))
    assert "  ranks 1-2 had already finished (exit code 0)" in lines
    assert "all ranks are at the same place" not in lines


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("S", "hangs in read (data.py:41)"),
        ("D", "is uninterruptible (state D) in read (data.py:41), system call read"),
    ],
)
def test_hang_report_names_location_of_the_hung_rank(state: str, text: str) -> None:
    seen = doing(process(*READ, state=state, waits_in="read" if state == "D" else "futex"))
    failure = Failure(2, 2, "h", 1, -15, 0.0, 15, None, (), "", "", doing=seen)
    assert hang_text.hung(failure) == text


def test_hang_report_says_that_location_is_unknown() -> None:
    failure = Failure(2, 2, "h", 1, -15, 0.0, 15, None, (), "", "")
    assert hang_text.hung(failure) == "hangs: location unknown"
