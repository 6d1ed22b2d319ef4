"""Resolves a PID or a JOB on a command line to ranks on this machine."""

import os

from relight.base.errors import MachineError, UsageError
from relight.base.values import whole
from relight.job import handles
from relight.job.lookup import find_job
from relight.runner.runner import Runner
from relight.stacks import rank_processes


def of(target: str, command: str) -> dict[int, int]:
    """Return the pids of the ranks below a process, or of a job, by rank; empty if the process
    neither is nor has a rank.

    Args:
        target: the pid of an agent or of a rank, or the handle or id of a job.
        command: the name of the command, for hints.

    Raises:
        RelightError: if the process does not exist, or the job has no ranks here.
    """
    pid = whole(target)
    return _of_job(target, command) if pid is None else _of_process(pid)


def _of_process(pid: int) -> dict[int, int]:
    if not _exists(pid):
        raise UsageError(
            f"there is no process {pid} on this machine", hint="relight status shows the agents"
        )
    return rank_processes.below(pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return pid > 0


def _agent_of(handle: handles.Handle) -> int:
    return whole(handle.app_id.rpartition("-")[2]) or 0


def _of_job(text: str, command: str) -> dict[int, int]:
    handle = find_job(text)
    if handle.role:
        raise UsageError(f"{text} is a part of a job", hint=f"relight {command} {handle}")
    of_run = handle.scheduler == handles.RUN
    found = (
        rank_processes.below(_agent_of(handle)) if of_run else rank_processes.of_job(str(handle))
    )
    if found:
        return found
    with Runner() as runner:
        status = runner.status(handle)
    if status.state.is_over:
        raise UsageError(f"{handle} is over: {status.state.name}", hint=f"relight logs {handle}")
    hosts = sorted({each.host for each in status.replicas if each.host})
    where = f" ({', '.join(hosts[:5])}{', …' if len(hosts) > 5 else ''})" if hosts else ""
    raise MachineError(
        f"{handle} has no workers on this machine: it is {status.state.name}",
        hint=f"run it on a node of the job{where}: relight {command} {handle}",
    )
