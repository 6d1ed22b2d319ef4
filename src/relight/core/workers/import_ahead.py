"""Decides when to import modules ahead of time, when to import them again, and when to wait for
these imports (--preload=auto, --keep-warm).

learned     the first worker's imports are complete at its first optimizer step or, if no step can
            be detected (without torch, or with a compiled step), after a while without a new import
replaced    a process that lacks modules is replaced by a complete one; each replacement requires a
            longer wait and more missing modules, so that a worker that never stops importing does
            not become more and more expensive
awaited     a job waits for another job's imports if they are expected to finish before its own
"""

from typing import NamedTuple

LEARN_S = 20.0
QUIET_S = 5.0
"""If no step can be detected, imports are considered complete once the generation is `LEARN_S` old
and there has been no new import for `QUIET_S`.
"""
SETTLE_S = 1.0
"""How long to wait after a step, because a few more imports often follow it, for example by a
logger.
"""
STEP_LIMIT_S = 30.0
"""How long a worker that has imported torch's optimizers may take until its first step, without
further imports. If the worker takes longer, it may be reading data for a long time and import more
modules later, in which case the process is replaced. Or its steps can't be detected, because
compiled steps don't run hooks and some scripts update the parameters themselves.
"""
SHARE = 0.01
"""A process is replaced only if more than this fraction of its modules is missing. If fewer modules
are missing, importing all modules again would cost more than it saves.
"""
UNKNOWN_S = 20.0
"""How long a job waits for imports whose duration is unknown. A cold start takes ten seconds."""
SLOW_START_S = 2.0
"""After this time, the progress of the imports is used to predict their duration."""


class WorkerImports(NamedTuple):
    """The state of the first worker's imports.

    Attributes:
        modules: number of imported modules.
        age_s: time since its generation began.
        quiet_s: time since its last new import.
        has_optimizer: whether torch's optimizers are imported.
        has_stepped: whether an optimizer has taken a step.
        is_restarted: whether an earlier generation failed.
    """

    modules: int
    age_s: float
    quiet_s: float
    has_optimizer: bool
    has_stepped: bool
    is_restarted: bool


class ImportProgress(NamedTuple):
    """The progress of a process that has imported `imported` of its `modules` modules.

    Attributes:
        elapsed_s: how long the process has been importing.
        expected_s: how long the imports take at most on an idle machine, or None if unknown.
        is_low_priority: whether other processes take precedence over it.
    """

    modules: int
    imported: int
    elapsed_s: float
    expected_s: float | None
    is_low_priority: bool


def are_complete(seen: WorkerImports) -> bool:
    """Return whether the first worker's imports are complete, so that the modules can be imported
    ahead of time.
    """
    if not seen.modules:
        return False
    if seen.has_stepped or seen.is_restarted:
        return seen.quiet_s >= SETTLE_S
    if seen.has_optimizer:
        return seen.quiet_s >= STEP_LIMIT_S
    return seen.age_s >= LEARN_S and seen.quiet_s >= QUIET_S


def why_incomplete(seen: WorkerImports) -> str:
    """Return what the first worker must do before its imports count as complete."""
    if seen.has_optimizer and not (seen.has_stepped or seen.is_restarted):
        return "the first worker has not taken an optimizer step yet"
    return "the first worker may still be importing modules"


def pays_to_replace(lacking: int, modules: int, quiet_s: float, replaced: int) -> bool:
    """Return whether to replace a process that lacks some of the modules with one that has all of
    them.

    Args:
        lacking: number of modules that the workers have and the process lacks.
        modules: number of modules in the process.
        quiet_s: time since a worker's last new import.
        replaced: number of processes replaced so far.
    """
    times = float(1 << min(replaced, 30))
    return lacking > modules * SHARE * times and quiet_s >= QUIET_S * times


def pays_to_wait(made: ImportProgress, waited_s: float, cold_s: float | None) -> bool:
    """Return whether to wait for a process that is importing the modules, instead of starting cold.

    Args:
        made: the progress of that process.
        waited_s: how long this job has been waiting so far.
        cold_s: how long the imports take in a cold start, or None if unknown.
    """
    left_s = _left_s(made)
    if left_s is None or cold_s is None:
        return not made.is_low_priority and waited_s < UNKNOWN_S
    return left_s < cold_s


def _left_s(made: ImportProgress) -> float | None:
    """Return how much longer the imports will take, or None if that is unknown."""
    if made.expected_s is None:
        return None
    left_s = made.expected_s - made.elapsed_s
    is_late = left_s <= 0.0
    if made.elapsed_s < SLOW_START_S or not (is_late or made.is_low_priority):
        return max(left_s, 0.0)
    if not made.imported:  # one import takes all the time, or the process gets no CPU time
        return float("inf") if is_late else left_s
    missing = max(made.modules - made.imported, 0)
    return max(left_s, made.elapsed_s * missing / made.imported)
