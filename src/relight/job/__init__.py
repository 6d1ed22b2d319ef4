"""Defines scheduler-independent job descriptions. A component file uses
`import relight.job as specs`.

Importing this package is cheap, because only the types of job descriptions are loaded immediately.
All other names are loaded on first use.

    app.py, status.py, states.py   jobs, roles and replicas, and their states
    components/           functions that build a job from a command line (dist.ddp)
    resources.py, mounts.py, macros.py, overlays.py   the parts of a role
    workspaces.py         which files are sent with a job; patterns.py: which are left out
    records.py, handles.py   submitted jobs, and the names that refer to them
    serial.py             an app as JSON
    launcher_file.py      relight in one file, for images and hosts without it

To add a field to roles, start in `app`, then add it to each scheduler's `request` module.
"""

from typing import TYPE_CHECKING, Any  # agents that show their job load this too

if TYPE_CHECKING:
    from relight.job import macros as macros
    from relight.job.app import (
        UNSPECIFIED as NULL_RESOURCE,
    )
    from relight.job.app import (
        AppDef,
        AppState,
        BindMount,
        DeviceMount,
        Resource,
        RetryPolicy,
        Role,
        VolumeMount,
        Workspace,
    )
    from relight.job.mounts import parse_mounts
    from relight.job.resources import named_resources, resource
    from relight.job.serial import from_json, to_json
    from relight.job.status import AppStatus, AppStatusError, ReplicaStatus, RoleStatus
    from relight.job.torchx_names import (
        ALL,
        MISSING,
        NONE,
        UNKNOWN,
        AppDryRunInfo,
        AppHandle,
        CfgVal,
        InvalidRunConfigException,
        MalformedAppHandleException,
        ParsedAppHandle,
        ReplicaState,
        UnknownAppException,
        UnknownSchedulerException,
        get_named_resources,
        is_started,
        is_terminal,
        make_app_handle,
        materialize_appdef,
        parse_app_handle,
    )

__all__ = [
    "ALL",
    "MISSING",
    "NONE",
    "NULL_RESOURCE",
    "UNKNOWN",
    "AppDef",
    "AppDryRunInfo",
    "AppHandle",
    "AppState",
    "AppStatus",
    "AppStatusError",
    "BindMount",
    "CfgVal",
    "DeviceMount",
    "InvalidRunConfigException",
    "MalformedAppHandleException",
    "ParsedAppHandle",
    "ReplicaState",
    "ReplicaStatus",
    "Resource",
    "RetryPolicy",
    "Role",
    "RoleStatus",
    "UnknownAppException",
    "UnknownSchedulerException",
    "VolumeMount",
    "Workspace",
    "from_json",
    "get_named_resources",
    "is_started",
    "is_terminal",
    "macros",
    "make_app_handle",
    "materialize_appdef",
    "named_resources",
    "parse_app_handle",
    "parse_mounts",
    "resource",
    "to_json",
]

_MODULES = {
    "relight.job.app": (
        "AppDef", "AppState", "BindMount", "DeviceMount", "Resource", "RetryPolicy", "Role",
        "VolumeMount", "Workspace",
    ),
    "relight.job.mounts": ("parse_mounts",),
    "relight.job.torchx_names": (
        "ALL", "MISSING", "NONE", "UNKNOWN", "AppDryRunInfo", "AppHandle", "CfgVal",
        "InvalidRunConfigException", "MalformedAppHandleException", "ParsedAppHandle",
        "ReplicaState", "UnknownAppException", "UnknownSchedulerException", "get_named_resources",
        "is_started", "is_terminal", "make_app_handle", "materialize_appdef", "parse_app_handle",
    ),
    "relight.job.resources": ("named_resources", "resource"),
    "relight.job.serial": ("from_json", "to_json"),
    "relight.job.status": ("AppStatus", "AppStatusError", "ReplicaStatus", "RoleStatus"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "macros":
        return import_module("relight.job.macros")
    if name == "NULL_RESOURCE":
        return import_module("relight.job.app").UNSPECIFIED
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
