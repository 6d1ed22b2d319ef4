"""Derives a job's status from the output of DescribeJobs for the job and its nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

from relight.job.app import AppState
from relight.schedulers.api import AppStatus, ReplicaStatus, by_cause
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
"""The reason that relight gives when it terminates a job."""
_OOM = "OutOfMemoryError"


def roles(job: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return a job's roles in order, each with its number of replicas."""
    nodes = job.get("nodeProperties")
    if nodes is None:
        return [(_role_name(job.get("container") or {}), 1)]
    found = []
    for each in nodes.get("nodeRangeProperties") or ():
        first, _, last = str(each["targetNodes"]).partition(":")
        found.append((_role_name(each.get("container") or {}), int(last) - int(first) + 1))
    return found


def node_number(job: Mapping[str, Any], role: str, replica: int) -> int:
    """Return the node number of a replica."""
    names = [name for name, size in roles(job) for _ in range(size)]
    return names.index(role) + replica


def state(job: Mapping[str, Any]) -> AppState:
    """Return the state of a job or of one of its nodes. A job that was terminated is CANCELLED, no
    matter which tool terminated it. A job that was terminated by Batch's own timeout is FAILED.
    """
    if job.get("status") == "FAILED":
        reason = str(job.get("statusReason") or "")
        stopped = job.get("isCancelled") or job.get("isTerminated")
        if reason == CANCELLED or (stopped and "timeout" not in reason.lower()):
            return AppState.CANCELLED
    return _STATES.get(str(job.get("status")), AppState.UNKNOWN)


def status(job: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> AppStatus:
    """Return a job's status. As in Batch itself, a job has the status of its main node ("Job
    lifecycle for MNP jobs" in the AWS Batch user guide).

    Args:
        job: the job.
        nodes: the nodes that exist, or only the job itself if it has a single container.
    """
    by_number = {_number(each): each for each in nodes}
    whole = state(job)
    found: list[ReplicaStatus] = []
    for role, size in roles(job):
        for number in range(size):
            node = by_number.get(len(found))
            if node is None:
                found.append(ReplicaStatus(role, number, _not_started(whole)))
            else:
                found.append(_replica(role, number, node, whole))
    message = " ".join(str(job.get("statusReason") or "").split())
    if whole is AppState.FAILED:
        why = (f"{x.role}/{x.replica}: {x.error}" for x in by_cause(found) if x.error)
        message = next(why, "") or message
    elif whole in (AppState.RUNNING, AppState.SUCCEEDED):
        message = ""
    return AppStatus(whole, message, tuple(found), _restarts(job, whole))


def streams(job: Mapping[str, Any]) -> list[str]:
    """Return a container's log streams in order, one for each attempt that has started."""
    containers = [each.get("container") or {} for each in job.get("attempts") or ()]
    containers.append(job.get("container") or {})
    names = (str(each.get("logStreamName") or "") for each in containers)
    return list(dict.fromkeys(name for name in names if name))


def log_group(job: Mapping[str, Any]) -> str:
    """Return a container's log group."""
    logging = (job.get("container") or {}).get("logConfiguration") or {}
    return str((logging.get("options") or {}).get(request.GROUP_OPTION) or request.LOG_GROUP)


def _role_name(container: Mapping[str, Any]) -> str:
    variables = {each.get("name"): each.get("value") for each in container.get("environment") or ()}
    return str(variables.get(request.ROLE_NAME) or "")


def _restarts(job: Mapping[str, Any], whole: AppState) -> int:
    """Return how many times a job has been restarted. The job's list of attempts may or may not
    include the running attempt.
    """
    ended = sum(1 for each in job.get("attempts") or () if each.get("stoppedAt"))
    return max(0, ended - 1) if whole.is_over else ended


def _not_started(whole: AppState) -> AppState:
    """Return the state of a node that Batch's description of the job doesn't include."""
    if whole is AppState.CANCELLED:
        return whole
    return AppState.UNKNOWN if whole.is_over else AppState.SUBMITTED


def _number(node: Mapping[str, Any]) -> int:
    number = str(node.get("jobId") or "").rpartition("#")[2]
    return int(number) if number.isdecimal() else 0


def _replica(role: str, number: int, node: Mapping[str, Any], whole: AppState) -> ReplicaStatus:
    container = node.get("container") or {}
    code = container.get("exitCode")
    its, error = state(node), ""
    if whole is AppState.CANCELLED and its is not AppState.SUCCEEDED:
        its = AppState.CANCELLED
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
