"""Secrets in a Kubernetes job's variables: a note about what others can read, and a Secret."""

from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from relight.job.app import AppDef, Resource, Role
from relight.schedulers.kubernetes import scheduler as kubernetes

pytestmark = pytest.mark.needs_kubernetes
SECRETS = {"HF_TOKEN": "hf_mine", "WANDB_API_KEY": "w-mine", "AWS_SECRET_ACCESS_KEY": "a-mine"}
every_kind = pytest.mark.parametrize("kind", ["job", "jobset", "volcano", "trainjob"])
PAGE = Path(__file__).parents[2] / "docs/clusters/kubernetes.md"


def rendered(env: dict[str, str], *args: str, **cfg: Any) -> Any:
    resource = Resource(1, 0, 1024)
    role = Role("main", "img", entrypoint="sh", args=args, env=env, resource=resource)
    return kubernetes.Kubernetes().render(
        AppDef("job", [role]), {"namespace": "ns", **cfg}, "job-x1"
    )


def test_one_note_lists_arguments_that_look_like_secrets() -> None:
    (note,) = rendered(SECRETS, "-c", "train --api-key mine").notes
    assert "can read the secrets in its arguments (" in note
    assert "#secrets" in note
    assert rendered({**SECRETS, "TOKENIZERS_PARALLELISM": "true"}, "-c", "train").notes == ()


@every_kind
def test_variables_that_look_like_secrets_reach_pod_through_secret(kind: str) -> None:
    """Permission to read jobs or pods doesn't reveal them."""
    *_, secret, job = rendered({**SECRETS, "EPOCHS": "3"}, kind=kind).body["objects"]
    assert secret["metadata"]["name"] == "job-x1-env"
    assert secret["stringData"] == {f"main.{name}": value for name, value in SECRETS.items()}
    assert "mine" not in str(job)
    assert "{'name': 'EPOCHS', 'value': '3'}" in str(job)
    for name in SECRETS:
        reference = {"secretKeyRef": {"name": "job-x1-env", "key": f"main.{name}"}}
        assert str({"name": name, "valueFrom": reference}) in str(job)


def test_roles_can_have_different_values_for_same_secret_variable() -> None:
    roles = [
        Role(name, "img", entrypoint="sh", env={"HF_TOKEN": f"hf-{name}"}) for name in ("a", "b")
    ]
    made = kubernetes.Kubernetes().render(AppDef("job", roles), {"namespace": "ns"}, "job-x1")
    (secret,) = (x for x in made.body["objects"] if x["metadata"]["name"] == "job-x1-env")
    assert secret["stringData"] == {"a.HF_TOKEN": "hf-a", "b.HF_TOKEN": "hf-b"}


def test_kubelet_substitutes_replica_id_in_secret_variable() -> None:
    """In a Secret, all replicas would get the same number."""
    *_, job = rendered({"HF_TOKEN": "of-${replica_id}"}).body["objects"]
    assert "{'name': 'HF_TOKEN', 'value': 'of-$(RELIGHT_REPLICA_ID)'}" in str(job)


@every_kind
def test_dry_run_explains_which_secret_to_create_first(kind: str) -> None:
    """It doesn't contain the user's secrets, and kubectl never applies a placeholder in their
    place.
    """
    import yaml

    request = rendered({**SECRETS, "EPOCHS": "3"}, kind=kind)
    assert "mine" not in request.text
    assert "<hidden>" not in request.text
    comment = "# the Secret job-x1-env is not shown; pods wait until it exists.\n"
    lines = request.text.split(comment)[1].splitlines()[1:]
    manifest = "\n".join(
        line.removeprefix("#   ") for line in takewhile(lambda line: line.startswith("# "), lines)
    )
    (secret,) = (x for x in request.body["objects"] if x["metadata"]["name"] == "job-x1-env")
    empty = {f"main.{name}": "" for name in SECRETS}
    assert yaml.safe_load(manifest) == {**secret, "stringData": empty}
    sent = [x for x in request.body["objects"] if x["metadata"]["name"] != "job-x1-env"]
    assert list(yaml.safe_load_all(request.text)) == sent


@pytest.mark.parametrize(
    ("kind", "resource"),
    [
        ("job", "jobs.batch"),
        ("jobset", "jobsets.jobset.x-k8s.io"),
        ("volcano", "jobs.batch.volcano.sh"),
        ("trainjob", "trainjobs.trainer.kubeflow.org"),
    ],
)
def test_dry_run_names_all_kinds_of_objects_in_command_that_removes_them(
    kind: str, resource: str
) -> None:
    """The category `all` lacks most custom resources, and kubectl takes `jobs` for batch/v1."""
    text = rendered(SECRETS, kind=kind, network_policy=True).text
    services = "services," if kind in ("job", "jobset") else ""
    assert (
        f"# to remove all objects of the job: kubectl delete {services}secrets,"
        f"networkpolicies.networking.k8s.io,{resource} -n ns -l relight/app-id=job-x1\n"
    ) in text
    assert (
        f"{resource} --context eu/gpu -n ns" in rendered(SECRETS, kind=kind, context="eu/gpu").text
    )


def test_dry_run_warns_that_hidden_arguments_cannot_be_applied() -> None:
    request = rendered({}, "--password", "p-mine")
    assert "mine" not in request.text
    assert "are replaced by <hidden>, also for\n# kubectl" in request.text
    assert "p-mine" in str(request.body)


def test_dry_run_without_secrets_matches_submitted_request() -> None:
    """It includes the agents' token, so that kubectl accepts it."""
    import yaml

    request = rendered({"EPOCHS": "3"}, "-c", "echo $EPOCHS")
    assert list(yaml.safe_load_all(request.text)) == request.body["objects"]


def test_documented_recipes_pass_secret_to_pod(tmp_path: Path) -> None:
    import kubernetes_validate

    section = PAGE.read_text().split("\n## Secrets\n")[1].split("\n## ")[0]
    recipes = [each.split("```")[0] for each in section.split("```yaml\n")[1:]]
    found = []
    for number, text in enumerate(recipes):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        *_, job = rendered({}, pods=str(path)).body["objects"]
        kubernetes_validate.validate(job, "1.33", strict=True)
        (main,) = job["spec"]["template"]["spec"]["containers"]
        found.append((main.get("envFrom"), {each["name"]: each for each in main["env"]}))
    (all_of_it, _), (_, variables) = found
    assert all_of_it == [{"secretRef": {"name": "training"}}]
    assert variables["HF_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "training"
