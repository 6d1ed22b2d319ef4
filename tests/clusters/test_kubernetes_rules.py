"""The stand-in for Kubernetes follows the rules of the real one, and runs TorchX's Jobs."""

import base64
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S
from netlab import Lab

from clusters.kubernetes import ApiServer, apply, dns, until
from clusters.kubernetes.state import Object, Refused, is_over, is_terminating

pytestmark = pytest.mark.needs_kubernetes
JOBS = "/apis/batch/v1/namespaces/ns/jobs"
VOLCANO = "/apis/batch.volcano.sh/v1alpha1/namespaces/ns/jobs"
TORCHX = Path(__file__).parent / "kubernetes" / "torchx-0.7.0.yaml"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path) as server:
        yield server


def pod(command: str = "exec sleep 1000", **parts: Any) -> Object:
    main = {"name": "main", "image": "img", "command": ["sh", "-c", command]}
    return {"restartPolicy": "Never", "containers": [main], **parts}


def job(command: str = "exec sleep 1000", name: str = "j", **spec: Any) -> Object:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": pod(command, **spec.pop("pod", {}))}
    indexed = {
        "completionMode": "Indexed",
        "completions": 1,
        "parallelism": spec.get("completions", 1),
    }
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
    return {**body, "spec": {**indexed, "template": template, **spec}}


def volcano(*commands: str, **spec: Any) -> Object:
    tasks = [
        {"name": f"t-{number}", "replicas": 1, "template": {"spec": pod(command)}}
        for number, command in enumerate(commands)
    ]
    body = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "v"}}
    return {**body, "spec": {"tasks": tasks, **spec}}


def headless(name: str = "s", **spec: Any) -> Object:
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}}
    return {**body, "spec": {"clusterIP": "None", "selector": {"app": "a"}, **spec}}


def post(server: ApiServer, body: Object, path: str = "") -> Object:
    plural = {"Service": "services", "ConfigMap": "configmaps", "Job": "jobs"}[body["kind"]]
    path = path or (JOBS if plural == "jobs" else f"/api/v1/namespaces/ns/{plural}")
    return server.request("POST", path, {}, body)[1]


def conditions(server: ApiServer, name: str = "j") -> dict[str, str]:
    with server.state.lock:
        found = server.objects[("ns", "jobs", name)]["status"].get("conditions") or ()
        return {x["type"]: x["reason"] for x in found if x["status"] == "True"}


def phases(server: ApiServer) -> list[str]:
    return [each["status"]["phase"] for each in server.of("pods")]


# Validation.


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"pod": {"restartPolicy": "Always"}}, "restartPolicy: Required value"),
        ({"maxFailedIndexes": 1}, "backoffLimitPerIndex: Required value"),
        ({"backoffLimitPerIndex": 1, "maxFailedIndexes": 2}, "less than or equal to completions"),
        (
            {"completionMode": "NonIndexed", "backoffLimitPerIndex": 1},
            "requires indexed completion",
        ),
        (
            {"podFailurePolicy": {"rules": []}, "podReplacementPolicy": "TerminatingOrFailed"},
            "Unsupported value",
        ),
        ({"pod": {"hostname": "a.b"}}, "hostname: Invalid value"),
        ({"pod": {"tolerations": [{"key": "a", "tolerationSeconds": 1}]}}, "must be 'NoExecute'"),
        ({"pod": {"volumes": [{"name": "v"}]}}, "must specify exactly one volume type"),
        ({"ttlSecondsAfterFinished": -1}, "must be greater than or equal to 0"),
    ],
)
def test_invalid_kubernetes_job_is_rejected(
    server: ApiServer, spec: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused, match=said) as caught:
        post(server, job(**spec))
    assert caught.value.code == 422


@pytest.mark.parametrize("values", [[0, 1], [2, 1], [1, 1], list(range(1, 257)), []])
def test_failure_policy_exit_codes_must_be_ordered_unique_and_nonzero(
    server: ApiServer, values: list[int]
) -> None:
    codes = {"operator": "In", "values": values}
    rule = {"action": "FailJob", "onExitCodes": codes}
    with pytest.raises(Refused, match="onExitCodes"):
        post(server, job(podFailurePolicy={"rules": [rule]}))


def test_job_name_too_long_for_pod_host_names_is_rejected(server: ApiServer) -> None:
    with pytest.raises(Refused, match="will not able to create pod with invalid DNS label"):
        post(server, job(name="j" * 62, completions=11))
    with pytest.raises(Refused, match="DNS-1035"):
        post(server, headless("1s"))


def test_annotations_and_config_map_data_have_size_limits(server: ApiServer) -> None:
    body = job()
    body["metadata"]["annotations"] = {"a": "x" * (256 * 1024)}
    with pytest.raises(Refused, match="Too long: may not be more than 262144 bytes"):
        post(server, body)
    data = {"f": base64.b64encode(b"x" * (1 << 20)).decode()}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "binaryData": data}
    post(server, body)
    body = {**body, "metadata": {"name": "d"}, "data": {"g": "x"}}
    with pytest.raises(Refused, match="may not be more than 1048576 bytes"):
        post(server, body)


def test_changes_to_immutable_fields_are_rejected(server: ApiServer) -> None:
    post(server, job())
    patch = [{"op": "add", "path": "/spec/template/spec/nodeSelector", "value": {"a": "b"}}]
    with pytest.raises(Refused, match=r"spec\.template: Invalid value: field is immutable"):
        server.request("PATCH", f"{JOBS}/j", {}, patch, apply.JSON)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "immutable": True}
    post(server, {**body, "data": {"a": "1"}})
    path = "/api/v1/namespaces/ns/configmaps/c"
    with pytest.raises(Refused, match="immutable when `immutable` is set"):
        server.request("PATCH", path, {}, {"data": {"a": "2"}}, apply.MERGE)


# kubectl apply.


def big(size: int) -> str:
    data = base64.b64encode(b"x" * size).decode()
    return (
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n---\n"
        f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\nbinaryData: {{f: {data}}}\n"
    )


def test_client_side_apply_rejects_object_too_large_for_annotation(server: ApiServer) -> None:
    """The other objects have been applied by then."""
    (error,) = apply.kubectl_apply(server, big(300_000))
    assert "metadata.annotations: Too long: may not be more than 262144 bytes" in error
    assert [each["kind"] for each in server.objects.values()] == ["Secret"]
    assert apply.kubectl_apply(server, big(300_000), server_side=True) == []
    assert len(server.objects) == 2


def test_applying_the_same_manifest_twice_changes_nothing(server: ApiServer) -> None:
    assert apply.kubectl_apply(server, big(10)) == []
    version = server.state.version
    assert apply.kubectl_apply(server, big(10)) == []
    assert server.state.version == version


def test_server_side_apply_conflicts_with_another_field_manager(server: ApiServer) -> None:
    path = "/api/v1/namespaces/ns/configmaps/c"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    server.request("PATCH", path, {"fieldManager": "one"}, body, apply.APPLY)
    other = {**body, "data": {"a": "2"}}
    with pytest.raises(Refused, match=r'conflict with "one": \.data\.a') as caught:
        server.request("PATCH", path, {"fieldManager": "two"}, other, apply.APPLY)
    assert caught.value.code == 409
    forced = {"fieldManager": "two", "force": "true"}
    assert server.request("PATCH", path, forced, other, apply.APPLY)[1]["data"] == {"a": "2"}


# Admission.


def test_pods_tolerate_lost_nodes_for_300_seconds_by_default(server: ApiServer) -> None:
    own = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    post(server, job(pod={"tolerations": [{**own, "tolerationSeconds": 20}]}))
    (its,) = server.of("pods")
    found = {x["key"].partition("/")[2]: x["tolerationSeconds"] for x in its["spec"]["tolerations"]}
    assert found == {"unreachable": 20, "not-ready": 300}


def test_gpu_quota_counts_running_pods(server: ApiServer) -> None:
    server.quotas = {"ns": {"requests.nvidia.com/gpu": "4"}}
    body = job(completions=3)
    (main,) = body["spec"]["template"]["spec"]["containers"]
    main["resources"] = {"limits": {"nvidia.com/gpu": "2"}}
    post(server, body)
    assert len(server.of("pods")) == 2
    event = server.of("events")[0]
    assert "exceeded quota: q, requested: requests.nvidia.com/gpu=2, used: " in event["message"]


# The Job controller.


def test_deleting_a_job_orphans_its_pods_by_default(server: ApiServer) -> None:
    post(server, job())
    server.request("DELETE", f"{JOBS}/j", {}, {})
    assert not server.of("jobs")
    assert phases(server) == ["Running"]


def test_failed_index_leaves_other_indexes_running(server: ApiServer, tmp_path: Path) -> None:
    """The Job ends once all indexes have ended, or maxFailedIndexes is exceeded."""
    command = (
        f"[ $JOB_COMPLETION_INDEX = 0 ] && exit 1; until [ -e {tmp_path}/go ]; do sleep .05; done"
    )
    post(server, job(command, completions=2, backoffLimitPerIndex=0))
    with until(lambda: server.of("jobs")[0]["status"].get("failedIndexes") == "0"):
        assert conditions(server) == {}
    (tmp_path / "go").touch()
    with until(lambda: "Failed" in conditions(server)):
        assert conditions(server)["Failed"] == "FailedIndexes"
    post(server, job(command.replace("go", "never"), "k", completions=2, backoffLimitPerIndex=0,
                     maxFailedIndexes=0))  # fmt: skip
    with until(lambda: "Failed" in conditions(server, "k")):
        assert conditions(server, "k")["Failed"] == "MaxFailedIndexesExceeded"


def test_job_whose_indexes_all_ended_fails_despite_its_success_policy(
    server: ApiServer, tmp_path: Path
) -> None:
    """The controller checks failed indexes before the success policy (syncJob)."""
    go = tmp_path / "go"
    command = f"[ $JOB_COMPLETION_INDEX = 0 ] && exit 1; until [ -e {go} ]; do sleep .05; done"
    rule = {"succeededIndexes": "0-1", "succeededCount": 1}
    post(server, job(command, completions=2, backoffLimitPerIndex=0,
                     successPolicy={"rules": [rule]}))  # fmt: skip
    with until(lambda: server.of("jobs")[0]["status"].get("failedIndexes") == "0"):
        assert conditions(server) == {}
    go.touch()
    with until(lambda: "Failed" in conditions(server)):
        assert conditions(server)["Failed"] == "FailedIndexes"


def test_failing_job_deletes_running_pods(server: ApiServer) -> None:
    """Logs are deleted with their pods. The Job has failed once all pods have ended."""
    codes = {"operator": "In", "values": [3]}
    policy = {"rules": [{"action": "FailJob", "onExitCodes": codes}]}
    command = "[ $JOB_COMPLETION_INDEX = 0 ] && exit 3; exec sleep 1000"
    post(server, job(command, completions=2, podFailurePolicy=policy))
    with until(lambda: "Failed" in conditions(server)):
        assert conditions(server)["FailureTarget"] == "PodFailurePolicy"
    (left,) = server.of("pods")
    assert left["metadata"]["name"].startswith("j-0-")


def test_job_fails_at_its_deadline_and_is_deleted_after_its_ttl(server: ApiServer) -> None:
    post(server, job(activeDeadlineSeconds=60, ttlSecondsAfterFinished=100))
    server.elapse(1)
    assert conditions(server) == {}
    server.elapse(59)
    with until(lambda: "Failed" in conditions(server)):
        assert conditions(server)["Failed"] == "DeadlineExceeded"
    server.elapse(101)
    assert not server.objects.keys() - {key for key in server.objects if key[1] == "events"}


def test_suspended_job_starts_its_pods_when_resumed(server: ApiServer) -> None:
    post(server, job(suspend=True))
    assert "Suspended" in conditions(server)
    assert not server.of("pods")
    patch = {"spec": {"suspend": False}}
    server.request("PATCH", f"{JOBS}/j", {}, patch, apply.MERGE)
    assert "Suspended" not in conditions(server)
    assert phases(server) == ["Running"]


def test_kueue_resumes_admitted_job_and_stops_deactivated_one(server: ApiServer) -> None:
    """kubernetes-sigs/kueue, pkg/controller/jobframework/reconciler.go."""
    server.queues = {"q"}
    queued = job()
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    post(server, queued)
    patch = {"spec": {"suspend": True}}
    server.request("PATCH", f"{JOBS}/j", {}, patch, apply.MERGE)
    assert [pod for pod in server.of("pods") if not is_terminating(pod)]
    (workload,) = server.of("workloads")
    path = f"/apis/kueue.x-k8s.io/v1beta1/namespaces/ns/workloads/{workload['metadata']['name']}"
    server.request("PATCH", path, {}, {"spec": {"active": False}}, apply.MERGE)
    assert not [pod for pod in server.of("pods") if not is_terminating(pod)]
    server.admit()
    assert "Suspended" in conditions(server)


def test_job_fails_one_second_after_its_time_limit_was_shortened(server: ApiServer) -> None:
    """pkg/controller/job/job_controller.go, updateJob; the limit isn't among the immutable fields
    in ValidateJobSpecUpdate.
    """
    post(server, job())
    patch = {"spec": {"activeDeadlineSeconds": 1}}
    server.request("PATCH", f"{JOBS}/j", {}, patch, apply.MERGE)
    with until(lambda: conditions(server).get("Failed") == "DeadlineExceeded"):
        assert not server.of("pods")


def test_pod_on_unresponsive_node_is_kept_for_300_seconds(server: ApiServer) -> None:
    post(server, job())
    server.kubelet.freeze(0, 299)
    assert not any(map(is_terminating, server.of("pods")))


@pytest.mark.parametrize(("policy", "count"), [("Failed", 1), ("TerminatingOrFailed", 2)])
def test_terminating_pod_is_replaced_according_to_replacement_policy(
    server: ApiServer, policy: str, count: int
) -> None:
    post(server, job(podReplacementPolicy=policy))
    server.kubelet.freeze(0, 300)
    assert len(server.of("pods")) == count
    assert sum(map(is_terminating, server.of("pods"))) == 1


# DNS.


@pytest.mark.parametrize(
    ("service", "parts", "resolves"),
    [
        (headless(), {"subdomain": "s"}, True),
        (headless(), {}, False),
        (headless("other"), {"subdomain": "s"}, False),
        (headless(selector={"app": "b"}), {"subdomain": "s"}, False),
        ({**headless(), "spec": {"selector": {"app": "a"}, "ports": [{"port": 1}]}},
         {"subdomain": "s"}, False),
    ],
    ids=["matching", "no subdomain", "different name", "different selector", "not headless"],
)  # fmt: skip
def test_pod_has_a_dns_name_only_with_subdomain_and_headless_service(
    server: ApiServer, service: Object, parts: Object, resolves: bool
) -> None:
    post(server, service)
    post(server, job(pod=parts))
    assert ("j-0.s" in dns.records(server.state, "ns")) == resolves


@pytest.mark.parametrize("publishes", [False, True])
def test_unready_pod_has_a_dns_name_only_if_service_publishes_it(
    server: ApiServer, publishes: bool
) -> None:
    post(server, headless(publishNotReadyAddresses=publishes))
    body = job(pod={"subdomain": "s"})
    body["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] = {"exec": {}}
    post(server, body)
    assert ("j-0.s" in dns.records(server.state, "ns")) == publishes


# Capabilities.


@pytest.mark.needs_setpriv
@pytest.mark.parametrize(("capabilities", "code"), [({}, 0), ({"drop": ["ALL"]}, 1)])
def test_root_without_capabilities_cannot_write_to_another_users_volume(
    server: ApiServer, tmp_path: Path, capabilities: Object, code: int
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o755)
    os.chown(volume, 1000, 1000)
    body = job(f"touch {volume}/file", backoffLimit=0)
    (main,) = body["spec"]["template"]["spec"]["containers"]
    main["securityContext"] = {"capabilities": capabilities}
    post(server, body)
    with until(lambda: all(map(is_over, server.of("pods")))):
        (its,) = server.of("pods")
    state = its["status"]["containerStatuses"][0]["state"]
    assert bool(state["terminated"]["exitCode"]) == bool(code)


# Volcano.


def phase(server: ApiServer, name: str = "v") -> str:
    with server.state.lock:
        return str(server.objects[("ns", "jobs.volcano", name)]["status"]["state"]["phase"])


def test_volcano_without_svc_plugin_creates_no_host_names(server: ApiServer) -> None:
    post(server, headless("v", selector={"volcano.sh/job-name": "v"}))
    post(server, volcano("exec sleep 1000"), VOLCANO)
    assert not any("v-t-0-0.v" in x for x in dns.records(server.state, "ns"))


def test_volcano_starts_failing_job_max_retry_times(server: ApiServer, tmp_path: Path) -> None:
    """A maxRetry of 0 means 3."""
    policy = [{"event": "PodFailed", "action": "RestartJob"}]
    command = f"echo x >> {tmp_path}/tries; exit 1"
    post(server, volcano(command, maxRetry=0, policies=policy), VOLCANO)
    with until(lambda: phase(server) == "Failed"):
        assert (tmp_path / "tries").read_text().split() == ["x"] * 3


def test_volcano_distinguishes_eviction_from_failure(server: ApiServer) -> None:
    """A pod that is merely deleted, such as one on a lost node, has not failed."""
    policy = [{"event": "PodEvicted", "action": "TerminateJob"}]
    post(server, volcano("exec sleep 1000", "exec sleep 1000", policies=policy), VOLCANO)
    with until(lambda: phase(server) == "Running"):
        server.evict(0)
    with until(lambda: phase(server) == "Terminated"):
        pass


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"policies": [{"event": "PodLost", "action": "RestartJob"}]}, "invalid policy event"),
        ({"policies": [{"event": "PodFailed", "action": "Retry"}]}, "invalid policy action"),
        ({"plugins": {"dns": []}}, "unable to find job plugin: dns"),
        ({"minAvailable": 3}, "should not be greater than total replicas"),
        ({"queue": "none"}, "unable to find job queue"),
    ],
)
def test_invalid_volcano_job_is_rejected(server: ApiServer, spec: Object, said: str) -> None:
    with pytest.raises(Refused, match=said):
        post(server, volcano("true", **spec), VOLCANO)


# TorchX.

TORCHRUN = f"""#!{sys.executable}
import socket, sys, time
at = sys.argv[sys.argv.index("--rdzv_endpoint") + 1].rpartition(":")
nodes = int(sys.argv[sys.argv.index("--nnodes") + 1])
if at[0] == "localhost":
    server = socket.create_server(("", int(at[2])))
    for _ in range(nodes - 1):
        server.accept()[0].sendall(b"met")
else:
    end = time.monotonic() + {LIMIT_S}
    while True:
        try:
            with socket.create_connection((at[0], int(at[2]))) as other:
                assert other.recv(3) == b"met"
                break
        except OSError:
            assert time.monotonic() < end, at
            time.sleep(0.05)
print("node met the others")
"""
"""What torchrun does first: rank 0's node listens, and the others connect to it by name."""


@pytest.mark.needs_hosts
def test_torchx_pods_find_each_other_by_host_name(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TorchX's Job uses Volcano's plug-in svc for host names, and reads VC_TRAIN_0_HOSTS."""
    (tmp_path / "torchrun").write_text(TORCHRUN)
    (tmp_path / "torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    name = "train-k7xq2w"
    with Lab(hosts=[f"{name}-train-{number}-0.{name}" for number in range(3)]) as lab:
        server.lab = lab
        assert apply.kubectl_apply(server, TORCHX.read_text()) == []
        end = time.monotonic() + LIMIT_S
        while phase(server, name) not in ("Completed", "Failed"):
            logs = [path.read_text() for path in tmp_path.glob("*.log")]
            assert time.monotonic() < end, logs
            time.sleep(0.05)
        logs = [path.read_text() for path in tmp_path.glob("*.log")]
        assert phase(server, name) == "Completed", logs
    assert logs == ["node met the others\n"] * 3
