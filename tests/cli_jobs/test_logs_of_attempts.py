"""`relight logs --attempt`: a worker's output before a restart, for a job with log files."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Start

from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.core.status.snapshot import NodeSnapshot
from relight.events.event_types import Event, Formed, LoggedEvent, WorkerStarted, format_line
from relight.processes.running_jobs import JobDirectory
from relight.runner.runner import Runner

from .conftest import Command

pytestmark = pytest.mark.forked

JOB = "run://relight/train-7"
RESTARTS = """\
import os, sys, time
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("attempt", attempt, flush=True)
if attempt == "0":
    sys.exit(3)
time.sleep(600)
"""
# Here a new node takes rank 0, so that the old rank 0 becomes rank 1. A restart follows.
GENERATIONS = [
    (0, 0, "attempt_0", {0: 0}),
    (1, 0, "attempt_0_generation_1", {0: 1}),
    (2, 1, "attempt_1", {0: 1}),
]


def ended_job(variables: dict[str, str], run_directory: str) -> Runner:
    snapshot = NodeSnapshot(
        "train-7", "train", 7, "gpu-01", "r", ("train.py",), "", "default", 100.0, 200.0, "ended",
        2, 1, 3, "", 1, 1, 2, 0, "", run_directory, (),
    )  # fmt: skip
    JobDirectory(variables).keep(snapshot)
    return Runner(env=Environment(variables))


@pytest.fixture
def runner(tmp_path: Path, variables: dict[str, str]) -> Runner:
    """Create a job that has ended after a membership change and a restart."""
    folder, events = tmp_path / "logs", list[Event]()
    for generation, restart, name, ranks in GENERATIONS:
        events.append(Formed(generation, restart, 0, 1, len(ranks), "a", 1, "", ""))
        for local_rank, rank in ranks.items():
            events.append(WorkerStarted(local_rank, rank, 5))
            log = folder / name / str(local_rank) / "stdout.log"
            log.parent.mkdir(parents=True)
            log.write_text(f"generation {generation}\n")
    recorded = [LoggedEvent(n, float(n), 100.0 + n, event) for n, event in enumerate(events, 1)]
    (folder / "events.jsonl").write_text("".join(format_line(each) + "\n" for each in recorded))
    return ended_job(variables, str(folder))


@pytest.mark.parametrize(
    ("rank", "attempt", "generations"),
    [(0, "0", [0]), (1, "0", [1]), (1, "1", [2]), (1, "all", [1, 2]), (0, "all", [0])],
)
def test_log_lines_follow_a_rank_across_membership_changes(
    runner: Runner, rank: int, attempt: str, generations: list[int]
) -> None:
    """Ranks may change with the membership, even without a restart."""
    found = list(runner.log_lines(JOB, "default", rank, attempt=attempt))
    assert found == [f"generation {number}" for number in generations]


@pytest.mark.parametrize(
    ("rank", "attempt", "said", "hint"),
    [
        (1, "3", "rank 1 of run://relight/train-7 has no attempt 3", "it has 0, 1;"),
        (5, "0", "run://relight/train-7 has no rank 5", "ranks 0 to 1"),
    ],
)
def test_missing_rank_or_attempt_error_lists_available_ones(
    runner: Runner, rank: int, attempt: str, said: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        runner.log_lines(JOB, "default", rank, attempt=attempt)
    assert hint in caught.value.hint


def test_error_about_missing_log_files_suggests_log_dir_flag(variables: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="has no log files") as caught:
        ended_job(variables, "").log_lines(JOB, "default", 0, attempt="0")
    assert "--log-dir=DIR" in caught.value.hint


def test_logs_of_earlier_attempt_are_available_while_job_is_running(
    start: Start,
    relight: Command,
    script: Callable[[str], Path],
    tmp_path: Path,
    variables: dict[str, str],
) -> None:
    agent = start("run", "--max-restarts=1", "--redirects=3", f"--log-dir={tmp_path}/logs",
                  script(RESTARTS), variables=variables)  # fmt: skip
    jobs = JobDirectory(variables)
    while not any(job.restart == 1 and job.ranks for job in jobs.running()):
        assert agent.poll() is None
        time.sleep(0.05)
    found = relight("logs", "train", "--attempt", "0")
    assert found.stdout == "attempt 0\n"
    wrong = relight("logs", "train", "--attempt=first")
    assert wrong.returncode == 2
    assert "--attempt=first: expected all, or a number" in wrong.stderr


RESTARTS_LATER = """\
import os, sys, time
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("attempt", attempt, flush=True)
while not os.path.exists(sys.argv[1] + attempt):
    time.sleep(0.02)
print("end of attempt", attempt, flush=True)
sys.exit(attempt == "0")
"""


def test_logs_follow_flag_continues_across_a_restart(
    start: Start,
    script: Callable[[str], Path],
    tmp_path: Path,
    variables: dict[str, str],
) -> None:
    agent = start("run", "--max-restarts=1", "--redirects=3", f"--log-dir={tmp_path}/logs",
                  script(RESTARTS_LATER), str(tmp_path / "go"), variables=variables)  # fmt: skip
    jobs = JobDirectory(variables)
    while not any(job.ranks for job in jobs.running()):
        assert agent.poll() is None
        time.sleep(0.05)
    follower = start("logs", "-f", "train", "--rank", "0", variables=variables)
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"attempt 0\n"
    (tmp_path / "go0").touch()
    assert follower.stdout.readline() == b"end of attempt 0\n"
    assert follower.stdout.readline() == b"attempt 1\n"
    (tmp_path / "go1").touch()
    assert follower.stdout.read() == b"end of attempt 1\n"
    assert (agent.wait(LIMIT_S), follower.wait(LIMIT_S)) == (0, 0)
