"""Jobs on this machine: one process a replica, started and ended together.

    render   the commands, environments and log files of all replicas
    submit   a process is started (`processes.executor`), which starts them; it writes the job's
             state and logs below the job's directory, where any other process finds them
             (`processes.record`)

Without `detach` the job ends with the process that submitted it; with it, it runs on. Logs, where
no `log_dir` says otherwise, are in `ROLE/REPLICA/` below the job's directory: stdout.log,
stderr.log, combined.log, and error.json with the cause if the replica failed.
"""

import os
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from relight import env
from relight.errors import MachineError, UsageError, many
from relight.job import macros, records
from relight.job.app import AppDef, AppState, RetryPolicy, Role
from relight.schedulers.api import (
    AppStatus,
    Capabilities,
    Listed,
    LogQuery,
    Option,
    ReplicaStatus,
    Request,
)
from relight.schedulers.processes.orders import Order, Replica, to_text
from relight.schedulers.processes.record import LocalRecord

_RANK0_ENV = "RELIGHT_RANK0_HOST"
GRACE_S = 40.0
"""More than the agents give their workers."""
_CLOSE_S = GRACE_S + 20
_WORKSPACE = "workspace"
_STREAMS = ("stdout", "stderr", "combined")
_LOOK_S = 0.25
_AT_LEAST_S = 3.0
"""How often to look also where the system tells: not that the runner was killed."""


def make() -> "Local":
    """Return the scheduler.

    Raises:
        UsageError: no workers can run on this system.
    """
    from relight.host import system  # noqa: F401  # which is not to be had everywhere

    return Local()


class Local:
    """Runs jobs on this machine."""

    name = "local"
    options: Sequence[Option] = (
        Option("log_dir", str, None, "directory for the logs of jobs; each has its own below it"),
        Option("prepend_cwd", bool, False, "look for commands in the working directory first"),
        Option(
            "auto_set_cuda_visible_devices",
            bool,
            False,
            "give each replica as many GPUs of its own as its role asks for",
        ),
        Option("workspace", str, None, "directory that is copied for the job, which runs there"),
        Option("detach", bool, False, "let the job run on when this command or its terminal ends"),
    )
    capabilities = Capabilities(retries=True, survives_caller=False)

    def __init__(self) -> None:
        self._held: dict[str, subprocess.Popen[bytes]] = {}

    def affinity(self) -> int:
        """Return how likely jobs are meant for this machine: it can always be used."""
        return 10

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        """Return the processes of an app. See `Scheduler.render`."""
        names = [role.name for role in app.roles]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"two roles have the name {name}")
            if name in ("", ".", "..", "local", "torchelastic", _WORKSPACE) or "/" in name:
                raise UsageError(f"role name {name!r} can't be the name of a directory")
        environment = env.read()
        base = cfg.get("log_dir")
        directory = os.path.join(os.path.abspath(base), app_id) if base else records.path(app_id)
        notes = list(_notes(app, cfg))
        devices = _devices(app, environment, notes) if cfg.get(_GPUS) else None
        params: dict[str, list[dict[str, Any]]] = {}
        folders: dict[str, list[str]] = {}
        for role in app.roles:
            for number in range(role.num_replicas):
                folder = os.path.join(directory, role.name, str(number))
                replica = _replica(role, number, app_id, directory, environment, cfg)
                if devices is not None:
                    own = [devices.pop(0) for _ in range(max(0, role.resource.gpu))]
                    replica["env"]["CUDA_VISIBLE_DEVICES"] = ",".join(own)
                params.setdefault(role.name, []).append(replica)
                folders.setdefault(role.name, []).append(folder)
        body = {
            "app_id": app_id,
            "log_dir": directory,
            "role_params": params,
            "role_log_dirs": folders,
            "workspace": cfg.get("workspace"),
            "detach": bool(cfg.get("detach")),
            "max_retries": min((role.max_retries for role in app.roles), default=0),
        }
        return Request(self.name, app, cfg, body, _text(body), tuple(notes))

    def submit(self, request: Request) -> str:
        """Start the job and return its id, when its processes exist."""
        body, app_id = request.body, str(request.body["app_id"])
        replicas = tuple(
            Replica(role=role, replica=number, **{**replica, "args": tuple(replica["args"])})
            for role, each in body["role_params"].items()
            for number, replica in enumerate(each)
        )
        log_dir, workspace = body["log_dir"], body["workspace"]
        for replica in replicas:
            _check_command(replica, workspace)
        directory = records.directory(app_id)
        record = LocalRecord(directory)
        record.make()
        order = Order(
            scheduler=self.name,
            app_id=app_id,
            name=request.app.name,
            directory=directory,
            log_dir=log_dir,
            replicas=replicas,
            detach=body["detach"],
            max_retries=body["max_retries"],
            grace_s=GRACE_S,
        )
        try:
            if workspace:
                from relight.job import workspaces

                workspaces.pack(workspace, os.path.join(log_dir, _WORKSPACE))
            for folder in (f for folders in body["role_log_dirs"].values() for f in folders):
                os.makedirs(folder, mode=0o700, exist_ok=True)
            self._start(order, record)
        except BaseException as error:
            for name in ("torchelastic", _WORKSPACE, *body["role_params"]):
                _remove(os.path.join(log_dir, name))
            _remove(record.directory)
            if isinstance(error, OSError):
                raise UsageError(
                    f"can't write logs to {error.filename}: {error.strerror}",
                    hint="-cfg log_dir=DIR",
                ) from None
            raise
        return app_id

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        """Return the statuses of jobs of this machine."""
        found = {}
        for app_id in app_ids:
            state = _read(app_id)
            if state is not None:
                found[app_id] = _status(state)
        return found

    def logs(self, app_id: str, query: LogQuery) -> Iterator[str]:
        """Return the lines that a replica has written."""
        state = _read(app_id)
        if state is None:
            raise _unknown(app_id)
        key = (query.role, query.replica)
        replica = next((r for r in state["replicas"] if (r["role"], r["replica"]) == key), None)
        if replica is None:
            known = ", ".join(f"{r['role']}/{r['replica']}" for r in state["replicas"])
            raise UsageError(
                f"{app_id} has no replica {query.role}/{query.replica}", hint=f"it has {known}"
            )
        return _lines(app_id, replica[query.stream], query)

    def cancel(self, app_id: str) -> None:
        """Stop a job and return when it is over."""
        if _read(app_id) is None:
            raise _unknown(app_id)
        if not LocalRecord(records.path(app_id)).stop(_CLOSE_S):
            raise MachineError(f"{app_id} does not end: the system does not let go of a process")

    def delete(self, app_id: str) -> None:
        """Stop a job and remove its state and logs.

        Raises:
            MachineError: it does not end, or its logs can't be removed.
        """
        state = _read(app_id)
        if state is None and records.of_handle(self.name, app_id) is not None:
            if LocalRecord(records.path(app_id)).is_held():
                raise MachineError(f"{app_id} has lost its state, but runs")
            return  # who has the record removes it
        self.cancel(app_id)
        assert state is not None
        _remove(state["log_dir"])
        if os.path.lexists(state["log_dir"]):
            raise MachineError(f"can't remove {state['log_dir']}", hint="it has to go by hand")
        records.remove(app_id)

    def list(self) -> Sequence[Listed]:
        """Return the jobs of this machine, newest first."""
        found = []
        try:
            app_ids = os.listdir(records.root())
        except OSError:
            app_ids = []
        for app_id in app_ids:
            state = _read(app_id)
            if state is not None and state["scheduler"] == self.name:
                status = AppState[state["state"]]
                found.append(Listed(app_id, status, state["name"], state["submitted"]))
        return sorted(found, key=lambda each: each.submitted, reverse=True)

    def close(self) -> None:
        """End the jobs that belong to this process."""
        for process in self._held.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self._held.values():
            try:
                process.wait(_CLOSE_S)
            except KeyboardInterrupt:  # ctrl-C once more: the runner kills what is left
                process.terminate()
                process.wait(_CLOSE_S)
        self._held.clear()

    def _start(self, order: Order, record: LocalRecord) -> None:
        # -P: what lies in the working directory is none of ours.
        command = [sys.executable, "-P", "-m", "relight.schedulers.processes.executor"]
        with open(record.runner_log, "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # ctrl-C is for whoever waits
            )
        assert process.stdin is not None and process.stdout is not None
        try:
            with process.stdout:
                process.stdin.write(to_text(order) + b"\n")
                process.stdin.flush()
                said = process.stdout.readline().decode().strip("\n")
        except BaseException:
            process.stdin.close()
            process.wait(_CLOSE_S)
            raise
        if said == "started" and not order.detach:
            self._held[order.app_id] = process
            return
        process.stdin.close()
        process.wait(_CLOSE_S)
        if said != "started":
            message, _, hint = said.partition("\t")
            raise MachineError(message or _last_line(record.runner_log), hint=hint)


_GPUS = "auto_set_cuda_visible_devices"


def _replica(
    role: Role,
    number: int,
    app_id: str,
    directory: str,
    environment: env.Environment,
    cfg: Mapping[str, Any],
) -> dict[str, Any]:
    folder = os.path.join(directory, role.name, str(number))
    cwd = os.path.join(directory, _WORKSPACE) if cfg.get("workspace") else os.getcwd()
    values = {
        "img_root": cwd,
        "app_id": app_id,
        "replica_id": str(number),
        "rank0_env": _RANK0_ENV,
    }
    role = macros.substitute(role, values)
    variables = dict(role.env)
    first, last = ([cwd], []) if cfg.get("prepend_cwd") else ([], [cwd])
    # The last is for `relight` itself, whose directory may be on nobody's PATH.
    parts = [*first, variables.get("PATH"), environment.get("PATH", os.defpath), *last]
    parts.append(os.path.dirname(sys.executable))
    variables["PATH"] = ":".join(part for part in parts if part)
    variables["RELIGHT_RANK0_HOST"] = variables["TORCHX_RANK0_HOST"] = "localhost"
    variables.setdefault("TORCHELASTIC_ERROR_FILE", os.path.join(folder, "error.json"))
    variables.setdefault("PET_LOG_DIR", os.path.join(directory, "torchelastic", role.name))
    files = {name: os.path.join(folder, f"{name}.log") for name in _STREAMS}
    return {"args": [role.entrypoint, *role.args], "env": variables, **files, "cwd": cwd}


def _notes(app: AppDef, cfg: Mapping[str, Any]) -> Iterator[str]:
    if any(role.mounts for role in app.roles):
        yield "mounts have no effect: replicas see the files of this machine"
    replicas = sum(role.num_replicas for role in app.roles if role.resource.gpu > 0)
    if replicas > 1 and not cfg.get(_GPUS):
        yield f"each of {replicas} replicas sees all GPUs (-cfg {_GPUS}=true gives each its own)"
    retries = {role.max_retries for role in app.roles}
    partly = any(
        role.max_retries and role.retry_policy is not RetryPolicy.APPLICATION for role in app.roles
    )
    if partly or len(retries) > 1:
        yield f"the job as a whole is tried again, {many(min(retries), 'time')}"
    if any(role.min_replicas not in (None, role.num_replicas) for role in app.roles):
        yield "all replicas are started, and the job ends when one fails"


def _devices(app: AppDef, environment: env.Environment, notes: list[str]) -> list[str] | None:
    """Return the GPUs to give out, or None where there are not enough."""
    from relight.host import devices

    asked = sum(role.num_replicas * max(0, role.resource.gpu) for role in app.roles)
    if not asked:
        return None
    found = [str(number) for number in range(len(devices.gpus(environment)))]
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen:
        found = [name.strip() for name in chosen.split(",")][: len(found)]
    if len(found) < asked:
        notes.append(f"{asked} GPUs are asked for, {len(found)} are here: each replica sees all")
        return None
    return found


def _text(body: Mapping[str, Any]) -> str:
    """Return the commands as somebody would type them."""
    lines = []
    for role, replicas in body["role_params"].items():
        for number, replica in enumerate(replicas):
            lines.append(f"# {role}/{number}, logs in {body['role_log_dirs'][role][number]}")
            lines.append(f"cd {shlex.quote(replica['cwd'])}")
            lines += [f"export {k}={shlex.quote(v)}" for k, v in replica["env"].items()]
            lines += [shlex.join(replica["args"]), ""]
    return "\n".join(lines)


def _check_command(replica: Replica, workspace: str | None) -> None:
    import shutil

    name, where = replica.args[0], replica.cwd
    search = f"{replica.env['PATH']}:{where}"
    path = os.path.join(where, name) if "/" in name else name
    if workspace:
        from relight.job import workspaces

        path = (workspaces.find(workspace, name) or path) if "/" in name else name
        search = ":".join([replica.env["PATH"], *(p for p, _ in workspaces.projects(workspace))])
    if shutil.which(path, path=search) is None:
        role = f"{replica.role}/{replica.replica}"
        what = "is not executable" if os.path.exists(path) else "is not there"
        raise UsageError(f"the command of {role}, {name}, {what}", hint="looked for in its PATH")


def _read(app_id: str) -> dict[str, Any] | None:
    try:
        return LocalRecord(records.path(app_id)).read()
    except UsageError:  # no id of a job at all
        return None


def _status(state: Mapping[str, Any]) -> AppStatus:
    replicas = tuple(
        ReplicaStatus(
            r["role"], r["replica"], AppState[r["state"]], state["host"], r["exitcode"], r["error"]
        )
        for r in state["replicas"]
    )
    return AppStatus(
        AppState[state["state"]],
        state["message"],
        replicas,
        state["restarts"],
        f"file://{state['log_dir']}",
    )


def _unknown(app_id: str) -> UsageError:
    return UsageError(f"no job {app_id} on this machine", hint="relight list -s local")


def _lines(app_id: str, path: str, query: LogQuery) -> Iterator[str]:
    """Return the lines of a log file; with `follow`, until the replica is over."""
    rest = b""
    # Before anything is looked at: what changes later is seen.
    watch = _watch(path, LocalRecord(records.path(app_id)).directory) if query.follow else -1
    try:
        with _opened(path) as file:
            while True:
                over = not query.follow or _is_over(app_id, query)
                while data := file.read(1 << 20):
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        yield line.decode(errors="replace")
                if over:
                    break
                _wait_for_more(watch)
    finally:
        if watch >= 0:
            os.close(watch)
    if rest:
        yield rest.decode(errors="replace")


def _opened(path: str) -> BinaryIO:
    from relight.host import files

    try:
        return files.opened(path)
    except FileNotFoundError:
        raise MachineError(f"its logs are gone: {path}") from None
    except OSError as error:
        raise MachineError(f"can't read {path}: {error.strerror}") from None


def _is_over(app_id: str, query: LogQuery) -> bool:
    """Return whether the replica writes no more. One that has ended may be tried again."""
    state = LocalRecord(records.path(app_id)).latest()
    if state is None or state["state"] != "RUNNING":
        return True
    replica = next(
        r for r in state["replicas"] if (r["role"], r["replica"]) == (query.role, query.replica)
    )
    return bool(replica["state"] == "SUCCEEDED")


def _watch(path: str, directory: str) -> int:
    """Return a descriptor that tells when a file grows, or one in a directory is replaced; -1 if
    the system does not tell.
    """
    from relight.host import system

    fd = system.inotify_open()
    watched = ((path, system.IN_MODIFY), (directory, system.IN_MOVED_TO))
    if fd >= 0 and any(system.inotify_watch(fd, *each) < 0 for each in watched):
        os.close(fd)
        return -1
    return fd


def _wait_for_more(watch: int) -> None:
    """Wait until something has changed, or it is time to look all the same."""
    if watch < 0:
        time.sleep(_LOOK_S)
        return
    poll = select.poll()  # not select: there may be more than 1024 open files
    poll.register(watch, select.POLLIN)
    if poll.poll(_AT_LEAST_S * 1000):
        os.read(watch, 65536)


def _last_line(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            lines = file.read().split("\n")
    except OSError:
        lines = []
    last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    return f"the process that runs the job could not start: {last.strip()}"


def _remove(directory: str) -> None:
    from relight.host.files import remove_tree

    remove_tree(directory)
