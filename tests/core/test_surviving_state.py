"""Which survivors give their state to the ranks of the next generation."""

import itertools
import random

import pytest

from relight.core.workers.surviving_state import (
    RankState,
    keeps,
    latest_step,
    transfers,
    why_lost,
)


def mesh(*steps: int | None, shards: int = 2) -> list[RankState]:
    """Ranks of a mesh of replicas and shards, with what each has kept."""
    return [
        RankState(step, None if step is None else rank % shards, rank % shards)
        for rank, step in enumerate(steps)
    ]


@pytest.mark.parametrize(
    ("steps", "chosen", "moved"),
    [
        ((7, 7, None, 7), 7, [(0, 2)]),
        ((7, 8, 8, 8), 8, [(2, 0)]),  # one rank has not finished the step
        ((8, 7, 7, 7), 7, [(2, 0)]),  # or is the only one that has finished it
        ((None, 7, 7, None), 7, [(2, 0), (1, 3)]),
        ((7, None, 7, None), None, []),  # both holders of a shard are gone
        ((8, 7, 8, 7), None, []),  # each shard has survived, but at another step
        ((8, 7, None, 7), None, []),
        ((None, None, None, None), None, []),
    ],
)
def test_highest_step_of_all_shards_is_chosen(
    steps: tuple[int | None, ...], chosen: int | None, moved: list[tuple[int, int]]
) -> None:
    ranks = mesh(*steps)
    assert latest_step(ranks) == chosen
    if chosen is not None:
        assert transfers(ranks, chosen) == moved


def test_replicas_take_state_of_furthest_rank() -> None:
    ranks = mesh(7, None, 8, 7, shards=1)
    assert latest_step(ranks) == 8
    assert transfers(ranks, 8) == [(2, 0), (2, 1), (0, 3)]


def test_undefined_data_of_aborted_collective_is_not_shared() -> None:
    """A rank took step 8 with data from rank 0, whose collective had been aborted."""
    assert latest_step(mesh(7, None, 8, 7, shards=1), only_lowest=True) == 7
    assert latest_step(mesh(8, 8, 7, 8), only_lowest=True) is None, "no shard 1 at step 7"
    assert latest_step(mesh(None, None, shards=1), only_lowest=True) is None


def test_survivors_whose_rank_has_moved_swap_their_shards() -> None:
    ranks = [RankState(5, 1, 0), RankState(5, 0, 1)]
    assert latest_step(ranks) == 5
    assert transfers(ranks, 5) == [(1, 0), (0, 1)]


def test_other_mesh_has_no_survivor() -> None:
    ranks = [RankState(5, ("of 4", n), ("of 2", n)) for n in range(2)]
    assert latest_step(ranks) is None
    assert why_lost(ranks) == "no survivor has a shard that a rank of this mesh needs"


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((7, None, 7, None), "no survivor has the shard of ranks 1, 3"),
        (
            (8, 7, None, 7),
            "the shards have survived at different steps (ranks 1, 3 at 7; rank 0 at 8)",
        ),
    ],
)
def test_reason_names_ranks(steps: tuple[int | None, ...], reason: str) -> None:
    assert why_lost(mesh(*steps)) == reason


@pytest.mark.parametrize("seed", range(300))
def test_every_rank_gets_its_shard_of_one_step(seed: int) -> None:
    """Each transfer is of a shard that its sender has by then; nobody gets one twice."""
    draw = random.Random(seed)
    shards, replicas = draw.randint(1, 3), draw.randint(1, 4)
    needed = [n % shards for n in range(shards * replicas)]
    ranks = [
        RankState(
            draw.choice([None, 4, 5, 5, 5]), draw.choice([shard, draw.randrange(shards)]), shard
        )
        for shard in needed
    ]
    step = latest_step(ranks)
    complete = [
        at for at in (4, 5)
        if {each.held for each in ranks if each.step == at} >= set(needed)
    ]  # fmt: skip
    assert step == max(complete, default=None)
    if step is None:
        return
    has = [{(each.step, each.held)} for each in ranks]
    received = []
    for sender, receiver in transfers(ranks, step):
        assert (step, needed[receiver]) in has[sender]
        has[receiver].add((step, needed[receiver]))
        received.append(receiver)
    assert sorted(received) == [n for n, each in enumerate(ranks) if not keeps(each, step)]
    assert all((step, shard) in own for shard, own in zip(needed, has, strict=True))


def test_state_reaches_many_new_ranks_in_few_rounds() -> None:
    pairs = transfers(mesh(3, *[None] * 1023, shards=1), 3)
    ready = {0: 0}  # the round after which each rank has it
    for sender, receiver in pairs:
        ready[receiver] = ready[sender] = max(ready[sender], 0) + 1
    assert max(ready.values()) == 10
    assert len({receiver for _, receiver in pairs}) == 1023
    assert not any(a == b for a, b in itertools.pairwise(pairs))
