"""Decides whether the workers restart or the job ends after a worker failure.

A job has a single restart budget for all of its nodes. `--max-restarts` counts failures on any
node, but not membership changes (core/group/restart_budget). This module is loaded only after a
failure.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from relight.base.errors import EXIT_FAILED, EXIT_HUNG
from relight.core.diagnosis import failure_text as failures
from relight.core.diagnosis.causes import Role, Verdict, role
from relight.core.diagnosis.failure_text import Diagnosis
from relight.core.failure import Failure
from relight.core.group.messages import JobEnded
from relight.core.group.restart_budget import GenerationRun, RestartHistory, with_budget

if TYPE_CHECKING:
    from relight.core.diagnosis.hang_text import Hang

_MAX_SAME = 1000
"""Maximum number of ranks listed as failed in the same way. The list is sent to all nodes."""


class GenerationEnd(NamedTuple):
    """How a generation ended.

    The `succeeded_ranks` field contains the ranks that succeeded before the failures. Succeeded
    ranks that printed an error are listed among the failures, with exit code 0. The `stop_cause`
    field is the reason why the generation was stopped, and is used if no failure was reported. The
    `progressed` field is described in `core/group/restart_budget`. The `hung` field is set if the
    generation was stopped because its workers were idle. The `world_size` field is 0 if unknown.
    The `waiting` field contains the survivors of a hang.
    """

    failures: Sequence[Failure]
    succeeded_ranks: Sequence[int]
    stop_cause: str
    formed_at: float
    progressed: bool | None = None
    hung: bool = False
    world_size: int = 0
    waiting: Sequence[Failure] = ()


class Restart(NamedTuple):
    """Restart the workers after `delay_s` seconds. The `cause` field is shown to users. The `host`
    field is the host where the root cause occurred, or empty if unknown.
    """

    cause: str
    delay_s: float
    host: str


def decide(
    ended: GenerationEnd, history: RestartHistory, restart: int, now: float
) -> Restart | JobEnded:
    """Decide what happens after a failure.

    Args:
        ended: how the generation ended.
        history: the restarts that count towards the budget.
        restart: the number of restarts so far.
        now: the current time.
    """
    diagnosis = _diagnose(ended)
    run = GenerationRun(now - ended.formed_at, ended.progressed)
    if isinstance(diagnosis, Diagnosis):  # a hang may be a network glitch
        symptoms = failures.repeatable(diagnosis.root)
        run = run._replace(symptoms=symptoms, exit_code=diagnosis.exit_code)
    decision = history.after_failure(run, restart, now)
    if not decision.restarts:
        return end(ended, decision.reason, now)
    cause = diagnosis.headline() if diagnosis else ended.stop_cause
    host = diagnosis.root.host if diagnosis else ""
    return Restart(with_budget(cause, decision.reason), decision.delay_s, host)


def end(ended: GenerationEnd, reason: str, now: float) -> JobEnded:
    """Return the message that ends a job. The job does not restart, even if restarts are left.

    Args:
        ended: how the generation ended.
        reason: the reason why the job does not restart.
        now: the current time.
    """
    diagnosis, cause = _diagnose(ended), ended.stop_cause
    if diagnosis is None:
        code = EXIT_HUNG if ended.hung else EXIT_FAILED
        return JobEnded(code, cause, (f"{cause}; {reason}",), None, verdict=reason)
    root = symptom = first = diagnosis.root
    found: Verdict | Hang
    if isinstance(diagnosis, Diagnosis):
        found, symptom, first = diagnosis.verdict, diagnosis.verdict.symptom, diagnosis.first_sign
    else:
        found = diagnosis
    report = diagnosis.render(formed_at=ended.formed_at, ended=first.when, verdict=reason)
    return JobEnded(
        exit_code=diagnosis.exit_code,
        reason=cause if ended.hung else "the workers failed",
        report=tuple(report),
        root=_relative(root, now),
        same_ranks=tuple(failure.rank for failure in diagnosis.same[:_MAX_SAME]),
        verdict=reason,
        ranks=diagnosis.ranks[:_MAX_SAME],
        certainty=found.certainty.value,
        why=found.why,
        symptom=None if symptom is root else _relative(symptom, now),
    )


def _relative(failure: Failure, now: float) -> Failure:
    return failure._replace(at=failure.at - now)  # because nodes don't share a clock


def _diagnose(ended: GenerationEnd) -> "Diagnosis | Hang | None":
    ends = [failure for failure in ended.failures if failure.exitcode]  # a peer may send anything
    if ended.hung and all(role(failure) is not Role.OWN for failure in ends):
        from relight.core.diagnosis import hang_text

        # A worker may lose a peer that was stopped just before it, and exit on its own.

        seen = [*ends, *ended.waiting]
        return hang_text.diagnose(seen, ended.stop_cause, ended.succeeded_ranks)
    if not ends:
        return None
    return failures.diagnose(ended.failures, ended.succeeded_ranks, ended.world_size)
