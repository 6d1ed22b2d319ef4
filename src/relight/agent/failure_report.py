"""The machine-readable report on a failed job (`--failure-report=FILE`): one JSON object.

The fields are described in docs/failure-report.md. `VERSION` is incremented when a field is removed
or its meaning changes, but not when fields are added.
"""

import json
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from relight.agent.agent_config import AgentConfig
from relight.base.errors import UsageError, signal_name
from relight.base.fields import plain
from relight.core.diagnosis.causes import Certainty, Role, absence, role
from relight.core.diagnosis.failure_text import describe_exit
from relight.core.diagnosis.hang_text import hung
from relight.core.failure import ErrorReport, Failure, FailureKind
from relight.core.group.messages import JobEnded
from relight.host import files

VERSION = 2

_KINDS = {
    Role.OWN: "failed",
    Role.REPORTED: "failed",
    Role.VICTIM: "communication_error",
    Role.STOPPED: "stopped",
}


def remove_old(path: str) -> None:
    """Remove an earlier job's report, so that the file exists only if this job has failed.

    Raises:
        UsageError: if the report could not be written to the file later.
    """
    directory = os.path.dirname(path)
    why = ""
    if os.path.exists(path) and not os.path.isfile(path):
        why = "it is not a regular file"
    elif not os.path.isdir(directory):
        why = f"no such directory: {directory}"
    elif not os.access(directory, os.W_OK | os.X_OK):
        why = f"{directory} is not writable"
    try:
        if not why:
            os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        why = str(error.strerror)
    if why:
        raise UsageError(f"--failure-report={path}: {why}", hint="pass the path of a writable file")


def write(end: JobEnded, own: Sequence[Failure], job: AgentConfig, restarts: int) -> str:
    """Write the report on a failed job to a file. A partial file is never visible.

    Args:
        end: how the job ended.
        own: the failures of this node's workers.
        job: this node's configuration, with the path of the file.
        restarts: how often the job has been restarted.

    Returns:
        The reason why the file could not be written, or an empty string on success.
    """
    spec = job.spec
    cause, symptom = end.root, end.symptom
    if cause is not None and end.ranks and cause.rank not in end.ranks:
        cause, symptom = None, symptom or cause  # the blamed ranks exited with code 0
    report = {
        "version": VERSION,
        "job": job.command.run_id,
        "host": socket.gethostname(),
        "written_at": _now(),
        "exit_code": end.exit_code,
        "headline": end.headline,
        "reason": end.reason,
        "verdict": end.verdict,
        "ranks": end.ranks,
        "certainty": end.certainty,
        "why": end.why,
        "restarts": restarts,
        "max_restarts": str(spec.max_restarts),
        "restart_policy": spec.restart_policy,
        "cause": cause and _failure(cause, end),
        "symptom": symptom and _failure(symptom, end),
        "same_ranks": end.same_ranks,
        "failures_here": [_failure(failure, end) for failure in own],
        "text": end.report,
    }
    try:
        files.replace(spec.failure_report, json.dumps(report, indent=1) + "\n", 0o666)
    except OSError as error:
        return f"can't write the failure report to {spec.failure_report}: {error.strerror}"
    return ""


def _failure(failure: Failure, end: JobEnded) -> dict[str, Any]:
    kind, what = _ending(failure, end)
    return {
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "host": failure.host,
        "pid": failure.pid,
        "exit_code": failure.exitcode,
        "signal": signal_name(-failure.exitcode) if failure.exitcode < 0 else None,
        "stopped_with": signal_name(failure.stop_signal) if failure.stop_signal else None,
        "kind": kind,
        "what": what,
        "exception": failure.report and _exception(failure.report, failure),
        "evidence": failure.evidence,
        "gpu_error": failure.gpu_error,
        "gpu_broken": failure.gpu_broken,
        "printed": failure.words,
        "last_lines": failure.last_lines,
        "doing": failure.doing
        and {
            "place": failure.doing.place.strip(": "),
            "stack": failure.doing.stack,
            "expects_peers": failure.doing.expects_peers,
            "handling": failure.doing.handling,
            "handling_where": failure.doing.handling_where,
            "works_below": failure.doing.works_below,
            "in_program": failure.doing.in_program,
        },
        "collectives": plain(failure.collectives),
        "log": failure.log,
        "time": failure.when,
    }


def _ending(failure: Failure, end: JobEnded) -> tuple[str, str]:
    """Return the `kind` and `what` fields of a failure. For a blamed rank, they say the same as the
    headline.
    """
    is_blamed = failure.rank in end.ranks
    if end.hung and is_blamed:
        return "hung", hung(failure)
    was_stopped = role(failure) is Role.STOPPED
    if is_blamed and end.symptom is not None and (was_stopped or not failure.exitcode):
        where = absence(failure) if was_stopped else ""
        return "missing", where or describe_exit(failure)
    if not failure.exitcode:
        return "exited", describe_exit(failure)
    is_cause = is_blamed and end.certainty == Certainty.PROVEN.value
    return "failed" if is_cause else _KINDS[role(failure)], describe_exit(failure)


def _exception(report: ErrorReport, failure: Failure) -> dict[str, Any]:
    kind = report.kind if failure.is_explained else FailureKind.PRINTED
    return {
        "type": report.type,
        "message": report.message,
        "where": report.where,
        "source": report.source,
        "cause": report.cause,
        "cause_where": report.cause_where,
        "traceback": report.lines,
        "certainty": kind.name.lower(),
        "doubt": report.doubt,
        "others": report.others,
    }


def _now() -> str:
    text = time.strftime("%FT%T%z")
    return f"{text[:-2]}:{text[-2:]}"
