"""`scheduler://session/job`, the name of a job for all commands."""

import re
from typing import NamedTuple

from relight.base.errors import UsageError
from relight.base.values import whole

SESSION = "relight"
RUN = "run"
"""The scheduler of the jobs of `relight run`, whose ids end with the pid of the agent."""
PART = r"(?:/([^/\s]+)(?:/([0-9,]+))?)?/?"
_FORM = r"([A-Za-z0-9_.-]+)://([^/\s]*)/([^/\s]+)" + PART
EXAMPLE = "SCHEDULER://SESSION/JOB, as relight submit and relight list print it"


class Handle(NamedTuple):
    """A job, or with `role` and `replicas` a part of one."""

    scheduler: str
    session: str
    app_id: str
    role: str = ""
    replicas: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.scheduler}://{self.session}/{self.app_id}"


def parse_handle(text: str) -> Handle | None:
    """Return the job that `scheduler://session/job` names, or the part of it if `/ROLE` or
    `/ROLE/REPLICA,…` follows; None if the text has another form.

    Raises:
        UsageError: if the number of a replica is too large.
    """
    match = re.fullmatch(_FORM, text)
    if match is None:
        return None
    scheduler, session, app_id, role, replicas = match.groups()
    return part_of(Handle(scheduler, session, app_id), role, replicas)


def is_whole(text: str) -> bool:
    """Return whether a text is the handle of a whole job, and not of a part."""
    match = re.fullmatch(_FORM, text)
    return match is not None and match[4] is None


def part_of(job: Handle, role: str | None, replicas: str | None) -> Handle:
    """Parse a part of a job: a role, and replicas such as `0,2`."""
    numbers: dict[int, None] = {}
    for text in filter(None, (replicas or "").split(",")):
        number = whole(text)
        if number is None:
            raise UsageError(f"{job} has no replica {text:.40}", hint=EXAMPLE)
        numbers[number] = None
    return job._replace(role=role or "", replicas=tuple(numbers))


def shown_replica(scheduler: str, role: str, replica: int) -> str:
    """Return a replica for people: `rank 3` of a job of `relight run`, whose replicas are ranks;
    `trainer/3` of others.
    """
    return f"rank {replica}" if scheduler == RUN else f"{role}/{replica}"
