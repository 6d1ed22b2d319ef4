"""Decides which surviving ranks send their state to which ranks in the next generation.

Ranks with the same shard of the state are replicas of each other. One rank may have finished a step
during which another rank noticed the failure, so survivors may be one step apart. Shards from
different steps are never combined. Unsharded state is treated as a single shard that every rank
has.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from relight.base.text import format_ranks


class RankState(NamedTuple):
    """The state that one rank has kept, and the state that it needs.

    Args:
        step: the step of the state that the rank has kept, or None.
        held: the shard that it has kept.
        needed: the shard that belongs to its rank in the next generation.
    """

    step: int | None
    held: Hashable
    needed: Hashable


def latest_step(ranks: Sequence[RankState], only_lowest: bool = False) -> int | None:
    """Return the highest step at which every shard is held by a survivor, or None if there is no
    such step.

    Args:
        ranks: the state of each rank.
        only_lowest: whether to consider only the step of the rank that is furthest behind, because
            another rank may have taken a later step with undefined data from an aborted collective
            (NCCL). The rank whose collective was aborted did not take that step.
    """
    needed = {each.needed for each in ranks}
    steps = {each.step for each in ranks if each.step is not None}
    if only_lowest and steps:
        steps = {min(steps)}
    complete = (s for s in steps if needed <= {each.held for each in ranks if each.step == s})
    return max(complete, default=None)


def keeps(rank: RankState, step: int) -> bool:
    """Return whether a rank already has the state that it needs."""
    return rank.step == step and rank.held == rank.needed


def transfers(ranks: Sequence[RankState], step: int) -> list[tuple[int, int]]:
    """Return the transfers in order, each as a pair of the sending and the receiving rank. A rank
    that has received a shard sends it on to other ranks, so the total time grows only
    logarithmically with the number of new ranks.

    Args:
        ranks: the state of each rank.
        step: the result of `latest_step`.
    """
    pairs: list[tuple[int, int]] = []
    for shard in dict.fromkeys(each.needed for each in ranks):
        waiting = [n for n, e in enumerate(ranks) if e.needed == shard and not keeps(e, step)]
        # Ranks that keep the shard come first, because they still have it after all transfers.
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
    """Return the reason why the surviving ranks can't provide the state that all ranks need."""
    held = {each.held for each in ranks if each.step is not None}
    missing = [rank for rank, each in enumerate(ranks) if each.needed not in held]
    if len(missing) == len(ranks):
        return "no survivor has a shard that a rank of this mesh needs"
    if missing:
        return f"no survivor has the shards of {format_ranks(missing)}"
    steps = [
        f"{format_ranks([rank for rank, each in enumerate(ranks) if each.step == step])} at {step}"
        for step in sorted({each.step for each in ranks if each.step is not None})
    ]
    return f"the surviving shards are from different steps ({'; '.join(steps)})"
