"""Lists the containers that belong to jobs, and derives each job's status from its containers.

Labels can't be changed, so a container is marked by adding a suffix to its name when it is stopped
on request.
"""

import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from relight.job.app import AppState
from relight.output import error_files
from relight.schedulers.api import AppStatus, ReplicaStatus
from relight.schedulers.docker.daemon import ignoring
from relight.schedulers.docker.request import ERROR_FILE, Label
from relight.schedulers.failure_reason import last_words

CANCELLED, STOPPED = ".cancelled", ".stopped"
"""Name suffixes for containers that were stopped by a command, or because another container
failed.
"""
_LINES, _LINE_LIMIT = 200, 300
_FILE_LIMIT = 1 << 24
_STATES = {
    "created": AppState.SUBMITTED,
    "restarting": AppState.PENDING,
    "paused": AppState.PENDING,
    "removing": AppState.PENDING,
    "running": AppState.RUNNING,
    "dead": AppState.FAILED,
}


class Container(NamedTuple):
    """A container. The `mark` field is the suffix that was added to its name if it was stopped on
    request, or empty. The `is_cause` field is whether its agent reports that one of its own workers
    failed. All agents of a role report the same failure.
    """

    id: str
    name: str
    mark: str
    labels: Mapping[str, str]
    state: AppState
    made: float
    exitcode: int | None
    restarts: int
    error: str
    is_cause: bool = False

    @property
    def role(self) -> str:
        """The role that this replica belongs to."""
        return self.labels[Label.ROLE]

    @property
    def number(self) -> int:
        """The replica's number within its role."""
        return int(self.labels[Label.REPLICA])

    @property
    def app_name(self) -> str:
        """The app's name."""
        return self.labels.get(Label.APP_NAME, "")

    @property
    def is_live(self) -> bool:
        """Whether the container has not finished yet."""
        return not self.state.is_over


def jobs(client: Any, app_ids: Sequence[str] | None, *labels: str) -> dict[str, list[Container]]:
    """Return the containers of each job in replica order, keyed by job id.

    Args:
        client: the daemon's client.
        app_ids: the jobs to return, including the causes of failures. If None, all jobs are
            returned, without causes.
        labels: return only containers that have these labels.
    """
    found: dict[str, list[Container]] = {}
    for listed in client.containers(all=True, filters={"label": [Label.APP_ID, *labels]}):
        app_id = listed["Labels"][Label.APP_ID]
        if app_ids is None or app_id in app_ids:
            replica = _replica(client, listed)
            if replica is not None and app_ids is not None and replica.exitcode:
                replica = with_cause(client, replica)
            if replica is not None:
                found.setdefault(app_id, []).append(replica)
    for replicas in found.values():
        replicas.sort(key=lambda replica: (replica.made, replica.role, replica.number))
    return found


def status(found: Sequence[Container]) -> AppStatus:
    """Derive a job's status from its containers. The job is over once all of its containers have
    finished.
    """
    statuses = [
        ReplicaStatus(r.role, r.number, r.state, r.name.split(".")[0], r.exitcode, r.error)
        for r in found
    ]
    state, message = verdict(found)
    if state.is_over and any(replica.is_live for replica in found):
        state, message = AppState.RUNNING, f"{message}; the others are being stopped"
    return AppStatus(state, message, tuple(statuses), sum(r.restarts for r in found))


def verdict(found: Sequence[Container]) -> tuple[AppState, str]:
    """Return a job's current or expected state, and the reason for it. A job has failed as soon as
    a role can't reach its minimum number of replicas.
    """
    states = [replica.state for replica in found]
    if any(replica.mark == CANCELLED for replica in found):
        over = all(state.is_over for state in states)
        return (AppState.CANCELLED if over else AppState.RUNNING), "it was cancelled"
    missing = int(found[0].labels.get(Label.REPLICAS, len(found))) - len(found)
    if missing > 0 and any(state is not AppState.SUBMITTED for state in states):
        return AppState.FAILED, f"{missing} of its containers were removed"
    for role in dict.fromkeys(replica.role for replica in found):
        its = [replica for replica in found if replica.role == role]
        failed = [replica for replica in its if replica.state is AppState.FAILED]
        least = int(its[0].labels.get(Label.MIN_REPLICAS, len(its)))
        if failed and len(its) - len(failed) < least:
            cause = next((replica for replica in failed if replica.is_cause), failed[0])
            return AppState.FAILED, _failure_reason(cause)
    left = [state for state in states if not state.is_over]
    if left:
        return (AppState.RUNNING if AppState.RUNNING in left else left[0]), ""
    return AppState.SUCCEEDED, ""


def stop(client: Any, found: Sequence[Container], mark: str, *, kill: bool = False) -> None:
    """Send SIGTERM to containers that have not received it yet. The containers are marked first, so
    that their exit codes don't count as failures.

    Args:
        client: the daemon's client.
        found: the containers of one job. Containers that have already finished are skipped.
        mark: `CANCELLED` or `STOPPED`.
        kill: send SIGKILL instead, even to containers that have already received SIGTERM.
    """
    for replica in found:
        if not replica.is_live or (replica.mark and not kill):
            continue
        with ignoring(404, 409):  # already finished or removed
            if not replica.mark:
                client.rename(replica.id, replica.name + mark)
            if kill or replica.state is not AppState.RUNNING:
                client.stop(replica.id, timeout=1)
            else:
                client.kill(replica.id, "SIGTERM")


def _replica(client: Any, listed: Mapping[str, Any]) -> Container | None:
    """Return a container, or None if it has just been removed."""
    import docker

    name = str(listed["Names"][0]).lstrip("/")
    mark = next((mark for mark in (CANCELLED, STOPPED) if name.endswith(mark)), "")
    state = _STATES.get(listed["State"], AppState.UNKNOWN)
    labels = listed["Labels"]
    exitcode, restarts, error = None, 0, ""
    match = re.match(r"Exited \((-?\d+)\)", listed["Status"])
    if match:
        exitcode = int(match[1])
    if exitcode or state is AppState.FAILED or labels.get(Label.RETRIES, "0") != "0":
        try:
            inspected = client.inspect_container(listed["Id"])
        except docker.errors.NotFound:
            return None
        restarts, error = inspected["RestartCount"], _error(inspected)
    if exitcode is not None:
        ended = AppState.CANCELLED if mark else AppState.FAILED
        state = AppState.SUCCEEDED if exitcode == 0 else ended
    elif mark and state is AppState.SUBMITTED:  # created, but never started
        state = AppState.CANCELLED
    return Container(
        listed["Id"], name, mark, labels, state, listed["Created"], exitcode, restarts, error
    )


def _error(inspected: Mapping[str, Any]) -> str:
    state = inspected["State"]
    if state.get("OOMKilled"):
        limit = inspected["HostConfig"].get("Memory", 0) // 2**20
        return f"out of memory{f' (it had {limit} MiB)' if limit else ''}"
    return " ".join(str(state.get("Error") or "").split())


def with_cause(client: Any, replica: Container) -> Container:
    """Add the error from the replica's error file. Not every program writes an error file, so the
    fallback is the last line on stderr. A replica that caused the failure has failed, even if it
    was about to exit when it was stopped. A cancelled replica needs no reason.
    """
    if replica.mark == CANCELLED:
        return replica
    import docker

    try:
        report = _error_file(client, replica.id)
        is_cause = error_files.is_of_own_worker(report)
        if replica.mark == STOPPED and is_cause:
            replica = replica._replace(state=AppState.FAILED)
        if replica.state is not AppState.FAILED:
            return replica
        replica = replica._replace(is_cause=is_cause)
        text = replica.error or error_files.failure_line(report)
        if not text:
            # Docker's `tail` option counts lines from both streams, even if only one is requested.
            said = client.logs(replica.id, stdout=False, stderr=True, tail=_LINES)
            text = last_words(said.decode(errors="replace").splitlines(), replica.exitcode)
    except docker.errors.APIError:  # the container is being removed, or uses a different log driver
        return replica
    return replica._replace(error=" ".join(text.split())[:_LINE_LIMIT])


def _error_file(client: Any, container_id: str) -> str:
    import docker

    try:
        pieces, facts = client.get_archive(container_id, ERROR_FILE)
        packed = b"".join(pieces) if facts["size"] < _FILE_LIMIT else b""
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            file = tar.extractfile(tar.getmembers()[0])
            return file.read().decode(errors="replace") if file is not None else ""
    except (docker.errors.NotFound, tarfile.TarError, LookupError):
        return ""


def _failure_reason(replica: Container) -> str:
    why = f"{replica.role}/{replica.number} failed with exit code {replica.exitcode}"
    return f"{why}: {replica.error}" if replica.error else why
