"""Manages jobs for the schedulers whose replicas are processes on this machine.

`start` starts an `executor` process, which starts the replicas. The executor writes the job's state
and logs to the job's directory, where any other process can read them (`record`).

With `detach`, a job keeps running after the process that started it exits. Otherwise, the job is
stopped. Unless `log_dir` is set, logs are written to `ROLE/REPLICA/` in the job's directory. The
files are stdout.log, stderr.log, combined.log and, if the replica failed, error.json with the
cause.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from relight.base.errors import MachineError, UsageError
from relight.base.text import last_line
from relight.host.files import make_directories, remove_tree
from relight.job import records, workspaces
from relight.job.app import NOTHING, AppDef, AppState
from relight.job.status import AppStatus, ReplicaStatus
from relight.schedulers.api import JobSummary, LogQuery, Request, Scheduler, find_replica
from relight.schedulers.processes import logs
from relight.schedulers.processes.orders import Order, ReplicaPlan, to_text
from relight.schedulers.processes.record import LocalRecord

GRACE_S = 40.0
"""Seconds from SIGTERM to SIGKILL. This is longer than the grace period of the agents' workers."""
_STREAMS = ("stdout", "stderr", "combined")
WORKSPACE = "workspace"
_CLOSE_S = GRACE_S + 20


def layout(app: AppDef, cfg: Mapping[str, Any], app_id: str) -> dict[str, Any]:
    """Return the body of a request, except for `role_params`, the part that describes the replicas.

    Args:
        app: the job.
        cfg: the options, of which `log_dir`, `workspace` and `detach` are used.
        app_id: the job's id, also used as the name of its directory.

    Raises:
        UsageError: if a role's name can't be used as a directory name.
    """
    for name in (role.name for role in app.roles):
        if name in ("", ".", "..", "local", "torchelastic", WORKSPACE) or "/" in name:
            raise UsageError(f"role name {name!r} is not a valid directory name")
    base = cfg.get("log_dir")
    directory = os.path.join(os.path.abspath(base), app_id) if base else records.path(app_id)
    return {
        "app_id": app_id,
        "log_dir": directory,
        "role_params": {},
        "role_log_dirs": {
            role.name: [
                os.path.join(directory, role.name, str(n)) for n in range(role.num_replicas)
            ]
            for role in app.roles
        },
        "workspace": cfg.get("workspace"),
        "detach": bool(cfg.get("detach")),
        "max_retries": min((role.max_retries for role in app.roles), default=0),
    }


def streams(folder: str) -> dict[str, str]:
    """Return the paths of the files for a replica's streams. They are in the replica's folder."""
    return {name: os.path.join(folder, f"{name}.log") for name in _STREAMS}


class ProcessScheduler(Scheduler):
    """Starts, lists and stops jobs whose replicas are local processes. Each subclass provides the
    processes.
    """

    def __init__(self) -> None:
        self._attached: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, request: Request, replicas: tuple[ReplicaPlan, ...]) -> str:
        """Start a job, and return its id as soon as its processes exist.

        Args:
            request: the request, whose body is based on the result of `layout`.
            replicas: the processes to run. Their streams are in the folders that `layout` chose.

        Raises:
            UsageError: if the job already exists, or its logs can't be written.
            MachineError: if the processes can't be started.
        """
        body, app_id = request.body, str(request.body["app_id"])
        log_dir, workspace = body["log_dir"], body["workspace"]
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
                workspaces.pack(workspace, os.path.join(log_dir, WORKSPACE))
            for place in (f for folders in body["role_log_dirs"].values() for f in folders):
                make_directories(place, 0o700)
            self._start_executor(order, record)
        except BaseException as error:
            for made in ("torchelastic", WORKSPACE, *body["role_log_dirs"]):
                remove_tree(os.path.join(log_dir, made))
            remove_tree(record.directory)
            if isinstance(error, OSError):
                raise UsageError(
                    f"can't write logs to {error.filename}: {error.strerror}",
                    hint="-cfg log_dir=DIR",
                ) from None
            raise
        return app_id

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        """Return the status of each job that exists."""
        found = {}
        for app_id in app_ids:
            state = _read(app_id)
            if state is not None:
                found[app_id] = _status(state)
            if state is None or found[app_id].state.is_over:
                self._reap(app_id)
        return found

    def _reap(self, app_id: str) -> None:
        """Reap the executor of a finished job, which exits immediately. This is necessary because a
        program may start many jobs before it closes its runner.
        """
        process = self._attached.pop(app_id, None)
        if process is not None and process.stdin is not None:
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_CLOSE_S)

    def logs(self, app_id: str, query: LogQuery) -> Iterator[str]:
        """Return a replica's output lines."""
        state = self.native(app_id)
        replicas = {(r["role"], r["replica"]): r for r in state["replicas"]}
        replica = find_replica(app_id, query, replicas)
        return logs.lines(LocalRecord(records.path(app_id)), replica[query.stream], query)

    def cancel(self, app_id: str) -> None:
        """Stop a job, and wait until it is over."""
        state = self.native(app_id)
        if not LocalRecord(records.path(app_id)).stop(_CLOSE_S):
            raise MachineError(
                f"can't stop {app_id}: its process {state['pid']} did not exit",
                hint=f"ps --ppid {state['pid']} -o pid,stat,args shows unkillable processes",
            )

    def delete(self, app_id: str) -> None:
        """Stop a job, and remove its state and logs.

        Raises:
            MachineError: if the job does not end, or its logs can't be removed.
        """
        state = _read(app_id)
        if state is None and records.find_by_handle(self.name, app_id) is not None:
            if LocalRecord(records.path(app_id)).is_locked():
                raise MachineError(f"{app_id} is still running, but its state is lost")
            return  # the owner of the record removes it
        self.cancel(app_id)
        assert state is not None
        remove_tree(state["log_dir"])
        if os.path.lexists(state["log_dir"]):
            raise MachineError(f"can't remove {state['log_dir']}", hint="remove it by hand")
        records.remove(app_id)

    def list(self, _cfg: Mapping[str, Any] = NOTHING, /) -> Sequence[JobSummary]:
        """Return this scheduler's jobs, newest first."""
        found = []
        for app_id in records.names():
            state = _read(app_id)
            if state is not None and state["scheduler"] == self.name:
                status = AppState[state["state"]]
                found.append(
                    JobSummary(app_id, status, state["name"], state["submitted"], state["message"])
                )
        return sorted(found, key=lambda each: each.submitted, reverse=True)

    def close(self) -> None:
        """Stop the jobs that belong to this process. If the user presses Ctrl-C while jobs are
        being stopped, the remaining processes are killed.
        """
        processes = self._attached.values()
        try:
            for process in processes:
                _stop(process)
            for process in processes:
                process.wait(_CLOSE_S)
        except KeyboardInterrupt:
            for process in processes:
                _stop(process)  # the job may not have been stopped yet
                process.terminate()  # a second request makes the executor kill the rest
            for process in processes:
                process.wait(_CLOSE_S)
        self._attached.clear()

    def _start_executor(self, order: Order, record: LocalRecord) -> None:
        # -P prevents importing modules from the working directory.
        command = [sys.executable, "-P", "-m", "relight.schedulers.processes.executor"]
        with open(record.executor_log, "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is meant for the waiting command
            )
        assert process.stdin is not None and process.stdout is not None
        said = ""
        try:
            with process.stdout:
                process.stdin.write(to_text(order) + b"\n")
                process.stdin.flush()
                said = process.stdout.readline().decode().strip("\n")
        finally:
            if said == "started" and not order.detach:
                self._attached[order.app_id] = process
            else:
                process.stdin.close()
                process.wait(_CLOSE_S)
        if said != "started":
            message, _, hint = said.partition("\t")
            raise MachineError(message or _last_line(record.executor_log), hint=hint)

    def native(self, app_id: str) -> dict[str, Any]:
        """Return a job's state as its executor has written it.

        Raises:
            UsageError: if the job does not exist.
        """
        found = _read(app_id)
        if found is None:
            raise UsageError(
                f"no job {app_id} on this machine", hint=f"relight list -s {self.name}"
            )
        return found


def _stop(executor: "subprocess.Popen[bytes]") -> None:
    """Stop a job in the same way as when its submitter exits."""
    assert executor.stdin is not None
    executor.stdin.close()


def _read(app_id: str) -> dict[str, Any] | None:
    try:
        return LocalRecord(records.path(app_id)).read()
    except UsageError:  # not a job id
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


def _last_line(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            said = file.read()
    except OSError:
        said = ""
    return f"the job's process could not start: {last_line(said) or 'it printed nothing'}"
