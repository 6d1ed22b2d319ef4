"""Flapping nodes don't disturb the others, nor do coordinators that don't know the current
generation.
"""

from plays import Table, formed, table

from relight.core.group.group_types import PredecessorPossible, Received
from relight.core.group.messages import NodeReady, Note
from relight.core.ranks import NO_GENERATION, GenerationId


def test_departed_node_does_not_delay_the_first_generation() -> None:
    """The last call counts from the latest arrival of a node that is still there."""
    table(2, 4, settle_timeout_s=5.0).play("""
        0 a b joins
        3 x/1 joins
        4 x/1 lost
        5 -
        -> form 0: a b
    """)


def test_group_forms_if_an_unready_node_dies_after_the_last_call() -> None:
    """The group forms as soon as the unready node is gone."""
    table(2, 4, settle_timeout_s=5.0).play("""
        0 a b joins
        3 x/1 joins
        5.5 x/1 lost
        -> form 0: a b
    """)


def test_crash_looping_node_delays_start_by_only_one_last_call() -> None:
    """The node's third arrival no longer restarts the last call."""
    game = table(2, 4, settle_timeout_s=5.0)
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


def test_last_call_duration_is_bounded_despite_steady_arrivals() -> None:
    """After three times the usual duration, the group forms with the nodes that are there."""
    game = table(1, 90, settle_timeout_s=5.0)
    for number in range(30):
        game.wait(number)
        for event in game.events(f"n{number}", "joins"):
            game.step(event)
        if "n0" in game.last:
            break
    assert game.last["n0"].place.group_world_size == 15


def test_flapping_node_is_admitted_only_after_staying_connected() -> None:
    """The required time doubles with each attempt, as every admission restarts the job. The node
    receives the reason.
    """
    game = table(2, 4, settle_timeout_s=5.0).play("""
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
    assert notes == ["x is flapping (2 joins); it can join after staying connected for 10 s"]


def test_flapping_node_is_left_out_of_a_restart() -> None:
    """A failure elsewhere doesn't admit it any earlier."""
    table(2, 4, settle_timeout_s=5.0).play("""
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


def test_flapping_node_is_admitted_if_needed_to_reach_the_minimum() -> None:
    """Without the flapping node, there would be too few nodes."""
    table(2, 2, settle_timeout_s=5.0).play("""
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


def test_node_that_leaves_after_a_long_time_is_not_flapping() -> None:
    """Only a node that leaves within seconds of joining is flapping."""
    table(1, 3, settle_timeout_s=5.0).play("""
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


def join_spares(game: Table, latest: GenerationId, names: str = "st") -> None:
    """Let nodes without workers join that have heard of a generation."""
    for node in names:
        game.step(Received(node, game.join(node)))
        game.step(Received(node, NodeReady(NO_GENERATION, 29500, (), (), latest=latest)))


def test_spares_do_not_start_alongside_the_old_group() -> None:
    """The members of the generation that the spares know of may only be slow to reconnect, so the
    spares wait for a lease to end.
    """
    game = table(2, 2, lost_after_s=1.75)
    join_spares(game, formed(4))
    game.play("""
        1.7 -
        1.8 -
        -> form 5: s t
    """)


def test_generation_with_a_lower_number_may_still_be_running() -> None:
    """All nodes of generation 4 are here, but another coordinator, which did not know that
    generation, has named generation 0 to one of them as a spare.
    """
    game = table(2, 2, lost_after_s=1.75)
    for node, latest in ("s", formed(4)), ("t", GenerationId(0, "another")):
        game.step(Received(node, game.join(node)))
        game.step(Received(node, NodeReady(formed(4), 29500, (), (), latest=latest)))
    game.play("""
        1.7 -
        1.8 -
        -> form 5: s t
    """)


def test_join_timeout_does_not_form_a_group_alongside_the_old_one() -> None:
    """There are enough nodes when the timeout expires, but the workers of others may still be
    running.
    """
    game = table(2, 3, lost_after_s=1.75, join_timeout_s=600.0).play("""
        0 s joins
        599 -
    """)
    join_spares(game, formed(4), "t")
    game.play("""
        600 -
        600.4 -
        600.5 -
        -> form 5: s t
    """)


def test_group_waits_for_lease_to_end_despite_short_join_timeout() -> None:
    """The group's next deadline is the end of the lease, so the group isn't called repeatedly until
    then.
    """
    game = table(2, 3, lost_after_s=1.75, join_timeout_s=0.5)
    join_spares(game, formed(4))
    game.play("""
        1 -
    """)
    assert game.group.deadline() == 1.75
    game.play("""
        1.75 -
        -> form 5: s t
    """)


def test_old_group_continues_if_it_reconnects_after_the_spares() -> None:
    """The spares remain spares."""
    old = table(2, 2, lost_after_s=1.75).play("""
        0 a b joins
        -> form 0: a b
    """)
    game = old.follow()
    join_spares(game, formed(0))
    game.play("""
        0.5 a returns
        0.6 b returns
        -> confirm 0: a b
        9 -
    """)


def test_group_does_not_wait_for_leases_if_all_possible_members_are_present() -> None:
    """Every node that can have been a member is here without workers, so no other node is running
    any.
    """
    game = table(1, 3, settle_timeout_s=1.0, rejoin_grace_s=9.0)
    for node in ("a", "b", "c"):
        game.step(Received(node, game.join(node)))
        game.step(Received(node, NodeReady(formed(4), 29500, (), ())))
    assert game.sent() == ["form 5: a b c"]


def test_generations_with_the_same_number_are_distinguished() -> None:
    """The maximum number of nodes is here, but each of the two generations may lack a member whose
    workers are still running.
    """
    game = table(1, 2, settle_timeout_s=1.0, rejoin_grace_s=2.0)
    for node, coordinator in (("a", 1), ("b", 2)):
        game.step(Received(node, game.join(node)))
        game.step(Received(node, NodeReady(formed(4, coordinator), 29500, (), ())))
    game.play("""
        1.9 -
        2 -
        -> form 5: a b
    """)


def test_wait_for_unknown_generation_ends_when_its_leases_expire() -> None:
    """Two of three possible members are here, and the third may be running until then."""
    game = table(1, 3, settle_timeout_s=1.0, rejoin_grace_s=2.0)
    for node in ("a", "b"):
        game.step(Received(node, game.join(node)))
        game.step(Received(node, NodeReady(formed(4), 29500, (), ())))
    game.play("""
        1.9 -
        2 -
        -> form 5: a b
    """)


def join_nodes_of_former_coordinator(game: Table, names: str) -> None:
    """Let nodes without workers join that have met a coordinator but not heard of a generation."""
    for node in names:
        game.step(Received(node, game.join(node, met_coordinator=True)))
        game.step(Received(node, NodeReady(NO_GENERATION, 29500, (), ())))


def test_nodes_of_previous_coordinator_wait_for_its_leases_to_expire() -> None:
    """The nodes were never in a generation, because none had formed yet or because they were
    spares.
    """
    game = table(2, 3, settle_timeout_s=0.1, rejoin_grace_s=1.0, lost_after_s=1.75)
    join_nodes_of_former_coordinator(game, "st")
    game.play("""
        1.7 -
        1.75 -
        -> form 0: s t
    """)


def test_first_generation_waits_until_no_predecessor_is_possible() -> None:
    for denied in (False, True):
        game = table(2, 3, settle_timeout_s=0.1, rejoin_grace_s=1.0, lost_after_s=1.75)
        game.step(PredecessorPossible("no reply yet from h3"))
        for node in "st":
            game.step(Received(node, game.join(node)))
            game.step(Received(node, NodeReady(NO_GENERATION, 29500, (), ())))
        if denied:
            game.step(PredecessorPossible(""))
            game.play("""
                0.1 -
                -> form 0: s t
            """)
        else:
            game.play("""
                1.7 -
                1.75 -
                -> form 0: s t
            """)


def test_waiting_nodes_are_told_which_host_may_know_of_a_predecessor() -> None:
    game = table(2, 3, settle_timeout_s=0.1, lost_after_s=10.0)
    game.step(PredecessorPossible("no reply yet from h3"))
    for node in "st":
        game.step(Received(node, game.join(node)))
        game.step(Received(node, NodeReady(NO_GENERATION, 29500, (), ())))
    assert game.group.explain(4.0).endswith("waiting up to 6.0 s: no reply yet from h3")


def test_one_node_of_previous_coordinator_makes_all_nodes_wait() -> None:
    """The others have only just started."""
    game = table(2, 3, settle_timeout_s=0.1, rejoin_grace_s=1.0, lost_after_s=1.75).play("""
        0 s joins
    """)
    join_nodes_of_former_coordinator(game, "t")
    game.play("""
        1.7 -
        1.75 -
        -> form 0: s t
    """)


def test_full_group_waits_for_leases_of_previous_coordinator() -> None:
    """The previous coordinator may have formed a generation before these nodes joined it."""
    game = table(2, 2, lost_after_s=1.75)
    join_nodes_of_former_coordinator(game, "st")
    game.play("""
        1.7 -
        1.75 -
        -> form 0: s t
    """)


def test_replaced_connection_is_not_mistaken_for_a_previous_coordinator() -> None:
    """The messages this node has received are from the same coordinator."""
    game = table(2, 3, settle_timeout_s=0.1, lost_after_s=1.75).play("""
        0 s joins
    """)
    join_nodes_of_former_coordinator(game, "s")
    game.play("""
        0 t joins
        0.2 -
        -> form 0: s t
    """)
