"""Cancelling jobs on a fake Kubernetes cluster, with and without Kueue.

The rules of its Kueue and its Job controller, with their sources, are in `clusters/kubernetes`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters.kubernetes import ApiServer, until
from clusters.kubernetes.state import Object, is_over

from relight.base.errors import UsageError
from relight.job.app import AppDef, AppState, Role
from relight.schedulers.api import AppStatus
from relight.schedulers.kubernetes import scheduler as kubernetes

pytestmark = pytest.mark.needs_kubernetes
JOB = "ns:job-x1"
queued_kinds = pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer(tmp_path) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        yield server


def submit(*commands: str, **cfg: object) -> None:
    roles = [
        Role(f"role-{number}", "img", entrypoint="sh", args=["-c", command])
        for number, command in enumerate(commands or ["exec sleep 1000"])
    ]
    scheduler = kubernetes.Kubernetes()
    scheduler.submit(scheduler.render(AppDef("job", roles), cfg, "job-x1"))


def status() -> AppStatus:
    return kubernetes.Kubernetes().status([JOB])[JOB]


def cancel() -> None:
    kubernetes.Kubernetes().cancel(JOB)


def is_in(state: AppState) -> bool:
    return status().state is state


def running(server: ApiServer) -> list[Object]:
    return [pod for pod in server.of("pods") if not is_over(pod)]


def forbid(server: ApiServer, verb: str, resource: str, group: str) -> None:
    said = f'x is forbidden: User "u" cannot {verb} resource "{resource}" in API group "{group}"'
    method, plural = {"patch": "PATCH", "list": "GET"}[verb], resource.partition("/")[0]
    server.refuse = lambda *request: (403, said) if request[:2] == (method, plural) else None


@queued_kinds
def test_kueue_does_not_resume_cancelled_job(server: ApiServer, kind: str) -> None:
    server.queues = {"gpu"}
    submit(kind=kind, queue="gpu")
    with until(lambda: is_in(AppState.RUNNING)):
        cancel()
    with until(lambda: is_in(AppState.CANCELLED) and not running(server)):
        server.admit()
    assert is_in(AppState.CANCELLED)
    assert not running(server)
    assert server.pods_made == 1


@queued_kinds
def test_kueue_never_starts_queued_job_after_cancel(server: ApiServer, kind: str) -> None:
    server.queues = set()
    submit(kind=kind, queue="gpu")
    assert is_in(AppState.PENDING)
    cancel()
    assert is_in(AppState.CANCELLED)
    server.add_queue("gpu")
    assert is_in(AppState.CANCELLED)
    assert not server.pods_made


def test_cancelling_queued_job_requires_permission_to_patch_workloads(server: ApiServer) -> None:
    """Otherwise the job would only seem to be cancelled. kueue-batch-user-role lacks the right."""
    server.queues = set()
    submit(queue="gpu")
    forbid(server, "patch", "workloads", "kueue.x-k8s.io")
    with pytest.raises(UsageError, match=r"to patch workloads\.kueue\.x-k8s\.io"):
        cancel()
    assert is_in(AppState.PENDING)


def test_running_job_in_queue_is_cancelled_without_access_to_workloads(server: ApiServer) -> None:
    server.queues = {"gpu"}
    submit(queue="gpu")
    forbid(server, "list", "workloads", "kueue.x-k8s.io")
    with until(lambda: is_in(AppState.RUNNING)):
        cancel()
    with until(lambda: is_in(AppState.CANCELLED)):
        assert not running(server)


def test_status_shows_pods_that_run_despite_cancel(server: ApiServer) -> None:
    """Anyone may resume a suspended job. It can then be cancelled a second time."""
    submit(kind="jobset")
    with until(lambda: is_in(AppState.RUNNING)):
        cancel()
    with until(lambda: is_in(AppState.CANCELLED)), server.state.changing():
        jobset = server.objects["ns", "jobsets", "job-x1"]
        jobset["spec"]["suspend"] = False
        server.state.touch(jobset)
    with until(lambda: is_in(AppState.RUNNING)):
        cancel()
    with until(lambda: is_in(AppState.CANCELLED)):
        assert jobset["spec"]["suspend"]


def test_time_to_live_begins_when_job_is_cancelled(server: ApiServer) -> None:
    """The token's Secret is removed along with the Job."""
    submit(ttl=60)
    with until(lambda: is_in(AppState.RUNNING)):
        cancel()
    with until(lambda: is_in(AppState.CANCELLED) and not running(server)):
        assert server.of("secrets")
    server.elapse(61)
    assert not {plural for _, plural, _ in server.objects} - {"events"}


def test_cancel_stops_roles_that_outlive_failed_role(server: ApiServer) -> None:
    submit("exit 3", "exec sleep 1000")
    with until(lambda: is_in(AppState.FAILED) and bool(running(server))):
        cancel()
    with until(lambda: not running(server)):
        assert is_in(AppState.FAILED)


def test_volcano_job_is_not_marked_if_its_status_cannot_be_patched(server: ApiServer) -> None:
    """RBAC grants subresources separately."""
    submit(kind="volcano")
    said = 'x is forbidden: User "u" cannot patch resource "jobs/status" in API group "batch.x"'
    server.refuse = lambda method, *_: (403, said) if method == "PATCH" else None
    with (
        until(lambda: is_in(AppState.RUNNING)),
        pytest.raises(UsageError, match=r"to patch jobs/status\.batch\.x"),
    ):
        cancel()
    assert is_in(AppState.RUNNING)
    server.refuse = lambda *_: None
    cancel()
    assert is_in(AppState.CANCELLED)
