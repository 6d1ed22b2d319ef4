"""`relight top` on narrow terminals, and keys that arrive together."""

import pytest
from hypothesis import given
from hypothesis import strategies as some
from textual import events
from textual.pilot import Pilot

from relight.core.status.snapshot import RankUse
from relight.inspect import top_rows

from .test_top import TWO, Played, job, replica

LONG = "gpu-node-{:04}.cluster.example.com"
LINE = "step 18001, loss 2.1001, lr 3.0e-04, grad_norm 0.51, tokens/s 10234"


def typed(pilot: Pilot[None], text: str) -> None:
    """Queue all keys before the application has processed any."""
    names = {"/": "slash", " ": "space", "\r": "enter", "-": "minus"}
    for each in text:
        character = None if each == "\r" else each
        pilot.app.post_message(events.Key(names.get(each, each), character))


def test_keys_typed_quickly_after_slash_go_to_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the keys acts as a command until after Enter."""
    played = Played(monkeypatch, *TWO)

    async def keys(pilot: Pilot[None]) -> None:
        typed(pilot, "/slcq a/b-or")
        await played.until(pilot, lambda: played.view._words == "slcq a/b-or")
        typed(pilot, "\r/one\ro")
        await played.until(pilot, lambda: played.view._words == "one")
        await played.until(pilot, lambda: "sorted by host" in played.summary)
        assert [row[-1] for row in played.shown()] == ["one"]
        assert len(played.view.screen_stack) == 1

    played.play(keys)
    assert not played.commands


def test_multi_line_paste_is_entered_into_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, *TWO)

    async def keys(pilot: Pilot[None]) -> None:
        typed(pilot, "/")
        pilot.app.post_message(events.Paste("one\ntrain-1\r\n  run"))
        await played.until(pilot, lambda: played.view._words == "one train-1 run")

    played.play(keys)


def test_filter_key_is_ignored_while_a_dialog_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, *TWO)

    async def keys(pilot: Pilot[None]) -> None:
        await pilot.press("c", "slash", "n")
        assert not played.view.query_one("#filter").display
        assert len(played.view.screen_stack) == 1

    played.play(keys)


def with_long_values(monkeypatch: pytest.MonkeyPatch) -> Played:
    looks = [
        [
            replica(n, RankUse(at, at, 6 << 30, 18000 + n + int(at), 0.1),
                    host=LONG.format(n), line=LINE)
            for n in range(20)
        ]
        for at in (1.0, 2.0)
    ]  # fmt: skip
    played = Played(monkeypatch, job(*looks[0], name="llama-7b-pretraining-of-everything-2711"))
    played.view._words = ""
    played.jobs.append(job(*looks[0], name="other-2"))
    return played


@pytest.mark.parametrize(
    ("size", "heads"),
    [
        ((160, 40), ["JOB", "REPLICA", "HOST", "STATE", "STEP", "MEMORY", "LAST LINE"]),
        ((80, 24), ["JOB", "REPLICA", "HOST", "STATE", "STEP", "LAST LINE"]),
        ((40, 12), ["JOB", "REPLICA", "STATE", "STEP"]),
        ((20, 6), ["REPLICA", "STATE"]),
    ],
)
def test_narrow_terminal_drops_least_important_columns(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], heads: list[str]
) -> None:
    """Everything fits on the screen, and the table gets most of the lines."""
    played = with_long_values(monkeypatch)

    async def keys(pilot: Pilot[None]) -> None:
        await pilot.pause()
        columns = played.ranks.ordered_columns
        assert [str(column.label) for column in columns] == heads
        assert played.ranks.max_scroll_x == 0
        assert played.ranks.size.height >= size[1] // 2
        assert all(column.width >= len(str(column.label)) for column in columns)

    played.play(keys, size=size)


def test_hidden_columns_reappear_when_terminal_widens(monkeypatch: pytest.MonkeyPatch) -> None:
    played = with_long_values(monkeypatch)

    async def keys(pilot: Pilot[None]) -> None:
        assert len(played.ranks.columns) == 4
        await pilot.resize_terminal(160, 40)
        await played.until(pilot, lambda: len(played.ranks.columns) == 7)

    played.play(keys, size=(40, 12))


HEADS = ["JOB", "REPLICA", "HOST", "STATE", "STEP", "STEP/S", "CPU", "MEMORY", "LAST LINE"]


@given(
    some.lists(some.lists(some.text(max_size=50), min_size=9, max_size=9), max_size=3),
    some.integers(0, 300),
    some.sampled_from(HEADS),
)
def test_columns_fit_available_width(lines: list[list[str]], room: int, sorted_by: str) -> None:
    found = top_rows.widths(HEADS, lines, room, 2, sorted_by)
    assert list(found) == sorted(found)
    assert found
    if len(found) > 1:
        assert sum(found.values()) + 2 * len(found) <= room
    for number, width in found.items():
        full = max(len(text) for text in (HEADS[number], *(line[number] for line in lines)))
        assert min(full, 12) <= width <= full


def test_sort_column_is_never_dropped() -> None:
    lines = [["train-1", "default/0", LONG, "RUNNING", "18000", "10", "101%", "5.6 GiB", LINE]]
    shown = [HEADS[n] for n in top_rows.widths(HEADS, lines, 40, 2, "MEMORY")]
    assert "MEMORY" in shown


@pytest.mark.parametrize(
    ("width", "expected"), [(12, "default/1234"), (9, "defa…1234"), (6, "def…34"), (1, "…")]
)
def test_long_name_is_shortened_in_the_middle(width: int, expected: str) -> None:
    assert top_rows.shortened("default/1234", width) == expected
