"""Decides whether the job may restart, with the reason in words.

There is one budget for the job: `--max-restarts` counts failures on any node; a change of
membership is not counted.
"""

from relight.typed import NamedTuple


class Restart(NamedTuple):
    """Start the workers again as restart number `number`."""

    number: int
    reason: str


class NoRestart(NamedTuple):
    """The job has failed."""

    reason: str


def after_failure(used: int, budget: int) -> Restart | NoRestart:
    """Decide what follows a failure.

    Args:
        used: restarts so far.
        budget: `--max-restarts`.
    """
    if used < budget:
        return Restart(used + 1, f"restart {used + 1} of {budget}")
    if budget == 0:
        return NoRestart("no restarts were allowed (--max-restarts=0)")
    if budget == 1:
        return NoRestart("the one restart is used up")
    return NoRestart(f"all {budget} restarts are used up")
