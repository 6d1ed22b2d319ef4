"""Decides what follows a failure of workers: the cause of the restart, or the end of the job.

Loaded only after a failure.
"""

from collections.abc import Sequence

from relight.core import failures, restarts
from relight.core.exits import Failure
from relight.core.failures import Diagnosis
from relight.core.messages import JobEnded
from relight.core.restarts import Restart
from relight.typed import NamedTuple


class Story(NamedTuple):
    """The end of a generation.

    `succeeded_ranks`: the ranks that had succeeded before the failures. `otherwise`: the reason if
    no failure was reported.
    """

    failures: Sequence[Failure]
    succeeded_ranks: Sequence[int]
    otherwise: str
    formed_at: float


def judge(story: Story, used: int, budget: int, now: float) -> str | JobEnded:
    """Return the cause of a restart, or the end of the job if no restart is left.

    Args:
        story: how the generation ended.
        used: restarts so far.
        budget: `--max-restarts`.
        now: the time.
    """
    decision = restarts.after_failure(used, budget)
    diagnosis = _diagnose(story)
    if isinstance(decision, Restart):
        return f"{diagnosis.headline() if diagnosis else story.otherwise}; {decision.reason}"
    return _end(story, diagnosis, decision.reason, now)


def end(story: Story, reason: str, now: float) -> JobEnded:
    """Return the end of a job that must not restart, even if restarts are left.

    Args:
        story: how the generation ended.
        reason: why the job does not restart.
        now: the time.
    """
    return _end(story, _diagnose(story), reason, now)


def _end(story: Story, diagnosis: Diagnosis | None, reason: str, now: float) -> JobEnded:
    if diagnosis is None:
        return JobEnded(1, story.otherwise, (f"{story.otherwise}; {reason}",), None)
    root = diagnosis.root
    report = diagnosis.render(formed_at=story.formed_at, ended=root.when, verdict=reason)
    sent = root._replace(at=root.at - now)  # a time that other nodes can use
    return JobEnded(diagnosis.exit_code, "the workers failed", tuple(report), sent)


def _diagnose(story: Story) -> Diagnosis | None:
    ends = [failure for failure in story.failures if failure.exitcode]  # a peer may send anything
    return failures.diagnose(ends, story.succeeded_ranks) if ends else None
