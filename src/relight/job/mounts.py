"""Parses mounts such as `type=bind,src=/a,dst=/b,readonly,type=device,src=/dev/x`.

Each `type` key starts a new mount, because the input is a single list that has been split at
commas.
"""

import os
from collections.abc import Sequence

from relight.base.errors import UsageError
from relight.base.text import did_you_mean
from relight.job.app import BindMount, DeviceMount, Mount, VolumeMount

_KINDS = ("bind", "volume", "device")
_NAMES = {
    "type": "type",
    "source": "src", "src": "src",
    "destination": "dst", "dst": "dst", "target": "dst",
    "readonly": "readonly", "read_only": "readonly",
    "perm": "perm", "permissions": "perm",
}  # fmt: skip
_OF_KIND = {
    "bind": ("src", "dst", "readonly"),
    "volume": ("src", "dst", "readonly"),
    "device": ("src", "dst", "perm"),
}
_EXAMPLE = "type=bind,src=/data,dst=/data,readonly"


def parse_mounts(words: Sequence[str]) -> list[Mount]:
    """Parse a list of words such as `type=bind`, `src=/data`, `readonly` into mounts.

    Raises:
        UsageError: if a key is unknown, or a required one is missing.
    """
    groups: list[dict[str, str]] = []
    for word in words:
        name, equals, value = word.partition("=")
        key = _NAMES.get(name.strip())
        if key is None:
            raise UsageError(
                f"unknown mount option: {name!r}",
                hint=did_you_mean(name, _NAMES, f"options: {', '.join(_NAMES)}"),
            )
        if key == "type":
            if value not in _KINDS:
                raise UsageError(
                    f"unknown mount type: {value!r}", hint=f"types: {', '.join(_KINDS)}"
                )
            groups.append({})
        elif not groups:
            raise UsageError(f"a mount starts with its type, not {word}", hint=_EXAMPLE)
        if key in groups[-1]:
            raise UsageError(f"mount option {key} given twice: {groups[-1][key]} and {value}")
        if key not in ("type", *_OF_KIND[groups[-1].get("type", value)]):
            kind = groups[-1]["type"]
            raise UsageError(
                f"mount type {kind} has no option {name}",
                hint=f"it has {', '.join(_OF_KIND[kind])}",
            )
        groups[-1][key] = value if equals or key != "readonly" else "true"
    return [_mount(group) for group in groups]


def _mount(group: dict[str, str]) -> Mount:
    kind = group["type"]
    for name in ("src", "dst")[: 1 if kind == "device" else 2]:
        if not group.get(name):
            shown = ",".join(f"{key}={value}" for key, value in group.items())
            raise UsageError(f"mount {shown} lacks {name}", hint=f"for example {_EXAMPLE}")
    source = group["src"]
    if kind == "device":
        letters = group.get("perm", "rwm")
        if not letters or set(letters) - set("rwm"):
            raise UsageError(f"perm={letters}: expected a combination of r, w and m")
        return DeviceMount(source, group.get("dst") or source, letters)
    if kind == "volume":
        return VolumeMount(source, group["dst"], _is_read_only(group))
    return BindMount(os.path.expanduser(source), group["dst"], _is_read_only(group))


def _is_read_only(group: dict[str, str]) -> bool:
    text = group.get("readonly", "false").lower()
    if text not in ("true", "false"):
        raise UsageError(f"readonly={text}: expected true or false")
    return text == "true"
