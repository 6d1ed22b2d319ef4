"""Resolves a PID or JOB argument to ranks on this machine."""

import os

from relight.base.errors import MachineError, RelightError, UsageError
from relight.base.values import whole
from relight.job import handles
from relight.job.status import AppStatus
from relight.runner.lookup import run_jobs
from relight.runner.runner import Runner
from relight.stacks import rank_processes


def resolve(target: str, command: str) -> dict[int, int]:
    """Return the pids of a job's ranks, keyed by rank. If `target` is a process, search that
    process and its descendants for ranks. The result is empty if the process is neither a rank nor
    the ancestor of one.

    Args:
        target: the pid of an agent or of a rank, or the handle, id or name of a job.
        command: the command's name, for hints.

    Raises:
        RelightError: if the process does not exist, or none of the job's ranks runs on this
            machine.
    """
    pid = whole(target)
    if pid is None:
        return _job_ranks(target, command)
    if not _exists(pid):
        raise UsageError(_why_missing(target), hint="relight status shows the agents")
    return rank_processes.below(pid)


def _why_missing(pid: str) -> str:
    try:
        with Runner() as runner:
            handle = runner.find(pid)
        if handle.scheduler == handles.RUN:  # its agent had this pid
            return f"process {pid} has ended: {handle} is {_status(handle).state.name}"
    except RelightError:
        pass
    return f"no such process on this machine: {pid}"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return pid > 0


def _status(handle: handles.Handle) -> AppStatus:
    with Runner() as runner:
        return runner.status(handle)


def _job_ranks(text: str, command: str) -> dict[int, int]:
    with Runner() as runner:
        handle = runner.find(text)
    if handle.role:
        raise UsageError(f"{text} is only a part of a job", hint=f"relight {command} {handle}")
    if handle.scheduler != handles.RUN:
        found = rank_processes.find_job_ranks(str(handle))
    elif (jobs := run_jobs()) is not None and jobs.is_over(handle.app_id):
        found = {}  # the agent's pid may have been reused by another process
    else:
        agent = whole(handle.app_id.rpartition("-")[2]) or 0
        found = rank_processes.below(agent)
    if found:
        return found
    status = _status(handle)
    if status.state.is_over:
        raise UsageError(f"{handle} has ended: {status.state.name}", hint=f"relight logs {handle}")
    hosts = sorted({each.host for each in status.replicas if each.host})
    where = f" ({', '.join(hosts[:5])}{', …' if len(hosts) > 5 else ''})" if hosts else ""
    raise MachineError(
        f"{handle} has no workers on this machine: it is {status.state.name}",
        hint=f"run it on a node of the job{where}: relight {command} {handle}",
    )
