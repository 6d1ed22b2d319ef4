"""Workers that leave a broken group keep their processes in the next one."""

import pytest
from plays import Table, formed, table

from relight.core.group.messages import Note, StopWorkers
from relight.core.group.survivors import NO_STEP, STALE, UNKNOWN_CULPRIT

pytestmark = pytest.mark.pure


def running(least: int = 2, most: int = 3, **settings: object) -> Table:
    return table(least, most, settle_timeout_s=0.1, **settings).play("""
        0 a b joins
        0.1 -
        -> form 0: a b
    """)


def notes(game: Table, node: str) -> list[str]:
    return [message.text for message in game.heard[node] if isinstance(message, Note)]


def test_surviving_workers_on_all_nodes_are_kept_after_a_failure() -> None:
    game = running().play("""
        1 a failed
        -> stop 0: a b
        1 a left-failed
        1 b left
        -> form 1 restart 1: a b
        -> stay 1: a b
    """)
    (stop,) = (message for message in game.heard["b"] if isinstance(message, StopWorkers))
    assert stop.may_stay


def test_nodes_without_surviving_workers_start_new_processes() -> None:
    running().play("""
        1 a failed
        -> stop 0: a b
        1 a ends
        1 b left
        -> form 1 restart 1: a b
        -> stay 1: b
    """)


@pytest.mark.parametrize(("how", "stays"), [("left-failed", False), ("left-failed-ahead", True)])
def test_surviving_workers_are_kept_a_second_time_only_after_a_step(
    how: str, *, stays: bool
) -> None:
    again = "-> stay 2: a b" if stays else ""
    game = running().play(f"""
        1 a failed
        -> stop 0: a b
        1 a left-failed
        1 b left
        -> form 1 restart 1: a b
        -> stay 1: a b
        2 a failed
        -> stop 1: a b
        2 a {how}
        2 b left
        -> form 2 restart 2: a b
        {again}
    """)
    for node in ("a", "b"):
        assert (NO_STEP in notes(game, node)) != stays


def test_surviving_workers_are_kept_when_a_lost_node_is_replaced() -> None:
    table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        1 c joins
        2 a lost
        -> stop 0: b
        2 b left
        -> form 1: c b
        -> stay 1: b
    """)


def test_surviving_workers_of_an_older_generation_are_not_kept() -> None:
    """Workers of an older generation would be behind the others, or would run alongside them."""
    game = running(1).play("""
        1 a failed
        -> stop 0: a b
        1 a left-failed
        1 b lost
        -> form 1: a
        -> stay 1: a
        2 b joins
        2.1 -
        -> stop 1: a
        2.1 b left
        2.1 a left-ahead
        -> form 2: a b
        -> stay 2: a
    """)
    assert STALE in notes(game, "b")
    assert STALE not in notes(game, "a")


def test_surviving_workers_of_an_overdue_node_are_not_kept() -> None:
    game = table(1, 3, settle_timeout_s=0.1)
    game.stop_s = 5.0
    game.play("""
        0 a b joins
        0.1 -
        -> form 0: a b
        1 a failed
        -> stop 0: a b
        1 a left-failed
        6 -
        -> drop: b
        7 b joins
        7 b left
        16 -
        -> form 1: a b
        -> stay 1: a
    """)
    assert STALE in notes(game, "b")


def test_new_coordinator_keeps_surviving_workers() -> None:
    game = running(1, rejoin_grace_s=2.0).follow()
    game.play("""
        9 a ended-failed
        9.1 b returns
        -> stop 0: b
        9.2 b left
        -> form 1 restart 1: a b
        -> stay 1: b
    """)


def test_ranks_waiting_for_a_hung_rank_are_kept() -> None:
    game = running().play("""
        40 a b quiet30
        -> look and stop 0: a b
        41 a left-hung-data
        41 b left-hung
        -> form 1 restart 1: a b
        -> stay 1: a b
    """)
    (stop,) = (message for message in game.heard["b"] if isinstance(message, StopWorkers))
    assert stop.may_stay
    assert "rank 0 hangs in data" in game.last["b"].generation.cause


@pytest.mark.parametrize(
    ("one", "other"), [("left-hung", "left-hung"), ("left-hung-data", "left-hung-log")]
)
def test_all_workers_restart_if_the_hung_rank_is_unknown(one: str, other: str) -> None:
    """Either equally many ranks are in two places, or all of them wait for their peers."""
    game = running().play(f"""
        40 a b quiet30
        -> look and stop 0: a b
        41 a {one}
        41 b {other}
        -> form 1 restart 1: a b
    """)
    assert UNKNOWN_CULPRIT in notes(game, "a")


def test_new_coordinator_restarts_all_workers_if_hung_rank_is_unknown() -> None:
    game = (
        running(1, rejoin_grace_s=2.0)
        .play("""
        40 a b quiet30
        -> look and stop 0: a b
    """)
        .follow()
    )
    game.play("""
        41 a ended-failed
        41.1 b returns
        -> stop 0: b
        41.2 b left-hung
        -> form 1 restart 1: a b
    """)


def test_workers_of_a_replaced_generation_are_not_kept() -> None:
    game = running(1).play("""
        1 b lost
        -> stop 0: a
        1 a left
        -> form 1: a
        -> stay 1: a
        3 b returns
        -> stop 0: b
    """)
    (stop,) = (message for message in game.heard["b"] if isinstance(message, StopWorkers))
    assert stop.generation == formed(0)
    assert not stop.may_stay
