"""Defines scheduler-independent job descriptions. A component file uses
`import relight.job as specs`.

Importing this package is cheap, because only the types of job descriptions are loaded immediately.
All other names are loaded on first use. Type checkers read `__init__.pyi`.

    app.py, status.py, states.py   jobs, roles and replicas, and their states
    components/           functions that build a job from a command line (dist.ddp)
    resources.py, mounts.py, macros.py, overlays.py   the parts of a role
    workspaces.py         which files are sent with a job; patterns.py: which are left out
    records.py, handles.py   submitted jobs, and the names that refer to them
    serial.py             an app as JSON
    launcher_file.py      relight in one file, for images and hosts without it

To add a field to roles, start in `app`, then add it to each scheduler's `request` or `script`
module.
"""

_MODULES = {
    "app": (
        "AppDef", "AppState", "BindMount", "DeviceMount", "Resource", "RetryPolicy", "Role",
        "VolumeMount", "Workspace", "NULL_RESOURCE",
    ),
    "mounts": ("parse_mounts",),
    "torchx_names": (
        "ALL", "MISSING", "NONE", "UNKNOWN", "AppDryRunInfo", "AppHandle", "CfgVal",
        "InvalidRunConfigException", "MalformedAppHandleException", "ParsedAppHandle",
        "ReplicaState", "UnknownAppException", "UnknownSchedulerException", "get_named_resources",
        "is_started", "is_terminal", "make_app_handle", "materialize_appdef", "parse_app_handle",
    ),
    "resources": ("named_resources", "resource"),
    "serial": ("from_json", "to_json"),
    "status": ("AppStatus", "AppStatusError", "ReplicaStatus", "RoleStatus"),
}  # fmt: skip
_FROM_MODULE = {name: module for module, names in _MODULES.items() for name in names}
__all__ = list(_FROM_MODULE)
__all__ += ["macros"]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "macros":
        return import_module("relight.job.macros")
    if name in _FROM_MODULE:
        return getattr(import_module(f"{__name__}.{_FROM_MODULE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
