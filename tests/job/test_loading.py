"""Component addresses, and errors in component files."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import UsageError
from relight.job import components
from relight.job.app import AppDef, BindMount, DeviceMount, RetryPolicy, VolumeMount
from relight.job.components import loading

GOOD = """
import relight.job as specs

def one(n: int = 1) -> specs.AppDef:
    return specs.AppDef("one", [specs.Role("r", "", entrypoint="true", num_replicas=n)])

class Two:
    def __init__(self, n: int) -> None:
        self.n = n

    def build(self) -> specs.AppDef:
        return one(self.n)
"""


@pytest.fixture(autouse=True)
def modules() -> Iterator[None]:
    """Forget modules imported by a test."""
    before, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]
    sys.path[:] = path


def built(address: str, *args: Any) -> AppDef:
    return loading.call(address, loading.find(address), args, {}, "relight")


@pytest.mark.parametrize("name", components.names())
def test_each_builtin_component_can_be_loaded(name: str) -> None:
    """Each has a command line with help."""
    from relight.job.components.arguments import read_signature

    signature = read_signature(name, loading.find(name))
    assert signature.description
    assert all(parameter.help for parameter in signature.parameters)


def test_component_is_found_by_file_module_or_package(place: Path) -> None:
    """Relative imports within a package work."""
    (place / "good.py").write_text(GOOD)
    package = place / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "base.py").write_text(GOOD)
    (package / "use.py").write_text("from .base import one\n\ndef two(): return one(2)\n")
    assert built("good.py:one").name == "one"
    assert built(f"{place}/good.py:one", 3).roles[0].num_replicas == 3
    assert built("good:one").name == "one"
    assert built("good.one").name == "one"
    assert built("pack/use.py:two").roles[0].num_replicas == 2
    assert built("pack.use:two").roles[0].num_replicas == 2
    assert built("good.py:Two", 4).roles[0].num_replicas == 4


def test_user_file_may_shadow_stdlib_module_name(place: Path) -> None:
    """After loading json.py, `json` is still Python's own module."""
    import json

    (place / "json.py").write_text(GOOD)
    assert built("json.py:one").name == "one"
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("text", "address", "message"),
    [
        ("def f(:\n", "bad.py:f", "can't load bad.py:1: SyntaxError"),
        ("x = 1\n1 / 0\n", "bad.py:f", "can't load bad.py:2: ZeroDivisionError"),
        ("raise SystemExit(3)\n", "bad.py:f", "can't load bad.py:1: SystemExit: 3"),
        ("import nope\n", "bad.py:f", "can't load bad.py:1: ModuleNotFoundError"),
        ("def g(): ...\n", "bad.py:f", "no f in bad.py"),
        ("f = 1\n", "bad.py:f", "f in bad.py is not a function"),
        ("def f():\n    return 1\n", "bad.py:f", "bad.py:f returned a int, not an AppDef"),
        ("def f():\n\n    raise KeyError('x')\n", "bad.py:f", "failed in bad.py:3: KeyError: 'x'"),
        ("", "other.py:f", "no such file: other.py"),
        ("", "no.such:f", "no such file or module: no.such"),
        ("", "bad.py", "unknown component: bad.py"),
        ("", "utils.ecoh", "unknown component: utils.ecoh"),
    ],
)
def test_broken_component_file_is_reported_on_one_line_with_location(
    place: Path, text: str, address: str, message: str
) -> None:
    """This holds whatever the file does."""
    (place / "bad.py").write_text(text)
    with pytest.raises(UsageError) as caught:
        built(address)
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert "bad" not in sys.modules or text.startswith(("def", "f =")) or not text


def test_error_suggests_closest_component_name(place: Path) -> None:
    """The hint also names the closest file."""
    (place / "mine.py").write_text(GOOD)
    for address, hint in (
        ("utils.ecoh", "did you mean utils.echo?"),
        ("mien.py:one", "did you mean mine.py?"),
        ("mine.py:onee", "did you mean one?"),
    ):
        with pytest.raises(UsageError) as caught:
            loading.find(address)
        assert caught.value.hint == hint


def test_packages_can_add_components_under_their_own_alias(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry point group is relight.components."""
    (place / "theirs.py").write_text(GOOD)
    for number, alias in enumerate(("team", "_hidden")):
        info = place / f"p{number}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: p{number}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[relight.components]\n{alias} = theirs\n")
    monkeypatch.syspath_prepend(str(place))
    assert set(loading.registered()) == {"team.one", "one"}
    assert loading.find("utils.echo").__module__ == "relight.job.components.utils"
    assert built("team.one").name == "one"


def test_packages_can_add_components_through_torchx_entry_points(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group torchx.components adds all modules of a package. A package that fails to load is
    only an error for its own components.
    """
    (place / "theirs_x" / "more").mkdir(parents=True)
    for path in ("__init__.py", "more/__init__.py", "more/deep.py"):
        (place / "theirs_x" / path).write_text(GOOD)
    (place / "no_torchx.py").write_text("import torchx.specs\n")
    info = place / "p-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: p\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[torchx.components]\nteam = theirs_x\nbroken = no_torchx\n"
    )
    monkeypatch.syspath_prepend(str(place))
    assert set(loading.registered()) == {"team.one", "team.more.one", "team.more.deep.one"}
    assert built("team.more.deep.one").name == "one"
    with pytest.raises(UsageError, match=r"can't load the components broken \(no_torchx\)") as no:
        loading.find("broken.train")
    assert "pip install torchx-nightly" in no.value.hint


class Policy(Enum):
    APPLICATION = "APPLICATION"


@dataclass
class TheirResource:
    cpu: int = 1
    gpu: int = 2
    memMB: int = 3
    capabilities: dict[str, Any] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    tags: dict[str, object] = field(default_factory=dict)


@dataclass
class TheirBind:
    src_path: str = "/a"
    dst_path: str = "/b"
    read_only: bool = True


@dataclass
class TheirVolume:
    src: str = "v"
    dst_path: str = "/b"
    read_only: bool = False


@dataclass
class TheirDevice:
    src_path: str = "/dev/x"
    dst_path: str = "/dev/y"
    permissions: str = "r"


@dataclass
class TheirRole:
    name: str = "r"
    image: str = "i"
    min_replicas: int | None = None
    entrypoint: str = "e"
    args: list[str] = field(default_factory=lambda: ["$${${rank0_env}:=localhost}"])
    env: dict[str, str] = field(default_factory=lambda: {"A": "1"})
    num_replicas: int = 2
    max_retries: int = 1
    retry_policy: Policy = Policy.APPLICATION
    resource: TheirResource = field(default_factory=TheirResource)
    port_map: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    mounts: list[Any] = field(default_factory=lambda: [TheirBind(), TheirVolume(), TheirDevice()])
    workspace: None = None
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass
class TheirApp:
    name: str = "a"
    roles: list[TheirRole] = field(default_factory=lambda: [TheirRole()])
    metadata: dict[str, str] = field(default_factory=dict)


def test_torchx_app_is_converted_completely() -> None:
    """This includes mounts and the retry policy."""
    theirs = TheirApp()
    app = loading.call("theirs", lambda: theirs, (), {}, "relight")
    (role,) = app.roles
    assert isinstance(app, AppDef)
    assert role.args == ["$${${rank0_env}:=localhost}"]
    assert (role.resource.cpu, role.resource.gpu, role.resource.memMB) == (1, 2, 3)
    assert role.retry_policy is RetryPolicy.APPLICATION
    assert role.mounts == [
        BindMount("/a", "/b", True),
        VolumeMount("v", "/b"),
        DeviceMount("/dev/x", "/dev/y", "r"),
    ]
