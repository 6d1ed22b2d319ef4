"""Nodes that join, leave, are lost or return while the group is running."""

from plays import table

# Nodes that join and leave.


def test_survivors_above_minimum_form_a_new_generation_immediately() -> None:
    """The survivors form as soon as their workers have stopped, without using up a restart."""
    game = table(2, 3, 0).play("""
        0 a b c joins
        -> form 0: a b c
        9 b lost
        -> stop 0: a c
        9.1 a ready
        9.2 c ready
        -> form 1: a c
    """)
    assert game.reason("a") == "b was lost: no heartbeat"


def test_survivors_below_minimum_report_why_they_are_waiting() -> None:
    """The survivors wait for the join timeout, learn which node was lost and how many are missing,
    and then end with exit code 3.
    """
    game = table(3, 3, join_timeout_s=60.0).play("""
        0 a b c joins
        -> form 0: a b c
        9 b lost
        -> stop 0: a c
        10 a c ready
        12 -
    """)
    text = "b was lost: no heartbeat; 2 of 3 nodes left: a, c; waiting for 1 more (join timeout in "
    assert game.waits("a").text.startswith(text)
    assert not game.waits("a").spare
    assert game.group.explain(40) == f"{text}30 s)"
    game.play("""
        69.9 -
        70 -
        -> end 3: a c
        80 d joins
        -> end 3: d
    """)
    assert game.end("c").reason == (
        "gave up after 1 min: b was lost: no heartbeat; 2 of 3 nodes left: a, c; waiting for 1 more"
    )


def test_replacement_node_takes_over_the_rank_of_the_lost_node() -> None:
    """Rank 0 stays on its node."""
    table(3, 3).play("""
        0 a b c joins
        -> form 0: a b c
        9 b lost
        -> stop 0: a c
        9 a c ready
        20 Z joins
        -> form 1: a Z c
    """)


def test_nodes_that_join_during_last_call_are_admitted_together() -> None:
    """The new nodes are all in one new generation."""
    game = table(1, 8, 0, settle_timeout_s=5.0).play("""
        0 b joins
        5 -
        -> form 0: b
        10 c joins
        13 a joins
        17.9 -
        18 -
        -> stop 0: b
        18.1 b ready
        -> form 1: b c a
    """)
    assert game.reason("b") == "c, a joined"


def test_node_that_completes_the_group_is_admitted_immediately() -> None:
    """Once the maximum is reached, there is no one left to wait for."""
    table(1, 3, settle_timeout_s=5.0).play("""
        0 a joins
        5 -
        -> form 0: a
        10 b joins
        10.5 c joins
        -> stop 0: a
        11 a ready
        -> form 1: a b c
    """)


def test_workers_may_checkpoint_when_stopped_for_a_new_node() -> None:
    """Workers that are stopped because of a failure may not."""
    table(1, 2, checkpoint_first=True, settle_timeout_s=5.0).play("""
        0 a joins
        5 -
        -> form 0: a
        10 b joins
        -> limit 0 0: a
        10.1 a called7
        -> limit 8 0: a
        10.2 a called7
        -> at 8 stop 0: a
        11 a ready
        -> form 1: a b
        12 a failed
        -> stop 1: a b
    """)


def test_workers_past_the_checkpoint_limit_raise_the_limit() -> None:
    """All workers leave at the same call, which none of them has made yet."""
    table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        1 a preempted
        -> limit 0 0: a b
        1.1 a called7
        1.2 b called6
        -> limit 8 0: a b
        1.3 b called6
        1.4 a called9
        -> limit 17 0: a b
        1.5 a called17
        1.6 b called17
        -> limit 81 0: a b
        1.7 a b called80
        -> at 81 stop 0: a b
    """)


def test_agreed_checkpoint_call_is_resent_to_reconnecting_node() -> None:
    """The node's connection broke before or after it received the stop. Its workers may keep
    running to save.
    """
    table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        1 a preempted
        -> limit 0 0: a b
        1.1 a b called7
        -> limit 8 0: a b
        1.2 a b called7
        -> at 8 stop 0: a b
        1.3 b returns-and-saves
        -> at 8 stop 0: b
        -> confirm 0: b
    """)


def test_checkpointed_node_is_released_once_all_nodes_have_checkpointed() -> None:
    """Until then the node counts as present, since a coordinator that holds a registry needs enough
    nodes.
    """
    game = table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        1 a preempted
        -> limit 0 0: a b
        1.1 a b called7
        -> limit 8 0: a b
        1.2 a b called7
        -> at 8 stop 0: a b
        2 a leaves-and-waits
    """)
    assert game.group.present() == 2
    game.play("""
        9 b ready
        -> end 0: a
    """)
    assert game.group.present() == 1


def test_preempted_node_leaves_after_checkpoint() -> None:
    """The others continue without it, and no restart is charged."""
    game = table(1, 3, settle_timeout_s=1.0).play("""
        0 a b c joins
        -> form 0: a b c
        1 b preempted
        -> limit 0 0: a b c
        1.1 a b c called1
        -> limit 2 0: a b c
        1.2 a b c called1
        -> at 2 stop 0: a b c
        1.3 c ready
        1.4 b leaves
        1.5 a ready
        -> form 1: a c
    """)
    assert game.reason("c") == "b is preempted: got SIGTERM"


def test_workers_leave_at_next_checkpoint_call_if_agreement_fails() -> None:
    """For example, agreement fails if a node doesn't respond."""
    table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        1 a preempted
        -> limit 0 0: a b
        1.1 a called3
        5.9 -
        6 -
        -> gently stop 0: a b
    """)


def test_failure_cancels_checkpoint_agreement() -> None:
    """A lost node, or the success of all workers, cancels it too."""
    begin = """
        0 a b joins
        -> form 0: a b
        1 a preempted
        -> limit 0 0: a b
    """
    for event, effect in (
        ("b failed", "stop 0: a b"), ("b lost", "stop 0: a"), ("a b done", "end 0: a b"),
    ):  # fmt: skip
        table(2, 2).play("\n".join((begin.rstrip(), f"1.1 {event}", f"-> {effect}")))


def test_checkpoint_limit_is_resent_to_reconnecting_node() -> None:
    """The limit is sent again even if the node hadn't answered before its connection broke."""
    table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        1 a preempted
        -> limit 0 0: a b
        1.1 a called1
        1.2 b returns
        -> confirm 0: b
        -> limit 0 0: b
        1.3 b called1
        -> limit 2 0: a b
    """)


def test_spare_replaces_lost_node_immediately() -> None:
    """A node above the maximum learns that it is a spare."""
    game = table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        1 s joins
        5 -
    """)
    assert game.waits("s").spare
    assert game.waits("s").text == "generation 0 runs on 2 nodes; this node is kept as a spare"
    game.play("""
        9 a lost
        -> stop 0: b
        9.1 b ready
        -> form 1: s b
    """)


def test_departure_of_a_node_is_reported_and_uses_up_no_restart() -> None:
    game = table(1, 2, 0).play("""
        0 a b joins
        -> form 0: a b
        9 a leaves
        -> stop 0: b
        9 a lost
        9 b ready
        -> form 1: b
    """)
    assert game.reason("b") == "a left: SIGTERM"


def test_waiting_nodes_are_notified_which_node_left_and_why() -> None:
    game = table(2, 2).play("""
        0 a joins
        1 b offers
        2 b leaves
        2 b lost
        12 -
    """)
    text = "b left: SIGTERM; 1 of 2 nodes left: a; waiting for 1 more"
    assert game.waits("a").text.startswith(text)
    game.play("""
        13 c joins
        -> form 0: a c
        14 c lost
        -> stop 0: a
        15 a ready
        25 -
    """)
    assert game.waits("a").text.startswith("c was lost")


def test_failure_that_coincides_with_node_loss_uses_up_no_restart() -> None:
    """Whichever comes first, the other nodes' failures are a consequence of the loss."""
    table(1, 3, 0).play("""
        0 a b c joins
        -> form 0: a b c
        9 a failed
        -> stop 0: a b c
        9.5 b lost
        9.6 a ends
        9.7 c ready
        -> form 1: a c
        19 c lost
        -> stop 1: a
        19 a failed
        19 a ends
        -> form 2: a
    """)


def test_node_loss_between_generations_does_not_excuse_a_later_failure() -> None:
    """Only failures during the same stop count as a consequence of the loss."""
    table(2, 2, 0).play("""
        0 a b joins
        -> form 0: a b
        9 b lost
        -> stop 0: a
        9 a ready
        10 c joins
        -> form 1: a c
        11 c lost
        -> stop 1: a
        11 a ready
        12 d offers
        13 d lost
        14 e joins
        -> form 2: a e
        15 e failed
        -> stop 2: a e
        15 a ready
        15 e ends
        -> end 7: a e
    """)


def test_nodes_lost_one_by_one_can_return() -> None:
    """Even the last node may be lost."""
    table(1, 2).play("""
        0 a b joins
        -> form 0: a b
        1 a lost
        -> stop 0: b
        1 b ready
        -> form 1: b
        2 b leaves
        3 c joins
        -> form 2: c
    """)


def test_spares_form_a_group_when_all_members_are_gone() -> None:
    """All members are proven to be gone, so none of their workers is running."""
    table(1, 2).play("""
        0 a b joins
        -> form 0: a b
        1 s t joins
        9 a lost
        -> stop 0: b
        9.1 b lost
        -> form 1: s t
    """)


def test_node_that_reconnects_during_a_stop_keeps_its_rank() -> None:
    """A lost node that returns with its workers is awaited, and keeps its rank."""
    table(1, 3, 0).play("""
        0 a b c joins
        -> form 0: a b c
        9 a lost
        -> stop 0: b c
        9.1 b ready
        9.2 a returns
        -> stop 0: a
        9.3 c ready
        9.4 a ready
        -> form 1: a b c
    """)


def test_node_that_reconnects_late_must_stop_workers_before_rejoining() -> None:
    """The others have continued without it. It may join again after it has stopped."""
    game = table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        1 s joins
        9 a lost
        -> stop 0: b
        9 b ready
        -> form 1: s b
        20 a returns
        -> stop 0: a
        21 a ready
        25 -
    """)
    assert game.reason("a") == "the other nodes continued without this node"
    assert game.waits("a").spare


def test_node_that_reconnects_before_being_lost_is_confirmed() -> None:
    table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        9 a returns
        -> confirm 0: a
        10 a lost
        -> stop 0: b
    """)


def test_all_nodes_restart_if_a_node_reconnects_without_workers() -> None:
    """No restart is charged."""
    game = table(2, 2, 0).play("""
        0 a b joins
        -> form 0: a b
    """)
    del game.last["b"]
    game.play("""
        1 b idle
        -> stop 0: a b
        1.1 a ready
        -> form 1: a b
    """)
    assert game.reason("a") == "b reconnected without its workers"


def test_worker_failure_while_the_node_is_disconnected_uses_up_a_restart() -> None:
    """Workers that fail before their node reconnects count like any other failure."""
    table(2, 2, 1).play("""
        0 a b joins
        -> form 0: a b
        1 b idle-failed
        -> stop 0: a b
        1.1 a ready
        -> form 1 restart 1: a b
    """)


def test_reconnect_of_a_stopped_node_changes_nothing() -> None:
    """When a stopped node's connection breaks, no rank is lost and the restart is still charged."""
    table(2, 2, 1).play("""
        0 a b joins
        -> form 0: a b
        1 b failed
        -> stop 0: a b
        1.1 a ready
        1.2 a idle
        -> stop 0: a
        1.3 b ends
        -> form 1 restart 1: a b
    """)


def test_new_generation_names_host_that_ended_the_previous_one() -> None:
    """The host is that of the failed worker or of the lost node, or none if a node has joined."""
    played = table(1, 3)
    played.play(
        """
        0 a b joins
        5 -
        -> form 0: a b
        6 b failed
        -> stop 0: a b
        7 b ends
        7 a ready
        -> form 1 restart 1: a b
        """
    )
    assert played.last["a"].generation.failed_host == "b"
    played.play("8 b lost\n-> stop 1: a")
    played.play("10 a ready\n-> form 2 restart 1: a")
    assert played.last["a"].generation.failed_host == "b"
    played.play("12 c joins\n17 -\n-> stop 2: a")
    played.play("18 a ready\n-> form 3 restart 1: a c")
    assert played.last["a"].generation.failed_host == ""
