"""Jobs on a real cluster, if RELIGHT_KUBECONFIG names one; without it, on the stand-in for one, so
that these tests are themselves tried.

    export RELIGHT_KUBECONFIG=~/.kube/config RELIGHT_IMAGE=python:3.11-slim
    .venv/bin/python -m pytest tests/schedulers/test_kubernetes_cluster.py

They run in the namespace of the current context, need Python 3.11 in the image, and remove what
they have made.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import conftest
import pytest
from clusters.kubernetes import ApiServer, free_port

from relight.base.errors import UsageError
from relight.job.app import AppDef, AppState, Role
from relight.job.components import dist
from relight.schedulers.api import AppStatus, LogQuery
from relight.schedulers.kubernetes import scheduler as kubernetes
from relight.schedulers.kubernetes.kinds import KINDS

CONFIG = os.environ.get("RELIGHT_KUBECONFIG", "")
IMAGE = os.environ.get("RELIGHT_IMAGE", "python:3.11-slim")
LIMIT_S = 600.0 if CONFIG else conftest.LIMIT_S
pytestmark = [
    pytest.mark.long,  # on the stand-in, test_kubernetes.py has the same promises
    pytest.mark.needs_kubernetes,
    pytest.mark.timeout(2 * LIMIT_S),
]


class Jobs:
    """The scheduler, and the jobs that a test has submitted."""

    def __init__(self) -> None:
        self.scheduler = kubernetes.make()
        self.submitted: list[str] = []

    def submit(self, app: AppDef, **cfg: Any) -> str:
        name = f"relight-test-{uuid.uuid4().hex[:6]}"
        request = self.scheduler.render(app, {"user": 1000, **cfg}, name)
        self.submitted.append(self.scheduler.submit(request))
        return self.submitted[-1]

    def status(self, app_id: str) -> AppStatus:
        return self.scheduler.status([app_id])[app_id]

    def until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, [self.status(x) for x in self.submitted]
            time.sleep(0.2)

    def wait(self, app_id: str) -> AppStatus:
        self.until(lambda: self.status(app_id).state.is_over)
        return self.status(app_id)

    def lines(self, app_id: str, role: str, replica: int = 0) -> list[str]:
        return list(self.scheduler.logs(app_id, LogQuery(role, replica)))


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    server = None if CONFIG else ApiServer(tmp_path).__enter__()
    monkeypatch.setenv("KUBECONFIG", CONFIG if server is None else str(server.kubeconfig))
    jobs = Jobs()
    yield jobs
    for app_id in jobs.submitted:
        if app_id in jobs.scheduler.status([app_id]):
            jobs.scheduler.delete(app_id)
    jobs.scheduler.close()
    if server is not None:
        server.__exit__(None, None, None)


def sh(text: str, **parts: Any) -> AppDef:
    return AppDef("job", [Role("main", IMAGE, entrypoint="sh", args=["-c", text], **parts)])


def ddp(text: str, **options: Any) -> AppDef:
    """A job whose agents travel, with a shell command instead of a script."""
    app = dist.ddp(m="x", image=IMAGE, env={"RELIGHT_LAUNCHER": "travels"},
                   rdzv_port=29500 if CONFIG else free_port(), **options)  # fmt: skip
    (role,) = app.roles
    args = [word.replace("-m x", f"--no-python sh -c '{text}'") for word in role.args]
    assert args != list(role.args)
    return replace(app, roles=[replace(role, args=args)])


def test_single_pod_job_runs_and_is_read_back(jobs: Jobs) -> None:
    app_id = jobs.submit(sh("echo here; exit 0"))
    assert jobs.wait(app_id).state is AppState.SUCCEEDED
    assert jobs.lines(app_id, "main") == ["here"]
    assert app_id in [each.app_id for each in jobs.scheduler.list()]


def test_pods_rendezvous_with_travelling_launcher(jobs: Jobs) -> None:
    app_id = jobs.submit(ddp("echo rank $RANK of $WORLD_SIZE", j="2x2"))
    assert jobs.wait(app_id).state is AppState.SUCCEEDED
    lines = jobs.lines(app_id, "x", 0) + jobs.lines(app_id, "x", 1)
    for rank in range(4):
        assert any(f"rank {rank} of 4" in line for line in lines), lines


def test_elastic_job_runs(jobs: Jobs) -> None:
    app_id = jobs.submit(ddp("echo of $WORLD_SIZE; sleep 3", j="1:2x1"))
    assert jobs.wait(app_id).state is AppState.SUCCEEDED


def test_user_error_ends_job(jobs: Jobs) -> None:
    app_id = jobs.submit(ddp("exit 7", j="2x1"))
    status = jobs.wait(app_id)
    assert (status.state, status.exitcode) == (AppState.FAILED, 7)


def test_cancel_ends_pods(jobs: Jobs) -> None:
    app_id = jobs.submit(sh("exec sleep 1000", num_replicas=2))
    jobs.until(lambda: jobs.status(app_id).state is AppState.RUNNING)
    jobs.scheduler.cancel(app_id)
    assert jobs.status(app_id).state is AppState.CANCELLED


def test_delete_leaves_nothing(jobs: Jobs) -> None:
    app_id = jobs.submit(sh("exec sleep 1000"))
    jobs.scheduler.delete(app_id)
    jobs.until(lambda: app_id not in jobs.scheduler.status([app_id]))
    with pytest.raises(UsageError, match="no job"):
        jobs.scheduler.cancel(app_id)


@pytest.mark.parametrize("kind", KINDS)
def test_server_accepts_every_known_kind(jobs: Jobs, kind: str) -> None:
    try:
        app_id = jobs.submit(sh("true"), kind=kind)
    except UsageError as error:
        if CONFIG and "could not find the requested resource" in error.message:
            pytest.skip(f"{kind} is not installed in this cluster")
        raise
    assert app_id in jobs.scheduler.status([app_id])
