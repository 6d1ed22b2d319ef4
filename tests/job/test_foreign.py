"""Return values of components: TorchX's apps are accepted, and anything other than an app is
reported.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import relight.job as specs
from relight.base.errors import UsageError
from relight.job.components import arguments, loading, torchx_components
from relight.runner.validation import validate


def theirs(**fields: Any) -> SimpleNamespace:
    """Return an app shaped like TorchX's, with one role and some of its fields replaced."""
    role = {
        "name": "r", "image": "i", "min_replicas": None, "entrypoint": "e", "args": ["a"],
        "env": {}, "num_replicas": 1, "max_retries": 0,
        "retry_policy": SimpleNamespace(name="REPLICA"),
        "resource": SimpleNamespace(cpu=1, gpu=0, memMB=2, capabilities={}, devices={}, tags={}),
        "port_map": {}, "metadata": {}, "mounts": [], "workspace": None, **fields,
    }  # fmt: skip
    return SimpleNamespace(name="a", roles=[SimpleNamespace(**role)], metadata={})


def test_all_fields_of_torchx_role_are_converted() -> None:
    """A resource from an old version lacks tags."""
    old = SimpleNamespace(cpu=1, gpu=2, memMB=3, capabilities={"c": 1}, devices={"d": 1})
    app = torchx_components.to_app(theirs(resource=old, args=["a", 1], env={"A": 1}), "c")
    (role,) = app.roles
    assert role == specs.Role(
        name="r", image="i", entrypoint="e", args=["a", "1"], env={"A": "1"},
        retry_policy=specs.RetryPolicy.REPLICA,
        resource=specs.Resource(1, 2, 3, {"c": 1}, {"d": 1}, {}),
    )  # fmt: skip


def test_workspace_of_torchx_role_is_converted() -> None:
    found = theirs(workspace=SimpleNamespace(projects={"/a": "sub"}))
    (role,) = torchx_components.to_app(found, "c").roles
    assert role.workspace == specs.Workspace({"/a": "sub"})
    app = specs.AppDef("a", [role])
    assert specs.from_json(specs.to_json(app)) == app


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "c returned nothing, not an AppDef"),
        (1, "c returned a int, not an AppDef"),
        (SimpleNamespace(name="a"), "c returned a SimpleNamespace, not an AppDef"),
        (theirs(args="ab"), "args of role r: expected a list, not 'ab'"),
        (theirs(num_replicas="x"), "invalid AppDef: invalid literal"),
        (theirs(env=None), "invalid AppDef: "),
        (theirs(resource=None), "invalid AppDef: "),
        (theirs(retry_policy=SimpleNamespace(name="HOT_SPARE")), "retry policy HOT_SPARE"),
        (theirs(mounts=[1]), "invalid AppDef: "),
    ],
)
def test_return_value_other_than_an_app_is_reported_on_one_line(
    found: object, message: str
) -> None:
    """The error names the returned type, or the part that is unusable."""
    with pytest.raises(UsageError) as caught:
        torchx_components.to_app(found, "c")
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def ours(**fields: Any) -> specs.AppDef:
    return specs.AppDef(
        "a", [specs.Role(**{"name": "r", "image": "", "entrypoint": "e", **fields})]
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: specs.AppDef("a"), "app a has no roles"),
        (lambda: specs.AppDef("a", [None]), "app a has a role of type NoneType"),
        (lambda: specs.AppDef("a", ours().roles * 2), "app a has two roles named r"),
        (lambda: specs.AppDef(None, ours().roles), "app has None for its name: expected str"),
        (lambda: specs.AppDef("a\nb", ours().roles), "app name 'a\\nb' contains unprintable char"),
        (lambda: specs.AppDef("a", ours().roles, None), "app a has None for its metadata"),
        (lambda: ours(name=""), "app a has a role without a name"),
        (lambda: ours(name="a\tb"), "role name 'a\\tb' contains unprintable characters"),
        (lambda: ours(name=3), "3 for its name: expected str"),
        (lambda: ours(image=None), "None for its image: expected str"),
        (lambda: ours(entrypoint=""), "role r has no entrypoint"),
        (lambda: specs.AppDef("a", [specs.Role("r", "")]), "role r has no entrypoint"),
        (lambda: ours(entrypoint=None), "None for its entrypoint: expected str"),
        (lambda: ours(args=[1]), "role r has an argument that is not a string: 1"),
        (lambda: ours(args=["a\0"]), "an argument that is not a string: 'a\\x00'"),
        (lambda: ours(num_replicas=0), "role r has num_replicas=0: must be at least 1"),
        (lambda: ours(num_replicas="2"), "'2' for its num_replicas: expected int"),
        (lambda: ours(num_replicas=1.5), "1.5 for its num_replicas: expected int"),
        (lambda: ours(num_replicas=True), "True for its num_replicas: expected int"),
        (
            lambda: ours(min_replicas=2),
            "role r has min_replicas=2: must be between 1 and num_replicas=1",
        ),
        (
            lambda: ours(min_replicas=0),
            "role r has min_replicas=0: must be between 1 and num_replicas=1",
        ),
        (lambda: ours(min_replicas="1"), "'1' for its min_replicas: expected int or None"),
        (lambda: ours(max_retries=-1), "role r has max_retries=-1: must be at least 0"),
        (lambda: ours(retry_policy="NOPE"), "'NOPE' for its retry_policy: expected RetryPolicy"),
        (lambda: ours(resource="gpu.small"), "'gpu.small' for its resource: expected Resource"),
        (lambda: ours(resource=specs.Resource("1", 0, 0)), "'1' for its cpu: expected int or fl"),
        (lambda: ours(mounts=["type=bind"]), "'type=bind' for its mount: expected BindMount or "),
        (lambda: ours(port_map={"http": "80"}), "'80' for its port http: expected int"),
        (lambda: ours(env=["A"]), "['A'] for its env: expected dict"),
        (lambda: ours(env={"A": 1}), "role r has an environment variable whose value is not a "
        "string: A"),
        (lambda: ours(env={"A": "\0"}), "role r has an environment variable whose value is not a "
        "string: A"),
        (lambda: ours(env={"A=B": "1"}), "role r: 'A=B' is not a valid environment"),
        (lambda: ours(env={"": "1"}), "role r: '' is not a valid environment"),
        (lambda: ours(metadata=[1]), "[1] for its metadata: expected dict"),
    ],
)  # fmt: skip
def test_app_that_cannot_run_is_rejected(make: Callable[[], Any], message: str) -> None:
    """It never reaches a scheduler."""
    with pytest.raises(UsageError) as caught:
        validate(make())
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_string_instead_of_argument_list_is_rejected() -> None:
    """It would be split into single letters."""
    with pytest.raises(TypeError, match="args of role r: expected a list, not 'ab'"):
        ours(args="ab")


# A TorchX file, except for the line that imports specs.
FILE = '''
"""Ours."""
from typing import Dict, Optional

import relight.job as specs


def trainer(*script_args: str, image: str, h: str = "gpu.small", nodes: int = 2,
            env: Optional[Dict[str, str]] = None, mounts: list[str] = []) -> specs.AppDef:
    """Trains, and evaluates beside it.

    Args:
        script_args: for the script
        image: of the container
    """
    return specs.AppDef(
        name="ours",
        roles=[
            specs.Role(
                name="trainer",
                image=image,
                entrypoint="python",
                args=["-m", "ours.train", "--out", f"/out/{specs.macros.app_id}", *script_args],
                env={"RANK0": f"$${{{specs.macros.rank0_env}:=localhost}}", **(env or {})},
                num_replicas=nodes,
                max_retries=3,
                retry_policy=specs.RetryPolicy.APPLICATION,
                resource=specs.resource(h=h),
                port_map={"c10d": 29500},
                mounts=specs.parse_mounts(mounts),
            ),
            specs.Role(
                name="reader",
                image=image,
                entrypoint="cat",
                args=[specs.macros.img_root, specs.macros.replica_id],
                resource=specs.Resource(cpu=1, gpu=0, memMB=64),
                mounts=[
                    specs.BindMount(src_path="/a", dst_path="/b", read_only=True),
                    specs.VolumeMount(src="v", dst_path="/c"),
                    specs.DeviceMount(src_path="/dev/x", dst_path="/dev/y", permissions="r"),
                ],
            ),
        ],
        metadata={"team": "vision"},
    )


def named() -> specs.AppDef:
    """All names that such a file uses are there."""
    assert specs.NULL_RESOURCE.cpu == -1
    assert specs.named_resources["gpu.small"] == specs.resource(h="gpu.small")
    assert specs.AppState.SUCCEEDED.is_over
    return specs.AppDef("n", [specs.Role(name="n", image="", entrypoint="true")])
'''


@pytest.fixture
def build(place: Path) -> Callable[..., specs.AppDef]:
    """Return a function that calls a function in the file with a command line."""
    (place / "ours_for_torchx.py").write_text(FILE)

    def call(name: str, *words: str) -> specs.AppDef:
        address = f"ours_for_torchx.py:{name}"
        function = loading.find(address)
        signature = arguments.read_signature(address, function)
        rest, values = arguments.bind(signature, words, {})
        return validate(loading.call(address, function, rest, values, "relight"))

    return call


def test_torchx_component_works_with_one_changed_line(build: Callable[..., specs.AppDef]) -> None:
    """relight.job has everything that a TorchX component uses from `specs`."""
    app = build("trainer", "--image", "i", "--env", "A=1", "--mounts", "type=bind,src=/x,dst=/y",
                "--", "--lr", "1", "--lr", "2")  # fmt: skip
    trainer, reader = app.roles
    assert trainer.args[-5:] == ["/out/${app_id}", "--lr", "1", "--lr", "2"]
    assert trainer.env == {"RANK0": "$${${rank0_env}:=localhost}", "A": "1"}
    assert trainer.resource.gpu == 1
    assert trainer.mounts == [specs.BindMount("/x", "/y")]
    assert reader.args == ["${img_root}", "${replica_id}"]
    assert [type(mount).__name__ for mount in reader.mounts] == [
        "BindMount", "VolumeMount", "DeviceMount"
    ]  # fmt: skip
    assert (app.name, app.metadata) == ("ours", {"team": "vision"})
    assert build("named").name == "n"


def test_dir_of_package_lists_all_public_names() -> None:
    """All of them are loaded on access. Any other name raises AttributeError."""
    assert set(vars(specs)["__all__"]) == set(dir(specs))
    assert all(getattr(specs, name) is not None for name in dir(specs))
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        specs.nope  # type: ignore[attr-defined]  # noqa: B018
    assert isinstance(specs.named_resources, Mapping)
