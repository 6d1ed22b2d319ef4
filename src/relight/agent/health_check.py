"""Checks this node before its workers start (--health-check), with a command or with named checks.

A check may block, for example on an unresponsive file system, and a command may take a long time.
Therefore checks and commands run in a separate process (`processes/helper.py`), while the agent
keeps running its event loop. During the check, the node isn't ready, and the group either waits for
it or forms without it.
"""

import json
import os
import socket
import tempfile
from collections.abc import Callable
from typing import NamedTuple

from relight.base.env import Environment
from relight.base.errors import RelightError, signal_name
from relight.base.text import format_duration, format_size, last_line, pluralize
from relight.base.values import (
    NETWORK,
    NO_LIMIT,
    BuiltinCheck,
    HealthCheck,
    parse_health_check,
)
from relight.events.event_types import HealthChecked
from relight.flags import site
from relight.health import inspection, machine_findings
from relight.host import free_memory, system
from relight.host.loop import Loop
from relight.output.journal import Journal
from relight.processes import helper
from relight.processes.helper import Helper

_SHOWN = 200
"""Maximum number of characters shown from a command's output."""
_READ = 64 * 1024
_SMI_S = 20.0
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - only its free space is checked
_MAX_USED_MIB = 1024
"""An idle GPU has at most a few hundred MiB in use, for the driver and a desktop."""
_REPAIR = "repair the node or leave it out; the --health-check flag lists what is checked"
_DRIVER_REMEDY = "check dmesg; restart the driver or the machine"


class HealthCheckFailure(NamedTuple):
    """The result of a health check: the failure reason (empty if the node is healthy) and the
    remedy. The `is_proof` field is true if the node is unfit for any job, because its hardware is
    broken or the site's own check failed.
    """

    why: str
    remedy: str = _REPAIR
    is_proof: bool = False


_FIT = HealthCheckFailure("")


class HealthCheckSettings(NamedTuple):
    """The check, its time limit, and the facts about this node that the named checks need."""

    check: HealthCheck
    limit_s: float
    env: Environment
    local_world_size: int
    run_directory: str


def run(
    loop: Loop, journal: Journal, settings: HealthCheckSettings, is_over: Callable[[], bool]
) -> HealthCheckFailure:
    """Check this node and return the result.

    Args:
        loop: the agent's loop, served during the check.
        journal: receives the `HealthChecked` event.
        settings: the check to run.
        is_over: returns whether the agent no longer needs the result. If that is the case, the node
            counts as fit.
    """
    check, began = settings.check, loop.now()
    unfit = _wait_for_result(loop, settings, is_over, began + settings.limit_s)
    if unfit is None and is_over():
        return _FIT
    if unfit is None:
        unfit = HealthCheckFailure(f"it did not finish within {format_duration(settings.limit_s)}")
    if unfit.why and check.command:
        why = f"{check.command}: {unfit.why}"
        unfit = unfit._replace(why=why, is_proof=_is_site_check(check, settings.env))
    journal.record(HealthChecked(round(loop.now() - began, 3), unfit.why))
    return unfit


def _is_site_check(check: HealthCheck, env: Environment) -> bool:
    """Return whether a check comes from the site configuration."""
    try:
        text = site.load(env).run.get("health-check", "")
        return parse_health_check(text) == check
    except (RelightError, ValueError):
        return False


def _wait_for_result(
    loop: Loop, settings: HealthCheckSettings, is_over: Callable[[], bool], until: float
) -> HealthCheckFailure | None:
    """Return the result of a check, or None if the time limit has passed or the result is no longer
    needed. If relight itself lost the process that ran a check, the check is repeated, because the
    loss is no evidence of a fault in this node.
    """
    while loop.now() < until and not is_over():
        try:
            running = _Check(settings)
        except OSError as error:
            return HealthCheckFailure(str(error.strerror))
        try:
            running.helper.watch(loop, lambda: None)
            _await(loop, running.helper, is_over, until)
            if running.helper.exitcode is not None and not running.helper.is_lost:
                return running.result()
        finally:
            running.close()
    return None


def _await(loop: Loop, running: Helper, is_over: Callable[[], bool], until: float) -> None:
    loop.run_until(lambda: running.exitcode is not None or is_over(), until - loop.now())


class _Check:
    """The process that runs a check. This process is either a program or a fork of the agent. A
    program runs in the workers' environment, and passes the check by exiting with 0. A fork runs
    named checks.

    Raises:
        OSError: if the process can't be started.
    """

    def __init__(self, settings: HealthCheckSettings) -> None:
        check, variables = settings.check, settings.env.variables
        self._is_command = bool(check.command)
        self._output = system.anonymous_file("health-check")
        command = ("/bin/sh", "-c", check.command)
        call = None if self._is_command else lambda: _print_result(_by_name(settings))
        try:
            self.helper = Helper(command, variables, self._output, self._output, call=call)
        except OSError:
            os.close(self._output)
            raise

    def result(self) -> HealthCheckFailure:
        """Return the result of the finished check."""
        code = self.helper.exitcode
        if self.helper.error is not None:
            return HealthCheckFailure(str(self.helper.error.strerror))
        if not code:
            return _FIT if self._is_command else HealthCheckFailure(*json.loads(self._text()))
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with {code}"
        said = self._last_line()
        return HealthCheckFailure(f"{how}: {said}" if said else how)

    def close(self) -> None:
        """If the check is still running, kill its process and all descendants."""
        self.helper.close()
        os.close(self._output)

    def _text(self) -> str:
        size = os.fstat(self._output).st_size
        return os.pread(self._output, _READ, max(0, size - _READ)).decode(errors="replace")

    def _last_line(self) -> str:
        last = last_line(self._text())
        return last if len(last) <= _SHOWN else f"{last[: _SHOWN - 1]}…"


def _print_result(find: Callable[[], HealthCheckFailure]) -> None:
    """Print the result. This runs in the check's process."""
    try:
        unfit = find()
    except Exception as error:
        unfit = HealthCheckFailure(f"{type(error).__name__}: {error}")
    os.write(1, json.dumps(unfit).encode())


def _by_name(settings: HealthCheckSettings) -> Callable[[], HealthCheckFailure]:
    """Return a function that runs the named checks and returns the first failure."""

    def work() -> HealthCheckFailure:
        for each in settings.check.names:
            if each.name == NETWORK:
                continue  # network_check
            found = _CHECKS[each.name](each, settings)
            if found.why:
                return found._replace(why=f"{each.name}: {found.why}")
        return _FIT

    return work


def _disk(check: BuiltinCheck, settings: HealthCheckSettings) -> HealthCheckFailure:
    """Check the directories that the workers and relight write to: TMPDIR, the logs, and the
    current directory.
    """
    temporary = settings.env.get("TMPDIR") or tempfile.gettempdir()
    places = [temporary, settings.run_directory or temporary, os.getcwd()]
    found = (
        _room(path, check.least, machine_findings.TMP_REMEDY) for path in dict.fromkeys(places)
    )
    return next((each for each in found if each.why), _FIT)


def _shm(check: BuiltinCheck, settings: HealthCheckSettings) -> HealthCheckFailure:
    del settings
    return _room(_SHARED_MEMORY, check.least, machine_findings.SHM_REMEDY)


def _room(path: str, least: int, remedy: str) -> HealthCheckFailure:
    disk = inspection.disk(path)
    if disk.error:
        return HealthCheckFailure(f"{path} is not writable: {disk.error}", remedy)
    if disk.free < least:
        return HealthCheckFailure(
            f"{path} has {format_size(disk.free)} free, less than {format_size(least)}", remedy
        )
    return _FIT


def _memory(check: BuiltinCheck, settings: HealthCheckSettings) -> HealthCheckFailure:
    del settings
    free = free_memory.available()
    if free == NO_LIMIT or free >= check.least:
        return _FIT
    why = f"{format_size(free)} of memory available, less than {format_size(check.least)}"
    return HealthCheckFailure(
        why, f"stop other programs that use memory; {machine_findings.MEMORY_REMEDY}"
    )


def _gpu(check: BuiltinCheck, settings: HealthCheckSettings) -> HealthCheckFailure:
    del check
    gpus = inspection.gpus(settings.env)
    if gpus.visible < settings.local_world_size:
        hiding = f" ({gpus.hiding})" if gpus.hiding else ""
        workers = pluralize(settings.local_world_size, "worker")
        why = f"{gpus.visible} of {gpus.present} GPUs are usable{hiding}, for {workers}"
        return HealthCheckFailure(
            why, "run relight doctor for details, or use a lower --nproc-per-node"
        )
    if gpus.holders:
        shown = ", ".join(gpus.holders[:3])
        return HealthCheckFailure(
            f"other processes are using the GPUs: {shown}", machine_findings.HOLDERS_REMEDY
        )
    return _by_nvidia_smi(settings.env)


def _by_nvidia_smi(env: Environment) -> HealthCheckFailure:
    """Check for NVIDIA GPUs with memory in use, or with uncorrectable ECC memory errors since the
    driver was loaded. A GPU that does not report ECC error counts passes the check.
    """
    command = [
        "nvidia-smi",
        "--query-gpu=index,memory.used,ecc.errors.uncorrected.volatile.total",
        "--format=csv,noheader,nounits",
    ]
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    if chosen:  # nvidia-smi itself ignores that variable
        command.append(f"--id={chosen}")
    try:
        done = helper.run(command, env.variables, _SMI_S)
    except FileNotFoundError:
        return _FIT  # NVIDIA's tools aren't installed
    except OSError as error:
        why = f"nvidia-smi failed: {error.strerror}"
        return HealthCheckFailure(why, _DRIVER_REMEDY, is_proof=True)
    if done.exitcode:
        text = (done.stdout + done.stderr).decode(errors="replace").strip()
        why = f"nvidia-smi exited with {done.exitcode}: {text[-_SHOWN:]}"
        return HealthCheckFailure(why, _DRIVER_REMEDY, is_proof=True)
    for line in done.stdout.decode(errors="replace").splitlines():
        index, used, errors = [*map(str.strip, line.split(",")), "", ""][:3]
        if used.isdecimal() and int(used) > _MAX_USED_MIB:
            why = f"GPU {index} has {used} MiB in use, more than {_MAX_USED_MIB} MiB"
            return HealthCheckFailure(why, machine_findings.HOLDERS_REMEDY)
        if errors.isdecimal() and int(errors):
            why = f"GPU {index} has {errors} memory errors that ECC could not correct"
            remedy = f"nvidia-smi --gpu-reset -i {index}; if the errors return, replace the GPU"
            return HealthCheckFailure(why, remedy, is_proof=True)
    return _FIT


_CHECKS = {"disk": _disk, "memory": _memory, "shm": _shm, "gpu": _gpu}


def explain(unfit: HealthCheckFailure) -> str:
    """Return the message that an agent prints if its node is unfit."""
    return (
        f"error: the health check on {socket.gethostname()} failed ({unfit.why}); this node is "
        f"leaving the job\n  hint: {unfit.remedy}"
    )
