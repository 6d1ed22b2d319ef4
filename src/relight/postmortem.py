"""After a failure: gather what is known of each worker that ended badly, for the diagnosis.

Loaded only when something has failed; the agent calls it. Reading is done here and in `host`,
judging in `core/failures`.
"""

import os
import signal
import time
from collections.abc import Sequence

from relight.core import tracebacks
from relight.core.commands import Command
from relight.core.exits import Failure
from relight.core.failures import shared
from relight.core.messages import JobEnded, NodeReady
from relight.core.supervision import WorkerEnd as WorkerEnd
from relight.env import Environment
from relight.host import interpreter, reports
from relight.host.logs import Logs
from relight.host.process import Workers

JOB = "RELIGHT_JOB_ID"
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_CHILD_KILLED = "killed by signal: Killed"
"""What torch's data loader says when one of its processes got SIGKILL."""


def gather(
    ends: Sequence[WorkerEnd],
    logs: Logs,
    workers: Workers,
    command: Command,
    host: str,
    now: float,
) -> tuple[tuple[Failure, ...], tuple[int, ...]]:
    """Return the failures of this node in a generation, at least one, as other nodes are told them,
    and the ranks that had ended well before the first.
    """
    failures = [_failure(end, logs, workers, command, host) for end in ends if end.exitcode]
    first = min(failure.at for failure in failures)
    left = [end for end in ends if not end.exitcode and not end.asked and end.at <= first]
    return shared(failures, now), tuple(workers.ranks[end.local_rank] for end in left)


def report(end: JobEnded, ready: NodeReady | None, env: Environment) -> str:
    """Return what an agent says of a job that has failed.

    Args:
        end: of the job.
        ready: what this node has said last, with its failures.
        env: of the workers. In a job that `relight submit` has sent, whose replicas are read
            together, the node of the cause reports it, and the others say that.
    """
    root = end.root
    if not end.report or root is None:
        return "\n".join(end.report or (f"error: {end.reason}",))
    own = ready.failures if ready is not None else ()
    of = root.rank, root.pid, root.host
    ours = any((each.rank, each.pid, each.host) == of for each in own)
    if ours or not env.get(JOB):
        return "\n".join(end.report)
    return f"{end.report[0]}; its own node reports it. Exit code {end.exit_code}"


def tell_parent(path: str, root: Failure, logs: Logs | None) -> None:
    """Write the root cause to the error file of the program that started this agent.

    Args:
        path: of that file.
        root: the root cause.
        logs: of its worker; None if that was on another node, or in an earlier generation.
    """
    try:
        reports.write(path, root, logs.error_file(root.local_rank) if logs is not None else "")
    except (OSError, ValueError):
        return  # it is a courtesy: the report is on stderr


def _failure(end: WorkerEnd, logs: Logs, workers: Workers, command: Command, host: str) -> Failure:
    try:
        stderr = logs.stderr_of(end.local_rank)
    except OSError:
        stderr = ""  # somebody has removed the file
    report = reports.read(logs.error_file(end.local_rank)) or tracebacks.from_stderr(stderr)
    log = logs.stderr_path(end.local_rank)
    evidence = workers.evidence.get(end.local_rank, "") or _of_memory(end, stderr, workers)
    if report is not None and report.type == "ModuleNotFoundError" and not command.spec.no_python:
        evidence = evidence or interpreter.remedy(command.python, command.env)
    return Failure(
        rank=workers.ranks[end.local_rank],
        local_rank=end.local_rank,
        host=host,
        pid=workers.pids.get(end.local_rank, 0),
        exitcode=end.exitcode,
        at=end.at,
        asked=end.asked,
        report=report,
        last_lines=tracebacks.last_lines(stderr),
        evidence=evidence or ("" if stderr or report else _of_disk(end, log)),
        log=log,
        when=time.strftime("%F %T%z"),
    )


def _of_disk(end: WorkerEnd, log: str) -> str:
    """Return whether there was no room for what a worker may have had to say (statvfs(3))."""
    if end.asked or end.exitcode < 0 or not log:
        return ""
    try:
        disk = os.statvfs(os.path.dirname(log))
    except OSError:
        return ""
    room = disk.f_bavail if os.geteuid() else disk.f_bfree
    full = disk.f_blocks and not room  # some file systems have no number of blocks
    return "the disk of its log is full: what it printed may be lost" if full else ""


def _of_memory(end: WorkerEnd, stderr: str, workers: Workers) -> str:
    """Return what the kernel's counters say about a SIGKILL that the agent did not send."""
    if end.asked:
        return ""
    if end.exitcode in _KILLED:
        return workers.memory.evidence()
    return workers.memory.kills() if _CHILD_KILLED in stderr else ""
