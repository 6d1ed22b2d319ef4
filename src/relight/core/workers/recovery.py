"""Decides whether the other ranks of a node keep their process when one has failed.

Survivors leave the group of the failed rank and join the next one (worker/recovery). What does not
fit ends in an ordinary restart, which starts all ranks anew.
"""

from collections.abc import Collection
from typing import NamedTuple

from relight.base.text import format_duration, format_ranks


class Survivors(NamedTuple):
    """What is known when a rank has failed.

    `alive` are the local ranks of the others, `inside` those that run a recoverable function.
    `step` is the highest that any rank has reported, None for none; `began_at` what it was when the
    generation began, if that was a recovery, -1 for none then.
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
        finished: the local ranks that have exited with 0 meanwhile.
        late: those that have not left it.
        limit_s: how long they had for it, in seconds.
    """
    if finished:
        return f"local {format_ranks(sorted(finished))} finished before leaving the group"
    within = format_duration(limit_s, digits=int(limit_s < 1))
    return f"local {format_ranks(sorted(late))} did not leave the group within {within}"
