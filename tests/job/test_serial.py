"""Apps to JSON and back."""

import json
from pathlib import Path
from typing import Any

import pytest

import relight.job as specs
from relight.base.errors import UsageError
from relight.job.serial import from_json, to_json

CASES = [
    json.loads(line)["stdout_json"]["app"]
    for line in (Path(__file__).parent / "torchx-golden.jsonl").read_text().splitlines()
    if "app" in json.loads(line).get("stdout_json", {})
]


@pytest.mark.parametrize("app", CASES, ids=lambda app: str(app["name"]))
def test_torchx_app_json_round_trips(app: dict[str, Any]) -> None:
    assert to_json(from_json(app)) == app


def test_all_app_fields_survive_json() -> None:
    role = specs.Role(
        name="r",
        image="i",
        min_replicas=1,
        entrypoint="e",
        args=["a", ""],
        env={"A": "1"},
        num_replicas=2,
        max_retries=3,
        retry_policy=specs.RetryPolicy.ROLE,
        resource=specs.Resource(1, 2, 3, {"a": 1}, {"d": 2}, {"t": "x"}),
        port_map={"p": 1},
        metadata={"k": {"l": [1, None]}},
        mounts=[
            specs.BindMount("/a", "/b", True),
            specs.VolumeMount("v", "/b"),
            specs.DeviceMount("/dev/x", "/dev/y", "r"),
        ],
    )
    app = specs.AppDef("a", [role], {"m": "n"})
    assert from_json(json.loads(json.dumps(to_json(app)))) == app


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": 1}, "app.name: expected a string, not 1"),
        ({"bogus": 1}, "app has no bogus"),
        ({"roles": 3}, "app.roles: expected a list"),
        ({"roles": [{"name": "r"}]}, r"app.roles\[0\].image: expected a string"),
        ({"roles": [{"name": "r", "image": "", "env": {"A": 1}}]}, "env.A: expected a string"),
        ({"roles": [{"name": "r", "image": "", "mounts": [{}]}]}, r"mounts\[0\]: expected a mount"),
        ({"roles": [{"name": "r", "image": "", "num_replicas": True}]}, "expected a number"),
    ],
)
def test_invalid_app_json_error_includes_location(change: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        from_json({"name": "a", "roles": [], "metadata": {}, **change})
