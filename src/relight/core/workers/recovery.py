"""Decides whether the surviving ranks of a node can leave their group and keep their processes.

They join the next one (worker/recovery) if the group lets them (core/group/survivors). All other
cases end in an ordinary restart, with new processes for all ranks of the node.
"""

from collections.abc import Collection, Mapping

from relight.base.text import format_duration, format_ranks
from relight.core.failure import WorkerState


def hanging(alive: Collection[int], doing: Mapping[int, WorkerState]) -> tuple[int, ...]:
    """Return the local ranks that can't leave their group in a hang: all that were not seen waiting
    for their peers. The group decides whether one of them is to blame (core/group/survivors).

    Args:
        alive: the local ranks that have not ended.
        doing: where they were seen.
    """
    return tuple(each for each in alive if each not in doing or not doing[each].expects_peers)


def why_not(
    alive: Collection[int], inside: Collection[int], hanging: Collection[int] = ()
) -> str | None:
    """Return why survivors can't stay, or None if they can; empty if nobody expects it, as no rank
    runs a recoverable function.

    Args:
        alive: the local ranks that have not failed.
        inside: those that run a recoverable function.
        hanging: those that hang.
    """
    staying = set(alive) - set(hanging)
    if not inside or not alive:
        return ""
    if not staying:
        return f"local {format_ranks(sorted(hanging))} {'hang' if len(hanging) > 1 else 'hangs'}"
    missing = sorted(staying - set(inside))
    if missing:
        run = "do" if len(missing) > 1 else "does"
        return f"local {format_ranks(missing)} {run} not run a recoverable function"
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
