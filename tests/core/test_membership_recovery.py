"""A new coordinator learns the current generation from the nodes."""

import pytest
from plays import Table, formed, table

from relight.core.group.group_types import GroupState, Received
from relight.core.group.messages import Announce, GenerationFormed, WorkerFailed
from relight.core.ranks import NO_GENERATION

# A new coordinator.


def running_group_with_new_coordinator(most: int = 3, least: int = 2) -> Table:
    """Return a table whose coordinator is new, and nodes a, b and c in generation 1, restart 1."""
    game = table(least, most, rejoin_grace_s=2.0).play("""
        0 a b c joins
        -> form 0: a b c
        1 a failed
        -> stop 0: a b c
        1 a ends
        1 b c ready
        -> form 1 restart 1: a b c
    """)
    return game.follow()


def test_new_coordinator_confirms_running_generation() -> None:
    """If all nodes announce the same generation, nothing restarts and the counters continue."""
    game = running_group_with_new_coordinator().play("""
        9 c returns
        9.1 a returns
    """)
    text = "waiting for 1 more node from generation 1 to reconnect"
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


def test_new_coordinator_captures_stacks_after_failure_that_blames_a_peer() -> None:
    game = running_group_with_new_coordinator().play("""
        9 c returns
    """)
    failed = WorkerFailed(game.last["c"].generation.id, "a worker failed on c", suspects_peer=True)
    game.step(Received("c", failed))
    game.play("""
        9.1 a b returns
        -> look and stop 1: a b c
    """)


def test_node_lost_together_with_the_coordinator_is_left_out() -> None:
    """A node that doesn't reach the new coordinator in time counts as lost, and the others form
    again.
    """
    game = running_group_with_new_coordinator().play("""
        9 c returns
        9.1 a returns
        11 -
        -> stop 1: a c
        11.1 a ready
        11.1 c ready
        -> form 2 restart 1: a c
    """)
    assert game.reason("a") == "a node was lost when the coordinator was lost"


def test_new_node_does_not_disturb_coordinator_recovery() -> None:
    """A new node that arrives first has to wait until the current generation is known."""
    running_group_with_new_coordinator().play("""
        9 d joins
        9 a returns
        9 b returns
        9 c returns
        -> confirm 1: a b c
    """)


def test_preemption_during_recovery_is_handled_once_all_nodes_are_back() -> None:
    """A preempted node reports its preemption right after joining, before the generation is
    confirmed. The workers save once the generation is confirmed.
    """
    game = running_group_with_new_coordinator().play("""
        9 a returns
        9 a preempted
        9.1 b returns
        9.2 c returns
        -> confirm 1: a b c
        -> limit 0 1: a b c
        9.3 a b c called1
        -> limit 2 1: a b c
        9.4 a b c called1
        -> at 2 stop 1: a b c
        9.5 b c ready
        9.6 a leaves
        -> form 2 restart 1: b c
    """)
    assert game.reason("c") == "a is preempted: got SIGTERM"


def test_recovery_does_not_wait_for_a_lost_preempted_node() -> None:
    """No checkpoint is saved for the lost node, and the others form again."""
    running_group_with_new_coordinator().play("""
        9 a returns
        9 a preempted
        9.1 b returns
        9.2 a lost
        9.3 c returns
        -> stop 1: b c
        9.4 b c ready
        -> form 2 restart 1: b c
    """)


def test_preempted_node_that_succeeds_during_recovery_stops_no_workers() -> None:
    """The node has already left when the generation is confirmed."""
    running_group_with_new_coordinator().play("""
        9 a returns
        9 a preempted
        9.1 b returns
        9.2 a done
        9.3 a leaves
        9.4 c returns
        -> confirm 1, 0 done: b c
    """)


def test_checkpointing_continues_after_coordinator_loss() -> None:
    """The workers were asked to leave within a time limit. They continue even if a node was lost
    with the coordinator.
    """
    running_group_with_new_coordinator().play("""
        9 a returns-and-saves
        9.1 b returns-and-saves
        9.2 c returns
        -> confirm 1: a b c
        -> gently stop 1: a b c
        10 a b ready
        11 c ready
        -> form 2 restart 1: a b c
    """)
    running_group_with_new_coordinator().play("""
        9 a returns-and-saves
        9.1 b returns-and-saves
        11 -
        -> confirm 1: a b
        -> gently stop 1: a b
        20 a b ready
        -> form 2 restart 1: a b
    """)
    running_group_with_new_coordinator().play("""
        9 a returns-and-saves
        9.1 b returns-and-saves
        9.2 b leaves
        9.3 c returns-and-saves
        11 -
        -> confirm 1: a c
        -> gently stop 1: a c
        20 a c ready
        -> form 2 restart 1: a c
    """)


def test_checkpointed_node_waits_for_the_others_without_a_coordinator() -> None:
    """The next coordinator releases the node only once all nodes are back and have stopped."""
    running_group_with_new_coordinator().play("""
        9 a returns-and-saves
        9.1 b returns-and-saves
        9.2 a leaves-and-waits
        9.3 c returns-and-saves
        11 -
        -> confirm 1: b c
        -> gently stop 1: b c
        20 b c ready
        -> end 0: a
        -> form 2 restart 1: b c
    """)


def test_other_nodes_get_no_save_time_if_only_one_node_checkpoints() -> None:
    """The other workers were never asked to save, so they would wait for workers that have left."""
    table(1, 2).play("""
        0 a b joins
        -> form 0: a b
        1 a returns-and-saves
        -> confirm 0: a
        2 a leaves
        -> stop 0: b
        2.1 b ready
        -> form 1: b
    """)


def test_worker_failure_without_a_coordinator_stops_checkpointing_workers() -> None:
    """The checkpointing workers would otherwise wait for the failed worker."""
    running_group_with_new_coordinator().play("""
        9 a returns-and-saves
        9.1 b returns
        9.1 b failed
        9.2 c returns
        -> stop 1: a b c
    """)


def test_failure_during_recovery_is_handled_once_all_nodes_are_back() -> None:
    """A worker failure without a coordinator restarts all nodes and is charged."""
    running_group_with_new_coordinator().play("""
        9 a returns
        9 a failed
        9.1 a ends
        9.2 b returns
        9.3 c returns
        -> stop 1: b c
        9.4 b c ready
        -> form 2 restart 2: a b c
    """)


def test_new_coordinator_learns_which_nodes_have_finished() -> None:
    """Nodes that have succeeded report it, and the job ends once all have."""
    running_group_with_new_coordinator().play("""
        9 a returns-done
        9 b returns
        9 c returns-done
        -> confirm 1, 0 2 done: a b c
        10 b done
        -> end 0: a b c
    """)


def test_new_coordinator_does_not_wait_for_a_finished_node_that_departed() -> None:
    """The nodes that are still running know that it was done, and report it."""
    game = running_group_with_new_coordinator()
    game.succeeded = (0,)
    game.play("""
        9 b c returns
        -> confirm 1, 0 done: b c
        30 b c done
        -> confirm 1, 0 1 done: c
        -> end 0: b c
    """)


def test_node_that_reconnects_after_finishing_counts_as_finished() -> None:
    """The node connects twice during the recovery, the second time as done."""
    running_group_with_new_coordinator().play("""
        9 a b returns
        9.1 a b returns-done
        9.2 c returns-done
        -> confirm 1, 0 1 2 done: a b c
        -> end 0: a b c
    """)


def test_finished_node_that_reconnects_is_counted_once() -> None:
    """If the node also counted as departed, the group wouldn't notice the missing one."""
    running_group_with_new_coordinator().play("""
        9 a returns-done
        9.1 a lost
        9.2 a returns-done
        9.3 b returns
        12 -
        -> stop 1: a b
    """)


def test_node_running_an_older_generation_must_stop() -> None:
    game = running_group_with_new_coordinator()
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


def test_next_generation_number_is_higher_than_any_announced_number() -> None:
    """Stopped nodes report their last generation."""
    running_group_with_new_coordinator().play("""
        9 a idle
        9 b idle
        9 c idle
        -> form 2: a b c
    """)


@pytest.mark.parametrize("order", [("a", "x"), ("x", "a")])
def test_generations_with_the_same_number_are_distinguished(
    order: tuple[str, str],
) -> None:
    """Two coordinators formed generations with the same number and size, and with the same nodes
    except for one. Both coordinators are gone. Only one of the generations may continue, and the
    other one's workers are stopped.
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
def test_group_with_expired_leases_yields_to_one_that_continued(
    number: int,
) -> None:
    """A coordinator formed a generation without a node that was away, and exited. That node is the
    first to reach the next coordinator. Its own generation looks complete, but isn't taken for the
    current one, whatever its number.
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


def test_group_with_expired_leases_continues_if_no_other_appears() -> None:
    """A single node with an unexpired lease also proves that its generation is current."""
    running_group_with_new_coordinator().play("""
        9 a b c returns-lapsed
        12 -
        -> confirm 1: a b c
    """)
    running_group_with_new_coordinator().play("""
        9 a b returns-lapsed
        9.1 c returns
        -> confirm 1: a b c
    """)


def test_higher_generation_number_does_not_replace_a_running_generation() -> None:
    game = running_group_with_new_coordinator()
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


def test_second_node_claiming_the_same_place_in_a_group_is_stopped() -> None:
    game = running_group_with_new_coordinator()
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
def test_node_announcing_an_invalid_place_in_a_group_is_stopped(announce: Announce) -> None:
    game = table(2, 3)
    game.step(Received("a", game.join("a", announce)))
    assert game.group.state is GroupState.GATHERING
    assert game.sent() == [f"stop {announce.generation.number}: a"]


# Nodes whose workers ended without a coordinator.


def test_worker_failure_without_a_coordinator_uses_up_a_restart() -> None:
    """The node's workers are gone. It announces their generation and reports the failure."""
    running_group_with_new_coordinator().play("""
        9 a ended-failed
        9.2 b returns
        9.3 c returns
        -> stop 1: b c
        9.4 b c ready
        -> form 2 restart 2: a b c
    """)


def test_late_failure_report_prevents_confirmation_of_the_generation() -> None:
    """The current generation is known, but not yet how the last node's workers ended."""
    game = running_group_with_new_coordinator().play("""
        9.2 b returns
        9.3 c returns
    """)
    join, ready = game.events("a", "ended-failed")
    game.step(join)
    assert game.sent() == []
    game.step(ready)
    assert game.sent() == ["stop 1: b c"]


def test_stopped_nodes_regroup_after_takeover() -> None:
    """The group doesn't wait out their leases, and the nodes keep their order."""
    running_group_with_new_coordinator().play("""
        9 c ended
        9.1 a ended
        9.2 b ended
        -> form 2 restart 1: a b c
    """)


def test_stopped_nodes_wait_for_possible_successor_group() -> None:
    """The previous coordinator may have formed another generation, and fewer nodes than the
    maximum have arrived. If a node of that generation arrives, its generation continues and the
    stopped nodes are admitted to it.
    """
    old = table(1, 3, rejoin_grace_s=2.0, settle_timeout_s=0.1).play("""
        0 a b joins
        0.1 -
        -> form 0: a b
    """)
    old.follow().play("""
        9 a b ended
        10.9 -
        11 -
        -> form 1: a b
    """)
    later = old.follow()
    generation, place, *_ = later.last["a"]
    later.last["y"] = GenerationFormed(
        generation._replace(id=formed(1)), place._replace(group_world_size=1)
    )
    later.play("""
        9 a b ended
        9.1 y returns
        -> stop 0: a b
        -> confirm 1: y
        -> stop 1: y
        9.2 y ready
        -> form 2: y a b
    """)


def test_final_failure_ends_job_after_takeover() -> None:
    game = table(2, 2, max_restarts=0, rejoin_grace_s=2.0).play("""
        0 a b joins
        -> form 0: a b
    """)
    game.follow().play("""
        9 a ended-failed
        9.1 b returns
        -> stop 0: b
        9.2 b ready
        -> end 7: a b
    """)


def test_worker_failure_reported_after_a_reconnect_uses_up_a_restart() -> None:
    """The previous coordinator's death lost the message that a worker had failed. The node keeps
    its place.
    """
    table(2, 2, max_restarts=3).play("""
        0 a b joins
        -> form 0: a b
        1 a ended-failed
        -> stop 0: a b
        1.1 b ready
        -> form 1 restart 1: a b
    """)


def test_node_lost_during_a_stop_regains_its_rank_without_workers() -> None:
    """The loss still counts as a membership change."""
    table(2, 2, max_restarts=3).play("""
        0 a b joins
        -> form 0: a b
        1 a failed
        -> stop 0: a b
        1 a ends
        1.1 a lost
        1.2 a ended-failed
        -> stop 0: a
        1.3 b ready
        -> form 1: a b
    """)


def test_older_generation_that_ended_does_not_disturb_the_current_one() -> None:
    """A spare that was once a member is the first node to reach the next coordinator."""
    game = running_group_with_new_coordinator()
    game.last["old"] = GenerationFormed(
        game.last["a"].generation._replace(id=formed(0)),
        game.last["a"].place._replace(group_rank=0),
    )
    game.play("""
        9 old ended
        9.1 a b c returns
        -> stop 0: old
        -> confirm 1: a b c
    """)


def test_departure_of_a_node_does_not_end_the_recovery_wait() -> None:
    """The workers of nodes that haven't reconnected may still be running."""
    running_group_with_new_coordinator(least=1).play("""
        9 a b returns
        9.1 b leaves
        -> stop 1: a
        9.2 a ready
        10.9 -
        11 -
        -> form 2 restart 1: a
    """)
