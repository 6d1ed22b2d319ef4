"""What manifests need on a real cluster beyond the schemas, each with its source."""

import json
import os
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from relight.base.errors import UsageError
from relight.flags.rdzv_conf import Conf
from relight.flags.spec import DEFAULT_GRACE_S
from relight.job import components, launcher_file, macros
from relight.job.app import AppDef, BindMount, DeviceMount, Role
from relight.job.components import dist
from relight.schedulers.kubernetes import request, run_times
from relight.schedulers.kubernetes import scheduler as kubernetes

pytestmark = pytest.mark.needs_kubernetes
every_kind = pytest.mark.parametrize("kind", ["job", "jobset", "volcano", "trainjob"])
own_pods = pytest.mark.parametrize("kind", ["job", "jobset", "volcano"])
ANNOTATIONS_LIMIT = 256 << 10
"""Maximum total size of an object's annotations: TotalAnnotationSizeLimitB in apimachinery's
pkg/api/validation/objectmeta.go.
"""


def ddp(**options: Any) -> AppDef:
    return dist.ddp(**{"script": "train.py", "image": "img:1", "j": "2x8", **options})


def made(app: AppDef | None = None, **cfg: Any) -> list[dict[str, Any]]:
    return request.objects(app or ddp(), cfg, "train-x7abc", "ns", "secret")[1]


def maker(app: AppDef | None = None, **cfg: Any) -> dict[str, Any]:
    return made(app, **cfg)[-1]


def pod(app: AppDef | None = None, **cfg: Any) -> dict[str, Any]:
    """Return the first role's pod."""
    spec = maker(app, **cfg)["spec"]
    if "replicatedJobs" in spec:
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    elif "runtimePatches" in spec:
        (patch,) = spec["runtimePatches"]
        (step,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        spec = step["template"]["spec"]
    elif "tasks" in spec:
        spec = spec["tasks"][0]
    found: dict[str, Any] = spec["template"]["spec"]
    return found


def main_role(**parts: Any) -> AppDef:
    return AppDef("job", [Role("main", "img", entrypoint="true", **parts)])


# Volcano


def test_volcano_gives_pods_hostnames_and_a_service() -> None:
    """Without the svc plug-in, Volcano doesn't set `spec.hostname`, and a Service only resolves
    pods that have one (OnPodCreate in pkg/controllers/job/plugins/svc/svc.go).
    """
    spec = maker(kind="volcano")["spec"]
    assert "--publish-not-ready-addresses" in spec["plugins"]["svc"]
    assert "Service" not in [each["kind"] for each in made(kind="volcano")]  # the plug-in's
    hosts = str(spec["tasks"][0]["template"]["spec"]["containers"][0]["env"])
    name = "train-x7abc-train-0"  # PodNameFmt in pkg/controllers/job/helpers: job, task, index
    assert f"{name}.train-x7abc" in hosts
    assert spec["tasks"][0]["template"]["spec"]["subdomain"] == "train-x7abc"


def test_volcano_recreates_deleted_pod() -> None:
    """The kubelet first reports a deleted pod as failed, and the first matching policy applies
    (applyPolicies in pkg/controllers/job/job_controller_util.go).
    """
    *again, fails = maker(kind="volcano")["spec"]["policies"]
    assert again == [{"exitCode": code, "action": "RestartPod"} for code in (75, 143)]
    assert fails == {"event": "PodFailed", "action": "TerminateJob"}


def test_volcano_restarts_whole_torchrun_job_after_eviction() -> None:
    """TorchX does the same (RETRY_POLICIES), as torchrun can't readmit a pod after its restarts."""
    events = {"PodEvicted": "RestartJob", "PodFailed": "RestartJob"}
    app = main_role(args=["torchrun train.py"], num_replicas=2, max_retries=3)
    policies = maker(app, kind="volcano")["spec"]["policies"]
    assert {each["event"]: each["action"] for each in policies} == events


@pytest.mark.parametrize(("max_retries", "restarts"), [(1, 1), (3, 3)])
def test_volcano_limits_restarts_to_max_retries(max_retries: int, restarts: int) -> None:
    """A Job that has been restarted maxRetry times has failed (restartingUpdateStatus in
    pkg/controllers/job/state/restarting.go).
    """
    spec = maker(ddp(max_retries=max_retries), kind="volcano")["spec"]
    assert spec["policies"][-1]["action"] == "RestartJob"
    assert spec["maxRetry"] - 1 == restarts


def test_volcano_max_retry_is_never_zero() -> None:
    """Volcano's webhook would change 0 to 3 (patchDefaultMaxRetry in
    pkg/webhooks/admission/jobs/mutate).
    """
    assert maker(kind="volcano")["spec"]["maxRetry"] > 0


def test_volcano_does_not_complete_job_because_one_role_succeeded() -> None:
    """The field minSuccess counts the pods of all tasks (runningState in
    pkg/controllers/job/state/running.go), so three readers would end the training.
    """
    trainer = Role("trainer", "img", entrypoint="true", num_replicas=2)
    reader = Role("reader", "img", entrypoint="true", num_replicas=3, min_replicas=1)
    spec = maker(AppDef("job", [trainer, reader]), kind="volcano")["spec"]
    assert "minSuccess" not in spec
    assert [task["minAvailable"] for task in spec["tasks"]] == [2, 1]


# torchrun in the pods


@every_kind
@pytest.mark.parametrize(("replica", "host"), [("0", "localhost"), ("1", "elsewhere")])
def test_torchrun_listens_on_replica_0_before_its_name_is_in_the_dns(
    kind: str, replica: str, host: str
) -> None:
    """At its start, torchrun compares the endpoint with its own addresses, and only then
    (_matches_machine_hostname in torch/distributed/elastic/rendezvous/utils.py).
    """
    app = main_role(args=["-c", f"echo $${{{macros.rank0_env}:=none}}"], num_replicas=2)
    app.roles[0].entrypoint = "sh"
    spec = maker(app, kind=kind)["spec"]
    words = spec["trainer"]["command"] if kind == "trainjob" else (
        pod(app, kind=kind)["containers"][0]["command"]
    )  # fmt: skip
    variables = {"RELIGHT_REPLICA_ID": replica, "RELIGHT_RANK0_HOST": "elsewhere", **os.environ}
    said = subprocess.run(words, env=variables, stdout=subprocess.PIPE, check=True).stdout
    assert said.decode() == f"{host}\n"


def test_image_without_shell_gets_its_own_command() -> None:
    app = main_role(args=["--master-env", macros.rank0_env], num_replicas=2)
    app.roles[0].entrypoint = "/server"
    assert pod(app)["containers"][0]["command"] == ["/server", "--master-env", "RELIGHT_RANK0_HOST"]


def test_replica_0_keeps_rank0_host_of_the_user() -> None:
    app = main_role(args=["-c", f"echo {macros.rank0_env}"], env={"TORCHX_RANK0_HOST": "10.0.0.7"})
    app.roles[0].entrypoint = "/bin/bash"
    script = pod(app)["containers"][0]["command"][2]
    assert "export RELIGHT_RANK0_HOST=localhost;" in script


def test_ddp_with_torchrun_names_localhost() -> None:
    token = components.launcher.set(components.TORCHRUN)
    try:
        app = ddp()
    finally:
        components.launcher.reset(token)
    assert "_RANK0_HOST=localhost" in pod(app)["containers"][0]["command"][2]


# The launcher


def test_jobs_in_same_namespace_share_launcher_config_maps() -> None:
    first, second = (request.objects(ddp(), {}, name, "ns", "secret")[1] for name in ("a-1", "b-2"))
    launcher = [each for each in first if each["kind"] == "ConfigMap"]
    assert launcher == [each for each in second if each["kind"] == "ConfigMap"]
    shared = [each["metadata"]["name"] for each in launcher]
    assert len(set(shared)) == len(shared) > 1
    for each in launcher:
        assert each["immutable"] is True
        assert each["metadata"]["name"].startswith(f"relight-launcher-{launcher_file.digest()}-")
        assert "relight/app-id" not in each["metadata"]["labels"]  # outlives the job
    for objects in (first, second):
        volumes = objects[-1]["spec"]["template"]["spec"]["volumes"]
        (projected,) = (each["projected"] for each in volumes if "projected" in each)
        assert [each["configMap"]["name"] for each in projected["sources"]] == shared


@every_kind
def test_all_objects_fit_into_kubectl_annotation(kind: str) -> None:
    """`kubectl apply` stores each object in an annotation, except with --server-side."""
    for each in made(kind=kind):
        assert len(json.dumps(each)) < ANNOTATIONS_LIMIT


# Permissions


@own_pods
def test_container_keeps_default_permissions_of_container_runtime(kind: str) -> None:
    """This is as in TorchX: without CAP_DAC_OVERRIDE, root can't write to another user's volume."""
    found = pod(kind=kind)
    assert "securityContext" not in found
    assert "securityContext" not in found["containers"][0]


@own_pods
def test_requested_capabilities_are_added_to_container(kind: str) -> None:
    (main,) = pod(kind=kind, capabilities=["IPC_LOCK", "cap_sys_ptrace"])["containers"]
    assert main["securityContext"] == {"capabilities": {"add": ["IPC_LOCK", "SYS_PTRACE"]}}


@every_kind
def test_pods_get_no_api_server_token(kind: str) -> None:
    """If the user names a service account, that account decides."""
    if kind == "trainjob":  # its runtime decides this
        assert "automountServiceAccountToken" not in pod(kind=kind)
        return
    assert pod(kind=kind)["automountServiceAccountToken"] is False
    assert "automountServiceAccountToken" not in pod(kind=kind, service_account="sa")


@pytest.mark.parametrize(
    ("app", "cfg", "said"),
    [
        (main_role(), {"privileged": True}, "forbids privileged containers"),
        (main_role(mounts=[DeviceMount("/dev/a", "/dev/a")]), {}, "forbids privileged containers"),
        (main_role(mounts=[BindMount("/a", "/a")]), {}, "forbids directories of the node"),
        (main_role(), {"user": 0}, r"forbids root \(user=0\)"),
        (main_role(), {"capabilities": ["IPC_LOCK"]}, r"NET_BIND_SERVICE \(IPC_LOCK\)"),
    ],
)
def test_options_forbidden_by_restricted_profile_are_rejected(
    app: AppDef, cfg: dict[str, Any], said: str
) -> None:
    made(app, **cfg)
    with pytest.raises(UsageError, match=said):
        made(app, restricted=True, **cfg)


def test_invalid_capability_is_rejected() -> None:
    with pytest.raises(UsageError, match="IPC LOCK is not a capability"):
        made(capabilities=["ipc lock"])


@every_kind
def test_network_policy_admits_only_pods_of_same_job(kind: str) -> None:
    (found,) = (x for x in made(kind=kind, network_policy=True) if x["kind"] == "NetworkPolicy")
    of_job = {"podSelector": {"matchLabels": {"relight/app-id": "train-x7abc"}}}
    assert found["spec"] == {
        **of_job, "policyTypes": ["Ingress"], "ingress": [{"from": [of_job]}],
    }  # fmt: skip
    assert "NetworkPolicy" not in [each["kind"] for each in made(kind=kind)]


def test_network_policy_conforms_to_schema() -> None:
    import kubernetes_validate

    for each in made(network_policy=True, exclude=["n1"], capabilities=["IPC_LOCK"]):
        kubernetes_validate.validate(each, "1.33", strict=True)


# Job end and failed pods


def test_elastic_job_tolerates_failed_pods_down_to_its_minimum_size() -> None:
    """The Job fails if more than maxFailedIndexes indexes have failed (JobSpec, batch/v1)."""
    assert maker(ddp(j="2:5x8"))["spec"]["maxFailedIndexes"] == 3
    assert maker(ddp(j="5x8"))["spec"]["maxFailedIndexes"] == 0


def test_time_limit_applies_to_whole_job_not_each_pod() -> None:
    """A pod's own limit would start over when the pod is recreated after exit code 75."""
    for kind in ("job", "jobset"):
        assert "activeDeadlineSeconds" not in pod(kind=kind, timeout=60)
    assert maker(timeout=60)["spec"]["activeDeadlineSeconds"] == 3600
    (job,) = maker(timeout=60, kind="jobset")["spec"]["replicatedJobs"]
    assert job["template"]["spec"]["activeDeadlineSeconds"] == 3600
    assert pod(timeout=60, kind="volcano")["activeDeadlineSeconds"] == 3600  # its only limit


def test_shared_objects_are_owned_by_all_jobs_of_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first Job may end and be removed while others are running. An object is deleted with the
    last of its owners (attemptToDeleteItem in pkg/controller/garbagecollector).
    """
    patched: dict[str, list[str]] = {}

    def patch(_client: Any, _kind: Any, each: Any, change: Any) -> None:
        names = [owner["name"] for owner in change[0]["value"]]
        patched[f"{each['kind']} {each['metadata']['name']}"] = names

    monkeypatch.setattr(kubernetes.store, "patch", patch)
    role = ddp().roles[0]
    objects = made(AppDef("job", [replace(role, name=name) for name in ("a", "b")]))
    for number, each in enumerate(objects):
        each["metadata"]["uid"] = str(number)
    kubernetes._adopt(None, objects)
    jobs = ["train-x7abc-a", "train-x7abc-b"]
    assert patched == {"Service train-x7abc": jobs, "Secret train-x7abc-token": jobs}


@own_pods
def test_finished_job_is_removed_after_ttl(kind: str) -> None:
    scheduler = kubernetes.Kubernetes()
    week = next(each.default for each in scheduler.options if each.name == "ttl")
    assert week == 7 * 24 * 3600
    assert maker(kind=kind, ttl=week)["spec"]["ttlSecondsAfterFinished"] == week
    assert "ttlSecondsAfterFinished" not in maker(kind=kind, ttl=-1)["spec"]


@pytest.mark.parametrize(
    ("app", "seconds"),
    [
        (ddp(), 40),
        (ddp(env={"PET_SHUTDOWN_TIMEOUT": "300"}), 310),
        (main_role(args=["relight run --shutdown-timeout=90.5 a.py"]), 101),
        (ddp(rdzv_conf="checkpoint_timeout=600"), 610),
        (main_role(args=["relight run --membership-change=at-checkpoint a.py"]), 130),
    ],
)
def test_pod_grace_period_gives_workers_time_to_checkpoint(app: AppDef, seconds: int) -> None:
    assert pod(app)["terminationGracePeriodSeconds"] == seconds


def test_assumed_timeouts_match_defaults_of_relight_run() -> None:
    role = main_role().roles[0]
    at_checkpoint = main_role(args=["--membership-change=at-checkpoint"]).roles[0]
    assert run_times.join_timeout_s(role) == Conf().join_timeout
    assert run_times.grace_s(role) > DEFAULT_GRACE_S
    assert run_times.grace_s(at_checkpoint) > Conf().checkpoint_timeout


@every_kind
def test_pod_on_lost_node_is_replaced_before_join_timeout(kind: str) -> None:
    """By default, Kubernetes leaves it there for 300 s
    (plugin/pkg/admission/defaulttolerationseconds).
    """
    assert "tolerations" not in pod(kind=kind)
    for each in pod(ddp(rdzv_conf="join_timeout=120"), kind=kind)["tolerations"]:
        assert (each["effect"], each["tolerationSeconds"]) == ("NoExecute", 60)


def test_user_defined_toleration_is_kept() -> None:
    lost = "node.kubernetes.io/unreachable"
    found = pod(ddp(rdzv_conf="join_timeout=120"), tolerations=[f"{lost}:NoExecute"])
    keys = [each["key"] for each in found["tolerations"]]
    assert keys == [lost, "node.kubernetes.io/not-ready"]
    assert "tolerationSeconds" not in found["tolerations"][0]


# Where pods run


@every_kind
def test_no_pod_is_scheduled_on_excluded_node(kind: str) -> None:
    """Nodes are matched by the name shown in `relight status`, not by a label. Each field takes
    one value (validateNodeFieldSelectorRequirement in pkg/apis/core/validation).
    """
    affinity = pod(kind=kind, exclude=["n1", "n2"], topology="zone")["affinity"]
    assert "podAffinity" in affinity
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    assert term["matchFields"] == [
        {"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("n1", "n2")
    ]


@every_kind
def test_ranks_can_be_ordered_by_node_labels(kind: str) -> None:
    """The kubelet joins the labels' values, starting with the widest domain, before it starts the
    agent.
    """
    labels = ["topology.kubernetes.io/zone", "example.com/rack"]
    if kind == "trainjob":
        env = maker(kind=kind, rank_order=labels)["spec"]["trainer"]["env"]
    else:
        env = pod(kind=kind, rank_order=labels)["containers"][0]["env"]
    found = {each["name"]: each for each in env}
    assert list(found)[:4] == [
        "RELIGHT_TOPOLOGY_0", "RELIGHT_TOPOLOGY_1", "RELIGHT_TOPOLOGY", "RELIGHT_RANK_ORDER"
    ]  # fmt: skip
    for number, label in enumerate(labels):
        source = found[f"RELIGHT_TOPOLOGY_{number}"]["valueFrom"]
        assert source == {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}
    assert found["RELIGHT_TOPOLOGY"]["value"] == "$(RELIGHT_TOPOLOGY_0).$(RELIGHT_TOPOLOGY_1)"
    assert found["RELIGHT_RANK_ORDER"]["value"] == "topology"


def test_agent_gets_node_name_only_if_bad_nodes_are_recorded() -> None:
    app = ddp(env={"RELIGHT_BAD_NODES": "/shared/bad"})
    names = [each for each in pod(app)["containers"][0]["env"] if "NODE" in each["name"]]
    assert {"fieldRef": {"fieldPath": "spec.nodeName"}} in [each.get("valueFrom") for each in names]
    assert "spec.nodeName" not in str(pod())


@pytest.mark.parametrize(("j", "members"), [("4x8", 4), ("2:4x8", 2)])
def test_coscheduling_starts_all_pods_together(j: str, members: int) -> None:
    *_, group, job = made(ddp(j=j), gang=True, scheduler="coscheduler")
    assert (group["apiVersion"], group["kind"]) == ("scheduling.x-k8s.io/v1alpha1", "PodGroup")
    assert group["spec"] == {"minMember": members}
    template = job["spec"]["template"]
    assert template["spec"]["schedulerName"] == "coscheduler"
    label = template["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"]
    assert label == group["metadata"]["name"]


def test_volcano_scheduler_starts_all_pods_of_plain_job_together() -> None:
    """It creates the group from an annotation on the Job (getMinMemberFromUpperRes in
    pkg/controllers/podgroup).
    """
    key, cfg = "scheduling.volcano.sh/group-min-member", {"gang": True, "scheduler": "volcano"}
    job = maker(ddp(j="2:4x8"), **cfg)
    assert job["metadata"]["annotations"] == {key: "2"}
    assert job["spec"]["template"]["spec"]["schedulerName"] == "volcano"
    (job,) = maker(ddp(j="2:4x8"), **cfg, kind="jobset")["spec"]["replicatedJobs"]
    assert job["template"]["metadata"]["annotations"] == {key: "2"}
    assert "PodGroup" not in [each["kind"] for each in made(**cfg)]
    assert "PodGroup" not in [each["kind"] for each in made(gang=True, kind="volcano")]


def test_trainjob_rejects_options_determined_by_its_runtime() -> None:
    for cfg in ({"gang": True}, {"scheduler": "volcano"}):
        with pytest.raises(UsageError, match="is not supported for TrainJob"):
            made(kind="trainjob", **cfg)
