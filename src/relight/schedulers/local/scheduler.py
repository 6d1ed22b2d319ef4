"""Runs jobs on this machine. Each replica is a process, and all of a job's processes are started
and stopped together (`processes`).
"""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relight.base import env
from relight.base.errors import UsageError
from relight.base.text import pluralize
from relight.job import macros, workspaces
from relight.job.app import AppDef, RetryPolicy, Role
from relight.schedulers import resource_checks
from relight.schedulers.api import Capabilities, Option, Request
from relight.schedulers.processes.jobs import WORKSPACE, ProcessScheduler, layout, streams
from relight.schedulers.processes.orders import ReplicaPlan

_RANK0_ENV = "RELIGHT_RANK0_HOST"


class Local(ProcessScheduler):
    """Runs jobs on this machine."""

    name = "local"
    options: Sequence[Option] = (
        Option("log_dir", str, None, "directory for logs; each job has its own subdirectory"),
        Option("prepend_cwd", bool, False, "look for commands in the working directory first"),
        Option(
            "auto_set_cuda_visible_devices",
            bool,
            False,
            "give each replica its own GPUs, as many as its role requests",
        ),
        Option("workspace", str, None, "directory to copy for the job, which runs in the copy"),
        Option(
            "detach", bool, False, "keep the job running when this command or its terminal exits"
        ),
    )
    capabilities = Capabilities(retries=True, survives_caller=False, files=True)

    def __init__(self) -> None:
        from relight.host import system  # noqa: F401  # raises an error on unsupported systems

        super().__init__()

    def affinity(self) -> int:
        """Return a constant, because jobs can always run on this machine."""
        return 10

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        """Return the processes for an app. See `Scheduler.render`."""
        body = layout(app, cfg, app_id)
        environment = env.read()
        notes = list(_notes(app, cfg))
        devices = _devices(app, environment, notes) if cfg.get(_GPUS) else None
        for role in app.roles:
            for number, folder in enumerate(body["role_log_dirs"][role.name]):
                replica = _replica(role, number, folder, body, environment, cfg)
                if devices is not None and "CUDA_VISIBLE_DEVICES" not in role.env:
                    own = [devices.pop(0) for _ in range(max(0, role.resource.gpu))]
                    replica["env"]["CUDA_VISIBLE_DEVICES"] = ",".join(own)
                body["role_params"].setdefault(role.name, []).append(replica)
        return Request(self.name, app, cfg, body, _text(body), tuple(notes))

    def submit(self, request: Request) -> str:
        """Start the job, and return its id as soon as its processes exist."""
        replicas = tuple(
            ReplicaPlan(role=role, replica=number, **{**replica, "args": tuple(replica["args"])})
            for role, each in request.body["role_params"].items()
            for number, replica in enumerate(each)
        )
        for replica in replicas:
            _check_command(replica, request.body["workspace"])
        return self.start(request, replicas)


_GPUS = "auto_set_cuda_visible_devices"


def _replica(
    role: Role,
    number: int,
    folder: str,
    body: Mapping[str, Any],
    environment: env.Environment,
    cfg: Mapping[str, Any],
) -> dict[str, Any]:
    directory = body["log_dir"]
    cwd = os.path.join(directory, WORKSPACE) if cfg.get("workspace") else os.getcwd()
    values = {
        "img_root": cwd,
        "app_id": body["app_id"],
        "replica_id": str(number),
        "rank0_env": _RANK0_ENV,
    }
    role = macros.substitute(role, values)
    variables = dict(role.env)
    first, last = ([cwd], []) if cfg.get("prepend_cwd") else ([], [cwd])
    # The `relight` command may not be on PATH, so its directory is added at the end.
    parts = [*first, variables.get("PATH"), environment.get("PATH", os.defpath), *last]
    parts.append(os.path.dirname(sys.executable))
    variables["PATH"] = ":".join(part for part in parts if part)
    variables["RELIGHT_RANK0_HOST"] = variables["TORCHX_RANK0_HOST"] = "localhost"
    variables.setdefault("TORCHELASTIC_ERROR_FILE", os.path.join(folder, "error.json"))
    variables.setdefault("PET_LOG_DIR", os.path.join(directory, "torchelastic", role.name))
    args = [role.entrypoint, *role.args]
    return {"args": args, "env": variables, **streams(folder), "cwd": cwd}


def _notes(app: AppDef, cfg: Mapping[str, Any]) -> Iterator[str]:
    yield from resource_checks.ignored_files(app, "replicas see the files of this machine")
    replicas = sum(role.num_replicas for role in app.roles if role.resource.gpu > 0)
    if replicas > 1 and not cfg.get(_GPUS):
        yield f"all {replicas} replicas see all GPUs (use -cfg {_GPUS}=true to give each its own)"
    retries = {role.max_retries for role in app.roles}
    partly = any(
        role.max_retries and role.retry_policy is not RetryPolicy.APPLICATION for role in app.roles
    )
    if partly or len(retries) > 1:
        yield f"the job is retried as a whole, {pluralize(min(retries), 'time')}"
    if any(role.is_elastic for role in app.roles):
        yield "all replicas start, and the job ends when one fails"


def _devices(app: AppDef, environment: env.Environment, notes: list[str]) -> list[str] | None:
    """Return the GPUs to divide among the replicas, or None if there are too few."""
    from relight.host import devices

    asked = sum(role.num_replicas * max(0, role.resource.gpu) for role in app.roles)
    if not asked:
        return None
    found = devices.gpu_names(environment)
    if len(found) < asked:
        notes.append(f"{asked} GPUs requested, but only {len(found)} found; each replica sees all")
        return None
    return found


def _text(body: Mapping[str, Any]) -> str:
    """Format the request as shell commands."""
    lines = []
    for role, replicas in body["role_params"].items():
        for number, replica in enumerate(replicas):
            lines.append(f"# {role}/{number}, logs in {body['role_log_dirs'][role][number]}")
            lines.append(f"cd {shlex.quote(replica['cwd'])}")
            lines += [f"export {k}={shlex.quote(v)}" for k, v in replica["env"].items()]
            lines += [shlex.join(replica["args"]), ""]
    return "\n".join(lines)


def _check_command(replica: ReplicaPlan, workspace: str | None) -> None:
    name, where = replica.args[0], replica.cwd
    search = f"{replica.env['PATH']}:{where}"
    path = os.path.join(where, name) if "/" in name else name
    if workspace:
        path = (workspaces.find(workspace, name) or path) if "/" in name else name
        search = ":".join([replica.env["PATH"], *(p for p, _ in workspaces.projects(workspace))])
    if shutil.which(path, path=search) is None:
        role = f"{replica.role}/{replica.replica}"
        what = "is not executable" if os.path.exists(path) else "is not there"
        raise UsageError(f"the command of {role}, {name}, {what}", hint="searched the role's PATH")
