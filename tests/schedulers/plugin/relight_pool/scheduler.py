"""The scheduler: `relight submit -s pool -cfg directory=/shared/pool …`.

A job's id is DIRECTORY:NAME, quoted as in a URL, because later commands only get the id.
"""

import json
import os
import secrets
import shlex
import shutil
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from relight.base import redaction
from relight.base.errors import MachineError, UsageError
from relight.job import (
    AppDef,
    AppState,
    AppStatus,
    ReplicaStatus,
    RetryPolicy,
    Role,
    launcher_file,
    macros,
)
from relight.job.user import user_name
from relight.schedulers import resource_checks
from relight.schedulers.api import Capabilities, JobSummary, LogQuery, Option, Request, no_replica

RANK0_ENV = "RELIGHT_RANK0_HOST"
REPLICA = "\0replica\0"
"""Placeholder for a replica's number, which no argument or variable can contain."""
_POLL_S = 0.1
_STOP_S = 60.0


def make() -> "Pool":
    """Return the scheduler."""
    return Pool()


class Pool:
    """Submits jobs to a pool of hosts."""

    name = "pool"
    options: Sequence[Option] = (
        Option("directory", str, None, "directory of the pool", required=True),
        Option("cwd", str, "~", "directory on the hosts in which replicas run", is_remote=True),
        Option("priority", int, 0, "jobs with a higher one are taken first"),
        Option("stop", str, "ask", "how replicas are stopped", False, ("ask", "kill")),
        Option("env", dict, None, "variables to set, A:1;B:2"),
    )
    capabilities = Capabilities(retries=True, elastic=True)

    def affinity(self) -> int:
        """Return that this scheduler is only used if requested."""
        return 1

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        """Return a job's files."""
        place = os.path.join(os.path.abspath(cfg["directory"]), app_id)
        job = {
            "name": app.name,
            "user": user_name(),
            "priority": cfg["priority"],
            "stop": cfg["stop"],
            "cwd": cfg["cwd"],
            "token": secrets.token_hex(16),
            "roles": [_role(role, cfg, place) for role in app.roles],
        }
        brings = any(map(launcher_file.needed, app.roles))
        body = {"place": place, "job": job, "launcher": brings}
        notes = tuple(_notes(app))
        return Request(self.name, app, cfg, body, _text(place, job), notes, _id(place))

    def submit(self, request: Request) -> str:
        """Write a job's files. No host sees the job before all of them exist."""
        place, job = request.body["place"], request.body["job"]
        pool, app_id = os.path.split(place)
        if not os.path.isdir(pool):
            raise UsageError(f"{pool} is not the directory of a pool", hint="-cfg directory=DIR")
        draft = os.path.join(pool, f".{app_id}")
        try:
            os.mkdir(draft, 0o700)
            job = {**job, "submitted": datetime.now().astimezone().isoformat(timespec="seconds")}
            _write(os.path.join(draft, "job.json"), json.dumps(job))
            if request.body["launcher"]:
                path = os.path.join(draft, launcher_file.NAME)
                _write(path, launcher_file.build())
                os.chmod(path, 0o555)
            for role in job["roles"]:
                for number in range(role["replicas"]):
                    _write(os.path.join(draft, f"{role['name']}.{number}.todo"), "0")
            os.rename(draft, place)
        except OSError as error:
            raise MachineError(f"{pool} does not take the job: {error.strerror}") from None
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return _id(place)

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        """Return the statuses of the jobs that exist."""
        found = {}
        for app_id in app_ids:
            job = _job(app_id)
            if job is not None:
                found[app_id] = _status(_place(app_id), job)
        return found

    def logs(self, app_id: str, query: LogQuery) -> Iterator[str]:
        """Return a replica's lines. Both streams are combined."""
        job = _existing(app_id)
        sizes = {role["name"]: role["replicas"] for role in job["roles"]}
        if not 0 <= query.replica < sizes.get(query.role, 0):
            known = ", ".join(f"{role}/0 to {size - 1}" for role, size in sizes.items())
            raise no_replica(app_id, query, known)
        return self._lines(app_id, query)

    def cancel(self, app_id: str) -> None:
        """Stop a job, and wait until it has ended."""
        job, place = _existing(app_id), _place(app_id)
        if not _status(place, job).state.is_over:
            _write(os.path.join(place, "cancelled"), "")
        end = time.monotonic() + _STOP_S
        while any(name.endswith(".taken") for name in os.listdir(place)):
            if time.monotonic() > end:
                raise MachineError(f"{app_id} did not end within {_STOP_S:.0f} s")
            time.sleep(_POLL_S)

    def delete(self, app_id: str) -> None:
        """Stop a job, and remove its files."""
        self.cancel(app_id)
        shutil.rmtree(_place(app_id))

    def list(self, cfg: Mapping[str, Any]) -> Sequence[JobSummary]:
        """Return this user's jobs, newest first."""
        if not cfg.get("directory"):
            raise UsageError("which pool?", hint="[pool] directory=DIR in .relightconfig")
        pool, found = os.path.abspath(cfg["directory"]), []
        for name in os.listdir(pool):
            app_id = _id(os.path.join(pool, name))
            job = None if name.startswith(".") else _job(app_id)
            if job is not None and job["user"] == user_name():
                state = _status(_place(app_id), job).state
                found.append(JobSummary(app_id, state, job["name"], job["submitted"]))
        return sorted(found, key=lambda each: each.submitted, reverse=True)

    def close(self) -> None:
        """Do nothing, as nothing is left open."""

    def _lines(self, app_id: str, query: LogQuery) -> Iterator[str]:
        place = _place(app_id)
        path, at, rest = os.path.join(place, f"{query.role}.{query.replica}.log"), 0, b""
        while True:
            over = not query.follow or _status(place, _existing(app_id)).state.is_over
            if os.path.exists(path):
                with open(path, "rb") as file:
                    file.seek(at)
                    *lines, rest = (rest + (new := file.read())).split(b"\n")
                at += len(new)
                yield from (line.decode(errors="replace") for line in lines)
            if over:
                break
            time.sleep(_POLL_S)
        if rest:
            yield rest.decode(errors="replace")


def _role(role: Role, cfg: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return a role that makes the host replace `REPLICA` with the replica's number."""
    values = {"img_root": ".", "app_id": _id(place), "replica_id": REPLICA}
    own = macros.substitute(role, {**values, "rank0_env": RANK0_ENV})
    if launcher_file.needed(role):
        own = launcher_file.wrapped(own, shlex.quote(place))
    return {
        "name": role.name,
        "replicas": role.num_replicas,
        "least": role.min_replicas or role.num_replicas,
        "retries": role.max_retries,
        "argv": [own.entrypoint, *own.args],
        "env": {"PYTHONUNBUFFERED": "x", **(cfg.get("env") or {}), **own.env},
    }


def _text(place: str, job: Mapping[str, Any]) -> str:
    lines = []
    for role in job["roles"]:
        lines.append(f"# {role['name']}/0 to {role['replicas'] - 1} in {place}")
        shown = redaction.redact_env(role["env"])
        lines += [f"export {name}={shlex.quote(value)}" for name, value in shown.items()]
        lines += [shlex.join(redaction.redact_argv(role["argv"])), ""]
    return "\n".join(lines)


def _notes(app: AppDef) -> Iterator[str]:
    yield from resource_checks.too_little(app, memory=False)
    if any(role.mounts for role in app.roles):
        yield "mounts have no effect: replicas see the files of their host"
    for role in app.roles:
        if role.max_retries and role.retry_policy is not RetryPolicy.REPLICA:
            yield f"{role.name}: each replica is retried by itself"


def _id(place: str) -> str:
    pool, name = os.path.split(place)
    return f"{urllib.parse.quote(pool, safe='')}:{name}"


def _place(app_id: str) -> str:
    pool, colon, name = app_id.rpartition(":")
    if not colon:
        raise UsageError(f"not a pool job id: {app_id}", hint="DIRECTORY:NAME")
    return os.path.join(urllib.parse.unquote(pool), name)


def _job(app_id: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(_place(app_id), "job.json")) as file:
            found: dict[str, Any] = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found


def _existing(app_id: str) -> dict[str, Any]:
    job = _job(app_id)
    if job is None:
        raise UsageError(f"no such job in this pool: {app_id}", hint="relight list -s pool")
    return job


def _status(place: str, job: Mapping[str, Any]) -> AppStatus:
    replicas = tuple(
        _replica(place, role["name"], number)
        for role in job["roles"]
        for number in range(role["replicas"])
    )
    states = {each.state for each in replicas}
    failed = next((each for each in replicas if each.state is AppState.FAILED), None)
    is_cancelled = os.path.exists(os.path.join(place, "cancelled"))
    if all(state.is_over for state in states):
        state = AppState.CANCELLED if is_cancelled else AppState.SUCCEEDED
        if failed is not None and not is_cancelled:
            state = AppState.FAILED
    else:
        state = AppState.RUNNING if states != {AppState.PENDING} else AppState.PENDING
        if is_cancelled and states <= {AppState.PENDING, AppState.CANCELLED}:
            state = AppState.CANCELLED
    why = f"{failed.role}/{failed.replica} failed with {failed.exitcode}" if failed else ""
    return AppStatus(state, why, replicas)


def _replica(place: str, role: str, number: int) -> ReplicaStatus:
    done, taken = (_read(place, f"{role}.{number}.{kind}") for kind in ("done", "taken"))
    if done:
        host, code = done.split()
        if code == "stopped":
            return ReplicaStatus(role, number, AppState.CANCELLED, host)
        state = AppState.FAILED if int(code) else AppState.SUCCEEDED
        return ReplicaStatus(role, number, state, host, int(code))
    if taken:
        return ReplicaStatus(role, number, AppState.RUNNING, taken)
    return ReplicaStatus(role, number, AppState.PENDING, error="no host has taken it yet")


def _read(place: str, name: str) -> str:
    try:
        with open(os.path.join(place, name)) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _write(path: str, text: str | bytes) -> None:
    with open(path, "wb") as file:
        file.write(text.encode() if isinstance(text, str) else text)
