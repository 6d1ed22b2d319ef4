"""Derives a job's status from Ray's description and the driver's status file."""

from collections.abc import Mapping
from typing import Any

from relight.base.text import last_line
from relight.job.app import AppState
from relight.schedulers import failure_reason
from relight.schedulers.api import AppStatus, ReplicaStatus

_STATES = {
    "PENDING": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "STOPPED": AppState.CANCELLED,
    "SUCCEEDED": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
}
_KILLED, _BROKEN = "the driver of the job was killed", "the driver of the job has failed"


def state(job: Mapping[str, Any]) -> AppState:
    """Return the state that Ray reports for a job."""
    return _STATES.get(str(job.get("status")), AppState.UNKNOWN)


def status(
    job: Mapping[str, Any], written: Mapping[str, Any] | None, sizes: Mapping[str, int]
) -> AppStatus:
    """Return a job's status.

    Args:
        job: Ray's description of the job.
        written: the status that the job's driver has written, or None if it is missing or lost.
        sizes: the number of replicas of each role, used if the driver's status is missing.
    """
    whole = state(job)
    if written is None:
        waiting = AppState.SUBMITTED if not whole.is_over else whole
        every = [(role, number) for role, size in sizes.items() for number in range(size)]
        replicas = tuple(ReplicaStatus(*each, waiting) for each in every)
        return AppStatus(whole, "" if whole is AppState.RUNNING else _message(job), replicas)
    replicas = tuple(_replica(each, whole, _end(job)) for each in written["replicas"])
    message = str(written["message"])
    if whole is AppState.RUNNING and not any(x.state is AppState.RUNNING for x in replicas):
        whole = AppState.PENDING
        message = message or next(
            (f"{x.role}/{x.replica}: {x.error}" for x in replicas if x.error), ""
        )
    if whole is AppState.FAILED and not message:
        message = _end(job)
    return AppStatus(whole, message, replicas, written["restarts"])


def _replica(written: list[Any], whole: AppState, end: str) -> ReplicaStatus:
    role, number, name, host, exitcode, error = written
    its = AppState[name]
    if whole.is_over and not its.is_over:  # the driver exited before it could report the end
        its = AppState.CANCELLED if whole is AppState.CANCELLED else AppState.FAILED
        error = end if its is AppState.FAILED else error
    return ReplicaStatus(role, number, its, host, exitcode, error)


def _end(job: Mapping[str, Any]) -> str:
    """Explain how the driver ended, if the driver did not report this itself."""
    code = job.get("driver_exit_code")
    last = last_line(str(job.get("message") or ""))
    if code is None or code < 0 or not last:
        return _KILLED
    return failure_reason.in_a_line(f"{_BROKEN}: {last}")


def _message(job: Mapping[str, Any]) -> str:
    return failure_reason.in_a_line(str(job.get("message") or ""))
