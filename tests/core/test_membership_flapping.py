"""Nodes that come and go, and coordinators that do not know what runs: nobody else is harmed."""

from plays import Table, formed, table

from relight.core.group.group_types import Received
from relight.core.group.messages import NodeReady, Note
from relight.core.ranks import NO_GENERATION, GenerationId


def test_a_node_that_has_gone_again_does_not_put_off_the_start() -> None:
    """The last call counts from the arrival of the last node that is still here."""
    table(2, 4, last_call_s=5.0).play("""
        0 a b joins
        3 x/1 joins
        4 x/1 lost
        5 -
        -> form 0: a b
    """)


def test_a_node_that_dies_after_the_last_call_was_due_ends_the_wait() -> None:
    """As soon as it has gone, the group forms."""
    table(2, 4, last_call_s=5.0).play("""
        0 a b joins
        3 x/1 joins
        5.5 x/1 lost
        -> form 0: a b
    """)


def test_a_node_that_crashes_every_3_s_delays_the_start_by_one_last_call_at_most() -> None:
    """It is no news any more when it comes for the third time."""
    game = table(2, 4, last_call_s=5.0)
    game.play("0 a b joins")
    began = 0.0
    for number in range(20):
        game.wait(3.0 * number)
        game.step(*game.events(f"x/{number}", "offers"))
        game.wait(3.0 * number + 2.9)
        game.step(*game.events(f"x/{number}", "lost"))
        if "a" in game.last:
            began = game.now
            break
    assert game.last["a"].place.group_world_size == 2
    assert 0 < began < 10


def test_the_last_call_ends_although_others_come_all_the_time() -> None:
    """Three times as long as it takes without any: then those who are here begin."""
    game = table(1, 90, last_call_s=5.0)
    for number in range(30):
        game.wait(number)
        for event in game.events(f"n{number}", "joins"):
            game.step(event)
        if "n0" in game.last:
            break
    assert game.last["n0"].place.group_world_size == 15


def test_a_node_that_comes_and_goes_is_let_in_only_after_it_has_stayed() -> None:
    """Each time twice as long: the job would restart for it again and again. It is told why."""
    game = table(2, 4, last_call_s=5.0).play("""
        0 a b joins
        5 -
        -> form 0: a b
        10 x/1 joins
        12 x/1 lost
        13 x/2 joins
        14 x/2 lost
        15 x/3 joins
        24.9 -
        25 -
        -> stop 0: a b
        25.1 a b ready
        -> form 1: a b x/3
    """)
    notes = [message.text for message in game.heard["x/3"] if isinstance(message, Note)]
    assert notes == ["x has joined and gone 2 times; it may join after staying connected for 10 s"]


def test_a_node_that_comes_and_goes_is_left_out_of_a_restart() -> None:
    """A failure elsewhere does not let it in before."""
    table(2, 4, last_call_s=5.0).play("""
        0 a b joins
        5 -
        -> form 0: a b
        10 x/1 joins
        11 x/1 lost
        12 x/2 joins
        13 x/2 lost
        14 x/3 joins
        15 b failed
        -> stop 0: a b
        15.1 a ready
        15.2 b ends
        -> form 1 restart 1: a b
        24 -
        -> stop 1: a b
    """)


def test_a_node_that_comes_and_goes_is_taken_where_it_is_needed() -> None:
    """Without it there would be no group."""
    table(2, 2, last_call_s=5.0).play("""
        0 a joins
        1 x/1 joins
        -> form 0: a x/1
        2 x/1 lost
        -> stop 0: a
        2.1 a ready
        3 x/2 joins
        -> form 1: a x/2
        4 x/2 lost
        -> stop 1: a
        4.1 a ready
        5 x/3 joins
        -> form 2: a x/3
    """)


def test_a_node_that_was_lost_after_a_long_time_is_let_in_like_any_other() -> None:
    """Coming and going is a matter of seconds."""
    table(1, 3, last_call_s=5.0).play("""
        0 a joins
        5 -
        -> form 0: a
        10 x/1 joins
        15 -
        -> stop 0: a
        15.1 a ready
        -> form 1: a x/1
        900 x/1 lost
        -> stop 1: a
        900.1 a ready
        -> form 2: a
        910 x/2 joins
        915 -
        -> stop 2: a
        915.1 a ready
        -> form 3: a x/2
        2000 x/2 lost
        -> stop 3: a
        2000.1 a ready
        -> form 4: a
        2010 x/3 joins
        2015 -
        -> stop 4: a
    """)


def spares_come(game: Table, latest: GenerationId, names: str = "st") -> None:
    """Nodes without workers join, which have heard of a generation."""
    for node in names:
        game.step(Received(node, game.join(node)))
        game.step(Received(node, NodeReady(NO_GENERATION, 29500, (), (), latest=latest)))


def test_spares_that_come_first_to_a_new_coordinator_do_not_begin_beside_the_old_group() -> None:
    """They have heard of a generation, whose nodes may only be slow to come: as long as a lease."""
    game = table(2, 2, lost_after_s=1.75)
    spares_come(game, formed(4))
    game.play("""
        1.7 -
        1.8 -
        -> form 5: s t
    """)


def test_the_join_timeout_forms_no_generation_beside_the_old_group_either() -> None:
    """Enough nodes are here, and it passes while the workers of others may run."""
    game = table(2, 3, lost_after_s=1.75, join_timeout_s=600.0).play("""
        0 s joins
        599 -
    """)
    spares_come(game, formed(4), "t")
    game.play("""
        600 -
        600.4 -
        600.5 -
        -> form 5: s t
    """)


def test_a_join_timeout_that_is_shorter_than_a_lease_waits_for_its_end_too() -> None:
    """And the group asks to be called then, not again and again until then."""
    game = table(2, 3, lost_after_s=1.75, join_timeout_s=0.5)
    spares_come(game, formed(4))
    game.play("""
        1 -
    """)
    assert game.group.deadline() == 1.75
    game.play("""
        1.75 -
        -> form 5: s t
    """)


def test_the_old_group_goes_on_when_it_comes_to_a_new_coordinator_after_the_spares() -> None:
    """The spares stay spares."""
    old = table(2, 2, lost_after_s=1.75).play("""
        0 a b joins
        -> form 0: a b
    """)
    game = old.follow()
    spares_come(game, formed(0))
    game.play("""
        0.5 a returns
        0.6 b returns
        -> confirm 0: a b
        9 -
    """)


def test_all_nodes_of_an_unknown_generation_wait_for_the_last_call_and_no_longer() -> None:
    """All nodes that can have been in it are here, without workers: no other node runs any."""
    game = table(1, 3, last_call_s=1.0, rejoin_s=9.0)
    for node in ("a", "b", "c"):
        game.step(Received(node, game.join(node)))
        game.step(Received(node, NodeReady(formed(4), 29500, (), ())))
    assert game.sent() == ["form 5: a b c"]


def test_nodes_of_two_generations_of_one_number_are_not_all_of_one() -> None:
    """As many are here as may be, but each of the two can lack one, whose workers may run."""
    game = table(1, 2, last_call_s=1.0, rejoin_s=2.0)
    for node, coordinator in (("a", 1), ("b", 2)):
        game.step(Received(node, game.join(node)))
        game.step(Received(node, NodeReady(formed(4, coordinator), 29500, (), ())))
    game.play("""
        1.9 -
        2 -
        -> form 5: a b
    """)


def test_the_wait_for_an_unknown_generation_ends_with_its_leases() -> None:
    """Two of three that can have been in it are here: the third may run until then."""
    game = table(1, 3, last_call_s=1.0, rejoin_s=2.0)
    for node in ("a", "b"):
        game.step(Received(node, game.join(node)))
        game.step(Received(node, NodeReady(formed(4), 29500, (), ())))
    game.play("""
        1.9 -
        2 -
        -> form 5: a b
    """)


def nodes_that_met_a_coordinator(game: Table, names: str) -> None:
    """Nodes join without workers, and have heard of no generation."""
    for node in names:
        game.step(Received(node, game.join(node, met_coordinator=True)))
        game.step(Received(node, NodeReady(NO_GENERATION, 29500, (), ())))


def test_nodes_of_an_earlier_coordinator_wait_for_the_workers_it_may_have_let_run() -> None:
    """They were never told of a generation: it had none, or did not need them."""
    game = table(2, 3, last_call_s=0.1, rejoin_s=1.0, lost_after_s=1.75)
    nodes_that_met_a_coordinator(game, "st")
    game.play("""
        1.7 -
        1.75 -
        -> form 0: s t
    """)


def test_one_node_that_met_an_earlier_coordinator_is_enough_to_wait() -> None:
    """The others have just started."""
    game = table(2, 3, last_call_s=0.1, rejoin_s=1.0, lost_after_s=1.75).play("""
        0 s joins
    """)
    nodes_that_met_a_coordinator(game, "t")
    game.play("""
        1.7 -
        1.75 -
        -> form 0: s t
    """)


def test_as_many_newcomers_as_may_be_wait_too() -> None:
    """The earlier coordinator may have formed a generation without them, before they came."""
    game = table(2, 2, lost_after_s=1.75)
    nodes_that_met_a_coordinator(game, "st")
    game.play("""
        1.7 -
        1.75 -
        -> form 0: s t
    """)


def test_a_connection_that_is_replaced_was_not_to_an_earlier_coordinator() -> None:
    """The same coordinator has sent this node its messages."""
    game = table(2, 3, last_call_s=0.1, lost_after_s=1.75).play("""
        0 s joins
    """)
    nodes_that_met_a_coordinator(game, "s")
    game.play("""
        0 t joins
        0.2 -
        -> form 0: s t
    """)
