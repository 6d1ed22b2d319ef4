"""Applies overlays, which are a user's additions to a scheduler's request. They are stored in the
metadata of a role or an app.

    set_overlay(role, "kubernetes", "V1Pod", {"spec": {"nodeSelector": {"gpu": "a100"}}})
    set_overlay(role, "kubernetes", "V1Pod", {"spec": {JOIN("containers", on="name"): [
        {"name": "main", "tty": True}]}})

Names and meanings match torchx.specs.overlays (nightly 2026.10.26): dicts are merged, lists are
appended, a tuple replaces a list, and keys may be operators. Only Kubernetes has overlays.
"""

from collections.abc import Mapping
from typing import Any

from relight.base.errors import UsageError
from relight.job.app import AppDef, Role

Overlay = dict[str, Any]
NESTED = "__torchx_overlays__"
"""The key by which TorchX distinguishes a dict of overlays by kind from a single overlay."""
_PUT, _JOIN, _DEL = "__put__:", "__join__:", "__del__:"


def PUT(key: str) -> str:  # noqa: N802  # TorchX's name
    """Return an overlay key that replaces the value in the request."""
    return f"{_PUT}{key}"


def JOIN(key: str, *, on: str) -> str:  # noqa: N802
    """Return an overlay key that merges the items of two lists of dicts by the field named `on`."""
    return f"{_JOIN}{key}:{on}"


def DEL(key: str) -> str:  # noqa: N802
    """Return an overlay key that removes the value from the request."""
    return f"{_DEL}{key}"


def overlay_field(key: str) -> str:
    """Return the field that an overlay key applies to."""
    for mark in (_PUT, _DEL):
        if key.startswith(mark):
            return key.removeprefix(mark)
    return key.removeprefix(_JOIN).partition(":")[0] if key.startswith(_JOIN) else key


def set_overlay(target: AppDef | Role, namespace: str, kind: str, overlay: Overlay) -> None:
    """Add an overlay to a role or an app. Operators are kept in the stored overlay until it is
    applied. If a field has several operators, the last one wins.
    """
    kinds = target.metadata.get(namespace)
    kinds = dict(kinds) if isinstance(kinds, dict) else {}
    target.metadata[namespace] = {
        **kinds, NESTED: True, kind: _collected(kinds.get(kind) or {}, overlay)
    }  # fmt: skip


def get_overlay(target: AppDef | Role, namespace: str, kind: str) -> Overlay:
    """Return the overlay from the metadata of a role or an app.

    Raises:
        UsageError: if the metadata is a string, such as a file name, or anything else that isn't a
            dict.
    """
    return select_kind(target.metadata.get(namespace) or {}, kind, f"the metadata {namespace}")


def select_kind(found: Any, kind: str, what: str) -> Overlay:
    """Return the overlay for a kind. The argument `found` either maps kinds to overlays or is
    itself the overlay.

    Raises:
        UsageError: if the overlay is not a dict. The message begins with `what`.
    """
    if isinstance(found, Mapping) and (found.get(NESTED) or kind in found):
        found = found.get(kind) or {}
    if not isinstance(found, Mapping):
        raise UsageError(f"{what}: expected a dict, not {found!r}")
    return dict(found)


def applied(base: Mapping[str, Any], overlay: Mapping[str, Any], where: str) -> Overlay:
    """Return part of a request with an overlay applied.

    Raises:
        UsageError: if a value has the wrong type. The message begins with `where`.
    """
    found = dict(base)
    for key, value in overlay.items():
        field = overlay_field(key)
        here = f"{where}.{field}"
        if key.startswith(_DEL):
            found.pop(field, None)
        elif key.startswith(_PUT):
            found[field] = value
        elif key.startswith(_JOIN):
            on = key.removeprefix(_JOIN).partition(":")[2]
            found[field] = _joined(found.get(field, []), value, on, here)
        else:
            found[field] = _merged(found[field], value, here) if field in found else _plain(value)
    return found


def _merged(base: Any, value: Any, where: str) -> Any:
    if isinstance(base, list) and isinstance(value, tuple):
        return list(value)
    if isinstance(base, list) and isinstance(value, list):
        return [*base, *value]
    if isinstance(base, Mapping) and isinstance(value, Mapping):
        return applied(base, value, where)
    if isinstance(base, Mapping | list) or isinstance(value, Mapping | list | tuple):
        raise UsageError(f"{where} is a {type(base).__name__}, not a {type(value).__name__}")
    return value


def _joined(base: Any, items: Any, on: str, where: str) -> list[Any]:
    for each in (base, items):
        if not on or not isinstance(each, list) or not all(isinstance(x, Mapping) for x in each):
            raise UsageError(f"{where}: JOIN(…, on=…) merges lists of dicts")
    found = {each.get(on, number): each for number, each in enumerate(base)}
    for number, each in enumerate(items, len(base)):
        key = each.get(on, number)
        found[key] = {**found.get(key, {}), **each}
    return list(found.values())


def _collected(base: Overlay, overlay: Overlay) -> Overlay:
    """Combine two overlays into one, keeping their operators."""
    found = dict(base)
    for key, value in overlay.items():
        for other in [
            each for each in found if each != key and overlay_field(each) == overlay_field(key)
        ]:
            del found[other]
        old = found.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            found[key] = _collected(old, value)
        else:
            found[key] = _merged(old, value, key) if key in found else value
    return found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
