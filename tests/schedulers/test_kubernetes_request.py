"""A job's Kubernetes objects: valid for the schemas, and accepted by a server."""

import base64
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import UsageError
from relight.base.values import parse_endpoint
from relight.job import launcher_file
from relight.job.app import AppDef, AppState, BindMount, DeviceMount, Resource, Role, VolumeMount
from relight.job.components import dist
from relight.job.overlays import JOIN, set_overlay
from relight.schedulers.api import ReplicaStatus
from relight.schedulers.kubernetes import pod_security, request
from relight.schedulers.kubernetes import scheduler as kubernetes
from relight.schedulers.kubernetes.kinds import KINDS

pytestmark = pytest.mark.needs_kubernetes
VERSION = "1.33"
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def objects(app: AppDef, app_id: str = "train-x7abc", **cfg: Any) -> list[dict[str, Any]]:
    return request.objects(app, cfg, app_id, "ns", "secret")[1]


def ddp(*words: str, **options: Any) -> AppDef:
    return dist.ddp(*words, **{"script": "train.py", "image": "img:1", "j": "2x8", **options})


def find_object(kind: str, made: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (each for each in made if each["kind"] == kind)
    return found


def container(made: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = find_object("Job", made)["spec"]["template"]["spec"]["containers"][0]
    return found


def variables(made: list[dict[str, Any]]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(made)["env"] if "value" in each}


def check(each: dict[str, Any]) -> None:
    """Check an object against the schemas and a server's further rules."""
    if "." not in each["apiVersion"].partition("/")[0]:
        import kubernetes_validate

        kubernetes_validate.validate(each, VERSION, strict=True)
    meta = each["metadata"]
    assert DNS_LABEL.fullmatch(meta["name"])
    assert all(LABEL_VALUE.fullmatch(value) for value in meta["labels"].values())
    if each["kind"] == "ConfigMap":
        assert sum(len(base64.b64decode(x)) for x in each["binaryData"].values()) < 1 << 20
    if (each["apiVersion"], each["kind"]) == ("batch/v1", "Job"):
        check_job(each)


def check_job(job: dict[str, Any]) -> None:
    """Check a Job as a server does."""
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert len(f"{job['metadata']['name']}-{spec['completions'] - 1}-00000") <= 63
    assert spec["completionMode"] == "Indexed"
    assert spec["podReplacementPolicy"] == "Failed"  # required by podFailurePolicy
    assert pod["restartPolicy"] == "Never"  # required by podFailurePolicy
    assert "backoffLimitPerIndex" in spec  # tells pods their number of earlier attempts
    for rule in spec["podFailurePolicy"]["rules"]:
        values = rule.get("onExitCodes", {}).get("values", [])
        assert values == sorted(set(values)) and len(values) <= 255
        assert rule["action"] in ("Ignore", "FailJob", "Count", "FailIndex")
    check_pod(pod)


def check_pod(pod: dict[str, Any]) -> None:
    """Check a pod spec as a server does."""
    names = [each["name"] for each in pod["volumes"]]
    assert len(names) == len(set(names))
    for its in pod["containers"]:
        assert {mount["name"] for mount in its["volumeMounts"]} <= set(names)
        paths = [mount["mountPath"] for mount in its["volumeMounts"]]
        assert len(paths) == len(set(paths))
        assert all(re.fullmatch(r"[a-z]([-a-z0-9]{0,13}[a-z0-9])?", p["name"])
                   for p in its.get("ports", ()))  # fmt: skip
        assert all(re.fullmatch(r"[-._a-zA-Z][-._a-zA-Z0-9]*", v["name"]) for v in its["env"])
        limits, requests = its["resources"].get("limits", {}), its["resources"].get("requests", {})
        for name in (limits.keys() | requests.keys()) - {"cpu", "memory"}:
            assert limits[name] == requests[name]  # required for extended resources


APPS = {
    "ddp": (ddp(), {}),
    "elastic": (ddp(j="2:5x8", max_retries=0), {}),
    "retries": (ddp(max_retries=3), {}),
    "one": (ddp(j="1x2"), {}),
    "all options": (
        ddp(),
        {
            "queue": "team-a",
            "service_account": "sa",
            "image_secret": "pull",
            "image_pull_policy": "Always",
            "priority_class": "high",
            "node_selector": {"gpu": "h100"},
            "tolerations": ["nvidia.com/gpu", "team=a:NoSchedule", "spot:NoExecute"],
            "topology": "topology.kubernetes.io/zone",
            "shm_size": "8Gi",
            "user": 1000,
        },
    ),
    "roles": (
        AppDef(
            "two roles_",
            [
                Role(
                    "Train_er", "img", entrypoint="relight", args=["run", "a.py"], num_replicas=3,
                    resource=Resource(8, 4, 4096, {"node.kubernetes.io/instance-type": "p4d"},
                                      {"vpc.amazonaws.com/efa": 4}),
                    port_map={"c10d": 29500},
                ),
                Role("reader", "img", entrypoint="python", args=["read.py"],
                     mounts=[BindMount("/data", "/d", True), VolumeMount("claim", "/v"),
                             DeviceMount("/dev/kfd", "/dev/kfd")]),
            ],
        ),
        {"privileged": False},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", APPS)
def test_every_object_validates_against_schema(name: str) -> None:
    app, cfg = APPS[name]
    for each in objects(app, **cfg):
        check(each)


@pytest.mark.parametrize("name", APPS)
def test_dry_run_output_is_yaml_with_all_objects(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The YAML has all objects, unchanged."""
    import yaml

    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    app, cfg = APPS[name]
    made = kubernetes.Kubernetes().render(app, cfg, "train-x7abc")
    assert list(yaml.load_all(made.text, yaml.CSafeLoader)) == made.body["objects"]


def test_arguments_and_environment_variables_reach_program_unchanged() -> None:
    """The kubelet expands `$(NAME)` and changes `$$` to `$`."""
    text = "$(hostname) $$ $$(x) $HOME ${x} $$$ \\ '"
    role = Role("a", "i", entrypoint="echo", args=[text], env={"A": text})
    made = objects(AppDef("a", [role]))
    expand = re.compile(r"\$(?:\$|\(([\w.-]+)\))")
    for found in (container(made)["command"][1], variables(made)["A"]):
        assert expand.sub(lambda m: "$" if m[0] == "$$" else f"<{m[1]}>", found) == text


def test_kubelet_substitutes_replica_id() -> None:
    role = Role("a", "i", entrypoint="echo", args=["n${replica_id} $(x)"], num_replicas=2)
    made = objects(AppDef("a", [role]))
    assert container(made)["command"] == ["echo", "n$(RELIGHT_REPLICA_ID) $$(x)"]
    (source,) = (x for x in container(made)["env"] if x["name"] == "RELIGHT_REPLICA_ID")
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert source["valueFrom"]["fieldRef"]["fieldPath"] == path


@pytest.mark.parametrize(("j", "hosts"), [("2x8", 2), ("5x8", 3), ("2:9x8", 3)])
def test_rendezvous_endpoint_survives_loss_of_first_pod(j: str, hosts: int) -> None:
    """It lists several replicas, and the agents elect one as the coordinator."""
    made = objects(ddp(j=j))
    shell = container(made)["command"][-1].replace("relight run ", "echo ")
    done = subprocess.run(
        ["bash", "-c", shell],
        env={"RELIGHT_RANK0_HOST": variables(made)["RELIGHT_RANK0_HOST"]},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.split()
    endpoint = parse_endpoint(words[words.index("--rdzv_endpoint") + 1])
    every = [(each.host, each.port) for each in (endpoint, *endpoint.others)]
    assert every == [(f"train-x7abc-{n}.train-x7abc", 29500) for n in range(hosts)]


def test_torchrun_endpoint_names_only_one_host() -> None:
    role = Role("a", "i", entrypoint="bash", args=["-c", "torchrun a.py"], num_replicas=3,
                port_map={"c10d": 29500})  # fmt: skip
    made = objects(AppDef("a", [role]))
    assert variables(made)["RELIGHT_RANK0_HOST"] == "train-x7abc-0.train-x7abc"
    assert "ConfigMap" not in {each["kind"] for each in made}


def test_launcher_is_shipped_in_config_maps() -> None:
    shipped = [
        {name: base64.b64decode(text) for name, text in each["binaryData"].items()}
        for each in objects(ddp())
        if each["kind"] == "ConfigMap"
    ]
    assert shipped == list(launcher_file.split(190_000))
    installed = ddp()
    installed.roles[0].env[launcher_file.VARIABLE] = "installed"
    assert "ConfigMap" not in {each["kind"] for each in objects(installed)}


def test_preemption_is_ignored_but_program_error_ends_job() -> None:
    spec = find_object("Job", objects(ddp()))["spec"]
    lost, preempted, fails = spec["podFailurePolicy"]["rules"]
    assert (lost["action"], preempted["action"]) == ("Ignore", "Ignore")
    assert lost["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert preempted["onExitCodes"]["values"] == [75]
    assert fails["action"] == "FailJob"
    assert {0, 3, 137, 143} <= set(fails["onExitCodes"]["values"])
    assert 1 not in fails["onExitCodes"]["values"]
    spec = find_object("Job", objects(ddp(max_retries=2)))["spec"]
    assert spec["backoffLimitPerIndex"] == 2
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["Ignore", "Ignore"]


def test_elastic_role_succeeds_with_min_replicas() -> None:
    spec = find_object("Job", objects(ddp(j="2:5x8")))["spec"]
    assert (spec["completions"], spec["parallelism"]) == (5, 5)
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0-4", "succeededCount": 2}]}
    assert "successPolicy" not in find_object("Job", objects(ddp(j="5x8")))["spec"]


def test_failed_index_does_not_turn_success_of_elastic_role_into_failure() -> None:
    """The Job controller sets the reason FailedIndexes although the success policy is met."""
    job = find_object("Job", objects(ddp(j="2:3x8")))
    failed = {"type": "Failed", "status": "True", "reason": "FailedIndexes", "message": "x"}
    job["status"] = {"succeeded": 2, "failedIndexes": "2", "conditions": [failed]}
    assert KINDS["job"].verdict(job, ()) == (AppState.SUCCEEDED, "")
    failed["reason"] = "PodFailurePolicy"
    assert KINDS["job"].verdict(job, ()) == (AppState.FAILED, "x")
    failed["reason"], job["status"]["succeeded"] = "FailedIndexes", 1
    assert KINDS["job"].verdict(job, ()) == (AppState.FAILED, "x")
    rigid = find_object("Job", objects(ddp(j="3x8")))
    rigid["status"] = {**job["status"], "succeeded": 2}
    assert KINDS["job"].verdict(rigid, ()) == (AppState.FAILED, "x")


def test_failed_index_does_not_turn_success_of_elastic_jobset_into_failure() -> None:
    """The failure policy of a JobSet can't ignore a failed Job."""
    jobset = find_object("JobSet", objects(ddp(j="2:3x8"), kind="jobset"))
    failed = {"type": "Failed", "status": "True", "reason": "FailedJobs", "message": "x"}
    jobset["status"] = {"conditions": [failed]}
    role = next(iter(KINDS["jobset"].roles(jobset)))
    ended = [
        ReplicaStatus(role, number, state)
        for number, state in enumerate((AppState.SUCCEEDED, AppState.SUCCEEDED, AppState.FAILED))
    ]
    assert KINDS["jobset"].verdict(jobset, ended) == (AppState.SUCCEEDED, "")
    assert KINDS["jobset"].verdict(jobset, ended[1:]) == (AppState.FAILED, "x")
    rigid = find_object("JobSet", objects(ddp(j="3x8"), kind="jobset"))
    assert KINDS["jobset"].verdict({**rigid, "status": jobset["status"]}, ended)[1] == "x"


@pytest.mark.parametrize(
    ("join_timeout", "tries"),
    [("", 6), ("600", 6), ("60", 3), ("5", 3), ("3600", 11), ("1" + "0" * 400, 3339)],
)
def test_pods_of_elastic_role_are_recreated_until_the_join_timeout(
    join_timeout: str, tries: int
) -> None:
    """The delays of the Job controller are 10 s, 20 s, 40 s ... and 10 minutes at most."""
    app = ddp(j="2:5x8")
    if join_timeout:
        app.roles[0].env["PET_RDZV_CONF"] = f"join_timeout={join_timeout}"
    assert find_object("Job", objects(app))["spec"]["backoffLimitPerIndex"] == tries
    assert find_object("Job", objects(ddp(j="5x8")))["spec"]["backoffLimitPerIndex"] == 3


def test_unfit_pod_of_elastic_volcano_job_is_recreated_after_a_delay() -> None:
    """Each time uses up a retry, and the pod may be scheduled to the same node again."""
    volcano = find_object("Job", objects(ddp(j="2:3x8"), kind="volcano"))["spec"]
    container = volcano["tasks"][0]["template"]["spec"]["containers"][0]
    code = next(x["value"] for x in container["env"] if x["name"] == "RELIGHT_UNFIT_EXIT_CODE")
    policy = {"exitCode": int(code), "action": "RestartPod", "timeout": "5m"}
    assert policy in volcano["policies"]
    rigid = find_object("Job", objects(ddp(j="3x8"), kind="volcano"))["spec"]
    assert not [each for each in rigid["policies"] if "timeout" in each]


def test_only_unfit_pod_of_elastic_role_has_its_own_exit_code() -> None:
    assert variables(objects(ddp(j="2:3x8")))["RELIGHT_UNFIT_EXIT_CODE"] == "75"
    assert "RELIGHT_UNFIT_EXIT_CODE" not in variables(objects(ddp(j="3x8")))


def test_pods_pass_restricted_pod_security_standard() -> None:
    """The user is the image's or `user`."""
    made = objects(ddp(), user=1000, fs_group=2000, restricted=True)
    pod = find_object("Job", made)["spec"]["template"]["spec"]
    assert pod["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 1000, "runAsNonRoot": True,
        "fsGroup": 2000,
    }  # fmt: skip
    assert not list(pod_security.violations({"spec": pod}))
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    kinds = {key for volume in pod["volumes"] for key in volume} - {"name"}
    assert kinds <= {"projected", "emptyDir", "secret", "persistentVolumeClaim"}


@pytest.mark.parametrize("app_id", ["x" * 80 + "-abc123", "1st_Job-abc123", "ü-abc123"])
def test_object_names_are_valid_and_unique(app_id: str) -> None:
    for each in objects(ddp(j="12x8"), app_id):
        check(each)
        if each["kind"] != "ConfigMap":  # shared by all jobs
            assert "abc123" in each["metadata"]["name"]


@pytest.mark.parametrize(
    ("role", "cfg", "said"),
    [
        (Role("a", "", entrypoint="x"), {}, "role a has no image"),
        (
            Role("a", "i", entrypoint="x"),
            {"tolerations": ["a:Never"]},
            "a:Never is not a toleration",
        ),
        (
            Role("a", "i", entrypoint="x", mounts=[BindMount("/a", "b")]),
            {},
            "container paths start with /",
        ),
        (Role("a" * 60, "i", entrypoint="x"), {}, ""),
    ],
)
def test_invalid_app_is_rejected(role: Role, cfg: dict[str, Any], said: str) -> None:
    app = AppDef("a", [role, Role("b" * 60, "i", entrypoint="x")] if not said else [role])
    with pytest.raises(UsageError, match=said or "too long"):
        objects(app, **cfg)


def jobs_of(jobset: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the Jobs that the JobSet controller creates."""
    name = jobset["metadata"]["name"]
    return [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {**each["template"]["metadata"], "name": f"{name}-{each['name']}-0"},
            "spec": each["template"]["spec"],
        }
        for each in jobset["spec"]["replicatedJobs"]
    ]


@pytest.mark.parametrize("name", APPS)
def test_jobset_contains_one_job_per_role(name: str) -> None:
    app, cfg = APPS[name]
    *others, jobset = objects(app, **cfg, kind="jobset")
    assert jobset["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert jobset["metadata"]["labels"].get("kueue.x-k8s.io/queue-name") == cfg.get("queue")
    for each in (*others, *jobs_of(jobset)):
        check(each)
    assert len(jobset["spec"]["replicatedJobs"]) == len(app.roles)


@pytest.mark.parametrize("name", APPS)
def test_volcano_job_has_one_task_per_role(name: str) -> None:
    import kubernetes_validate

    app, cfg = APPS[name]
    *others, job = objects(app, **cfg, kind="volcano")
    assert job["apiVersion"] == "batch.volcano.sh/v1alpha1"
    spec = job["spec"]
    assert spec["queue"] == cfg.get("queue", "default")
    for each in others:
        check(each)
    for task in spec["tasks"]:
        pod = {"apiVersion": "v1", "kind": "Pod", **task["template"]}
        kubernetes_validate.validate(pod, VERSION, strict=True)
        check_pod(task["template"]["spec"])
        assert DNS_LABEL.fullmatch(f"{job['metadata']['name']}-{task['name']}-{task['replicas']}")
        assert task["minAvailable"] <= task["replicas"]
    assert spec["minAvailable"] <= sum(task["replicas"] for task in spec["tasks"])


def test_volcano_starts_elastic_job_with_fewer_pods() -> None:
    spec = objects(ddp(j="2:5x8"), kind="volcano")[-1]["spec"]
    assert (spec["minAvailable"], spec["minSuccess"]) == (2, 2)
    assert spec["tasks"][0]["replicas"] == 5


def test_volcano_request_matches_one_generated_by_torchx() -> None:
    """The command line is the same. TorchX has one task per replica."""
    lines = (Path(__file__).parents[1] / "job" / "torchx-golden.jsonl").read_text().splitlines()
    golden = next(json.loads(x) for x in lines if '"-s", "kubernetes", "-cfg"' in x)
    options = golden["argv"][golden["argv"].index("-cfg") + 1].split(",")
    given = dict(each.split("=") for each in options)
    numbers = {key: int(x) for key, x in given.items() if x.isdigit()}
    role = Role("echo", "ghcr.io/pytorch/torchx:2026.10.26", entrypoint="echo",
                args=["hello world"], resource=Resource(1, 0, 1024))  # fmt: skip
    *_, ours = objects(AppDef("echo", [role]), **{**given, **numbers}, kind="volcano")
    theirs = golden["stdout_json"]["request"]["resource"]
    assert (ours["apiVersion"], ours["kind"]) == (theirs["apiVersion"], theirs["kind"])
    for name in ("schedulerName", "queue", "priorityClassName"):
        assert ours["spec"][name] == theirs["spec"][name]
    pod = ours["spec"]["tasks"][0]["template"]["spec"]
    text = theirs["spec"]["tasks"][0]["template"]  # the repr of the client's object
    (main,) = pod["containers"]
    found = main["resources"]
    assert found["limits"].pop("vpc.amazonaws.com/efa") == "2"
    for said in (
        f"'command': {main['command']}",
        f"'image': '{main['image']}'",
        f"'requests': {{'cpu': '{found['requests']['cpu']}', "
        f"'memory': '{found['requests']['memory']}'}}",
        f"'cpu': '{found['limits']['cpu']}'",
        "'vpc.amazonaws.com/efa': '2'",
        f"'restart_policy': '{pod['restartPolicy']}'",
        f"'service_account_name': '{pod['serviceAccountName']}'",
        f"'mount_path': '{main['volumeMounts'][0]['mountPath']}'",
    ):
        assert said in text, said


def test_trainjob_patches_pod_template_of_its_runtime() -> None:
    *others, job = objects(ddp(), kind="trainjob", queue="q", node_selector={"gpu": "h100"})
    assert [each["kind"] for each in others] == ["ConfigMap", "ConfigMap", "Secret"]
    assert job["spec"]["runtimeRef"] == {"name": "torch-distributed"}
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["image"]) == (2, "img:1")
    hosts = {x["name"]: x["value"] for x in trainer["env"] if "value" in x}["RELIGHT_RANK0_HOST"]
    assert "train-x7abc-node-0-0.train-x7abc" in hosts
    (patch,) = job["spec"]["runtimePatches"]
    (step,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = step["template"]["spec"]["template"]
    assert pod["metadata"]["labels"]["relight/app-id"] == "train-x7abc"
    assert pod["spec"]["nodeSelector"] == {"gpu": "h100"}
    mounts = pod["spec"]["containers"][0]["volumeMounts"]
    assert {x["name"] for x in mounts} == {x["name"] for x in pod["spec"]["volumes"]}


@pytest.mark.parametrize(
    ("app", "cfg", "said"),
    [
        (ddp(j="2:5x8"), {}, "fixed number of pods"),
        (ddp(max_retries=3), {}, "does not support max_retries=3"),
        (ddp(), {"priority_class": "high"}, "-cfg priority_class is not supported for TrainJob"),
        (APPS["roles"][0], {}, "has 2 roles, but a TrainJob runs one"),
    ],
)
def test_unsupported_trainjob_options_are_rejected(
    app: AppDef, cfg: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        objects(app, **cfg, kind="trainjob")


def test_resource_requests_leave_headroom_on_node() -> None:
    role = Role("r", "img", entrypoint="true", resource=Resource(96, 8, 4096))
    found = container(objects(AppDef("a", [role])))["resources"]
    assert found["limits"] == {"cpu": "96000m", "memory": "4096M", "nvidia.com/gpu": "8"}
    assert found["requests"] == {"cpu": "95900m", "memory": "3072M", "nvidia.com/gpu": "8"}
    none = {"reserved_millicpu": 0, "reserved_memmb": 0}
    found = container(objects(AppDef("a", [role]), **none))["resources"]
    assert found["limits"] == found["requests"]


@pytest.mark.parametrize("size", [Resource(0.05, 0, 1024), Resource(0.1, 0, 16), Resource(1, 0, 1)])
def test_resource_request_is_at_least_half_of_limit(size: Resource) -> None:
    """The scheduler ignores requests of 0, so it would put any number of pods on one node."""
    found = container(objects(AppDef("a", [Role("r", "img", entrypoint="true", resource=size)])))
    limits, requests = found["resources"]["limits"], found["resources"]["requests"]
    for name, unit in (("cpu", "m"), ("memory", "M")):
        assert 2 * int(requests[name].rstrip(unit)) >= int(limits[name].rstrip(unit)) > 0


def pod_metadata(made: list[dict[str, Any]]) -> Any:
    return find_object("Job", made)["spec"]["template"]["metadata"]


CONSOLIDATION = {
    "karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"
}  # fmt: skip


def test_autoscalers_do_not_move_pods_of_fixed_size_job() -> None:
    assert pod_metadata(objects(ddp()))["annotations"].items() >= CONSOLIDATION.items()
    elastic = pod_metadata(objects(ddp(j="1:2x8")))["annotations"]
    assert not elastic.keys() & CONSOLIDATION.keys()


def test_overrides_can_let_autoscalers_move_pods(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(
        "metadata: {annotations: {karpenter.sh/do-not-disrupt: null, "
        'cluster-autoscaler.kubernetes.io/safe-to-evict: "true"}}'
    )
    annotations = pod_metadata(objects(ddp(), pods=str(path)))["annotations"]
    assert "karpenter.sh/do-not-disrupt" not in annotations
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "true"


POOL = {"key": "pool", "operator": "In", "values": ["a"]}
NODE = {"key": "metadata.name", "operator": "In", "values": ["node9"]}
BAD = {"key": "metadata.name", "operator": "NotIn", "values": ["node3"]}


@pytest.mark.parametrize("is_overlay", [False, True])
@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([], [{"matchFields": [BAD]}]),
        (
            [{"matchExpressions": [POOL]}, {"matchFields": [NODE]}],
            [{"matchExpressions": [POOL], "matchFields": [BAD]}, {"matchFields": [NODE, BAD]}],
        ),
        ([{}, {"matchFields": [NODE]}], [{}, {"matchFields": [NODE, BAD]}]),
        ([{"matchExpressions": []}], [{"matchExpressions": []}]),
    ],
)  # fmt: skip
def test_excluded_node_is_excluded_by_each_term_of_users_affinity(
    tmp_path: Path, terms: list[Any], expected: list[Any], *, is_overlay: bool
) -> None:
    """The terms are alternatives, and an empty one matches nothing: NodeSelectorTerm in
    kubernetes/api, core/v1/types.go.
    """
    import yaml

    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": []}
    user = {"spec": {"affinity": {"nodeAffinity": {**required, **preferred}}}}
    path = tmp_path / "pods.yaml"
    path.write_text(yaml.safe_dump(user))
    app = ddp()
    app.roles[0].metadata["kubernetes"] = {"V1Pod": user} if is_overlay else {}
    cfg = {} if is_overlay else {"pods": str(path)}
    for _ in range(2):  # rendering does not change the user's overlay
        made = objects(app, exclude=["node3"], **cfg)
        found = find_object("Job", made)["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        (name,) = required
        assert found == {name: {"nodeSelectorTerms": expected}, **preferred}


def test_mounts_do_not_hide_site_configuration() -> None:
    """An image may have it in /etc/relight (flags/site)."""
    app = AppDef("a", [Role("r", "img", entrypoint="true")])
    for each in container(objects(app, timeout=5))["volumeMounts"]:
        assert not each["mountPath"].startswith("/etc/")


def test_efa_device_count_can_be_overridden_or_removed() -> None:
    has = Resource(1, 0, 1024, {}, {"vpc.amazonaws.com/efa": 4})
    app = AppDef("a", [Role("r", "img", entrypoint="true", resource=has)])
    for count, expected in ((None, "4"), (2, "2"), (0, None)):
        limits = container(objects(app, efa_device_count=count))["resources"]["limits"]
        assert limits.get("vpc.amazonaws.com/efa") == expected


OVERRIDES = """
metadata: {annotations: {team: a}}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: null
  tolerations: [{key: spot, operator: Exists}]
  volumes: [{name: scratch, emptyDir: {}}]
  containers:
    - name: main
      env: [{name: NCCL_DEBUG, value: INFO}]
      volumeMounts: [{name: scratch, mountPath: /scratch}]
    - {name: sidecar, image: proxy}
"""


@pytest.mark.parametrize("kind", ["job", "jobset", "volcano"])
def test_overrides_are_merged_into_every_pod(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(OVERRIDES)
    *_, plain = objects(ddp(), kind=kind)
    *_, made = objects(ddp(), kind=kind, pods=str(path))
    before, after = ((pod_of(plain)), (pod_of(made)))
    assert after["metadata"]["annotations"] == {
        **before["metadata"]["annotations"], "team": "a"}  # fmt: skip
    was, now = before["spec"], after["spec"]
    assert now["hostNetwork"] and "terminationGracePeriodSeconds" not in now
    # With ClusterFirst, it would have the node's DNS (kubelet, network/dns/dns.go).
    assert now["dnsPolicy"] == "ClusterFirstWithHostNet" and "dnsPolicy" not in was
    assert [x["name"] for x in now["volumes"]] == ["dshm", "launcher", "scratch"]
    main, sidecar = now["containers"]
    assert sidecar == {"name": "sidecar", "image": "proxy"}
    assert main["command"] == was["containers"][0]["command"]
    assert main["env"] == [*was["containers"][0]["env"], {"name": "NCCL_DEBUG", "value": "INFO"}]
    assert [x["mountPath"] for x in main["volumeMounts"]][-1] == "/scratch"


def test_pods_have_torchx_labels() -> None:
    """The exception is `replica-id`, since a Job's pods share one template."""
    app = AppDef("job", [Role(name, "img", entrypoint="true") for name in ("a", "b")])
    a, b = (pod_of(each) for each in objects(app) if each["kind"] == "Job")
    for number, (name, pod) in enumerate((("a", a), ("b", b))):
        found = pod["metadata"]["labels"]
        assert found["torchx.pytorch.org/app-name"] == "job"
        assert found["torchx.pytorch.org/role-name"] == name
        assert found["torchx.pytorch.org/role-index"] == str(number)
        assert found["torchx.pytorch.org/version"]


OVERLAY = {
    "metadata": {"annotations": {"team": "a"}},
    "spec": {
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "nodeSelector": {"job": "${app_id}"},
        JOIN("containers", on="name"): [{"name": "main", "workingDir": "/w"}],
    },
}


@pytest.mark.parametrize("kind", ["job", "jobset", "volcano"])
def test_torchx_overlay_is_merged_into_pods_of_its_role(kind: str) -> None:
    """Macros in it are expanded."""
    app = AppDef("job", [Role(name, "img", entrypoint="true") for name in ("a", "b")])
    set_overlay(app.roles[1], "kubernetes", "V1Pod", OVERLAY)
    made = objects(app, kind=kind)
    if kind == "job":
        a, b = (pod_of(each) for each in made if each["kind"] == "Job")
    else:
        spec = made[-1]["spec"]
        tasks = spec.get("tasks") or [x["template"]["spec"] for x in spec["replicatedJobs"]]
        a, b = (each["template"] for each in tasks)
    assert "team" not in a["metadata"]["annotations"]
    assert b["metadata"]["annotations"]["team"] == "a"
    assert b["metadata"]["labels"] != a["metadata"]["labels"]
    assert b["spec"]["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert b["spec"]["nodeSelector"] == {"job": "train-x7abc"}
    (main,) = b["spec"]["containers"]
    assert (main["workingDir"], main["command"]) == ("/w", ["true"])


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_overlay_can_be_read_from_file(tmp_path: Path, scheme: str) -> None:
    """The form `dist.ddp --metadata kubernetes=file:///po.yaml` is from TorchX's documentation. A
    tuple replaces a list.
    """
    path = tmp_path / "po.yaml"
    path.write_text(
        "spec:\n  hostNetwork: true\n  volumes: !!python/tuple [{name: v, emptyDir: {}}]\n"
    )
    *_, made = objects(ddp(metadata={"kubernetes": f"{scheme}{path}"}))
    spec = pod_of(made)["spec"]
    assert spec["hostNetwork"]
    assert spec["volumes"] == [{"name": "v", "emptyDir": {}}]


@pytest.mark.parametrize(
    ("overlay", "said"),
    [
        ("file:///nope.yaml", "the metadata kubernetes of r, file:///nope.yaml: No such file"),
        ({"sepc": {}}, "the metadata kubernetes of r: sepc is not part of a pod"),
        ({"V1Pod": 1}, "expected a dict, not 1"),
        ({"spec": {"containers": 1}}, "the pod of r.spec.containers is a list, not a int"),
    ],
)
def test_invalid_torchx_overlay_is_rejected(overlay: object, said: str) -> None:
    role = Role("r", "img", entrypoint="true", metadata={"kubernetes": overlay})
    with pytest.raises(UsageError, match=said):
        objects(AppDef("job", [role]))


def pod_of(made: dict[str, Any]) -> dict[str, Any]:
    spec = made["spec"]
    for part in ("replicatedJobs", "tasks"):
        if part in spec:
            spec = spec[part][0]
    found: dict[str, Any] = spec["template"]
    return found["spec"].get("template", found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("a: [", "is not valid YAML"),
        ("- 1", "expected a mapping"),
        ("sepc: {}", "sepc is not part of a pod"),
        ("kind: Deployment", "kind Deployment is not part of a pod"),
        ("metadata: {annotations: {at: 2026-01-01}}", "date is not JSON"),
    ],
)
def test_invalid_overrides_are_rejected(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "pods.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=said):
        objects(ddp(), pods=str(path))


@pytest.mark.parametrize(("context", "expected"), [("", "ns:job-x1"), ("prod", "prod@ns:job-x1")])
def test_job_can_read_its_own_id(context: str, expected: str) -> None:
    """`relight status $RELIGHT_JOB_ID` works inside the job. TorchX omits the namespace."""
    names = {"RELIGHT_JOB_ID": "relight", "TORCHX_JOB_ID": "torchx"}
    env = {name: f"kubernetes://{session}/${{app_id}}" for name, session in names.items()}
    app = AppDef("job", [Role("main", "img", entrypoint="true", env=env)])
    found = variables(objects(app, "job-x1", context=context))
    assert found["RELIGHT_JOB_ID"] == f"kubernetes://relight/{expected}"
    assert found["TORCHX_JOB_ID"] == "kubernetes://torchx/job-x1"


def test_prints_note_about_option_for_another_kind() -> None:
    def notes(**cfg: Any) -> str:
        app = ddp(memMB=65536, cpu=8, h=None)
        return "; ".join(
            kubernetes.Kubernetes().render(app, {"namespace": "ns", **cfg}, "x-x1").notes
        )

    assert "runtime has no effect without kind=trainjob" in notes(runtime="mine")
    assert "runtime" not in notes(runtime="mine", kind="trainjob")


@pytest.mark.parametrize(("kind", "is_noted"), [("job", True), ("jobset", False)])
def test_note_is_printed_if_a_failed_role_leaves_the_others_running(
    kind: str, is_noted: bool
) -> None:
    roles = [Role(name, "img", entrypoint="true") for name in ("train", "read")]
    request = kubernetes.Kubernetes().render(AppDef("x", roles), {"kind": kind}, "x-x1")
    assert any("the others keep running" in note for note in request.notes) is is_noted
