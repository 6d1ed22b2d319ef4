"""Converts a TorchX AppDef to ours, field by field, without importing torchx."""

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


def to_app(found: Any, component: str) -> AppDef:
    """Convert a component's result to an AppDef.

    Raises:
        UsageError: if it is neither relight's AppDef nor TorchX's.
    """
    if isinstance(found, AppDef):
        return found
    if not all(hasattr(found, name) for name in ("name", "roles", "metadata")):
        raise UsageError(
            f"{component} returned {_shown(found)}, not an AppDef",
            hint="a component must return a relight.job.AppDef",
        )
    try:
        roles = [_role(role) for role in found.roles]
        return AppDef(str(found.name), roles, dict(found.metadata or {}))
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise UsageError(f"{component} returned an invalid AppDef: {error}") from None


def _role(role: Any) -> Role:
    if isinstance(role.args, str):
        raise TypeError(f"args of role {role.name}: expected a list, not {role.args!r}")
    return Role(
        name=str(role.name),
        image=str(role.image),
        min_replicas=role.min_replicas,
        entrypoint=str(role.entrypoint),
        args=[str(word) for word in role.args],
        env={str(name): str(value) for name, value in role.env.items()},
        num_replicas=int(role.num_replicas),
        max_retries=int(role.max_retries),
        retry_policy=_policy(role),
        resource=_resource(role.resource),
        port_map=dict(role.port_map),
        metadata=dict(role.metadata),
        mounts=[_mount(mount) for mount in role.mounts],
        workspace=_workspace(role),
    )


def _policy(role: Any) -> RetryPolicy:
    policy = getattr(role, "retry_policy", None)
    name = getattr(policy, "name", policy) or RetryPolicy.APPLICATION
    if name not in RetryPolicy.__members__:
        known = ", ".join(RetryPolicy.__members__)
        raise ValueError(
            f"role {role.name} has the unknown retry policy {name}; known policies: {known}"
        )
    return RetryPolicy[name]


def _workspace(role: Any) -> Workspace | None:
    found = getattr(role, "workspace", None)
    return Workspace(dict(found.projects)) if found else None


def _resource(resource: Any) -> Resource:
    return Resource(
        cpu=resource.cpu,
        gpu=resource.gpu,
        memMB=resource.memMB,
        capabilities=dict(resource.capabilities),
        devices=dict(resource.devices),
        tags=dict(getattr(resource, "tags", {})),
    )


def _mount(mount: Any) -> Mount:
    if hasattr(mount, "permissions"):
        return DeviceMount(mount.src_path, mount.dst_path, mount.permissions)
    if hasattr(mount, "src_path"):
        return BindMount(mount.src_path, mount.dst_path, bool(mount.read_only))
    return VolumeMount(mount.src, mount.dst_path, bool(mount.read_only))


def _shown(found: Any) -> str:
    return "nothing" if found is None else f"a {type(found).__name__}"
