"""`relight status` learns of a lost node from the other agents, before the scheduler reports it."""

import json
from pathlib import Path
from typing import Any

from relight.job.app import AppState
from relight.job.handles import Handle
from relight.runner import event_log
from relight.schedulers.api import AppStatus, ReplicaStatus

JOB = Handle("slurm", "relight", "7")
FORMED = {
    "event": "Formed", "v": 1, "restart": 0, "group_rank": 0, "world_size": 4,
    "master_port": 1, "cause": "", "pid": 1, "t": 0.0,
}  # fmt: skip


def formed(folder: Path, host: str, *, at: float, generation: int, nodes: int, **more: Any) -> None:
    """Log that an agent on a host has become part of a generation."""
    event = {**FORMED, "host": host, "time": at, "generation": generation, "nodes": nodes,
             "master_addr": "n1", **more}  # fmt: skip
    path = folder / "torchelastic" / "main" / f"{host}_{more.get('attempt', 0)}" / "events.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(event) + "\n")


def errors(folder: Path, *states: AppState) -> list[str]:
    """Return the errors of replicas on hosts n1, n2, and so on."""
    replicas = tuple(
        ReplicaStatus("main", k, state, f"n{k + 1}.cluster") for k, state in enumerate(states)
    )
    found = AppStatus(AppState.RUNNING, "", replicas, 0, f"file://{folder}")
    logs = event_log.agents(JOB, found)
    return [each.error for each in event_log.with_lost(logs, replicas)]


LOST = "lost: the other nodes continue without it"
RUNNING = AppState.RUNNING


def test_node_missing_from_the_latest_group_is_reported_as_lost(tmp_path: Path) -> None:
    for host in ("n1", "n2", "n3"):
        formed(tmp_path, host, at=1.0, generation=1, nodes=3)
    assert errors(tmp_path, RUNNING, RUNNING, RUNNING) == ["", "", ""]
    formed(tmp_path, "n1", at=11.0, generation=2, nodes=2)
    assert errors(tmp_path, RUNNING, RUNNING, RUNNING) == ["", "", ""]  # n2 still has to write it
    formed(tmp_path, "n2", at=11.1, generation=2, nodes=2)
    assert errors(tmp_path, RUNNING, RUNNING, RUNNING) == ["", "", LOST]
    assert errors(tmp_path, RUNNING, RUNNING, AppState.FAILED) == ["", "", ""]
    formed(tmp_path, "n3", at=20.0, generation=3, nodes=3)
    formed(tmp_path, "n1", at=20.0, generation=3, nodes=3)
    formed(tmp_path, "n2", at=20.0, generation=3, nodes=3)
    assert errors(tmp_path, RUNNING, RUNNING, RUNNING) == ["", "", ""]


def test_spare_and_unstarted_nodes_are_not_reported_as_lost(tmp_path: Path) -> None:
    for host in ("n1", "n2"):
        formed(tmp_path, host, at=1.0, generation=1, nodes=2)
    assert errors(tmp_path, RUNNING, RUNNING, RUNNING) == ["", "", ""]
    assert errors(tmp_path / "none", RUNNING) == [""]


def test_logs_from_an_earlier_attempt_are_ignored(tmp_path: Path) -> None:
    """A requeued job starts again with generation 1."""
    for host in ("n1", "n2"):
        formed(tmp_path, host, at=1.0, generation=5, nodes=2)
        formed(tmp_path, host, at=50.0, generation=1, nodes=2, attempt=1)
    assert errors(tmp_path, RUNNING, RUNNING) == ["", ""]
