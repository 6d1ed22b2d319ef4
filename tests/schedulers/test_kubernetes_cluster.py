"""Jobs on a real cluster if RELIGHT_KUBECONFIG is set.

Without it, these tests are themselves tested on a fake cluster.

    make kubernetes KUBECONFIG=~/.kube/config    # tests/real_cluster.py

They run in the current context's namespace, need Python 3.11 in the image (RELIGHT_IMAGE), and
remove everything they have created. The first line of each docstring is a row in the results table.
"""

import os
import shutil
import subprocess
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
LIMIT_S = 180.0 if CONFIG else conftest.LIMIT_S
pytestmark = [
    pytest.mark.long,  # on the fake cluster, test_kubernetes.py tests the same
    pytest.mark.needs_kubernetes,
    pytest.mark.timeout(2 * LIMIT_S),
]


class Jobs:
    """The scheduler, and the jobs submitted by a test."""

    def __init__(self) -> None:
        self.scheduler = kubernetes.Kubernetes()
        self.submitted: list[str] = []

    def submit(self, app: AppDef, **cfg: Any) -> str:
        name = f"relight-test-{uuid.uuid4().hex[:6]}"
        request = self.scheduler.render(app, cfg, name)
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
    """Return a job whose agents bring the launcher, with a shell command instead of a script."""
    app = dist.ddp(m="x", image=IMAGE, env={"RELIGHT_LAUNCHER": "travels"},
                   rdzv_port=29500 if CONFIG else free_port(), **options)  # fmt: skip
    (role,) = app.roles
    args = [word.replace("-m x", f"--no-python sh -c '{text}'") for word in role.args]
    assert args != list(role.args)
    return replace(app, roles=[replace(role, args=args)])


real_only = pytest.mark.skipif(not CONFIG, reason="the stand-in has no such controller")


def refused(error: UsageError, kind: str) -> None:
    """Skip the test if this kind isn't installed in the cluster."""
    if CONFIG and "could not find the requested resource" in error.message:
        pytest.skip(f"{kind} is not installed")
    raise error


def test_single_pod_job_runs_and_can_be_queried(jobs: Jobs) -> None:
    """A Job runs, and its logs and status can be read."""
    app_id = jobs.submit(sh("echo here; exit 0"))
    assert jobs.wait(app_id).state is AppState.SUCCEEDED
    assert jobs.lines(app_id, "main") == ["here"]
    assert app_id in [each.app_id for each in jobs.scheduler.list()]


@pytest.mark.parametrize("kind", KINDS)
def test_pods_rendezvous_using_launcher_from_config_map(jobs: Jobs, kind: str) -> None:
    """Pods find each other by name, with the launcher from the ConfigMap."""
    try:
        app_id = jobs.submit(ddp("echo rank $RANK of $WORLD_SIZE", j="2x2"), kind=kind)
    except UsageError as error:
        refused(error, kind)
    assert jobs.wait(app_id).state is AppState.SUCCEEDED
    lines = jobs.lines(app_id, "x", 0) + jobs.lines(app_id, "x", 1)
    for rank in range(4):
        assert any(f"rank {rank} of 4" in line for line in lines), lines


def test_elastic_job_runs(jobs: Jobs) -> None:
    """An elastic job runs."""
    app_id = jobs.submit(ddp("echo of $WORLD_SIZE; sleep 3", j="1:2x1"))
    assert jobs.wait(app_id).state is AppState.SUCCEEDED


def test_program_error_ends_job(jobs: Jobs) -> None:
    """A program error ends the Job with the program's exit code."""
    app_id = jobs.submit(ddp("exit 7", j="2x1"))
    status = jobs.wait(app_id)
    assert (status.state, status.exitcode) == (AppState.FAILED, 7)


def test_exit_after_checkpoint_does_not_count_as_failure(jobs: Jobs) -> None:
    """A pod that exits with 75 is recreated and can detect this."""
    app_id = jobs.submit(sh('[ "$RELIGHT_PREEMPTIONS" = 1 ] || exit 75'))
    assert jobs.wait(app_id).state is AppState.SUCCEEDED


@real_only
def test_evicted_pod_is_recreated(jobs: Jobs) -> None:
    """An evicted pod (Eviction API) is recreated."""
    import kubernetes as package

    text = '[ -z "$RELIGHT_PREEMPTIONS" ] || exit 0; trap "exit 1" TERM; sleep 1000 & wait'
    app_id = jobs.submit(sh(text))
    jobs.until(lambda: jobs.status(app_id).state is AppState.RUNNING)
    namespace, _, name = app_id.partition(":")
    package.config.load_kube_config(CONFIG)
    core = package.client.CoreV1Api()
    (pod,) = core.list_namespaced_pod(namespace, label_selector=f"relight/app-id={name}").items
    meta = package.client.V1ObjectMeta(name=pod.metadata.name, namespace=namespace)
    body = package.client.V1Eviction(metadata=meta)
    core.create_namespaced_pod_eviction(pod.metadata.name, namespace, body)
    assert jobs.wait(app_id).state is AppState.SUCCEEDED


def test_secret_variable_reaches_program(jobs: Jobs) -> None:
    """A secret from --env reaches the program through a Secret."""
    app_id = jobs.submit(sh('[ "$HF_TOKEN" = mine ]', env={"HF_TOKEN": "mine"}))
    assert jobs.wait(app_id).state is AppState.SUCCEEDED


def test_root_can_write_to_another_users_directory(jobs: Jobs) -> None:
    """Root in the container may write to a directory owned by another user."""
    text = "mkdir /tmp/o && chown 1000 /tmp/o && chmod 700 /tmp/o && touch /tmp/o/file"
    app_id = jobs.submit(sh(text if CONFIG else "true"))
    assert jobs.wait(app_id).state is AppState.SUCCEEDED


def test_pod_runs_under_restricted_pod_security_standard(jobs: Jobs) -> None:
    """A pod under the restricted standard runs with the bundled launcher."""
    app_id = jobs.submit(ddp("true", j="1x1"), restricted=True, user=1000)
    assert jobs.wait(app_id).state is AppState.SUCCEEDED


def test_requested_capability_is_granted(jobs: Jobs) -> None:
    """A pod with -cfg capabilities=IPC_LOCK runs."""
    app_id = jobs.submit(sh("true"), capabilities=["IPC_LOCK"])
    assert jobs.wait(app_id).state is AppState.SUCCEEDED


@real_only
def test_pods_can_rendezvous_under_network_policy(jobs: Jobs) -> None:
    """Pods find each other behind their NetworkPolicy."""
    app_id = jobs.submit(ddp("true", j="2x1"), network_policy=True)
    assert jobs.wait(app_id).state is AppState.SUCCEEDED


@real_only
def test_time_limit_ends_job(jobs: Jobs) -> None:
    """-cfg timeout=1 ends a job whose pods keep exiting with 75."""
    app_id = jobs.submit(sh("sleep 5; exit 75"), timeout=1)
    status = jobs.wait(app_id)
    assert status.state is AppState.FAILED
    assert "deadline" in status.message


@real_only
def test_finished_job_is_removed_after_ttl(jobs: Jobs) -> None:
    """-cfg ttl=1 removes an ended job and everything it owns."""
    app_id = jobs.submit(sh("true"), ttl=1)
    jobs.until(lambda: app_id not in jobs.scheduler.status([app_id]))


@real_only
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_dry_run_output_can_be_applied_with_kubectl(jobs: Jobs) -> None:
    """The output of a dry run can be applied with kubectl apply, and runs."""
    name = f"relight-test-{uuid.uuid4().hex[:6]}"
    request = jobs.scheduler.render(ddp("true", j="2x1"), {}, name)
    jobs.submitted.append(request.app_id)
    command = ["kubectl", "--kubeconfig", CONFIG, "apply", "-f", "-"]
    subprocess.run(command, input=request.text, text=True, check=True)
    assert jobs.wait(request.app_id).state is AppState.SUCCEEDED


def test_cancel_stops_pods(jobs: Jobs) -> None:
    """The pods are stopped by relight cancel."""
    app_id = jobs.submit(sh("exec sleep 1000", num_replicas=2))
    jobs.until(lambda: jobs.status(app_id).state is AppState.RUNNING)
    jobs.scheduler.cancel(app_id)
    assert jobs.status(app_id).state is AppState.CANCELLED


def test_delete_leaves_nothing_behind(jobs: Jobs) -> None:
    """Nothing is left behind by relight delete."""
    app_id = jobs.submit(sh("exec sleep 1000"))
    jobs.scheduler.delete(app_id)
    jobs.until(lambda: app_id not in jobs.scheduler.status([app_id]))
    with pytest.raises(UsageError, match="no job"):
        jobs.scheduler.cancel(app_id)


@pytest.mark.parametrize("kind", KINDS)
def test_server_accepts_manifest_of_every_supported_kind(jobs: Jobs, kind: str) -> None:
    """The server accepts the manifest with strict field validation."""
    try:
        app_id = jobs.submit(sh("true"), kind=kind)
    except UsageError as error:
        refused(error, kind)
    assert app_id in jobs.scheduler.status([app_id])
