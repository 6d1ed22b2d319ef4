"""A group's slow ranks are reported to all nodes while they are running."""

from plays import Table, table

from relight.core.group.straggler_detector import WINDOWS

NAMED_AFTER = 2 * WINDOWS


def running_group(*names: str) -> Table:
    played = table(len(names), len(names))
    lines = [f"0 {name} joins" for name in names]
    return played.play("\n".join([*lines, f"-> form 0: {' '.join(names)}"]))


def report_windows(played: Table, count: int, **verbs: str) -> list[str]:
    """Let nodes report windows, and return the messages sent."""
    for _ in range(count):
        played.wait(played.now + 10)
        for node, verb in verbs.items():
            for event in played.events(node, verb):
                played.step(event)
    return played.sent()


def test_straggler_is_reported_once_to_all_nodes() -> None:
    played = running_group("a", "b")
    told = report_windows(played, 3 * NAMED_AFTER, a="waited20,21", b="waited2,20")
    assert told == ["slow 0 b (2,): a b"]


def test_no_straggler_is_reported_while_data_from_a_node_is_missing() -> None:
    assert not report_windows(running_group("a", "b"), 2 * NAMED_AFTER, b="waited2,20")


def test_straggler_detection_ends_once_a_node_has_succeeded() -> None:
    played = running_group("a", "b", "c").play("1 a done\n-> confirm 0, 0 done: b c")
    told = report_windows(played, 2 * NAMED_AFTER, b="waited2,20", c="waited20,20")
    assert told == ["end 0: a"]


def test_new_generation_restarts_straggler_detection() -> None:
    played = running_group("a", "b")
    verbs = {"a": "waited20,20", "b": "waited2,20"}
    assert report_windows(played, NAMED_AFTER + 1, **verbs)
    played.play(f"""
        {played.now + 1} a failed
        -> stop 0: a b
        {played.now + 2} a ends
        {played.now + 2} b ready
        -> form 1 restart 1: a b
        """)
    assert not report_windows(played, NAMED_AFTER // 2, **verbs)
    assert report_windows(played, NAMED_AFTER, **verbs) == ["slow 1 b (2,): a b"]


def test_new_coordinator_reports_the_straggler_again() -> None:
    played = running_group("a", "b")
    verbs = {"a": "waited20,20", "b": "waited2,20"}
    assert report_windows(played, NAMED_AFTER + 1, **verbs)
    other = played.follow()
    now = other.now + 1
    other.play(f"{now} b returns\n{now + 1} a returns\n-> confirm 0: a b")
    assert report_windows(other, 2 * NAMED_AFTER, **verbs) == ["slow 0 b (2,): a b"]
