"""Builds the template for a role's pods, for the object that creates the pods."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from relight import __version__
from relight.base import redaction
from relight.base.errors import UsageError
from relight.job import launcher_file, macros, overlays
from relight.job.app import AppDef, BindMount, DeviceMount, Role, VolumeMount
from relight.job.user import user_name
from relight.schedulers.api import time_limit_s
from relight.schedulers.kubernetes import overrides, pod_security, run_times
from relight.schedulers.kubernetes.names import label_name, label_value
from relight.schedulers.kubernetes.pod_security import mapping

LAUNCHER = "/opt/relight"
"""The directory of the bundled launcher inside the container."""
_LAUNCHER_BYTES = 190_000
"""The size of the launcher's files in a ConfigMap. `kubectl apply` repeats each object in an
annotation, in base64, and annotations are limited to 256 KiB (TotalAnnotationSizeLimitB in
apimachinery's pkg/api/validation).
"""
GPU = "nvidia.com/gpu"
RESERVED = {"reserved_millicpu": 100, "reserved_memmb": 1024}
"""The resources that TorchX reserves on a node for other pods by default."""
TOKEN = "RELIGHT_TOKEN"  # noqa: S105  # a name
TOKENS, SECRETS = "-token", "-env"
"""The name suffixes of the Secrets that contain the agents' token and secret variables."""
APP, ROLE, USER = "relight/app-id", "relight/role", "relight/user"
VOLCANO = "volcano"
"""The name of Volcano's object kind, and of its scheduler."""
EFA = "vpc.amazonaws.com/efa"
_RANK0_ENV = "RELIGHT_RANK0_HOST"
_REPLICA_ENV = "RELIGHT_REPLICA_ID"
_BAD_NODES, _NODE_NAME = "RELIGHT_BAD_NODES", "RELIGHT_NODE_NAME"
"""The variable that contains the node's name in the cluster. An agent records its node by this
name, which differs from the pod's host name.
"""
_TOPOLOGY, _RANK_ORDER = "RELIGHT_TOPOLOGY", "RELIGHT_RANK_ORDER"
_START = "/opt/relight-start"
"""A directory that contains a file that is as old as the pod, because the kubelet creates the file
before it pulls the image.
"""
_TELL_END = (
    'case "${{RELIGHT_PREEMPTIONS:-0}}${{RELIGHT_REQUEUES:-0}}" in 00) '
    f"export RELIGHT_END_TIME=$(($(stat -c %Y {_START}/pod 2>/dev/null || date +%s) + {{0}}));; "
    "esac"
)
"""A shell command that exports the job's deadline, because a recreated pod doesn't know when the
job started.
"""
_RANK0_ENVS = (_RANK0_ENV, "TORCHX_RANK0_HOST")
_SHELLS = ("sh", "bash")
_REPLICA = "\0replica\0"
"""A placeholder for the replica number, used until everything else has been escaped."""
_FIELD = "[FIELD_PATH]"
_POD_GROUP = "scheduling.x-k8s.io/pod-group"
_TOLERATION_S = 300
"""How long a pod stays on a node that is not ready or unreachable, by default (admission plug-in
DefaultTolerationSeconds).
"""
_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_COORDINATORS = 3
"""The number of replicas that the endpoint lists. There are several so that losing replica 0 does
not end the job.
"""


class MeetingPlace(NamedTuple):
    """The rendezvous endpoint that an app's pods use.

    `name` is the name of the app's objects and its headless Service. `stem` precedes the number in
    the host names of the first role's pods, and `number` is the pod field that contains this
    number. `starts` maps environment variables to the pod fields that count how many times the
    replica has been started before.
    """

    name: str
    stem: str
    number: str
    starts: Mapping[str, str]

    def host(self, number: int) -> str:
        """Return the host name of one of the first role's replicas, as it can be used within the
        namespace.
        """
        return f"{self.stem}-{number}.{self.name}"


def template(
    app: AppDef, role: Role, cfg: Mapping[str, Any], place: MeetingPlace
) -> dict[str, Any]:
    """Return a role's pod template.

    Raises:
        UsageError: if part of the role or an option can't be expressed in Kubernetes.
    """
    if not role.image or role.image.startswith("<"):
        raise UsageError(f"role {role.name} has no image", hint="--image=NAME")
    _check_restricted(role, cfg)
    own = _escaped(_substituted(role, place))
    brings = launcher_file.needed(role)
    if brings:
        own = launcher_file.wrapped(own, LAUNCHER)
    seconds = time_limit_s(cfg)
    first = _name_localhost(app, role)
    first += [_TELL_END.format(seconds)] if seconds else []
    if first:
        script = _escape("; ".join([*first, 'exec "$@"']))
        own = replace(own, entrypoint="sh", args=["-c", script, "sh", own.entrypoint, *own.args])
    volumes, mounts = _volumes(role, cfg, brings_launcher=brings)
    container: dict[str, Any] = {
        "name": "main",
        "image": role.image,
        "command": [own.entrypoint, *own.args],
        "env": [*_topology(own, cfg), *_variables(app, own, role, place)],
        "resources": _resources(role, cfg),
        "volumeMounts": mounts,
    }
    if security := _container_security(role, cfg):
        container["securityContext"] = security
    if cfg.get("image_pull_policy"):
        container["imagePullPolicy"] = cfg["image_pull_policy"]
    if role.port_map:
        container["ports"] = [
            {"name": name[:15], "containerPort": port} for name, port in role.port_map.items()
        ]
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "subdomain": place.name,
        "terminationGracePeriodSeconds": run_times.grace_s(role),
        "containers": [container],
        "volumes": volumes,
    }
    if security := _pod_security(cfg):
        spec["securityContext"] = security
    spec |= _placement(role, cfg, place)
    if cfg.get("scheduler"):
        spec["schedulerName"] = cfg["scheduler"]
    if cfg.get("service_account"):
        spec["serviceAccountName"] = cfg["service_account"]
    else:  # agents never call the API server
        spec["automountServiceAccountToken"] = False
    if cfg.get("image_secret"):
        spec["imagePullSecrets"] = [{"name": cfg["image_secret"]}]
    if cfg.get("priority_class"):
        spec["priorityClassName"] = cfg["priority_class"]
    metadata = {
        "labels": labels(app, place.name, role) | _group_label(cfg, place),
        "annotations": {"sidecar.istio.io/inject": "false", **_no_consolidation(role)},
    }
    found: dict[str, Any] = {"metadata": metadata, "spec": spec}
    for each in (app, role):
        user = replace(role, metadata={"pod": overrides.overlay(each)})
        user = _substituted(user, place, f"$({_REPLICA_ENV})")
        found = overlays.applied(found, user.metadata["pod"], f"the pod of {role.name}")
    if cfg.get("pods"):
        found = overrides.merged(found, overrides.read(cfg["pods"]))
    if cfg.get("exclude"):  # last, because none of the user's terms may bypass it
        _exclude(found["spec"], cfg["exclude"])
    if found["spec"].get("hostNetwork"):  # otherwise the pod uses the node's DNS (default policy),
        found["spec"].setdefault("dnsPolicy", "ClusterFirstWithHostNet")  # which lacks the Service
    return found


def _no_consolidation(role: Role) -> dict[str, str]:
    """Return the annotations that keep autoscalers from moving a pod to empty its node. Moving one
    pod would restart all ranks. An elastic job continues without the pod.

    Sources: podutils.IsDisruptable in Karpenter's pkg/utils/pod, and PodSafeToEvictKey in the
    Cluster Autoscaler's utils/drain.
    """
    if role.is_elastic:
        return {}
    return {
        "karpenter.sh/do-not-disrupt": "true",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    }


def _name_localhost(app: AppDef, role: Role) -> list[str]:
    """Return a shell command that names the host of replica 0 `localhost` in that replica, as in
    TorchX, or nothing if it isn't needed. torchrun only listens there if its endpoint is its own
    host, and a pod that has just started may not find its own name in the DNS.

    A role that doesn't start a shell can't expand the variable, and its image may not have a shell.
    The agents of relight wait until they can resolve the host. The role's own values are kept.
    """
    texts = (*role.args, *role.env.values())
    names = [name for name in _RANK0_ENVS if name not in role.env]
    if (
        not names
        or not any(macros.rank0_env in text for text in texts)
        or role.name != app.roles[0].name
        or role.entrypoint.rpartition("/")[2] not in _SHELLS
        or launcher_file.starts_relight(role)
    ):
        return []
    return [f'[ "${_REPLICA_ENV}" != 0 ] || export {" ".join(f"{n}=localhost" for n in names)}']


def labels(app: AppDef, name: str, role: Role | None = None) -> dict[str, str]:
    """Return the labels for an object that belongs to an app, or to one of the app's roles."""
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


def secrets(role: Role, place: MeetingPlace) -> dict[str, str]:
    """Return the role's environment variables that look like secrets, by their keys in the job's
    Secret. Users who only have read access to pods can't see values that are in a Secret.
    """
    own = _substituted(role, place).env
    return {secret_key(role, name): own[name] for name in own if _is_secret(name, own[name])}


def secret_key(role: Role, variable: str) -> str:
    """Return the key of a role's variable in the job's Secret."""
    return f"{label_name(role.name)}.{variable}"


def secret_name(place: MeetingPlace) -> str:
    """Return the name of the Secret that contains the job's variables."""
    return place.name + SECRETS


def launcher() -> dict[str, Mapping[str, bytes]]:
    """Return the names of the ConfigMaps that contain the launcher, and the files in each."""
    name = f"relight-launcher-{launcher_file.digest()}"
    groups = launcher_file.split(_LAUNCHER_BYTES)
    return {f"{name}-{number}": files for number, files in enumerate(groups)}


def _is_secret(name: str, value: str) -> bool:
    """Return whether a variable is stored in the Secret. The kubelet does not expand values from a
    Secret, so a value that refers to the replica number stays in the pod.
    """
    if (
        value.startswith(_FIELD)
        or _REPLICA in value
        or not re.fullmatch(r"[-.\w]+", name, re.ASCII)
    ):
        return False
    return redaction.redact_env({name: value})[name] != value


def _substituted(role: Role, place: MeetingPlace, replica: str = _REPLICA) -> Role:
    values = {"img_root": "", "app_id": place.name, "rank0_env": _RANK0_ENV}
    return macros.substitute(role, {**values, "replica_id": replica})


def _escaped(role: Role) -> Role:
    """Return the role with its arguments escaped. Without escaping, the kubelet would expand
    `$(NAME)` and replace `$$` with `$`.
    """
    args = [_escape(word) for word in role.args]
    env = {name: _escape(value) for name, value in role.env.items()}
    return replace(role, entrypoint=_escape(role.entrypoint), args=args, env=env)


def _escape(text: str) -> str:
    if text.startswith(_FIELD):
        return text
    return re.sub(r"\$(?=[$(])", "$$", text).replace(_REPLICA, f"$({_REPLICA_ENV})")


def _variables(app: AppDef, own: Role, role: Role, place: MeetingPlace) -> list[dict[str, Any]]:
    fields = {_REPLICA_ENV: place.number, **place.starts}
    if _BAD_NODES in own.env and _NODE_NAME not in own.env:
        fields[_NODE_NAME] = "spec.nodeName"
    found = [_from_field(name, path) for name, path in fields.items()]
    hosts = place.host(0)
    port = next(iter(app.roles[0].port_map.values()), 0)
    if launcher_file.needed(role) and port:
        # The component appends the port to the last host.
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
    hidden = secrets(role, place)
    for name, value in values.items():
        if name == _REPLICA_ENV:
            continue
        key = secret_key(role, name)
        if key in hidden:
            found.append(_from_secret(name, secret_name(place), key))
        elif value.startswith(_FIELD):
            found.append(_from_field(name, value.removeprefix(_FIELD)))
        else:
            found.append({"name": name, "value": value})
    if TOKEN not in own.env:
        found.append(_from_secret(TOKEN, place.name + TOKENS, TOKEN))
    return found


def _from_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _from_secret(name: str, secret: str, key: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _topology(own: Role, cfg: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the variables for ordering ranks by pod labels. A variable is empty if the
    pod doesn't have the label.

    By default, a cluster copies only the region and zone labels from nodes to pods. This is
    done by the admission plug-in PodTopologyLabels, enabled by default since Kubernetes 1.35.
    """
    found = [
        _from_field(f"{_TOPOLOGY}_{number}", f"metadata.labels['{label}']")
        for number, label in enumerate(cfg.get("rank_order") or ())
    ]
    if found:
        place = ".".join(f"$({each['name']})" for each in found)
        found += [{"name": _TOPOLOGY, "value": place}, {"name": _RANK_ORDER, "value": "topology"}]
    return [each for each in found if each["name"] not in own.env]


def _resources(role: Role, cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container's resource limits and requests. As in TorchX, the requests leave some of
    the node's resources to the cluster's own pods, but never more than half of the limit. With a
    request of 0, any number of pods would be scheduled to a node, and run out of memory there.
    """
    has = role.resource
    limits, requests = dict[str, str](), dict[str, str]()
    if has.cpu > 0:
        cpu = int(has.cpu * 1000)
        limits["cpu"] = f"{cpu}m"
        requests["cpu"] = f"{cpu - min(cpu // 2, _reserved(cfg, 'reserved_millicpu'))}m"
    if has.memMB > 0:
        limits["memory"] = f"{has.memMB}M"
        requests["memory"] = f"{has.memMB - min(has.memMB // 2, _reserved(cfg, 'reserved_memmb'))}M"
    devices = {GPU: has.gpu} if has.gpu > 0 else {}
    devices |= has.devices
    if cfg.get("efa_device_count") is not None:
        devices[EFA] = cfg["efa_device_count"]
    counts = {name: str(number) for name, number in devices.items() if number}
    found = {"limits": limits | counts, "requests": requests | counts}
    return found if any(found.values()) else {}


def _reserved(cfg: Mapping[str, Any], name: str) -> int:
    said = cfg.get(name)
    return RESERVED[name] if said is None else int(said)


def _volumes(
    role: Role, cfg: Mapping[str, Any], *, brings_launcher: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    size = cfg.get("shm_size") or (f"{role.resource.memMB}M" if role.resource.memMB > 0 else "")
    memory = {"medium": "Memory", **({"sizeLimit": size} if size else {})}
    volumes: list[dict[str, Any]] = [{"name": "dshm", "emptyDir": memory}]
    mounts: list[dict[str, Any]] = [{"name": "dshm", "mountPath": "/dev/shm"}]  # noqa: S108
    if brings_launcher:
        sources = [{"configMap": {"name": name}} for name in launcher()]
        source = {"sources": sources, "defaultMode": 0o555}
        volumes.append({"name": "launcher", "projected": source})
        mounts.append({"name": "launcher", "mountPath": LAUNCHER, "readOnly": True})
    if time_limit_s(cfg):
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
            raise UsageError(f"{role.name}: mount of {target}: container paths start with /")
        volumes.append({"name": name, **volume})
        mounts.append({"name": name, "mountPath": target, "readOnly": read_only})
    return volumes, mounts


def _is_privileged(role: Role, cfg: Mapping[str, Any]) -> bool:
    return bool(cfg.get("privileged")) or any(isinstance(x, DeviceMount) for x in role.mounts)


def _check_restricted(role: Role, cfg: Mapping[str, Any]) -> None:
    """Raise an error if the pods would violate the *restricted* Pod Security Standard.

    Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/
    """
    if not cfg.get("restricted"):
        return
    permitted = pod_security.PERMITTED
    others = [name for name in _capabilities(cfg) if name != permitted]
    for is_there, what in (
        (_is_privileged(role, cfg), "privileged containers, which device mounts need"),
        (any(isinstance(x, BindMount) for x in role.mounts), "directories of the node (type=bind)"),
        (cfg.get("user") == 0, "root (user=0)"),
        (others, f"capabilities other than {permitted} ({', '.join(others)})"),
    ):
        if is_there:
            raise UsageError(
                f"{role.name}: -cfg restricted: this Pod Security Standard forbids {what}",
                hint="leave one of the two out",
            )


def _container_security(role: Role, cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container's security context. By default, it is empty as in TorchX, because root
    can't write to another user's volume without CAP_DAC_OVERRIDE.
    """
    if _is_privileged(role, cfg):
        return {"privileged": True}
    capabilities: dict[str, Any] = {"drop": ["ALL"]} if cfg.get("restricted") else {}
    if names := _capabilities(cfg):
        capabilities["add"] = names
    found = {"allowPrivilegeEscalation": False} if cfg.get("restricted") else {}
    return {**found, "capabilities": capabilities} if capabilities else found


def _capabilities(cfg: Mapping[str, Any]) -> list[str]:
    """Return the names of capabilities as Kubernetes expects them, without the CAP_ prefix."""
    names = [name.upper().removeprefix("CAP_") for name in cfg.get("capabilities") or ()]
    for name in names:
        if not re.fullmatch(r"[A-Z]+(_[A-Z]+)*", name):
            raise UsageError(
                f"-cfg capabilities: {name} is not a capability", hint="such as IPC_LOCK;SYS_PTRACE"
            )
    return names


def _pod_security(cfg: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if cfg.get("restricted"):
        found |= {"seccompProfile": {"type": "RuntimeDefault"}, "runAsNonRoot": True}
    if cfg.get("user") is not None:
        found |= {"runAsUser": cfg["user"], "runAsNonRoot": cfg["user"] != 0}
    if cfg.get("fs_group") is not None:
        found["fsGroup"] = cfg["fs_group"]
    return found


def _group_label(cfg: Mapping[str, Any], place: MeetingPlace) -> dict[str, str]:
    """Return the label that adds a pod to the job's PodGroup."""
    return {_POD_GROUP: place.name} if has_pod_group(cfg) else {}


def has_pod_group(cfg: Mapping[str, Any]) -> bool:
    """Return whether relight creates a PodGroup for the Coscheduling plug-in.

    With Volcano, this isn't necessary, because Volcano creates a PodGroup from an annotation on the
    Job. Source: https://scheduler-plugins.sigs.k8s.io/docs/plugins/coscheduling/
    """
    return bool(cfg.get("gang")) and VOLCANO not in (cfg.get("scheduler"), cfg.get("kind"))


def _placement(role: Role, cfg: Mapping[str, Any], place: MeetingPlace) -> dict[str, Any]:
    """Return the constraints on where pods may be placed."""
    found: dict[str, Any] = {}
    selector = dict(cfg.get("node_selector") or {})
    kind = role.resource.capabilities.get("node.kubernetes.io/instance-type")
    if kind:
        selector["node.kubernetes.io/instance-type"] = str(kind)
    if selector:
        found["nodeSelector"] = selector
    if tolerations := _tolerations(role, cfg):
        found["tolerations"] = tolerations
    if cfg.get("topology"):
        term = {
            "labelSelector": {"matchLabels": {APP: place.name}},
            "topologyKey": cfg["topology"],
        }
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        found["affinity"] = {"podAffinity": required}
    return found


def _exclude(spec: dict[str, Any], nodes: Sequence[str]) -> None:
    """Exclude nodes in each term of a pod's node affinity. A pod may run on nodes that match any
    one of the terms, and a term without requirements matches no nodes (`NodeSelectorTerm`).
    """
    # Each requirement has one value, because the server rejects more
    # (ValidateNodeFieldSelectorRequirement).
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    name = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = mapping(spec.get("affinity"))
    of_node = mapping(affinity.get("nodeAffinity"))
    given = mapping(of_node.get(name)).get("nodeSelectorTerms")
    terms = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), *fields]}
        if term.get("matchExpressions") or term.get("matchFields")
        else term
        for term in given or ()
    ] or [{"matchFields": fields}]
    spec["affinity"] = {**affinity, "nodeAffinity": {**of_node, name: {"nodeSelectorTerms": terms}}}


def _tolerations(role: Role, cfg: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the user's tolerations. If the cluster's default tolerations for a lost node last
    longer than agents wait for a replacement, shorter ones are added.
    """
    found = [_toleration(text) for text in cfg.get("tolerations") or ()]
    stays_s = int(run_times.join_timeout_s(role) / 2)
    if stays_s >= _TOLERATION_S:
        return found
    known = {each["key"] for each in found}
    return found + [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": stays_s}
        for key in _LOST
        if key not in known
    ]


def _toleration(text: str) -> dict[str, Any]:
    """Parse a toleration that is written like a taint in `kubectl taint`, as KEY:EFFECT or
    KEY=VALUE:EFFECT.
    """
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    effects = ("NoSchedule", "PreferNoSchedule", "NoExecute", "")
    if not key or effect not in effects:
        raise UsageError(
            f"-cfg tolerations: {text} is not a toleration",
            hint="KEY, KEY=VALUE or KEY=VALUE:EFFECT; effects: NoSchedule, NoExecute",
        )
    found = {"key": key, "operator": "Equal" if equals else "Exists"}
    found |= {"value": value} if equals else {}
    return found | ({"effect": effect} if effect else {})
