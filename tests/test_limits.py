"""docs/limits.md lists the limits in the code, and a test reaches each one."""

import ast
from functools import cache

import pytest
from documentation import limits
from documentation.blocks import ROOT

UNLISTED = {
    "core/link/wire.py:_MAX_GREETING",  # the length of relight's own greeting
    "core/link/wire.py:_MAX_VERSION",  # shown in an error
    "net/heartbeats.py:_MAX_BYTES",  # longer datagrams are truncated, and fail verification
}


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_limits_page_is_up_to_date() -> None:
    """`python -m documentation.limits` writes it, with values from the code."""
    assert limits.PAGE.read_text() == limits.page()


@pytest.mark.parametrize("limit", limits.LIMITS, ids=lambda limit: limit.constant)
def test_each_limit_is_exercised_by_a_test(limit: limits.Limit) -> None:
    file, _, name = limit.test.partition("::")
    assert limit.value > 0
    assert name in names_in(file)
    assert (limit.unit == "s") == limit.constant.endswith("_S") or "SECONDS" in limit.constant


@pytest.mark.parametrize("folder", ["net", "core/link"])
def test_documentation_lists_every_limit_on_input_from_peers(folder: str) -> None:
    listed = {limit.constant for limit in limits.LIMITS}
    assert set(limits.bounds_of(folder)) <= listed | UNLISTED
