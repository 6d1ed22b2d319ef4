"""Identifies a job within a fleet by its user, its host and its scheduler."""

import socket
from collections.abc import Mapping
from typing import NamedTuple

from relight.base.package import __version__
from relight.host.user import user_name

_SUBMITTED = "RELIGHT_JOB_ID"
_SCHEDULERS = {
    "SLURM_JOB_ID": "slurm",
    "AWS_BATCH_JOB_ID": "aws_batch",
    "PBS_JOBID": "pbs",
    "LSB_JOBID": "lsf",
}
"""The variables in which schedulers set the job id. Sources: srun(1); "AWS Batch job environment
variables"; qsub(1B) of OpenPBS; "Environment variables set for job execution" of LSF.
"""


class Origin(NamedTuple):
    """This agent's user, host and relight version, and the job's scheduler and scheduler job id.
    The last two are empty without a scheduler.
    """

    user: str
    host: str
    version: str
    scheduler: str
    scheduler_job: str


def from_environment(variables: Mapping[str, str]) -> Origin:
    """Return a job's origin, given the environment variables of its agent."""
    scheduler, job = _scheduler(variables)
    return Origin(user_name(), socket.gethostname(), __version__, scheduler, job)


def _scheduler(variables: Mapping[str, str]) -> tuple[str, str]:
    """Return the scheduler and its job id, as set by `relight submit` or, failing that, by the
    scheduler itself.
    """
    scheduler, separator, rest = variables.get(_SUBMITTED, "").partition("://")
    if separator:
        return scheduler, rest.partition("/")[2]
    for variable, name in _SCHEDULERS.items():
        if variables.get(variable):
            return name, variables[variable]
    return "", ""
