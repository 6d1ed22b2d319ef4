"""The status of a job, from what DescribeJobs says of it and of its nodes."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from relight.job.app import AppState
from relight.schedulers.api import AppStatus, ReplicaStatus
from relight.schedulers.aws_batch import request

_STATES = {
    "SUBMITTED": AppState.PENDING,
    "PENDING": AppState.PENDING,
    "RUNNABLE": AppState.PENDING,
    "STARTING": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "SUCCEEDED": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
}
CANCELLED = "cancelled by relight"
"""The reason with which relight terminates a job."""
_OOM = "OutOfMemoryError"


def roles(job: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the roles of a job and their sizes, in order."""
    pairs = str((job.get("tags") or {}).get(request.ROLES) or "").split()
    split = [pair.rpartition(":") for pair in pairs]
    return [(name, int(size)) for name, _, size in split if size.isdecimal()]


def node_of(job: Mapping[str, Any], role: str, replica: int) -> int | None:
    """Return the number of a replica's node in the job; None if there is none."""
    first = 0
    for name, size in roles(job):
        if name == role:
            return first + replica if 0 <= replica < size else None
        first += size
    return None


def state(job: Mapping[str, Any]) -> AppState:
    """Return the state of a job, or of a node of it."""
    if job.get("status") == "FAILED" and job.get("statusReason") == CANCELLED:
        return AppState.CANCELLED
    return _STATES.get(str(job.get("status")), AppState.UNKNOWN)


def status(job: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> AppStatus:
    """Return the status of a job.

    Args:
        job: the job.
        nodes: its nodes, as far as they exist; the job itself if it has one container.
    """
    by_number = {_number(each): each for each in nodes}
    found: list[ReplicaStatus] = []
    for role, size in roles(job):
        for number in range(size):
            node = by_number.get(len(found))
            if node is None:
                found.append(ReplicaStatus(role, number, AppState.SUBMITTED, "", None, ""))
            else:
                found.append(_replica(role, number, node))
    whole = state(job)
    message = str(job.get("statusReason") or "")
    if whole is AppState.FAILED:
        why = (f"{x.role}/{x.replica}: {x.error}" for x in found if x.error)
        message = next(why, "") or message
    elif whole in (AppState.RUNNING, AppState.SUCCEEDED):
        message = ""
    return AppStatus(whole, message, tuple(found), max(0, len(job.get("attempts") or ()) - 1))


def submitted(job: Mapping[str, Any]) -> str:
    """Return when a job was submitted, in local time; empty if unknown."""
    stamp = job.get("createdAt")
    if not isinstance(stamp, int | float):
        return ""
    return datetime.fromtimestamp(stamp / 1000).astimezone().isoformat(timespec="seconds")


def stream(job: Mapping[str, Any]) -> str:
    """Return the log stream of a job's container; empty if it has none yet."""
    return str((job.get("container") or {}).get("logStreamName") or "")


def _number(node: Mapping[str, Any]) -> int:
    number = str(node.get("jobId") or "").rpartition("#")[2]
    return int(number) if number.isdecimal() else 0


def _replica(role: str, number: int, node: Mapping[str, Any]) -> ReplicaStatus:
    container = node.get("container") or {}
    code = container.get("exitCode")
    its, error = state(node), ""
    if its is AppState.FAILED:
        reason = " ".join(str(container.get("reason") or "").split())
        if _OOM in reason:
            error = "out of memory: the container used more than its limit"
        else:
            error = reason or (f"exit code {code}" if code else str(node.get("statusReason") or ""))
    elif its is AppState.PENDING:
        error = str(node.get("statusReason") or "")
    host = str(container.get("containerInstanceArn") or "").rpartition("/")[2]
    return ReplicaStatus(role, number, its, host, code, error)
