"""Runs jobs on a list of hosts over ssh, with one replica per host. All of a job's replicas are
started and stopped together.

On this machine, an ssh job is a process job (`processes`) whose replicas are ssh commands. Its
state, logs, retries and termination therefore work in the same way as for local jobs, in the job's
directory on this machine.

    here    submit: checks all hosts, and sends the launcher to those that don't have relight; if a
                    host can't run its part, raises an error before anything starts
            `processes.executor` --> one link per replica (`link`) --> ssh
    there   sshd --> the process that runs the replica (`replica`) --> the replica

    state shown for a replica       on the host
    PENDING                         nothing yet
    RUNNING                         ssh connects, the workspace is copied, the program runs
    SUCCEEDED FAILED CANCELLED      nothing, because END has arrived, or because the connection was
                                    lost and the host ends the rest on its own

Invariants: on either side, no process outlives the caller, no matter how the caller exits. On the
local side, the executor exits together with the process that submitted the job (unless `detach` is
set), and the links and ssh exit together with the executor. On the remote side, `replica` ends all
processes when stdin is closed, or when nothing has arrived for `silence` seconds. The values of
environment variables are sent over stdin, never on a command line. ssh never prompts the user
(BatchMode). The first replica of the first role is on the first host, the rendezvous endpoint.
"""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from relight.base import env, fields
from relight.base.errors import MachineError, UsageError
from relight.base.fields import Malformed
from relight.base.text import pluralize
from relight.job import launcher_file, macros, records
from relight.job.app import NOTHING, AppDef, Role
from relight.schedulers import resource_checks
from relight.schedulers.api import AppStatus, Capabilities, JobSummary, Option, Request
from relight.schedulers.processes.jobs import WORKSPACE, ProcessScheduler, layout, streams
from relight.schedulers.processes.orders import ReplicaPlan, to_text
from relight.schedulers.ssh import hosts, link, locks, remote_checks
from relight.schedulers.ssh.hosts import SshHost
from relight.schedulers.ssh.orders import Check, LinkOrder, RemoteReplica, Remove, RunReplica

_FILE = "ssh.json"
_MAX_GRACE_S = 30.0
_LOOPBACK = ("localhost", "127.", "::1")


class Ssh(ProcessScheduler):
    """Runs jobs on hosts that are reachable over ssh."""

    name = "ssh"
    options: Sequence[Option] = (
        Option("hosts", list, None, "hosts to run on, with one replica each: "
        "node1;user@node2:2222"),
        Option("hostfile", str, None, "file with one host per line, as for mpirun"),
        Option("cwd", str, None, "working directory on the hosts (default: the same path as here)",
               is_remote=True),
        Option("sync", bool, False, "copy the working directory to the hosts; the job runs there"),
        Option("workspace", str, None, "copy this directory instead"),
        Option("python", str, None, "Python on the hosts, 3.11 or newer (default: the same path "
        "as here, or otherwise python3)", is_remote=True),
        Option("rank0_host", str, None, "address at which the other hosts reach the first one"),
        Option("identity", str, None, "file with the private key"),
        Option("port", int, None, "sshd's port, for hosts that don't specify one"),
        Option("ssh_args", str, None, "additional ssh arguments"),
        Option("copy_env", list, None, "environment variables to pass on; may contain wildcards, "
        "as in NCCL_*"),
        Option("grace", float, 10.0, "seconds from SIGTERM to SIGKILL, 30 at most"),
        Option("silence", float, 15.0, "seconds of silence after which a connection is lost"),
        Option("log_dir", str, None, "local directory for the logs of jobs"),
        Option("detach", bool, False, "keep the job running when this command or its terminal "
        "exits"),
    )  # fmt: skip
    capabilities = Capabilities(retries=True, survives_caller=False)
    bypasses = staticmethod(locks.bypasses)

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        """Return an app's commands and the hosts to run them on. See `Scheduler.render`."""
        listed = hosts.parse_hosts(cfg)
        wanted = sum(role.num_replicas for role in app.roles)
        if wanted > len(listed):
            raise UsageError(
                f"{pluralize(wanted, 'replica')} for {pluralize(len(listed), 'host')}; each needs "
                "its own",
                hint="list a host twice for two replicas",
            )
        for name, least, most in (("grace", 0.0, _MAX_GRACE_S), ("silence", 2.0, 3600.0)):
            if not least <= cfg[name] <= most:
                raise UsageError(f"{name}={cfg[name]:g}: expected {least:g} to {most:g}")
        body = layout(app, cfg, app_id)
        workspace = cfg.get("workspace") or (os.getcwd() if cfg.get("sync") else None)
        cwd = cfg.get("cwd") or ("" if workspace else os.getcwd())
        meeting = cfg.get("rank0_host") or listed[0].name
        rank0 = {"RELIGHT_RANK0_HOST": meeting, "TORCHX_RANK0_HOST": meeting}
        copied = _copied_variables(cfg)
        left = iter(listed)
        for role in app.roles:
            for number in range(role.num_replicas):
                host = next(left)
                own = _substituted(role, number, app_id)
                replica = {
                    "host": str(host),
                    "ssh": hosts.command(host, cfg, sys.executable),
                    "args": [own.entrypoint, *own.args],
                    "env": {**copied, **own.env, **rank0},
                    "cwd": cwd,
                }
                body["role_params"].setdefault(role.name, []).append(replica)
        body |= {
            "workspace": workspace,
            "grace_s": cfg["grace"],
            "silence_s": cfg["silence"],
        }
        notes = tuple(_notes(app, listed[:wanted], len(listed), meeting))
        return Request(self.name, app, cfg, body, _text(body), notes)

    def submit(self, request: Request) -> str:
        """Start the job, and return its id. The job is only started once all hosts have confirmed
        that they can run it.

        Raises:
            RelightError: if a host can't run the job, or if no process can be started on this
                machine.
        """
        body, app_id = request.body, str(request.body["app_id"])
        orders = {
            (role, number): _link_order(body, role, number, replica)
            for role, replicas in body["role_params"].items()
            for number, replica in enumerate(replicas)
        }
        orders = _ready(orders, request.cfg)
        path = os.path.join(records.directory(app_id), _FILE)
        known = [
            RemoteReplica(each.host, each.command, _remove_order(each.order))
            for each in orders.values()
        ]
        try:
            with open(path, "x") as file:
                json.dump([fields.plain(each) for each in known], file)
        except FileExistsError:
            raise UsageError(f"job {app_id} was already submitted") from None
        except OSError as error:
            raise MachineError(f"can't write {path}: {error.strerror}") from None
        try:
            return self.start(request, tuple(map(_link_process, orders.values())))
        except BaseException:
            os.unlink(path)
            raise

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        """Return the status of each job that was submitted from this machine."""
        found = {}
        marks = {app_id: known for app_id in app_ids if (known := _load_replicas(app_id))}
        for app_id, status in super().status(list(marks)).items():
            where = {
                (each.order.role, each.order.replica): str(each.host) for each in marks[app_id]
            }
            replicas = [r._replace(host=where[r.role, r.replica]) for r in status.replicas]
            found[app_id] = status._replace(replicas=tuple(replicas))
        return found

    def delete(self, app_id: str) -> None:
        """Stop a job, remove its state and logs from this machine, and remove its workspace copies
        from the hosts.

        Raises:
            MachineError: if a host does not respond. The copy on that host must be removed
                manually.
        """
        known = _load_replicas(app_id)
        if not known and records.find_by_handle(self.name, app_id) is None:
            self.native(app_id)  # raises if the job does not exist
        super().delete(app_id)
        remote_checks.refuse(
            remote_checks.ask(
                [(each.host, each.command, each.order) for each in known if each.order.copy]
            )
        )

    def list(self, _cfg: Mapping[str, Any] = NOTHING, /) -> Sequence[JobSummary]:
        """Return the jobs that were submitted from this machine, newest first."""
        return [each for each in super().list() if _load_replicas(each.app_id)]

    def native(self, app_id: str) -> dict[str, Any]:
        """Return a job's state as its executor has written it.

        Raises:
            UsageError: if the job does not exist, or isn't an ssh job.
        """
        if not _load_replicas(app_id):
            raise UsageError(
                f"no ssh job {app_id} was submitted from this machine", hint="relight list -s ssh"
            )
        return super().native(app_id)


def _copied_variables(cfg: Mapping[str, Any]) -> dict[str, str]:
    patterns = cfg.get("copy_env") or ()
    variables = env.read().variables if patterns else {}
    return {n: v for n, v in variables.items() if any(fnmatchcase(n, each) for each in patterns)}


def _substituted(role: Role, number: int, app_id: str) -> Role:
    """Return the role with its macros replaced, except for the directory macro, because only the
    host knows the directory.
    """
    known = {"app_id": app_id, "replica_id": str(number), "rank0_env": "RELIGHT_RANK0_HOST"}
    return macros.substitute(role, known)


def _link_order(
    body: Mapping[str, Any], role: str, number: int, replica: Mapping[str, Any]
) -> LinkOrder:
    """Return the order for a link."""
    return LinkOrder(
        host=hosts.parse(replica["host"]),
        command=tuple(replica["ssh"]),
        workspace=os.path.join(body["log_dir"], WORKSPACE) if body["workspace"] else "",
        report_path=os.path.join(body["role_log_dirs"][role][number], "error.json"),
        order=RunReplica(
            app_id=body["app_id"],
            role=role,
            replica=number,
            args=tuple(replica["args"]),
            env=replica["env"],
            cwd=replica["cwd"],
            copy=bool(body["workspace"]),
            grace_s=body["grace_s"],
            silence_s=body["silence_s"],
        ),
    )


def _ready(
    orders: Mapping[tuple[str, int], LinkOrder], cfg: Mapping[str, Any]
) -> dict[tuple[str, int], LinkOrder]:
    """Check that each host can run its replica, and return the orders. Hosts without
    relight are sent the launcher, and their orders use it.

    Raises:
        RelightError: if a host can't run its replica.
    """
    ready = dict(orders)
    launchers = {key: each.order.env.get(launcher_file.VARIABLE) for key, each in orders.items()}
    get = [key for key, launcher in launchers.items() if launcher == launcher_file.TRAVELS]
    errors = _errors([each for key, each in orders.items() if key not in get])
    without = [host for host, error in errors if isinstance(error, hosts.NoRelightError)]
    get += [
        key
        for key, each in orders.items()
        if each.host in without and launchers[key] != launcher_file.INSTALLED
    ]
    if not get:
        remote_checks.refuse(errors)
        return ready
    getting = [ready[key].host for key in get]
    remote_checks.refuse([(host, error) for host, error in errors if host not in getting])
    directory = remote_checks.send_launcher([(ready[key].host, ready[key].command) for key in get])
    for key in get:
        host = ready[key].host
        command = hosts.command(host, cfg, sys.executable, directory)
        ready[key] = ready[key]._replace(command=tuple(command))
    remote_checks.refuse(_errors([ready[key] for key in get]))
    return ready


def _errors(orders: Sequence[LinkOrder]) -> Sequence[remote_checks.Failure]:
    """Return each host that can't run its replica, along with the reason."""
    return remote_checks.ask(
        [(each.host, each.command, _check_order(each.order)) for each in orders]
    )


def _link_process(order: LinkOrder) -> ReplicaPlan:
    """Return the local process that represents a replica."""
    return ReplicaPlan(
        role=order.order.role,
        replica=order.order.replica,
        args=(sys.executable, "-P", "-m", "relight.schedulers.ssh.link"),
        env={
            "PATH": env.read().get("PATH", os.defpath),
            "TORCHELASTIC_ERROR_FILE": order.report_path,
            link.VARIABLE: to_text(order).decode(),
        },
        cwd=os.getcwd(),
        **streams(os.path.dirname(order.report_path)),
    )


def _check_order(order: RunReplica) -> Check:
    """Return an order that checks whether a replica could run. It doesn't contain the secrets in
    the replica's own order.
    """
    command = order.args[0]
    # A path relative to the working directory may not exist before the workspace has been copied.
    commands = (command,) if os.path.isabs(command) or "/" not in command else ()
    path = order.env.get("PATH", "")
    return Check(order.cwd, order.copy, commands, path, order.silence_s)


def _remove_order(order: RunReplica) -> Remove:
    return Remove(order.app_id, order.role, order.replica, order.copy, order.silence_s)


def _load_replicas(app_id: str) -> list[RemoteReplica]:
    """Return the replicas that were recorded for an ssh job. The result is empty for other jobs."""
    try:
        known = records.load(os.path.join(records.path(app_id), _FILE))
        return [
            fields.record(RemoteReplica, each)
            for each in (known if isinstance(known, list) else ())
        ]
    except (UsageError, Malformed):
        return []


def _notes(app: AppDef, used: Sequence[SshHost], listed: int, meeting: str) -> Iterator[str]:
    if listed > len(used):
        yield f"{len(used)} of {pluralize(listed, 'host')} are used"
    yield from resource_checks.ignored_files(app, "replicas see the files of their hosts")
    others = [host for host in used if not host.name.startswith(_LOOPBACK)]
    if others and meeting.startswith(_LOOPBACK):
        yield (
            f"{others[0].name} can't reach {meeting}; use -cfg rank0_host= to set an address "
            "that it can reach"
        )
    for role in app.roles:
        if role.is_elastic:
            yield (
                "the job ends when one host is lost, even if "
                f"{pluralize(role.least_replicas, 'replica')} would be enough"
            )
    if len(retries := {role.max_retries for role in app.roles}) > 1:
        yield f"the job is retried as a whole, {pluralize(min(retries), 'time')}"


def _text(body: Mapping[str, Any]) -> str:
    """Format the local commands, and the commands that they run on the hosts."""
    lines = []
    if body["workspace"]:
        lines += [f"# {body['workspace']} is copied to each host", ""]
    for role, replicas in body["role_params"].items():
        for number, replica in enumerate(replicas):
            lines.append(f"# {role}/{number}, logs in {body['role_log_dirs'][role][number]}")
            lines += [shlex.join(replica["ssh"]), f"# there, on {replica['host']}:"]
            lines.append(f"cd {shlex.quote(replica['cwd'] or '${img_root}')}")
            lines += [f"export {k}={shlex.quote(v)}" for k, v in replica["env"].items()]
            lines += [shlex.join(replica["args"]), ""]
    return "\n".join(lines)
