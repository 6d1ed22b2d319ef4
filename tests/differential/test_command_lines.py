"""Each command line has the same effect as with torchrun, except for documented differences."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PORTABLE
from portable import exceptions

from differential.cases import CASES, Case
from differential.differences import as_text, mismatches, sort_out
from differential.recording import RELIGHT, Recording, record

pytestmark = [pytest.mark.slow, pytest.mark.needs_torch]


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c.name, marks=[pytest.mark.long] if c.is_long else []) for c in CASES],
)
def test_command_line_has_the_same_effect_as_under_torchrun(
    case: Case, reference: Callable[[Case], Recording], tmp_path: Path
) -> None:
    """Workers, files, consoles, and exit codes agree."""
    ours = record(case, RELIGHT, tmp_path / "relight")
    theirs = reference(case)
    found, differs = mismatches(theirs, ours), set(case.differs)
    for name, field in exceptions.NO_DIFFERENCE.items() if PORTABLE else ():
        found = [each for each in found if not re.fullmatch(field, each.field)]
        differs.discard(name)
    unexplained, seen = sort_out(found, case.differs)
    assert not unexplained, as_text(unexplained)
    assert seen == differs, f"documented, but gone: {differs - seen}"
    started = set(ours.workers) | set(theirs.workers)
    assert started == set(case.workers), (theirs.says, ours.says)
    said = [line for line in ours.says if line.startswith("relight: ")]
    for note in case.notes:
        assert any(note in line for line in said), (note, said)
    assert len(said) == len(case.notes), said
