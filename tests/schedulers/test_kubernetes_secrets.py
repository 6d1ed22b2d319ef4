"""Secrets in the variables of a job on Kubernetes: a note on what others can read, and a Secret."""

from pathlib import Path
from typing import Any

import pytest

from relight.job.app import AppDef, Resource, Role
from relight.schedulers.kubernetes import scheduler as kubernetes

pytestmark = pytest.mark.needs_kubernetes
SECRETS = {"HF_TOKEN": "hf_mine", "WANDB_API_KEY": "w-mine", "AWS_SECRET_ACCESS_KEY": "a-mine"}
PAGE = Path(__file__).parents[2] / "docs/clusters/kubernetes.md"


def rendered(env: dict[str, str], *args: str, **cfg: Any) -> Any:
    resource = Resource(1, 0, 1024)
    role = Role("main", "img", entrypoint="sh", args=args, env=env, resource=resource)
    return kubernetes.make().render(AppDef("job", [role]), {"namespace": "ns", **cfg}, "job-x1")


def test_secret_looking_variables_are_named_in_one_note() -> None:
    (note,) = rendered({**SECRETS, "EPOCHS": "3", "MAX_TOKENS": "512"}).notes
    assert "can read HF_TOKEN, WANDB_API_KEY, AWS_SECRET_ACCESS_KEY (" in note
    assert "#secrets" in note
    (note,) = rendered({}, "-c", "train --api-key mine").notes
    assert "can read its arguments (" in note
    assert rendered({"TOKENIZERS_PARALLELISM": "true"}, "-c", "train").notes == ()


@pytest.mark.parametrize("kind", ["job", "jobset", "volcano", "trainjob"])
def test_dry_run_hides_secrets_but_request_has_them(kind: str) -> None:
    import yaml

    request = rendered({**SECRETS, "EPOCHS": "3"}, "--password", "p-mine", kind=kind)
    assert "mine" not in request.text
    assert str(request.body).count("mine") == len(SECRETS) + 1
    *_, shown = yaml.safe_load_all(request.text)
    *_, sent = request.body["objects"]
    for value in (*SECRETS.values(), "p-mine"):
        sent = yaml.safe_load(yaml.safe_dump(sent).replace(value, "<hidden>"))
    assert shown == sent


def test_dry_run_without_secrets_equals_request() -> None:
    """It includes the agents' token, so kubectl accepts it."""
    import yaml

    request = rendered({"EPOCHS": "3"}, "-c", "echo $EPOCHS")
    assert list(yaml.safe_load_all(request.text)) == request.body["objects"]


def test_documented_recipes_give_pod_the_secret(tmp_path: Path) -> None:
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
