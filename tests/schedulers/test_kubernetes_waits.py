"""Jobs that a Kubernetes cluster accepts but that wait for something missing.

`relight status` names the missing thing. The fake cluster (`clusters/kubernetes.py`) rejects pods
as a server's admission does.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters.kubernetes import ApiServer, until
from conftest import Launch

from relight.base.errors import MachineError, UsageError
from relight.job.app import AppDef, AppState, Role
from relight.schedulers.api import AppStatus
from relight.schedulers.kubernetes import scheduler as kubernetes

pytestmark = pytest.mark.needs_kubernetes
FORBIDDEN = 403, 'User "u" cannot list resource "events" in API group "" in the namespace "ns"'


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer(tmp_path) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        yield server


def submit(
    command: str = "true", num_replicas: int = 1, min_replicas: int | None = None, **cfg: object
) -> str:
    role = Role(
        "main", "img", entrypoint="sh", args=["-c", command],
        num_replicas=num_replicas, min_replicas=min_replicas,
    )  # fmt: skip
    app = AppDef("job", [role])
    scheduler = kubernetes.Kubernetes()
    return scheduler.submit(scheduler.render(app, cfg, "job-x1"))


def status() -> AppStatus:
    return kubernetes.Kubernetes().status(["ns:job-x1"])["ns:job-x1"]


def has_succeeded() -> bool:
    return status().state is AppState.SUCCEEDED


def test_missing_namespace_is_rejected(server: ApiServer) -> None:
    with pytest.raises(UsageError, match='namespaces "nope" not found') as caught:
        submit(namespace="nope")
    assert "-cfg namespace=" in caught.value.hint
    assert not server.objects


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_status_reports_missing_service_account_until_it_exists(
    server: ApiServer, kind: str
) -> None:
    submit(kind=kind, service_account="trainer")
    waiting = status()
    assert waiting.state is AppState.PENDING
    assert waiting.message.startswith("main/0: FailedCreate: Error creating: pods ")
    assert 'serviceaccount "trainer" not found' in waiting.message
    server.accounts.add("trainer")
    server.admit()
    with until(has_succeeded):
        assert status().message == ""


def test_error_names_missing_priority_class(server: ApiServer) -> None:
    submit(priority_class="hihg")
    assert "no PriorityClass with name hihg was found" in status().replicas[0].error


def test_restricted_namespace_accepts_only_jobs_with_restricted_profile(server: ApiServer) -> None:
    """The namespace enforces the restricted Pod Security Standard."""
    server.restricted = {"ns"}
    submit()
    assert 'violates PodSecurity "restricted:latest": ' in status().message
    kubernetes.Kubernetes().delete("ns:job-x1")
    submit(restricted=True, user=1000)
    with until(has_succeeded):
        assert status().message == ""


def test_elastic_job_runs_within_quota_and_reports_pending_pods(
    server: ApiServer,
) -> None:
    server.quotas = {"ns": 1}
    submit("exec sleep 1000", num_replicas=2, min_replicas=1)
    with until(lambda: status().state is AppState.RUNNING):
        assert "exceeded quota: q, requested: pods=1" in status().replicas[1].error


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_status_reports_missing_kueue_queue(server: ApiServer, kind: str) -> None:
    server.queues = {"default"}
    server.installed.add("workloads")
    submit(kind=kind, queue="gpu")
    waiting = status()
    assert waiting.state is AppState.PENDING
    assert waiting.message.endswith("is waiting in its queue, gpu: LocalQueue gpu doesn't exist")
    server.add_queue("gpu")
    with until(has_succeeded):
        assert status().replicas[0].error == ""


def test_status_reports_queue_without_permission_to_read_events(server: ApiServer) -> None:
    server.queues = set()
    server.refuse = lambda _, plural, __: FORBIDDEN if plural in ("events", "workloads") else None
    submit(queue="gpu")
    assert status().message == "the Job is suspended: it is waiting in its queue, gpu"


def test_status_reports_volume_that_cannot_be_mounted(server: ApiServer) -> None:
    """The pod itself only reports that its container is being created."""
    server.waiting = {"reason": "ContainerCreating"}
    submit()
    (pod,) = server.of("pods")
    server.warn(pod, "FailedMount", 'MountVolume.SetUp failed for volume "mount-0"')
    server.warn(server.of("services")[0], "Other", "is about something else")
    said = 'FailedMount: MountVolume.SetUp failed for volume "mount-0"'
    assert status().replicas[0].error == said
    assert status().message == f"main/0: {said}"


def test_logs_command_explains_why_pod_has_no_logs(server: ApiServer, in_process: Launch) -> None:
    """With -f, the explanation precedes the wait for the first line."""
    server.unschedulable = {0}
    submit()
    said = "note: main/0 PENDING: Unschedulable: 0/1 nodes are available"
    known = {"KUBECONFIG": str(server.kubeconfig)}
    result = in_process("logs", "kubernetes://relight/ns:job-x1", **known)
    assert (result.returncode, result.stdout) == (0, "")
    assert said in result.stderr
    server.find_nodes()
    with until(has_succeeded):
        assert in_process("logs", "-f", "kubernetes://relight/ns:job-x1", **known).stderr == ""


def test_logs_command_reports_out_of_memory_kill(server: ApiServer, in_process: Launch) -> None:
    submit("echo begins; exit 1")
    with until(lambda: status().state is AppState.FAILED):
        (container,) = server.of("pods")[0]["status"]["containerStatuses"]
    container["state"]["terminated"] |= {"exitCode": 137, "reason": "OOMKilled"}
    result = in_process("logs", "kubernetes://relight/ns:job-x1", KUBECONFIG=str(server.kubeconfig))
    assert result.stdout == "begins\n"
    assert "note: main/0 FAILED: out of memory" in result.stderr


def test_error_names_missing_permission_even_if_cleanup_fails(server: ApiServer) -> None:
    said = 'services is forbidden: User "u" cannot patch resource "services" in API group ""'
    server.refuse = lambda method, *_: (403, said) if method in ("PATCH", "DELETE") else None
    with pytest.raises(MachineError, match="does not allow this user to patch services") as caught:
        submit()
    assert "some objects of ns:job-x1 may have been created" in caught.value.message
    assert caught.value.hint.startswith("kubectl delete services,secrets,jobs.batch -n ns -l ")


def test_conflicting_update_is_retried(server: ApiServer) -> None:
    """The controller updates the Job at the same time. A name that already exists is a different
    conflict.
    """
    submit("exec sleep 1000")
    said = 'Operation cannot be fulfilled on jobs.batch "job-x1": the object has been modified'
    collisions = [(409, said)] * 2
    server.refuse = lambda method, *_: (
        collisions.pop() if method == "PATCH" and collisions else None
    )
    kubernetes.Kubernetes().cancel("ns:job-x1")
    assert not collisions
    with until(lambda: status().state is AppState.CANCELLED):
        pass
    server.refuse = lambda *_: None
    with pytest.raises(UsageError, match="already exists"):
        submit()
