"""A new coordinator learns from the nodes what is live."""

import pytest
from plays import Table, formed, table

from relight.core.group_types import GroupState, Received
from relight.core.messages import (
    Announce,
    GenerationFormed,
)
from relight.core.ranks import NO_GENERATION

# A new coordinator.


def running(most: int = 3, least: int = 2) -> Table:
    """Return a table whose coordinator is new, and nodes a, b and c in generation 1, restart 1."""
    game = table(least, most, rejoin_s=2.0).play("""
        0 a b c joins
        -> form 0: a b c
        1 a failed
        -> stop 0: a b c
        1 a ends
        1 b c ready
        -> form 1 restart 1: a b c
    """)
    return game.follow()


def test_a_new_coordinator_confirms_what_runs() -> None:
    """When all nodes announce the same generation nothing restarts, and counters go on."""
    game = running().play("""
        9 c returns
        9.1 a returns
    """)
    text = "waiting for 1 more node of generation 1 to reconnect"
    assert game.group.explain(9.1) == text
    game.play("""
        9.2 b returns
        -> confirm 1: a b c
        20 b failed
        -> stop 1: a b c
        20 a c ready
        20 b ends
        -> form 2 restart 2: a b c
    """)


def test_a_node_lost_with_the_coordinator_is_left_out() -> None:
    """A node that does not reach the new coordinator in time is lost; the others form again."""
    game = running().play("""
        9 c returns
        9.1 a returns
        11 -
        -> stop 1: a c
        11.1 a ready
        11.1 c ready
        -> form 2 restart 1: a c
    """)
    assert game.reason("a") == "a node was lost when the coordinator was lost"


def test_a_new_node_does_not_disturb_the_recovery() -> None:
    """A stranger that comes first waits until it is known what runs."""
    running().play("""
        9 d joins
        9 a returns
        9 b returns
        9 c returns
        -> confirm 1: a b c
    """)


def test_a_failure_during_the_recovery_is_kept_until_all_are_back() -> None:
    """A worker that failed while there was no coordinator restarts all, and is charged."""
    running().play("""
        9 a returns
        9 a failed
        9.1 a ends
        9.2 b returns
        9.3 c returns
        -> stop 1: b c
        9.4 b c ready
        -> form 2 restart 2: a b c
    """)


def test_a_new_coordinator_learns_which_nodes_are_done() -> None:
    """Nodes that had succeeded say so; when all have, the job ends."""
    running().play("""
        9 a returns-done
        9 b returns
        9 c returns-done
        -> confirm 1, 0 2 done: a b c
        10 b done
        -> end 0: a b c
    """)


def test_a_node_that_has_succeeded_and_left_is_not_missed_by_the_next_coordinator() -> None:
    """The nodes that still run know of it, and say so."""
    game = running()
    game.succeeded = (0,)
    game.play("""
        9 b c returns
        -> confirm 1, 0 done: b c
        30 b c done
        -> confirm 1, 0 1 done: c
        -> end 0: b c
    """)


def test_done_between_two_connections_is_not_forgotten() -> None:
    """A node that comes twice during the recovery, the second time done, is done."""
    running().play("""
        9 a b returns
        9.1 a b returns-done
        9.2 c returns-done
        -> confirm 1, 0 1 2 done: a b c
        -> end 0: a b c
    """)


def test_a_node_that_is_done_and_comes_back_is_counted_once() -> None:
    """It was counted as gone for good as well, so that nobody missed another one."""
    running().play("""
        9 a returns-done
        9.1 a lost
        9.2 a returns-done
        9.3 b returns
        12 -
        -> stop 1: a b
    """)


def test_a_node_with_an_older_generation_than_another_must_stop() -> None:
    game = running()
    game.last["old"] = GenerationFormed(
        game.last["a"].generation._replace(id=formed(0)),
        game.last["a"].place._replace(group_rank=0),
    )
    game.play("""
        9 old returns
        9 a returns
        -> stop 0: old
        9 b c returns
        -> confirm 1: a b c
    """)


def test_the_next_generation_is_above_all_that_were_heard_of() -> None:
    """Nodes that have stopped tell which generation they were in, and the next one is above it."""
    running().play("""
        9 a idle
        9 b idle
        9 c idle
        -> form 2: a b c
    """)


@pytest.mark.parametrize("order", [("a", "x"), ("x", "a")])
def test_a_node_is_not_taken_for_one_of_another_generation_of_its_number(
    order: tuple[str, str],
) -> None:
    """A coordinator that knew nothing has formed a generation of the number, size and, but for one
    place, the nodes of another one, and is gone as well. A node that was away all the time is not
    taken for one of it; whichever node is not, no worker of the other may run on.
    """
    older = table(2, 2).play("""
        0 a b joins
        -> form 0: a b
    """)
    newer = older.follow().play("""
        1 x c joins
        -> form 0: c x
    """)
    game = newer.follow()
    game.last["a"] = older.last["a"]
    game.now = 5.0
    first, second = order
    game.play(f"""
        5 {first} returns
        5.1 {second} returns
        -> stop 0: {second}
        5.2 {second} ready
        7 -
        -> stop 0: {first}
        7.1 {first} ready
        -> form 1: a x
    """)


@pytest.mark.parametrize("number", [0, 3])
def test_a_whole_group_whose_leases_were_over_waits_for_others_that_have_gone_on(
    number: int,
) -> None:
    """A node was away, a coordinator formed a generation without it, and is gone. At the next one
    the node that was away is the first. Its generation is complete, and not taken for the live one,
    whatever its number is.
    """
    older = table(1, 2).play("""
        0 a joins
        7 -
        -> form 0: a
    """)
    game = (
        table(1, 2)
        .play("""
        0 x joins
        7 -
        -> form 0: x
    """)
        .follow()
    )
    formed_last = older.last["a"]
    of_older = formed_last.generation.id._replace(number=number, origin="older")
    game.last["a"] = formed_last._replace(generation=formed_last.generation._replace(id=of_older))
    game.now = 9.0
    game.play(f"""
        9 a returns-lapsed
        10 x returns
        -> stop {number}: a
        -> confirm 0: x
    """)


def test_a_whole_group_whose_leases_were_over_goes_on_if_no_other_comes() -> None:
    """One node whose lease was not over is proof enough that it is the live one."""
    running().play("""
        9 a b c returns-lapsed
        12 -
        -> confirm 1: a b c
    """)
    running().play("""
        9 a b returns-lapsed
        9.1 c returns
        -> confirm 1: a b c
    """)


def test_a_generation_with_a_later_number_does_not_replace_one_that_surely_runs() -> None:
    game = running()
    game.last["x"] = GenerationFormed(
        game.last["a"].generation._replace(id=formed(7)),
        game.last["a"].place._replace(group_rank=0),
    )
    game.play("""
        9 a returns
        9.1 x returns-lapsed
        -> stop 7: x
        9.2 b c returns-lapsed
        -> confirm 1: a b c
    """)


def test_the_second_node_that_announces_a_place_is_superseded() -> None:
    game = running()
    game.last["x"] = game.last["a"]
    game.play("""
        9 a returns
        9 x returns
        -> stop 1: x
        9 b c returns
        -> confirm 1: a b c
    """)


@pytest.mark.parametrize(
    "announce",
    [
        Announce(formed(5), 0, 0, 0, done=True),
        Announce(formed(5), 0, -1, 3, done=False),
        Announce(formed(5), 0, 3, 3, done=False),
        Announce(formed(5), 0, 0, 1 << 60, done=False),
        Announce(NO_GENERATION, 0, 0, 1, done=False),
    ],
)
def test_a_node_that_announces_a_place_outside_the_group_is_stopped(announce: Announce) -> None:
    game = table(2, 3)
    game.step(Received("a", game.join("a", announce)))
    assert game.group.state is GroupState.GATHERING
    assert game.sent() == [f"stop {announce.generation.number}: a"]
