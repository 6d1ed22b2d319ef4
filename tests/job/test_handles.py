"""`scheduler://session/job`: valid handles, and jobs identified by id alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base.errors import UsageError
from relight.job import records
from relight.job.handles import Handle
from relight.job.lookup import find_job


def record(name: str, **fields: Any) -> None:
    whole = {
        "id": name, "app_id": name, "handle": f"local://relight/{name}", "scheduler": "local",
        "name": "a", "state": "RUNNING", "submitted": "2026-01-01T00:00:00+00:00", **fields,
    }  # fmt: skip
    records.write(name, whole)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("local://relight/a-1", Handle("local", "relight", "a-1")),
        ("local_cwd://torchx/a", Handle("local_cwd", "torchx", "a")),
        ("slurm:///77", Handle("slurm", "", "77")),
        ("k8s://s/ns:job", Handle("k8s", "s", "ns:job")),
        ("s://s/a/", Handle("s", "s", "a")),
        ("s://s/a/role", Handle("s", "s", "a", "role")),
        ("s://s/a/role/", Handle("s", "s", "a", "role")),
        ("s://s/a/role/0", Handle("s", "s", "a", "role", (0,))),
        ("s://s/a/role/0,2,", Handle("s", "s", "a", "role", (0, 2))),
        ("s://s/a/role/1,1,0", Handle("s", "s", "a", "role", (1, 0))),
    ],
)
def test_handle_can_refer_to_job_role_or_replicas(text: str, expected: Handle) -> None:
    assert find_job(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "://", "local://", "local://relight", "local://relight/", "local:/relight/a",
        "a/b/x", "local://relight/a b", "lo cal://relight/a", "s://s/a/r/x", "s://s/a/r/0/1",
        "s://s/a//0", "local://relight/a\n",
    ],
)  # fmt: skip
def test_invalid_handle_error_shows_expected_form(text: str) -> None:
    with pytest.raises(UsageError, match="is not a job handle") as caught:
        find_job(text)
    assert "SCHEDULER://SESSION/JOB" in caught.value.hint


PART = st.from_regex(r"\A[A-Za-z0-9_.:-]{1,20}\Z")


@given(st.from_regex(r"\A[a-z0-9_.-]{1,9}\Z"), PART, PART)
def test_handle_round_trips_through_string(scheduler: str, session: str, app_id: str) -> None:
    handle = Handle(scheduler, session, app_id)
    assert find_job(str(handle)) == handle


def test_recorded_job_is_found_by_id_alone() -> None:
    """The id is either relight's own or the one assigned by the scheduler."""
    record("train-x3b")
    record("other-y4c", app_id="77", scheduler="slurm", handle="slurm://relight/77")
    assert find_job("train-x3b") == Handle("local", "relight", "train-x3b")
    assert find_job("other-y4c") == find_job("77") == Handle("slurm", "relight", "77")


@pytest.mark.parametrize(
    ("part", "role", "replicas"),
    [("", "", ()), ("/", "", ()), ("/train", "train", ()), ("/train/0,2", "train", (0, 2))],
)
def test_replicas_of_recorded_job_are_found_by_job_id(
    part: str, role: str, replicas: tuple[int, ...]
) -> None:
    """A job's id works as well as its full handle for naming a role or replicas."""
    record("train-x3b")
    record("other-y4c", app_id="77", scheduler="slurm", handle="slurm://relight/77")
    assert find_job(f"train-x3b{part}") == Handle("local", "relight", "train-x3b", role, replicas)
    assert find_job(f"77{part}") == Handle("slurm", "relight", "77", role, replicas)


def test_unknown_job_id_error_suggests_the_closest_id() -> None:
    """If none is close, the hint says where to look."""
    record("train-x3b")
    with pytest.raises(UsageError, match="no such job: train-x3c") as caught:
        find_job("train-x3c/train/0")
    assert caught.value.hint == "did you mean train-x3b?"
    with pytest.raises(UsageError) as caught:
        find_job("zzz")
    assert caught.value.hint == "see relight list"
