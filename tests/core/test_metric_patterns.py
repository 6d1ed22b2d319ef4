"""What --watch-metric matches in output lines."""

import pytest

from relight.base.metric_patterns import MetricFinder
from relight.base.values import parse_metrics


def found(output: str, *patterns: str) -> dict[str, float]:
    return MetricFinder(parse_metrics("\n".join(patterns))).find(output)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("loss: ([0-9.eE+-]+)", "loss"),
        ("loss=([0-9.]+)", "loss"),
        (r"step \d+ train/loss\s*[:=]\s*([0-9.]+)", "train/loss"),
        (r"(?:ce-)?loss\s+(\S+)", "loss"),
        (r"loss: (?P<train_loss>\S+)", "train_loss"),
        (r"\(loss\) (\S+)", "loss"),
    ],
)
def test_metric_name_comes_from_the_regex_group_or_the_preceding_word(
    pattern: str, name: str
) -> None:
    assert MetricFinder(parse_metrics(pattern)).names == {name}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("loss: 0.5\nloss: 0.4\n", 0.4),
        ("10%|# | loss: 0.5]\r20%|## | loss: 0.4]\r", 0.4),
        ("loss: 0.5\nloss: 0.4]", 0.4),
        ("loss: 0.5\nloss: 0.4", 0.5),  # the line may be incomplete
        ("loss: 0.5, then loss: 0.4.\n", 0.4),
        ("loss: 1e-3\n", 0.001),
        ("loss: 0.5\nloss: 1.2.3\n", 0.5),
    ],
)
def test_metric_is_the_last_complete_number_in_the_output(output: str, expected: float) -> None:
    assert found(output, "loss: ([0-9.eE+-]+)") == {"loss": expected}


def test_each_metric_pattern_matches_its_own_line() -> None:
    output = "step 7: loss 0.5 lr 0.1\neval: acc 0.9\n"
    patterns = (r"loss (?P<loss>\S+) lr (?P<lr>\S+)", r"acc (\S+)", r"never (\S+)")
    assert found(output, *patterns) == {"loss": 0.5, "lr": 0.1, "acc": 0.9}


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("loss: (", "not a regular expression: missing \\)"),
        ("loss", "expected a group around the number"),
        ("(a)(b)", "expected a group around the number"),
        ("([0-9.]+)", "the group has no word before it"),
        (r"(?:\w+\s*)+loss (\S+)", "nested repetition"),
        (r"loss (?:a|b*)*(\d)", "nested repetition"),
        ("x" * 25 + " (1)", "longer than 24 characters"),
    ],
)
def test_useless_or_dangerous_metric_pattern_is_rejected(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_metrics(pattern)
