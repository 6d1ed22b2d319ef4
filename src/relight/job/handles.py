"""`scheduler://session/job`, the name of a job for all commands."""

import re
from typing import NamedTuple

from relight.errors import UsageError
from relight.values import whole

SESSION = "relight"
RUN = "run"
"""The scheduler of the jobs of `relight run`, whose ids end with the pid of the agent."""
_PART = r"(?:/([^/\s]+)(?:/([0-9,]+))?)?/?"
_FORM = r"([A-Za-z0-9_.-]+)://([^/\s]*)/([^/\s]+)" + _PART
_ID_FORM = r"([^/\s]*[^/\s:])" + _PART
_EXAMPLE = "SCHEDULER://SESSION/JOB, as relight submit and relight list print it"


class Handle(NamedTuple):
    """A job; with `role` and `replicas`, a part of it."""

    scheduler: str
    session: str
    app_id: str
    role: str = ""
    replicas: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.scheduler}://{self.session}/{self.app_id}"


def parse(text: str) -> Handle:
    """Return the job that a handle or an id names, or the part of it if `/ROLE` or
    `/ROLE/REPLICA,…` follows.

    A text without `://` starts with the id of a job in relight's own records, or with the id, name
    or pid of a job of `relight run` on this machine.

    Raises:
        UsageError: the text is no handle, or no such job is known.
    """
    match = re.fullmatch(_FORM, text)
    if match is not None:
        scheduler, session, app_id, role, replicas = match.groups()
        return _part_of(Handle(scheduler, session, app_id), role, replicas)
    match = None if "://" in text else re.fullmatch(_ID_FORM, text)
    if match is None:
        raise UsageError(f"{text!r} is not the handle of a job", hint=_EXAMPLE)
    app_id, role, replicas = match.groups()
    return _part_of(_by_id(app_id), role, replicas)


def _by_name(text: str) -> Handle | None:
    """Return the job of `relight run` on this machine with this id, pid or name, the newest of
    several; one that has ended counts only if none runs.
    """
    from relight import env
    from relight.host.run_jobs import JobDirectory

    try:
        jobs = JobDirectory(env.read().variables)
        running = jobs.running()
        silent = jobs.silent({job.id for job in running})
        for found in (running, silent, jobs.ended()):
            for job in found:
                if text in (job.id, job.name, str(job.pid)):
                    return Handle(RUN, SESSION, job.id)
    except OSError:
        pass  # this user has no such directory
    return None


def names_of_run() -> list[str]:
    """Return the names and ids of the jobs of `relight run` on this machine."""
    from relight import env
    from relight.host.run_jobs import JobDirectory

    try:
        ids = JobDirectory(env.read().variables).ids()
    except OSError:
        return []
    return [*{job.rpartition("-")[0] for job in ids}, *ids]


def is_whole(text: str) -> bool:
    """Return whether a text is the handle of a whole job, and not of a part."""
    match = re.fullmatch(_FORM, text)
    return match is not None and match[4] is None


def _part_of(job: Handle, role: str | None, replicas: str | None) -> Handle:
    numbers: dict[int, None] = {}
    for text in filter(None, (replicas or "").split(",")):
        number = whole(text)
        if number is None:
            raise UsageError(f"{job} has no replica {text:.40}", hint=_EXAMPLE)
        numbers[number] = None
    return job._replace(role=role or "", replicas=tuple(numbers))


def _by_id(text: str) -> Handle:
    from relight.errors import did_you_mean
    from relight.job import records

    every = records.every()
    for record in every:
        if text in (record.get("id"), record.get("app_id")):
            return parse(record["handle"])
    running = _by_name(text)
    if running is not None:
        return running
    known = [str(record.get("id")) for record in every] + names_of_run()
    hint = did_you_mean(text, known, "relight list shows them")
    raise UsageError(f"there is no job {text}", hint=hint)
