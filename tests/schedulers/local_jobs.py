"""Helpers for local and ssh jobs: a separate directory, and the scheduler's actions."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S

from relight.job import records
from relight.job.app import AppDef, Role
from relight.schedulers.api import AppStatus, LogQuery, Request, Scheduler


def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create directories for a test's jobs and records, and hide the tests' own variables."""
    for name in [n for n in os.environ if n.startswith(("PET_", "TORCHELASTIC_", "RELIGHT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RELIGHT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return tmp_path / "state"


def shell(command: str, name: str = "main", replicas: int = 1, **fields: Any) -> Role:
    """Return a role that runs a shell command."""
    args = ("-c", command)
    return Role(name, "", entrypoint="sh", args=args, num_replicas=replicas, **fields)


def render(scheduler: Scheduler, *roles: Role, **cfg: Any) -> Request:
    """Return the request for these roles."""
    defaults = {option.name: option.default for option in scheduler.options}
    return scheduler.render(AppDef("job", roles), {**defaults, **cfg}, records.new_id("job"))


def submit(scheduler: Scheduler, *roles: Role, **cfg: Any) -> str:
    """Submit these roles as a job, and return its id."""
    return scheduler.submit(render(scheduler, *roles, **cfg))


def until(condition: Callable[[], Any]) -> Any:
    """Wait until a condition is true, and return its value."""
    end = time.monotonic() + LIMIT_S
    while not (value := condition()):
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.05)
    return value


def wait(scheduler: Scheduler, app_id: str) -> AppStatus:
    """Wait until a job is over."""
    return until(lambda: (s := scheduler.status([app_id])[app_id]).state.is_over and s)


def lines(
    scheduler: Scheduler, app_id: str, role: str = "main", k: int = 0, **query: Any
) -> list[str]:
    """Return a replica's lines."""
    return list(scheduler.logs(app_id, LogQuery(role, k, **query)))


def files_below(path: Path) -> list[str]:
    return sorted(str(p) for p in path.rglob("*"))
