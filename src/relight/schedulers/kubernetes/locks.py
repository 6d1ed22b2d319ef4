"""Finds what changes a locked option's part of a pod, other than the option itself: a device mount,
`-cfg pods=FILE`, an overlay in the metadata, or a related option.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from relight.job.app import AppDef, DeviceMount, Role
from relight.schedulers.api import Locks
from relight.schedulers.kubernetes import overrides, pod_security, pods
from relight.schedulers.kubernetes.kind import QUEUE
from relight.schedulers.kubernetes.kinds import DEFAULT
from relight.schedulers.kubernetes.pods import MeetingPlace

_PARTS: Mapping[str, tuple[str, ...]] = {
    "privileged": ("containers/*/securityContext/privileged",),
    "capabilities": ("containers/*/securityContext/capabilities",),
    "fs_group": ("securityContext/fsGroup",),
    "user": ("securityContext/runAsUser", "containers/*/securityContext/runAsUser"),
    "service_account": ("serviceAccountName", "serviceAccount", "automountServiceAccountToken"),
    "queue": ("schedulerName",),
    "image_secret": ("imagePullSecrets",),
    "image_pull_policy": ("containers/*/imagePullPolicy",),
    "priority_class": ("priorityClassName", "priority"),
    "node_selector": ("nodeSelector", "affinity/nodeAffinity", "nodeName"),
    "exclude": ("affinity/nodeAffinity", "nodeName"),
    "topology": ("affinity/podAffinity", "nodeName"),
    "tolerations": ("tolerations",),
    "scheduler": ("schedulerName", "nodeName"),
    "shm_size": ("volumes/dshm",),
    "timeout": ("activeDeadlineSeconds",),
    "reserved_millicpu": ("containers/*/resources",),
    "reserved_memmb": ("containers/*/resources",),
    "efa_device_count": ("containers/*/resources",),
}  # fmt: skip
"""The parts of a pod's spec that an option determines."""
_RISKS: Mapping[str, tuple[bool, tuple[str, ...]]] = {
    "privileged": (False, ("hostPID", "hostIPC",
                           "containers/*/securityContext/allowPrivilegeEscalation")),
    "host_paths": (False, ("volumes/*/hostPath",)),
    "network_policy": (True, ("hostNetwork",)),  # policies don't affect pods on this network
}  # fmt: skip
"""The parts with which a pod escapes the value that protects the cluster."""
_ADDED = "containers/*/securityContext/capabilities/add"
_HARMLESS = frozenset(
    ("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
     "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT", "IPC_LOCK")
)  # fmt: skip
"""The capabilities that the *baseline* Pod Security Standard allows, and the one that RDMA needs,
which only locks memory.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""
_LABELS = {"queue": QUEUE, "network_policy": pods.APP}
_OTHERS = ("initContainers", "ephemeralContainers")
_PLACE = MeetingPlace("x", "x", DEFAULT.index, DEFAULT.starts)


def bypasses(app: AppDef, cfg: Mapping[str, Any], locks: Locks) -> Iterator[tuple[str, str]]:
    """Yield what changes a locked option's part of a pod, and the option's name."""
    for role in app.roles:
        devices = [each for each in role.mounts if isinstance(each, DeviceMount)]
        if "privileged" in locks.names and devices and not cfg.get("privileged"):
            yield (
                f"the device mount {devices[0].src_path} needs a privileged container",
                "privileged",
            )
    yield from _other_options(cfg, locks)
    mine = bool(cfg.get("pods")) and not locks.sets("pods", cfg)
    base = {**cfg, "pods": None} if mine else cfg
    plain = replace(app, metadata=_without(app), roles=[
        replace(role, metadata=_without(role)) for role in app.roles
    ])  # fmt: skip
    for role, bare in zip(app.roles, plain.roles, strict=True):
        overlaid = pods.template(app, role, base, _PLACE)
        if overrides.overlay(app) or overrides.overlay(role):
            what = f"the metadata kubernetes of {role.name}"
            if "pods" in locks.names:
                yield what, "pods"
            bare_pod = pods.template(plain, bare, base, _PLACE)
            yield from _changes(what, bare_pod, overlaid, cfg, locks)
        if mine:
            final = pods.template(app, role, cfg, _PLACE)
            yield from _changes(f"-cfg pods={cfg['pods']}", overlaid, final, cfg, locks)


def _other_options(cfg: Mapping[str, Any], locks: Locks) -> Iterator[tuple[str, str]]:
    added = {name.upper().removeprefix("CAP_") for name in cfg.get("capabilities") or ()}
    beyond = sorted(added - _HARMLESS)
    if beyond and _is_unprivileged(cfg, locks) and not locks.sets("capabilities", cfg):
        yield f"-cfg capabilities: {', '.join(beyond)}", "privileged"
    if "queue" in locks.names and cfg.get("queue"):
        options = ("kind", "scheduler")
        for option, ours, sites in zip(
            options, _uses_volcano(cfg), _uses_volcano(locks.values), strict=True
        ):
            if ours != sites:
                yield f"-cfg {option}={cfg[option]} uses another queueing system", "queue"


def _is_unprivileged(cfg: Mapping[str, Any], locks: Locks) -> bool:
    return "privileged" in locks.names and not cfg.get("privileged")


def _uses_volcano(cfg: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether the object and the scheduler of its pods are Volcano's."""
    kind = cfg.get("kind") == pods.VOLCANO
    scheduler = cfg.get("scheduler") or (pods.VOLCANO if kind else "")
    return kind, scheduler == pods.VOLCANO


def _without(of: AppDef | Role) -> dict[str, Any]:
    return {name: value for name, value in of.metadata.items() if name != overrides.NAMESPACE}


def _changes(
    what: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    cfg: Mapping[str, Any],
    locks: Locks,
) -> Iterator[tuple[str, str]]:
    if _is_unprivileged(cfg, locks) and _capabilities(after) - _capabilities(before) - _HARMLESS:
        yield what, "privileged"
    for option in locks.names:
        label = _LABELS.get(option)
        safe, risks = _RISKS.get(option, (None, ()))
        paths = (*_PARTS.get(option, ()), *(risks if cfg.get(option) is safe else ()))
        changed: object = label and _label(before, label) != _label(after, label)
        if option == "restricted":  # what this standard permits may be changed
            changed = {*pod_security.violations(after)} - {*pod_security.violations(before)}
        if changed or any(_found(before, path) != _found(after, path) for path in paths):
            yield what, option


def _capabilities(template: Mapping[str, Any]) -> set[str]:
    added = {str(name).upper() for names in _found(template, _ADDED) for name in names}
    return {name.removeprefix("CAP_") for name in added}


def _label(template: Mapping[str, Any], name: str) -> Any:
    return (template["metadata"].get("labels") or {}).get(name)


def _found(template: Mapping[str, Any], path: str) -> list[Any]:
    """Return the values at a path, leaving out those that are false or empty."""
    first, *rest = path.split("/")
    starts = (first, *_OTHERS) if first == "containers" else (first,)
    return [
        value
        for start in starts
        for value in _values((template["spec"] or {}).get(start), rest)
        if value
    ]


def _values(part: Any, path: list[str]) -> Iterable[Any]:
    if not path:
        return [part]
    if isinstance(part, list):
        named = [x for x in part if isinstance(x, Mapping) and path[0] in ("*", x.get("name"))]
        return [value for each in named for value in _values(each, path[1:])]
    return _values(part.get(path[0]), path[1:]) if isinstance(part, Mapping) else []
