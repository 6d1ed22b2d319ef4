"""Decides whether the surviving ranks of a node keep their processes after a failure.

Survivors leave the group of the failed rank and join the next one (worker/recovery). All other
cases end in an ordinary restart, with new processes for all ranks.
"""

from collections.abc import Collection
from typing import NamedTuple

from relight.base.text import format_duration, format_ranks


class Survivors(NamedTuple):
    """State of the other ranks at a failure.

    `alive` are their local ranks, `inside` those that run a recoverable function. `step` is the
    highest reported step, or None. `began_at` is `step` at the beginning of a generation that began
    with a recovery; -1 means that no step was reported by then.
    """

    alive: Collection[int]
    inside: Collection[int]
    step: int | None
    is_recovery: bool = False
    began_at: int = -1


def why_not(facts: Survivors) -> str | None:
    """Return why survivors can't stay, or None if they can; empty if nobody expects it, as no rank
    runs a recoverable function.
    """
    if not facts.inside:
        return ""
    missing = sorted(set(facts.alive) - set(facts.inside))
    if missing:
        run = "do" if len(missing) > 1 else "does"
        return f"local {format_ranks(missing)} {run} not run a recoverable function"
    if facts.is_recovery and (facts.step is None or facts.step <= facts.began_at):
        return "no rank has reported a new step since the last recovery"
    return None


def why_stopped(finished: Collection[int], late: Collection[int], limit_s: float) -> str:
    """Return why the ranks that were leaving their group restart.

    Args:
        finished: the local ranks that exited with 0 while leaving.
        late: the local ranks still in the group.
        limit_s: time limit for leaving it, in seconds.
    """
    if finished:
        return f"local {format_ranks(sorted(finished))} finished before leaving the group"
    within = format_duration(limit_s, digits=int(limit_s < 1))
    return f"local {format_ranks(sorted(late))} did not leave the group within {within}"
