"""Job records: locations, permissions, and damage."""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base.env import Environment
from relight.base.errors import MachineError, UsageError
from relight.job import records


def whole(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": name, "app_id": name, "handle": f"local://relight/{name}", "scheduler": "local",
        "name": "a", "state": "RUNNING", "submitted": "2026-01-01T00:00:00+00:00", **fields,
    }  # fmt: skip


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HOME": "/h"}, "/h/.local/state/relight/jobs"),
        ({"HOME": "/h", "XDG_STATE_HOME": "/x"}, "/x/relight/jobs"),
        ({"HOME": "/h", "XDG_STATE_HOME": "relative"}, "/h/.local/state/relight/jobs"),
        ({"HOME": "/h", "XDG_STATE_HOME": ""}, "/h/.local/state/relight/jobs"),
        ({"HOME": "/h", "XDG_STATE_HOME": "/x", "RELIGHT_STATE_DIR": "/r"}, "/r/jobs"),
    ],
)
def test_job_records_are_stored_under_xdg_or_relight_state_dir(
    variables: dict[str, str], expected: str
) -> None:
    assert records.root(Environment(variables)) == expected


def test_relative_relight_state_dir_is_relative_to_cwd(place: Path) -> None:
    assert records.root(Environment({"RELIGHT_STATE_DIR": "s"})) == str(place / "s" / "jobs")


def test_job_record_round_trips_and_is_private(tmp_path: Path) -> None:
    """Only the user can read it, and no other files remain in the directory."""
    record = whole("a-1", more={"x": [1, None, "ü\udcff"]})
    records.write("a-1", record)
    folder = tmp_path / "state" / "jobs" / "a-1"
    assert records.read("a-1") == record
    assert [each.name for each in folder.iterdir()] == ["job.json"]
    assert (mode(folder / "job.json"), mode(folder), mode(folder.parent)) == (0o600, 0o700, 0o700)
    records.write("a-1", whole("a-1", state="FAILED"))
    assert (records.read("a-1") or {})["state"] == "FAILED"
    records.remove("a-1")
    assert records.read("a-1") is None
    assert records.every() == []


def test_undeletable_job_directory_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job still exists afterwards."""
    records.write("a-1", whole("a-1"))
    monkeypatch.setattr("os.rmdir", os.listdir)
    with pytest.raises(MachineError, match=f"can't remove {tmp_path}/state/jobs/a-1 completely"):
        records.remove("a-1")


def test_newest_job_is_found_across_time_zones() -> None:
    """Timestamps are compared as instants, not as text."""
    times = {"a-1": "2026-01-01T12:00:00+00:00", "a-2": "2026-01-01T11:00:00-05:00", "a-3": "?"}
    for name, time in times.items():
        records.write(name, whole(name, submitted=time))
    assert [record["id"] for record in records.every()] == ["a-2", "a-1", "a-3"]


def test_jobs_are_listed_newest_first() -> None:
    """They are ordered by submission time."""
    for day in (2, 3, 1):
        records.write(f"a-{day}", whole(f"a-{day}", submitted=f"2026-01-0{day}T00:00:00+00:00"))
    assert [record["id"] for record in records.every()] == ["a-3", "a-2", "a-1"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"id": 1}', "\xff", '{"id": "a"}',
     *(json.dumps(whole("bad-1", **wrong)) for wrong in (
         {"state": "BOGUS"}, {"handle": ""}, {"handle": "local"}, {"handle": "local://s/a/b"},
         {"handle": 1}, {"submitted": None}))],
)  # fmt: skip
def test_corrupt_job_record_is_skipped(tmp_path: Path, text: str) -> None:
    """An unrelated or truncated file doesn't hide other jobs."""
    records.write("good-1", whole("good-1"))
    folder = tmp_path / "state" / "jobs" / "bad-1"
    folder.mkdir()
    (folder / "job.json").write_bytes(text.encode("latin-1"))
    (tmp_path / "state" / "jobs" / "file").write_text("")
    os.mkfifo(tmp_path / "state" / "jobs" / "fifo")
    (tmp_path / "state" / "jobs" / "bad-2").mkdir()
    os.mkfifo(tmp_path / "state" / "jobs" / "bad-2" / "job.json")
    assert records.read("bad-1") is None
    assert [record["id"] for record in records.every()] == ["good-1"]


@pytest.mark.parametrize("depth", [200, 700, 100_000])
def test_deeply_nested_job_record_is_skipped(tmp_path: Path, depth: int) -> None:
    """Either json can't read it, or it couldn't write it again."""
    records.write("good-1", whole("good-1"))
    deep = json.dumps(whole("bad-1"))[:-1] + f', "x": {"[" * depth}{"]" * depth}}}'
    (tmp_path / "state" / "jobs" / "bad-1").mkdir()
    (tmp_path / "state" / "jobs" / "bad-1" / "job.json").write_text(deep)
    assert [record["id"] for record in records.every()] == ["good-1"]


def test_writing_too_deeply_nested_record_is_reported_on_one_line() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(MachineError, match="nested too deeply"):
        records.write("a-1", whole("a-1", more=deep))
    assert records.every() == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a\0b", "-a", ".a", "ü", "a b"])
def test_invalid_job_id_is_rejected(name: str) -> None:
    """An id can only refer to its own directory."""
    with pytest.raises(UsageError, match="is not a job id"):
        records.path(name)
    assert records.find_by_handle("local", name) is None


def test_error_shows_unusable_state_directory(tmp_path: Path) -> None:
    """The hint names the variable that overrides it."""
    (tmp_path / "state").write_text("")
    with pytest.raises(MachineError, match=f"{tmp_path}/state/jobs/a-1: Not a dir") as caught:
        records.write("a-1", whole("a-1"))
    assert "RELIGHT_STATE_DIR" in caught.value.hint


def test_job_record_is_found_by_scheduler_job_id() -> None:
    """The same id on another scheduler belongs to another job."""
    records.write("a-1", whole("a-1", scheduler="slurm", app_id="77"))
    assert (records.find_by_handle("slurm", "77") or {})["id"] == "a-1"
    assert records.find_by_handle("local", "77") is None
    assert records.find_by_handle("local", "a-1") is None


@given(st.text(max_size=150))
def test_job_id_is_valid_in_file_names_and_hostnames(name: str) -> None:
    """This holds for any app name, and includes length limits."""
    found = records.new_id(name)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*-[bcdfghjklmnpqrstvwxz][a-z0-9]+", found)
    assert len(found) < 128
    assert records.path(found).endswith(f"/{found}")


def test_jobs_with_the_same_name_get_unique_ids() -> None:
    assert len({records.new_id("a") for _ in range(1000)}) == 1000
