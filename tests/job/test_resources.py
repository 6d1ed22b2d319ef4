"""Named resources: each has TorchX's numbers, and a misspelt name yields a suggestion."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import relight.job as specs
from relight.base.errors import UsageError
from relight.job.resources import NamedResources, own, resource

# Name, cores, GPUs, memory in MiB, other devices.
TABLE = """
gpu.small 8 1 32768
gpu.medium 16 2 65536
gpu.large 32 4 131072
gpu.xlarge 64 8 262144
cpu.nano 1 0 512
cpu.micro 1 0 1024
cpu.small 1 0 2048
cpu.medium 2 0 4096
cpu.large 2 0 8192
cpu.xlarge 8 0 32768
aws_t3.medium 2 0 3932
aws_m5.large 2 0 7864
aws_m5.xlarge 4 0 15728
aws_m5.2xlarge 8 0 31456
aws_m5.4xlarge 16 0 62912
aws_m5.8xlarge 32 0 125824
aws_m5.12xlarge 48 0 188736
aws_m5.16xlarge 64 0 251648
aws_m5.24xlarge 96 0 377472
aws_m5.metal 96 0 377472
aws_m5d.large 2 0 7864
aws_m5d.xlarge 4 0 15728
aws_m5d.2xlarge 8 0 31456
aws_m5d.4xlarge 16 0 62912
aws_m5d.8xlarge 32 0 125824
aws_m5d.12xlarge 48 0 188736
aws_m5d.16xlarge 64 0 251648
aws_m5d.24xlarge 96 0 377472
aws_m5d.metal 96 0 377472
aws_c5.18xlarge 72 0 139586
aws_p3.2xlarge 8 1 59963
aws_p3.8xlarge 32 4 239852
aws_p3.16xlarge 64 8 479704
aws_p3dn.24xlarge 96 8 754944 efa=1
aws_p4d.24xlarge 96 8 1132416 efa=4
aws_p4de.24xlarge 96 8 1132416 efa=4
aws_p5.48xlarge 192 8 2013184 efa=32
aws_p5e.48xlarge 192 8 2013184 efa=32
aws_p5en.48xlarge 192 8 2013184 efa=16
aws_p6-b200.48xlarge 192 8 2013184 efa=8
aws_p6-b300.48xlarge 192 8 4026368 efa=16
aws_p6e-gb200.36xlarge 144 4 943680 efa=16
aws_g4dn.xlarge 4 1 15728
aws_g4dn.2xlarge 8 1 31456
aws_g4dn.4xlarge 16 1 62912
aws_g4dn.8xlarge 32 1 125824 efa=1
aws_g4dn.16xlarge 64 1 251648 efa=1
aws_g4dn.12xlarge 48 4 188736 efa=1
aws_g4dn.metal 96 8 377472 efa=1
aws_g5.xlarge 4 1 15728
aws_g5.2xlarge 8 1 31456
aws_g5.4xlarge 16 1 62912
aws_g5.8xlarge 32 1 125824 efa=1
aws_g5.16xlarge 64 1 251648 efa=1
aws_g5.12xlarge 48 4 188736 efa=1
aws_g5.24xlarge 96 4 377472 efa=1
aws_g5.48xlarge 192 8 754944 efa=1
aws_g6e.xlarge 4 1 31456
aws_g6e.2xlarge 8 1 62912
aws_g6e.4xlarge 16 1 125824
aws_g6e.8xlarge 32 1 251648
aws_g6e.16xlarge 64 1 503296
aws_g6e.12xlarge 48 4 377472
aws_g6e.24xlarge 96 4 754944 efa=2
aws_g6e.48xlarge 192 8 1509888 efa=4
aws_trn1.2xlarge 8 0 31456 neuron=1
aws_trn1.32xlarge 128 0 503296 efa=8 neuron=16
aws_inf2.xlarge 4 0 15728 neuron=1
aws_inf2.8xlarge 32 0 125824 neuron=1
aws_inf2.24xlarge 96 0 377472 neuron=6
aws_inf2.48xlarge 192 0 754944 neuron=12
NULL -1 -1 -1
MISSING -1 -1 -1
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]
DEVICES = {"efa": "vpc.amazonaws.com/efa", "neuron": "aws.amazon.com/neurondevice"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0]))
def test_named_resources_match_torchx(row: list[str]) -> None:
    """Their numbers, devices, machine type and name are the same."""
    name, cpu, gpu, memory, *devices = row
    found = specs.named_resources[name]
    assert (found.cpu, found.gpu, found.memMB) == (int(cpu), int(gpu), int(memory))
    pairs = (each.split("=") for each in devices)
    assert dict(found.devices) == {DEVICES[key]: int(number) for key, number in pairs}
    kind = "node.kubernetes.io/instance-type"
    assert dict(found.capabilities) == ({kind: name[4:]} if name.startswith("aws_") else {})
    own = {} if name in ("NULL", "MISSING") else {"torchx/named_resources.name": name}
    assert found.tags == own


def test_null_resource_has_a_name() -> None:
    """As in TorchX (nightly 2026.10.26), it is untagged."""
    assert specs.named_resources["NULL"] == specs.NULL_RESOURCE
    assert specs.named_resources["null"] == specs.NULL_RESOURCE


def test_changing_a_named_resource_does_not_affect_others() -> None:
    specs.named_resources["aws_p5.48xlarge"].devices.clear()
    assert specs.named_resources["aws_p5.48xlarge"].devices


def test_resource_names_match_table() -> None:
    assert list(specs.named_resources) == [row[0] for row in ROWS]
    assert len(specs.named_resources) == len(ROWS) == 73
    assert "gpu.small" in specs.named_resources
    assert "gpu.smal" not in specs.named_resources


@pytest.mark.parametrize("name", ["GPU.Small", "AWS_P5.48XLARGE"])
def test_resource_lookup_is_case_insensitive(name: str) -> None:
    found = specs.named_resources[name]
    assert found.tags["torchx/named_resources.name"].lower() == name.lower()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("gpu.smal", "gpu.small"),
        ("gpu_large", "gpu.large"),
        ("cpu.xlrage", "cpu.xlarge"),
        ("p4d.24xlarge", "aws_p4d.24xlarge"),
        ("aws_g5.2xlarg", "aws_g5.2xlarge"),
        ("trn1.32xlarge", "aws_trn1.32xlarge"),
    ],
)
def test_error_suggests_closest_resource_name(wrong: str, right: str) -> None:
    with pytest.raises(UsageError) as caught:
        resource(h=wrong)
    assert caught.value.message == f"unknown named resource: {wrong}"
    assert caught.value.hint == f"did you mean {right}?"


def test_error_lists_all_resource_names_if_none_is_close() -> None:
    with pytest.raises(UsageError) as caught:
        resource(h="zzzzzzzz")
    assert all(row[0] in caught.value.hint for row in ROWS if row[0] not in ("NULL", "MISSING"))


@given(st.text(max_size=40))
def test_any_name_gives_a_resource_or_a_usage_error(name: str) -> None:
    """No text makes the lookup fail in any other way."""
    try:
        found = specs.named_resources[name]
    except UsageError as error:
        assert name in error.message
    else:
        known = (
            "NULL" if found == specs.NULL_RESOURCE else found.tags["torchx/named_resources.name"]
        )
        assert known.lower() == name.lower()


def test_explicit_zero_is_not_replaced_by_default() -> None:
    """Only missing values get a default."""
    assert resource() == specs.Resource(2, 0, 1024)
    assert resource(cpu=0, gpu=0, memMB=0) == specs.Resource(0, 0, 0)
    assert resource(cpu=4, gpu=2, memMB=8) == specs.Resource(4, 2, 8)
    assert resource(cpu=4, gpu=2, h="gpu.small").cpu == 8


def test_resource_copy_can_add_capabilities() -> None:
    """`Resource.copy` doesn't change the original."""
    original = specs.Resource(1, 2, 3, {"a": 1}, {"d": 1})
    copy = specs.Resource.copy(original, b=2)
    assert (dict(copy.capabilities), dict(copy.devices)) == ({"a": 1, "b": 2}, {"d": 1})
    assert dict(original.capabilities) == {"a": 1}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module with user-defined resources."""
    found = ModuleType("our_machines")
    found.NAMED_RESOURCES = {  # type: ignore[attr-defined]
        "big": specs.Resource(128, 8, 1000),
        "made": lambda: specs.Resource(1, 1, 1, tags={"ours": True}),
        "gpu.small": specs.Resource(7, 7, 7),
        "Twin": specs.Resource(1, 0, 1),
        "twin": specs.Resource(2, 0, 2),
    }
    monkeypatch.setitem(sys.modules, "our_machines", found)
    return found


@pytest.mark.parametrize("variable", ["RELIGHT_NAMED_RESOURCES", "TORCHX_CUSTOM_NAMED_RESOURCES"])
def test_user_module_can_add_named_resources(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """A variable names the module. The module may add names and redefine existing ones."""
    monkeypatch.setenv(variable, "our_machines")
    names = NamedResources()
    assert names["big"] == specs.Resource(128, 8, 1000, tags={"torchx/named_resources.name": "big"})
    assert names["made"].tags == {"ours": True, "torchx/named_resources.name": "made"}
    assert (names["gpu.small"].cpu, names["gpu.medium"].cpu) == (7, 16)
    assert "big" in names
    with pytest.raises(UsageError, match="unknown named resource: bigg") as caught:
        names["bigg"]
    assert caught.value.hint == "did you mean big?"
    with pytest.raises(UsageError, match="ambiguous: Twin, twin"):
        names["TWIN"]


@pytest.mark.parametrize("text", [None, "x = 1\n"])
def test_invalid_resource_module_is_rejected(
    place: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    if text is not None:
        (place / "not_ours.py").write_text(text)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("RELIGHT_NAMED_RESOURCES", "not_ours")
    try:
        with pytest.raises(UsageError, match=r"^RELIGHT_NAMED_RESOURCES=not_ours: "):
            NamedResources()["big"]
    finally:
        sys.modules.pop("not_ours", None)


def test_installed_packages_can_add_named_resources(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group relight.named_resources adds names. Existing ones keep their meaning."""
    from relight.base.env import Environment

    (place / "their_machines.py").write_text(
        "import relight.job as specs\ndef tpu(): return specs.Resource(1, 0, 5)\n"
    )
    folder = place / "theirs-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[relight.named_resources]\ntpu = their_machines:tpu\ngpu.small = their_machines:tpu\n"
        "[torchx.named_resources]\ntheirs = their_machines:tpu\nbroken = no_such_module:a\n"
    )
    monkeypatch.syspath_prepend(str(place))
    try:
        found = own(Environment({}))
        assert list(found) == ["tpu", "theirs", "broken"]
        assert NamedResources(found)["theirs"].memMB == 5
        with pytest.raises(UsageError, match=r"can't load the named resource broken"):
            NamedResources(found)["broken"]
        assert NamedResources(found)["tpu"].memMB == 5
    finally:
        sys.modules.pop("their_machines", None)
