"""Macros: placeholders for the scheduler's values, and text that is left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.job import macros
from relight.job.app import Role

VALUES = {"img_root": "/i", "app_id": "a-1", "replica_id": "0", "rank0_env": "RANK0"}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("${app_id}/${replica_id}", "a-1/0"),
        ("$${${rank0_env}:=localhost}:29500", "${RANK0:=localhost}:29500"),
        ("$$ $HOME ${x} ${app_idx} $app_id", "$$ $HOME ${x} ${app_idx} $app_id"),
        ("$${HOME}", "$${HOME}"),
        ("$${app_id}", "$a-1"),
        ("$", "$"),
        ("", ""),
    ],
)
def test_only_the_four_macros_are_replaced(template: str, expected: str) -> None:
    """Only the shell form of rank0_env loses a dollar sign."""
    assert macros.text(template, VALUES) == expected


@given(st.text(alphabet="${}ax_'\" \\"))
def test_text_without_macro_is_unchanged(text: str) -> None:
    assert macros.text(text, VALUES) == text


def test_macro_values_are_not_expanded_again() -> None:
    """A value may itself look like a macro."""
    assert macros.text("${app_id}", {"app_id": "${replica_id}", "replica_id": "9"}) == (
        "${replica_id}"
    )


def test_macro_without_value_is_left_unchanged() -> None:
    """Even its dollar signs are kept."""
    template = "$${${rank0_env}:=localhost} ${app_id}"
    assert macros.text(template, {"app_id": "x"}) == "$${${rank0_env}:=localhost} x"


def test_macros_are_expanded_in_arguments_variables_and_metadata() -> None:
    """They expand at any depth of the metadata, but not in names, the image or the entrypoint."""
    role = Role(
        name="${app_id}",
        image="${app_id}",
        entrypoint="${app_id}",
        args=["${app_id}"],
        env={"${app_id}": "${replica_id}"},
        metadata={"a": [{"b": ["${app_id}"]}], "n": 1},
    )
    found = macros.substitute(role, VALUES)
    assert (found.name, found.image, found.entrypoint) == ("${app_id}",) * 3
    assert found.args == ["a-1"]
    assert found.env == {"${app_id}": "0"}
    assert found.metadata == {"a": [{"b": ["a-1"]}], "n": 1}
    assert role.args == ["${app_id}"]


def test_macro_values_have_torchx_methods() -> None:
    values = macros.Values(**VALUES)
    assert values.substitute("${app_id} $$") == "a-1 $$"
    assert values.to_dict() == VALUES
    role = Role("r", "i", args=["${app_id}"], port_map={"a": 1})
    found = values.apply(role)
    assert (found.args, role.args) == (["a-1"], ["${app_id}"])
    found.port_map.clear()
    assert role.port_map == {"a": 1}


def test_macros_are_expanded_in_overrides() -> None:
    role = Role("r", "i", overrides={"args": lambda: ["${app_id}"]})
    assert macros.substitute(role, VALUES).args == ["a-1"]
