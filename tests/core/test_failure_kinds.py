"""The JSON failure report describes a worker in the same way as the headline."""

import signal

import pytest
from worker_ends import LOST, READS, TERM, WAITED, end, error

from relight.agent.failure_report import _ending
from relight.core.diagnosis.failure_text import diagnose
from relight.core.diagnosis.stack_text import NO_CODE, SHUTTING_DOWN
from relight.core.failure import Failure, WorkerState
from relight.core.group.messages import JobEnded


def ended(*failures: Failure, succeeded: tuple[int, ...] = ()) -> JobEnded:
    """Return the end of a job with these failures."""
    found = diagnose(failures, succeeded, 3)
    root, symptom = found.root, found.verdict.symptom
    return JobEnded(
        1, "the workers failed", (found.headline(),), root, ranks=found.ranks,
        symptom=None if symptom is root else symptom,
    )  # fmt: skip


def stopped(rank: int, doing: WorkerState | None = None) -> Failure:
    return end(rank, -TERM, doing=doing, stop_signal=TERM)


@pytest.mark.parametrize(
    ("doing", "what"),
    [
        (READS, "was in read (data.py:41)"),
        (WorkerState(SHUTTING_DOWN, (), False), "had left the script"),
    ],
    ids=["late", "left"],
)
def test_kind_of_blamed_rank_that_was_stopped_is_missing(doing: WorkerState, what: str) -> None:
    victim, blamed = end(0, report=WAITED), stopped(1, doing)
    job = ended(victim, blamed)
    assert _ending(blamed, job) == ("missing", what)
    assert f"rank 1: it {what}" in job.headline
    assert _ending(victim, job)[0] == "communication_error"


def test_kind_of_blamed_rank_that_exited_early_is_missing() -> None:
    printed = end(1, 0, report=error())
    job = ended(end(0, report=LOST), printed, succeeded=(1,))
    assert job.root is not None
    assert job.root.rank == 1
    assert _ending(printed, job)[0] == "missing"


def test_kind_of_rank_that_was_stopped_because_of_another_is_stopped() -> None:
    other = stopped(1, WorkerState(NO_CODE, (), False))
    failed = end(0, -signal.SIGSEGV)
    job = ended(failed, other)
    assert _ending(other, job) == ("stopped", "stopped by the agent (SIGTERM)")
    assert _ending(failed, job) == ("failed", "was killed by SIGSEGV")
