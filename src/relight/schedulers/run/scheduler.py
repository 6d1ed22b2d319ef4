"""Makes the jobs that `relight run` has started on this machine available to the job commands. Each
agent is a job, and each worker is a replica whose number is its rank. This includes workers on the
job's other nodes, reported to the local agent by the coordinator.

Jobs can't be submitted to this scheduler. A job becomes visible once it has been running for a
second (`processes/running_jobs`).
"""

import os
import signal
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from datetime import datetime
from typing import Any

from relight.base import env
from relight.base.errors import (
    EXIT_OK,
    EXIT_PREEMPTED,
    EXIT_SIGNAL_BASE,
    MachineError,
    RelightError,
    UsageError,
)
from relight.base.text import format_duration
from relight.base.text import format_names as names
from relight.core.status.charts import job_charts, job_progress
from relight.core.status.snapshot import (
    ENDED,
    WAITING,
    NodeSnapshot,
    Output,
    RankSnapshot,
    WholeJob,
    early_exits,
    ranked_workers,
)
from relight.host import system, tail
from relight.host.waiting import wait_until
from relight.job.app import NOTHING, AppDef, AppState
from relight.job.handles import RUN
from relight.processes.running_jobs import JobDirectory
from relight.schedulers.api import (
    AppStatus,
    JobSummary,
    LogQuery,
    ReplicaStatus,
    Request,
    Scheduler,
    no_replica,
)

_POLL_S = 0.2
_STOP_S = 90.0
"""Seconds to wait for a job to stop. Its workers have a grace period of 30 s by default."""
_STOPPED = [
    *(EXIT_SIGNAL_BASE + number for number in (signal.SIGTERM, signal.SIGINT)),
    EXIT_PREEMPTED,  # stopped after saving a checkpoint
]


class Run(Scheduler):
    """The `relight run` jobs on this machine."""

    name = RUN

    def __init__(self) -> None:
        try:
            self._jobs = JobDirectory(env.read().variables)
        except OSError as error:
            raise UsageError(
                f"can't list jobs of relight run: {error.filename}: {error.strerror}",
                hint="set XDG_RUNTIME_DIR to a private directory",
            ) from None

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        """Reject the submission.

        Raises:
            UsageError: always.
        """
        del app, cfg, app_id
        raise UsageError(
            "-s run is for jobs started with `relight run`", hint="use relight submit -s local …"
        )

    def submit(self, request: Request) -> str:
        """Reject the submission, as `render` does."""
        del request
        raise UsageError("-s run is for jobs started with `relight run`")

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        """Return the status of each job that exists."""
        found = {app_id: self._jobs.find_whole(app_id) for app_id in app_ids}
        statuses = {app_id: _status(each) for app_id, each in found.items() if each is not None}
        if len(statuses) < len(found):
            for job in self._jobs.silent(statuses):
                if job.id in found:
                    why, _ = self._jobs.explain_silence(job.id, job.pid)
                    statuses[job.id] = AppStatus(AppState.RUNNING, why)
        return statuses

    def logs(self, app_id: str, query: LogQuery) -> Iterator[str]:
        """Return a worker's lines from its log files or, without log files, the most recent lines
        that its agent holds in memory. With `follow`, this includes lines from after a restart of
        the job.
        """
        job = self._jobs.find_whole(app_id)
        if job is None:
            raise self._missing(app_id)
        node, worker = _worker(job, query)
        is_here = node is job.nodes[0]
        paths = _paths(worker, query.stream)
        # If nodes share a file system, the files of other nodes can be found on this node too,
        # because part of their path is random.
        if paths and (is_here or all(map(os.path.exists, paths))):
            return tail.lines(
                lambda: paths, lambda: query.follow and self._goes_on(app_id, node, query, paths)
            )
        if paths:
            raise UsageError(
                f"rank {worker.rank} runs on {node.host}; its log files are there: "
                f"{', '.join(paths)}",
                hint=f"on {node.host}: relight logs {node.id}/{node.role}/{worker.rank}",
            )
        if node.state == ENDED or query.follow:
            raise UsageError(
                f"{app_id} has no log files" + (" to follow" if query.follow else ""),
                hint="relight run --log-dir=DIR --tee=3 keeps and shows them",
            )
        asked = Output(worker.local_rank, query.stream, worker.rank)
        output = self._jobs.output if is_here else self._jobs.output_elsewhere
        return iter(output(app_id, asked).splitlines())

    def cancel(self, app_id: str) -> None:
        """Stop the agent as SIGTERM would, and wait for it to exit.

        Raises:
            MachineError: if the agent does not exit.
        """
        job = self._jobs.find(app_id)
        if job is None:
            raise self._missing(app_id)
        if job.state == ENDED:
            return
        try:
            system.signal_if(job.pid, signal.SIGTERM, lambda: self._jobs.ask(app_id) is not None)
        except ProcessLookupError:
            return
        if not wait_until(lambda: self._jobs.ask(app_id) is None, _STOP_S, _POLL_S):
            raise MachineError(
                f"can't stop {app_id}: process {job.pid} did not exit within "
                f"{format_duration(_STOP_S)}",
                hint=f"relight stacks {job.pid} shows where its workers are",
            )

    def delete(self, app_id: str) -> None:
        """Stop a job, and remove it from the list of jobs. The log files are kept, because the user
        chose their location.
        """
        self.cancel(app_id)
        self._jobs.forget(app_id)

    def list(self, _cfg: Mapping[str, Any] = NOTHING, /) -> Sequence[JobSummary]:
        """Return the jobs that are running and those that ended most recently, newest first."""
        running = self._jobs.running()
        ids = {job.id for job in running}  # a job that is about to end is in both lists
        silent = self._jobs.silent(ids)
        every = [*running, *(job for job in self._jobs.ended() if job.id not in ids)]
        return [
            *(JobSummary(job.id, AppState.RUNNING, job.name, "") for job in silent),
            *(
                JobSummary(each.id, _state(each), each.name, _time(each.started), each.reason)
                for each in every
            ),
        ]

    def _goes_on(
        self, app_id: str, node: NodeSnapshot, query: LogQuery, paths: MutableSequence[str]
    ) -> bool:
        """Return whether a rank may still write output, and add the files from its latest start to
        `paths`. A local rank may write output while its job is running, even between two
        generations. A rank on another node may only write output while its generation is running.
        """
        own = self._jobs.ask(app_id)
        if own is None:
            return bool(self._jobs.silent_pid(app_id))
        if (own.host, own.id) != (node.host, node.id):
            return own.generation == node.generation
        for worker in own.ranks:
            if worker.rank == query.replica:
                paths.extend(x for x in _paths(worker, query.stream) if x not in paths)
        return own.state != ENDED

    def _missing(self, app_id: str) -> RelightError:
        if pid := self._jobs.silent_pid(app_id):
            why, hint = self._jobs.explain_silence(app_id, pid)
            return MachineError(f"{app_id}: {why}", hint=hint)
        return UsageError(f"no such job: {app_id}", hint="see relight list")


def _status(job: WholeJob) -> AppStatus:
    own = job.nodes[0]
    replicas = tuple(
        ReplicaStatus(
            node.role, each.rank, _state_of(each, node), node.host, each.exitcode,
            last_line=each.last_line, use=each.use, pid=each.pid if node is own else 0,
            topology=node.topology,
        )
        for node, each in ranked_workers(job)
    )  # fmt: skip
    url = f"file:{own.run_directory}" if own.run_directory else ""
    message = "; ".join(filter(None, (_message(own) + _unseen(job), early_exits(job))))
    return AppStatus(
        _state(own), message, replicas, own.restart, url, own.account, own.preload,
        job_progress(job), job_charts(job),
    )  # fmt: skip


def _unseen(job: WholeJob) -> str:
    """Describe the nodes that are not visible from this node."""
    if job.silent:
        return f"; no response from {names(job.silent)}"
    own = job.nodes[0]
    if own.state != ENDED and own.nodes > 1 and len(job.nodes) == 1:
        return "; the coordinator is not responding, so only this node is shown"
    return ""


def _message(job: NodeSnapshot) -> str:
    """Summarize a job in one line for display."""
    words = " ".join(job.command)
    if job.state == ENDED:
        return f"{words}: exit code {job.exit_code}: {job.reason}"
    since = format_duration(job.taken - job.started)
    if job.generation < 0:
        return f"{words}: waiting for a group to form for {since} (pid {job.pid})"
    text = f"{words}: {job.state} for {since} (pid {job.pid}), generation {job.generation}"
    if job.nodes > 1:
        at = f", at {job.topology}" if job.topology else ""
        text += f", node {job.node} of {job.nodes}{at}"
    if job.generation:
        text += f": {job.cause}"
    return text


def _state(job: NodeSnapshot) -> AppState:
    if job.exit_code is None:
        return AppState.PENDING if job.state == WAITING and job.generation < 0 else AppState.RUNNING
    if job.exit_code == EXIT_OK:
        return AppState.SUCCEEDED
    # If anyone else has killed a rank with such a signal, both the rank and the job have failed.
    was_stopped = job.exit_code in _STOPPED and not job.blamed
    return AppState.CANCELLED if was_stopped else AppState.FAILED


def _state_of(worker: RankSnapshot, job: NodeSnapshot) -> AppState:
    if worker.exitcode is None:
        return AppState.RUNNING if job.exit_code is None else AppState.UNKNOWN
    if worker.stop_signal and worker.rank not in job.blamed:
        return AppState.CANCELLED
    failed = worker.exitcode or worker.rank in job.blamed  # the worker exited too early
    return AppState.FAILED if failed else AppState.SUCCEEDED


def _worker(job: WholeJob, query: LogQuery) -> tuple[NodeSnapshot, RankSnapshot]:
    ranks = ranked_workers(job)
    for node, each in ranks:
        if (node.role, each.rank) == (query.role, query.replica):
            return node, each
    known = ", ".join(f"{node.role}/{each.rank}" for node, each in ranks)
    raise no_replica(job.nodes[0].id, query, (known or "no workers now") + _unseen(job))


def _paths(worker: RankSnapshot, stream: str) -> list[str]:
    """Return the paths of a worker's log files, if there are any."""
    names = ("stdout", "stderr") if stream == "combined" else (stream,)
    return [path for name in names if (path := getattr(worker, name))]


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return ""
