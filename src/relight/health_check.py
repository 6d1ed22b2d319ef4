"""Checks this node before its workers start (--health-check): a command, or checks by name.

A check may block, as on a file system that does not answer, and a program may run for long. So
both run in a thread while the agent serves its loop. Nothing else of the agent runs meanwhile: the
node is not ready, and the group waits for it, or forms without it.
"""

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable

from relight.core.waiting import duration
from relight.doctor import inspection
from relight.doctor.machine import NO_LIMIT, Gpus
from relight.env import Environment
from relight.errors import signal_name
from relight.events import HealthChecked
from relight.host import background
from relight.host.journal import Journal
from relight.host.loop import Loop
from relight.node_job import NodeJob
from relight.values import CheckByName, HealthCheck

_SHOWN = 200
"""Most characters of what a command has printed that are shown."""
_READ = 64 * 1024
_SMI_S = 20.0
_KIB = 1024
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - its room is looked at


def run(loop: Loop, journal: Journal, job: NodeJob, is_over: Callable[[], bool]) -> str:
    """Check this node; return why it can't run workers, or an empty string.

    Args:
        loop: the agent's loop, which is served meanwhile.
        journal: gets the event `HealthChecked`.
        job: what the node would run.
        is_over: whether the agent needs the result no more; then it is an empty string.
    """
    spec = job.command.spec
    check = spec.health_check
    if check is None:
        return ""
    began, limit_s = loop.now(), spec.health_check_timeout
    running = _Command(check.command, job.command.env) if check.command else None
    found: list[str] = []

    def done(result: str | Exception) -> None:
        failed = f"{type(result).__name__}: {result}"
        found.append(failed if isinstance(result, Exception) else result)

    work = running.wait if running is not None else _by_name(check, job)
    background.call(loop, work, done)
    try:
        loop.run_until(lambda: bool(found) or is_over(), limit_s)
    finally:
        if running is not None:
            running.close()
    if not found and is_over():
        return ""
    why = found[0] if found else f"it did not end within {duration(limit_s)}"
    if why and running is not None:
        why = f"{check.command}: {why}"
    journal.record(HealthChecked(round(loop.now() - began, 3), why))
    return why


class _Command:
    """A program that checks the node: it passes if it exits with 0.

    It runs in a session of its own, with the workers' environment, and is killed with all that it
    has left behind there.
    """

    def __init__(self, command: str, env: Environment) -> None:
        self._output = tempfile.TemporaryFile()
        self._process: subprocess.Popen[bytes] | None = None
        self._error = ""
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env={**env.variables},
                start_new_session=True,
            )
        except OSError as error:
            self._error = str(error.strerror)

    def wait(self) -> str:
        """Return why the check failed, or an empty string."""
        if self._process is None:
            return self._error
        code = self._process.wait()
        if not code:
            return ""
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with {code}"
        said = self._last_line()
        return f"{how}: {said}" if said else how

    def close(self) -> None:
        """Kill it if it still runs, and what it has started."""
        process = self._process
        if process is not None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass  # all have ended
            process.wait()
        self._output.close()

    def _last_line(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        text = os.pread(self._output.fileno(), _READ, max(0, size - _READ))
        lines = [line.strip() for line in text.decode(errors="replace").splitlines()]
        last = next((line for line in reversed(lines) if line), "")
        return last if len(last) <= _SHOWN else f"{last[: _SHOWN - 1]}…"


def _by_name(check: HealthCheck, job: NodeJob) -> Callable[[], str]:
    """Return a call of all checks that were named; it returns the first reason."""
    env = job.command.env

    def work() -> str:
        for each in check.names:
            why = _CHECKS[each.name](each, env, job)
            if why:
                return f"{each.name}: {why}"
        return ""

    return work


def _disk(check: CheckByName, env: Environment, job: NodeJob) -> str:
    """Check where workers and relight write: TMPDIR, the logs, and the current directory."""
    temporary = env.get("TMPDIR") or tempfile.gettempdir()
    places = [temporary, job.run_directory or temporary, os.getcwd()]
    return next(filter(None, (_room(path, check.least) for path in dict.fromkeys(places))), "")


def _shm(check: CheckByName, env: Environment, job: NodeJob) -> str:
    del env, job
    return _room(_SHARED_MEMORY, check.least)


def _room(path: str, least: int) -> str:
    disk = inspection.disk(path)
    if disk.error:
        return f"{path} is not writable: {disk.error}"
    if disk.free < least:
        return f"{path} has {_size(disk.free)} free, less than {_size(least)}"
    return ""


def _memory(check: CheckByName, env: Environment, job: NodeJob) -> str:
    del env, job
    free = inspection.available_memory()
    if free != NO_LIMIT and free < check.least:
        return f"{_size(free)} are available, less than {_size(check.least)}"
    return ""


def _gpu(check: CheckByName, env: Environment, job: NodeJob) -> str:
    del check
    gpus = inspection.gpus(env)
    return _missing(gpus, job.nproc) or _busy(gpus) or _damaged(env)


def _missing(gpus: Gpus, needed: int) -> str:
    if gpus.visible >= needed:
        return ""
    hiding = f" ({gpus.hiding})" if gpus.hiding else ""
    return f"{gpus.visible} of {gpus.present} GPUs can be used{hiding}, for {needed} workers"


def _busy(gpus: Gpus) -> str:
    return f"other processes use the GPUs: {', '.join(gpus.holders[:3])}" if gpus.holders else ""


def _damaged(env: Environment) -> str:
    """Return which NVIDIA GPU has had memory errors that ECC could not correct, since the driver
    was loaded; an empty string if none has, or none counts them.
    """
    query = "--query-gpu=index,ecc.errors.uncorrected.volatile.total"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SMI_S, env={**env.variables},
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        return ""  # no NVIDIA tools
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi does not answer: {error}"
    if done.returncode:
        text = (done.stdout + done.stderr).strip()
        return f"nvidia-smi exited with {done.returncode}: {text[-_SHOWN:]}"
    for line in done.stdout.splitlines():
        index, _, errors = (part.strip() for part in line.partition(","))
        if errors.isdecimal() and int(errors):
            return f"GPU {index} has {errors} memory errors that ECC could not correct"
    return ""


_CHECKS = {"disk": _disk, "memory": _memory, "shm": _shm, "gpu": _gpu}


def _size(size: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < _KIB:
            return f"{size} {unit}"
        size //= _KIB
    return f"{size} GiB"


def explain(why: str) -> str:
    """Return the message of an agent whose node is unfit."""
    return (
        f"error: the health check of {socket.gethostname()} failed ({why}): "
        "this node leaves the job\n"
        "  hint: repair it, or leave it out; --health-check says what is checked"
    )
