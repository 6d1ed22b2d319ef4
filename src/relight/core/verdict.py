"""Decides what follows a failure of workers: a restart with its cause, or the end of the job.

There is one budget for the job: `--max-restarts` counts failures on any node; a change of
membership is not counted. Loaded only after a failure.
"""

from collections.abc import Sequence

from relight.core import failures
from relight.core.exits import Failure
from relight.core.failures import Diagnosis
from relight.core.messages import JobEnded
from relight.typed import NamedTuple


class GenerationEnd(NamedTuple):
    """How a generation ended.

    `succeeded_ranks`: the ranks that had succeeded before the failures. `stop_cause`: why it was
    stopped, for the case that no failure was reported.
    """

    failures: Sequence[Failure]
    succeeded_ranks: Sequence[int]
    stop_cause: str
    formed_at: float


def judge(ended: GenerationEnd, used: int, budget: int, now: float) -> str | JobEnded:
    """Return the cause of a restart, or the end of the job if no restart is left.

    Args:
        ended: how the generation ended.
        used: restarts so far.
        budget: `--max-restarts`.
        now: the time.
    """
    if reason := why_no_restart(used, budget):
        return end(ended, reason, now)
    diagnosis = _diagnose(ended)
    cause = diagnosis.headline() if diagnosis else ended.stop_cause
    return f"{cause}; restart {used + 1} of {budget}"


def why_no_restart(used: int, budget: int) -> str:
    """Return why the job may not restart, or an empty string if it may."""
    if used < budget:
        return ""
    if budget == 0:
        return "no restarts were allowed (--max-restarts=0)"
    if budget == 1:
        return "the one restart is used up"
    return f"all {budget} restarts are used up"


def end(ended: GenerationEnd, reason: str, now: float) -> JobEnded:
    """Return the end of a job that must not restart, even if restarts are left.

    Args:
        ended: how the generation ended.
        reason: why the job does not restart.
        now: the time.
    """
    diagnosis, cause = _diagnose(ended), ended.stop_cause
    if diagnosis is None:
        return JobEnded(1, cause, (f"{cause}; {reason}",), None)
    root = diagnosis.root
    report = diagnosis.render(formed_at=ended.formed_at, ended=root.when, verdict=reason)
    root = root._replace(at=root.at - now)  # needs no common clock
    return JobEnded(diagnosis.exit_code, "the workers failed", tuple(report), root)


def _diagnose(ended: GenerationEnd) -> Diagnosis | None:
    ends = [failure for failure in ended.failures if failure.exitcode]  # a peer may send anything
    return failures.diagnose(ends, ended.succeeded_ranks) if ends else None
