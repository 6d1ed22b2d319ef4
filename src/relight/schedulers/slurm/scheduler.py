"""Runs jobs on Slurm, with one batch script per job, one step per role, and one agent per node.

    render   builds the script (`script`), its path and the log path
    submit   runs sbatch
    status   queries all jobs with one squeue command, and those that squeue no longer knows with
             sacct (`states`); srun's messages in the job's directory show which replica failed
    logs     reads ROLE/REPLICA/stdout.log and stderr.log in this directory; batch.log contains the
             output of the script itself

All nodes must share the job's directory. By default, it is below the user's home directory. The
option `job_dir` specifies a different directory.
"""

import json
import math
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from relight.base import env
from relight.base.errors import MachineError, UsageError
from relight.host import tail
from relight.host.files import remove_tree
from relight.host.waiting import wait_until
from relight.job import launcher_file, records, workspaces
from relight.job.app import NOTHING, AppDef, AppState, RetryPolicy
from relight.output import error_files
from relight.schedulers import resource_checks
from relight.schedulers.api import (
    AppStatus,
    Capabilities,
    JobSummary,
    Locks,
    LogQuery,
    Option,
    ReplicaStatus,
    Request,
    Scheduler,
    check_replica,
)
from relight.schedulers.failure_reason import cause, how_it_ended
from relight.schedulers.slurm import containers, locks, script, states
from relight.schedulers.slurm.states import Jobs, Part

_SUBMITTED = "slurm.json"
_WORKSPACE = "workspace"
_MAX_AGE_S = 5.0
"""The maximum age of cached Slurm states while logs are followed."""
_POLL_S = 0.25
_STOP_LIMIT_S = 60.0
_LOST = "its node was lost"

_LISTS = ("partition", "nodelist", "exclude", "mail-type")
_CLUSTER_VARIABLES = ("SLURM_CLUSTERS", "SLURM_CONF", "SLURM_JWT")
"""Environment variables that Slurm's commands use to find the cluster."""


class Folder(NamedTuple):
    """A job's directory, the maximum number of replicas per role, and the indices of a job array.
    Each job in an array has its own subdirectory.
    """

    directory: str
    roles: dict[str, int]
    indices: tuple[int, ...] = ()


class Slurm(Scheduler):
    """Submits jobs to the Slurm cluster that this host belongs to."""

    name = "slurm"
    options: Sequence[Option] = (
        Option("partition", str, None, "the partition, or several: p1;p2"),
        Option("time", str, None, "time limit: minutes, H:M:S, or D-H:M:S"),
        Option("account", str, None, "account to charge"),
        Option("qos", str, None, "quality of service"),
        Option("constraint", str, None, "features that nodes must have"),
        Option("comment", str, None, "a comment"),
        Option("mail-user", str, None, "recipient of mail"),
        Option("mail-type", str, None, "events that send mail: BEGIN;END;FAIL, ALL, ..."),
        Option("nodelist", str, None, "nodes that must be in the job: node[1-4]"),
        Option("exclude", str, None, "nodes that must not be in the job"),
        Option("exclusive", bool, False, "don't share nodes with other jobs"),
        Option("mem", bool, None, "request memory (default: only if the partition tracks it)"),
        Option(
            "gpus",
            str,
            "gpus-per-node",
            "sbatch flag that requests GPUs",
            choices=script.GPU_FORMS,
        ),
        Option("gpu_type", str, None, "type of the GPUs: a100"),
        Option(
            "signal",
            str,
            None,
            f"signal sent to workers before the time limit, SIGNAL@SECONDS, or none; "
            f"{script.DEFAULT_SIGNAL} for `relight run`",
        ),
        Option(
            "image",
            str,
            None,
            "image in which replicas run: REGISTRY#NAME:TAG or FILE.sqsh for "
            "pyxis, docker://NAME or FILE.sif for apptainer",
        ),
        Option(
            "container",
            str,
            containers.FORMS[0],
            "container runtime on the nodes",
            choices=containers.FORMS,
        ),
        Option("requeue", bool, True, "requeue after node loss, preemption or failure"),
        Option("array", str, None, "indices of a job array, and how many run at once: 0-99%8"),
        Option("sbatch", list, None, "additional sbatch options: '\"--reservation=r;--nice\"'"),
        Option("job_dir", str, None, "shared base directory of job files"),
        Option("workspace", str, None, "directory to copy for the job, which runs in the copy"),
    )
    capabilities = Capabilities(retries=True, resources=True, elastic=True, files=True)

    def __init__(self) -> None:
        self._checked: dict[str, tuple[float, bool]] = {}
        """When each job was last checked while its logs were followed, and whether it had
        stopped.
        """
        self._lock = threading.Lock()

    def affinity(self) -> int:
        """Return how suitable Slurm is on this machine."""
        if shutil.which("sbatch") is None:
            return 0
        if env.read().get("SLURM_JOB_ID"):
            return 50
        try:
            return 0 if states.run(["scontrol", "ping"], limit_s=1).returncode else 20
        except MachineError:
            return 0

    def excludable(self, nodes: Sequence[str], cfg: Mapping[str, Any]) -> Sequence[str]:
        """Return which of the given nodes a job can exclude. sbatch doesn't allow a job to exclude
        unknown nodes, or nodes that `nodelist` requests.
        """
        return states.excludable(nodes, str(_with_commas(cfg).get("nodelist") or ""))

    def bypasses(
        self, _app: AppDef, cfg: Mapping[str, Any], site_locks: Locks
    ) -> Iterator[tuple[str, str]]:
        """Yield what sets a locked option in another way. See `Locks`."""
        return locks.bypasses(_with_commas(cfg), site_locks, env.read().variables)

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        """Return the batch script for an app. See `Scheduler.render`."""
        cfg = _with_commas(cfg)
        base = cfg.get("job_dir")
        directory = os.path.join(os.path.abspath(base), app_id) if base else records.path(app_id)
        folder = os.path.join(directory, "slurm")
        programs = os.path.dirname(sys.executable)
        here = os.path.join(folder, _WORKSPACE) if cfg.get("workspace") else os.getcwd()
        partition = cfg.get("partition") or ""
        has = states.partition(partition)
        if cfg.get("mem") is None:
            cfg = {**cfg, "mem": has.memory}
        text = script.render(app, cfg, app_id, folder, here, programs)
        notes = [*resource_checks.too_little(app, memory=bool(cfg["mem"]))]
        notes += resource_checks.without_gpus(app, partition, has.gpus)
        if cfg.get("image") and containers.unmounted(app.roles):
            notes.append("only bind mounts have an effect: containers have no volumes and devices")
        if not cfg.get("image"):
            notes += resource_checks.ignored_images(app, "on Slurm, use -cfg image=IMAGE")
            if any(role.mounts for role in app.roles):
                notes.append("mounts have no effect: replicas see the files of their node")
        if not cfg.get("requeue", True) and any(role.max_retries for role in app.roles):
            notes.append("with requeue=false, a failed job is not retried")
        partly = any(
            role.max_retries and role.retry_policy is not RetryPolicy.APPLICATION
            for role in app.roles
        )
        if partly or len({role.max_retries for role in app.roles}) > 1:
            notes.append(
                "the job is retried as a whole, as often as the role with the fewest retries"
            )
        path = os.path.join(folder, "job.sbatch")
        indices = script.indices(app, cfg)
        log = [f"--output={script.log_path(folder, is_array=bool(indices))}"]
        if any(map(locks.sets_output, cfg.get("sbatch") or ())):
            log = []  # the command line would take precedence over the user's file
        body = {
            "command": ["sbatch", "--parsable", *log, path],
            "directory": folder,
            "roles": {role.name: role.num_replicas for role in app.roles},
            "array": indices,
            "name": app_id,
            "workspace": cfg.get("workspace"),
            "has_launcher": any(map(launcher_file.needed, app.roles)),
            "script": text,
        }
        return Request(self.name, app, cfg, body, text, tuple(notes))

    def submit(self, request: Request) -> str:
        """Submit the batch script, and return Slurm's job id."""
        body = request.body
        folder = str(body["directory"])
        record = os.path.join(records.directory(str(body["name"])), _SUBMITTED)
        try:
            os.makedirs(folder, 0o700)
            path = body["command"][-1]
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with open(os.open(path, flags, 0o600), "w", errors="surrogateescape") as file:
                file.write(body["script"])
            if body["has_launcher"]:
                _write_launcher(os.path.join(folder, script.LAUNCHER))
        except FileExistsError:
            raise UsageError(
                f"{folder} already exists", hint="a job can be submitted only once"
            ) from None
        except OSError as error:
            raise UsageError(
                f"can't write the script to {error.filename}: {error.strerror}",
                hint="set -cfg job_dir=DIR to shared storage",
            ) from None
        try:
            if body["workspace"]:
                workspaces.pack(body["workspace"], os.path.join(folder, _WORKSPACE))
            app_id = self._sbatch(body["command"])
            with open(record, "w") as file:
                json.dump({"app_id": app_id, "directory": folder, "roles": body["roles"],
                           "array": body["array"]}, file)  # fmt: skip
        except BaseException:
            remove_tree(folder)
            raise
        return app_id

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        """Return the status of each job that Slurm knows about, or whose script has written its
        result.
        """
        jobs = states.query(app_ids)
        folders = _folders(app_ids, jobs)
        found = {}
        for app_id in app_ids:
            folder = folders.get(app_id)
            if folder is not None and folder.indices:
                found[app_id] = _array_status(jobs.get(app_id, ()), folder)
            elif app_id in jobs:
                found[app_id] = _status(jobs[app_id], folder)
            elif folder is not None:
                found[app_id] = _status_from_files(folder)
        return found

    def logs(self, app_id: str, query: LogQuery) -> Iterator[str]:
        """Return a replica's output lines. If both streams have output, stdout comes before
        stderr.
        """
        jobs = states.query([app_id])
        folder = _folders([app_id], jobs).get(app_id)
        if folder is None and app_id not in jobs:
            raise _unknown(app_id)
        if folder is None:
            raise UsageError(
                f"log location of {app_id} is unknown on this machine",
                hint="it was submitted by another user or from another home directory",
            )
        directory, roles, indices = folder
        if indices:
            raise UsageError(
                f"{app_id} is a job array", hint=f"choose one of its jobs: {app_id}_{indices[0]}"
            )
        check_replica(app_id, query, roles)
        return self._lines(app_id, directory, query)

    def cancel(self, app_id: str) -> None:
        """Cancel a job."""
        if app_id not in states.query([app_id]):
            if app_id in _folders([app_id], {}):
                return  # the job is over, and Slurm no longer knows about it
            raise _unknown(app_id)
        process = states.run(["scancel", "--quiet", app_id])
        if process.returncode:
            raise states.unavailable(process) or MachineError(
                f"Slurm: {states.last_message(process)}"
            )

    def delete(self, app_id: str) -> None:
        """Cancel a job, wait until it is over, and remove its directory."""
        folder = _folders([app_id], {}).get(app_id)
        self.cancel(app_id)
        if not wait_until(lambda: self._has_stopped(app_id), _STOP_LIMIT_S, _POLL_S):
            raise MachineError(
                f"can't stop {app_id}: still running after {_STOP_LIMIT_S:.0f} s",
                hint=f"squeue --job {app_id}",
            )
        if folder is not None:
            is_element = states.split_array_id(app_id)[1] is not None
            remove_tree(folder.directory if is_element else os.path.dirname(folder.directory))

    def list(self, _cfg: Mapping[str, Any] = NOTHING, /) -> Sequence[JobSummary]:
        """Return this user's jobs, newest first."""
        jobs = states.user_jobs(os.getuid())
        found = [
            JobSummary(app_id, states.combined_state(parts), parts[0].name, parts[0].submitted)
            for app_id, parts in jobs.items()
        ]
        return sorted(found, key=lambda each: (each.submitted, int(each.app_id)), reverse=True)

    def _sbatch(self, command: Sequence[str]) -> str:
        process = states.run(command, variables=_without_job(env.read().variables))
        if process.returncode:
            if (error := states.unavailable(process)) is not None:
                raise error
            reason = states.last_message(process)
            hint = ""
            if "partition" in reason.lower():
                names = states.run(["sinfo", "--noheader", "--format=%R"]).stdout.split()
                hint = f"partitions: {', '.join(dict.fromkeys(names))}" if names else ""
            elif "Invalid job array" in reason:
                hint = "scontrol show config | grep MaxArraySize shows the highest index"
            elif "configuration is not available" in reason:
                hint = "sinfo -N -o '%N %c CPUs %m MB %G' shows the nodes' resources"
            raise UsageError(f"Slurm rejected the job: {reason}", hint=hint)
        return process.stdout.strip().partition(";")[0]  # ID;CLUSTER in a federation

    def _lines(self, app_id: str, directory: str, query: LogQuery) -> Iterator[str]:
        names = ("stdout", "stderr") if query.stream == "combined" else (query.stream,)
        place = os.path.join(directory, query.role, str(query.replica))
        paths = [os.path.join(place, f"{name}.log") for name in names]
        return tail.lines(
            lambda: [path for path in paths if os.path.exists(path)],
            lambda: query.follow and not self._is_over(app_id, directory),
        )

    def _has_stopped(self, app_id: str) -> bool:
        status = self.status([app_id]).get(app_id)
        return status is None or status.state.is_over

    def _is_over(self, app_id: str, directory: str) -> bool:
        """Return whether a job has stopped writing output. Slurm is queried only rarely, and all
        readers share the result.
        """
        if os.path.exists(os.path.join(directory, "ended")):
            return True
        with self._lock:
            at, has_stopped = self._checked.get(app_id, (-math.inf, False))
            if time.monotonic() - at > _MAX_AGE_S:
                has_stopped = self._has_stopped(app_id)
                self._checked[app_id] = time.monotonic(), has_stopped
        return has_stopped


def _with_commas(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with lists in the format that sbatch expects. A comma ends an option in
    -cfg, so users separate list elements with semicolons.
    """
    lists = {name: cfg[name].replace(";", ",") for name in _LISTS if cfg.get(name)}
    return {**cfg, **lists}


def _without_job(variables: Mapping[str, str]) -> dict[str, str]:
    """Remove the variables that describe the job in which this process is running. sbatch would
    pass them on, and srun in the new job would interpret them as options.
    """
    if "SLURM_JOB_ID" not in variables:
        return dict(variables)
    return {
        name: value
        for name, value in variables.items()
        if name in _CLUSTER_VARIABLES or not name.startswith("SLURM_")
    }


def _write_launcher(folder: str) -> None:
    os.mkdir(folder, 0o700)
    path = os.path.join(folder, launcher_file.NAME)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o500), "wb") as file:
        file.write(launcher_file.build())


def _unknown(app_id: str) -> UsageError:
    return UsageError(f"no job {app_id} in Slurm", hint="relight list -s slurm")


def _folders(app_ids: Sequence[str], jobs: Jobs) -> dict[str, Folder]:
    """Return the folders of jobs, by job id. A job that Slurm still knows about is in `jobs`, and
    its folder has its name.
    """
    names, found = records.names(), dict[str, Folder]()
    for app_id in app_ids:
        its_name = jobs[app_id][0].name if app_id in jobs else None
        for name in names:
            path = os.path.join(records.root(), name, _SUBMITTED)
            if its_name in (None, name) and (folder := _load(path, app_id)):
                found[app_id] = folder
    return found


def _load(path: str, app_id: str) -> Folder | None:
    record = records.load(path)
    job, index = states.split_array_id(app_id)
    if not isinstance(record, dict) or record.get("app_id") != job:
        return None
    if not {"directory", "roles"} <= set(record):
        return None
    folder = Folder(record["directory"], record["roles"], tuple(record.get("array", ())))
    if index is None:
        return folder
    known = index in folder.indices
    return Folder(os.path.join(folder.directory, str(index)), folder.roles) if known else None


def _read(*parts: str) -> str:
    try:
        with open(os.path.join(*parts), errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _status(parts: Sequence[Part], folder: Folder | None) -> AppStatus:
    state = states.combined_state(parts)
    replicas: list[ReplicaStatus] = []
    failed_first = _read(folder[0], "failed").partition("\n")[0] if folder else ""
    for part in parts:
        if folder is None:
            role, most, said = part.name, max(1, len(part.hosts)), ""
        else:
            role, most = list(folder[1].items())[min(part.offset, len(folder[1]) - 1)]
            said = ""
            if part.app_state is not AppState.PENDING:
                said = _read(folder[0], role, "srun.log")
                part = _with_lost_hosts(part, folder, role)
        replicas += _replicas(part, role, most, said, folder, failed_first)
    failed = [r for r in replicas if r.state is AppState.FAILED]
    if state is AppState.FAILED and not failed:
        # The script itself failed, or Slurm ended it, so the job's own exit code counts.
        first = replicas[0]
        code = parts[0].exitcode or None
        replicas[0] = first._replace(state=AppState.FAILED, exitcode=first.exitcode or code)
    message = parts[0].explain()
    if state is AppState.FAILED and failed:
        first = min(failed, key=lambda replica: _is_consequence(replica, folder))
        what = f"{first.role}/{first.replica} on {first.host} failed"
        if first.exitcode is not None:
            what += f" with {how_it_ended(first.exitcode)}"
        message = "; ".join(filter(None, (message, what + (first.error and f": {first.error}"))))
    url = f"file://{folder[0]}" if folder is not None else ""
    return AppStatus(state, message, tuple(replicas), parts[0].restarts, url)


def _with_lost_hosts(part: Part, folder: Folder, role: str) -> Part:
    """Return a part with the hosts that it started on, in the order of its tasks. Slurm removes the
    hosts that an elastic job has lost.
    """
    started = states.expand_hosts(_read(folder[0], role, "nodes").strip())
    return part._replace(hosts=started) if set(part.hosts) <= {*started} else part


def _array_status(parts: Sequence[Part], folder: Folder) -> AppStatus:
    """Return the status of a job array, in which each job is a replica. Slurm no longer knows about
    jobs that ended long ago, or that were cancelled before they started.
    """
    known = {part.array_index: part for part in parts}
    role = next(iter(folder.roles))
    replicas = []
    for index in folder.indices:
        if index in known:
            part = known[index]
            state, host = part.app_state, (*part.hosts, "")[0]
            code = part.exitcode if state.is_over else None
        else:
            ended = _status_from_files(Folder(f"{folder.directory}/{index}", folder.roles))
            state, host, code = ended.state, "", ended.exitcode
            if state is AppState.UNKNOWN and parts:
                state = AppState.CANCELLED
        replicas.append(ReplicaStatus(role, index, state, host, code))
    states_now = [replica.state for replica in replicas]
    counts = Counter(state.name.lower() for state in states_now)
    message = ", ".join(f"{number} {state}" for state, number in counts.items())
    url = f"file://{folder.directory}"
    return AppStatus(states.combined(states_now), message, tuple(replicas), None, url)


def _replicas(
    part: Part, role: str, most: int, said: str, folder: Folder | None, failed: str
) -> list[ReplicaStatus]:
    """Return a role's replicas. Each replica's state is taken from srun's message about it or,
    without a message, from the job's state.

    `most` is the number of replicas if the hosts are unknown. `failed` is `EXITCODE ROLE` for the
    role that failed first, or empty.
    """
    state = part.app_state
    code = 0 if state is AppState.SUCCEEDED else None
    if state is AppState.FAILED:
        state = AppState.CANCELLED  # they were stopped, and did not fail on their own
    ends, lost = states.task_ends(said)
    blank = [
        ReplicaStatus(role, k, AppState.FAILED, host, None, _LOST)
        if host in lost
        else ReplicaStatus(role, k, state, host, code)
        for k, host in enumerate(part.hosts or ("",) * most)
    ]
    first = next((end for end in ends if not end.lost), None)
    for end in ends:
        if end.task >= len(blank):
            blank += [ReplicaStatus(role, k, state) for k in range(len(blank), end.task + 1)]
        if end.lost:
            blank[end.task] = ReplicaStatus(role, end.task, AppState.FAILED, end.host, None, _LOST)
            continue
        assert first is not None
        stopped = part.app_state is AppState.CANCELLED or failed.split(" ")[-1] not in ("", role)
        left = part.app_state is AppState.SUCCEEDED  # the other replicas continued without it
        same = not stopped and (left or end.exitcode == first.exitcode)
        own = AppState.FAILED if same else AppState.CANCELLED
        error = _error(folder, role, end.task, end.exitcode) if same else ""
        blank[end.task] = ReplicaStatus(role, end.task, own, end.host, end.exitcode, error)
    return blank


def _is_consequence(replica: ReplicaStatus, folder: Folder | None) -> tuple[bool, bool]:
    """Return the sort key of a failed replica. A replica whose own worker caused the failure comes
    first, and one whose node was lost comes last.
    """
    place = "" if folder is None else os.path.join(folder[0], replica.role, str(replica.replica))
    is_cause = bool(place) and error_files.names_own_worker(os.path.join(place, "error.json"))
    return replica.exitcode is None, not is_cause


def _error(folder: Folder | None, role: str, replica: int, exitcode: int | None) -> str:
    if folder is None:
        return ""
    place = os.path.join(folder[0], role, str(replica))
    return cause(os.path.join(place, "error.json"), os.path.join(place, "stderr.log"), exitcode)


def _status_from_files(folder: Folder) -> AppStatus:
    """Read the status of a job that Slurm no longer knows about from the result file that its
    script has written.
    """
    directory, roles, _ = folder
    text = _read(directory, "ended").strip()
    failed_first = _read(directory, "failed").partition("\n")[0]
    state, code = AppState.UNKNOWN, 0
    if text.isdecimal():
        code = int(text)
        state = AppState.FAILED if code else AppState.SUCCEEDED
    part = Part("", 0, {0: "COMPLETED"}.get(code, "FAILED"), code, None, "", "", "", ())
    replicas: list[ReplicaStatus] = []
    for role, number in roles.items():
        said = _read(directory, role, "srun.log")
        part = _with_lost_hosts(part._replace(hosts=()), folder, role)
        replicas += _replicas(part, role, number, said, folder, failed_first)
    if state is AppState.UNKNOWN:
        replicas = [r._replace(state=state, exitcode=None) for r in replicas]
        return AppStatus(
            state, "Slurm no longer knows it: it was cancelled or lost", tuple(replicas)
        )
    return AppStatus(state, "", tuple(replicas))
