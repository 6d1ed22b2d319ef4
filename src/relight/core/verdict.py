"""What a failure of workers leads to, in words: the cause of the restart, or the end of the job.

Loaded only after a failure.
"""

from collections.abc import Mapping, Sequence

from relight.core import failures, restarts
from relight.core.failures import Diagnosis
from relight.core.messages import End
from relight.core.restarts import Restart
from relight.typed import Any, NamedTuple

Heard = tuple[Mapping[str, Any], float]
"""A failure as a node reports it, with its age (`failures.to_record`), and when we heard of it."""


class Story(NamedTuple):
    """What is known of the end of a generation: failures, ranks that had ended well before, a cause
    in words if no failure tells more, and when the generation was formed.
    """

    heard: Sequence[Heard]
    left: Sequence[int]
    otherwise: str
    formed_at: float


def judge(story: Story, used: int, budget: int, now: float) -> str | End:
    """Return the cause of a restart, or the end of the job if no restart is left.

    Args:
        story: what happened.
        used: restarts so far.
        budget: `--max-restarts`.
        now: the time.
    """
    decision, diagnosis = restarts.after_failure(used, budget), _diagnose(story, now)
    if isinstance(decision, Restart):
        return f"{diagnosis.headline() if diagnosis else story.otherwise}; {decision.reason}"
    return _end(story, diagnosis, decision.reason, now)


def end(story: Story, reason: str, now: float) -> End:
    """Return the end of a job that must not restart, whatever is left of `--max-restarts`.

    Args:
        story: what happened.
        reason: why not.
        now: the time.
    """
    return _end(story, _diagnose(story, now), reason, now)


def _end(story: Story, diagnosis: Diagnosis | None, reason: str, now: float) -> End:
    if diagnosis is None:
        return End(1, story.otherwise, (f"{story.otherwise}; {reason}",), None)
    root = diagnosis.root
    report = diagnosis.render(formed_at=story.formed_at, ended=root.when, verdict=reason)
    record = failures.to_record(root, now)
    return End(diagnosis.exit_code, "the workers failed", tuple(report), record)


def _diagnose(story: Story, now: float) -> Diagnosis | None:
    known = []
    for record, heard_at in story.heard:
        try:
            known.append(failures.from_record({**record, "at": _age(record) + now - heard_at}, now))
        except (ValueError, OverflowError):
            continue  # that node is of another version; others may tell
    return failures.diagnose(known, story.left) if known else None


def _age(record: Mapping[str, Any]) -> float:
    age = record.get("at")
    return float(age) if isinstance(age, int | float) and abs(age) < 1e9 else 0.0
