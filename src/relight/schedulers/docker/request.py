"""Builds the request to a Docker daemon for an app, without contacting the daemon.

The request has one container per replica.

A container's `config` is the body of a `POST /containers/create` request in Docker's own API, so a
dry run shows the exact request. Replicas on the same host can't share GPUs, numbered devices or
published ports, so these are divided among the replicas.
"""

import fnmatch
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relight import __version__
from relight.base import redaction
from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.base.text import did_you_mean
from relight.base.values import whole
from relight.job import launcher_file, macros, workspaces
from relight.job.app import AppDef, BindMount, DeviceMount, Mount, RetryPolicy, Role, VolumeMount
from relight.job.user import user_name
from relight.schedulers import resource_checks
from relight.schedulers.api import DEVICE_FILES

NETWORK = "relight"
NO_NAMES = ("host", "none", "bridge", "default")
"""Docker's predefined networks, in which containers can't resolve each other's names."""
STOP_LIMIT_S = 40
"""Seconds from SIGTERM to SIGKILL. This is longer than the grace period of the agents' workers."""
ERROR_FILE = "/tmp/relight-error.json"  # noqa: S108  # in the container
"""The error file that failed replicas write, in torch's format."""
LAUNCHER = "/opt/relight"
"""The directory of the bundled launcher inside the container."""
_RANK0_ENV = "RELIGHT_RANK0_HOST"
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_HOST = r"(?:(?:[\w-]+(?:\.[\w-]+)+|localhost|\[[\da-fA-F:]+\])(?::\d+)?|[\w-]+:\d+)"
_PATH_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"(?:{_HOST}/)?{_PATH_PART}(?:/{_PATH_PART})*", re.ASCII)
"""A registry and a repository, as in github.com/distribution/reference. The first part is a
registry if it contains a dot or a colon, or is `localhost`.
"""
_GPU_CAPABILITIES = [["compute", "utility"]]


class Label:
    """Labels on containers, images and networks."""

    APP_ID = "relight/app-id"
    APP_NAME = "relight/app-name"
    ROLE = "relight/role"
    REPLICA = "relight/replica"
    REPLICAS = "relight/replicas"
    """The number of replicas in the app."""
    MIN_REPLICAS = "relight/min-replicas"
    """The minimum number of replicas that the container's role needs."""
    RETRIES = "relight/max-retries"
    GPUS = "relight/gpus"
    USER = "relight/user"
    VERSION = "relight/version"


def build_request(
    app: AppDef, cfg: Mapping[str, Any], app_id: str, env: Environment
) -> dict[str, Any]:
    """Return the request, which contains the images to build, the network, and the containers in
    order.

    Raises:
        UsageError: if part of the app or an option is not supported.
    """
    for role in app.roles:
        if not _has_image(role):
            raise UsageError(f"role {role.name} has no image", hint="--image=NAME")
    builds = planned_builds(app, str(cfg.get("workspace") or ""), app_id)
    network = cfg.get("network") or NETWORK
    names = container_names(app, app_id)
    first = "localhost" if network in NO_NAMES else names[0][0]
    given = _Allocation(app, cfg)
    containers = []
    for role, its_names in zip(app.roles, names, strict=True):
        image = next((b["image"] for b in builds if b["base"] == role.image), role.image)
        for number, name in enumerate(its_names):
            values = {"img_root": "", "app_id": app_id, "replica_id": str(number)}
            own = macros.substitute(role, {**values, "rank0_env": _RANK0_ENV})
            has_launcher = launcher_file.needed(own)
            if has_launcher:
                own = launcher_file.wrapped(own, LAUNCHER)
            variables = _variables(own, cfg, env, first)
            config = {
                "Image": image,
                "Cmd": [own.entrypoint, *own.args],
                "Env": [f"{key}={value}" for key, value in variables.items()],
                "Labels": _labels(app, role, number, app_id),
                "StopSignal": "SIGTERM",
                "StopTimeout": STOP_LIMIT_S,
                "HostConfig": _host_config(role, network, cfg),
            }
            if network != "host":
                config["Hostname"] = name
            given.add(config, role, number)
            containers.append(
                {
                    "role": role.name,
                    "replica": number,
                    "name": name,
                    "has_launcher": has_launcher,
                    "config": config,
                }
            )
    given.check()
    return {
        "app_id": app_id,
        "builds": builds,
        "network": network,
        "pull": cfg.get("pull") or "missing",
        "containers": containers,
    }


def container_names(app: AppDef, app_id: str) -> list[list[str]]:
    """Return the container names for each role. They are also used as hostnames, so they consist of
    at most 63 letters, digits and hyphens. If a name has to be shortened, the end of `app_id` is
    kept, because the end makes it unique.
    """
    parts = [_hostname_part(role.name)[:24].strip("-") or "role" for role in app.roles]
    if len(set(parts)) < len(parts):
        parts = [f"{part}-{number}" for number, part in enumerate(parts)]
    names = []
    for role, part in zip(app.roles, parts, strict=True):
        tails = [f"-{part}-{number}" for number in range(role.num_replicas)]
        room = 63 - len(tails[-1])
        start = _hostname_part(app_id)[-min(room, 30) :].strip("-")
        names.append([(start + tail).strip("-") for tail in tails])
    return names


def notes_on(app: AppDef, cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes about parts of the app that are ignored, and about resources that may be
    insufficient.
    """
    yield from resource_checks.too_little(app)
    if cfg.get("image_repo"):
        yield "image_repo has no effect; the daemon that runs the job already has the image"
    network = cfg.get("network") or NETWORK
    if network in NO_NAMES and network != "host" and sum(r.num_replicas for r in app.roles) > 1:
        yield f"replicas can't find each other by name in the network {network}"
    for role in app.roles:
        for device in sorted(set(role.resource.devices) - set(DEVICE_FILES)):
            yield f"{role.name}: unknown device {device}; add it with --mounts"
        if role.max_retries and role.retry_policy is not RetryPolicy.REPLICA:
            yield f"{role.name}: Docker restarts only the failed replica"


def format_commands(body: Mapping[str, Any]) -> str:
    """Format the request as docker shell commands, with secrets hidden."""
    lines = []
    for build in body["builds"]:
        lines.append(f"# {build['workspace']}, less what its ignore file names, on {build['base']}")
        lines.append(shlex.join(["docker", "build", "--tag", build["image"], build["workspace"]]))
    for container in body["containers"]:
        launcher = f", with the launcher in {LAUNCHER}" if container["has_launcher"] else ""
        lines.append(f"# {container['role']}/{container['replica']}{launcher}")
        lines += _command(container["name"], container["config"])
    return "\n".join(lines) + "\n"


class _Allocation:
    """Assigns to each replica its own GPUs, numbered devices and host ports."""

    def __init__(self, app: AppDef, cfg: Mapping[str, Any]) -> None:
        asked = sum(max(0, role.resource.gpu) * role.num_replicas for role in app.roles)
        chosen: Sequence[str] = cfg.get("gpus") or ()
        if chosen and len(chosen) < asked:
            raise UsageError(
                f"{asked} GPUs requested, but -cfg gpus lists {len(chosen)}",
                hint="each replica gets its own GPUs",
            )
        self._gpus = list(chosen) or [str(number) for number in range(asked)]
        self._counts = dict.fromkeys(DEVICE_FILES, 0)
        self._publish = dict(_parse_publish(word) for word in cfg.get("publish") or ())
        self._ports = sorted({name for role in app.roles for name in role.port_map})
        self._taken: dict[int, str] = {}

    def add(self, config: dict[str, Any], role: Role, number: int) -> None:
        host = config["HostConfig"]
        if role.resource.gpu > 0:
            own = [self._gpus.pop(0) for _ in range(role.resource.gpu)]
            request = {"Driver": "", "Count": 0, "DeviceIDs": own, "Options": {}}
            host["DeviceRequests"] = [{**request, "Capabilities": _GPU_CAPABILITIES}]
            config["Labels"][Label.GPUS] = ",".join(own)
        for name, path in DEVICE_FILES.items():
            for _ in range(role.resource.devices.get(name, 0)):
                device = f"{path}{self._counts[name]}"
                self._counts[name] += 1
                host.setdefault("Devices", []).append(_device(device, device, "rwm"))
        for name, port in role.port_map.items():
            config.setdefault("ExposedPorts", {})[f"{port}/tcp"] = {}
            if name in self._publish:
                here = (self._publish[name] or port) + number
                what = f"{role.name}/{number}"
                if self._taken.setdefault(here, what) != what:
                    raise UsageError(
                        f"{self._taken[here]} and {what} would both publish port {here}",
                        hint="-cfg publish=NAME:PORT",
                    )
                binding = {"HostIp": "127.0.0.1", "HostPort": str(here)}
                host.setdefault("PortBindings", {})[f"{port}/tcp"] = [binding]

    def check(self) -> None:
        for name in self._publish:
            if name not in self._ports:
                known = f"ports: {', '.join(self._ports) or 'none'}"
                raise UsageError(
                    f"-cfg publish: no role has port {name}",
                    hint=did_you_mean(name, self._ports, known),
                )


def _parse_publish(word: str) -> tuple[str, int]:
    name, _, port = word.partition(":")
    number = whole(port) or 0
    if port and not 0 < number < 65536:
        raise UsageError(f"-cfg publish={word}: {port} is not a port", hint="NAME or NAME:PORT")
    return name, number


def _hostname_part(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _has_image(role: Role) -> bool:
    return bool(role.image) and not role.image.startswith("<")


def check_repository(name: str) -> None:
    """Check the option `image_repo`.

    Raises:
        UsageError: if it isn't a repository.
    """
    if not _REPOSITORY.fullmatch(name):
        raise UsageError(
            f"-cfg image_repo={name}: expected a repository, in lower case and without a tag or "
            "digest",
            hint="-cfg image_repo=registry.example/team/train",
        )


def planned_builds(
    app: AppDef, workspace: str, app_id: str, repository: str = "relight-workspace"
) -> list[dict[str, str]]:
    """Return the images to build, each with its base and the workspace to add to it."""
    if not workspace:
        return []
    workspace = workspaces.absolute(workspace)
    bases = list(dict.fromkeys(role.image for role in app.roles if _has_image(role)))
    tag = re.sub(r"[^A-Za-z0-9_.-]", "-", app_id)[-100:].lstrip(".-")
    return [
        {
            "image": f"{repository}:{tag}" + (f"-{number}" if number else ""),
            "base": base,
            "workspace": workspace,
        }
        for number, base in enumerate(bases)
    ]


def _variables(role: Role, cfg: Mapping[str, Any], env: Environment, first: str) -> dict[str, str]:
    wanted: Sequence[str] = cfg.get("copy_env") or ()
    copied = {
        name: value
        for name, value in sorted(env.variables.items())
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)
    }
    ours = {f"{ours}_RANK0_HOST": first for ours in ("RELIGHT", "TORCHX")}
    ours |= {f"{ours}_IMAGE": role.image for ours in ("RELIGHT", "TORCHX")}
    defaults = {"PYTHONUNBUFFERED": "x", "TORCHELASTIC_ERROR_FILE": ERROR_FILE}
    return {**defaults, **copied, **(cfg.get("env") or {}), **role.env, **ours}


def _labels(app: AppDef, role: Role, number: int, app_id: str) -> dict[str, str]:
    return {
        Label.APP_ID: app_id,
        Label.APP_NAME: app.name,
        Label.ROLE: role.name,
        Label.REPLICA: str(number),
        Label.REPLICAS: str(sum(role.num_replicas for role in app.roles)),
        Label.MIN_REPLICAS: str(role.least_replicas),
        Label.RETRIES: str(role.max_retries),
        Label.USER: user_name(),
        Label.VERSION: __version__,
        "torchx.pytorch.org/version": __version__,
        "torchx.pytorch.org/app-id": app_id,
        "torchx.pytorch.org/role-name": role.name,
        "torchx.pytorch.org/replica-id": str(number),
    }


def _host_config(role: Role, network: str, cfg: Mapping[str, Any]) -> dict[str, Any]:
    # An init process is needed, because a process with pid 1 ignores SIGTERM unless it has a
    # handler, and does not reap orphaned processes.
    config: dict[str, Any] = {"NetworkMode": network, "Init": True}
    if cfg.get("privileged"):
        config["Privileged"] = True
    if role.resource.memMB >= 0:
        config["Memory"] = config["ShmSize"] = role.resource.memMB * 2**20
    if cfg.get("shm_size"):
        config["ShmSize"] = _size(cfg["shm_size"])
    if role.resource.cpu >= 0:
        config["NanoCpus"] = int(role.resource.cpu * 1e9)
    if role.max_retries > 0:
        retries = {"Name": "on-failure", "MaximumRetryCount": role.max_retries}
        config["RestartPolicy"] = retries
    for mount in role.mounts:
        key, value = _mount(role, mount)
        config.setdefault(key, []).append(value)
    return config


def _mount(role: Role, mount: Mount) -> tuple[str, dict[str, Any]]:
    if not mount.dst_path.startswith("/"):
        raise UsageError(f"{role.name}: mount of {mount.dst_path}: container paths start with /")
    match mount:
        case BindMount(source, target, read_only):
            source = os.path.abspath(os.path.expanduser(source))
            kind = "bind"
        case VolumeMount(source, target, read_only):
            kind = "volume"
        case DeviceMount(source, target, permissions):
            return "Devices", _device(source, target, permissions)
    return "Mounts", {"Type": kind, "Source": source, "Target": target, "ReadOnly": read_only}


def _device(source: str, target: str, permissions: str) -> dict[str, Any]:
    return {
        "PathOnHost": source,
        "PathInContainer": target,
        "CgroupPermissions": permissions,
    }


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,18})([bkmgt]?)b?", text.strip().lower())
    if match is None:
        raise UsageError(f"-cfg shm_size={text}: not a size", hint="such as 512m or 8g")
    return int(match[1]) * _UNITS[match[2]]


def _command(name: str, config: Mapping[str, Any]) -> list[str]:
    """Return a `docker run …` command as lines with shell continuation characters."""
    host = config["HostConfig"]
    words = ["docker", "run", "--detach", f"--name={name}", f"--network={host['NetworkMode']}"]
    words += [f"--hostname={config['Hostname']}"] if "Hostname" in config else []
    words += ["--init", f"--stop-timeout={config['StopTimeout']}"]
    limits = ["--privileged"] if host.get("Privileged") else []
    limits += [f"--cpus={host['NanoCpus'] / 1e9:g}"] if host.get("NanoCpus") else []
    limits += [f"--memory={host['Memory']}"] if host.get("Memory") else []
    limits += [f"--shm-size={host['ShmSize']}"] if host.get("ShmSize") else []
    for request in host.get("DeviceRequests", ()):
        limits.append(f'--gpus="device={",".join(request["DeviceIDs"])}"')
    for device in host.get("Devices", ()):
        limits.append(f"--device={':'.join(device.values())}")
    for port, bindings in host.get("PortBindings", {}).items():
        inner = port.removesuffix("/tcp")
        limits += [f"--publish={b['HostIp']}:{b['HostPort']}:{inner}" for b in bindings]
    if "RestartPolicy" in host:
        limits.append(f"--restart=on-failure:{host['RestartPolicy']['MaximumRetryCount']}")
    groups = [words, limits]
    for mount in host.get("Mounts", ()):
        pairs = f"type={mount['Type']},src={mount['Source']},dst={mount['Target']}"
        groups.append([f"--mount={pairs}{',readonly' if mount['ReadOnly'] else ''}"])
    groups.append([f"--label={key}={value}" for key, value in config["Labels"].items()])
    variables = dict(pair.split("=", 1) for pair in config["Env"])
    groups += [[f"--env={k}={v}"] for k, v in redaction.redact_env(variables).items()]
    groups.append([config["Image"], *redaction.redact_argv(config["Cmd"])])
    lines = [shlex.join(group) for group in groups if group]
    return [lines[0] + " \\", *(f"  {line} \\" for line in lines[1:-1]), f"  {lines[-1]}"]
