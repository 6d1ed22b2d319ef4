"""Handles for parts of a job, and damaged records."""

import json
from pathlib import Path

from .conftest import Command


def test_replica_handle_status_covers_only_that_replica(relight: Command, tmp_path: Path) -> None:
    """Jobs are only cancelled and deleted as a whole."""
    handle = relight("submit", "utils.echo", "--num_replicas", "2").stdout.strip()
    whole = json.loads(relight("status", "--json", handle).stdout)
    assert [each["id"] for each in whole["roles"][0]["replicas"]] == [0, 1]
    part = json.loads(relight("status", "--json", f"{handle}/echo/1").stdout)
    assert [each["id"] for each in part["roles"][0]["replicas"]] == [1]
    found = relight("status", f"{handle}/echo/2")
    assert (found.returncode, found.stdout) == (2, "")
    for command, what in (("cancel", "cancelled"), ("delete", "deleted")):
        found = relight(command, f"{handle}/echo/1")
        assert (found.returncode, found.stdout) == (2, "")
        assert f"jobs can only be {what} as a whole\nhint: {handle}\n" in found.stderr
    assert len(list((tmp_path / "state" / "jobs").iterdir())) == 1


def test_times_are_shown_in_the_local_time_zone(relight: Command, tmp_path: Path) -> None:
    relight("submit", "utils.echo")
    (file,) = (tmp_path / "state" / "jobs").glob("*/job.json")
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "submitted": "2026-01-01T12:00:00.000-05:00"}))
    assert relight("list", TZ="UTC-1").stdout.rstrip().endswith(" 2026-01-01 18:00:00+0100")


def test_corrupt_job_record_does_not_hide_other_jobs(relight: Command, tmp_path: Path) -> None:
    """No command prints more than one line about it."""
    relight("submit", "utils.echo")
    good = relight("submit", "utils.echo", "--msg", "x").stdout.strip()
    bad, file = next(
        (file.parent.name, file)
        for file in (tmp_path / "state" / "jobs").glob("*/job.json")
        if not good.endswith(file.parent.name)
    )
    record = json.loads(file.read_text())
    for broken in (
        {**record, "state": "BOGUS"}, {n: v for n, v in record.items() if n != "app"},
        {**record, "app": 5}, {**record, "app": {}}, {**record, "versions": None},
    ):  # fmt: skip
        file.write_text(json.dumps(broken))
        found = relight("list")
        assert found.returncode == 0
        assert good in found.stdout
        for command in ("logs", "describe", "status", "wait"):
            found = relight(command, f"local://relight/{bad}")
            assert "Traceback" not in found.stderr
            assert found.stderr.count("\n") <= 2
