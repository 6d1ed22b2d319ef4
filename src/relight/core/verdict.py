"""What a failure of workers leads to, in words: the cause of the restart, or the end of the job.

Loaded only after a failure.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from relight.core import failures
from relight.core.failures import Diagnosis
from relight.core.messages import End
from relight.core.restarts import GiveUp, Restart

Records = Iterable[Mapping[str, Any]]
"""Failures as the nodes of the generation report them (`failures.to_record`)."""


def dated(heard: Iterable[tuple[Mapping[str, Any], float]], now: float) -> list[dict[str, Any]]:
    """Return records with their age at `now`, from records with their age when they were heard."""
    return [{**record, "at": _age(record) + now - at} for record, at in heard]


def cause(
    records: Records, left: Iterable[int], decision: Restart, otherwise: str, now: float
) -> str:
    """Return the cause of a restart. `otherwise` is what is known if no node tells more."""
    diagnosis = _diagnose(records, left, now)
    return f"{diagnosis.headline() if diagnosis else otherwise}; {decision.reason}"


def end(
    records: Records,
    left: Iterable[int],
    decision: GiveUp,
    otherwise: str,
    formed_at: float,
    now: float,
) -> End:
    """Return the end of a job that has no restart left."""
    diagnosis = _diagnose(records, left, now)
    if diagnosis is None:
        return End(1, otherwise, (f"{otherwise}; {decision.reason}",), None)
    root = diagnosis.root
    report = diagnosis.render(formed_at=formed_at, ended=root.when, verdict=decision.reason)
    record = failures.to_record(root, now)
    return End(diagnosis.exit_code, "the workers failed", tuple(report), record)


def _diagnose(records: Records, left: Iterable[int], now: float) -> Diagnosis | None:
    known = []
    for record in records:
        try:
            known.append(failures.from_record(record, now))
        except (ValueError, OverflowError):
            continue  # that node is of another version; others may tell
    return failures.diagnose(known, left) if known else None


def _age(record: Mapping[str, Any]) -> float:
    age = record.get("at")
    return float(age) if isinstance(age, int | float) and abs(age) < 1e9 else 0.0
