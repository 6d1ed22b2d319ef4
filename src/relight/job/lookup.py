"""Finds the job that a command-line argument refers to."""

import re

from relight.base import env
from relight.base.errors import UsageError
from relight.base.text import did_you_mean
from relight.job import records
from relight.job.handles import EXAMPLE, PART, RUN, SESSION, Handle, parse_handle, parse_part

_ID_FORM = r"([^/\s]*[^/\s:])" + PART


def find_job(text: str) -> Handle:
    """Return the job that a handle or an id refers to, or a part of the job if `/ROLE` or
    `/ROLE/REPLICA,…` is appended.

    An argument without `://` must begin with a job id from relight's own records, or with the id,
    name or pid of a `relight run` job on this machine.

    Raises:
        UsageError: if the text is not a valid handle, or the job is unknown.
    """
    if (handle := parse_handle(text)) is not None:
        return handle
    match = None if "://" in text else re.fullmatch(_ID_FORM, text)
    if match is None:
        raise UsageError(f"{text!r} is not a job handle", hint=EXAMPLE)
    app_id, role, replicas = match.groups()
    return parse_part(_by_id(app_id), role, replicas)


def _by_name(text: str) -> Handle | None:
    """Return the `relight run` job on this machine that has this id, pid or name. If several jobs
    match, return the newest running job, or the newest job if none is running.
    """
    from relight.processes.running_jobs import JobDirectory  # not on Windows

    try:
        jobs = JobDirectory(env.read().variables)
        running = jobs.running()
        silent = jobs.silent({job.id for job in running})
        for found in (running, silent, jobs.ended()):
            for job in found:
                if text in (job.id, job.name, str(job.pid)):
                    return Handle(RUN, SESSION, job.id)
    except OSError:
        pass  # this user doesn't have such a directory
    return None


def run_job_names() -> list[str]:
    """Return the names and ids of the `relight run` jobs on this machine."""
    from relight.processes.running_jobs import JobDirectory

    try:
        ids = JobDirectory(env.read().variables).ids()
    except OSError:
        return []
    return [*{job.rpartition("-")[0] for job in ids}, *ids]


def _by_id(text: str) -> Handle:
    every = records.every()
    for record in every:
        if text in (record.get("id"), record.get("app_id")):
            return find_job(record["handle"])
    running = _by_name(text)
    if running is not None:
        return running
    known = [str(record.get("id")) for record in every] + run_job_names()
    hint = did_you_mean(text, known, "see relight list")
    raise UsageError(f"no such job: {text}", hint=hint)
