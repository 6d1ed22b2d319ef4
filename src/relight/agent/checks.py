"""Checks a launch's options against this machine before anything is started.

Errors are raised as a `UsageError`. Options without effect only cause a note.
"""

import os
from typing import NamedTuple

from relight.agent import entrypoint
from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.base.values import (
    AUTO,
    BACKENDS,
    BACKGROUND,
    EVENT_HANDLERS,
    STATUS_TOKEN,
    parse_status_token,
)
from relight.core.ranks import visible_devices
from relight.flags import site
from relight.flags.spec import LaunchSpec, check, check_ranks, unknown_variables
from relight.host import system
from relight.processes import interpreter

_CLUSTER = {"SLURM_JOB_ID", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "JOB_COMPLETION_INDEX",
            "MASTER_ADDR", "PET_NNODES"}  # fmt: skip
_UNUSED = {"MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}


class Checked(NamedTuple):
    """The options, completed with the cluster's values, and notes for the user. The `python` field
    is the interpreter for Python scripts.
    """

    spec: LaunchSpec
    python: str
    local_world_size: int
    notes: list[str]


def check_options(
    spec: LaunchSpec, given: "set[str]", env: Environment, *, local_rank_argument: bool
) -> Checked:
    """Check the options, and complete them with values from the cluster.

    The arguments are the same as for `prepare.prepare`.

    Raises:
        RelightError: if the job can't run here.
    """
    notes: list[str] = []
    if not _CLUSTER.isdisjoint(env.variables):
        from relight.rendezvous.autodetect import take

        spec, given, notes = take(spec, given, env)
    spec = _check_plugins(spec, given, env, notes)
    _check_status_token(spec, env)
    _check_keep_warm(spec)
    notes += check(spec, given)
    if spec.keep_warm is not None and spec.preload == (BACKGROUND,):
        spec = spec._replace(preload=(AUTO,))
    if not system.SUPPORTS_ALL_FLAGS:
        spec = _drop_unsupported(spec, notes)
    python, local_world_size = _find_python(spec, env), _count_workers(spec, env)
    notes += check_ranks(spec, local_world_size)
    entrypoint.check(spec, env, python)
    entrypoint.check_preload(spec.preload, python)
    notes += entrypoint.check_streams(spec, local_world_size)
    notes += entrypoint.misplaced_flags(spec, given)
    notes += entrypoint.local_rank_notes(spec, local_world_size, is_passed=local_rank_argument)
    unknown = unknown_variables(env.variables)
    if unknown or not _UNUSED.isdisjoint(env.variables):
        from relight.agent import unused_variables

        notes += unused_variables.notes(spec, given, env.variables, local_world_size, unknown)
    if spec.verbose and not spec.no_python:
        notes += filter(None, [interpreter.explain(python, env)])
    if "TORCHELASTIC_HEALTH_CHECK_PORT" in env.variables:
        notes.append(
            "TORCHELASTIC_HEALTH_CHECK_PORT has no effect; as in torchrun, there is no health "
            "check server"
        )
    if spec.virtual_local_rank:
        visible_devices(env.variables, local_world_size - 1)
    return Checked(spec, python, local_world_size, notes)


def _check_plugins(
    spec: LaunchSpec, given: "set[str]", env: Environment, notes: list[str]
) -> LaunchSpec:
    if spec.rdzv_backend not in BACKENDS:
        from relight.rendezvous import backends

        backends.check(spec.rdzv_backend)
    if spec.logs_specs != "default":
        raise _no_logs_specs(spec.logs_specs)
    if spec.event_log_handler not in EVENT_HANDLERS:
        spec = _with_event_handler(spec, given, env, notes)
    return spec


def _drop_unsupported(spec: LaunchSpec, notes: list[str]) -> LaunchSpec:
    """Remove the options that only work on Linux, and add notes about them.

    Raises:
        UsageError: if the launch can't work on this system at all.
    """
    if not spec.runs_locally():
        system.require_linux("a multi-node job (--nnodes)")
    if spec.numa_binding:
        system.require_linux("--numa-binding")
    if spec.health_check and any(each.name == "shm" for each in spec.health_check.names):
        system.require_linux("--health-check=shm")
    if spec.preload not in ((), (BACKGROUND,)):
        notes.append(
            "--preload has no effect on this system; workers start without preloaded modules"
        )
    if spec.hang_timeout:
        notes.append(
            "--hang-timeout has no effect on this system, because it does not track workers' "
            "activity"
        )
    if spec.watch_slow_ranks:
        notes.append(
            "--watch-slow-ranks has no effect on this system, because it does not show where "
            "workers wait"
        )
    return spec._replace(preload=(), hang_timeout=None, watch_slow_ranks=None)


def _with_event_handler(
    spec: LaunchSpec, given: "set[str]", env: Environment, notes: list[str]
) -> LaunchSpec:
    """Reject an event handler that doesn't exist. If the site has passed it to a container, only
    add a note, because users choose images without knowing the site's plug-ins.
    """
    from relight.events import handlers

    found = site.load(env)
    is_passed = found.path.endswith(site.SUBMISSION_HOST) and "event-log-handler" in found.run
    try:
        handlers.check(spec.event_log_handler)
    except UsageError:
        if not is_passed or "event-log-handler" in given:
            raise
        notes.append(
            f"events aren't sent to {spec.event_log_handler}: this image lacks the plug-in "
            "(event-log-handler of your cluster)"
        )
        return spec._replace(event_log_handler="null")
    return spec


def _check_keep_warm(spec: LaunchSpec) -> None:
    pid = spec.keep_warm.until if spec.keep_warm is not None else 0
    if not pid:
        return
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass  # the process belongs to another user
    except (ProcessLookupError, OverflowError):
        raise UsageError(
            f"--keep-warm=while:{pid}: no process has this pid",
            hint="pass the pid of a running process, such as while:$$ for this shell",
        ) from None


def _check_status_token(spec: LaunchSpec, env: Environment) -> None:
    """Reject a token that the status page would be unable to use later."""
    token = env.get(STATUS_TOKEN)
    if spec.status is not None and token:
        try:
            parse_status_token(token)
        except ValueError as error:
            raise UsageError(f"{STATUS_TOKEN}: {error}") from None


def _count_workers(spec: LaunchSpec, env: Environment) -> int:
    if spec.nproc_per_node.isdecimal():
        return int(spec.nproc_per_node)
    from relight.host.devices import count

    return count(spec.nproc_per_node, env)


def _find_python(spec: LaunchSpec, env: Environment) -> str:
    python = interpreter.choose(env)
    if not spec.no_python and entrypoint.find_program(python, env) is None:
        hint = "it names a program, without arguments" if " " in python else ""
        raise UsageError(f"PYTHON_EXEC={python} is not executable", hint=hint)
    return python


def _no_logs_specs(name: str) -> UsageError:
    """Return the error for `--logs-specs`. Its plug-ins import torch, so only torchrun can load
    them.
    """
    from relight.base import plugins

    hint = "--log-dir, --redirects, --tee and --local-ranks-filter control where output goes; "
    hint += "--log-line-prefix-template sets the prefix of tee'd lines"
    if point := plugins.find("torchrun.logs_specs").get(name):
        text = f"torch's plug-in {point.value} (entry point group torchrun.logs_specs)"
        return UsageError(
            f"--logs-specs={name} is {text}; it requires torch, which the launcher does not import",
            hint=hint,
        )
    return UsageError(f"--logs-specs={name}: only `default` is supported", hint=hint)
