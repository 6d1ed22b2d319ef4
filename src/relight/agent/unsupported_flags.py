"""Rejects or drops the flags that don't work on an operating system other than Linux."""

from relight.base.values import BACKGROUND
from relight.flags.spec import LaunchSpec
from relight.host import system


def drop(spec: LaunchSpec, notes: list[str]) -> LaunchSpec:
    """Return the spec without the options that this system does not support.

    Args:
        spec: the launch's options.
        notes: receives a line for each such option.

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
