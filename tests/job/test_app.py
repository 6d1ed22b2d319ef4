"""Apps, roles and resources are plain dataclasses, as code written for TorchX expects."""

import asyncio
import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import relight.job as specs


def app() -> specs.AppDef:
    role = specs.Role(
        "trainer", "image", args=["a"], env={"A": "1"}, resource=specs.resource(h="gpu.small"),
        mounts=[specs.BindMount("/a", "/b")], workspace=specs.Workspace({"/src": "sub"}),
    )  # fmt: skip
    return specs.AppDef("app", [role], {"team": "vision"})


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_apps_can_be_copied_and_pickled(copied: Callable[[specs.AppDef], specs.AppDef]) -> None:
    """Changing a copy doesn't affect the original."""
    found = copied(app())
    assert found == app()
    found.roles[0].env["A"] = "2"
    found.roles[0].resource.tags.clear()
    assert found != app()


def test_app_converts_to_a_dict_of_plain_values() -> None:
    found = dataclasses.asdict(app())
    (role,) = found["roles"]
    assert (role["args"], role["env"], role["mounts"][0]["src_path"]) == (["a"], {"A": "1"}, "/a")
    assert role["resource"]["tags"] == {"torchx/named_resources.name": "gpu.small"}
    assert found["metadata"] == {"team": "vision"}


def test_apps_can_be_changed_in_place() -> None:
    found = app()
    role = found.roles[0]
    role.env["B"] = "2"
    role.args += ["b"]
    role.num_replicas = 2
    role.resource.gpu = 8
    found.roles.append(specs.Role("reader", "image"))
    assert dataclasses.replace(role, args=[*role.args, "c"]).args == ["a", "b", "c"]
    assert role.args + ["d"] == ["a", "b", "d"]  # noqa: RUF005  # as users write it
    assert specs.Role("other", "image").env == {}


def test_role_can_be_looked_up_by_name() -> None:
    found = app()
    assert found.get_role("trainer") is found.roles[0]
    with pytest.raises(KeyError, match="has no role trainr; did you mean trainer"):
        found.get_role("trainr")


def test_override_function_is_called_once_when_field_is_read() -> None:
    """As in TorchX (nightly 2026.10.26), an override takes precedence over the field, and may be
    awaitable.
    """
    calls = list[str]()

    def image() -> str:
        calls.append("image")
        return "built"

    async def arguments() -> list[str]:
        return ["late"]

    role = specs.Role("r", "i", overrides={"image": image, "args": arguments()})
    assert not calls
    assert (role.image, role.image, role.args) == ("built", "built", ["late"])
    assert calls == ["image"]
    assert dataclasses.asdict(role)["image"] == "built"
    assert pickle.loads(pickle.dumps(role)).image == "built"


def test_override_function_that_raises_is_called_again() -> None:
    answers: list[Any] = [OSError("not yet"), "built"]

    def image() -> Any:
        found = answers.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    role = specs.Role("r", "i", overrides={"image": image})
    with pytest.raises(OSError, match="not yet"):
        role.image  # noqa: B018
    assert role.image == "built"


def test_awaitable_override_works_inside_a_running_event_loop() -> None:
    async def image() -> str:
        return "built"

    async def read() -> str:
        return specs.Role("r", "i", overrides={"image": image()}).image

    assert asyncio.run(read()) == "built"


def test_workspace_is_formatted_as_on_the_command_line() -> None:
    assert str(specs.Workspace({"/a": "", "/b": "sub"})) == "/a;/b:sub"
    assert not specs.Workspace({})


def test_status_reports_whether_job_succeeded() -> None:
    failed = specs.ReplicaStatus("r", 0, specs.AppState.FAILED, "host", 3)
    found = specs.AppStatus(specs.AppState.FAILED, "why", (failed,), 1, "http://x")
    assert found.is_terminal() and not specs.AppStatus(specs.AppState.RUNNING).is_terminal()
    with pytest.raises(specs.AppStatusError, match="the job is FAILED: why") as caught:
        found.raise_for_status()
    assert caught.value.status is found
    assert caught.value.exit_code == 3
    specs.AppStatus(specs.AppState.SUCCEEDED).raise_for_status()
    assert found.roles == [specs.RoleStatus("r", [failed])]
    assert (found.msg, found.num_restarts, found.ui_url) == ("why", 1, "http://x")
    assert (failed.id, failed.hostname) == (0, "host")
