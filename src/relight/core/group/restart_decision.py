"""Decides whether the workers restart or the job ends after a worker failure.

A job has a single restart budget for all of its nodes. `--max-restarts` counts failures on any
node, but not membership changes (core/group/restart_budget). This module is loaded only after a
failure.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from relight.base.errors import EXIT_FAILED, EXIT_HUNG
from relight.core.diagnosis import failure_text as failures
from relight.core.diagnosis.causes import Role, role
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
    root = diagnosis.root
    first = diagnosis.first_sign if isinstance(diagnosis, Diagnosis) else root
    report = diagnosis.render(formed_at=ended.formed_at, ended=first.when, verdict=reason)
    root = root._replace(at=root.at - now)  # relative, because nodes don't share a clock
    same = tuple(failure.rank for failure in diagnosis.same[:_MAX_SAME])
    if not isinstance(diagnosis, Diagnosis):
        return JobEnded(
            diagnosis.exit_code, cause, tuple(report), root, same_ranks=same, verdict=reason,
            ranks=diagnosis.ranks[:_MAX_SAME], certainty=diagnosis.certainty.value,
            why=diagnosis.why,
        )  # fmt: skip
    found = diagnosis.verdict
    symptom = found.symptom._replace(at=found.symptom.at - now)
    return JobEnded(
        exit_code=diagnosis.exit_code,
        reason=cause if ended.hung else "the workers failed",
        report=tuple(report),
        root=root,
        same_ranks=same,
        verdict=reason,
        ranks=diagnosis.ranks[:_MAX_SAME],
        certainty=found.certainty.value,
        why=found.why,
        symptom=None if found.symptom is found.root else symptom,
    )


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
