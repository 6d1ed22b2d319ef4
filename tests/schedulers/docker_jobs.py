"""A Docker scheduler on a real daemon, with helpers for its jobs."""

import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from clusters.docker import IMAGE, Dockerd
from conftest import LIMIT_S

from relight.job.app import AppDef, AppState, Role
from relight.schedulers.api import AppStatus, LogQuery
from relight.schedulers.docker import scheduler as docker

CANCELLED, FAILED, RUNNING, SUCCEEDED = (
    AppState[name] for name in ("CANCELLED", "FAILED", "RUNNING", "SUCCEEDED")
)
FOR_EVER = "sleep 1000 & trap 'exit 7' TERM; wait"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Dockerd]:
    """Provide one daemon for all tests in the file."""
    with Dockerd() as daemon:
        yield daemon


class Jobs:
    """The scheduler on the daemon, with helpers for its jobs."""

    def __init__(self, daemon: Dockerd) -> None:
        self.daemon = daemon
        self.scheduler = docker.Docker()
        self.count = 0

    def submit(self, *roles: Role, **cfg: Any) -> str:
        self.count += 1
        request = self.scheduler.render(AppDef("job", roles), cfg, f"job-x{self.count}")
        return self.scheduler.submit(request)

    def status(self, app_id: str) -> AppStatus:
        return self.scheduler.status([app_id])[app_id]

    def wait(self, app_id: str) -> AppStatus:
        """Poll until the job is over, as a waiting command does."""
        end = time.monotonic() + LIMIT_S
        while not (status := self.status(app_id)).state.is_over:
            assert time.monotonic() < end, (status, self.daemon.log())
            time.sleep(0.1)
        return status

    def until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, self.daemon.log()
            time.sleep(0.05)

    def lines(self, app_id: str, replica: int = 0, role: str = "main", **query: Any) -> list[str]:
        return list(self.scheduler.logs(app_id, LogQuery(role, replica, **query)))


@pytest.fixture
def jobs(daemon: Dockerd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """Provide the scheduler, and remove its containers at the end."""
    monkeypatch.setenv("DOCKER_HOST", daemon.host)
    jobs = Jobs(daemon)
    yield jobs
    jobs.scheduler.close()
    daemon.clear()


def sh(text: str, name: str = "main", **parts: Any) -> Role:
    """Return a role that runs a shell command."""
    return Role(**{"name": name, "image": IMAGE, "entrypoint": "sh", "args": ("-c", text), **parts})


def run(command: list[Any]) -> tuple[int, str]:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout.strip()
