"""Apps, roles and resources are plain dataclasses, as code written for TorchX expects."""

import asyncio
import copy
import dataclasses
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S

import relight.job as specs
from relight.base.errors import UsageError
from relight.runner import Runner


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
    assert found["trainer"] is found.roles[0]
    assert "trainer" in found and "trainr" not in found and found.roles[0] not in found
    with pytest.raises(KeyError, match="has no role trainr"):
        found["trainr"]
    with pytest.raises(TypeError):
        list(found)  # type: ignore[call-overload]


def test_named_resource_knows_its_name_and_whether_it_is_a_slice() -> None:
    assert specs.named_resources["gpu.small"].get_resource_name() == "gpu.small"
    assert specs.Resource(1, 0, 512).get_resource_name() is None
    assert not specs.Resource(1, 0, 512).is_fractional()
    slice_of = {"torchx/named_resources.is_fractional": True}
    assert specs.Resource(1, 0, 512, tags=slice_of).is_fractional()


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


def test_override_function_is_called_once_for_concurrent_readers() -> None:
    started, finish = threading.Event(), threading.Event()
    calls = []

    def image() -> str:
        calls.append("image")
        started.set()
        finish.wait(LIMIT_S)
        return "built"

    role = specs.Role("r", "i", overrides={"image": image})
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(lambda: role.image)
        assert started.wait(LIMIT_S)
        others = [pool.submit(lambda: role.image) for _ in range(7)]
        finish.set()
        assert {each.result() for each in (first, *others)} == {"built"}
    assert calls == ["image"]


def test_override_function_may_read_other_overrides() -> None:
    role = specs.Role("r", "i", overrides={"name": lambda: "n"})
    role.overrides["image"] = lambda: f"image-of-{role.name}"
    assert role.image == "image-of-n"


def unavailable() -> str:
    raise OSError("not yet")


def test_role_can_be_copied_after_failed_override() -> None:
    role = specs.Role("r", "i", overrides={"image": unavailable})
    with pytest.raises(OSError, match="not yet"):
        role.image  # noqa: B018
    for copied in (copy.deepcopy(role), pickle.loads(pickle.dumps(role))):
        with pytest.raises(OSError, match="not yet"):
            copied.image  # noqa: B018


def test_override_task_is_rejected_while_it_cannot_run() -> None:
    async def image() -> str:
        return "built"

    async def read() -> str:
        task = asyncio.create_task(image())
        role = specs.Role("r", "i", overrides={"image": task})
        with pytest.raises(UsageError, match="override image of role r needs an event loop"):
            role.image  # noqa: B018
        await task
        return role.image

    assert asyncio.run(read()) == "built"


def test_override_may_be_a_task_of_another_event_loop() -> None:
    """The loop may run in another thread, or not at all."""

    async def image() -> str:
        return "built"

    loop = asyncio.new_event_loop()
    role = specs.Role("r", "i", overrides={"image": loop.create_task(image())})
    assert role.image == "built"
    role = specs.Role("r", "i", overrides={"image": loop.create_task(image())})
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        assert role.image == "built"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_awaitable_override_works_inside_a_running_event_loop() -> None:
    async def image() -> str:
        return "built"

    async def read() -> str:
        return specs.Role("r", "i", overrides={"image": image()}).image

    assert asyncio.run(read()) == "built"


def test_workspace_is_formatted_as_on_the_command_line() -> None:
    assert str(specs.Workspace({"/a": "", "/b": "sub"})) == "/a;/b:sub"
    assert not specs.Workspace({})


def test_workspace_is_parsed_as_on_the_command_line() -> None:
    for text, expected in (
        ("/a", {"/a": ""}),
        ("{/a: , /b: sub}", {"/a": "", "/b": "sub"}),
        ("# two\n/a:\n/b: sub  # below\n", {"/a": "", "/b": "sub"}),
    ):
        assert specs.Workspace.from_str(text) == specs.Workspace(expected)
    assert not specs.Workspace.from_str(None)
    assert not specs.Workspace.from_str("")


def test_only_single_workspace_without_target_is_unmapped() -> None:
    assert specs.Workspace({"/a": ""}).is_unmapped_single_project()
    assert not specs.Workspace({"/a": "sub"}).is_unmapped_single_project()
    assert not specs.Workspace({"/a": "", "/b": ""}).is_unmapped_single_project()
    assert not specs.Workspace({}).is_unmapped_single_project()


def test_workspace_is_merged_into_directory(tmp_path: Path) -> None:
    """A file's target is its path in the copy."""
    for name in ("a/one.py", "b/two.py", "conf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = specs.Workspace(
        {f"{tmp_path}/a": "", f"{tmp_path}/b": "sub", f"{tmp_path}/conf": "etc/c"}
    )
    found.merge_into(tmp_path / "out")
    files = [each for each in (tmp_path / "out").rglob("*") if each.is_file()]
    copied = {str(each.relative_to(tmp_path / "out")): each.read_text() for each in files}
    assert copied == {"one.py": "a/one.py", "sub/two.py": "b/two.py", "etc/c": "conf"}


def test_empty_workspace_copies_nothing(tmp_path: Path) -> None:
    specs.Workspace({}).merge_into(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_component_function_is_called_with_command_line_arguments() -> None:
    """Arguments take precedence over `config`, and `config` over `cmpnt_defaults`."""

    def train(*args: str, image: str = "i", n: int = 1, env: dict[str, str] | None = None) -> Any:
        role = specs.Role("r", image, args=list(args), num_replicas=n, env=env or {})
        return specs.AppDef("a", [role])

    found = specs.materialize_appdef(
        train, ["--env", "A=1,B=2", "--", "x", "-y"], {"image": "j", "n": "2"}, {"n": 3}
    )
    (role,) = found.roles
    assert (role.image, role.num_replicas, role.args) == ("j", 3, ["x", "-y"])
    assert role.env == {"A": "1", "B": "2"}
    assert specs.materialize_appdef(train, ["--n=4"], {}, {"n": 3}).roles[0].num_replicas == 4
    with pytest.raises(UsageError, match="train has no parameter --m"):
        specs.materialize_appdef(train, ["--m=4"])


def test_torchx_exceptions_are_raised_in_the_same_cases() -> None:
    with pytest.raises(specs.MalformedAppHandleException):
        specs.parse_app_handle("local:/x")
    with Runner() as runner:
        with pytest.raises(specs.UnknownSchedulerException):
            runner.scheduler("nosuch")
        with pytest.raises(specs.InvalidRunConfigException):
            runner.resolve_cfg("local", {"bogus": 1})
        with pytest.raises(specs.UnknownAppException):
            runner.status("local://relight/nosuch")
    assert specs.UnknownAppException is specs.UnknownSchedulerException is UsageError


def test_torchx_scheduler_names_are_not_exported() -> None:
    missing = {
        "CapabilityKey", "NA", "TORCHX_CONTEXT_NAME", "TORCHX_HOME", "app_metadata", "cases",
        "component_args_from_str", "get_type_name", "parse_args", "runopt", "runopts",
    }  # fmt: skip
    assert not missing & {*dir(specs), *vars(specs)}
    assert not {"format", "to_json"} & {*dir(specs.AppStatus)}


def test_statuses_can_be_created_with_torchx_names() -> None:
    state = specs.AppState.FAILED
    replica = specs.ReplicaStatus(
        id=1, role="r", state=state, hostname="h", structured_error_msg="why", hostaddr="10.0.0.1"
    )
    assert (replica.replica, replica.host, replica.error) == (1, "h", "why")
    assert (replica.hostaddr, replica.structured_error_msg) == ("10.0.0.1", "why")
    found = specs.AppStatus(
        state=state, num_restarts=2, msg="m", ui_url="u", roles=[specs.RoleStatus("r", [replica])]
    )
    assert (found.restarts, found.message, found.url, found.replicas) == (2, "m", "u", (replica,))
    assert found.structured_error_msg == "why"
    assert specs.AppStatus(state, structured_error_msg="w").structured_error_msg == "w"
    assert specs.AppStatus(state, structured_error_msg=specs.NONE) == specs.AppStatus(state)
    assert specs.AppStatus(state).structured_error_msg == specs.NONE
    assert specs.ReplicaStatus("r", 0, state, "h").hostaddr == "h"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_statuses_can_be_copied_and_changed(copied: Callable[[Any], Any]) -> None:
    replica = specs.ReplicaStatus(id=1, role="r", state=specs.AppState.FAILED, hostname="h")
    found = specs.AppStatus(specs.AppState.FAILED, "m", (replica,))
    assert copied(found) == found
    assert type(found._replace(message="n")) is specs.AppStatus


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
