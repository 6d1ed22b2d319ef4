"""Which schedulers exist, and how they are found."""

from types import SimpleNamespace
from typing import Any

import pytest

from relight.base import plugins
from relight.base.errors import UsageError
from relight.schedulers import registry
from relight.schedulers.docker import scheduler as docker


class Entry:
    """An entry point as defined by an installed package."""

    value = "package.module:make"

    def __init__(self, name: str, found: Any) -> None:
        self.name = name
        self.found = found

    def load(self) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def test_scheduler_is_found_by_name_and_alias() -> None:
    """The alias is TorchX's name."""
    assert registry.find("docker").name == registry.find("local_docker").name == "docker"
    assert registry.find("local_cwd").name == "local"
    assert registry.same("local_docker", "docker") and not registry.same("docker", "local")


def test_unknown_scheduler_error_suggests_closest_name_or_lists_all() -> None:
    with pytest.raises(UsageError, match="unknown scheduler: dokcer") as caught:
        registry.find("dokcer")
    assert caught.value.hint == "did you mean docker?"
    with pytest.raises(UsageError) as caught:
        registry.find("x")
    assert "local, docker, slurm" in caught.value.hint


def test_installed_packages_can_add_schedulers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They can be modules with `make`, or functions. One that fails to load is a one-line error,
    and only when requested.
    """
    broken = Entry("broken", ImportError("no module\nanywhere"))
    module = SimpleNamespace(make=docker.Docker)
    entries = [Entry("module", module), Entry("function", docker.Docker), broken]
    theirs = [Entry("theirs", ImportError("never loaded"))]
    monkeypatch.setattr(
        plugins,
        "find",
        lambda group: {x.name: x for x in (entries if "relight" in group else theirs)},
    )
    assert [registry.find(name).name for name in ("module", "function")] == ["docker", "docker"]
    assert registry.names()[-3:] == ["module", "function", "broken"]
    with pytest.raises(UsageError, match=r"can't load the scheduler broken") as caught:
        registry.find("broken")
    assert "\n" not in caught.value.message
    assert registry.choose() != "broken"
    with pytest.raises(
        UsageError, match=r"the scheduler theirs .* is written for TorchX"
    ) as caught:
        registry.find("theirs")
    assert "torchx run -s theirs" in caught.value.hint
