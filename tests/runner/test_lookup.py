"""Jobs are found by handle, id, pid or name, whether submitted or started with `relight run`."""

from collections.abc import Callable
from typing import Any

import pytest

from relight.base.errors import UsageError
from relight.core.status.snapshot import ENDED, RUNNING, NodeSnapshot
from relight.job import records
from relight.job.app import AppState
from relight.job.handles import Handle
from relight.job.status import AppStatus
from relight.runner import lookup
from relight.runner.lookup import Purpose, find_job

ANY = (Purpose.READ, Purpose.CANCEL, Purpose.DELETE)


class Jobs:
    """The jobs on this machine. Acts as the scheduler of all submitted jobs, and as the directory
    with the `relight run` jobs.
    """

    def __init__(self) -> None:
        self.states: dict[str, AppState] = {}
        self.snapshots: dict[str, NodeSnapshot | None] = {}

    def submit(self, app_id: str, state: AppState = AppState.RUNNING, **fields: Any) -> None:
        """Record a job, which was running when its state was last recorded."""
        day = len(self.states) + 1
        record = {
            "id": app_id, "app_id": app_id, "handle": f"local://relight/{app_id}",
            "scheduler": "local", "name": app_id.rpartition("-")[0], "state": "RUNNING",
            "submitted": f"2026-01-{day:02}T00:00:00+00:00", **fields,
        }  # fmt: skip
        records.write(record["id"], record)
        self.states[record["app_id"]] = state

    def run(self, job: str, exit_code: int | None = None, **fields: Any) -> None:
        """Add a `relight run` job."""
        name, _, pid = job.rpartition("-")
        node = NodeSnapshot(
            job, name, int(pid), "h", "r", (), "", "main", float(len(self.snapshots)), 9.0,
            RUNNING if exit_code is None else ENDED, 0, 0, 0, "", 0, 1, 1, exit_code, "", "", (),
        )  # fmt: skip
        self.snapshots[job] = node._replace(**fields)
        self.states[job] = AppState.RUNNING if exit_code is None else AppState.FAILED

    def find_job(self, text: str, purpose: Purpose = Purpose.READ) -> str:
        """Return the handle of the job that is found."""
        return str(find_job(lambda _: self, text, purpose))  # type: ignore[arg-type, return-value]

    # The scheduler.

    def status(self, app_ids: list[str]) -> dict[str, AppStatus]:
        known = {app_id: self.states[app_id] for app_id in app_ids}
        known = {k: v for k, v in known.items() if v is not AppState.UNKNOWN}
        return {app_id: AppStatus(state) for app_id, state in known.items()}

    # The directory.

    def ids(self) -> set[str]:
        return {*self.snapshots}

    def find(self, job: str) -> NodeSnapshot | None:
        return self.snapshots[job]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    jobs = Jobs()
    monkeypatch.setattr(lookup, "run_jobs", lambda: jobs)
    return jobs


def test_submitted_job_is_found_by_either_id(jobs: Jobs) -> None:
    """The id is either relight's own or the one assigned by the scheduler."""
    jobs.submit("train-x3b")
    jobs.submit("77", id="other-y4c", scheduler="slurm", handle="slurm://relight/77")
    assert jobs.find_job("train-x3b") == "local://relight/train-x3b"
    assert jobs.find_job("other-y4c") == jobs.find_job("77") == "slurm://relight/77"


@pytest.mark.parametrize(
    ("part", "role", "replicas"),
    [("", "", ()), ("/", "", ()), ("/train", "train", ()), ("/train/0,2", "train", (0, 2))],
)
@pytest.mark.parametrize("job", ["team-train-x3b", "team-train", "team/train"])
def test_role_or_replicas_can_be_appended_to_id_or_name(
    jobs: Jobs, job: str, part: str, role: str, replicas: tuple[int, ...]
) -> None:
    """Even if the name contains a slash."""
    jobs.submit("team-train-x3b", name="team/train")
    found = find_job(lambda _: jobs, job + part)  # type: ignore[arg-type, return-value]
    assert found == Handle("local", "relight", "team-train-x3b", role, replicas)


@pytest.mark.parametrize("text", ["train/worker", "train/worker/0"])
def test_rejects_text_that_is_a_name_with_a_slash_or_a_role(jobs: Jobs, text: str) -> None:
    jobs.submit("train-x3b")
    jobs.submit("train-worker-x4c", name="train/worker")
    with pytest.raises(UsageError, match=f"^{text} is ambiguous") as caught:
        jobs.find_job(text)
    assert caught.value.hint.endswith("local://relight/train-worker-x4c, local://relight/train-x3b")


@pytest.mark.parametrize("text", ["train", "train-11", "11", "run://relight/train-11"])
@pytest.mark.parametrize("purpose", ANY)
def test_run_job_is_found_by_name_id_pid_or_handle(jobs: Jobs, text: str, purpose: Purpose) -> None:
    jobs.run("train-11")
    assert jobs.find_job(text, purpose) == "run://relight/train-11"


@pytest.mark.parametrize("purpose", ANY)
def test_submitted_job_is_found_by_name(jobs: Jobs, purpose: Purpose) -> None:
    jobs.submit("train-x3b")
    assert jobs.find_job("train", purpose) == "local://relight/train-x3b"


def test_id_takes_precedence_over_name(jobs: Jobs) -> None:
    jobs.submit("eval-x3b", name="train-x4c")
    jobs.submit("train-x4c")
    assert jobs.find_job("train-x4c") == "local://relight/train-x4c"


END_RUN: Callable[[Jobs], None] = lambda jobs: jobs.run("train-11", 1)  # noqa: E731
END_SUBMITTED: Callable[[Jobs], None] = lambda jobs: jobs.submit(  # noqa: E731
    "train-z9d", AppState.FAILED
)


@pytest.mark.parametrize("end", [END_RUN, END_SUBMITTED])
@pytest.mark.parametrize("purpose", [Purpose.READ, Purpose.CANCEL])
def test_name_of_ended_job_refers_to_unfinished_one(
    jobs: Jobs, end: Callable[[Jobs], None], purpose: Purpose
) -> None:
    """The scheduler is queried, because the recorded state may be outdated."""
    jobs.submit("train-x3b")
    end(jobs)
    assert jobs.find_job("train", purpose) == "local://relight/train-x3b"


@pytest.mark.parametrize("purpose", ANY)
def test_name_of_several_unfinished_jobs_is_refused(jobs: Jobs, purpose: Purpose) -> None:
    jobs.submit("train-x3b")
    jobs.run("train-11")
    with pytest.raises(UsageError, match=r"^train refers to 2 (unfinished )?jobs") as caught:
        jobs.find_job("train", purpose)
    assert caught.value.hint == ("choose one: local://relight/train-x3b, run://relight/train-11")


@pytest.mark.parametrize("ids", [["train-11", "train-12"], ["train-12", "train-11"]])
def test_name_of_ended_jobs_refers_to_newest_one(jobs: Jobs, ids: list[str]) -> None:
    for job in ids:
        jobs.run(job, exit_code=0)
    assert jobs.find_job("train") == f"run://relight/{ids[-1]}"


def test_ended_job_is_not_cancelled_by_name(jobs: Jobs) -> None:
    """A job that is about to be started might be meant."""
    jobs.submit("train-x3b", AppState.SUCCEEDED)
    with pytest.raises(UsageError, match="train has already ended") as caught:
        jobs.find_job("train", Purpose.CANCEL)
    assert "local://relight/train-x3b is SUCCEEDED" in str(caught.value)
    assert jobs.find_job("train-x3b", Purpose.CANCEL) == "local://relight/train-x3b"


def test_deletion_by_name_is_refused_if_an_ended_job_has_the_same_name(jobs: Jobs) -> None:
    jobs.submit("train-x3b")
    jobs.submit("train-y4c", AppState.SUCCEEDED)
    with pytest.raises(UsageError, match="train refers to 2 jobs"):
        jobs.find_job("train", Purpose.DELETE)


def test_job_that_scheduler_has_forgotten_does_not_make_name_ambiguous(jobs: Jobs) -> None:
    jobs.submit("train-x3b", AppState.UNKNOWN)
    jobs.submit("train-y4c")
    assert jobs.find_job("train", Purpose.CANCEL) == "local://relight/train-y4c"


@pytest.mark.parametrize("purpose", [Purpose.READ, Purpose.CANCEL])
def test_job_in_unknown_state_is_preferred_to_one_that_has_ended(
    jobs: Jobs, purpose: Purpose
) -> None:
    """Its scheduler may just not respond at the moment."""
    jobs.submit("train-x3b", AppState.UNKNOWN)
    jobs.submit("train-y4c", AppState.FAILED)
    assert jobs.find_job("train", purpose) == "local://relight/train-x3b"


def test_name_with_a_space_is_found_as_it_stands_in_the_id(jobs: Jobs) -> None:
    jobs.submit("My-Job-x3b", name="My Job")
    assert jobs.find_job("My-Job") == "local://relight/My-Job-x3b"


def test_pid_that_equals_scheduler_id_refers_to_unfinished_job(jobs: Jobs) -> None:
    """Slurm's job ids and pids are both plain numbers."""
    jobs.submit("77", AppState.SUCCEEDED, id="train-x3b", handle="slurm://relight/77")
    jobs.run("eval-77")
    assert jobs.find_job("77", Purpose.CANCEL) == "run://relight/eval-77"
    jobs.states["77"] = AppState.RUNNING
    record = records.read("train-x3b")
    records.write("train-x3b", {**(record or {}), "state": "RUNNING"})
    with pytest.raises(UsageError, match="77 refers to 2 unfinished jobs"):
        jobs.find_job("77")


def test_agents_of_one_job_on_one_machine_count_as_one_job(jobs: Jobs) -> None:
    """All of them show the whole job, but `relight cancel` stops only one of them."""
    for job in ("train-11", "train-12"):
        jobs.run(job, nodes=2, run_id="mine")
    assert jobs.find_job("train") == "run://relight/train-12"
    with pytest.raises(UsageError, match="train refers to 2 unfinished jobs"):
        jobs.find_job("train", Purpose.CANCEL)


def test_suspended_agent_is_found_by_name(jobs: Jobs) -> None:
    jobs.run("train-7")
    jobs.snapshots["train-7"] = None
    assert jobs.find_job("train") == "run://relight/train-7"


def test_killed_agent_does_not_make_name_ambiguous(jobs: Jobs) -> None:
    jobs.run("train-7")
    jobs.states["train-7"] = AppState.UNKNOWN
    jobs.submit("train-x3b")
    assert jobs.find_job("train") == "local://relight/train-x3b"


def test_unknown_job_error_suggests_similar_id_or_name(jobs: Jobs) -> None:
    jobs.submit("train-x3b")
    jobs.run("evaluate-12")
    for text, hint in {
        "train-x3c/train/0": "did you mean train-x3b?",
        "trian": "did you mean train?",
        "evaluat": "did you mean evaluate?",
        "zzz": "see relight list",
    }.items():
        with pytest.raises(UsageError, match="no such job: ") as caught:
            jobs.find_job(text)
        assert caught.value.hint == hint


@pytest.mark.parametrize("text", ["", "/", "a/b/x", "local://relight", "a b"])
def test_invalid_text_is_refused(jobs: Jobs, text: str) -> None:
    jobs.submit("a-x3b")
    with pytest.raises(UsageError, match="is not a job handle"):
        jobs.find_job(text)
