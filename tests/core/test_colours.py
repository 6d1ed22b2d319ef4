"""Traceback colours, as printed by Python 3.13, and when they are enabled."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.core.diagnosis.traceback_lines import clean
from relight.core.workers.colours import are_wanted, coloured

SAMPLES = Path(__file__).parent / "samples"


def test_traceback_colours_match_python() -> None:
    """The expected text was printed by Python 3.13."""
    sample = (SAMPLES / "colour-3.13.txt").read_text()
    assert coloured(clean(sample)) == sample


def test_only_tracebacks_are_coloured() -> None:
    report = "rank 0 raised ValueError: x\n  train.py:9 in step\n    raise ValueError(x)\n\n"
    sample = (SAMPLES / "colour-3.13.txt").read_text()
    followed = "other ranks:\n  rank 1: stopped\nKilled\nexit code 1; why"
    assert coloured(report + clean(sample) + followed) == report + sample + followed


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.txt")), ids=lambda path: path.stem)
def test_colouring_does_not_change_text_of_samples(path: Path) -> None:
    text = clean(path.read_text())
    assert clean(coloured(text)) == text


@given(st.text(alphabet=" ~^|+-aE:\n", max_size=60))
def test_colouring_does_not_change_arbitrary_text(text: str) -> None:
    text = f"Traceback (most recent call last):\n{text}"
    assert clean(coloured(text)) == text


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, True),
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ({"PYTHON_COLORS": "0", "FORCE_COLOR": "1"}, False),
        ({"PYTHON_COLORS": "1", "NO_COLOR": "1"}, True),
        ({"PYTHON_COLORS": "yes", "NO_COLOR": "1"}, False),
    ],
)
def test_colours_are_enabled_by_the_same_rules_as_in_python(
    variables: dict[str, str], wanted: bool
) -> None:
    """The rules are those of can_colorize in CPython 3.13's Lib/_colorize.py."""
    assert are_wanted(lambda name: variables.get(name, "")) is wanted
