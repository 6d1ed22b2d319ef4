"""After a failure: gather what is known of each worker that ended badly, and find the root cause.

Loaded only when something has failed; the agent calls it. Reading is done here and in `host`,
judging in `core/failures`.
"""

import signal
from collections.abc import Sequence

from relight.core import tracebacks
from relight.core.failures import Diagnosis, Failure, diagnose
from relight.core.supervision import End
from relight.host import reports
from relight.host.logs import Logs
from relight.host.process import Workers


def examine(ends: Sequence[End], logs: Logs, workers: Workers, host: str) -> Diagnosis:
    """Return the diagnosis of workers that ended other than with 0; there is at least one."""
    return diagnose(_failure(end, logs, workers, host) for end in ends)


def tell_parent(path: str, root: Failure, logs: Logs) -> None:
    """Write the root cause to the error file of the program that started this agent."""
    try:
        reports.write(path, root, logs.error_file(root.local_rank))
    except OSError:
        return  # it is a courtesy: the report is on stderr


def _failure(end: End, logs: Logs, workers: Workers, host: str) -> Failure:
    stderr = logs.stderr_of(end.local_rank)
    report = reports.read(logs.error_file(end.local_rank)) or tracebacks.from_stderr(stderr)
    evidence = workers.evidence.get(end.local_rank, "")
    if not evidence and end.exitcode == -signal.SIGKILL and not end.asked:
        evidence = workers.memory.evidence()
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
        evidence=evidence,
        log=logs.stderr_path(end.local_rank),
    )
