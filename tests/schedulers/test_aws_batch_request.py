"""Requests to AWS Batch for a job: valid for its API, with commands that find each other."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S
from netlab import Lab

from relight.base.errors import UsageError
from relight.job.app import AppDef, BindMount, DeviceMount, Resource, Role, VolumeMount
from relight.job.components import dist
from relight.schedulers.aws_batch import request
from relight.schedulers.aws_batch import scheduler as aws_batch

SMALL = Resource(1, 0, 1024)
ARN = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:hf-AbCdEf"
SECRETS = {
    "HF_TOKEN": ARN,
    "WANDB_API_KEY": f"{ARN}:wandb::",
    "OTHER_KEY": "arn:aws-us-gov:ssm:us-gov-west-1:123456789012:parameter/team/key",
}
READER = {"execution_role_arn": "arn:aws:iam::123456789012:role/ecsTaskExecutionRole"}


def definition(app: AppDef, name: str = "train-x1", **cfg: Any) -> dict[str, Any]:
    return request.definition(app, {"queue": "gpu", **cfg}, name, "secret")


def ddp(**options: Any) -> AppDef:
    return dist.ddp(**{"script": "train.py", "image": "img:1", "j": "2x8", **options})


def role(*words: str, **parts: Any) -> Role:
    known = {"name": "main", "image": "img", "entrypoint": words[0], "args": words[1:]}
    return Role(**{**known, "resource": SMALL, **parts})


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["environment"]}


APPS = {
    "ddp": (ddp(), {}),
    "one": (ddp(j="1x2"), {}),
    "retries": (ddp(max_retries=3), {}),
    "all options": (
        ddp(h="aws_p4d.24xlarge"),
        {
            "container_user": "1000", "user": "bot", "log_group": "team",
            "privileged": True,
            "share_id": "team",
            "priority": 3,
            "timeout": 60,
            "job_role_arn": "arn:aws:iam::1:role/a",
            "execution_role_arn": "arn:aws:iam::1:role/b",
            "secrets": SECRETS,
            "ulimits": ["memlock=-1", "nofile=1024/4096"],
            "launcher_uri": "s3://b/p",
        },
    ),
    "roles": (
        AppDef("two", [
            role("python", "a.py", num_replicas=3),
            role("python", "b.py", name="reader", num_replicas=2, mounts=[
                BindMount("/data", "/d", True), VolumeMount("fs-1", "/v"),
                DeviceMount("/dev/kfd", "/dev/kfd")]),
        ]),
        {},
    ),
}  # fmt: skip


@pytest.mark.needs_aws
@pytest.mark.parametrize("name", APPS)
def test_requests_match_the_aws_api_model(name: str) -> None:
    app, cfg = APPS[name]
    import boto3
    from botocore.validate import ParamValidator

    model = boto3.client("batch", region_name="eu-central-1").meta.service_model
    sent = {
        "RegisterJobDefinition": definition(app, **cfg),
        "SubmitJob": {**request.job(app, {"queue": "q", **cfg}, "n"), "jobDefinition": "arn"},
    }
    for operation, body in sent.items():
        shape = model.operation_model(operation).input_shape
        report = ParamValidator().validate(body, shape)
        assert not report.has_errors(), report.generate_report()


def test_each_replica_is_a_node_and_each_role_a_node_range() -> None:
    made = definition(APPS["roles"][0])
    assert made["type"] == "multinode"
    nodes = made["nodeProperties"]
    assert (nodes["numNodes"], nodes["mainNode"]) == (5, 0)
    assert [each["targetNodes"] for each in nodes["nodeRangeProperties"]] == ["0:2", "3:4"]
    reader = nodes["nodeRangeProperties"][1]["container"]
    assert [each["containerPath"] for each in reader["mountPoints"]] == ["/d", "/v"]
    assert reader["mountPoints"][0]["readOnly"] and not reader["mountPoints"][1]["readOnly"]
    assert reader["linuxParameters"]["devices"][0]["containerPath"] == "/dev/kfd"


def test_single_replica_runs_as_a_container_job() -> None:
    """Unlike multi-node jobs, container jobs can run on Spot instances."""
    made = definition(ddp(j="1x2"))
    assert made["type"] == "container"
    assert "AWS_BATCH_JOB_MAIN_NODE" not in made["containerProperties"]["command"][2]


def test_container_definition_matches_torchx() -> None:
    """The expected container is TorchX 0.7.0's for the same app."""
    made = definition(ddp(h="aws_p4d.24xlarge"), privileged=False)
    (group,) = made["nodeProperties"]["nodeRangeProperties"]
    container = group["container"]
    assert container["resourceRequirements"] == [
        {"type": "VCPU", "value": "96"},
        {"type": "MEMORY", "value": "1132416"},
        {"type": "GPU", "value": "8"},
    ]
    linux = container["linuxParameters"]
    assert linux["sharedMemorySize"] == 1132416
    assert [each["hostPath"] for each in linux["devices"]] == [
        f"/dev/infiniband/uverbs{number}" for number in range(4)
    ]
    assert container["instanceType"] == "p4d.24xlarge"
    assert container["logConfiguration"] == {"logDriver": "awslogs"}
    known = variables(container)
    assert (known["TORCHX_ROLE_IDX"], known["TORCHX_ROLE_NAME"]) == ("0", "train")


def test_job_is_retried_after_host_loss_but_not_after_program_error() -> None:
    once = definition(ddp(max_retries=0))["retryStrategy"]
    assert once["evaluateOnExit"] == [
        {"onStatusReason": "Host EC2*", "action": "RETRY"},
        {"onExitCode": "75", "action": "RETRY"},
        {"onReason": "*", "action": "EXIT"},
    ]
    again = definition(ddp(max_retries=3))["retryStrategy"]
    assert again["attempts"] == 4
    assert again["evaluateOnExit"][-1] == {"onExitCode": "0", "action": "EXIT"}


def run(made: dict[str, Any], node: int, **environment: str) -> str:
    """Run a container's command here as Batch would on a node, and return its output."""
    groups = made["nodeProperties"]["nodeRangeProperties"]
    ends = [int(group["targetNodes"].partition(":")[2]) for group in groups]
    container = next(g["container"] for g, end in zip(groups, ends, strict=True) if node <= end)
    own = {"AWS_BATCH_JOB_NODE_INDEX": str(node), **environment}
    env = {"PATH": os.environ["PATH"], **variables(container), **own}
    command = container["command"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def test_arguments_and_replica_number_are_passed_to_program() -> None:
    text = "import os, sys; print(sys.argv[1:], os.environ['N'], os.environ['RELIGHT_RANK0_HOST'])"
    words = [sys.executable, "-c", text, "a b", "$HOME", "it's", "n${replica_id}-${replica_id}", ""]
    env = {"N": "<${replica_id}>"}
    app = AppDef("a", [role("true"), role(*words, name="other", num_replicas=2, env=env)])
    out = run(definition(app), 2, AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS="10.0.0.7")
    assert out.strip() == "['a b', '$HOME', \"it's\", 'n1-1', ''] <1> 10.0.0.7"


def test_job_can_read_its_own_id() -> None:
    env = {"RELIGHT_JOB_ID": "aws_batch://relight/${app_id}"}
    made = definition(AppDef("a", [role("true", env=env)]))
    found = variables(made["containerProperties"])
    assert found["RELIGHT_JOB_ID"] == "aws_batch://relight/gpu:train-x1"


@pytest.mark.needs_hosts
def test_agents_rendezvous_at_the_main_node(tmp_path: Path) -> None:
    """Real agents run on separate hosts. Batch gives the address only to the other nodes."""
    script = tmp_path / "train.py"
    script.write_text("import os; print('rank', os.environ['RANK'], os.environ['WORLD_SIZE'])")
    made = definition(dist.ddp(script=str(script), image="img", j="2x1"))
    (group,) = made["nodeProperties"]["nodeRangeProperties"]
    container = group["container"]
    with Lab(hosts=["node0", "node1"]) as lab:
        processes = []
        for number in (0, 1):
            main = lab["node0"].address
            own = {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": main} if number else {}
            path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
            env = {"PATH": path, "AWS_BATCH_JOB_NODE_INDEX": str(number), **variables(container)}
            processes.append(
                lab[f"node{number}"].start(
                    container["command"], env={**env, **own}, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                )
            )  # fmt: skip
        outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "rank 0 2" in outputs[0] and "rank 1 2" in outputs[1]
    assert "127.0.0.1" not in outputs[0]


def test_launcher_is_fetched_if_image_lacks_relight(tmp_path: Path) -> None:
    """The URL is known at submission, and the program doesn't see it."""
    source = tmp_path / "launcher"
    source.write_text("#!/bin/sh\necho from the launcher: $@ $RELIGHT_LAUNCHER_URL\n")
    app = AppDef("a", [role("relight", "run", "x.py")])
    made = request.with_variable(
        definition(app, launcher_uri="s3://b/p"), request.LAUNCHER_URL, source.as_uri()
    )
    container = made["containerProperties"]
    folder = tmp_path / "in the container"
    command = [word.replace("/tmp/relight-launcher", str(folder)) for word in container["command"]]
    assert command != container["command"]
    command = [word.replace(f"mkdir -p {folder}", f"mkdir -p '{folder}'") for word in command]
    command = [word.replace(f"755 {folder}/relight", f"755 '{folder}/relight'") for word in command]
    env = {"PATH": "/usr/bin:/bin", **variables(container)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "from the launcher: run x.py", done.stderr


@pytest.mark.parametrize("app_id", ["x" * 200 + "-abc", "-a", "ü b/c-1", "_"])
def test_job_names_are_valid_for_aws_batch(app_id: str) -> None:
    name = request.job_name(app_id + "x1")
    assert name.replace("-", "").replace("_", "").isascii() and len(name) <= 128
    assert name[0].isalnum()


def of_type(kind: str) -> Role:
    has = Resource(1, 0, 1, {"node.kubernetes.io/instance-type": kind})
    return role("x", name=kind, resource=has)


@pytest.mark.parametrize(
    ("app", "cfg", "said"),
    [
        (AppDef("a", [role("x", name=f"r{n}") for n in range(6)]), {}, "at most 5"),
        (AppDef("a", [role("x", image="")]), {}, "has no image"),
        (AppDef("a", [role("x", resource=Resource(1, 0, -1))]), {}, "requires a memory size"),
        (AppDef("a", [role("x", max_retries=10)]), {}, "at most 10 times"),
        (
            AppDef("a", [role("x", resource=Resource(1, 0, 1, {}, {"d": 1}))]),
            {},
            "unknown device d",
        ),
        (AppDef("a", [role("x", mounts=[BindMount("data", "/data")])]), {}, "must start with /"),
        (
            AppDef("a", [role("x", mounts=[VolumeMount("v", "/data")])]),
            {},
            "not an EFS file system",
        ),
        (
            AppDef("a", [role("x", mounts=[DeviceMount("/d", "/d", "x")])]),
            {},
            "a combination of r, w and m",
        ),
        (AppDef("a", [role("y" * 30_000)]), {}, "bytes; the AWS Batch limit is 24576"),
        (AppDef("a", [of_type("p4d"), of_type("p5")]), {}, "p4d p4d, p5 p5.*one instance type"),
        (ddp(), {"timeout": 0}, "at least one minute"),
        (ddp(), {"priority": 10_000}, "from 0 to 9999"),
        (ddp(), {"ulimits": ["memlock"]}, "memlock is not a limit"),
        (ddp(), {"secrets": SECRETS}, "requires execution_role_arn"),
        (ddp(), {"secrets": {"a-b": ARN}, **READER}, "'a-b' is not a variable name"),
        (ddp(env={"HF_TOKEN": "x"}), {"secrets": SECRETS, **READER}, "HF_TOKEN is already set"),
        (ddp(), {"secrets": {"PYTHONUNBUFFERED": ARN}, **READER}, "BUFFERED is already set"),
        (ddp(), {"secrets": {"A": "arn:aws:s3:::b/k"}, **READER}, "expected the ARN of a secret"),
        (ddp(), {"queue": None}, "requires a job queue"),
        (ddp(), {"launcher_uri": "/tmp"}, "is not in S3"),
        (ddp(), {"launcher_uri": "s3://"}, "names no bucket"),
        (ddp(env={"RELIGHT_LAUNCHER": "travels"}), {}, "need the launcher in S3"),
    ],
)
def test_app_that_batch_cannot_run_is_rejected(app: AppDef, cfg: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        aws_batch.AwsBatch().render(app, {"queue": "gpu", **cfg}, "a-x1")


def test_dry_run_needs_no_network_and_hides_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    app = AppDef("a", [role("x", "--password=abc", env={"API_KEY": "def"})])
    made = aws_batch.AwsBatch().render(app, {"queue": "gpu"}, "a-x1")
    shown = json.loads(made.text)
    assert shown["job"]["jobName"] == "a-x1"
    token = variables(made.body["definition"]["containerProperties"])["RELIGHT_TOKEN"]
    assert token and all(word not in made.text for word in ("abc", 'def"', token))


def test_secrets_reach_containers_by_reference() -> None:
    """ECS rejects a variable that is both in `environment` and in `secrets`."""
    token = {**SECRETS, "RELIGHT_TOKEN": ARN}
    cfg = {"queue": "gpu", "secrets": token, **READER}
    made = aws_batch.AwsBatch().render(APPS["roles"][0], cfg, "a-x1")
    shown = json.loads(made.text)["definition"]
    for container in request.containers(made.body["definition"]) + request.containers(shown):
        assert container["secrets"] == [{"name": k, "valueFrom": v} for k, v in token.items()]
        assert not token.keys() & variables(container).keys()
        assert container["executionRoleArn"] == READER["execution_role_arn"]


def test_error_about_secrets_does_not_show_a_value() -> None:
    with pytest.raises(UsageError) as caught:
        definition(ddp(), secrets={"HF_TOKEN": "hf_mine"}, **READER)
    assert "hf_mine" not in f"{caught.value.message} {caught.value.hint}"


def test_note_lists_secrets_that_others_can_read() -> None:
    def notes(env: dict[str, str], *args: str, **cfg: Any) -> tuple[str, ...]:
        app = AppDef("a", [role("x", *args, env=env, resource=Resource(1, 0, 100_000))])
        return aws_batch.AwsBatch().render(app, {"queue": "gpu", **cfg}, "a-x1").notes

    (note,) = notes({"HF_TOKEN": "hf_mine", "EPOCHS": "3", "WANDB_API_KEY": "w"}, "--pwd=abc")
    assert "can read HF_TOKEN, WANDB_API_KEY, the secrets in its arguments (hidden in a" in note
    assert not notes({"EPOCHS": "3"}, secrets=SECRETS, **READER)
