"""A job's status, derived from its replicas' statuses."""

import pytest

from relight.job.app import AppState
from relight.job.status import AppStatus, ReplicaStatus

FAILED, SUCCEEDED, CANCELLED = AppState.FAILED, AppState.SUCCEEDED, AppState.CANCELLED


@pytest.mark.parametrize(
    ("ends", "exit_code"),
    [
        ([(FAILED, 143), (FAILED, 3)], 3),
        ([(FAILED, 143), (FAILED, 137)], 137),
        ([(FAILED, -15), (FAILED, -11)], 139),
        ([(FAILED, 143), (SUCCEEDED, 0)], 143),
        ([(CANCELLED, 1), (FAILED, 143)], 143),
        ([(FAILED, 7), (FAILED, 3)], 7),
        ([(FAILED, None)], 1),
    ],
)
def test_job_exit_code_comes_from_replica_that_caused_the_failure(
    ends: list[tuple[AppState, int | None]], exit_code: int
) -> None:
    """A replica stopped with SIGTERM or SIGKILL because another one failed doesn't count."""
    replicas = [ReplicaStatus("r", n, state, exitcode=code) for n, (state, code) in enumerate(ends)]
    assert AppStatus(FAILED, replicas=tuple(replicas)).exitcode == exit_code
