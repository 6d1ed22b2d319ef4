"""Decides which surviving ranks give their state to the ranks of the next generation.

Ranks with the same shard of the state are replicas of each other. A rank may have finished a step
in which another saw the failure, so survivors may be one step apart; shards of different steps
never go together. A state without shards is a single shard, which each rank has.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from relight.base.text import format_ranks


class RankState(NamedTuple):
    """What a rank has, and what it needs.

    Args:
        step: how many steps the state that it has kept has taken, or None if it has none.
        held: the shard of that state.
        needed: the shard that belongs to its rank in the next generation.
    """

    step: int | None
    held: Hashable
    needed: Hashable


def latest_step(ranks: Sequence[RankState], only_lowest: bool = False) -> int | None:
    """Return the highest step at which each shard has a survivor, or None if there is none.

    Args:
        ranks: the state of each rank.
        only_lowest: whether only the step of the rank that is furthest behind counts, as a rank
            may have taken a later one with undefined data from an aborted collective (NCCL). The
            rank whose collective was aborted has not taken it.
    """
    needed = {each.needed for each in ranks}
    steps = {each.step for each in ranks if each.step is not None}
    if only_lowest and steps:
        steps = {min(steps)}
    complete = (s for s in steps if needed <= {each.held for each in ranks if each.step == s})
    return max(complete, default=None)


def keeps(rank: RankState, step: int) -> bool:
    """Return whether a rank has what it needs."""
    return rank.step == step and rank.held == rank.needed


def transfers(ranks: Sequence[RankState], step: int) -> list[tuple[int, int]]:
    """Return who sends its shard to whom, in this order. A rank that has received a shard helps to
    send it on, so the time grows with the logarithm of the number of new ranks.

    Args:
        ranks: the state of each rank.
        step: that of `latest_step`.
    """
    pairs: list[tuple[int, int]] = []
    for shard in dict.fromkeys(each.needed for each in ranks):
        waiting = [n for n, e in enumerate(ranks) if e.needed == shard and not keeps(e, step)]
        # Ranks that keep the shard come first: they have it at hand until the end.
        senders = [n for n, e in enumerate(ranks) if e.held == shard and keeps(e, step)]
        senders += [
            n for n, e in enumerate(ranks)
            if (e.step, e.held) == (step, shard) and e.needed != shard
        ]  # fmt: skip
        while waiting:
            round_ = list(zip(senders, waiting, strict=False))
            pairs += round_
            senders += waiting[: len(round_)]
            del waiting[: len(round_)]
    return pairs


def why_lost(ranks: Sequence[RankState]) -> str:
    """Return why the survivors can't give the state to all ranks."""
    held = {each.held for each in ranks if each.step is not None}
    missing = [rank for rank, each in enumerate(ranks) if each.needed not in held]
    if len(missing) == len(ranks):
        return "no survivor has a shard that a rank of this mesh needs"
    if missing:
        return f"no survivor has the shard of {format_ranks(missing)}"
    steps = [
        f"{format_ranks([rank for rank, each in enumerate(ranks) if each.step == step])} at {step}"
        for step in sorted({each.step for each in ranks if each.step is not None})
    ]
    return f"the shards have survived at different steps ({'; '.join(steps)})"
