"""Converts an app to and from JSON, in the format of TorchX's `--dryrun --json`."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from relight.base.errors import UsageError
from relight.job.app import (
    AppDef,
    BindMount,
    DeviceMount,
    Mount,
    Resource,
    RetryPolicy,
    Role,
    VolumeMount,
    Workspace,
)

Object = dict[str, Any]
_KINDS = (AppDef, Role, Resource, Workspace, BindMount, VolumeMount, DeviceMount)


def to_json(app: AppDef) -> Object:
    """Return an app as an object for `json.dumps`."""
    found: Object = _plain(app)
    return found


def from_json(value: Any) -> AppDef:
    """Restore an app from the result of `to_json`.

    Raises:
        UsageError: if the object is not a valid app. The message says where the error is.
    """
    found = _object(value, "app", {"name", "roles", "metadata"})
    roles = found.get("roles", [])
    if not isinstance(roles, list):
        raise _invalid("app.roles", "a list", roles)
    return AppDef(
        name=_text(found, "name", "app"),
        roles=[_to_role(role, f"app.roles[{number}]") for number, role in enumerate(roles)],
        metadata=_object(found.get("metadata", {}), "app.metadata"),
    )


def _to_role(value: Any, where: str) -> Role:
    given = dict(_object(value, where, {field.name for field in fields(Role)}))
    given.pop("overrides", None)
    for name in ("name", "image"):
        _text(given, name, where)
    for name in ("num_replicas", "max_retries"):
        if name in given and not _is_number(given[name]):
            raise _invalid(f"{where}.{name}", "a number", given[name])
    if given.get("min_replicas") is not None and not _is_number(given["min_replicas"]):
        raise _invalid(f"{where}.min_replicas", "a number or null", given["min_replicas"])
    args = given.get("args", [])
    if not isinstance(args, list) or not all(isinstance(word, str) for word in args):
        raise _invalid(f"{where}.args", "a list of strings", args)
    policy = given.get("retry_policy", "APPLICATION")
    if policy not in RetryPolicy.__members__:
        raise _invalid(f"{where}.retry_policy", " or ".join(RetryPolicy.__members__), policy)
    resource = {"cpu": -1, "gpu": -1, "memMB": -1}
    given |= {
        "args": args,
        "env": _texts(given.get("env", {}), f"{where}.env"),
        "retry_policy": RetryPolicy[policy],
        "resource": _to_resource(given.get("resource", resource), f"{where}.resource"),
        "port_map": _object(given.get("port_map", {}), f"{where}.port_map"),
        "metadata": _object(given.get("metadata", {}), f"{where}.metadata"),
        "mounts": [
            _to_mount(mount, f"{where}.mounts[{number}]")
            for number, mount in enumerate(given.get("mounts", []))
        ],
        "workspace": _to_workspace(given.get("workspace"), f"{where}.workspace"),
    }
    return Role(**given)


def _to_resource(value: Any, where: str) -> Resource:
    found = _object(value, where, {field.name for field in fields(Resource)})
    for name in ("cpu", "gpu", "memMB"):
        if not _is_number(found.get(name)):
            raise _invalid(f"{where}.{name}", "a number", found.get(name))
    return Resource(**found)


def _to_workspace(value: Any, where: str) -> Workspace | None:
    if value is None:
        return None
    found = _object(value, where, {"projects"})
    return Workspace(_texts(found.get("projects", {}), f"{where}.projects"))


def _to_mount(value: Any, where: str) -> Mount:
    found = _object(value, where)
    for kind in (DeviceMount, VolumeMount, BindMount):
        names = {field.name for field in fields(kind)}
        key = names - {"read_only", "dst_path"}
        if key <= set(found) <= names:
            return kind(**found)
    raise _invalid(where, "a mount", value)


def _plain(value: Any) -> Any:
    kind = next((kind for kind in _KINDS if isinstance(value, kind)), None)
    if kind is not None:
        found = {field.name: _plain(getattr(value, field.name)) for field in fields(kind)}
        # Reading the fields has applied a role's overrides.
        return found | {"overrides": {}} if kind is Role else found
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, (int, float)) else str(value)


def _object(value: Any, where: str, known: set[str] | None = None) -> Object:
    if not isinstance(value, dict):
        raise _invalid(where, "an object", value)
    unknown = sorted(set(value) - known) if known is not None else []
    if unknown:
        raise UsageError(f"{where} has no {unknown[0]}", hint=f"it has {', '.join(sorted(known))}")  # type: ignore[arg-type]
    return value


def _text(found: Object, name: str, where: str) -> str:
    value = found.get(name)
    if not isinstance(value, str):
        raise _invalid(f"{where}.{name}", "a string", value)
    return value


def _texts(value: Any, where: str) -> dict[str, str]:
    for name, text in _object(value, where).items():
        if not isinstance(text, str):
            raise _invalid(f"{where}.{name}", "a string", text)
    return dict(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _invalid(where: str, expected: str, value: Any) -> UsageError:
    return UsageError(f"{where}: expected {expected}, not {value!r}")
