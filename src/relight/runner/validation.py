"""Validates an app before submission."""

import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from types import UnionType
from typing import Any

from relight.base.errors import UsageError
from relight.job.app import AppDef, Mount, Resource, RetryPolicy, Role

MAX_REPLICAS = 100_000
"""The maximum number of replicas per role, and of workers per node. A larger number must be a
typo.
"""
_TYPES: Mapping[str, type | UnionType] = {
    "name": str, "image": str, "entrypoint": str, "num_replicas": int, "max_retries": int,
    "min_replicas": int | None, "retry_policy": RetryPolicy, "resource": Resource,
    "env": Mapping, "port_map": Mapping, "metadata": Mapping,
}  # fmt: skip


def validate(app: AppDef) -> AppDef:
    """Return a copy of the app, with its overrides applied, if the app is valid. Later changes to
    the app don't affect the copy.

    Raises:
        UsageError: if the app has no roles, has two roles with the same name, or has a role without
            a command or replicas; or if a value has the wrong type (Python itself does not check
            types).
    """
    _check_type("app", "name", app.name, str)
    _check_type(f"app {app.name}", "metadata", app.metadata, Mapping)
    if not app.roles:
        raise UsageError(f"app {app.name} has no roles")
    if not app.name.isprintable():
        raise UsageError(f"app name {app.name!r} contains unprintable characters")
    seen: set[str] = set()
    for role in app.roles:
        if not isinstance(role, Role):
            raise UsageError(f"app {app.name} has a role of type {type(role).__name__}")
        for name, kind in _TYPES.items():
            _check_type(f"role {role.name}", name, getattr(role, name), kind)
        if not role.name or role.name in seen:
            what = f"two roles named {role.name}" if role.name else "a role without a name"
            raise UsageError(f"app {app.name} has {what}")
        seen.add(role.name)
        if role.entrypoint in ("", "<MISSING>"):
            raise UsageError(f"role {role.name} has no entrypoint")
        for name, least in (("num_replicas", 1), ("max_retries", 0)):
            value = getattr(role, name)
            if value < least:
                raise UsageError(f"role {role.name} has {name}={value}: must be at least {least}")
        if role.num_replicas > MAX_REPLICAS:
            raise UsageError(f"role {role.name} has more than {MAX_REPLICAS} replicas")
        if role.min_replicas is not None and not 0 < role.min_replicas <= role.num_replicas:
            raise UsageError(
                f"role {role.name} has min_replicas={role.min_replicas}: "
                f"must be between 1 and num_replicas={role.num_replicas}"
            )
        _check_parts(role)
        _check_texts(role)
    return deepcopy(replace(app, roles=[replace(role, overrides={}) for role in app.roles]))


def common_workspace(app: AppDef) -> str:
    """Return the workspace that the roles share, or an empty string.

    Raises:
        UsageError: if the roles have different workspaces.
    """
    found = {str(role.workspace): role.name for role in app.roles if role.workspace}
    if len(found) > 1:
        raise UsageError(
            f"roles {' and '.join(found.values())} have different workspaces",
            hint="use one workspace for all roles; it can contain several directories",
        )
    return next(iter(found), "")


def missing_script(script: str, workspace: str, cfg: Mapping[str, Any], *, is_local: bool) -> str:
    """Return an error message if the job's script does not exist, or an empty string if it does.
    The script isn't checked if the job runs in an image, or on another machine to which no files
    are copied.

    Args:
        script: the script's path, or an empty string.
        workspace: the directories to copy for the job.
        cfg: the scheduler's options.
        is_local: whether replicas can access this machine's files.
    """
    if not script or "${" in script or not (is_local or cfg.get("sync")):
        return ""
    copied = workspace or cfg.get("workspace")
    if copied:
        from relight.job import workspaces  # importing tarfile takes 10 ms

        if workspaces.find(copied, script) is not None:
            return ""
    bases = (cfg.get("job_dir"), os.getcwd())
    if any(os.path.exists(os.path.join(base, script)) for base in bases if base):
        return ""
    return f"no such file: {script}"


def _check_type(whose: str, name: str, value: object, kind: type | UnionType) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        names = [getattr(each, "__name__", "") for each in getattr(kind, "__args__", (kind,))]
        expected = " or ".join(names).replace("Mapping", "dict").replace("NoneType", "None")
        raise UsageError(f"{whose} has {value!r} for its {name}: expected {expected}")


def _check_parts(role: Role) -> None:
    whose = f"role {role.name}"
    if not role.name.isprintable():
        raise UsageError(f"role name {role.name!r} contains unprintable characters")
    for name in ("cpu", "gpu", "memMB"):
        value = getattr(role.resource, name)
        _check_type(whose, name, value, int | float)
        if value < -1:  # -1 means unspecified
            raise UsageError(f"{whose} has {name}={value}")
    for port, number in role.port_map.items():
        _check_type(whose, f"port {port}", number, int)
    for mount in role.mounts:
        _check_type(whose, "mount", mount, Mount)


def _check_texts(role: Role) -> None:
    for word in (role.entrypoint, *role.args):
        if not isinstance(word, str) or "\0" in word:
            raise UsageError(f"role {role.name} has an argument that is not a string: {word!r}")
    for name, value in role.env.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise UsageError(f"role {role.name}: {name!r} is not a valid environment variable name")
        if not isinstance(value, str) or "\0" in value:
            raise UsageError(
                f"role {role.name} has an environment variable whose value is not a string: {name}"
            )
