"""Macros: placeholders in an app for values that only the scheduler knows.

A component writes `macros.app_id`; when a request is rendered, `substitute` replaces it by the
scheduler's value. Only these four words in braces are replaced, so that other text that a user
passes to a script (`$HOME`, `$$`, `${x}`) arrives unchanged. TorchX halves every `$$`, and its
components therefore write the shell's `${VAR:=localhost}` as `$${${rank0_env}:=localhost}`: only
that form loses its first dollar here too.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relight.job.app import Role

img_root = "${img_root}"
"""The directory of the image's files, as the replica sees it."""
app_id = "${app_id}"
"""The scheduler's id of the app; unique, and the same for all replicas."""
replica_id = "${replica_id}"
"""The number of the replica within its role, from 0."""
rank0_env = "${rank0_env}"
"""The name of the environment variable that holds the host of the first role's replica 0."""

NAMES = ("img_root", "app_id", "replica_id", "rank0_env")
_WORD = re.compile(r"\$(?=\$\{\$\{rank0_env\})|\$\{(" + "|".join(NAMES) + r")\}")


def substitute(role: Role, values: Mapping[str, str]) -> Role:
    """Return the role with its macros replaced in `args`, the values of `env`, and `metadata`.

    Args:
        role: not changed.
        values: by the names of `NAMES`; a macro without a value stays unchanged.
    """
    return replace(
        role,
        args=[text(argument, values) for argument in role.args],
        env={name: text(value, values) for name, value in role.env.items()},
        metadata={name: _inside(value, values) for name, value in role.metadata.items()},
    )


def text(template: str, values: Mapping[str, str]) -> str:
    """Return a text with its macros replaced; the values are not searched for macros."""
    if "${" not in template:
        return template
    if "rank0_env" not in values:  # without a value, the shell's form keeps both dollars
        values = {**values, "rank0_env": rank0_env}
        return _WORD.sub(lambda m: values.get(m[1], m[0]) if m[1] else m[0], template)
    return _WORD.sub(lambda m: values.get(m[1], m[0]) if m[1] else "", template)


def _inside(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return text(value, values)
    if isinstance(value, Mapping):
        return {name: _inside(inner, values) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_inside(inner, values) for inner in value)
    return value
