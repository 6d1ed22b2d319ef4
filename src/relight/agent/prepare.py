"""Turns the flags (a LaunchSpec) into this node's configuration (an AgentConfig)."""

import os
import sys
import time
from typing import TYPE_CHECKING

from relight.agent import checks, entrypoint
from relight.agent.agent_config import AgentConfig
from relight.base import package
from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.base.values import (
    BACKGROUND,
    STDERR,
    STDOUT,
    Endpoint,
    parse_grace,
    parse_port_range,
)
from relight.core.group.group_types import GroupSettings
from relight.core.ranks import visible_devices
from relight.core.workers import worker_command
from relight.core.workers.worker_command import Command
from relight.flags.spec import DEFAULT_GRACE_S, LOCAL_HOSTS, UNSET_RUN_ID, LaunchSpec
from relight.host import files
from relight.net.ports import PORT_RANGE, any_address, why_unresolved
from relight.output.worker_logs import LogSettings

if TYPE_CHECKING:
    from relight.agent.health_check import HealthCheckSettings
    from relight.rendezvous.config import Meeting
    from relight.warm.worker_program import WorkerProgram

_PREFIX_TEMPLATE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
"""As in torch 2.14, `--log-line-prefix-template` takes precedence over this variable."""
_NOTICE_S, _NOTICE_OF_NODES_S = 5, 15
"""How long a rank waits for the report that another rank has failed. In a multi-node job, this is
longer than a node may be silent by default (decisions/0027).
"""
_RESOLVE_TIMEOUT_S = 60
_RESOLVE_INTERVAL_S = 1.0
_WRITABLE = 0o022
"""Mode bits of a directory where other users could rename or replace logs."""


def prepare(
    spec: LaunchSpec, given: "set[str]", env: Environment, *, local_rank_argument: bool = False
) -> tuple[AgentConfig, list[str]]:
    """Check the request against this machine. Return the configuration and notes for the user.

    Args:
        spec: the launch options.
        given: the names of the flags that the user set.
        env: the environment.
        local_rank_argument: whether each script receives `--local-rank=N` (`relight launch`).

    Raises:
        RelightError: if the job can't run here.
    """
    checked = checks.check_options(spec, given, env, local_rank_argument=local_rank_argument)
    spec, python, notes = checked.spec, checked.python, checked.notes
    local_world_size = checked.local_world_size
    if spec.failure_report:
        from relight.agent.failure_report import remove_old

        remove_old(spec.failure_report)
    threads = 1 if local_world_size > 1 and "OMP_NUM_THREADS" not in env.variables else 0
    if threads:
        notes.append("OMP_NUM_THREADS is not set; using 1 thread per worker")
    command = _command(spec, env, python, threads=threads, local_rank_argument=local_rank_argument)
    settings, meeting, facts = _group(spec, env, python, notes)
    store = spec.store_address() if meeting is None else Endpoint(any_address(), 0)
    cpus = _bind_cpus(spec, env, local_world_size)
    grace_s, stuck_after_s = _grace(spec, env), _stuck_after(env, notes)
    run_directory = _run_directory(spec, env, command.run_id, notes)
    config = AgentConfig(
        spec=spec,
        command=command,
        local_world_size=local_world_size,
        store_host=store.host,
        store_port=store.port or 0,
        cpus=cpus,
        grace_s=grace_s,
        stuck_after_s=stuck_after_s,
        run_directory=run_directory,
        scratch="" if spec.log_dir == os.devnull else files.temporary_base(env),
        logs=log_settings(spec),
        health_check=health_check(spec, env, local_world_size, run_directory),
        why_all_restart=why_all_restart(spec),
        settings=settings,
        meeting=meeting,
        facts=facts,
        worker_program=_worker_program(spec, command, local_world_size),
        store_ports=_store_ports(env),
    )
    if meeting is None and store.host not in LOCAL_HOSTS:
        _wait_for_name(store.host)  # last, so that wrong values are rejected immediately
    return config, notes


def _command(
    spec: LaunchSpec, env: Environment, python: str, *, threads: int, local_rank_argument: bool
) -> Command:
    run_id = spec.rdzv_id
    if run_id == UNSET_RUN_ID and spec.makes_own_id():
        run_id = ""
    run_id = run_id or files.new_run_id()
    notice_s = _NOTICE_S if spec.runs_locally() else _NOTICE_OF_NODES_S
    shared = env.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1"
    return Command(
        script=spec.script,
        script_args=spec.script_args,
        module=spec.module,
        no_python=spec.no_python,
        env=env,
        python=python,
        run_path=_run_path() if spec.run_path else (),
        run_id=run_id,
        local_rank_argument=local_rank_argument,
        agent_store=shared and spec.worker_store == "agent",
        max_restarts=spec.max_restarts.most,
        signals_to_handle=spec.signals_to_handle,
        virtual_local_rank=spec.virtual_local_rank,
        threads=threads,
        timer_file=_timer_file(env),
        breakpoint=_breakpoint(spec, env, python),
        recovery_notice_s=0 if why_all_restart(spec) else notice_s,
        line_prefix=spec.log_line_prefix_template or env.get(_PREFIX_TEMPLATE),
        host=os.uname().nodename,
        tracking=_tracking(spec, env, run_id) if spec.tracker else {},
    )


def _group(
    spec: LaunchSpec, env: Environment, python: str, notes: list[str]
) -> "tuple[GroupSettings, Meeting | None, dict[str, str]]":
    """Return the `settings`, `meeting` and `facts` of `AgentConfig`."""
    if spec.runs_locally():
        if spec.rdzv_conf:
            from relight.flags import rdzv_conf

            # torchrun's standalone mode is c10d.
            backend = "c10d" if spec.makes_own_id() else spec.rdzv_backend
            notes += rdzv_conf.parse(spec.rdzv_conf, backend)[1]
        budget, smart = spec.max_restarts, spec.restart_policy == "smart"
        alone = GroupSettings(
            1, 1, budget.most, restart_window_s=budget.window_s, smart=smart,
            restart_on=spec.restart_on, fail_on=spec.fail_on,
        )  # fmt: skip
        return alone, None, {}
    from relight.host.env_fingerprint import collect
    from relight.rendezvous.config import arrange

    meeting, settings, more = arrange(spec, env)
    notes += more
    facts = collect(
        script=spec.script,
        arguments=spec.script_args,
        is_file=not (spec.module or spec.no_python),
        python="" if spec.no_python else python,
    )
    facts["--max-restarts"] = str(spec.max_restarts)
    facts["--restart-policy"] = spec.restart_policy
    facts["--restart-on"] = ",".join(map(str, spec.restart_on)) or "none"
    facts["--fail-on"] = ",".join(map(str, spec.fail_on)) or "none"
    facts["--rank-order"], facts["--segment"] = str(spec.rank_order), str(spec.segment)
    return settings, meeting, facts


def _wait_for_name(host: str) -> None:
    """Wait until a host name resolves, as torchrun does, because it may take a few seconds until a
    pod's own name can be resolved. If the name never resolves, the error is reported when the
    workers' store is bound.
    """
    until = time.monotonic() + _RESOLVE_TIMEOUT_S
    why = why_unresolved(host)
    if why:
        sys.stderr.write(
            f"relight: waiting up to {_RESOLVE_TIMEOUT_S} s for {host} to resolve: {why}\n"
        )
    while why and time.monotonic() < until:
        time.sleep(_RESOLVE_INTERVAL_S)
        why = why_unresolved(host)


def _store_ports(env: Environment) -> range:
    """Return the ports for the workers' store. An empty range means any port."""
    text = env.get(PORT_RANGE)
    try:
        return parse_port_range(text) if text else range(0)
    except ValueError as error:
        raise UsageError(
            f"{PORT_RANGE}={text}: {error}", hint="expected FIRST-LAST, such as 29500-29599"
        ) from None


def log_settings(spec: LaunchSpec) -> LogSettings:
    """Return the settings for the workers' output."""
    return LogSettings(
        may_write=spec.log_dir != os.devnull,
        keeps_files=spec.keeps_logs(),
        redirects=spec.redirects,
        tee=spec.tee,
        shown_ranks=spec.local_ranks_filter,
        filters={STDOUT: spec.duplicate_stdout_filters, STDERR: spec.duplicate_stderr_filters},
        repeated_lines=spec.repeated_lines,
    )


def health_check(
    spec: LaunchSpec, env: Environment, local_world_size: int, run_directory: str
) -> "HealthCheckSettings | None":
    """Return the settings for the health check, or None without --health-check."""
    if spec.health_check is None:
        return None
    from relight.agent.health_check import HealthCheckSettings

    return HealthCheckSettings(
        spec.health_check, spec.health_check_timeout, env, local_world_size, run_directory
    )


def why_all_restart(spec: LaunchSpec) -> str:
    """Return the reason why this job's ranks can't keep their processes when another rank fails, or
    an empty string if they can.
    """
    if spec.health_check is not None:
        return "--health-check checks the node without workers"
    return "" if spec.max_restarts.most else "no restarts were allowed (--max-restarts=0)"


def _worker_program(
    spec: LaunchSpec, command: Command, local_world_size: int
) -> "WorkerProgram | None":
    """Return the program whose modules are preloaded, or None without --preload."""
    in_background = spec.preload == (BACKGROUND,)
    if in_background and not spec.max_restarts.most:
        return None
    if not spec.preload or spec.no_python or spec.run_path or spec.numa_binding:
        return None
    from relight.warm.worker_program import WorkerProgram

    own: tuple[str, ...] = worker_command.OF_ONE_WORKER
    if spec.virtual_local_rank:
        own += tuple(visible_devices(command.env.variables, 0))
    # The last worker's arguments are the longest, so the arguments of the others also fit.
    argv = worker_command.argv(command, local_world_size - 1)
    program = entrypoint.find_program(command.python, command.env) or command.python
    common = worker_command.common_variables(command)
    variables = {name: common[name] for name in common if name not in worker_command.OF_ONE_WORKER}
    return WorkerProgram(
        program, argv, variables, own, local_world_size, spec.keep_warm, in_background
    )


def _tracking(spec: LaunchSpec, env: Environment, run_id: str) -> dict[str, str]:
    """Return the --tracker variables. The id of the run is the job's id or, if several nodes each
    run as a separate job, the id that these jobs share.
    """
    from relight.agent.status.view import format_job_id
    from relight.base import trackers

    job = format_job_id(spec) if spec.runs_locally() else run_id
    own = env.variables.get(trackers.JOB_ID) or f"run://{trackers.SESSION}/{job}"
    return {trackers.JOB_ID: own, **trackers.variables(dict(spec.tracker))}


def _run_directory(spec: LaunchSpec, env: Environment, run_id: str, notes: list[str]) -> str:
    if spec.log_dir == os.devnull or not spec.keeps_logs():
        return ""
    if spec.log_dir:
        return files.make_run_directory(os.path.abspath(spec.log_dir), run_id)
    shared = os.path.abspath(files.temporary_base(env))
    try:
        own = files.own_directory(shared, _WRITABLE)
    except OSError as error:
        raise UsageError(
            f"can't write logs to {error.filename}: {error.strerror}",
            hint="choose another directory with --log-dir=DIRECTORY",
        ) from None
    directory = files.make_run_directory(own, run_id)
    why = files.why_elsewhere(own)
    notes.append(f"writing logs to {directory}" + (why and f": {why}"))
    return directory


def _grace(spec: LaunchSpec, env: Environment) -> float:
    """Return the number of seconds between sending workers the stop signal and killing them."""
    if spec.shutdown_timeout is not None:
        return spec.shutdown_timeout
    name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    text = env.get(name)
    try:
        return parse_grace(text) if text else DEFAULT_GRACE_S
    except ValueError as error:
        raise UsageError(
            f"{name}={text}: {error}", hint="--shutdown-timeout takes precedence over it"
        ) from None


def _stuck_after(env: Environment, notes: list[str]) -> float:
    """Return how many seconds a worker may spend in an uninterruptible call, or 0 if there is no
    limit.
    """
    name = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
    text = env.get(name, "0")
    try:
        return max(0.0, float(text))  # max also turns nan into 0
    except ValueError:
        notes.append(f"{name}={text} has no effect, because it is not a number of seconds")
        return 0.0


def _timer_file(env: Environment) -> str:
    """Return the path of the FIFO for torch.distributed.elastic.timer, if torchrun would create
    one.
    """
    if env.get("TORCHELASTIC_ENABLE_FILE_TIMER") != "1":
        return ""
    name = f"watchdog_timer_{files.new_run_id()}"
    own = os.path.join(env.get("TMPDIR", "/tmp"), name)  # noqa: S108
    return env.get("TORCHELASTIC_TIMER_FILE", own)


def _breakpoint(spec: LaunchSpec, env: Environment, python: str) -> dict[str, str]:
    """Return the variables that make `breakpoint()` wait for relight debug, or an empty dict if
    the user has configured `breakpoint()` or the system lacks the necessary support.
    """
    if "PYTHONBREAKPOINT" in env.variables or sys.platform != "linux":
        return {}
    root = os.path.dirname(package.DIRECTORY)
    # The first entry in sys.path applies to this program only. It is a directory or a zip archive.
    if python == sys.executable and not spec.no_python and root != os.path.abspath(sys.path[0]):
        return {"PYTHONBREAKPOINT": "relight.worker.breakpoint.wait"}
    own, theirs = os.path.join(package.DIRECTORY, "worker", "path"), env.get("PYTHONPATH")
    return {
        "PYTHONBREAKPOINT": "relight_breakpoint.wait",
        "PYTHONPATH": f"{theirs}{os.pathsep}{own}" if theirs else own,
    }


def _run_path() -> tuple[str, ...]:
    """Return the arguments that make Python implement `--run-path`. They contain the program's text
    instead of a path, because an upgrade may remove or replace the file before a restart.
    """
    return "-c", package.read("worker/run_path.py")


def _bind_cpus(
    spec: LaunchSpec, env: Environment, local_world_size: int
) -> tuple[frozenset[int], ...]:
    if not spec.numa_binding:
        return ()
    from relight.host.numa import bind

    return bind(spec.numa_binding, local_world_size, env)
