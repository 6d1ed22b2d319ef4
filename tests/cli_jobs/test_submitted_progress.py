"""`relight status` and `relight top` show the progress of submitted jobs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relight.base import fields
from relight.core.status.charts import Progress
from relight.core.status.snapshot import RUNNING, Chart, NodeSnapshot, RankSnapshot, RankUse
from relight.host.waiting import wait_until
from relight.job.app import AppState
from relight.job.handles import Handle
from relight.job.status import AppStatus, ReplicaStatus
from relight.runner import agent_reports, event_log

from .conftest import Command

LIMIT_S, POLL_S = 60.0, 0.2
TRAINS = """\
import os, time
from relight.worker import progress, report
rank = int(os.environ["RANK"])
for step in range(8):
    progress(step, total=100)
    report(loss=0.5)
print("last line of rank", rank, flush=True)
while not os.path.exists("stop"):
    time.sleep(0.1)
"""


def test_local_job_shows_steps_and_reported_numbers(
    relight: Command, submitted: Callable[..., str], script: Callable[[str], Path], place: Path
) -> None:
    job = submitted("dist.ddp", "-j", "2x2", "--script", script(TRAINS))

    def status() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(relight("status", "--json", job).stdout)
        return found

    def rows() -> list[Any]:
        return [r["use"] for role in status()["roles"] for r in role["replicas"]]

    assert wait_until(lambda: all(rows()), LIMIT_S, POLL_S)
    found = status()
    assert found["goodput"]["generations"] == 1
    assert found["progress"]["step"] == 7 and found["progress"]["total"] == 100
    (role,) = found["roles"]
    assert [each["use"]["step"] for each in role["replicas"]] == [7, 7]
    assert role["replicas"][0]["use"]["reported"] == {"loss": 0.5}
    assert [each["last_line"] for each in role["replicas"]] == [
        "last line of rank 0",
        "last line of rank 2",
    ]
    top = relight("top", "--once", job).stdout
    assert "step 7 of 100" in top and "loss=0.5" in top
    (place / "stop").touch()
    assert relight("wait", job).returncode == 0
    assert status()["progress"] == {"step": 7, "total": 100, "rate": None, "remaining_s": None}


JOB = Handle("slurm", "relight", "7")


def save(
    folder: Path, replica: int, *steps: int, generation: int = 0, started: float = 1.0,
    role: str = "main", **fields_: Any,
) -> None:  # fmt: skip
    """Save the file of an agent whose workers have reached the given steps."""
    ranks = tuple(
        RankSnapshot(2 * replica + k, k, 9, None, 0, "", "", f"at step {step}",
                     RankUse(5.0, 1.0, 100, step, 0.0, (f"loss={step}",), 90))
        for k, step in enumerate(steps)
    )  # fmt: skip
    node = NodeSnapshot(
        "j-1", "j", 1, "h", "r", (), "", "main", started, started + 4, RUNNING, generation, 0, 0,
        "", replica, 2, 4, None, "", "", ranks, replica=replica, topology=f"switch {replica}",
    )._replace(**fields_)  # fmt: skip
    path = folder / "torchelastic" / role / f"r_{replica}_{started}" / "status.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(fields.to_json(node)))


def reports(folder: Path, *roles: str, state: AppState = AppState.RUNNING) -> AppStatus:
    every = tuple(ReplicaStatus(role, k, state) for role in roles or ["main"] for k in range(2))
    found = AppStatus(state, replicas=every, url=f"file://{folder}")
    return agent_reports.with_reports(JOB, found)


def test_replica_shows_total_usage_and_slowest_step_of_its_ranks(tmp_path: Path) -> None:
    save(tmp_path, 0, 8, 7)
    save(tmp_path, 1, 9, 9)
    found = reports(tmp_path)
    assert found.progress == Progress(7, 90)
    assert found.replicas[0].use == RankUse(5.0, 2.0, 200, 7, 0.0, ("loss=8",), 90)
    assert [each.last_line for each in found.replicas] == ["at step 8", "at step 9"]
    assert [each.topology for each in found.replicas] == ["switch 0", "switch 1"]


def test_progress_ignores_files_from_before_a_retry(tmp_path: Path) -> None:
    save(tmp_path, 0, 70)
    save(tmp_path, 1, 70)
    save(tmp_path, 0, 8, started=20.0)
    found = reports(tmp_path)
    assert found.progress == Progress(8, 90)
    assert [each.last_line for each in found.replicas] == ["at step 8", ""]


def test_role_that_starts_later_does_not_hide_reports_of_others(tmp_path: Path) -> None:
    save(tmp_path, 0, 8)
    save(tmp_path, 0, 3, started=100.0, role="evaluator")
    found = reports(tmp_path, "main", "evaluator")
    lines = [each.last_line for each in found.replicas]
    assert lines == ["at step 8", "", "at step 3", ""]


def test_host_whose_clock_is_slow_is_shown(tmp_path: Path) -> None:
    save(tmp_path, 0, 8, started=10.0)
    save(tmp_path, 1, 7)  # saved at 5 s on this host's clock
    assert [each.last_line for each in reports(tmp_path).replicas] == ["at step 8", "at step 7"]


def test_snapshot_that_ended_before_a_retry_is_ignored(tmp_path: Path) -> None:
    save(tmp_path, 0, 8, started=6.0)
    save(tmp_path, 1, 70, state="ended")
    assert reports(tmp_path).progress == Progress(8, 90)


@pytest.mark.parametrize("state", AppState)
def test_only_unfinished_job_shows_rate(tmp_path: Path, state: AppState) -> None:
    """Agents that were killed leave snapshots of running workers."""
    save(tmp_path, 0, 8, charts=(Chart("steps/s", 1.0, 1.0, (2.0, 2.0)),))
    expected = Progress(8, 90) if state.is_over else Progress(8, 90, 2.0, 40.5)
    assert reports(tmp_path, state=state).progress == expected


def test_progress_ignores_lost_nodes(tmp_path: Path) -> None:
    save(tmp_path, 0, 8, generation=2)
    save(tmp_path, 1, 3, generation=1)
    assert reports(tmp_path).progress == Progress(8, 90)


@pytest.mark.parametrize("scheme", ["file:", "file://"])
def test_log_directory_is_shown_as_its_scheduler_names_it(tmp_path: Path, scheme: str) -> None:
    save(tmp_path, 0, 8)
    (path,) = event_log.paths_below(JOB, f"{scheme}{tmp_path}", "status.json")
    assert path == str(tmp_path / "torchelastic/main/r_0_1.0/status.json")


def test_unreadable_status_file_is_ignored(tmp_path: Path) -> None:
    save(tmp_path, 0, 8)
    (path,) = tmp_path.rglob("status.json")
    path.write_text(path.read_text()[:-9])
    assert reports(tmp_path).progress is None
