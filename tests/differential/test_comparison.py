"""The comparison itself: differences to report, and differences to ignore."""

from pathlib import Path
from typing import Any

import pytest

from differential.cases import Case, two
from differential.differences import DIFFERENCES, Mismatch, mismatches, sort_out
from differential.recording import RELIGHT, Recording, flat, record

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recording, Recording]:
    """Two recordings of the same case and launcher."""
    folder = tmp_path_factory.mktemp("comparison")
    case = two(
        "", "-t3", "--log-dir=logs", "--max-restarts=1", "--master-port={port}",
        variables={"PROBE_END": "0.1=3"}, workers=("0.0", "0.1", "1.0", "1.1"),
    )  # fmt: skip
    first, second = (record(case, RELIGHT, folder / name) for name in ("first", "second"))
    return first, second


def test_variation_between_runs_is_not_a_mismatch(
    recordings: tuple[Recording, Recording],
) -> None:
    """Ports, pids, directories, and random names vary."""
    assert mismatches(*recordings) == []
    assert len(flat(recordings[0])) > 300


def test_changed_value_is_reported_by_name(
    recordings: tuple[Recording, Recording],
) -> None:
    first, second = recordings
    fields = [field for field in flat(first) if field != "says"]
    for field in fields:
        changed = replace(second, field.split(" "), "something else")
        assert [m.field for m in mismatches(first, changed)] == [field]


def replace(recording: Recording, path: list[str], value: object) -> Recording:
    """Return a copy with a different value at a path of `flat`, whose keys may contain spaces."""
    copied: Any = recording._asdict()
    inner = copied
    rest = " ".join(path)
    while rest not in inner:
        key = next(key for key in inner if rest.startswith(f"{key} "))
        inner[key] = dict(inner[key])
        inner, rest = inner[key], rest[len(key) + 1 :]
    inner[rest] = value
    return Recording(**copied)


def test_missing_worker_counts_as_one_mismatch(recordings: tuple[Recording, Recording]) -> None:
    """The other workers are still compared."""
    first, second = recordings
    fewer = second._replace(workers={w: s for w, s in second.workers.items() if w != "0.1"})
    assert [m.field for m in mismatches(first, fewer)] == ["workers"]


def test_documented_difference_is_allowed_if_the_test_case_names_it() -> None:
    """The values must be exactly those that are documented."""
    name, field = "run-id", "workers 0.0 environment TORCHELASTIC_RUN_ID"
    known = Mismatch(field, "{uuid}", "job7")
    assert sort_out([known], [name]) == ([], {name})
    assert sort_out([known], []) == ([known], set())
    other = Mismatch(field, "job7", "{uuid}")
    assert sort_out([other], DIFFERENCES) == ([other], set())


def test_hung_launcher_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The case fails with its command line, and no processes are left running."""
    monkeypatch.setattr("differential.recording.LIMIT_S", 1)
    with pytest.raises(Exception, match=r"probe\.py.*timed out"):
        record(Case("", variables={"PROBE_END": "0.0=wait"}), RELIGHT, tmp_path / "work")
