"""The status line: its text, its width, and the remaining time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.core.group import group_messages
from relight.core.workers.status_text import counted_down, drawn, line, until_next


@pytest.mark.parametrize(
    ("what", "waited_s", "columns", "text"),
    [
        ("waiting for a", 12.4, 80, "relight: 12 s: waiting for a"),
        ("waiting for a", 75.0, 80, "relight: 1 min 15 s: waiting for a"),
        ("waiting for a", 12.4, 20, "relight: 12 s: wai…"),
        ("waiting for a", 12.4, 1, "…"),
        ("x" * 100, 1.0, 0, "relight: 1 s: " + "x" * 64 + "…"),
        ("a\x1b[31m\nb", 1.0, 80, "relight: 1 s: a?[31m?b"),
    ],
)
def test_status_line_shows_elapsed_time_in_one_row(
    what: str, waited_s: float, columns: int, text: str
) -> None:
    assert line(what, waited_s, columns) == text


@given(st.text(), st.floats(0, 1e6), st.integers(1, 300))
def test_any_status_text_fits_in_one_row(what: str, waited_s: float, columns: int) -> None:
    text = line(what, waited_s, columns)
    assert text.isprintable()
    assert len(text) <= max(columns - 1, 1)


def test_status_line_overwrites_the_previous_one_and_is_dim_in_colour() -> None:
    assert drawn("a", coloured=False) == "\r\x1b[Ka"
    assert drawn("a", coloured=True) == "\r\x1b[K\x1b[2ma\x1b[0m"
    assert drawn("", coloured=True) == "\r\x1b[K"


@given(st.floats(0, 1e5))
def test_status_line_is_updated_every_second(waited_s: float) -> None:
    assert 0 < until_next(waited_s) <= 1


@given(st.integers(0, 86_000), st.integers(0, 90_000))
def test_remaining_time_in_status_line_counts_down(left_s: int, passed_s: int) -> None:
    text = group_messages.too_few(["a"], 2, 2, float(left_s), "")
    now = counted_down(text, float(passed_s))
    if left_s < 3600 or passed_s == 0:  # above an hour, seconds are omitted
        assert now == group_messages.too_few(["a"], 2, 2, float(max(0, left_s - passed_s)), "")
    assert now.startswith("1 of 2 nodes have joined: a; waiting for 1 more (join timeout in ")


@pytest.mark.parametrize("text", ["a (b)", "waiting for 3 more nodes", "", ")", "a )"])
def test_status_text_without_a_timeout_is_unchanged(text: str) -> None:
    assert counted_down(text, 5.0) == text
