"""The rights that relight needs: the Role in docs/clusters/kubernetes-role.yaml."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters.kubernetes import ApiServer, until

from relight.base.errors import UsageError
from relight.job.app import AppDef, AppState, Role
from relight.schedulers.api import LogQuery
from relight.schedulers.kubernetes import scheduler as kubernetes

pytestmark = pytest.mark.needs_kubernetes
ROLE = Path(__file__).parents[2] / "docs/clusters/kubernetes-role.yaml"
UNTESTED = {(verb, "scheduling.x-k8s.io", "podgroups") for verb in ("create", "patch", "delete")}
"""The stand-in lacks PodGroups."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer(tmp_path) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        server.queues = set()
        yield server


def documented() -> set[tuple[str, str, str]]:
    """Return the rights as verb, API group and resource."""
    import yaml

    return {
        (verb, group, resource)
        for rule in yaml.safe_load(ROLE.read_text())["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def submit(name: str, command: str = "relight run; exec sleep 1000", **cfg: Any) -> str:
    role = Role("main", "img", entrypoint="sh", args=["-c", command], env={"HF_TOKEN": "mine"})
    scheduler = kubernetes.Kubernetes()
    return scheduler.submit(scheduler.render(AppDef("job", [role]), cfg, name))


def test_documented_role_has_exactly_the_rights_needed(server: ApiServer) -> None:
    server.rights = documented()
    scheduler = kubernetes.Kubernetes()

    def is_in(app_id: str, state: AppState) -> bool:
        return scheduler.status([app_id])[app_id].state is state

    for kind in ("job", "jobset", "volcano", "trainjob"):
        queue = {} if kind == "volcano" else {"queue": kind}
        app_id = submit(f"{kind}-x1", kind=kind, network_policy=True, **queue)
        if queue:
            assert is_in(app_id, AppState.PENDING)
            scheduler.cancel(app_id)
            scheduler.delete(app_id)
            server.add_queue(kind)
            app_id = submit(f"{kind}-x2", kind=kind, **queue)
        with until(lambda app_id=app_id: is_in(app_id, AppState.RUNNING)):
            list(scheduler.logs(app_id, LogQuery("main", 0)))
        assert [each.app_id for each in scheduler.list()] == [app_id]
        scheduler.cancel(app_id)
        with until(lambda app_id=app_id: is_in(app_id, AppState.CANCELLED)):
            scheduler.delete(app_id)
        assert not server.of("secrets")
    server.refuse = lambda method, plural, _: (
        (422, "wrong") if (method, plural) == ("POST", "jobs") else None
    )
    with pytest.raises(UsageError, match="wrong"):
        submit("job-x3", network_policy=True, validate_spec=False)
    assert not server.of("services")
    assert documented() - UNTESTED == server.used


def test_deleting_unknown_job_does_not_delete_secret_of_same_name(server: ApiServer) -> None:
    """Secrets are deleted by name, because the permission to list them includes their values."""
    metadata = {"name": "training-env", "namespace": "ns"}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"a": "b"}}
    server.request("POST", "/api/v1/namespaces/ns/secrets", {}, body)
    with pytest.raises(UsageError, match="no job ns:training on this cluster"):
        kubernetes.Kubernetes().delete("ns:training")
    assert server.of("secrets")
