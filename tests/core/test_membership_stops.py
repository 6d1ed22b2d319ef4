"""A stop that takes too long: the notes, and the nodes that are dropped."""

from plays import Table, table

from relight.core.group.group_types import Received
from relight.core.group.messages import Note, WaitReason


def running_group(nodes: str = "a b c", least: int = 2) -> Table:
    """Return a table with a running generation whose nodes may take 10 s to stop."""
    game = table(least, len(nodes.split()), rejoin_grace_s=2.0)
    game.stop_s = 10.0
    return game.play(f"""
        0 {nodes} joins
        -> form 0: {nodes}
    """)


def notes(game: Table, node: str) -> list[str]:
    return [message.text for message in game.heard[node] if isinstance(message, Note)]


def test_node_that_does_not_stop_in_time_is_dropped() -> None:
    """The node's connection is closed, and the others form once its lease has ended. No worker has
    failed.
    """
    game = running_group().play("""
        1 a lost
        -> stop 0: b c
        1.1 c ready
        10.9 -
        11 -
        -> drop: b
    """)
    assert "b did not confirm in time" in notes(game, "c")[-1]
    game.play("""
        12 a joins
        12.9 -
        13 -
        -> form 1: a c
    """)
    assert game.last["c"].generation.cause == "b did not stop in time"


def test_group_does_not_wait_for_a_dropped_node_again() -> None:
    """The node reconnects with workers that are still being stopped. Once they have exited, it is
    admitted like any other node.
    """
    running_group().play("""
        1 a failed
        -> stop 0: a b c
        1.1 a c ready
        11 -
        -> drop: b
        11.1 b returns
        -> stop 0: b
        13 -
        -> form 1: a c
        14 b ready
        -> stop 1: a c
        14.1 a c ready
        -> form 2: a c b
    """)


def test_node_of_the_coordinator_is_never_dropped() -> None:
    """The coordinator's process can't drop itself, so the group waits for its workers however long
    they take.
    """
    game = table(1, 2)
    game.step(Received("a", game.join("a")))
    game.stop_s = 10.0
    game.play("""
        0 b joins
        0 a ready
        -> form 0: a b
        1 b lost
        -> stop 0: a
        500 a ready
        -> form 1: a
    """)


def test_node_that_reconnects_during_a_stop_has_its_own_time_limit() -> None:
    """A lost node returns with its workers after another node has been dropped."""
    running_group().play("""
        1 c lost
        -> stop 0: a b
        1.1 a ready
        11 -
        -> drop: b
        12 c returns
        -> stop 0: c
        13 -
        21.9 -
        22 -
        -> drop: c
        30 -
    """)


def test_time_for_checkpointing_extends_the_stop_time_limit() -> None:
    """No node is dropped while its workers may be saving, here for 30 s."""
    running_group("a b").play("""
        1 a preempted
        -> limit 0 0: a b
        1 a b called7
        -> limit 8 0: a b
        1 a b called7
        -> at 8 stop 0: a b
        2 a leaves
        40.9 -
        41 -
        -> drop: b
    """)


def test_all_nodes_report_which_nodes_have_not_stopped_yet() -> None:
    """The note appears once, after 5 s, with the host names, and only if a node is waiting for
    others.
    """
    game = table(2, 3)
    game.stop_s = 60.0
    game.play("""
        0 a b c joins
        -> form 0: a b c
        1 a failed
        -> stop 0: a b c
        6.1 a ready
        11.1 c ready
    """)
    text = "waiting for workers to stop on b, c (a worker failed on a)"
    assert notes(game, "a") == notes(game, "b") == [text]
    game.play("40 -")
    assert notes(game, "a") == [text]
    assert not any(isinstance(message, WaitReason) for message in game.heard["a"][-1:])
