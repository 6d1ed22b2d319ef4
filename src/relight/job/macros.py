"""Replaces macros: placeholders in an app for values that only the scheduler knows.

A component writes `macros.app_id`, and `substitute` replaces it with the scheduler's value when a
request is rendered. Only the names of the four macros in braces are replaced, so that other text
that a user passes to a script (`$HOME`, `$$`, `${x}`) arrives unchanged. TorchX replaces every `$$`
with `$`, and its components therefore write the shell's `${VAR:=localhost}` as
`$${${rank0_env}:=localhost}`. relight drops the first dollar sign only in that form.
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any

from relight.job.app import Role

img_root = "${img_root}"
"""The directory with the image's files, as the replica sees it."""
app_id = "${app_id}"
"""The scheduler's unique id for the app. All replicas get the same id."""
replica_id = "${replica_id}"
"""The replica's number within its role, starting at 0."""
rank0_env = "${rank0_env}"
"""The name of the environment variable that contains the host of the first role's replica 0."""

NAMES = ("img_root", "app_id", "replica_id", "rank0_env")
_WORD = re.compile(r"\$(?=\$\{\$\{rank0_env\})|\$\{(" + "|".join(NAMES) + r")\}")


def substitute(role: Role, values: Mapping[str, str]) -> Role:
    """Return the role with its macros replaced in `args`, the values of `env`, and `metadata`.

    Args:
        role: the role (not modified).
        values: the macros' values, keyed by the names in `NAMES`. A macro without a value is left
            unchanged.
    """
    return replace(
        role,
        args=[text(argument, values) for argument in role.args],
        env={name: text(value, values) for name, value in role.env.items()},
        metadata={name: _inside(value, values) for name, value in role.metadata.items()},
        overrides={},  # they have been applied by reading the fields
    )


def text(template: str, values: Mapping[str, str]) -> str:
    """Return a template with its macros replaced. Macros inside the replacement values are not
    expanded.
    """
    if "${" not in template:
        return template
    if "rank0_env" not in values:  # without a value, the shell's form keeps both dollar signs
        values = {**values, "rank0_env": rank0_env}
        return _WORD.sub(lambda m: values.get(m[1], m[0]) if m[1] else m[0], template)
    return _WORD.sub(lambda m: values.get(m[1], m[0]) if m[1] else "", template)


@dataclass
class Values:
    """The macros' values, as an object with TorchX's methods."""

    img_root: str
    app_id: str
    replica_id: str
    rank0_env: str

    def apply(self, role: Role) -> Role:
        """Return a deep copy of a role with its macros replaced."""
        return deepcopy(substitute(role, self.to_dict()))

    def substitute(self, arg: str) -> str:
        """Return a string with its macros replaced."""
        return text(arg, self.to_dict())

    def to_dict(self) -> dict[str, str]:
        """Return the values by name."""
        return asdict(self)


def _inside(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return text(value, values)
    if isinstance(value, Mapping):
        return {name: _inside(inner, values) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_inside(inner, values) for inner in value)
    return value
