"""Defines handles of the form `scheduler://session/job`, which identify a job in all commands."""

import re
from typing import NamedTuple

from relight.base.errors import UsageError
from relight.base.values import whole

SESSION = "relight"
RUN = "run"
"""The scheduler name for `relight run` jobs, whose ids end with the agent's pid."""
PART = r"(?:/([^/\s]+)(?:/([0-9,]+))?)?/?"
_FORM = r"([A-Za-z0-9_.-]+)://([^/\s]*)/([^/\s]+)" + PART
EXAMPLE = "SCHEDULER://SESSION/JOB, as relight submit and relight list print it"


class Handle(NamedTuple):
    """A reference to a job or, if `role` and `replicas` are set, to a part of a job."""

    scheduler: str
    session: str
    app_id: str
    role: str = ""
    replicas: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.scheduler}://{self.session}/{self.app_id}"


def to_handle(text: str) -> Handle:
    """Parse `scheduler://session/job`, optionally followed by `/ROLE` or `/ROLE/REPLICA,…` for a
    part of the job.

    Raises:
        UsageError: if the text doesn't have this form, or a replica number is too large.
    """
    match = re.fullmatch(_FORM, text)
    if match is None:
        raise UsageError(f"{text!r} is not a job handle", hint=EXAMPLE)
    scheduler, session, app_id, role, replicas = match.groups()
    return parse_part(Handle(scheduler, session, app_id), role, replicas)


def is_whole(text: str) -> bool:
    """Return whether a string is the handle of a whole job rather than a part of one."""
    match = re.fullmatch(_FORM, text)
    return match is not None and match[4] is None


def parse_part(job: Handle, role: str | None, replicas: str | None) -> Handle:
    """Parse a reference to a part of a job: a role, and replicas such as `0,2`."""
    numbers: dict[int, None] = {}
    for text in filter(None, (replicas or "").split(",")):
        number = whole(text)
        if number is None:
            raise UsageError(f"{job} has no replica {text:.40}", hint=EXAMPLE)
        numbers[number] = None
    return job._replace(role=role or "", replicas=tuple(numbers))


def shown_replica(scheduler: str, role: str, replica: int) -> str:
    """Format the name of a replica for display. The replicas of a `relight run` job are ranks, such
    as `rank 3`. For any other job, the name has the form `trainer/3`.
    """
    return f"rank {replica}" if scheduler == RUN else f"{role}/{replica}"
