"""Builds the Ray request for an app, which consists of a job and its package.

The package is a zip archive that Ray unpacks on each node as the working directory. It contains the
workspace's files and, in `.relight`, the driver (`driver.py`), the driver's `order.json`,
`guard.py` and the launcher (`job/launcher_file.py`). Ray does not display the package's content, so
the order may contain the job's token and environment variables.
"""

import hashlib
import io
import json
import os
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from relight import __version__
from relight.base.errors import EXIT_MACHINE, UNFIT_CODE_VARIABLE, MachineError, UsageError
from relight.job import launcher_file, macros, workspaces
from relight.job.app import AppDef, Role
from relight.job.user import user_name
from relight.schedulers.api import time_limit_s

GRACE_S = 40
"""Seconds from SIGTERM to SIGKILL. This is longer than the grace period of the agents' workers."""
TOKEN = "RELIGHT_TOKEN"  # noqa: S105  # a name
USER, NAME, ROLES = "relight/user", "relight/name", "relight/roles"
"""Keys in the job's metadata, for the owner, the name, and the number of replicas per role."""
FOLDER = ".relight"
ENTRYPOINT = f'exec "$(command -v python || command -v python3)" {FOLDER}/driver.py'
_MAX = 500 << 20
"""Ray's default size limit for packages."""
_RANK0_ENV, _RANK0_PORT = "RELIGHT_RANK0_HOST", "${RELIGHT_RANK0_PORT}"
_ENDPOINT = re.compile(re.escape(f"{{{macros.rank0_env}:=localhost}}:") + r"(\d+)")
"""Matches the rendezvous endpoint in the form in which components write it."""
_BACKEND = re.compile(r"--rdzv[_-]backend[= ]c10d\b")
_SPREADS = ("STRICT_SPREAD", "SPREAD", "PACK")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip archive can store


def order(app: AppDef, cfg: Mapping[str, Any], app_id: str, token: str) -> dict[str, Any]:
    """Return the driver's order, in the format that `driver.py` describes.

    Args:
        app: the app, whose macros have not been substituted yet.
        cfg: the scheduler's options.
        app_id: a unique name.
        token: the token that agents authenticate with.

    Raises:
        UsageError: if part of the app or an option can't be expressed in Ray.
    """
    port = _meeting_port(app.roles[0])
    return {
        "app_id": app_id,
        "strategy": cfg.get("strategy") or _SPREADS[0],
        "grace_s": GRACE_S,
        "timeout_s": time_limit_s(cfg),
        "coordinator": port,
        "token": app.roles[0].env.get(TOKEN, token),
        "roles": [_role(role, cfg, app_id, token, port) for role in app.roles],
    }


def job(app: AppDef, cfg: Mapping[str, Any], app_id: str) -> dict[str, Any]:
    """Return the body of the request, except for the package.

    Raises:
        UsageError: if the file that the option `requirements` specifies can't be read.
    """
    sizes = {role.name: role.num_replicas for role in app.roles}
    own = {USER: user_name(), NAME: app.name, ROLES: json.dumps(sizes)}
    variables = {"RAY_JOB_STOP_WAIT_TIME_S": str(GRACE_S + 10)}
    runtime_env: dict[str, Any] = {"env_vars": variables}
    if cfg.get("requirements"):
        runtime_env["pip"] = _requirements(cfg["requirements"])
    said = {name: str(value) for name, value in app.metadata.items()}
    return {
        "submission_id": app_id,
        "entrypoint": ENTRYPOINT,
        "metadata": {**said, **own, "relight/version": __version__},
        "runtime_env": runtime_env,
    }


def ray_name(app_id: str) -> str:
    """Convert an app's id to a name that is valid in Ray's API and in file names."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", app_id).strip("-.") or "job"


def log_name(app_id: str, role: str, replica: int) -> str:
    """Return the name of the file that contains a replica's output."""
    return f"relight-{app_id}-{_file(role)}-{replica}.log"


def status_name(app_id: str) -> str:
    """Return the name of the file that contains the status of each replica."""
    return f"relight-{app_id}-status.json"


def package(order: Mapping[str, Any], workspace: str | None) -> tuple[str, bytes]:
    """Return a package's name, derived from its content, and the package itself.

    Args:
        order: the driver's order, as returned by `order`.
        workspace: one or more directories to copy, in the syntax of `--workspace`.

    Raises:
        UsageError: if the workspace is too large, or is not a directory.
        MachineError: if a file can't be read.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, mode, data in _members(order, workspace):
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, mode << 16
            archive.writestr(entry, data)
            if packed.tell() > _MAX:
                raise UsageError(
                    f"the workspace exceeds Ray's limit of {_MAX >> 20} MiB",
                    hint="exclude files in .relightignore",
                )
    data = packed.getvalue()
    return f"_ray_pkg_{hashlib.sha256(data).hexdigest()[:32]}.zip", data


def _members(order: Mapping[str, Any], workspace: str | None) -> Iterator[tuple[str, int, bytes]]:
    """Yield the path, mode and content of each file in the package."""
    here = os.path.dirname(__file__)
    for name in ("driver.py", "guard.py"):
        with open(os.path.join(here, name), "rb") as file:
            yield f"{FOLDER}/{name}", 0o644, file.read()
    yield f"{FOLDER}/order.json", 0o600, json.dumps(order).encode()
    if order["coordinator"] is not None or any(role["brings"] for role in order["roles"]):
        yield f"{FOLDER}/{launcher_file.NAME}", 0o755, launcher_file.build()
    if workspace:
        yield from _copied(workspace)


def _copied(workspace: str) -> Iterator[tuple[str, int, bytes]]:
    """Yield the files in a workspace. Links are replaced with copies of their targets, because Ray
    does not unpack links.
    """
    for path, status, here in workspaces.entries(workspace):
        if stat.S_ISDIR(status.st_mode):
            yield f"{path}/", 0o755, b""
        elif os.path.isdir(here):  # a link to a directory
            for folder, _, files in os.walk(here):
                inside = os.path.join(path, os.path.relpath(folder, here))
                for name in sorted(files):
                    yield from _read_file(
                        os.path.normpath(os.path.join(inside, name)), os.path.join(folder, name)
                    )
        else:
            yield from _read_file(path, here)


def _read_file(path: str, here: str) -> Iterator[tuple[str, int, bytes]]:
    try:
        with open(here, "rb") as file:
            yield path, stat.S_IMODE(os.fstat(file.fileno()).st_mode), file.read()
    except FileNotFoundError:
        return  # a temporary file created by an editor, or a dangling link
    except OSError as error:
        raise MachineError(f"can't copy the workspace: {here}: {error.strerror}") from None


def _role(
    role: Role, cfg: Mapping[str, Any], app_id: str, token: str, port: int | None
) -> dict[str, Any]:
    own = replace(role, args=[_at_the_coordinator(x) for x in role.args]) if port else role
    # The driver replaces the other two macros, because only the driver knows the replica's number
    # and directory.
    own = macros.substitute(own, {"app_id": app_id, "rank0_env": _RANK0_ENV})
    brings = launcher_file.needed(role)
    if brings:
        own = launcher_file.wrapped(own, "$RELIGHT_LAUNCHER_PATH")
    # The exit code of an agent on an unfit node must not be that of its failed worker, because the
    # others continue.
    unfit = {UNFIT_CODE_VARIABLE: str(EXIT_MACHINE)} if role.is_elastic else {}
    return {
        "name": role.name,
        "file": _file(role.name),
        "least": role.least_replicas,
        "most": role.num_replicas,
        "retries": role.max_retries,
        "brings": brings,
        "argv": [own.entrypoint, *own.args],
        "env": {TOKEN: token, **unfit, **own.env},
        "resources": _resources(role, cfg),
    }


def _meeting_port(role: Role) -> int | None:
    """Return the rendezvous port that a role's agents use, or None if their rendezvous isn't at the
    driver.
    """
    text = " ".join(role.args)
    found = _ENDPOINT.search(text)
    is_ours = launcher_file.needed(replace(role, env={}))
    return int(found[1]) if found and is_ours and _BACKEND.search(text) else None


def _at_the_coordinator(word: str) -> str:
    """Return a command argument with the coordinator's port, chosen by the driver."""
    return _ENDPOINT.sub(f"{{{macros.rank0_env}:=localhost}}:{_RANK0_PORT}", word)


def _resources(role: Role, cfg: Mapping[str, Any]) -> dict[str, float]:
    """Return a replica's resources, under the names that Ray uses. The default is one CPU, as in
    Ray.
    """
    has = role.resource
    found: dict[str, float] = {"CPU": has.cpu if has.cpu >= 0 else 1}
    found |= {"GPU": has.gpu, "memory": has.memMB << 20 if has.memMB > 0 else 0}
    found |= dict(has.devices)
    for name, text in (cfg.get("resources") or {}).items():
        try:
            found[name] = float(text)
        except ValueError:
            found[name] = 0
        if found[name] <= 0:
            raise UsageError(
                f"-cfg resources: {name}:{text}: expected a number above 0", hint="NAME:1;NAME:2"
            )
    needed = {name: number for name, number in found.items() if number > 0}
    return needed or {"CPU": 0.001}  # Ray rejects empty bundles


def _requirements(path: str) -> list[str]:
    try:
        with open(os.path.expanduser(path)) as file:
            lines = [line.partition(" #")[0].strip() for line in file]
    except OSError as error:
        raise UsageError(f"-cfg requirements={path}: {error.strerror}") from None
    return [line for line in lines if line and not line.startswith("#")]


def _file(role: str) -> str:
    """Convert a role's name for use in file names."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "-", role)
    same = plain == role
    return plain if same else f"{plain}-{hashlib.sha256(role.encode()).hexdigest()[:6]}"


def text(url: str, body: Mapping[str, Any]) -> str:
    """Format a request for display, including its URL, its content and the files in its package.

    Args:
        url: the dashboard's URL.
        body: `job`, `order` and `workspace`.
    """
    order = body["order"]
    lines = [f"# PUT {url}/api/packages/gcs/…: the package of the job, its working directory"]
    lines += [f"#   {FOLDER}/driver.py, guard.py: what runs on the cluster"]
    if order["coordinator"] is not None or any(role["brings"] for role in order["roles"]):
        lines += [f"#   {FOLDER}/{launcher_file.NAME}: the launcher"]
    if body["workspace"]:
        lines += [f"#   the files of {body['workspace']}"]
    lines += [f"#   {FOLDER}/order.json:", json.dumps(order, indent=2), ""]
    lines += [f"# POST {url}/api/jobs/, with the package in runtime_env.working_dir"]
    return "\n".join([*lines, json.dumps(body["job"], indent=2), ""])
