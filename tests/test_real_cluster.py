"""The table from `make kubernetes`, with checks that pass, fail, and are skipped."""

import sys
from pathlib import Path

import pytest
from real_cluster import Table, main

CHECKS = '''
import pytest

@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_kind(kind):
    """A kind works."""
    if kind == "jobset":
        pytest.skip("jobset is not installed")

def test_wrong():
    """Nothing is wrong."""
    assert False
'''


@pytest.fixture
def run_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "test_checks_of_cluster.py"
    path.write_text(CHECKS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.delitem(sys.modules, path.stem, raising=False)
    return path


def test_result_table_has_one_row_per_check(run_checks: Path) -> None:
    table = Table()
    words = [str(run_checks), "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    assert pytest.main([*words, "-c", str(run_checks.parent / "pytest.ini")], plugins=[table]) == 1
    _, _, *rows = table.text().splitlines()
    assert [row.rpartition(" | ")[0] for row in rows] == [
        "| A kind works (job) | yes",
        "| A kind works (jobset) | jobset is not installed",
        "| Nothing is wrong | **no**",
    ]


def test_missing_kubeconfig_is_reported_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["/no/such/file"]) == 2
    assert capsys.readouterr().err.startswith("no such file: /no/such/file; make kubernetes")
