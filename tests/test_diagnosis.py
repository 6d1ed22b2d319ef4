"""The faults in the first two corpora (tests/diagnosis) are reported correctly. `make diagnosis`
counts, and also runs the third corpus.
"""

import shlex

import pytest
from conftest import RELIGHT
from diagnosis.__main__ import Fault, faults, report_of, run, score

NEEDS = {
    "needs_torch": "\nimport torch",
    "needs_fire": "\nimport fire",
    "needs_c_compiler": "cc -",
}
"""The requirements of a script that contains these words."""
KNOWN = {
    "79_hang_busy_loop": "no report: one rank computes and the other waits, as in a long step; "
    "without regular steps before, no time limit tells an endless loop from one",
    "152_coroutine_closes_in_finally": "the exception of a waiting coroutine can't be seen from "
    "outside, so the report says that the lost connection may have been to another rank",
}
"""Faults in the second corpus whose reports are not completely right, with the reasons."""


def marked() -> list[object]:
    """Return the faults with their requirements."""
    found = []
    for fault in faults(corpora=("first", "second")):
        text = fault.path.read_text()
        marks = [getattr(pytest.mark, need) for need, word in NEEDS.items() if word in text]
        found.append(pytest.param(fault, id=fault.name, marks=marks))
    return found


@pytest.mark.long
@pytest.mark.parametrize("fault", marked())
def test_console_and_json_report_diagnose_fault_correctly(fault: Fault) -> None:
    """The console, the JSON report, and `relight list` agree, and none of them is wrong."""
    stderr, found = run(fault, shlex.join((*RELIGHT, "run")))
    lines = report_of(stderr)
    got = score(fault, lines, found)
    told = "\n".join(lines)
    assert got.true, told
    assert got.is_right is (fault.path.stem not in KNOWN), f"{got}\n{told}"


def test_at_most_5_percent_of_second_fault_corpus_is_partly_diagnosed() -> None:
    second = {fault.path.stem for fault in faults() if fault.path.parent.name == "second"}
    assert KNOWN.keys() <= second
    assert len(KNOWN) <= 0.05 * len(second)
