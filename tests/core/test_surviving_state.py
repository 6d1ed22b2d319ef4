"""Which survivors provide state to the next generation's ranks."""

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
    """Return a mesh of replicas and shards, with the step that each rank has kept."""
    return [
        RankState(step, None if step is None else rank % shards, rank % shards)
        for rank, step in enumerate(steps)
    ]


@pytest.mark.parametrize(
    ("steps", "chosen", "moved"),
    [
        ((7, 7, None, 7), 7, [(0, 2)]),
        ((7, 8, 8, 8), 8, [(2, 0)]),  # one rank hasn't finished the step
        ((8, 7, 7, 7), 7, [(2, 0)]),  # only one rank has finished the step
        ((None, 7, 7, None), 7, [(2, 0), (1, 3)]),
        ((7, None, 7, None), None, []),  # both holders of one shard are gone
        ((8, 7, 8, 7), None, []),  # each shard has survived, but at different steps
        ((8, 7, None, 7), None, []),
        ((None, None, None, None), None, []),
    ],
)
def test_state_at_the_highest_step_with_all_shards_is_chosen(
    steps: tuple[int | None, ...], chosen: int | None, moved: list[tuple[int, int]]
) -> None:
    ranks = mesh(*steps)
    assert latest_step(ranks) == chosen
    if chosen is not None:
        assert transfers(ranks, chosen) == moved


def test_replicas_receive_state_from_the_most_advanced_rank() -> None:
    ranks = mesh(7, None, 8, 7, shards=1)
    assert latest_step(ranks) == 8
    assert transfers(ranks, 8) == [(2, 0), (2, 1), (0, 3)]


def test_undefined_data_from_an_aborted_collective_is_not_shared() -> None:
    """A rank finished step 8 using data from rank 0, whose collective had been aborted."""
    assert latest_step(mesh(7, None, 8, 7, shards=1), only_lowest=True) == 7
    assert latest_step(mesh(8, 8, 7, 8), only_lowest=True) is None, "no shard 1 at step 7"
    assert latest_step(mesh(None, None, shards=1), only_lowest=True) is None


def test_survivors_whose_ranks_changed_exchange_their_shards() -> None:
    ranks = [RankState(5, 1, 0), RankState(5, 0, 1)]
    assert latest_step(ranks) == 5
    assert transfers(ranks, 5) == [(1, 0), (0, 1)]


def test_survivors_of_a_different_mesh_provide_no_state() -> None:
    ranks = [RankState(5, ("of 4", n), ("of 2", n)) for n in range(2)]
    assert latest_step(ranks) is None
    assert why_lost(ranks) == "no survivor has a shard that a rank of this mesh needs"


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((7, None, 7, None), "no survivor has the shards of ranks 1, 3"),
        (
            (8, 7, None, 7),
            "the surviving shards are from different steps (ranks 1, 3 at 7; rank 0 at 8)",
        ),
    ],
)
def test_reason_for_lost_state_names_affected_ranks(
    steps: tuple[int | None, ...], reason: str
) -> None:
    assert why_lost(mesh(*steps)) == reason


@pytest.mark.parametrize("seed", range(300))
def test_every_rank_receives_its_shard_at_the_same_step(seed: int) -> None:
    """A sender always has the shard by the time it sends it, and no rank receives one twice."""
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


def test_state_reaches_many_new_ranks_within_few_rounds() -> None:
    pairs = transfers(mesh(3, *[None] * 1023, shards=1), 3)
    ready = {0: 0}  # rank -> the round that gives it the state
    for sender, receiver in pairs:
        ready[receiver] = ready[sender] = max(ready[sender], 0) + 1
    assert max(ready.values()) == 10
    assert len({receiver for _, receiver in pairs}) == 1023
    assert not any(a == b for a, b in itertools.pairwise(pairs))
