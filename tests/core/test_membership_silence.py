"""Silent nodes: the group waits for them and informs its users, and acts
immediately only on proof.
"""

import pytest
from plays import Table, record, table

from relight.core.failure import ErrorReport, FailureKind
from relight.core.group.group_types import Received, Slept
from relight.core.group.messages import Confirm, NodeReady, Note, WorkerFailed
from relight.core.group.silence import Silence, Silent


def running_group(least: int = 1, most: int = 3, **others: object) -> Table:
    """Return a group of three nodes running generation 0, with the default patience."""
    return table(least, most, **{"lost_after_s": 10.0, **others}).play("""
        0 a b c joins
        -> form 0: a b c
    """)


def notes(game: Table, node: str) -> list[str]:
    """Return the notes that a node received for its users."""
    return [each.text for each in game.heard[node] if isinstance(each, Note)]


def test_brief_silence_of_a_node_has_no_effect() -> None:
    running_group().play("""
        20 b silent1
        28.5 b heard
        60 -
    """)


def test_silent_node_counts_as_lost_after_the_timeout() -> None:
    """The timeout counts from the node's last heartbeat. Its lease ends a second earlier."""
    game = running_group().play("""
        20 b silent1
        28.9 -
        29 -
        -> drop: b
        -> stop 0: a c
        29.1 a c ready
        -> form 1: a c
    """)
    assert game.reason("a") == "b was lost: no heartbeat for 10.0 s"


def test_proof_that_a_silent_node_is_dead_ends_the_wait() -> None:
    running_group().play("""
        20 b silent
        20.1 b lost
        -> stop 0: a c
        20.2 a c ready
        -> form 1: a c
    """)


def test_node_silence_is_reported_to_all_nodes_after_a_second() -> None:
    game = running_group().play("""
        20 b silent0.9
        20.05 -
    """)
    assert notes(game, "a") == []
    game.play("""
        20.1 -
        25 b heard
        26 -
    """)
    assert (
        notes(game, "a")
        == notes(game, "c")
        == [
            "no heartbeat from b for 1.0 s; waiting up to 10 s",
            "heartbeats from b resumed after 5.9 s",
        ]
    )


def test_node_silence_of_less_than_a_second_is_not_reported() -> None:
    game = running_group().play("""
        20 b silent0.8
        20.1 b heard
        40 -
    """)
    assert notes(game, "a") == []


def test_nodes_that_go_silent_together_are_reported_in_one_line() -> None:
    game = running_group().play("""
        20 b c silent0.9
        21 b c heard
        23 -
    """)
    assert notes(game, "a") == [
        "no heartbeat from b, c for 1.0 s; waiting up to 10 s",
        "heartbeats from b, c resumed after at most 1.9 s",
    ]


def test_group_explanation_names_silent_nodes() -> None:
    game = running_group().play("""
        20 b silent2
    """)
    silent = "no heartbeat from b for 2.0 s; waiting up to 10 s"
    assert game.group.explain(game.now) == f"generation 0 runs on 3 nodes; {silent}"


def test_no_node_is_admitted_while_another_is_silent() -> None:
    table(1, 4, settle_timeout_s=1.0, lost_after_s=10.0).play("""
        0 a b c joins
        1 -
        -> form 0: a b c
        20 b silent
        20 d joins
        25 -
        25 b heard
        -> stop 0: a b c
    """)


def test_survivor_that_goes_silent_during_a_stop_keeps_its_place() -> None:
    """The next generation waits for it, even if there are enough other nodes."""
    running_group().play("""
        20 a failed
        -> stop 0: a b c
        20.1 a ends
        20.2 b ready
        20.3 b silent
        20.4 c ready
        23 -
        24 b heard
        -> form 1 restart 1: a b c
    """)


def test_generation_forms_without_survivor_that_stays_silent() -> None:
    running_group().play("""
        20 a failed
        -> stop 0: a b c
        20.1 a ends
        20.2 c ready
        20.3 b silent
        30.2 -
        30.3 -
        -> drop: b
        -> form 1: a c
    """)


def test_group_does_not_wait_for_a_silent_new_node() -> None:
    table(2, 3, settle_timeout_s=5.0, lost_after_s=20.0).play("""
        0 a b joins
        1 b silent
        9 c joins
        14 -
        -> form 0: a c
    """)


def test_reconnecting_node_is_confirmed_and_no_longer_counts_as_silent() -> None:
    """A broken connection proves nothing."""
    running_group().play("""
        20 b silent
        20.2 b returns
        -> confirm 0: b
        60 -
    """)


def fail_blaming_peer(game: Table, node: str, text: str) -> None:
    """Fail a worker with an error that blames a lost peer."""
    generation = game.last[node].generation.id
    game.step(Received(node, WorkerFailed(generation, f"a worker failed on {node}", True)))
    report = ErrorReport(FailureKind.RECORDED, "RuntimeError", text, "train.py:1", "", ())
    failure = record(host=node)._replace(report=report)
    game.step(Received(node, NodeReady(generation, 29500, (failure,), ())))


def test_failure_blamed_on_a_silent_peer_uses_up_no_restart() -> None:
    """The other nodes stop immediately. They restart once the peer's lease has ended or the peer
    is back.
    """
    game = running_group().play("""
        20 b silent1
    """)
    fail_blaming_peer(game, "a", "Connection closed by peer")
    game.play("""
        20 -
        -> look and stop 0: a b c
        20.1 c ready
        29 -
        -> drop: b
        -> form 1: a c
    """)


def test_failure_just_after_a_nodes_silence_uses_up_no_restart() -> None:
    game = running_group().play("""
        20 b silent1
        24 b heard
        25 -
    """)
    fail_blaming_peer(game, "a", "Connection closed by peer")
    game.play("""
        25 -
        -> look and stop 0: a b c
        25.1 b c ready
        -> form 1: a b c
    """)


@pytest.mark.parametrize("back_at", [23.1, 25.0])
def test_coordinator_suspension_does_not_hide_silence_before_a_failure(back_at: float) -> None:
    """The wait for the silent node starts over, but its silence still began before the failure."""
    game = running_group().play("""
        20 b silent1
    """)
    fail_blaming_peer(game, "a", "Connection closed by peer")
    game.play("""
        20 -
        -> look and stop 0: a b c
        20.1 c ready
    """)
    game.now = 23.0
    game.step(Slept())
    game.play(f"""
        {back_at} b returns
        -> look and stop 0: b
        {back_at} b ready
        -> form 1: a b c
    """)


def test_coordinator_suspension_does_not_excuse_an_earlier_failure() -> None:
    """The nodes only seem silent because their messages haven't been read."""
    game = running_group()
    fail_blaming_peer(game, "a", "Connection closed by peer")
    game.play("""
        0 -
        -> look and stop 0: a b c
    """)
    game.now = 5.0
    game.step(Slept())
    game.play("""
        5 b silent5.2
        5.1 c ready
        5.1 b heard
        5.1 b ready
        -> form 1 restart 1: a b c
    """)


def test_failure_blamed_on_another_peer_uses_up_a_restart() -> None:
    game = running_group().play("""
        20 b silent1
    """)
    addresses = game.group.live.teardown.addresses
    addresses.update(a="10.0.0.1", b="10.0.0.2", c="10.0.0.3")
    fail_blaming_peer(game, "a", "[10.0.0.3]:4711: Connection closed by peer")
    game.play("""
        20 -
        -> look and stop 0: a b c
        20.1 c ready
        21 b heard
        21 b ready
        -> form 1 restart 1: a b c
    """)


def test_failure_not_blamed_on_a_peer_uses_up_a_restart() -> None:
    running_group().play("""
        20 b silent1
        20 a failed
        -> stop 0: a b c
        20.1 a ends
        20.2 c ready
        21 b heard
        21 b ready
        -> form 1 restart 1: a b c
    """)


def test_proof_of_death_lets_the_next_generation_form_immediately() -> None:
    """The nodes provide the proof. Without it, the group waits for the silent node's
    lease to end.
    """
    game = running_group()
    proven = game.follow()
    for node in "bc":
        announce = proven.announce(node)._replace(gone=(0,))
        proven.now = 9.0
        proven.step(Received(node, proven.join(node, announce)))
    assert proven.sent() == ["stop 0: b c"]
    game.follow().play("""
        9 b c returns
        18.9 -
        19 -
        -> stop 0: b c
    """)


def test_node_reusing_the_rank_of_a_silent_node_is_temporarily_rejected() -> None:
    """The silent node may be dead and this one its successor, or it may come back."""
    game = table(2, 2, ordered=True, lost_after_s=10.0).play("""
        0 node0 node1 joins
        -> form 0: node0 node1
        20 node1 silent
        21 node1/2 joins
        -> drop: node1/2
        30 -
        -> drop: node1
        -> stop 0: node0
        30.1 node0 ready
        30.2 node1/2 joins
        -> form 1: node0 node1/2
    """)
    assert "that has gone silent" in notes(game, "node1/2")[0]


def test_joint_checkpoint_waits_for_silent_node() -> None:
    """The workers on all nodes are held until it has answered. Then all of them save at the same
    call.
    """
    running_group().play("""
        20 a preempted
        -> limit 0 0: a b c
        20.1 a c called3
        20.2 b silent
        27 b heard
        27.1 b called4
        -> limit 5 0: a b c
        27.2 a b c called4
        -> at 5 stop 0: a b c
    """)


def test_node_that_goes_silent_twice_is_lost_only_once() -> None:
    running_group().play("""
        20 b silent
        20 b heard
        20 b silent
        30 -
        -> drop: b
        -> stop 0: a c
    """)


def test_silence_notes_are_due_exactly_at_their_deadline() -> None:
    """If rounding made a note's due time and deadline differ, the loop would spin in between."""
    for since in (8191.017365586635, 0.1, 123456.7, 1e7 / 3):
        silence = Silence(10.0)
        silence.begin("b", Silent("node2", since, ""))
        due = silence.deadline()
        assert due is not None
        assert silence.news(due)


def test_coordinator_suspension_does_not_count_as_node_silence() -> None:
    """The nodes include some that were silent before, whatever the order of later messages."""
    game = running_group().play("""
        20 b silent3
    """)
    game.now = 33.0
    game.step(Slept())
    game.play("""
        33 c silent13
        33.1 a heard
        36.9 b c heard
        60 -
    """)


def test_node_that_seems_silent_after_a_suspension_may_be_lost_only_later() -> None:
    """Its messages have not been read yet. A holder whose registry is silent would step down."""
    game = running_group()
    game.now = 25.0
    game.step(Slept())
    game.play("""
        25 b silent5
    """)
    lost = game.group.lost
    assert (lost(25.9), lost(26.0)) == (0, 1)
    game.play("""
        27 c silent1.3
    """)
    assert lost(27.0) == 2


def test_coordinator_suspension_does_not_suppress_note_about_resumed_heartbeats() -> None:
    game = running_group().play("""
        20 b silent0.9
        20.1 -
    """)
    game.now = 23.0
    game.step(Slept())
    game.play("""
        23.1 b heard
        25 -
    """)
    assert notes(game, "a")[-1] == "heartbeats from b resumed after 4.0 s"


def test_coordinator_suspension_at_most_doubles_silence_limit() -> None:
    game = running_group().play("""
        20 b silent
    """)
    game.now = 39.0
    game.step(Slept())
    game.play("""
        39.9 -
        40 -
        -> drop: b
        -> stop 0: a c
    """)


def test_new_coordinator_confirms_valid_lease_before_other_nodes_reconnect() -> None:
    """Otherwise the lease would end while the node waits. A node whose lease has already ended may
    have been left behind.
    """
    game = (
        running_group()
        .follow()
        .play("""
        9 a returns-lapsed
        9 b returns
    """)
    )
    assert not any(isinstance(each, Confirm) for each in game.heard.get("a", ()))
    assert game.heard["b"] == [Confirm(game.group.live.id, recovers=True)]


def test_nodes_with_unread_reports_after_a_suspension_are_not_overdue() -> None:
    """The nodes' reports arrived while the coordinator was suspended, and haven't been read."""
    game = table(1, 3, lost_after_s=10.0)
    game.stop_s = 1.0
    game.play("""
        0 a b c joins
        -> form 0: a b c
        20 a failed
        -> stop 0: a b c
        20 a ends
    """)
    game.now = 35.0
    game.step(Slept())
    game.play("""
        35.1 b c ready
        -> form 1 restart 1: a b c
    """)
