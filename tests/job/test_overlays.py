"""Overlays merge as in TorchX. The expected results were recorded with
torchx-nightly 2026.10.26.
"""

import copy
from typing import Any

import pytest

import relight.job as specs
from relight.base.errors import UsageError
from relight.job.overlays import DEL, JOIN, PUT, applied, get_overlay, set_overlay

POD = {
    "spec": {"containers": [{"name": "main", "image": "v1", "cpu": "1"}], "hostNetwork": False},
    "labels": {"a": "1"},
}
MERGED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"labels": {"b": "2"}, "new": ("a",)}, {**POD, "labels": {"a": "1", "b": "2"}, "new": ["a"]}),
    (
        {"spec": {"containers": [{"name": "x"}], "hostNetwork": True}},
        {**POD, "spec": {"containers": [*POD["spec"]["containers"], {"name": "x"}],  # type: ignore[index]
                         "hostNetwork": True}},
    ),
    (
        {"spec": {"containers": ({"name": "x"},)}},
        {**POD, "spec": {"containers": [{"name": "x"}], "hostNetwork": False}},
    ),
    (
        {"spec": {PUT("containers"): [{"name": "x"}], DEL("hostNetwork"): None}},
        {**POD, "spec": {"containers": [{"name": "x"}]}},
    ),
    (
        {"spec": {JOIN("containers", on="name"): [{"name": "main", "image": "v2"}, {"name": "x"}]}},
        {**POD, "spec": {"containers": [{"name": "main", "image": "v2", "cpu": "1"}, {"name": "x"}],
                         "hostNetwork": False}},
    ),
    ({PUT("labels"): {"c": "3"}, DEL("missing"): None}, {**POD, "labels": {"c": "3"}}),
    ({JOIN("list", on="name"): [{"name": "x"}]}, {**POD, "list": [{"name": "x"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("overlay", "expected"), MERGED)
def test_overlays_are_merged_into_the_object(
    overlay: dict[str, Any], expected: dict[str, Any]
) -> None:
    before = copy.deepcopy(POD)
    assert applied(POD, overlay, "pod") == expected
    assert before == POD


@pytest.mark.parametrize(
    ("overlay", "said"),
    [
        ({"spec": []}, "pod.spec is a dict, not a list"),
        ({"spec": {"containers": {}}}, "pod.spec.containers is a list, not a dict"),
        ({"spec": {JOIN("containers", on="name"): ["x"]}}, "merges lists of dicts"),
        ({"spec": {"__join__:containers": [{}]}}, "merges lists of dicts"),
    ],
)
def test_overlay_of_wrong_type_is_rejected(overlay: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        applied(POD, overlay, "pod")


def test_several_overlays_for_one_role_are_combined() -> None:
    """The last operator for a field wins."""
    role = specs.Role("r", "i")
    set_overlay(role, "kubernetes", "V1Pod", {"spec": {"a": {"x": 1}, "l": [1], PUT("p"): 1}})
    set_overlay(role, "kubernetes", "V1Pod", {"spec": {"a": {"y": 2}, "l": [2], DEL("p"): None}})
    found = get_overlay(role, "kubernetes", "V1Pod")
    assert found == {"spec": {"a": {"x": 1, "y": 2}, "l": [1, 2], DEL("p"): None}}
    assert get_overlay(role, "kubernetes", "Other") == {}
    assert get_overlay(role, "slurm", "V1Pod") == {}


def test_metadata_without_a_kind_is_used_as_the_overlay() -> None:
    """TorchX users write `metadata={"kubernetes": {"spec": …}}`."""
    role = specs.Role("r", "i", metadata={"kubernetes": {"spec": {"a": 1}}})
    assert get_overlay(role, "kubernetes", "V1Pod") == {"spec": {"a": 1}}
    role.metadata["kubernetes"] = {"V1Pod": {"spec": {"b": 1}}}
    assert get_overlay(role, "kubernetes", "V1Pod") == {"spec": {"b": 1}}
