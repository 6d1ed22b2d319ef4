"""Command lines, compared with TorchX 0.7.0's objects for them on Kubernetes.

The file next to this one has the output of `torchx run --dryrun -s kubernetes`, with one name for
all jobs. Each difference is a row in "Differences from TorchX" in docs/clusters/kubernetes.md.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from relight.cli.main import main

pytestmark = pytest.mark.needs_kubernetes
GOLDEN = Path(__file__).with_name("torchx-0.7-manifests.jsonl")
CASES = [json.loads(line) for line in GOLDEN.read_text().splitlines()]


def rendered(case: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return our objects for the same command line, with torchrun in the pods as in TorchX."""
    import yaml

    words = ["submit", "--dryrun", "--launcher=torchrun", "-s", "kubernetes"]
    options = "kind=volcano" if "namespace" in case["cfg"] else "kind=volcano,namespace=ns"
    words += ["-cfg", f"{case['cfg']},{options}", *case["line"].split()]
    assert main(words) == 0
    text = capsys.readouterr().out
    name = re.search(r"relight/app-id: (\S+)", text)[1]  # type: ignore[index]
    return list(yaml.safe_load_all(text.replace(name, "train-x7abc")))


def container(task: dict[str, Any]) -> dict[str, Any]:
    (found,) = task["template"]["spec"]["containers"]
    return dict(found)


def variables(task: dict[str, Any]) -> dict[str, str]:
    """Return the variables that TorchX also has, except for rank 0's address and secrets."""
    return {
        each["name"]: each["value"]
        for each in container(task)["env"]
        if "value" in each
        and each["name"] != "HF_TOKEN"
        and not each["name"].endswith("_RANK0_HOST")
        and not each["name"].startswith("RELIGHT_")
    }


def command(task: dict[str, Any], replica: int) -> list[str]:
    """Return the command, with one name for the variable with rank 0's host."""
    words = [
        word.replace("$(RELIGHT_REPLICA_ID)", str(replica)) for word in container(task)["command"]
    ]
    if "_RANK0_HOST=localhost" in " ".join(
        words[2:3]
    ):  # replica 0's own host is `localhost`, as in TorchX
        words = words[4:]
    return [re.sub(r"\$\{\w+:=localhost\}", "RANK0", word) for word in words]


def volumes(task: dict[str, Any]) -> dict[str, Any]:
    found = {each["name"]: each for each in task["template"]["spec"]["volumes"]}
    found["dshm"] = {"name": "dshm", "emptyDir": {"medium": "Memory"}}  # without our sizeLimit
    return found


@pytest.mark.parametrize("case", CASES, ids=[case["line"] for case in CASES])
def test_manifest_matches_one_generated_by_torchx(
    case: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    *_, ours = rendered(case, capsys)
    theirs = case["manifest"]["spec"]
    spec = ours["spec"]
    for name in ("schedulerName", "queue", "priorityClassName"):
        assert spec.get(name) == theirs.get(name)
    assert spec["plugins"]["env"] == theirs["plugins"]["env"]
    assert set(theirs["plugins"]["svc"]) <= set(spec["plugins"]["svc"])
    assert spec["minAvailable"] == sum(each.get("minAvailable", 1) for each in theirs["tasks"])
    (task,) = spec["tasks"]
    assert task["replicas"] == len(theirs["tasks"])
    for replica, other in enumerate(theirs["tasks"]):
        assert other["name"] == f"{task['name']}-{replica}"
        assert command(task, replica) == command(other, replica)
        assert variables(other).items() <= variables(task).items()
        assert volumes(task) == volumes(other)
        mine, pod = container(task), task["template"]["spec"]
        its, its_pod = container(other), other["template"]["spec"]
        for name in ("image", "volumeMounts"):
            assert mine[name] == its[name]
        for name in ("ports", "securityContext"):
            assert mine.get(name, {}) == (its[name] or {})
        assert mine["resources"]["limits"] == its["resources"]["limits"]
        requests = dict(its["resources"]["requests"])
        if requests["memory"] == "0M":  # of 1024M; ours are at least half of the limits
            requests["memory"] = "512M"
        assert mine["resources"]["requests"].items() >= requests.items()
        for name in ("restartPolicy", "serviceAccountName"):
            assert pod.get(name) == its_pod.get(name)
        assert pod.get("nodeSelector", {}) == its_pod["nodeSelector"]
        labels = {**other["template"]["metadata"]["labels"]}
        for name in ("app.kubernetes.io/managed-by", "torchx.pytorch.org/replica-id",
                     "torchx.pytorch.org/version"):  # fmt: skip
            del labels[name]
        assert labels.items() <= task["template"]["metadata"]["labels"].items()


def test_secret_is_not_included_in_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    (case,) = (each for each in CASES if "HF_TOKEN" in each["line"])
    assert "'value': 'mine'" in str(case["manifest"])
    assert "mine" not in str(rendered(case, capsys))
