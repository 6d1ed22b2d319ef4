"""When to import ahead, repeat or await workers' imports (--preload=auto, --keep-warm).

learned     the imports of the first worker are complete at its first optimizer step or, where no
            step can be seen (no torch, a compiled step), after a while without a new one
replaced    a process that lacks modules is replaced by a complete one, each time later and for
            more modules, so that a worker that imports for ever does not cost more and more
awaited     a job waits for another job's imports while they will finish before its own would
"""

from typing import NamedTuple

LEARN_S = 20.0
QUIET_S = 5.0
"""Without a step to be seen, imports are complete after this long and this much silence."""
SETTLE_S = 1.0
"""A step is often followed by a few more imports: of a logger, for example."""
STEP_LIMIT_S = 30.0
"""How long a silent worker that has torch's optimizers may take to its first step. After that, it
may read data for long, and import more then, for which the process is replaced; or there is no step
to be seen: a compiled one runs no hooks, and some scripts update parameters by themselves.
"""
SHARE = 0.01
"""Of the modules that a process has: if it lacks fewer, to import all of them again costs more."""
UNKNOWN_S = 20.0
"""How long a job waits for imports of unknown duration. A cold start takes ten seconds."""
SLOW_START_S = 2.0
"""After this, the progress of an import predicts its duration."""


class WorkerImports(NamedTuple):
    """Import state of the first worker.

    Attributes:
        modules: number of imported modules.
        age_s: time since its generation began.
        quiet_s: time since its last new import.
        has_optimizer: whether torch's optimizers are imported.
        has_stepped: whether an optimizer has done a step.
        is_restarted: whether an earlier generation failed.
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
    """Return whether it is time to import the first worker's modules ahead."""
    if not seen.modules:
        return False
    if seen.has_stepped or seen.is_restarted:
        return seen.quiet_s >= SETTLE_S
    if seen.has_optimizer:
        return seen.quiet_s >= STEP_LIMIT_S
    return seen.age_s >= LEARN_S and seen.quiet_s >= QUIET_S


def pays_to_replace(lacking: int, modules: int, quiet_s: float, replaced: int) -> bool:
    """Return whether to replace a process that has imported the modules by a complete one.

    Args:
        lacking: number of workers' modules that the process lacks.
        modules: number of modules in the process.
        quiet_s: time since a worker's last new import.
        replaced: number of processes replaced so far.
    """
    times = float(1 << min(replaced, 30))
    return lacking > modules * SHARE * times and quiet_s >= QUIET_S * times


def pays_to_wait(made: ImportProgress, waited_s: float, cold_s: float | None) -> bool:
    """Return whether to wait for a process that imports the modules, instead of a cold start.

    Args:
        made: the progress of that process.
        waited_s: time that this job has waited so far.
        cold_s: duration of a cold start's imports; None if unknown.
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
