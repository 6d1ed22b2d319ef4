"""The pods of a role: a template for the object that makes them."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from relight import __version__
from relight.base.errors import UsageError
from relight.job import launcher_file, macros, overlays
from relight.job.app import AppDef, BindMount, DeviceMount, Role, VolumeMount
from relight.job.user import user_name
from relight.schedulers.kubernetes import overrides
from relight.schedulers.kubernetes.names import label_value

LAUNCHER = "/opt/relight"
"""The directory of the launcher that travels with the job, in the container."""
GRACE_S = 40
"""From SIGTERM to SIGKILL: more than the agents give their workers."""
GPU = "nvidia.com/gpu"
RESERVED = {"reserved_millicpu": 100, "reserved_memmb": 1024}
"""What TorchX leaves of a node for others, unless told otherwise."""
JOB = "RELIGHT_JOB_ID"
TOKEN = "RELIGHT_TOKEN"  # noqa: S105  # a name
APP, ROLE, USER = "relight/app-id", "relight/role", "relight/user"
EFA = "vpc.amazonaws.com/efa"
_RANK0_ENV = "RELIGHT_RANK0_HOST"
_REPLICA_ENV = "RELIGHT_REPLICA_ID"
_START = "/etc/relight"
"""The directory of a file as old as the pod: the kubelet makes it before it pulls the image."""
_TELL_END = (
    f"export RELIGHT_END_TIME=$(($(stat -c %Y {_START}/pod 2>/dev/null || date +%s) + {{0}})); "
    'exec "$@"'
)
"""A command of a shell that tells the pod's own when its time is over."""
_REPLICA = "\0replica\0"
"""Stands for the number of a replica until all else is escaped."""
_FIELD = "[FIELD_PATH]"
_COORDINATORS = 3
"""How many replicas the endpoint lists, so that the loss of replica 0 does not end the job."""


class MeetingPlace(NamedTuple):
    """Where the pods of an app find each other.

    `name` is that of its objects and of its headless Service, `stem` precedes the number in the
    host names of the first role's pods, and `number` is the field of a pod that has its number.
    `job` is the id of the job, with its namespace. `starts` are variables and the fields of a pod
    that count how often its replica was started before.
    """

    job: str
    name: str
    stem: str
    number: str
    starts: Mapping[str, str]

    def host(self, number: int) -> str:
        """Return the host name of a replica of the first role, within the namespace."""
        return f"{self.stem}-{number}.{self.name}"


def template(
    app: AppDef, role: Role, cfg: Mapping[str, Any], place: MeetingPlace
) -> dict[str, Any]:
    """Return the pod template of a role.

    Raises:
        UsageError: a part of the role or an option can't be expressed for Kubernetes.
    """
    if not role.image or role.image.startswith("<"):
        raise UsageError(f"role {role.name} has no image", hint="--image=NAME")
    values = {"img_root": "", "app_id": place.name, "rank0_env": _RANK0_ENV}
    own = _escaped(macros.substitute(role, {**values, "replica_id": _REPLICA}))
    brings = launcher_file.needed(role)
    if brings:
        own = launcher_file.wrapped(own, LAUNCHER)
    seconds = _seconds(cfg)
    if seconds:
        words = ["-c", _escape(_TELL_END.format(seconds)), "sh", own.entrypoint, *own.args]
        own = replace(own, entrypoint="sh", args=words)
    volumes, mounts = _volumes(role, cfg, place, brings_launcher=brings)
    container: dict[str, Any] = {
        "name": "main",
        "image": role.image,
        "command": [own.entrypoint, *own.args],
        "env": _variables(app, own, role, place),
        "resources": _resources(role, cfg),
        "volumeMounts": mounts,
        "securityContext": _container_security(role, cfg),
    }
    if cfg.get("image_pull_policy"):
        container["imagePullPolicy"] = cfg["image_pull_policy"]
    if role.port_map:
        container["ports"] = [
            {"name": name[:15], "containerPort": port} for name, port in role.port_map.items()
        ]
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "subdomain": place.name,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": _pod_security(cfg),
        "containers": [container],
        "volumes": volumes,
    }
    spec |= _placement(role, cfg, place)
    if seconds:  # of the pod: none can know how long its Job has run
        spec["activeDeadlineSeconds"] = seconds
    if cfg.get("service_account"):
        spec["serviceAccountName"] = cfg["service_account"]
    if cfg.get("image_secret"):
        spec["imagePullSecrets"] = [{"name": cfg["image_secret"]}]
    if cfg.get("priority_class"):
        spec["priorityClassName"] = cfg["priority_class"]
    metadata = {
        "labels": labels(app, place.name, role),
        "annotations": {"sidecar.istio.io/inject": "false"},
    }
    found: dict[str, Any] = {"metadata": metadata, "spec": spec}
    values["replica_id"] = f"$({_REPLICA_ENV})"
    for each in (app, role):
        user = {"pod": overrides.overlay(each)}
        user = macros.substitute(replace(role, metadata=user), values).metadata
        found = overlays.applied(found, user["pod"], f"the pod of {role.name}")
    if cfg.get("pods"):
        found = overrides.merged(found, overrides.read(cfg["pods"]))
    return found


def labels(app: AppDef, name: str, role: Role | None = None) -> dict[str, str]:
    """Return the labels of an object of an app, or of a role of it."""
    found = {
        "app.kubernetes.io/name": label_value(app.name),
        "app.kubernetes.io/managed-by": "relight",
        "app.kubernetes.io/instance": name,
        APP: name,
        USER: label_value(user_name()),
        "relight/version": label_value(__version__),
    }
    if role is None:
        return found
    index = next(number for number, each in enumerate(app.roles) if each.name == role.name)
    theirs = {
        "version": label_value(__version__),
        "app-name": label_value(app.name),
        "role-index": str(index),
        "role-name": label_value(role.name),
    }
    return {
        **found,
        ROLE: label_value(role.name),
        **{f"torchx.pytorch.org/{name}": value for name, value in theirs.items()},
    }


def _escaped(role: Role) -> Role:
    """Return the role with words that reach the program as they are: the kubelet replaces
    `$(NAME)`, and `$$` by `$`.
    """
    args = [_escape(word) for word in role.args]
    env = {name: _escape(value) for name, value in role.env.items()}
    return replace(role, entrypoint=_escape(role.entrypoint), args=args, env=env)


def _escape(text: str) -> str:
    if text.startswith(_FIELD):
        return text
    return re.sub(r"\$(?=[$(])", "$$", text).replace(_REPLICA, f"$({_REPLICA_ENV})")


def _variables(app: AppDef, own: Role, role: Role, place: MeetingPlace) -> list[dict[str, Any]]:
    index = {"fieldRef": {"fieldPath": place.number}}
    found: list[dict[str, Any]] = [{"name": _REPLICA_ENV, "valueFrom": index}]
    for name, path in place.starts.items():
        found.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    hosts = place.host(0)
    port = next(iter(app.roles[0].port_map.values()), 0)
    if launcher_file.needed(role) and port:
        # The component appends the port to the last one.
        others = min(_COORDINATORS, app.roles[0].num_replicas)
        hosts = f":{port},".join(place.host(number) for number in range(others))
    defaults = {
        "PYTHONUNBUFFERED": "x",
        _RANK0_ENV: hosts,
        "TORCHX_RANK0_HOST": place.host(0),
        "RELIGHT_IMAGE": role.image,
        "TORCHX_IMAGE": role.image,
    }
    values = {**defaults, **own.env}
    if JOB in values:  # TorchX writes its own without the namespace, and so it stays
        values[JOB] = role.env[JOB].replace("${app_id}", place.job)
    for name, value in values.items():
        if name == _REPLICA_ENV:
            continue
        if value.startswith(_FIELD):
            field = {"fieldRef": {"fieldPath": value.removeprefix(_FIELD)}}
            found.append({"name": name, "valueFrom": field})
        else:
            found.append({"name": name, "value": value})
    if TOKEN not in own.env:
        secret = {"secretKeyRef": {"name": f"{place.name}-token", "key": TOKEN}}
        found.append({"name": TOKEN, "valueFrom": secret})
    return found


def _resources(role: Role, cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits and requests of the container. As in TorchX, requests leave a rest of the
    node for what the cluster runs there.
    """
    has = role.resource
    limits, requests = dict[str, str](), dict[str, str]()
    if has.cpu > 0:
        cpu = int(has.cpu * 1000)
        limits["cpu"] = f"{cpu}m"
        requests["cpu"] = f"{max(0, cpu - _reserved(cfg, 'reserved_millicpu'))}m"
    if has.memMB > 0:
        limits["memory"] = f"{has.memMB}M"
        requests["memory"] = f"{max(0, has.memMB - _reserved(cfg, 'reserved_memmb'))}M"
    devices = {GPU: has.gpu} if has.gpu > 0 else {}
    devices |= has.devices
    if cfg.get("efa_device_count") is not None:
        devices[EFA] = cfg["efa_device_count"]
    counts = {name: str(number) for name, number in devices.items() if number}
    found = {"limits": limits | counts, "requests": requests | counts}
    return found if any(found.values()) else {}


def _seconds(cfg: Mapping[str, Any]) -> int:
    """Return how long a pod may live; 0 if there is no limit."""
    said = cfg.get("timeout")
    if said is not None and said < 1:
        raise UsageError(f"-cfg timeout={said}: at least one minute")
    return int(said or 0) * 60


def _reserved(cfg: Mapping[str, Any], name: str) -> int:
    said = cfg.get(name)
    return RESERVED[name] if said is None else int(said)


def _volumes(
    role: Role, cfg: Mapping[str, Any], place: MeetingPlace, *, brings_launcher: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    size = cfg.get("shm_size") or (f"{role.resource.memMB}M" if role.resource.memMB > 0 else "")
    memory = {"medium": "Memory", **({"sizeLimit": size} if size else {})}
    volumes: list[dict[str, Any]] = [{"name": "dshm", "emptyDir": memory}]
    mounts: list[dict[str, Any]] = [{"name": "dshm", "mountPath": "/dev/shm"}]  # noqa: S108
    if brings_launcher:
        source = {"name": f"{place.name}-launcher", "defaultMode": 0o555}
        volumes.append({"name": "launcher", "configMap": source})
        mounts.append({"name": "launcher", "mountPath": LAUNCHER, "readOnly": True})
    if _seconds(cfg):
        item = {"path": "pod", "fieldRef": {"fieldPath": "metadata.name"}}
        volumes.append({"name": "start", "downwardAPI": {"items": [item]}})
        mounts.append({"name": "start", "mountPath": _START, "readOnly": True})
    for number, mount in enumerate(role.mounts):
        name = f"mount-{number}"
        match mount:
            case BindMount(source_path, target, read_only):
                volume: dict[str, Any] = {"hostPath": {"path": source_path}}
            case VolumeMount(claim, target, read_only):
                volume = {"persistentVolumeClaim": {"claimName": claim}}
            case DeviceMount(source_path, target, permissions):
                volume, read_only = {"hostPath": {"path": source_path}}, "w" not in permissions
        if not target.startswith("/"):
            raise UsageError(f"{role.name}: mount of {target}: a path in a container begins with /")
        volumes.append({"name": name, **volume})
        mounts.append({"name": name, "mountPath": target, "readOnly": read_only})
    return volumes, mounts


def _is_privileged(role: Role, cfg: Mapping[str, Any]) -> bool:
    return bool(cfg.get("privileged")) or any(isinstance(x, DeviceMount) for x in role.mounts)


def _container_security(role: Role, cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the *restricted* Pod Security Standard asks of a container."""
    if _is_privileged(role, cfg):
        return {"privileged": True}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _pod_security(cfg: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if cfg.get("user") is not None:
        found |= {"runAsUser": cfg["user"], "runAsNonRoot": cfg["user"] != 0}
    return found


def _placement(role: Role, cfg: Mapping[str, Any], place: MeetingPlace) -> dict[str, Any]:
    """Return on which nodes the pods may run."""
    found: dict[str, Any] = {}
    selector = dict(cfg.get("node_selector") or {})
    kind = role.resource.capabilities.get("node.kubernetes.io/instance-type")
    if kind:
        selector["node.kubernetes.io/instance-type"] = str(kind)
    if selector:
        found["nodeSelector"] = selector
    if cfg.get("tolerations"):
        found["tolerations"] = [_toleration(text) for text in cfg["tolerations"]]
    if cfg.get("topology"):
        term = {
            "labelSelector": {"matchLabels": {APP: place.name}},
            "topologyKey": cfg["topology"],
        }
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        found["affinity"] = {"podAffinity": required}
    return found


def _toleration(text: str) -> dict[str, Any]:
    """Read a toleration as `kubectl taint` writes a taint: KEY, KEY=VALUE, with :EFFECT."""
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    effects = ("NoSchedule", "PreferNoSchedule", "NoExecute", "")
    if not key or effect not in effects:
        raise UsageError(
            f"-cfg tolerations: {text} is no toleration",
            hint="KEY, KEY=VALUE or KEY=VALUE:EFFECT; effects: NoSchedule, NoExecute",
        )
    found = {"key": key, "operator": "Equal" if equals else "Exists"}
    found |= {"value": value} if equals else {}
    return found | ({"effect": effect} if effect else {})
