"""Metrics that a worker reports through the memory it shares with its agent."""

import pytest

from relight.core.workers import shared_words as words
from relight.worker import shared_words_writer as writer


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> memoryview:
    monkeypatch.setattr(writer, "_places", {})
    monkeypatch.setattr(writer, "_writes", 0)
    return memoryview(bytearray(words.SIZE)).cast("Q")


def test_last_reported_value_of_each_metric_is_read(page: memoryview) -> None:
    assert words.values(page) == ()
    writer.report(page, {"loss": 2.0, "lr": 0.1})
    writer.report(page, {"loss": float("inf")})
    assert words.values(page) == ("loss=inf", "lr=0.1")


def test_no_metric_values_are_read_during_a_write(page: memoryview) -> None:
    writer.report(page, {"loss": 2.0})
    page[words.WRITES] += 1
    assert words.values(page) == ()


def test_total_number_of_steps_is_known_once_reported(page: memoryview) -> None:
    writer.report(page, {f"n{number}": 1.0 for number in range(8)})
    assert words.total(page) is None
    page[words.TOTAL] = 100
    assert (words.total(page), len(words.values(page))) == (100, 8)


def test_garbage_in_shared_memory_is_not_read_as_a_report(page: memoryview) -> None:
    for number in range(words.VALUES, len(page)):
        page[number] = 0xFB0A_FF00_2222_0001
    assert words.values(page) == ()
    assert words.total(page) is None


def test_too_many_or_too_long_metric_names_are_rejected(page: memoryview) -> None:
    writer.report(page, {f"n{number}": 0.0 for number in range(8)})
    before = words.values(page)
    for names in ("ninth", "n" * 25):
        with pytest.raises(ValueError, match="8 names of 24 bytes"):
            writer.report(page, {names: 1.0})
    assert words.values(page) == before
