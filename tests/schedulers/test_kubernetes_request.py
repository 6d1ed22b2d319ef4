"""What jobs become on Kubernetes: objects that its schemas allow, and that a server accepts."""

import base64
import re
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from relight.errors import UsageError
from relight.job import launcher_file
from relight.job.app import AppDef, BindMount, DeviceMount, Resource, Role, VolumeMount
from relight.job.components import dist
from relight.schedulers.kubernetes import request
from relight.schedulers.kubernetes import scheduler as kubernetes
from relight.values import parse_endpoint

VERSION = "1.33"
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def objects(app: AppDef, app_id: str = "train-x7abc", **cfg: Any) -> list[dict[str, Any]]:
    return request.objects(app, cfg, app_id, "ns", "secret")


def ddp(*words: str, **options: Any) -> AppDef:
    return dist.ddp(*words, **{"script": "train.py", "image": "img:1", "j": "2x8", **options})


def of(kind: str, made: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (each for each in made if each["kind"] == kind)
    return found


def container(made: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = of("Job", made)["spec"]["template"]["spec"]["containers"][0]
    return found


def variables(made: list[dict[str, Any]]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(made)["env"] if "value" in each}


def check(each: dict[str, Any]) -> None:
    """What schemas say, and what a server refuses beyond them."""
    kubernetes_validate.validate(each, VERSION, strict=True)
    meta = each["metadata"]
    assert DNS_LABEL.fullmatch(meta["name"])
    assert all(LABEL_VALUE.fullmatch(value) for value in meta["labels"].values())
    if each["kind"] == "ConfigMap":
        assert sum(len(base64.b64decode(x)) for x in each["binaryData"].values()) < 1 << 20
    if each["kind"] != "Job":
        return
    spec, pod = each["spec"], each["spec"]["template"]["spec"]
    assert len(f"{meta['name']}-{spec['completions'] - 1}-00000") <= 63
    assert spec["completionMode"] == "Indexed"
    assert spec["podReplacementPolicy"] == "Failed"  # demanded by podFailurePolicy
    assert pod["restartPolicy"] == "Never"  # demanded by podFailurePolicy
    assert ("backoffLimit" in spec) != ("backoffLimitPerIndex" in spec)
    for rule in spec["podFailurePolicy"]["rules"]:
        values = rule.get("onExitCodes", {}).get("values", [])
        assert values == sorted(set(values)) and len(values) <= 255
        assert rule["action"] in ("Ignore", "FailJob", "Count", "FailIndex")
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
            assert limits[name] == requests[name]  # demanded of extended resources


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
def test_every_object_is_one_that_a_server_accepts(name: str) -> None:
    app, cfg = APPS[name]
    for each in objects(app, **cfg):
        check(each)


@pytest.mark.parametrize("name", APPS)
def test_a_dry_run_is_what_kubectl_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The YAML has all objects, unchanged."""
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    app, cfg = APPS[name]
    made = kubernetes.make().render(app, cfg, "train-x7abc")
    assert list(yaml.safe_load_all(made.text)) == made.body["objects"]


def test_words_and_variables_reach_the_program_as_they_are() -> None:
    """The kubelet replaces `$(NAME)`, and `$$` by `$`."""
    text = "$(hostname) $$ $$(x) $HOME ${x} $$$ \\ '"
    role = Role("a", "i", entrypoint="echo", args=[text], env={"A": text})
    made = objects(AppDef("a", [role]))
    expand = re.compile(r"\$(?:\$|\(([\w.-]+)\))")
    for found in (container(made)["command"][1], variables(made)["A"]):
        assert expand.sub(lambda m: "$" if m[0] == "$$" else f"<{m[1]}>", found) == text


def test_the_number_of_the_replica_is_put_in_by_the_kubelet() -> None:
    role = Role("a", "i", entrypoint="echo", args=["n${replica_id} $(x)"], num_replicas=2)
    made = objects(AppDef("a", [role]))
    assert container(made)["command"] == ["echo", "n$(RELIGHT_REPLICA_ID) $$(x)"]
    (source,) = (x for x in container(made)["env"] if x["name"] == "RELIGHT_REPLICA_ID")
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert source["valueFrom"]["fieldRef"]["fieldPath"] == path


@pytest.mark.parametrize(("j", "hosts"), [("2x8", 2), ("5x8", 3), ("2:9x8", 3)])
def test_the_endpoint_survives_the_loss_of_the_first_pod(j: str, hosts: int) -> None:
    """It lists several replicas; agents elect one of them."""
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


def test_torchrun_gets_one_host() -> None:
    role = Role("a", "i", entrypoint="bash", args=["-c", "torchrun a.py"], num_replicas=3,
                port_map={"c10d": 29500})  # fmt: skip
    made = objects(AppDef("a", [role]))
    assert variables(made)["RELIGHT_RANK0_HOST"] == "train-x7abc-0.train-x7abc"
    assert "ConfigMap" not in {each["kind"] for each in made}


def test_the_launcher_travels_in_a_config_map() -> None:
    made = objects(ddp())
    data = of("ConfigMap", made)["binaryData"]
    assert base64.b64decode(data["relight"]) == launcher_file.build()
    installed = launcher_file.marked(ddp(), "installed")
    assert "ConfigMap" not in {each["kind"] for each in objects(installed)}


def test_a_preemption_is_no_failure_and_an_error_ends_the_job() -> None:
    spec = of("Job", objects(ddp()))["spec"]
    ignored, fails = spec["podFailurePolicy"]["rules"]
    assert ignored["action"] == "Ignore"
    assert ignored["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert fails["action"] == "FailJob"
    assert {0, 3, 137, 143} <= set(fails["onExitCodes"]["values"])
    assert 1 not in fails["onExitCodes"]["values"]
    spec = of("Job", objects(ddp(max_retries=2)))["spec"]
    assert spec["backoffLimitPerIndex"] == 2
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["Ignore"]


def test_a_role_that_may_shrink_succeeds_with_fewer_pods() -> None:
    spec = of("Job", objects(ddp(j="2:5x8")))["spec"]
    assert (spec["completions"], spec["parallelism"]) == (5, 5)
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0-4", "succeededCount": 2}]}
    assert "successPolicy" not in of("Job", objects(ddp(j="5x8")))["spec"]


def test_pods_pass_the_restricted_standard() -> None:
    """Pod Security Standards, restricted; the user of the image is the image's own affair, or
    `user`.
    """
    pod = of("Job", objects(ddp(), user=1000))["spec"]["template"]["spec"]
    assert pod["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 1000, "runAsNonRoot": True,
    }  # fmt: skip
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    kinds = {key for volume in pod["volumes"] for key in volume} - {"name"}
    assert kinds <= {"configMap", "emptyDir", "secret", "persistentVolumeClaim"}


@pytest.mark.parametrize("app_id", ["x" * 80 + "-abc123", "1st_Job-abc123", "ü-abc123"])
def test_names_are_made_legal_and_stay_unique(app_id: str) -> None:
    for each in objects(ddp(j="12x8"), app_id):
        check(each)
        assert "abc123" in each["metadata"]["name"]


@pytest.mark.parametrize(
    ("role", "cfg", "said"),
    [
        (Role("a", "", entrypoint="x"), {}, "role a has no image"),
        (Role("a", "i", entrypoint="x"), {"tolerations": ["a:Never"]}, "a:Never is no toleration"),
        (Role("a", "i", entrypoint="x", mounts=[BindMount("/a", "b")]), {}, "begins with /"),
        (Role("a" * 60, "i", entrypoint="x"), {}, ""),
    ],
)
def test_a_bad_part_of_an_app_is_refused(role: Role, cfg: dict[str, Any], said: str) -> None:
    app = AppDef("a", [role, Role("b" * 60, "i", entrypoint="x")] if not said else [role])
    with pytest.raises(UsageError, match=said or "too long"):
        objects(app, **cfg)
