"""Ranks that finish while others are still running: the time and text of the note."""

import pytest
from plays import Table, table

from relight.core.group.messages import Note
from relight.core.status.snapshot import (
    DONE,
    RUNNING,
    NodeSnapshot,
    RankSnapshot,
    WholeJob,
    early_exits,
)
from relight.core.workers.early_exits import EarlyExits, describe_nodes, describe_ranks


def times(found: EarlyExits, until: float) -> list[float]:
    """Return when the note is printed, up to a given time."""
    told = []
    while (due := found.deadline()) is not None and due <= until:
        assert not found.is_due(due - 0.1)
        assert found.is_due(due)
        told.append(due)
    return told


@pytest.mark.parametrize(
    ("ran_s", "wait_s"), [(0, 5), (60, 5), (600, 30), (3600, 180), (4 * 3600, 600), (86400, 600)]
)
def test_delay_of_early_exit_note_scales_with_job_length(ran_s: float, wait_s: float) -> None:
    found = EarlyExits(100.0)
    found.finish(1, 100.0 + ran_s)
    assert times(found, 1e9) == [100.0 + ran_s + wait_s]


def test_early_exit_note_repeats_for_more_ranks_after_twice_the_delay() -> None:
    found = EarlyExits(0.0)
    found.finish(1, 100.0)
    found.finish(2, 103.0)  # before the note, which then names both
    assert times(found, 1e9) == [105.0]
    found.finish(1, 140.0)
    assert found.deadline() is None
    found.finish(3, 200.0)
    assert times(found, 1e9) == [220.0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (describe_ranks([1], [40], [0, 2, 3]),
         "rank 1 finished 40 s ago with exit code 0; ranks 0, 2-3 are still running"),
        (describe_ranks([0, 1], [40.2, 40], [2], " on this node"),
         "ranks 0-1 finished 40 s ago with exit code 0; rank 2 on this node is still running"),
        (describe_ranks([0, 1], [300, 40], [2]),
         "ranks 0-1 finished with exit code 0, the first 5 min ago; rank 2 is still running"),
        (describe_nodes(["b"], [40], ["a", "c"]),
         "all ranks on b finished 40 s ago with exit code 0; ranks on a, c are still running"),
    ],
)  # fmt: skip
def test_early_exit_note_names_finished_and_running_ranks(text: str, expected: str) -> None:
    assert text == expected


def notes(played: Table, node: str) -> list[str]:
    return [m.text for m in played.heard[node] if isinstance(m, Note) and "finished" in m.text]


def running_group() -> Table:
    return table(3, 3, exit_barrier_s=3.0).play("""
        0 a joins
        0 b joins
        0 c joins
        -> form 0: a b c
        """)


def test_all_nodes_are_notified_of_nodes_that_finished_early() -> None:
    """The exit barrier lets the finished node leave earlier."""
    played = running_group().play("""
        100 b done
        -> confirm 0, 1 done: a c
        104 - -
        -> end 0: b
        """)
    assert not notes(played, "a")
    played.wait(2000)
    line = "all ranks on b finished 5 s ago with exit code 0; ranks on a, c are still running"
    assert notes(played, "a") == notes(played, "c") == [line]


def test_no_early_exit_note_if_nodes_finish_together() -> None:
    played = running_group().play("""
        100 a done
        -> confirm 0, 0 done: b c
        101 b done
        -> confirm 0, 0 1 done: c
        102 c done
        -> end 0: a b c
        """)
    played.wait(2000)
    assert not notes(played, "a")


def test_no_early_exit_note_while_workers_are_stopping() -> None:
    played = running_group().play("""
        100 b done
        -> confirm 0, 1 done: a c
        102 a failed
        -> stop 0: a b c
        """)
    played.wait(2000)
    assert not notes(played, "c")


def test_restart_cancels_early_exit_note() -> None:
    played = running_group().play("""
        100 b done
        -> confirm 0, 1 done: a c
        102 a failed
        -> stop 0: a b c
        102 a ends
        102 b c ready
        -> form 1 restart 1: a b c
        """)
    played.wait(5000)
    assert not notes(played, "c")


def node(number: int, *ends: float | None, state: str = RUNNING, first: int = 0) -> NodeSnapshot:
    """Return a node whose ranks exited with 0 this many seconds ago. None means that a rank is
    running.
    """
    ranks = tuple(
        RankSnapshot(first + index, index, 1, None if ago is None else 0, 0, "", "", "",
                     ended=0.0 if ago is None else 1000.0 - ago)
        for index, ago in enumerate(ends)
    )  # fmt: skip
    return NodeSnapshot(
        f"train-{number}", "train", 1, f"h{number}", "r", ("train.py",), "/", "default", 0.0,
        1000.0, state, 0, 0, 0, "", number, 2, 4, None, "", "", ranks,
    )  # fmt: skip


def test_status_reports_early_exits_on_all_nodes() -> None:
    job = WholeJob((node(0, 12.0, 12.0, state=DONE), node(1, None, 70.0, first=2)))
    expected = "ranks 0-1, 3 finished with exit code 0, the first 1 min 10 s ago; rank 2 is still"
    assert early_exits(job).startswith(expected)
    assert not early_exits(WholeJob((node(0, None, None),)))
    assert not early_exits(WholeJob((node(0, 5.0, None, state="stopping"),)))
