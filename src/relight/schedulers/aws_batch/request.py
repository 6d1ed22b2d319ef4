"""Builds the AWS Batch requests for an app, which create a job definition and a job based on it.

An app with one replica becomes a single-container job. Any other app becomes a multi-node parallel
job with one node for each replica of each role, in order. Source: the AWS Batch API reference
(RegisterJobDefinition, SubmitJob), and "Environment variables of jobs" in its user guide.
"""

import copy
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from relight import __version__
from relight.base.errors import EXIT_PREEMPTED, UsageError
from relight.base.text import did_you_mean
from relight.job import launcher_file, macros
from relight.job.app import AppDef, BindMount, DeviceMount, Mount, Resource, Role, VolumeMount
from relight.job.user import user_name
from relight.schedulers.api import DEVICE_FILES, time_limit_s, with_job_id

APP, USER, VERSION = "relight/app-name", "relight/user", "relight/version"
"""Job tags."""
ROLE_NAME = "TORCHX_ROLE_NAME"
"""The environment variable that contains the name of the container's role."""
LAUNCHER_URL = "RELIGHT_LAUNCHER_URL"
"""The environment variable that contains the URL of the bundled launcher."""
LOG_GROUP = "/aws/batch/job"
GROUP_OPTION = "awslogs-group"
TOKEN = "RELIGHT_TOKEN"  # noqa: S105  # a name
_ROLE_ARNS = {"job_role_arn": "jobRoleArn", "execution_role_arn": "executionRoleArn"}
_SECRET_ARN = re.compile(
    r"arn:aws[a-z-]*:(?:secretsmanager:[a-z0-9-]+:[0-9]{12}:secret:|ssm:[a-z0-9-]+:[0-9]{12}:parameter/)"
    r"[\w+=,.@/:-]+"
)
_LONGEST = 128
_MAX_ROLES = 5
_MAX_ATTEMPTS = 10
_MAX_PRIORITY = 9999
_MAX_BYTES = 24 * 1024
"""Maximum length of a job definition (AWS Batch service quotas)."""
_CAPABILITY = "node.kubernetes.io/instance-type"
_REPLICA, _REPLICA_ENV, _RANK0_ENV = "\0replica\0", "RELIGHT_REPLICA_ID", "RELIGHT_RANK0_HOST"
_PERMISSIONS = {"r": "READ", "w": "WRITE", "m": "MKNOD"}
_FOLDER = "/tmp/relight-launcher"  # noqa: S108  # in the container, where nothing else uses it
_OWN_ADDRESS = """\
import socket
try:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(("10.255.255.255", 1))
    print(s.getsockname()[0])
except OSError:
    print(socket.gethostbyname(socket.gethostname()))
"""
"""A program that prints this host's address without sending anything. The address is the source
address that the system would use or, failing that, the address that the host name resolves to.
"""
_FETCH = (
    "import os, socket, urllib.request; socket.setdefaulttimeout(60); "
    f'urllib.request.urlretrieve(os.environ["{LAUNCHER_URL}"], "{_FOLDER}/relight")'
)


def definition(app: AppDef, cfg: Mapping[str, Any], name: str, token: str) -> dict[str, Any]:
    """Return the arguments of RegisterJobDefinition.

    Args:
        app: the app, whose macros have not been substituted yet.
        cfg: the scheduler's options.
        name: the name of both the job and its definition.
        token: the token that agents authenticate with.

    Raises:
        UsageError: if part of the app or an option can't be expressed in AWS Batch.
    """
    if len(app.roles) > _MAX_ROLES:
        raise UsageError(
            f"app {app.name} has {len(app.roles)} roles; an AWS Batch job has at most {_MAX_ROLES}"
        )
    if not 0 <= (cfg.get("priority") or 0) <= _MAX_PRIORITY:
        raise UsageError(f"-cfg priority={cfg['priority']}: must be from 0 to {_MAX_PRIORITY}")
    app = with_job_id(app, f"{cfg['queue']}:{name}")
    found: dict[str, Any] = {
        "jobDefinitionName": name,
        "tags": tags(app, cfg),
        "propagateTags": True,
        "retryStrategy": _retries(app),
    }
    if limit_s := time_limit_s(cfg):
        found["timeout"] = {"attemptDurationSeconds": limit_s}
    if cfg.get("share_id"):
        found["schedulingPriority"] = cfg.get("priority") or 0
    size = sum(role.num_replicas for role in app.roles)
    containers = [_container(app, role, cfg, name, first) for role, first in _first_nodes(app)]
    for container in containers:
        given = (*container["environment"], *container.get("secrets", ()))
        if all(each["name"] != TOKEN for each in given):
            container["environment"].append({"name": TOKEN, "value": token})
    if size == 1:
        return {**found, "type": "container", "containerProperties": containers[0]}
    ranges = []
    kind = _instance_type(app)
    for (role, first), container in zip(_first_nodes(app), containers, strict=True):
        if kind:
            container["instanceType"] = kind
        last = first + role.num_replicas - 1
        ranges.append({"targetNodes": f"{first}:{last}", "container": container})
    nodes = {"numNodes": size, "mainNode": 0, "nodeRangeProperties": ranges}
    return {**found, "type": "multinode", "nodeProperties": nodes}


def job(app: AppDef, cfg: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the arguments of SubmitJob, except the definition's ARN."""
    found: dict[str, Any] = {"jobName": name, "jobQueue": cfg["queue"], "tags": tags(app, cfg)}
    if cfg.get("share_id"):
        found["shareIdentifier"] = cfg["share_id"]
    return found


def containers(made: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a job definition's containers."""
    if "containerProperties" in made:
        return [made["containerProperties"]]
    return [each["container"] for each in made["nodeProperties"]["nodeRangeProperties"]]


def with_variable(made: Mapping[str, Any], name: str, value: str) -> dict[str, Any]:
    """Return a copy of a job definition with an environment variable added to its containers."""
    found: dict[str, Any] = copy.deepcopy(dict(made))
    for container in containers(found):
        container["environment"].append({"name": name, "value": value})
    return found


def check_size(made: Mapping[str, Any]) -> None:
    """Reject a job definition that is too long for Batch.

    Raises:
        UsageError: if the definition is too long.
    """
    size = len(json.dumps(made))
    if size > _MAX_BYTES:
        raise UsageError(
            f"the job definition has {size} bytes; the AWS Batch limit is {_MAX_BYTES}",
            hint="move long arguments and variables to a file in the image or on a mount",
        )


def tags(app: AppDef, cfg: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags for an app's job and job definition."""
    own = {APP: app.name, USER: cfg.get("user") or user_name(), VERSION: __version__}
    return {_tag(name)[:128]: _tag(value) for name, value in {**app.metadata, **own}.items()}


def job_name(app_id: str) -> str:
    """Convert an app's id to a valid AWS Batch name, which consists of letters, digits, hyphens and
    underscores.
    """
    return re.sub(r"[^A-Za-z0-9_-]+", "-", app_id).lstrip("-_")[-_LONGEST:]


def brings_launcher(app: AppDef) -> bool:
    """Return whether any role's command may need the launcher."""
    return any(map(launcher_file.needed, app.roles))


def _tag(text: str) -> str:
    return re.sub(r"[^\w .:/=+@-]+", "_", str(text))[:256]


def _retries(app: AppDef) -> dict[str, Any]:
    """Return the retry strategy. A job is retried after a host has been lost or its loss has been
    announced. After any other failure, the job is retried as often as its roles allow. Batch makes
    at most 10 attempts.
    """
    wanted = max(role.max_retries for role in app.roles)
    if wanted >= _MAX_ATTEMPTS:
        raise UsageError(
            f"max_retries={wanted}: AWS Batch runs a job at most {_MAX_ATTEMPTS} times",
            hint=f"--max_retries={_MAX_ATTEMPTS - 1}",
        )
    lost = {"onStatusReason": "Host EC2*", "action": "RETRY"}
    if wanted <= 0:
        preempted = {"onExitCode": str(EXIT_PREEMPTED), "action": "RETRY"}
        rest = {"onReason": "*", "action": "EXIT"}
        return {"attempts": 3, "evaluateOnExit": [lost, preempted, rest]}
    done = {"onExitCode": "0", "action": "EXIT"}
    return {"attempts": wanted + 1, "evaluateOnExit": [lost, done]}


def _instance_type(app: AppDef) -> str:
    """Return the instance type for the nodes, or an empty string if no role requests one. All node
    groups in a job must have the same instance type (API reference, ContainerProperties).
    """
    kinds = ((role.resource.capabilities.get(_CAPABILITY), role.name) for role in app.roles)
    wanted = {str(kind): name for kind, name in kinds if kind}
    if len(wanted) > 1:
        said = ", ".join(f"{name} {kind}" for kind, name in wanted.items())
        raise UsageError(
            f"the roles of {app.name} require different machines ({said}), but all nodes of an AWS "
            "Batch job have one instance type"
        )
    return next(iter(wanted), "")


def _first_nodes(app: AppDef) -> Iterator[tuple[Role, int]]:
    """Yield each role along with the number of its first node."""
    first = 0
    for role in app.roles:
        yield role, first
        first += role.num_replicas


def _container(
    app: AppDef, role: Role, cfg: Mapping[str, Any], name: str, first: int
) -> dict[str, Any]:
    """Return the container for a role. `first` is the number of the role's first node."""
    if not role.image or role.image.startswith("<"):
        raise UsageError(f"role {role.name} has no image", hint="--image=NAME")
    if role.resource.memMB <= 0:
        raise UsageError(f"role {role.name}: AWS Batch requires a memory size", hint="--memMB")
    known = {"img_root": "", "app_id": name, "replica_id": _REPLICA, "rank0_env": _RANK0_ENV}
    own = macros.substitute(role, known)
    if launcher_file.needed(role) and cfg.get("launcher_uri"):
        own = launcher_file.wrapped(own, _FOLDER)
    volumes, mounts = _volumes(role)
    values = {
        "PYTHONUNBUFFERED": "x",
        "RELIGHT_IMAGE": role.image,
        "TORCHX_IMAGE": role.image,
        **{key: value for key, value in own.env.items() if _REPLICA not in value},
        "TORCHX_ROLE_IDX": str(app.roles.index(role)),
        ROLE_NAME: role.name,
    }
    found: dict[str, Any] = {
        "command": ["sh", "-c", _script(app, own, cfg, first)],
        "image": role.image,
        "environment": [{"name": key, "value": value} for key, value in values.items()],
        "privileged": bool(cfg.get("privileged")),
        "resourceRequirements": list(_requirements(role.resource)),
        "linuxParameters": _linux(role),
        "logConfiguration": _logging(cfg),
        "mountPoints": mounts,
        "volumes": volumes,
    }
    if cfg.get("container_user"):
        found["user"] = cfg["container_user"]
    if cfg.get("ulimits"):
        found["ulimits"] = [_ulimit(text) for text in cfg["ulimits"]]
    for option, field in _ROLE_ARNS.items():
        if cfg.get(option):
            found[field] = cfg[option]
    if cfg.get("secrets"):
        found["secrets"] = _secrets(cfg, {**own.env, **values})
    return found


def _secrets(cfg: Mapping[str, Any], variables: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the variables whose values Batch reads from Secrets Manager or the SSM Parameter Store
    ("Specifying sensitive data" in the AWS Batch user guide).
    """
    if not cfg.get("execution_role_arn"):
        raise UsageError(
            "-cfg secrets requires execution_role_arn, the IAM role that reads them",
            hint="it needs secretsmanager:GetSecretValue or ssm:GetParameters",
        )
    for name, arn in cfg["secrets"].items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"-cfg secrets: {name!r} is not a variable name")
        if name in variables:
            raise UsageError(
                f"-cfg secrets: {name} is already set in the job's environment",
                hint=f"leave out --env {name}=…",
            )
        if not _SECRET_ARN.fullmatch(str(arn)):  # not shown, as it may be the secret itself
            raise UsageError(
                f"-cfg secrets: expected the ARN of a secret or SSM parameter for {name}",
                hint=f"{name}:arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME",
            )
    return [{"name": name, "valueFrom": arn} for name, arn in cfg["secrets"].items()]


def _script(app: AppDef, own: Role, cfg: Mapping[str, Any], first: int) -> str:
    """Return a container's shell script. The node's number and the address of the first node are
    only known inside the container, and Batch does not set the address on the first node itself.
    """
    lines = [f"export {_REPLICA_ENV}=$((${{AWS_BATCH_JOB_NODE_INDEX:-0}} - {first}))"]
    if limit_s := time_limit_s(cfg):
        lines.append(f"export RELIGHT_END_TIME=$(($(date +%s) + {limit_s}))")
    if sum(role.num_replicas for role in app.roles) > 1:
        address = f"python3 -c {shlex.quote(_OWN_ADDRESS)} 2>/dev/null || hostname -i"
        lines += [
            "first=$AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",
            f'[ -n "$first" ] || first=$({address})',
            f'export {_RANK0_ENV}="${{first%% *}}" TORCHX_RANK0_HOST="${{first%% *}}"',
        ]
    if own.entrypoint == "sh" and any(_FOLDER in word for word in own.args):
        lines += [
            f'[ -z "${LAUNCHER_URL}" ] || {{ mkdir -p {_FOLDER} && '
            f"python3 -c {shlex.quote(_FETCH)} && chmod 755 {_FOLDER}/relight; }} ||",
            '  echo "relight: warning: the launcher could not be fetched; its address may have '
            'expired" >&2',
            f"unset {LAUNCHER_URL}",
        ]
    lines += [f"export {key}={_word(value)}" for key, value in own.env.items() if _REPLICA in value]
    lines.append("exec " + " ".join(map(_word, (own.entrypoint, *own.args))))
    return "\n".join(lines)


def _word(text: str) -> str:
    """Quote a word for the shell, and replace its placeholder with the replica number."""
    parts = [shlex.quote(part) if part else "" for part in text.split(_REPLICA)]
    return f'"${_REPLICA_ENV}"'.join(parts) or "''"


def _requirements(has: Resource) -> Iterator[dict[str, str]]:
    yield {"type": "VCPU", "value": f"{max(1, has.cpu):g}"}
    yield {"type": "MEMORY", "value": str(has.memMB)}
    if has.gpu > 0:
        yield {"type": "GPU", "value": str(has.gpu)}


def _logging(cfg: Mapping[str, Any]) -> dict[str, Any]:
    group = cfg.get("log_group")
    return {"logDriver": "awslogs", **({"options": {GROUP_OPTION: group}} if group else {})}


def _linux(role: Role) -> dict[str, Any]:
    """Return the Linux parameters, which contain the size of /dev/shm, the resource's devices and
    the mounted devices.
    """
    devices = []
    for name, count in role.resource.devices.items():
        if name not in DEVICE_FILES:
            known = f"known: {', '.join(DEVICE_FILES)}"
            raise UsageError(
                f"role {role.name}: unknown device {name}",
                hint=did_you_mean(name, DEVICE_FILES, known),
            )
        paths = (f"{DEVICE_FILES[name]}{number}" for number in range(int(count)))
        devices += [_device(role, path, path, "rwm") for path in paths]
    devices += [
        _device(role, mount.src_path, mount.dst_path, mount.permissions)
        for mount in role.mounts
        if isinstance(mount, DeviceMount)
    ]
    return {"sharedMemorySize": role.resource.memMB, "devices": devices}


def _device(role: Role, source: str, target: str, permissions: str) -> dict[str, Any]:
    if not permissions or set(permissions) - set(_PERMISSIONS):
        raise UsageError(
            f"{role.name}: mount of {source}: expected a combination of r, w and m as permissions"
        )
    rights = [_PERMISSIONS[letter] for letter in permissions]
    return {"hostPath": source, "containerPath": target, "permissions": rights}


def _volumes(role: Role) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes and their mount points. A volume is either a host directory or an EFS file
    system.
    """
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    for number, mount in enumerate(role.mounts):
        name = f"mount_{number}"
        _check_mount(role, mount)
        match mount:
            case BindMount(source, target, read_only):
                volumes.append({"name": name, "host": {"sourcePath": source}})
            case VolumeMount(source, target, read_only):
                efs = {"fileSystemId": source}
                volumes.append({"name": name, "efsVolumeConfiguration": efs})
            case _:
                continue
        mounts.append({"containerPath": target, "readOnly": read_only, "sourceVolume": name})
    return volumes, mounts


def _check_mount(role: Role, mount: Mount) -> None:
    paths = [mount.dst_path]
    paths += [mount.src_path] if isinstance(mount, BindMount | DeviceMount) else []
    for path in paths:
        if not path.startswith("/"):
            raise UsageError(f"{role.name}: mount of {path}: the path must start with /")
    if isinstance(mount, VolumeMount) and not mount.src.startswith("fs-"):
        raise UsageError(
            f"{role.name}: volume {mount.src} is not an EFS file system", hint="src=fs-0123abcd"
        )


def _ulimit(text: str) -> dict[str, Any]:
    """Parse a limit in the format of `docker run --ulimit`: NAME=SOFT or NAME=SOFT/HARD."""
    name, _, values = text.partition("=")
    soft, slash, hard = values.partition("/")
    limit = r"-?[0-9]{1,18}"
    if not name or not re.fullmatch(limit, soft) or (slash and not re.fullmatch(limit, hard)):
        raise UsageError(
            f"-cfg ulimits: {text} is not a limit", hint="NAME=SOFT or NAME=SOFT/HARD, memlock=-1"
        )
    return {"name": name, "softLimit": int(soft), "hardLimit": int(hard or soft)}
