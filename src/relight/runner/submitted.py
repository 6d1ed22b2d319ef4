"""Submits jobs and maintains their records."""

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from relight.base import redaction
from relight.base.env import Environment
from relight.base.errors import RelightError, UsageError
from relight.base.package import __version__
from relight.job import handles, records, serial
from relight.job.app import AppState
from relight.job.handles import Handle, to_handle
from relight.job.user import user_name
from relight.runner.prepared import Prepared
from relight.schedulers import registry
from relight.schedulers.api import AppStatus, JobSummary, Scheduler
from relight.schedulers.uninterruptible import UnansweredError

Record = dict[str, Any]
_USER = ("USER", "LOGNAME", "USERNAME")
"""Environment variables that contain the user's name. The last one is for Windows."""


class Job(NamedTuple):
    """An entry in a list of jobs. The `message` field is the reason why the job failed, or
    empty.
    """

    handle: str
    name: str
    state: AppState
    submitted: str
    message: str = ""


def submit(job: Prepared, scheduler: Scheduler, env: Environment) -> str:
    """Submit a job, write its record, and return its handle.

    Raises:
        RelightError: if the submission fails. No record is left in this case.
    """
    record = _record(job, env)
    with records.submitting(record):
        try:
            app_id = scheduler.submit(job.request)
        except UnansweredError as error:
            if job.request.app_id:
                error.hint = f"relight delete {record['handle']}, once the scheduler responds"
            raise
        handle = str(Handle(job.scheduler, job.session, app_id))
        record |= {"app_id": app_id, "handle": handle, "state": AppState.SUBMITTED.name}
    return handle


def current_handle(job: Handle) -> Handle:
    """Return a job's handle, with the id that the scheduler assigned. If the job is still being
    submitted, wait until it has been submitted.

    Raises:
        MachineError: if the submission takes too long.
    """
    record = find_record(job)
    records.wait_until_submitted(job.app_id if record is None else record["id"])
    record = find_record(job)
    if record is None or record["app_id"] == job.app_id:
        return job
    return job._replace(app_id=record["app_id"])  # the scheduler assigned a different id


def find_record(job: Handle) -> Record | None:
    """Return a job's record, or None if it was not submitted from this machine."""
    name = job.scheduler
    names = dict.fromkeys((name, registry.ALIASES.get(name, name), *registry.aliases(name)))
    found = (records.find_by_handle(each, job.app_id) for each in names)
    return next(filter(None, found), None)


def record_state(record: Record | None, found: AppStatus | None) -> None:
    """Record a job's final state, because its scheduler will eventually forget it."""
    if record is None or found is None or not found.state.is_over:
        return
    known = {"state": found.state.name, "message": redaction.redact_text(found.message)}
    if not known.items() <= record.items():
        record |= known
        try:
            records.write(record["id"], record)
        except RelightError:
            pass  # recording is optional, because the caller already has the status


def states_now(find: Callable[[str], Scheduler], found: list[Record]) -> list[AppState]:
    """Return the states of recorded jobs. A job's state is UNKNOWN if its scheduler does not
    respond.
    """
    statuses = _unfinished(find, found)
    states = []
    for record in found:
        status = statuses.get(record["handle"])
        record_state(record, status)
        states.append(AppState[record["state"]] if status is None else status.state)
    return states


def listed(
    find: Callable[[str], Scheduler], scheduler: str, session: str, cfg: Mapping[str, Any]
) -> list[Job]:
    """Return jobs, newest first. These are the jobs recorded on this machine, the `relight run`
    jobs on this machine and, if a scheduler is specified, all other jobs that this scheduler knows
    of. The argument `cfg` contains the scheduler's options from the settings.

    Raises:
        RelightError: if the given scheduler does not respond.
    """
    found = [
        record
        for record in records.every()
        if not scheduler or registry.same(record["scheduler"], scheduler)
    ]
    jobs = [
        Job(
            record["handle"],
            record["name"],
            state,
            record["submitted"],
            str(record.get("message", "")),
        )
        for record, state in zip(found, states_now(find, found), strict=True)
    ]
    known = {to_handle(record["handle"]).app_id for record in found if scheduler}
    others = find(scheduler).list(cfg) if scheduler else _run_jobs(find)
    for each in others:
        if each.app_id not in known:
            handle = str(Handle(scheduler or handles.RUN, session, each.app_id))
            jobs.append(Job(handle, each.name, each.state, each.submitted, each.message))
    return [
        job if job.state is AppState.FAILED else job._replace(message="")
        for job in sorted(jobs, key=lambda job: records.instant(job.submitted), reverse=True)
    ]


def _run_jobs(find: Callable[[str], Scheduler]) -> Sequence[JobSummary]:
    try:
        return find(handles.RUN).list({})
    except RelightError:
        return ()  # this user doesn't have a directory for sockets


def _unfinished(find: Callable[[str], Scheduler], found: list[Record]) -> dict[str, AppStatus]:
    """Return the statuses of jobs whose recorded state is not final."""
    unfinished: dict[str, list[Record]] = {}
    for record in found:
        if not AppState[record["state"]].is_over:
            unfinished.setdefault(record["scheduler"], []).append(record)
    statuses: dict[str, AppStatus] = {}
    for name, group in unfinished.items():
        known = _status(find, name, [record["app_id"] for record in group])
        for record in group:
            statuses[record["handle"]] = known.get(record["app_id"], AppStatus(AppState.UNKNOWN))
    return statuses


def _status(
    find: Callable[[str], Scheduler], name: str, app_ids: list[str]
) -> Mapping[str, AppStatus]:
    """Return the statuses of a scheduler's jobs, omitting each job whose status can't be
    determined. For example, the scheduler may have been uninstalled or may not be responding, or a
    job's cluster may no longer exist.
    """
    try:
        return find(name).status(app_ids)
    except UsageError:  # only one of the jobs may be affected
        if len(app_ids) == 1:
            return {}
        return {key: each for x in app_ids for key, each in _status(find, name, [x]).items()}
    except RelightError:
        return {}


def _record(job: Prepared, env: Environment) -> Record:
    from relight.job.workspaces import git_state, projects  # importing tarfile takes 10 ms

    app_id = job.request.app_id or job.app_id
    folder = projects(job.workspace)[0].directory if job.workspace else os.getcwd()
    git = git_state(folder if os.path.isdir(folder) else os.path.dirname(folder))
    app = serial.to_json(job.app)
    return {
        "id": job.app_id,
        "app_id": app_id,
        "handle": str(Handle(job.scheduler, job.session, app_id)),
        "scheduler": job.scheduler,
        "session": job.session,
        "name": job.app.name,
        "state": AppState.UNSUBMITTED.name,
        "submitted": datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "command": redaction.redact_argv(job.words),
        "cfg": redaction.redact_options(job.request.cfg),
        "app": redaction.redact_app(app),
        "environment": redaction.redact_environment(env.variables),
        "user": next(filter(None, map(env.get, _USER)), "") or user_name(),
        "host": socket.gethostname(),
        "directory": os.getcwd(),
        "workspace": job.workspace,
        "git": git,
        "versions": {
            "relight": __version__,
            "python": sys.version.split()[0],
            "packages": _packages(),
        },
    }


def _packages() -> dict[str, str]:
    """Return the versions of the installed packages. The versions are taken from directory names,
    because reading the metadata of a few hundred packages takes a second.
    """
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            package, dash, version = name.removesuffix(".dist-info").rpartition("-")
            if name.endswith(".dist-info") and dash:
                found.setdefault(package, version)
    return dict(sorted(found.items()))
