"""Restarts after failures: the budget, what `smart` adds, and the printed reasons."""

import pytest

from relight.base.values import parse_exit_codes
from relight.core.failure import ErrorReport, Failure, FailureKind
from relight.core.group.group_types import GroupSettings
from relight.core.group.messages import JobEnded
from relight.core.group.restart_budget import (
    GenerationRun,
    RestartHistory,
    restart_refusal,
    split_budget,
)
from relight.core.group.restart_decision import GenerationEnd, Restart, decide

FAILED = Failure(0, 0, "vm", 1, 1, 0.0, 0, None, (), "", "")
RAISED = FAILED._replace(
    report=ErrorReport(FailureKind.RECORDED, "ValueError", "bad", "train.py:3", "", ())
)
KILLED = FAILED._replace(exitcode=-9)


def settings(
    most: int,
    window_s: float = 0.0,
    *,
    smart: bool = False,
    restart_on: str = "",
    fail_on: str = "",
) -> GroupSettings:
    return GroupSettings(
        1,
        1,
        most,
        restart_window_s=window_s,
        smart=smart,
        restart_on=parse_exit_codes(restart_on),
        fail_on=parse_exit_codes(fail_on),
    )


class Job:
    """A job in which one generation after the other fails."""

    def __init__(self, wanted: GroupSettings, restarts: int = 0) -> None:
        self.now = 0.0
        self.restart = restarts
        self.history = RestartHistory(wanted, restarts, "origin", self.now)

    def fails(
        self, failure: Failure = FAILED, after_s: float = 1.0, progressed: bool | None = None
    ) -> Restart | JobEnded:
        began, self.now = self.now, self.now + after_s
        ended = GenerationEnd([failure], (), "", began, progressed)
        outcome = decide(ended, self.history, self.restart, self.now)
        self.restart += isinstance(outcome, Restart)
        return outcome

    def reason(self, *args: object, **named: object) -> str:
        outcome = self.fails(*args, **named)  # type: ignore[arg-type]
        if isinstance(outcome, Restart):
            return outcome.cause.partition("; ")[2]
        return f"end: {outcome.verdict}"


@pytest.mark.parametrize(
    ("used", "budget", "decision"),
    [
        (0, 0, "no restarts were allowed (--max-restarts=0)"),
        (0, 3, "restart 1 of 3"),
        (2, 3, "restart 3 of 3"),
        (1, 1, "the only restart is used up"),
        (3, 3, "all 3 restarts are used up"),
    ],
)
def test_job_restarts_until_budget_is_exhausted(used: int, budget: int, decision: str) -> None:
    outcome = Job(settings(budget), used).fails()
    if isinstance(outcome, Restart):
        assert used < budget
        assert outcome == Restart(f"rank 0 exited with code 1 (pid 1 on vm); {decision}", 0.0, "vm")
    else:
        assert used == budget
        assert outcome.report[-1] == f"exit code 1; {decision}"
        assert outcome.verdict == restart_refusal(settings(budget)) == decision


def test_plain_restart_policy_allows_restart_after_repeated_exception() -> None:
    """Torchrun does the same. The final report counts the restarts that `smart` would save."""
    job = Job(settings(3))
    assert [job.reason(RAISED) for _ in range(4)] == [
        "restart 1 of 3",
        "restart 2 of 3",
        "restart 3 of 3",
        "end: all 3 restarts are used up; --restart-policy=smart would have saved 2 of them",
    ]


def test_smart_restart_policy_ends_job_on_repeated_exception() -> None:
    job = Job(settings(10, smart=True))
    assert job.reason(RAISED) == "restart 1 of 10"
    assert job.reason(RAISED) == (
        "end: same exception on the same line again, with no progress in between"
    )


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(FAILED._replace(last_lines=("killed",)), id="different failure"),
        pytest.param(
            RAISED._replace(report=RAISED.report and RAISED.report._replace(where="train.py:4")),
            id="different line",
        ),
        pytest.param(KILLED, id="signal"),
    ],
)
def test_smart_restart_policy_allows_restart_after_a_different_failure(between: Failure) -> None:
    job = Job(settings(10, smart=True))
    job.fails(RAISED)
    assert isinstance(job.fails(between), Restart)
    assert isinstance(job.fails(RAISED), Restart)


@pytest.mark.parametrize("failure", [KILLED, FAILED])
def test_smart_restart_policy_never_treats_kills_or_silent_exits_as_repeats(
    failure: Failure,
) -> None:
    job = Job(settings(10, smart=True))
    assert all(isinstance(job.fails(failure), Restart) for _ in range(10))
    assert job.reason(failure) == "end: all 10 restarts since the last progress are used up"


def test_smart_restart_policy_allows_restarts_while_job_makes_progress() -> None:
    job = Job(settings(2, smart=True))
    assert all(isinstance(job.fails(RAISED, progressed=True), Restart) for _ in range(20))
    assert job.reason(KILLED, progressed=True) == "restart 21, 1 of 2 since the last progress"


def test_long_run_does_not_count_as_progress_if_none_was_reported() -> None:
    job = Job(settings(9, smart=True))
    job.fails(RAISED, after_s=4000.0, progressed=False)
    assert job.reason(RAISED, after_s=4000.0, progressed=False).startswith("end: same exception")


def test_long_run_counts_as_progress_if_progress_is_unknown() -> None:
    job = Job(settings(9, smart=True))
    job.fails(RAISED, after_s=4000.0)
    assert job.reason(RAISED, after_s=4000.0) == "restart 2 of 9"


def test_smart_restart_policy_doubles_backoff_without_progress() -> None:
    """The first restart is immediate. Each later one waits twice as long as the one before, up to
    a minute.
    """
    job = Job(settings(20, smart=True))
    waits = [
        outcome.delay_s for _ in range(20) if isinstance(outcome := job.fails(KILLED), Restart)
    ]
    assert waits[0] == 0.0
    for number, wait in enumerate(waits[1:]):
        whole = min(2.0**number, 60.0)
        assert whole / 2 <= wait <= whole
    after_progress = job.history.after_lost_node(GenerationRun(1.0, True))
    assert after_progress == 0.0


def test_plain_restart_policy_has_no_backoff() -> None:
    job = Job(settings(20, 3600.0))
    assert [job.fails(KILLED) for _ in range(3)][-1] == Restart(
        "rank 0 was killed by SIGKILL: not sent by relight (pid 1 on vm); "
        "restart 3, 3 of 20 within 1 h", 0.0, "vm",
    )  # fmt: skip
    assert job.history.after_lost_node(GenerationRun(1.0, None)) == 0.0


def test_backoff_jitter_differs_between_jobs() -> None:
    waits = set()
    for origin in "abcdef":
        job = Job(settings(9, smart=True))
        job.history = RestartHistory(settings(9, smart=True), 0, origin * 16, 0.0)
        job.fails(KILLED)
        outcome = job.fails(KILLED)
        assert isinstance(outcome, Restart)
        waits.add(outcome.delay_s)
    assert len(waits) == 6


def test_windowed_budget_counts_only_recent_restarts() -> None:
    job = Job(settings(2, 3600.0))
    assert job.reason() == "restart 1, 1 of 2 within 1 h"
    assert job.reason(after_s=1800) == "restart 2, 2 of 2 within 1 h"
    assert job.reason(after_s=1800) == "restart 3, 2 of 2 within 1 h"  # the first has expired
    assert job.reason(after_s=1) == "end: all 2 restarts within 1 h are used up"


def test_progress_resets_only_a_windowed_restart_budget() -> None:
    job = Job(settings(1, 3600.0))
    assert [job.reason(progressed=True) for _ in range(2)][-1] == "restart 2, 1 of 1 within 1 h"
    job = Job(settings(1))
    assert [job.reason(progressed=True) for _ in range(2)][-1] == "end: the only restart is used up"


def test_new_coordinator_allows_one_restart_if_history_is_unknown() -> None:
    job = Job(settings(3, 3600.0), restarts=7)
    assert job.reason() == "restart 8, 3 of 3 within 1 h"
    assert job.reason() == "end: all 3 restarts within 1 h are used up"


def test_smart_restart_policy_ends_job_on_repeated_usage_error() -> None:
    refused = FAILED._replace(exitcode=2, last_lines=("usage: x", "x.py: error: bad --lr"))
    job = Job(settings(9, smart=True))
    assert isinstance(job.fails(refused), Restart)
    assert isinstance(job.fails(refused), JobEnded)


@pytest.mark.parametrize(
    ("rules", "exitcode", "decision"),
    [
        ({"fail_on": "2,SIGXCPU"}, 2, "end: --fail-on lists exit code 2"),
        ({"fail_on": "2,SIGXCPU"}, -24, "end: --fail-on lists SIGXCPU"),
        ({"fail_on": "2,SIGXCPU"}, 1, "restart 1 of 3"),
        ({"restart_on": "75,SIGKILL"}, 75, "restart 1 of 3"),
        ({"restart_on": "75,SIGKILL"}, -9, "restart 1 of 3"),
        ({"restart_on": "75,137"}, -9, "restart 1 of 3"),
        ({"restart_on": "75,SIGKILL"}, 1, "end: --restart-on does not list exit code 1"),
        ({"restart_on": "75", "fail_on": "2"}, -11, "end: --restart-on does not list SIGSEGV"),
    ],
)
def test_exit_code_rules_take_precedence_over_budget(
    rules: dict[str, str], exitcode: int, decision: str
) -> None:
    assert Job(settings(3, **rules)).reason(FAILED._replace(exitcode=exitcode)) == decision


def test_restart_for_a_listed_exit_code_uses_the_budget() -> None:
    job = Job(settings(1, restart_on="75"))
    failure = FAILED._replace(exitcode=75)
    assert [job.reason(failure), job.reason(failure)] == [
        "restart 1 of 1",
        "end: the only restart is used up",
    ]


def test_exit_code_rules_apply_to_the_root_cause_only() -> None:
    """A peer that was stopped because of the failure has a different exit code."""
    stopped = FAILED._replace(rank=1, exitcode=-15, stop_signal=15, at=0.5)
    ended = GenerationEnd([FAILED._replace(exitcode=75), stopped], (), "", 0.0)
    wanted = settings(3, restart_on="75", fail_on="SIGTERM")
    assert isinstance(decide(ended, RestartHistory(wanted, 0, "o", 0.0), 0, 1.0), Restart)


def test_exit_code_rules_do_not_apply_to_hangs() -> None:
    hung = FAILED._replace(exitcode=-6, stop_signal=6)
    ended = GenerationEnd([hung], (), "no progress", 0.0, hung=True)
    wanted = settings(3, restart_on="75", fail_on="SIGABRT,124")
    assert isinstance(decide(ended, RestartHistory(wanted, 0, "o", 0.0), 0, 1.0), Restart)


@pytest.mark.parametrize(
    ("raised", "exit_code"), [("ConnectionResetError: lost", 124), ("ValueError: bad", 1)]
)
def test_rank_that_loses_peer_during_stop_of_hung_job_is_not_the_cause(
    raised: str, exit_code: int
) -> None:
    """Stop signals don't reach all workers at the same time."""
    hung = FAILED._replace(rank=1, exitcode=-15, stop_signal=15)
    lost = FAILED._replace(last_lines=(raised,))
    ended = GenerationEnd([lost, hung], (), "no progress", 0.0, hung=True)
    end = decide(ended, RestartHistory(settings(0), 0, "o", 0.0), 0, 1.0)
    assert isinstance(end, JobEnded)
    assert end.exit_code == exit_code


@pytest.mark.parametrize(
    ("wanted", "budget"),
    [
        (settings(3), "restart 2 of 3"),
        (settings(3, 3600.0), "restart 2, 2 of 3 within 1 h"),
        (settings(3, smart=True), "restart 2 of 3 in "),
    ],
)
def test_cause_of_a_restart_is_separable_from_its_budget(
    wanted: GroupSettings, budget: str
) -> None:
    raised = RAISED._replace(
        report=RAISED.report and RAISED.report._replace(message="a; restart it")
    )
    job = Job(wanted)
    job.fails()
    outcome = job.fails(raised)
    assert isinstance(outcome, Restart)
    cause, shown = split_budget(outcome.cause, 2)
    assert f"{cause}; {shown}" == outcome.cause
    assert cause == "rank 0 raised ValueError: a; restart it at train.py:3 (pid 1 on vm)"
    assert shown.startswith(budget)


def test_cause_without_a_budget_is_kept() -> None:
    assert split_budget("node3 was lost; restart 2 of 3", 1) == (
        "node3 was lost; restart 2 of 3",
        "",
    )
    assert split_budget("node3 was lost", 1) == ("node3 was lost", "")
