"""Many worker exits, one root cause, and a report that fits on a terminal."""

import json
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worker_ends import (
    ABRT,
    AT_EXIT,
    CLEANS_UP,
    CRASHED,
    INT,
    KILL,
    LOST,
    PRINTED,
    READS,
    REDUCES,
    RESET,
    SEGV,
    TERM,
    WAITED,
    end,
    error,
)

from relight.agent import failure_report
from relight.agent.agent_config import AgentConfig
from relight.core.diagnosis.causes import Certainty, Role, Verdict, role
from relight.core.diagnosis.excerpts import count_rows, cut
from relight.core.diagnosis.failure_text import (
    Diagnosis,
    describe_exit,
    diagnose,
    ended_thread,
    repeatable,
    shared,
    what_happened,
)
from relight.core.failure import ErrorReport, Failure, FailureKind, WorkerState
from relight.core.group import restart_decision
from relight.core.group.messages import JobEnded
from relight.core.group.restart_decision import GenerationEnd

IMPLICIT = "During handling of the above exception, another exception occurred:"

LOADED = (PRINTED.lines[0], '  File "/srv/job/train.py", line 3, in load', PRINTED.lines[1])


def test_lost_connection_in_the_list_of_consequences_has_one_line() -> None:
    lost = error("step failed")._replace(cause="RuntimeError\nConnection closed by peer")
    lines = diagnose([end(0, report=error()), end(1, at=1.0, report=lost)]).render(
        formed_at=0, ended="now", verdict="over"
    )
    assert "\n" not in "".join(lines)
    assert any("raised ValueError: step failed after RuntimeError" in line for line in lines)


def test_report_points_out_that_the_context_of_alike_exceptions_is_hidden() -> None:
    """A rank that only lost its connection may have raised the same exception as the cause."""
    report = error("step 3 failed", "StepFailed")._replace(
        source='raise StepFailed(f"step {i} failed") from None'
    )
    alone, alike = [end(0, report=report)], [end(r, report=report) for r in (0, 2)]
    hint = "from None hides the reason"
    for ends, is_shown in ((alone, False), (alike, True)):
        lines = diagnose(ends).render(formed_at=0, ended="now", verdict="over")
        assert any(line.startswith(f"  {hint}") for line in lines) == is_shown


def test_identical_failures_are_reported_once() -> None:
    """Ranks that failed in the same way share a cause, even if numbers in their messages differ."""
    ends = [end(r, at=r / 10, report=error(f"rank {r} at 0x7f{r}")) for r in (3, 1, 2)]
    other = end(0, at=9.0, report=error("bad batch", where="/srv/job/train.py:99"))
    diagnosis = diagnose([*ends, other])
    assert diagnosis.root.rank == 1
    assert [f.rank for f in diagnosis.same] == [2, 3]
    assert diagnosis.consequences == (other,)
    text = diagnosis.render(formed_at=0, ended="now", verdict="over")
    assert text[0] == "ranks 1-3 raised ValueError: rank 1 at 0x7f1 (rank 1 shown)"
    assert text[3].startswith("  first rank 1 on vm: ")


def wrapped(rank: int, cause: str, **known: Any) -> Failure:
    """A rank whose exception wraps another one."""
    return end(rank, report=error("step 4 failed", "StepError")._replace(cause=cause), **known)


CLOSED = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:{}"


def test_ranks_with_different_causes_are_not_merged() -> None:
    """All ranks wrap their exceptions in the same one, but only one rank failed on its own."""
    victims = [wrapped(rank, CLOSED.format(rank), at=0.5) for rank in (0, 2)]
    diagnosis = diagnose([wrapped(1, "ValueError: label 1000"), *victims])
    assert (diagnosis.ranks, diagnosis.verdict.certainty) == ((1,), Certainty.PROVEN)
    lines = diagnosis.render(formed_at=0, ended="now", verdict="over")
    assert lines[:2] == [
        "rank 1 raised StepError: step 4 failed",
        "  caused by ValueError: label 1000",
    ]
    assert (
        "  ranks 0, 2 (rank 0 shown): 0.5 s later, raised StepError: step 4 failed after "
        "RuntimeError: Connection closed by peer [::1]:0"
    ) in lines


def test_ranks_whose_causes_differ_in_numbers_are_merged() -> None:
    diagnosis = diagnose([wrapped(rank, f"ValueError: label {rank}") for rank in (0, 1)])
    assert diagnosis.ranks == (0, 1)
    lines = diagnosis.render(formed_at=0, ended="now", verdict="over")
    assert lines[:2] == [
        "ranks 0-1 raised StepError: step 4 failed",
        "  caused by ValueError: label 0 (rank 0 shown)",
    ]


def test_ranks_whose_causes_name_different_files_are_merged() -> None:
    """Each rank may miss its own shard; only the type and place of the cause must match."""
    causes = [f"FileNotFoundError: train-{name}.tar" for name in "abc"]
    diagnosis = diagnose([wrapped(rank, cause) for rank, cause in enumerate(causes)])
    assert (diagnosis.ranks, diagnosis.verdict.certainty) == ((0, 1, 2), Certainty.PROVEN)
    lines = diagnosis.render(formed_at=0, ended="now", verdict="over")
    assert lines[:2] == [
        "ranks 0-2 raised StepError: step 4 failed",
        "  caused by FileNotFoundError: train-a.tar (rank 0 shown)",
    ]


@pytest.mark.parametrize(
    ("cause", "certainty"),
    [("KeyError: 'lr'", Certainty.LIKELY), ("ValueError: bad batch 7", Certainty.PROVEN)],
)
def test_cause_is_likely_if_another_rank_wrapped_a_different_exception(
    cause: str, certainty: Certainty
) -> None:
    """Either of them may have failed first."""
    first = wrapped(0, "ValueError: bad batch 3")
    second = wrapped(1, cause, at=0.1)
    assert second.report is not None
    second = second._replace(report=second.report._replace(cause_where="conf.py:4"))
    assert diagnose([first, second]).verdict.certainty is certainty


def test_restart_policy_treats_exceptions_with_different_causes_as_different() -> None:
    first, second = wrapped(0, "ValueError: bad batch 3"), wrapped(0, "KeyError: 'lr'")
    assert repeatable(first) == repeatable(wrapped(0, "ValueError: bad batch 4"))
    assert repeatable(first) != repeatable(second)


def test_stopped_ranks_with_different_exit_codes_are_listed_separately() -> None:
    ends = [end(rank, at=1.0, exitcode=code, stop_signal=TERM) for rank, code in ((1, 3), (2, 4))]
    lines = diagnose([end(report=error()), *ends]).render(formed_at=0, ended="now", verdict="over")
    assert [line for line in lines if "exited with code" in line] == [
        "  rank 1: stopped by the agent (SIGTERM), then exited with code 3",
        "  rank 2: stopped by the agent (SIGTERM), then exited with code 4",
    ]


def test_time_of_a_rank_that_is_late_is_that_of_the_first_error() -> None:
    """The report says so, because the rank itself was stopped later."""
    late = end(1, at=2.0, exitcode=-TERM, stop_signal=TERM, stopping_s=0.5, doing=READS)
    lines = diagnose([end(report=WAITED), late]).render(formed_at=0, ended="now", verdict="over")
    assert any(re.match(r"  rank 1 on .*; first error now, after 0\.\d s$", line) for line in lines)


def test_merged_victims_are_listed_with_the_rank_that_the_numbers_belong_to() -> None:
    victims = [
        end(rank, report=error(CLOSED.partition(": ")[2].format(rank), "RuntimeError"))
        for rank in (0, 2)
    ]
    lines = diagnose([end(1, at=-1.0, report=error()), *victims]).render(
        formed_at=0, ended="now", verdict="over"
    )
    said = "raised RuntimeError: Connection closed by peer [::1]:0"
    assert f"  ranks 0, 2 (rank 0 shown): 1.0 s later, {said}" in lines
    assert (
        diagnose(victims, (1,))
        .headline()
        .startswith(
            f"probably rank 1: it finished early (exit code 0); then ranks 0, 2 {said} "
            "(rank 0 shown)"
        )
    )


def test_stopped_ranks_that_printed_the_same_are_listed_as_such() -> None:
    """They were exiting for the same reason, such as a missing option."""
    words = "train.py: error: the following arguments are required: --data"
    failed = end(0, 2, words=words, last_lines=(words,))
    told = end(1, -TERM, stop_signal=TERM, words=words, last_lines=(words,))
    lines = diagnose([failed, told]).render(formed_at=0, ended="now", verdict="over")
    assert "  rank 1: printed the same, stopped by the agent (SIGTERM)" in lines


def test_deep_stack_of_a_crash_suggests_a_stack_overflow() -> None:
    frame = '  File "/srv/train.py", line 31 in depth'
    lines = ("Fatal Python error: Segmentation fault", *[frame] * 100, "  ...")
    report = error("Segmentation fault", "fatal error", FailureKind.CRASHED)._replace(lines=lines)
    deep = diagnose([end(0, -SEGV, report=report)])
    hint = "  probably a stack overflow: the stack has more than 100 frames"
    assert hint in deep.render(formed_at=0, ended="now", verdict="over")
    shallow = diagnose([end(0, -SEGV, report=report._replace(lines=lines[:-1]))])
    assert hint not in shallow.render(formed_at=0, ended="now", verdict="over")


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (end(exitcode=-SEGV), "killed by SIGSEGV while being stopped by the agent"),
        (end(exitcode=3), "stopped by the agent (SIGTERM), then exited with code 3"),
        (
            end(report=error(), doing=READS),
            "stopped by the agent, then raised ValueError: bad batch",
        ),
        (
            end(exitcode=-TERM, report=error(), doing=READS, printed_s=0.1, stopping_s=0.5),
            "raised ValueError: bad batch",
        ),
        (
            end(exitcode=-KILL, report=error(), doing=READS, printed_s=0.1, stopping_s=0.5),
            "stopped by the agent, then raised ValueError: bad batch",
        ),
        (
            end(exitcode=-INT, report=error("", "KeyboardInterrupt"), doing=READS),
            "stopped by the agent (SIGTERM), and raised KeyboardInterrupt",
        ),
        # Nothing shows when it printed the exception, and the signal ended it.
        (end(exitcode=-TERM, report=error(), doing=READS), "stopped by the agent (SIGTERM)"),
    ],
)
def test_stopped_rank_is_described_by_how_it_ended(failure: Failure, expected: str) -> None:
    assert describe_exit(failure._replace(stop_signal=TERM)) == expected


def test_failure_has_the_time_of_its_exception() -> None:
    """The worker may have taken seconds to exit after that."""
    root = end(at=10.0, report=error(), printed_s=2.5)
    other = end(1, at=8.0, report=LOST)
    lines = diagnose([root, other]).render(formed_at=5.0, ended="now", verdict="over")
    assert "  on vm: local rank 0, pid 100; now, after 2.5 s" in lines
    assert any(line.startswith("  rank 1: 0.5 s later, raised ") for line in lines)


def test_traceback_of_a_rank_that_is_not_blamed_has_a_title() -> None:
    lines = diagnose([end(report=LOST)], (1,)).render(formed_at=0, ended="now", verdict="over")
    assert lines[lines.index(LOST.lines[0]) - 1] == "the traceback of rank 0:"
    lines = diagnose([end(report=error())]).render(formed_at=0, ended="now", verdict="over")
    assert not any(line.startswith("the traceback of") for line in lines)


def test_exit_after_output_is_not_said_to_be_silent() -> None:
    failure = end(exitcode=12, words="bad mesh '8 by 4'")  # on stdout
    lines = diagnose([failure]).render(formed_at=0, ended="now", verdict="over")
    assert lines[0] == "rank 0 exited with code 12 after printing: bad mesh '8 by 4'"
    assert not any("printed nothing" in line for line in lines)


def test_record_is_suggested_if_only_progress_went_to_stdout() -> None:
    """The script may have sent stderr to a file."""
    lines = diagnose([end(exitcode=1, words="step 2 loss 2.31")]).render(
        formed_at=0, ended="now", verdict="over"
    )
    assert "  it printed nothing to stderr; use @record to report errors that go elsewhere" in lines


def test_cancellation_by_wait_for_is_no_cause() -> None:
    waited = error("", "TimeoutError")._replace(cause="CancelledError")
    lines = diagnose([end(report=waited)]).render(formed_at=0, ended="now", verdict="over")
    assert not any("CancelledError" in line for line in lines)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (end(report=error()), " at /srv/job/train.py:12 in step"),
        (
            end(report=error(), evidence="the file system is full"),
            "; it was at /srv/job/train.py:12 in step",
        ),
        (
            end(0, -TERM, stop_signal=TERM, doing=CLEANS_UP),
            "; the exception came from a.py:7",
        ),
    ],
)
def test_place_in_one_line_is_that_of_the_exception(failure: Failure, expected: str) -> None:
    line = diagnose([failure, end(1, at=0.5, report=LOST)]).headline()
    assert line.partition(" (pid ")[0].endswith(expected)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("Process Process-1:", True),
        ("Process Process-1:2:", True),
        ("Process SpawnProcess-2:", True),
        ("Process ForkPoolWorker-3:", True),
        ("Process failed:", False),
        ("Process shard-3:", False),
    ],
)
def test_child_process_is_recognized_by_its_default_name(before: str, expected: bool) -> None:
    report = PRINTED._replace(lines=(before, *PRINTED.lines))
    assert ended_thread(report) is expected


def test_failure_report_includes_gpu_error() -> None:
    """The GPU error may be from a rank that failed as a consequence, or that has a crash stack of
    its own.
    """
    said = "its GPU 0000:3b:00.0 reported Xid 79 (GPU has fallen off the bus) 0.4 s before"
    for root, line in (
        (end(1, -SEGV)._replace(gpu_error=said), f"  {said}"),
        (end(1, -ABRT, report=CRASHED)._replace(gpu_error=said), f"  {said}"),
        (end(1, report=error("CUDA error: unknown error"))._replace(gpu_error=said), f"  {said}"),
        (end(1, -SEGV), f"  rank 2: {said}"),
    ):
        ends = [root, end(2, 3, at=5.0)._replace(gpu_error="" if root.gpu_error else said)]
        assert diagnose(ends).render(formed_at=0, ended="now", verdict="over")[1] == line


def test_ranks_with_the_same_signal_or_exit_code_share_one_cause() -> None:
    """An exit requested by the agent is a different cause."""
    killed = [end(r, -SEGV) for r in (0, 1)]
    assert len(diagnose(killed).same) == 1
    assert diagnose(killed).headline().startswith("ranks 0-1 were killed by SIGSEGV")
    assert diagnose([end(0, 3), end(1, 4)]).same == ()
    assert diagnose([end(0, 143), end(1, 143, stop_signal=TERM)]).same == ()
    told = [end(r, 4, stop_signal=r * TERM, last_lines=("no /data",)) for r in (0, 1)]
    assert len(diagnose(told).same) == 1


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (end(report=error("")), "raised ValueError"),
        (end(report=error("a\nb")), "raised ValueError: a"),
        (end(report=error("x" * 500)), f"raised ValueError: {'x' * 180}…"),
        (end(report=error("GPU 3 is gone", "", FailureKind.RECORDED)), "reported: GPU 3 is gone"),
        (
            end(report=error("[/a/b/pair.cc:553] Connection closed by peer", "RuntimeError")),
            "raised RuntimeError: Connection closed by peer",
        ),
        (
            end(exitcode=7, report=error()),
            "exited with code 7 after printing: ValueError: bad batch",
        ),
        (
            end(exitcode=7, report=PRINTED, words="no /data"),
            "exited with code 7 after printing: no /data",
        ),
        (end(exitcode=9, report=error(kind=FailureKind.RECORDED)), "raised ValueError: bad batch"),
        (end(exitcode=-2, report=error("", "KeyboardInterrupt")), "raised KeyboardInterrupt"),
        (end(exitcode=-2, report=error()), "was killed by SIGINT: not sent by relight"),
        (end(exitcode=-SEGV, report=CRASHED), "was killed by SIGSEGV"),
        (
            end(exitcode=-6, report=CRASHED),
            "was killed by SIGABRT: fatal error: Segmentation fault",
        ),
        (end(exitcode=-ABRT, report=error(), last_lines=AT_EXIT), "raised ValueError: bad batch"),
        (end(exitcode=-ABRT, report=error(), last_lines=("x",)), "was killed by SIGABRT"),
        (end(exitcode=-ABRT, report=PRINTED, last_lines=AT_EXIT), "was killed by SIGABRT"),
        (end(exitcode=-ABRT, last_lines=AT_EXIT), "was killed by SIGABRT"),
        (end(exitcode=-KILL, evidence="out of memory"), "was killed by SIGKILL: out of memory"),
        (end(exitcode=-TERM), "was killed by SIGTERM: not sent by relight"),
        (
            end(exitcode=-signal.SIGPIPE),
            "was killed by SIGPIPE, probably because it wrote to a pipe or socket without a reader",
        ),
        (end(exitcode=-TERM, stop_signal=TERM), "was killed by SIGTERM"),
        (end(exitcode=137), "exited with code 137 (128 + SIGKILL)"),
        (end(exitcode=130), "exited with code 130"),
        (
            end(exitcode=247),
            "exited with code 247, which is sys.exit(-9), perhaps for a process that was killed "
            "by SIGKILL",
        ),
        (
            end(report=PRINTED, printed_s=2.0, went_on=True),
            "exited with code 1, 2.0 s after printing: ValueError: bad batch",
        ),
        (
            end(report=PRINTED._replace(lines=("ERROR:root:it failed", *PRINTED.lines))),
            "exited with code 1 after printing: ERROR:root:it failed: ValueError: bad batch",
        ),
        (
            end(report=PRINTED._replace(others=(0,))),
            "exited with code 1; none of its output explains why",
        ),
        (
            end(stop_signal=TERM, doing=READS._replace(place=" has ended"), words="no /data"),
            "exited with code 1 after printing: no /data",
        ),
    ],
)
def test_headline_names_an_exception_only_if_it_ended_the_worker(
    failure: Failure, expected: str
) -> None:
    """The headline states only what is certain."""
    assert what_happened(failure) == expected


def test_exception_printed_by_ranks_that_kept_running_is_not_fatal() -> None:
    survivor = end(0, -TERM, 1.0, stop_signal=TERM, report=error("bad batch 7"), went_on=True)
    for other in (end(1, report=error()), end(1, report=error(kind=FailureKind.PRINTED))):
        diagnosis = diagnose([other, survivor._replace(report=error())])
        assert diagnosis.root.rank == 1
        lines = diagnosis.render(formed_at=0, ended="now", verdict="over")
        assert lines[0] == "rank 1 exited with code 1; none of its output explains why"
        assert lines[1].startswith("  on vm: ")
        assert "its last traceback; rank 0 printed it and kept running:" in lines


@pytest.mark.parametrize(
    "survivor",
    [
        end(0, -TERM, 1.0, stop_signal=TERM, report=error("bad tile"), went_on=True),
        # The rank had caught the exception in a function.
        end(0, -TERM, 1.0, stop_signal=TERM, report=error()._replace(lines=LOADED), went_on=True),
        end(0, -TERM, 1.0, stop_signal=TERM, report=error(), went_on=False),
        end(0, -TERM, 1.0, stop_signal=TERM, report=error(), went_on=None),
        end(0, 1, 1.0, report=error(), went_on=True),
    ],
)
def test_exception_is_the_cause_unless_another_rank_survived_it(survivor: Failure) -> None:
    root = diagnose([end(1, report=error()), survivor]).root
    assert (root.rank, what_happened(root)) == (1, "raised ValueError: bad batch")


@pytest.mark.parametrize(
    ("failure", "shows"),
    [
        (end(report=PRINTED), True),
        (end(report=PRINTED, printed_s=1.0), True),
        (end(report=PRINTED, printed_s=2.0, went_on=True), True),  # torch is slow to shut down
        (end(report=PRINTED, printed_s=9.0), False),
        (end(exitcode=-KILL, report=PRINTED), False),
        (end(report=PRINTED, words="no /data"), False),
    ],
)
def test_report_shows_location_of_possibly_fatal_exception(failure: Failure, shows: bool) -> None:
    lines = diagnose([failure]).render(formed_at=0, ended="now", verdict="over")
    assert (
        any(line.startswith("  last traceback at /srv/job/train.py:12") for line in lines) == shows
    )


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (end(exitcode=7), 7),
        (end(exitcode=-40), 168),
        (end(exitcode=-TERM, stop_signal=TERM, report=error()), 1),
        (end(exitcode=-ABRT, report=error(), last_lines=AT_EXIT), 1),
        (end(exitcode=-ABRT, last_lines=AT_EXIT), 134),
        (end(exitcode=-SEGV, stop_signal=TERM, report=CRASHED), 139),
        (end(exitcode=9, report=error(kind=FailureKind.RECORDED)), 9),
    ],
)
def test_job_exits_with_code_of_root_cause(failure: Failure, expected: int) -> None:
    """The root cause would have had this exit code if the agent hadn't stopped it first."""
    assert diagnose([failure]).exit_code == expected


def test_failure_report_sections_have_a_fixed_order() -> None:
    """The order is: failure, location, rank and time, cause, consequences."""
    root = end(3, at=303.5, report=error(), log="/srv/logs/3/stderr.log")
    others = [
        end(0, -TERM, 304.0, stop_signal=TERM),
        end(1, 1, 303.9, stop_signal=TERM, report=LOST),
        end(2, -KILL, 304.0, stop_signal=KILL),
        end(4, -TERM, 304.0, stop_signal=TERM),
    ]
    lines = diagnose([root, *others]).render(formed_at=0.5, ended="11:42:07", verdict="the end")
    assert lines == [
        "rank 3 raised ValueError: bad batch",
        "  /srv/job/train.py:12 in step",
        "    step(batch)",
        "  on vm: local rank 3, pid 103; 11:42:07, after 5 min 3 s",
        "",
        "Traceback (most recent call last):",
        "ValueError: bad batch",
        "",
        "other ranks:",
        "  rank 1: 0.4 s later, raised RuntimeError: Connection reset by peer",
        "  ranks 0, 4: stopped by the agent (SIGTERM)",
        "  rank 2: stopped by the agent (SIGKILL)",
        "log: /srv/logs/3/stderr.log",
        "exit code 1; the end",
    ]


def test_succeeded_ranks_are_not_blamed_for_a_connection_error_elsewhere() -> None:
    """Nothing shows which process the connection was to."""
    failure = end(3, report=error("shard 5: reset by object store", "ConnectionResetError"))
    found = diagnose([failure], (0, 1, 2))
    assert found.render(formed_at=0, ended="now", verdict="over")[:2] == [
        "rank 3 raised ConnectionResetError: shard 5: reset by object store",
        "  the connection may have been to ranks 0-2, which had left the script",
    ]
    assert (found.root, found.verdict.certainty) == (failure, Certainty.UNKNOWN)


def test_rank_that_exited_on_its_own_keeps_its_exit_code() -> None:
    """The exit code is kept even if the rank was reaped after the other ranks had been asked to
    stop.
    """
    lost = end(1, at=2.0, report=RESET)
    gone = WorkerState(" has ended (zombie)", (), False, in_program=False)
    for exitcode, code in ((-SEGV, 139), (7, 7)):
        ended = end(
            0, exitcode, at=2.1, stop_signal=TERM, stopping_s=0.1, doing=gone, words="no data"
        )
        found = diagnose([lost, ended])
        assert (found.root, found.exit_code) == (ended, code)
        assert found.headline().startswith(f"rank 0 {what_happened(ended)}")
        assert what_happened(ended).endswith(" after printing: no data")


def test_consequences_at_different_times_show_both() -> None:
    followed = [end(1, at=1.2, report=LOST), end(2, at=3.0, report=LOST)]
    lines = diagnose([end(0, at=1.0, report=error()), *followed]).render(
        formed_at=0, ended="now", verdict="over"
    )
    assert any(line.startswith("  ranks 1-2: 0.2 s to 2.0 s later, raised ") for line in lines)


def test_report_has_the_time_of_the_first_error() -> None:
    """The rank that is blamed may end much later, because it is late or slow to exit."""
    late = stopped_at(5.0)
    found = diagnose([end(0, at=1.0, report=LOST), late])
    assert (found.root, found.first_sign.rank) == (late, 0)
    lines = found.render(formed_at=0, ended="now", verdict="over")
    assert any(
        line.startswith("  rank 1 on ") and line.endswith("now, after 1.0 s") for line in lines
    )


def stopped_at(at: float) -> Failure:
    return end(1, -TERM, at=at, stop_signal=TERM, doing=READS)


def test_same_exception_about_files_in_different_directories_is_merged() -> None:
    ends = [
        end(rank, report=error(f"No such file: '/tmp/job-{name}/x.bin'"))
        for rank, name in enumerate(("abc", "xyz"))
    ]
    assert diagnose(ends).ranks == (0, 1)


def test_output_of_another_process_is_shown_with_the_exception_it_caused() -> None:
    for report in (
        error("DataLoader worker (pid 7) exited unexpectedly with exit code 3.", "RuntimeError"),
        error("[Errno 32] Broken pipe", "BrokenPipeError"),
    ):
        failure = end(report=report, words="decoder: licence has expired")
        lines = diagnose([failure]).render(formed_at=0, ended="now", verdict="over")
        assert "  before that, it printed: decoder: licence has expired" in lines[:3]
    failure = end(report=error(), words="decoder: licence has expired")
    lines = diagnose([failure]).render(formed_at=0, ended="now", verdict="over")
    assert not [line for line in lines if "before that" in line]


def test_report_says_that_a_signal_handler_interrupted_the_line() -> None:
    frames = tuple(
        f'  File "{file}", line 7, in f'
        for file in ("/srv/train.py", "/x/torch/utils/data/_utils/signal_handling.py")
    )
    report = error("DataLoader worker (pid 7) is killed by signal: Killed.", "RuntimeError")
    failure = end(report=report._replace(lines=frames))
    lines = diagnose([failure]).render(formed_at=0, ended="now", verdict="over")
    assert (
        "  torch detected this in a signal handler, which can interrupt the script at any line"
        in (lines)
    )


@pytest.mark.parametrize(
    ("source", "caller", "expected"),
    [
        ("raise ValueError(x)", "/srv/job/train.py", True),
        ("raise ValueError(x)", "/lib/python3.11/site-packages/torch/nn.py", False),
        ("x['lr']", "/srv/job/train.py", False),
    ],
    ids=["check", "called by a library", "no check"],
)
def test_report_with_long_traceback_names_the_caller_of_the_check(
    source: str, caller: str, expected: bool
) -> None:
    frames = (
        f'  File "{caller}", line 30, in <module>',
        '  File "/srv/job/train.py", line 12, in step',
        f"    {source}",
        "ValueError: bad batch",
    )
    for lines, is_named in ((frames, False), ((*["  text"] * 40, *frames), expected)):
        failure = end(report=error()._replace(source=source, lines=lines))
        shown = diagnose([failure]).render(formed_at=0, ended="now", verdict="over")
        assert shown[1:3] == ["  /srv/job/train.py:12 in step", f"    {source}"]
        assert (shown[3] == "  called at train.py:30") is is_named
        assert count_rows([f"relight: {shown[0]}", *shown[1:]]) <= 25


def test_thread_exception_is_shown_after_the_last_output() -> None:
    lines = ("Exception in thread reader:", *PRINTED.lines)
    failure = end(report=PRINTED._replace(lines=lines), words="no batch within 2 s")
    shown = diagnose([failure]).render(formed_at=0, ended="now", verdict="over")
    assert shown[:2] == [
        "rank 0 exited with code 1 after printing: no batch within 2 s",
        "  before that, it printed: Exception in thread reader: ValueError: bad batch "
        "(train.py:12 in step)",
    ]
    handled = diagnose([failure._replace(report=PRINTED)])
    assert "before that" not in handled.render(formed_at=0, ended="now", verdict="over")[1]


@pytest.mark.parametrize(
    ("printed_s", "words", "is_named"),
    [
        (0.01, "Trainer.fit stopped: see above", True),
        (0.01, "ERROR: no checkpoint in /ckpt", False),
        (4.0, "Trainer.fit stopped: see above", False),
    ],
    ids=["at the end", "the program names another reason", "long before"],
)
def test_recent_exception_is_shown_after_uninformative_last_output(
    printed_s: float, words: str, is_named: bool
) -> None:
    failure = end(report=PRINTED, words=words, printed_s=printed_s)
    lines = diagnose([failure]).render(formed_at=0, ended="now", verdict="over")
    assert lines[0] == f"rank 0 exited with code 1 after printing: {words}"
    printed = "  before that, it printed: ValueError: bad batch (train.py:12 in step)"
    assert (lines[1] == printed) is is_named


def test_age_of_an_old_traceback_is_shown() -> None:
    failure = end(exitcode=-KILL, report=PRINTED)
    for printed_s, title in (
        (4.0, "its last traceback, 4.0 s before its end:"),
        (0.1, "its last traceback:"),
        (None, "its last traceback:"),
    ):
        found = diagnose([failure._replace(printed_s=printed_s)])
        assert title in found.render(formed_at=0, ended="now", verdict="over")
    old = end(3, exitcode=9, report=PRINTED._replace(others=(0, 1, 2, 4, 6, 8)), printed_s=4.0)
    assert (
        "its last traceback, 4.0 s before its end; ranks 0-2, 4, 6, 8 printed it and kept running:"
    ) in diagnose([old]).render(formed_at=0, ended="now", verdict="over")


def test_report_shows_locations_of_exception_group_and_its_first_exception() -> None:
    report = error("2 of 5 (2 sub-exceptions): ValueError: x", "ExceptionGroup")
    failure = end(report=report._replace(cause_where="/srv/job/train.py:20"))
    lines = diagnose([failure]).render(formed_at=0, ended="now", verdict="over")
    assert lines[1:3] == [
        "  the exception group was raised at /srv/job/train.py:20", "  /srv/job/train.py:12 in "
        "step",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("failures", "succeeded_ranks", "expected"),
    [
        ([end(report=LOST), end(2, -TERM, stop_signal=TERM)], (), "rank 2 still running"),
        (
            [end(report=LOST), end(2, -TERM, stop_signal=TERM, doing=REDUCES)],
            (),
            "when it failed, rank 2 was in all_reduce (train.py:8)",
        ),
        ([end(report=LOST)], (2, 1), "perhaps the ranks have different numbers of batches"),
        (
            [end(report=RESET), end(2, -TERM, stop_signal=TERM)],
            (),
            "the connection may have been to another rank",
        ),
        (
            [end(report=error()._replace(cause="KeyError: 'lr'", cause_where="conf.py:4 in read"))],
            (),
            "caused by KeyError: 'lr' at conf.py:4 in read",
        ),
        (
            [
                end(
                    report=error()._replace(
                        cause="OSError: no cache",
                        lines=("OSError: no cache", "", IMPLICIT, "", "ValueError: bad batch"),
                    )
                )
            ],
            (),
            "while handling OSError: no cache",
        ),
        (
            [
                end(report=error("wait timeout after 2000ms", "DistStoreError")),
                end(
                    2,
                    -TERM,
                    stop_signal=TERM,
                    report=PRINTED,
                    doing=WorkerState(" in wait (a.py:4)", (), False),
                ),
            ],
            (),
            "rank 2 had printed: ValueError: bad batch at /srv/job/train.py:12 in step",
        ),
        (
            [end(report=LOST), end(2, -TERM, stop_signal=TERM, doing=READS, words="no space")],
            (),
            "rank 2 had printed: no space",
        ),
        (
            [end(report=LOST), end(2, -TERM, stop_signal=TERM, doing=READS)],
            (),
            "perhaps late, or waiting for something",
        ),
        (
            [end(exitcode=1)],
            (),
            "it printed nothing to stderr; use @record to report errors that go elsewhere",
        ),
        ([end(exitcode=3)], (), "it printed nothing to stderr"),
        (
            [end(report=error("", "bdb.BdbQuit"))],
            (),
            "pdb was quit, or had no terminal; breakpoint() waits for `relight debug`",
        ),
        ([end(report=error(), evidence="out of memory")], (), "out of memory"),
    ],
)
def test_unclear_failure_is_reported_with_a_hint(
    failures: list[Failure], succeeded_ranks: tuple[int, ...], expected: str
) -> None:
    lines = diagnose(failures, succeeded_ranks).render(formed_at=0, ended="now", verdict="over")
    assert f"  {expected}" in lines


def test_traceback_of_handled_exception_is_shown_as_printed_output() -> None:
    """The traceback follows the last lines of output."""
    said = ("ValueError: bad batch", "no /data")
    failure = end(exitcode=7, report=PRINTED, last_lines=said, words="no /data")
    lines = diagnose([failure]).render(formed_at=0, ended="now", verdict="over")
    assert lines == [
        "rank 0 exited with code 7 after printing: no /data",
        "  on vm: local rank 0, pid 100; now, after 0.0 s",
        "",
        "its last output:",
        "  no /data",
        "",
        "its last traceback:",
        "Traceback (most recent call last):",
        "ValueError: bad batch",
        "",
        "exit code 7; over",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("short", "short"),
        ("x" * 50, "x" * 39 + "…"),
        ("It is broken. See the log of the worker for more", "It is broken. See the log of the …"),
        ("The disk of node 7 is full. See the log, please", "The disk of node 7 is full. …"),
        (
            "Writing the large file /data/x: no space is left",
            "Writing the large file /data/x: no …",
        ),
    ],
)
def test_long_text_is_truncated_after_a_sentence_or_word(text: str, expected: str) -> None:
    """The text is truncated where a reader would pause."""
    assert cut(text, 40) == expected


@pytest.mark.parametrize("later", [0.0, 0.3])
@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] "
            "Read error [127.0.0.1]:4522: Connection reset by peer",
            "Read error [127.0.0.1]:4522: Connection reset by peer",
        ),
        (
            "Read error [fe80:0000:0000:0000:0242:acff:fe11:0002]:45221: Connection reset by peer",
            "Read error [fe80:0000:0000:0000:0242:acff:fe11:0002]:45221: Connection reset by peer",
        ),
        (
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
            "[127.0.0.1]:4187. This is typically caused by a remote worker crashing. Check the "
            "logs of the remote worker before reporting an error. GLHF! 🏖️",
            "Connection closed by peer [127.0.0.1]:4187.",
        ),
        ("wait timeout after 9ms, keys: " + "x" * 300, "wait timeout after 9ms, keys: " + "x" * 20),
    ],
)
def test_long_line_about_a_stopped_rank_keeps_its_reason(
    message: str, shown: str, later: float
) -> None:
    """The line uses a second row before anything is truncated."""
    failures = [end(9, report=error()), *(end(n, -TERM, later, stop_signal=TERM,
                report=error(message, "RuntimeError")) for n in range(0, 9, 2))]  # fmt: skip
    lines = diagnose(failures).render(formed_at=0, ended="11:42:07", verdict="over")
    (line,) = [line for line in lines if "raised RuntimeError" in line]
    assert f"{'0.3 s later, ' if later else ''}raised RuntimeError: {shown}" in line


def test_numbers_that_differ_between_ranks_are_shown_for_one_rank() -> None:
    def first_line(*files: int) -> str:
        ends = [end(n, report=error(f"no /data/{file}.bin")) for n, file in enumerate(files)]
        return diagnose(ends).render(formed_at=0, ended="now", verdict="over")[0]

    said = "ranks 0-1 raised ValueError: no /data/4.bin"
    assert first_line(4, 5) == f"{said} (rank 0 shown)"
    assert first_line(4, 4) == said


def test_identical_messages_are_not_labelled_as_having_differing_numbers() -> None:
    own = end(0, words="no /data/4.bin", last_lines=("no /data/4.bin",))
    ends = [own, own._replace(rank=1, at=2.0, stop_signal=TERM)]
    assert diagnose(ends).render(formed_at=0, ended="now", verdict="over")[0] == (
        "ranks 0-1 exited with code 1 after printing: no /data/4.bin"
    )


def test_rank_that_ignored_the_stop_signal_is_shown_as_killed_later() -> None:
    stubborn = end(1, -KILL, 30.0, stop_signal=TERM, stopping_s=30.0)
    said = "stopped by the agent (SIGTERM), killed 30 s later"
    assert describe_exit(stubborn) == said
    assert describe_exit(stubborn._replace(stopping_s=0.1)) == "stopped by the agent (SIGTERM)"
    lines = diagnose([end(0, report=error()), stubborn]).render(
        formed_at=0, ended="now", verdict="over"
    )
    assert f"  rank 1: {said}" in lines


def test_broken_pipe_with_local_cause_is_not_a_lost_peer() -> None:
    evidence = "the process reading the launcher's output has exited, as with `| head`"
    report = error("[Errno 32] Broken pipe", "BrokenPipeError")
    lines = diagnose([end(0, report=report, evidence=evidence)]).render(
        formed_at=0, ended="now", verdict="over"
    )
    assert lines[:2] == ["rank 0 raised BrokenPipeError: [Errno 32] Broken pipe", f"  {evidence}"]


def ended(*ends: Failure, succeeded: tuple[int, ...] = ()) -> JobEnded:
    end_of = GenerationEnd(ends, succeeded, "", 0.0)
    return restart_decision.end(end_of, "over", 0.0)


def test_location_is_labelled_if_the_headline_starts_with_another_rank() -> None:
    job = ended(end(0, report=LOST), end(1, -TERM, stop_signal=TERM, doing=READS))
    assert job.report[0].startswith(
        "probably rank 1: it was in read (data.py:41) when rank 0 raised RuntimeError"
    )
    assert job.report[1] == "  rank 0 at /srv/job/train.py:12 in step"
    assert job.headline.endswith("Connection reset by peer (at /srv/job/train.py:12 in step)")
    gone = ended(end(0, report=LOST), succeeded=(1,)).report
    assert gone[1] == "  rank 0 at /srv/job/train.py:12 in step"
    assert gone[3].startswith("  rank 0 on vm")
    assert ended(end(0, report=error())).report[1] == "  /srv/job/train.py:12 in step"


def test_location_is_labelled_if_another_rank_is_the_suspect() -> None:
    failed, root = end(0, report=LOST), end(1, -TERM, stop_signal=TERM, doing=READS)
    says = "the ranks were in different calls: rank 0 in a, rank 1 in b"
    verdict = Verdict(Certainty.LIKELY, says, root, failed, (1,), says)
    lines = Diagnosis(verdict, (), (failed,)).render(formed_at=0, ended="now", verdict="over")
    assert "  rank 0 at /srv/job/train.py:12 in step" in lines


def test_job_headline_includes_evidence_from_the_machine() -> None:
    full = "the file system of /data is full (0 bytes free of 4 MiB)"
    job = ended(end(0, report=error("can't write"), evidence=full))
    said = "rank 0 raised ValueError: can't write (at /srv/job/train.py:12 in step)"
    assert job.headline == f"{said}; {full}"
    assert ended(end(0, -KILL, evidence="out of memory")).headline == (
        "rank 0 was killed by SIGKILL: out of memory"
    )


def test_long_rank_list_is_shortened() -> None:
    lines = diagnose([end(r, 3) for r in range(0, 200, 2)]).render(
        formed_at=0, ended="now", verdict="over"
    )
    assert lines[0] == "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, … (100 in all) exited with code 3"


TEXT = st.text(st.sampled_from("ab :/\n"), max_size=300)
REPORTS = st.builds(
    ErrorReport,
    st.sampled_from(FailureKind),
    st.sampled_from(["", "ValueError", "RuntimeError", "KeyboardInterrupt", "fatal error"]),
    TEXT | st.just("Connection reset by peer"),
    st.sampled_from(["", "train.py:1", "/srv/job/" * 60 + "train.py:12 in step"]),
    TEXT.map(lambda text: text.replace("\n", "")),
    st.lists(
        st.sampled_from(
            [
                "Traceback (most recent call last):",
                '  File "/srv/job/train.py", line 1, in f',
                '  File "/usr/lib/python3.11/json/decoder.py", line 1, in f',
                "    source()",
                "    ^^^^^^",
                "ValueError: bad",
                "x" * 1000,
                "",
            ]
        ),
        max_size=40,
    ).map(tuple),
    cause=st.sampled_from(["", "KeyError: 'lr'"]),
    cause_where=st.sampled_from(["", "conf.py:4 in read"]),
    is_interrupted=st.booleans(),
    doubt=st.sampled_from(["", "it printed more after that: done"]),
    others=st.sampled_from([(), (1, 2)]),
)


ENDS = st.builds(
    end,
    rank=st.just(0),
    exitcode=st.sampled_from([1, 2, 7, 127, 137, 255, -2, -6, -9, -11, -15, -40]),
    at=st.floats(0, 1e6),
    stop_signal=st.sampled_from([0, 0, 15, 9]),
    host=st.sampled_from(["vm", "gpu-node-17.cluster.example.com" * 3]),
    report=st.none() | REPORTS,
    last_lines=st.lists(TEXT.map(lambda text: text.replace("\n", "")), max_size=3).map(tuple),
    evidence=st.sampled_from(["", "out of memory: the kernel killed one process " + "x" * 100]),
    log=st.sampled_from(["", "/srv/logs/" * 20]),
)


@pytest.mark.parametrize("ranks", range(2, 9))
def test_failure_report_fits_25_rows(ranks: int) -> None:
    """Consequences and the log path take up an increasing number of rows."""
    first, last = error().lines
    frame = '  File "/srv/job/train.py", line 12, in step', "    step(batch)"
    report = error()._replace(lines=(first, *frame, last))
    others = [
        end(rank, report=error(f"{'abcdefgh'[rank]} {'word ' * 30}")) for rank in range(1, ranks)
    ]
    for rows in range(1, 14):
        root = end(report=report, log="x" * (80 * rows - len("log: ")))
        lines = diagnose([root, *others]).render(formed_at=0, ended="2026-01-02", verdict="over")
        assert count_rows([f"relight: {lines[0]}", *lines[1:]]) <= 25
        assert "ValueError: bad batch" in lines


@settings(max_examples=200)
@given(st.lists(ENDS, min_size=1, max_size=8))
def test_any_failure_report_fits_25_rows_and_lists_each_rank_once(ends: list[Failure]) -> None:
    """A cause of the highest class comes first, and the exit code is never 0."""
    ends = [each._replace(rank=rank) for rank, each in enumerate(ends)]
    diagnosis = diagnose(ends)
    own = [each for each in ends if role(each) in (Role.OWN, Role.REPORTED)]
    assert not own or diagnosis.verdict.symptom in own
    named = [diagnosis.root, *diagnosis.same, *diagnosis.consequences]
    assert sorted(each.rank for each in named) == list(range(len(ends)))
    assert 0 < diagnosis.exit_code < 256
    assert "\n" not in diagnosis.headline()
    lines = diagnosis.render(formed_at=0, ended="2026-01-02 03:04:05+0000", verdict="over")
    assert count_rows([f"relight: {lines[0]}", *lines[1:]]) <= 25
    assert not any("\n" in line for line in lines)
    known = r"(?:raised|reported:|exited|was|were) "
    blamed = rf"(?:probably )?ranks? [-\d, ]+(?:: it|: they)? {known}|no rank appears"
    assert re.match(blamed, f"{lines[0]} ")
    if "other ranks:" in lines:
        followed = lines[lines.index("other ranks:") + 1 : -2 if diagnosis.root.log else -1]
        assert 1 <= len(followed) <= 5


def stopped(rank: int, doing: WorkerState | None) -> Failure:
    return end(rank, -TERM, stop_signal=TERM, doing=doing)


def test_crowded_failure_report_shows_fewer_lines_of_output() -> None:
    crowd = [
        *(end(rank, at=2.0) for rank in range(3)),
        end(3, at=2.0, evidence="out of memory: the kernel killed one process " + "x" * 100),
        end(4, 137, at=611.0),
        end(5, at=1.0, report=CRASHED._replace(where="/srv/job/" * 60 + "train.py:12", lines=()),
            last_lines=("a", "b", "c"), log="/srv/logs/" * 20,
            evidence="out of memory: the kernel killed one process " + "x" * 100,
            host="gpu-node-17.cluster.example.com" * 3),
        end(6, 137, at=611.0),
        end(7, report=RESET._replace(kind=FailureKind.CRASHED, lines=())),
    ]  # fmt: skip
    lines = diagnose(crowd).render(formed_at=0, ended="2026-01-02 03:04:05+0000", verdict="over")
    assert count_rows([f"relight: {lines[0]}", *lines[1:]]) <= 25
    assert "  c" in lines


def test_explanation_of_doubtful_exception_is_truncated_to_fit_a_message() -> None:
    (sent,) = shared([end(report=error()._replace(doubt=f"\x1b{'x' * 2000}"))], 0.0)
    assert sent.report is not None
    assert sent.report.doubt.startswith("\ufffdxxx")
    assert len(sent.report.doubt) <= 1000


def test_ranks_at_the_same_location_share_one_stack_in_messages() -> None:
    failures = [stopped(rank, READS) for rank in (3, 2, 1)]
    sent = shared(failures, 0.0)
    assert {each.rank: len(each.doing.stack) for each in sent if each.doing} == {1: 1, 2: 0, 3: 0}


def test_json_report_has_no_cause_if_the_blamed_rank_exited_with_code_0(tmp_path: Path) -> None:
    """The exit of the first victim is the symptom."""
    ended = JobEnded(1, "the workers failed", ("rank 1 had left",), end(0), ranks=(1,))
    path = tmp_path / "why.json"
    spec = SimpleNamespace(max_restarts=0, restart_policy="always", failure_report=str(path))
    job = cast(AgentConfig, SimpleNamespace(command=SimpleNamespace(run_id="x"), spec=spec))
    assert not failure_report.write(ended, (), job, 0)
    written = json.loads(path.read_text())
    assert (written["cause"], written["ranks"], written["symptom"]["rank"]) == (None, [1], 0)
