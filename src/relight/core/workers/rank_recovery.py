"""Decides whether a node's surviving ranks can leave their process group and keep their processes.

The surviving ranks join the next process group (worker/survivor) if the coordinator allows it
(core/group/survivors). Otherwise, the node restarts as usual, with a new process for every rank.
"""

from collections.abc import Collection, Mapping

from relight.base.text import format_duration, format_ranks
from relight.core.failure import WorkerState


def hanging(alive: Collection[int], doing: Mapping[int, WorkerState]) -> tuple[int, ...]:
    """Return the local ranks that can't leave their process group when a job has hung, because they
    don't appear to be waiting for their peers. The coordinator determines whether one of them is to
    blame (core/group/survivors).

    Args:
        alive: the local ranks that have not ended.
        doing: their states, by local rank.
    """
    return tuple(each for each in alive if each not in doing or not doing[each].expects_peers)


def why_not(
    alive: Collection[int], inside: Collection[int], hanging: Collection[int] = ()
) -> str | None:
    """Return the reason why the surviving ranks can't keep their processes, or None. The reason is
    empty if no rank is running a recoverable function, because users expect a restart in that case.

    Args:
        alive: the local ranks that have not failed.
        inside: the local ranks that are running a recoverable function.
        hanging: the local ranks that are hung.
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
    """Return the reason why the ranks that were leaving their process group must be restarted.

    Args:
        finished: the local ranks that exited with code 0 while leaving.
        late: the local ranks still in the group.
        limit_s: time limit for leaving the group, in seconds.
    """
    if finished:
        return f"local {format_ranks(sorted(finished))} finished before leaving the group"
    within = format_duration(limit_s, digits=int(limit_s < 1))
    return f"local {format_ranks(sorted(late))} did not leave the group within {within}"
