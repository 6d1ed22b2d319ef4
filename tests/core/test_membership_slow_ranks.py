"""Slow ranks of a group: all nodes are told, while all of them run."""

from plays import Table, table

from relight.core.group.straggler_detector import WINDOWS

NAMED_AFTER = 2 * WINDOWS


def running(*names: str) -> Table:
    played = table(len(names), len(names))
    lines = [f"0 {name} joins" for name in names]
    return played.play("\n".join([*lines, f"-> form 0: {' '.join(names)}"]))


def windows(played: Table, count: int, **verbs: str) -> list[str]:
    """Let nodes report so many windows, and return what is sent."""
    for _ in range(count):
        played.wait(played.now + 10)
        for node, verb in verbs.items():
            for event in played.events(node, verb):
                played.step(event)
    return played.sent()


def test_all_nodes_are_told_of_a_slow_rank_once() -> None:
    played = running("a", "b")
    told = windows(played, 3 * NAMED_AFTER, a="waited20,21", b="waited2,20")
    assert told == ["slow 0 b (2,): a b"]


def test_a_node_that_does_not_report_leaves_all_unnamed() -> None:
    assert not windows(running("a", "b"), 2 * NAMED_AFTER, b="waited2,20")


def test_ranks_are_not_compared_any_more_once_those_of_a_node_have_succeeded() -> None:
    played = running("a", "b", "c").play("1 a done\n-> confirm 0, 0 done: b c")
    told = windows(played, 2 * NAMED_AFTER, b="waited2,20", c="waited20,20")
    assert told == ["end 0: a"]


def test_a_new_generation_is_compared_afresh() -> None:
    played = running("a", "b")
    verbs = {"a": "waited20,20", "b": "waited2,20"}
    assert windows(played, NAMED_AFTER + 1, **verbs)
    played.play(f"""
        {played.now + 1} a failed
        -> stop 0: a b
        {played.now + 2} a ends
        {played.now + 2} b ready
        -> form 1 restart 1: a b
        """)
    assert not windows(played, NAMED_AFTER // 2, **verbs)
    assert windows(played, NAMED_AFTER, **verbs) == ["slow 1 b (2,): a b"]


def test_a_new_coordinator_names_a_slow_rank_anew() -> None:
    played = running("a", "b")
    verbs = {"a": "waited20,20", "b": "waited2,20"}
    assert windows(played, NAMED_AFTER + 1, **verbs)
    other = played.follow()
    now = other.now + 1
    other.play(f"{now} b returns\n{now + 1} a returns\n-> confirm 0: a b")
    assert windows(other, 2 * NAMED_AFTER, **verbs) == ["slow 0 b (2,): a b"]
