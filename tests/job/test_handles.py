"""`scheduler://session/job`: valid and invalid handles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base.errors import UsageError
from relight.job.handles import Handle, to_handle


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
    assert to_handle(text) == expected


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
        to_handle(text)
    assert "SCHEDULER://SESSION/JOB" in caught.value.hint


PART = st.from_regex(r"\A[A-Za-z0-9_.:-]{1,20}\Z")


@given(st.from_regex(r"\A[a-z0-9_.-]{1,9}\Z"), PART, PART)
def test_handle_round_trips_through_string(scheduler: str, session: str, app_id: str) -> None:
    handle = Handle(scheduler, session, app_id)
    assert to_handle(str(handle)) == handle
