"""The reason for a job's failure, derived from its pods."""

from typing import Any

import pytest

from relight.schedulers.kubernetes import pods, replicas
from relight.schedulers.kubernetes.kinds import DEFAULT

HEADLINE = "rank 9 raised ValueError: bad sample at /data/train.py:4 in load"


def pod(index: int, exitcode: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    ended = {"exitCode": exitcode, "reason": reason, "message": message}
    labels = {pods.ROLE: "train", replicas.INDEX: str(index)}
    statuses = [{"name": "main", "state": {"terminated": ended}}]
    return {
        "metadata": {"name": f"job-x1-{index}", "labels": labels},
        "status": {"phase": "Failed", "containerStatuses": statuses},
    }


def why(*its: dict[str, Any]) -> str:
    failed = {"type": "Failed", "status": "True", "message": "a pod failed"}
    job = {
        "kind": "Job",
        "metadata": {"name": "job-x1", "labels": {pods.ROLE: "train"}},
        "spec": {"completions": 2},
        "status": {"conditions": [failed]},
    }
    return replicas.status(DEFAULT, [job], its).message


@pytest.mark.parametrize("left", [(0,), (1,), (0, 1)])
def test_reason_names_failed_rank_and_no_replica(left: tuple[int, ...]) -> None:
    """All agents report the same headline, and the failed rank's pod may have been deleted."""
    assert why(*(pod(index, 1, HEADLINE) for index in left)) == f"train: {HEADLINE}"


def test_reason_that_all_agents_share_names_no_replica() -> None:
    said = "hang: no rank made progress for 300 s"
    assert why(pod(0, 124, said), pod(1, 124, said)) == f"train: {said}"


@pytest.mark.parametrize(
    "said",
    [
        "probably rank 5: it was killed by signal 9 (SIGKILL)",
        "perhaps rank 5 never entered all_reduce",
        "the ranks were in different collectives",
    ],
)
def test_reason_with_likely_rank_names_no_replica(said: str) -> None:
    assert why(pod(1, 1, said)) == f"train: {said}"


def test_reason_without_termination_message_names_replica() -> None:
    assert why(pod(0, 1), pod(1, 1)) == "train/0: exit code 1"


def test_reason_names_replica_with_an_error_of_its_own() -> None:
    assert why(pod(0, 143), pod(1, 3, "no GPU")) == "train/1: no GPU"


def test_container_out_of_memory_is_the_cause_although_it_was_killed() -> None:
    """The kernel kills all of the container's processes, so its agent reports nothing."""
    found = why(pod(0, 3, "gave up after 600 s"), pod(1, 137, reason="OOMKilled"))
    assert found.startswith("train/1: out of memory")
