"""When workers' imports are done ahead, done again, and waited for (--preload=auto, --keep-warm).

learned     what the first worker imports is complete at its first optimizer step. Where no step
            can be seen (no torch, a compiled step), it is when nothing new came for a while
replaced    a process that lacks modules is replaced by a complete one, each time later and for
            more modules, so that a worker that imports for ever does not cost more and more
awaited     a job waits for another job's imports as long as that ends before its own would
"""

from typing import NamedTuple

LEARN_S = 20.0
QUIET_S = 5.0
"""Without a step to be seen, imports are complete after this long and this much silence."""
SETTLE_S = 1.0
"""A step is often followed by a few more imports: of a logger, for example."""
STEP_LIMIT_S = 120.0
"""How long a silent worker that has torch's optimizers may take to its first step: after that, it
may not train at all, or with a compiled step, which runs no hooks.
"""
SHARE = 0.01
"""Of the modules that a process has: if it lacks fewer, to import all of them again costs more."""
UNKNOWN_S = 20.0
"""How long a job waits for imports that may take any time. A cold start takes ten seconds."""
SLOW_START_S = 2.0
"""After this, the progress of an import tells how long it takes."""


class WorkerImports(NamedTuple):
    """What is known of the first worker's imports.

    Attributes:
        modules: how many it has imported.
        age_s: how long ago its generation began.
        quiet_s: how long ago it imported a new one.
        has_optimizer: it has imported torch's optimizers.
        has_stepped: one of them has done a step.
        is_restarted: an earlier generation has failed.
    """

    modules: int
    age_s: float
    quiet_s: float
    has_optimizer: bool
    has_stepped: bool
    is_restarted: bool


class ImportProgress(NamedTuple):
    """How far a process is that imports `modules` modules, `imported` of them so far.

    Attributes:
        elapsed_s: how long ago it began.
        expected_s: how long it takes at the most on an idle machine; None if that is unknown.
        is_low_priority: other processes run first.
    """

    modules: int
    imported: int
    elapsed_s: float
    expected_s: float | None
    is_low_priority: bool


def are_complete(seen: WorkerImports) -> bool:
    """Return whether it is time to import ahead what the first worker has imported."""
    if not seen.modules:
        return False
    if seen.has_stepped or seen.is_restarted:
        return seen.quiet_s >= SETTLE_S
    if seen.has_optimizer:
        return seen.quiet_s >= STEP_LIMIT_S
    return seen.age_s >= LEARN_S and seen.quiet_s >= QUIET_S


def pays_to_replace(lacking: int, modules: int, quiet_s: float, replaced: int) -> bool:
    """Return whether to replace a process with the modules by a complete one.

    Args:
        lacking: modules that workers import and it has not.
        modules: those that it has.
        quiet_s: how long ago a worker has imported a new one.
        replaced: how many processes were replaced so far.
    """
    times = float(1 << min(replaced, 30))
    return lacking > modules * SHARE * times and quiet_s >= QUIET_S * times


def pays_to_wait(made: ImportProgress, waited_s: float, cold_s: float | None) -> bool:
    """Return whether to wait for a process that imports the modules, instead of a cold start.

    Args:
        made: that process.
        waited_s: how long this job has waited by now.
        cold_s: how long the imports of a cold start take; None if that is unknown.
    """
    left_s = _left_s(made)
    if left_s is None or cold_s is None:
        return not made.is_low_priority and waited_s < UNKNOWN_S
    return left_s < cold_s


def _left_s(made: ImportProgress) -> float | None:
    """Return how long the imports still take; None if that is unknown."""
    if made.expected_s is None:
        return None
    left_s = made.expected_s - made.elapsed_s
    is_late = left_s <= 0.0
    if made.elapsed_s < SLOW_START_S or not (is_late or made.is_low_priority):
        return max(left_s, 0.0)
    if not made.imported:  # one import takes all the time, or the process gets none
        return float("inf") if is_late else left_s
    missing = max(made.modules - made.imported, 0)
    return max(left_s, made.elapsed_s * missing / made.imported)
