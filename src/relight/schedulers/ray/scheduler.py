"""Runs jobs on an existing Ray cluster through the REST API of its dashboard.

    render   builds the driver's order and the request (`request`), displayed as JSON
    submit   uploads the job's package, and submits the job
    status   reads the job's state in Ray, and the status file written by its driver (`states`)
    logs     reads the replica's file in the cluster's logs
    cancel   stops the job, whose driver then ends the replicas
    delete   also removes it from Ray's list

A job's id is HOST:PORT:JOB, where HOST:PORT is the dashboard's address.
"""

import contextlib
import json
import os
import queue
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relight.base import redaction
from relight.base.errors import MachineError, UsageError
from relight.base.text import split_lines
from relight.job import workspaces
from relight.job.app import NOTHING, AppDef, RetryPolicy
from relight.job.user import user_name
from relight.schedulers import resource_checks
from relight.schedulers.api import (
    AppStatus,
    Capabilities,
    JobSummary,
    LogQuery,
    Option,
    Request,
    Scheduler,
    check_replica,
    local_time,
    with_job_id,
)
from relight.schedulers.ray import dashboard, request, states
from relight.schedulers.ray.dashboard import Dashboard
from relight.schedulers.uninterruptible import finished

_POLL_S = 1.0
_TRIES = 5
"""The maximum number of times to reconnect to a log without receiving new output."""
_STOP_S = request.GRACE_S + 30.0
_NO_CLUSTER = (
    "relight does not start clusters; select an existing one with -cfg dashboard_address=HOST:8265"
)
_REFUSED = {
    "cluster_config_file": (
        f"{_NO_CLUSTER} (`ray dashboard FILE` forwards its port to this machine)"
    ),
    "cluster_name": _NO_CLUSTER,
}
"""TorchX options that don't apply to this scheduler, and the alternatives."""


class Ray(Scheduler):
    """Submits jobs to a Ray cluster."""

    name = "ray"
    options: Sequence[Option] = (
        Option("dashboard_address", str, None, f"HOST:PORT or URL of the dashboard (default: "
        f"RAY_API_SERVER_ADDRESS or RAY_ADDRESS, or otherwise {dashboard.DEFAULT})"),
        Option("strategy", str, "STRICT_SPREAD", "how to place replicas: each on a separate node, "
        "spread out if possible, or together", False, ("STRICT_SPREAD", "SPREAD", "PACK")),
        Option("resources", dict, None, "custom resources of each replica, NAME:NUMBER;…"),
        Option("requirements", str, None, "requirements.txt with packages that Ray installs"),
        Option("timeout", int, None, "minutes after which a replica is stopped"),
        Option("workspace", str, None, "directory to copy for the job, which runs in the copy"),
        Option("sync", bool, False, "copy the working directory, as with workspace"),
        Option("cluster_config_file", str, None, "TorchX option; not supported: use "
        "dashboard_address"),
        Option("cluster_name", str, None, "TorchX option; not supported: use dashboard_address"),
    )  # fmt: skip
    capabilities = Capabilities(retries=True, resources=True, elastic=True)

    def affinity(self) -> int:
        """Return how suitable Ray is on this machine. Ray requires an environment variable that
        specifies a cluster.
        """
        return 5 if dashboard.is_named() else 0

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        """Return the request for an app. See `Scheduler.render`."""
        for name, hint in _REFUSED.items():
            if cfg.get(name):
                raise UsageError(f"invalid value for -cfg {name}: {cfg[name]}", hint=hint)
        name = request.ray_name(app_id)
        url = dashboard.dashboard_url(cfg.get("dashboard_address"))
        whole = dashboard.format_app_id(url, name)
        app = with_job_id(app, whole)
        body: dict[str, Any] = {
            "url": url,
            "app_id": whole,
            "job": request.job(app, cfg, name),
            "order": request.order(app, cfg, name, secrets.token_hex(16)),
            "workspace": _workspace(cfg),
        }
        shown = request.text(url, {**body, "order": _without_secrets(body["order"])})
        return Request(self.name, app, cfg, body, shown, tuple(_notes(app)), whole)

    def submit(self, request_: Request) -> str:
        """Upload the package, submit the job, and return the app's id. If Ray rejects the job, it
        removes the uploaded package on its own after ten minutes.
        """
        body = request_.body
        cluster = Dashboard(str(body["url"]))
        cluster.check()
        name, data = request.package(body["order"], body["workspace"])
        cluster.upload(name, data)
        job = dict(body["job"])
        job["runtime_env"] = {**job["runtime_env"], "working_dir": f"gcs://{name}"}
        try:
            finished(cluster.submit, job)
        except UsageError:
            raise
        except BaseException:  # such as a signal; the job may be running
            _stop(cluster, job["submission_id"], body["app_id"])
            raise
        return str(body["app_id"])

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        """Return the status of each job that exists."""
        found = {}
        for app_id in app_ids:
            cluster, name = _parse(app_id)
            job = cluster.job(name)
            if job is not None:
                found[app_id] = _status(cluster, name, job)
        return found

    def logs(self, app_id: str, query: LogQuery) -> Iterator[str]:
        """Return a replica's output lines, with stdout and stderr combined, regardless of which
        node the replica ran on.
        """
        cluster, name = _parse(app_id)
        sizes = _sizes(_job(cluster, app_id, name))
        check_replica(app_id, query, sizes)
        log = _Log(cluster, name, request.log_name(name, query.role, query.replica))
        return split_lines(log.follow() if query.follow else log.whole())

    def cancel(self, app_id: str) -> None:
        """Stop a job, whose driver then stops the replicas."""
        cluster, name = _parse(app_id)
        if not states.state(_job(cluster, app_id, name)).is_over:
            cluster.stop(name)

    def delete(self, app_id: str) -> None:
        """Stop a job, and remove it from Ray's list. As with all Ray jobs, the log files stay on
        the head node until the cluster shuts down, although nothing refers to them any longer.
        """
        self.cancel(app_id)
        cluster, name = _parse(app_id)
        job = cluster.job(name)
        end = time.monotonic() + _STOP_S
        while job is not None and not states.state(job).is_over:
            if time.monotonic() >= end:
                raise MachineError(f"timed out after {_STOP_S:.0f} s waiting for {app_id} to stop")
            time.sleep(_POLL_S / 4)
            job = cluster.job(name)
        if job is not None:
            cluster.delete(name)

    def list(self, cfg: Mapping[str, Any] = NOTHING, /) -> Sequence[JobSummary]:
        """Return this user's jobs, newest first, on the cluster that the settings or environment
        variables specify.
        """
        url, user = dashboard.dashboard_url(cfg.get("dashboard_address")), user_name()
        found = [
            (job, job["metadata"])
            for job in Dashboard(url).jobs()
            if job.get("submission_id") and (job.get("metadata") or {}).get(request.USER) == user
        ]
        found.sort(key=lambda each: each[0].get("start_time") or 0, reverse=True)
        return [
            JobSummary(
                dashboard.format_app_id(url, job["submission_id"]),
                states.state(job),
                metadata.get(request.NAME, job["submission_id"]),
                local_time(job.get("start_time")),
            )
            for job, metadata in found
        ]


def _stop(cluster: Dashboard, name: str, app_id: str) -> None:
    """Stop a job if it exists even though no response to its submission was received.

    Raises:
        MachineError: if the job may still be running.
    """
    try:
        cluster.stop(name)
    except UsageError:
        return  # the job does not exist
    except MachineError as error:
        raise MachineError(
            f"no response to the submission of {app_id}, and stopping it failed; it may be "
            f"running: {error.message}",
            hint=f"relight delete ray://relight/{app_id}",
        ) from None


class _Log:
    """A replica's log, read piece by piece."""

    def __init__(self, cluster: Dashboard, job: str, file: str) -> None:
        self._cluster, self._job, self._file = cluster, job, file
        self._seen = 0
        """The number of bytes yielded so far."""

    def whole(self) -> Iterator[bytes]:
        """Yield everything that follows the last byte yielded so far."""
        node = self._node()
        data = self._cluster.file(node, self._file) if node else None
        if data and len(data) > self._seen:
            yield data[self._seen :]
            self._seen = len(data)

    def follow(self) -> Iterator[bytes]:
        """Yield the existing content, and then new content until the job is over. Reconnect if
        necessary.
        """
        tries = _TRIES
        while True:
            before = self._seen
            try:
                if self._is_over():
                    break
                yield from self._stream()
            except MachineError:
                tries = _TRIES if self._seen > before else tries - 1
                if not tries:
                    raise
                time.sleep(_POLL_S)
        yield from self.whole()

    def _stream(self) -> Iterator[bytes]:
        """Yield the content that follows the last byte yielded so far, until the job ends or the
        stream stalls.
        """
        if not self._is_there():
            time.sleep(_POLL_S)
            return
        pieces: queue.Queue[bytes | MachineError | None] = queue.Queue()
        source = self._cluster.follow(self._node(), self._file)
        threading.Thread(target=_read_into, args=(source, pieces), daemon=True).start()
        known = self._seen
        while True:
            try:
                piece = pieces.get(timeout=_POLL_S)
            except queue.Empty:
                if self._is_over():
                    return
                continue
            if piece is None:
                return
            if isinstance(piece, MachineError):
                raise piece
            fresh, known = piece[known:], max(0, known - len(piece))
            self._seen += len(fresh)
            yield fresh

    def _is_there(self) -> bool:
        """Return whether there is any output yet, because Ray can't stream an empty log."""
        node = self._node()
        return bool(node and self._cluster.file(node, self._file))

    def _node(self) -> str:
        """Return the id of the driver's node, or an empty string if the driver has not been placed
        yet.
        """
        return str((self._cluster.job(self._job) or {}).get("driver_node_id") or "")

    def _is_over(self) -> bool:
        job = self._cluster.job(self._job)
        return job is None or states.state(job).is_over


def _read_into(source: Iterator[bytes], pieces: "queue.Queue[bytes | MachineError | None]") -> None:
    """Copy a stream to a queue. When the stream ends, add None or the error that ended it."""
    try:
        for piece in source:
            pieces.put(piece)
    except MachineError as error:
        pieces.put(error)
    else:
        pieces.put(None)


def _workspace(cfg: Mapping[str, Any]) -> str | None:
    """Return the directories to copy.

    Raises:
        UsageError: if a directory does not exist.
    """
    if cfg.get("workspace"):
        return workspaces.absolute(cfg["workspace"])
    return os.getcwd() if cfg.get("sync") else None


def _parse(app_id: str) -> tuple[Dashboard, str]:
    """Return the dashboard and the name of the job with this id."""
    url, name = dashboard.parse_app_id(app_id)
    return Dashboard(url), name


def _job(cluster: Dashboard, app_id: str, name: str) -> dict[str, Any]:
    job = cluster.job(name)
    if job is None:
        raise UsageError(f"no job {app_id} on this cluster", hint="relight list -s ray")
    return job


def _status(cluster: Dashboard, name: str, job: Mapping[str, Any]) -> AppStatus:
    node = job.get("driver_node_id")
    data = None
    if node:
        with contextlib.suppress(MachineError):  # the driver's node is lost, so use Ray's own state
            data = cluster.file(str(node), request.status_name(name))
    return states.status(job, json.loads(data) if data else None, _sizes(job))


def _sizes(job: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of replicas of each role. The result is empty for a job that relight did
    not submit.
    """
    said: dict[str, int] = json.loads((job.get("metadata") or {}).get(request.ROLES) or "{}")
    return said


def _notes(app: AppDef) -> Iterator[str]:
    yield from resource_checks.too_little(app, gpus=True)
    for role in app.roles:
        if role.max_retries and role.retry_policy is not RetryPolicy.REPLICA:
            yield f"{role.name}: on Ray, replicas are retried individually"
    yield from resource_checks.ignored_files(app, "replicas see the files of their node")


def _without_secrets(order: Mapping[str, Any]) -> dict[str, Any]:
    roles = [
        {
            **role,
            "argv": redaction.redact_argv(role["argv"]),
            "env": redaction.redact_env(role["env"]),
        }
        for role in order["roles"]
    ]
    return {**order, "token": redaction.HIDDEN, "roles": roles}
