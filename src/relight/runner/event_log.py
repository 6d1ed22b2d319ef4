"""Finds a job's events, either in its event logs or in its agent's memory, and uses the events to
determine which files contain a rank's output.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from glob import escape, glob
from typing import NamedTuple, Protocol

from relight.base.env import Environment
from relight.base.errors import MachineError, UsageError
from relight.core.status.goodput import Account, Ledger
from relight.core.status.snapshot import ENDED, EventsAfter
from relight.events import event_lines
from relight.events.event_lines import Line
from relight.events.event_types import CheckpointFound, Event, Formed, WorkerStarted
from relight.host import files, tail
from relight.job.app import AppState
from relight.job.handles import RUN, Handle
from relight.processes.running_jobs import JobDirectory
from relight.schedulers.api import AppStatus, ReplicaStatus

NAME = "events.jsonl"
ALL = "all"
"""Selects all of a job's attempts, which are the first one and one after each restart."""
_LOGS_BELOW = "torchelastic"
"""The directory, inside a submitted job's own directory, that contains the job's agent logs."""
_LOST = "lost: the other nodes continue without it"
_BEGINNING = 1 << 20
"""An event log must contain an event within this number of bytes from its start."""
_OPTIONS = "relight run --log-dir=DIR keeps it in a file"


class Jobs(Protocol):
    """The `Runner` methods that this module uses."""

    @property
    def env(self) -> Environment:
        """The environment."""

    def status(self, handle: Handle) -> AppStatus:
        """Return a job's status."""


Lines = Iterator[tuple[str, str]]
"""Lines, each preceded by a prefix that distinguishes the logs of several agents."""


def lines(runner: Jobs, job: Handle, *, follow: bool) -> Lines:
    """Return the lines in a job's event logs. With `follow`, keep returning new lines until the job
    is over.

    Raises:
        UsageError: if the job does not exist, or no log contains its events.
    """
    if job.scheduler == RUN:
        return _run_lines(JobDirectory(runner.env.variables), job, follow=follow)
    if job.replicas:
        raise UsageError(
            f"{job} has one event log for all replicas", hint="select a worker with --rank=N"
        )
    hint = "with relight run --event-log-handler=console, they appear in `relight logs`"
    pattern = _pattern(runner, job, "its events are", hint)

    def is_live() -> bool:
        return follow and not runner.status(job).state.is_over

    if not is_live():
        _check_found(job, pattern)
    return tail.lines_by_path(lambda: sorted(glob(pattern)), is_live)


def output(
    runner: Jobs, job: Handle, rank: int, stream: str, *, follow: bool, attempt: str = ALL
) -> Iterator[str]:
    """Return the lines in a rank's own log files, starting with the oldest generation. With
    `follow`, keep returning new lines until the job is over.

    Args:
        runner: the job's runner.
        job: a job, or one of its roles.
        rank: a worker's rank in the job.
        stream: stdout, stderr or combined.
        follow: whether to wait for new lines.
        attempt: the number of restarts (as a string) before the returned attempt, or ALL to return
            the lines of all attempts.

    Raises:
        UsageError: if the job, rank or attempt does not exist, or the rank doesn't have its own log
            files.
    """
    event_logs = _event_logs(runner, job)
    names = ("stdout", "stderr") if stream == "combined" else (stream,)

    def find() -> list[str]:
        folders = _folders(event_logs()).get(rank, [])
        wanted = [each for each in folders if attempt in (ALL, _attempt_number(each))]
        paths = (os.path.join(folder, f"{name}.log") for folder in wanted for name in names)
        return [path for path in paths if os.path.exists(path)]

    if not find():
        known = _folders(event_logs())
        if rank not in known:
            raise UsageError(f"{job} has no rank {rank}", hint=_ranks(sorted(known)))
        attempts = dict.fromkeys(_attempt_number(each) for each in known[rank])
        if attempt not in (ALL, *attempts):
            raise UsageError(
                f"rank {rank} of {job} has no attempt {attempt}",
                hint=f"it has {', '.join(attempts)}; or `all`",
            )
        raise UsageError(
            f"{job} has no per-rank log files", hint="start it with relight run --tee=3"
        )
    return tail.lines(find, lambda: follow and not runner.status(job).state.is_over)


class AgentLog(NamedTuple):
    """An agent's event log in a submitted job. The `events` field contains each event along with
    its line, and `first` and `last` are the first and last lines in the log.
    """

    events: Sequence[tuple[Event, Line]]
    first: Line
    last: Line

    @property
    def formed(self) -> tuple[Formed, Line] | None:
        """The last generation that the agent was part of."""
        found = ((e, line) for e, line in reversed(self.events) if isinstance(e, Formed))
        return next(found, None)


def agents(job: Handle, found: AppStatus) -> list[AgentLog]:
    """Return a submitted job's event logs that are on this machine."""
    logs = []
    for path in paths_below(job, found.url, NAME):
        told = [
            line for _, text in file_lines(path, follow=False) if (line := event_lines.read(text))
        ]
        if told:
            events = [(event, line) for line in told if (event := event_lines.parse_event(line))]
            logs.append(AgentLog(events, told[0], told[-1]))
    return logs


def account(logs: Sequence[AgentLog], *, is_over: bool) -> Account | None:
    """Return how a submitted job has spent its time, according to the latest event log from rank
    0's agent, or None if it is missing.
    """
    latest: tuple[float, Account] | None = None
    for events, first, last in logs:
        places = [event.group_rank for event, _ in events if isinstance(event, Formed)]
        if not places or places[-1]:
            continue
        knows = any(isinstance(event, CheckpointFound) for event, _ in events)
        ledger = Ledger(first.t, knows_checkpoints=knows)
        for event, line in events:
            ledger.step(event, line.t, line.time)
        since_s = 0.0 if is_over else max(0.0, time.time() - last.time)
        if latest is None or last.time > latest[0]:
            latest = last.time, ledger.account(last.t + since_s)
    return latest[1] if latest is not None else None


def with_lost(
    logs: Sequence[AgentLog], replicas: Sequence[ReplicaStatus]
) -> tuple[ReplicaStatus, ...]:
    """Return the replicas, with a note on each replica that the job's group has lost. The scheduler
    itself may take minutes to notice that a replica is lost (see SlurmdTimeout in slurm.conf(5)).
    """
    latest: dict[str, tuple[Formed, Line]] = {}
    for formed in filter(None, (log.formed for log in logs)):
        host = _short(formed[0].host)
        if host not in latest or latest[host][1].time < formed[1].time:
            latest[host] = formed
    if not latest:
        return tuple(replicas)
    newest = max(latest.values(), key=lambda formed: formed[1].time)[0]
    members = [host for host, (event, _) in latest.items() if _same_group(event, newest)]
    if len(members) < newest.nodes:  # the other agents have not logged it yet
        return tuple(replicas)
    lost = latest.keys() - members
    return tuple(
        each._replace(error=_LOST)
        if each.state is AppState.RUNNING and not each.error and _short(each.host) in lost
        else each
        for each in replicas
    )


def _short(host: str) -> str:
    return host.partition(".")[0]


def _same_group(one: Formed, other: Formed) -> bool:
    mine = one.generation, one.master_addr, one.master_port
    return mine == (other.generation, other.master_addr, other.master_port)


def _event_logs(runner: Jobs, job: Handle) -> Callable[[], list[str]]:
    """Return a function that finds the event logs from all agents in a job.

    Raises:
        UsageError: if the logs aren't on this machine.
    """
    if job.scheduler == RUN:
        found = JobDirectory(runner.env.variables).find_whole(job.app_id)
        folders = [] if found is None else [node.run_directory for node in found.nodes]
        paths = [os.path.join(folder, NAME) for folder in folders if folder]
        if not any(map(os.path.exists, paths)):
            raise UsageError(
                f"{job} has no log files on this machine",
                hint="relight run --log-dir=DIR --tee=3 keeps and shows them",
            )
        return lambda: [path for path in paths if os.path.exists(path)]
    hint = "--replica=N selects the lines of all ranks on a node; filter them with --grep"
    pattern = _pattern(runner, job, "which lines belong to a rank is", hint)
    _check_found(job, pattern)
    return lambda: sorted(glob(pattern))


def _attempt_number(folder: str) -> str:
    """Return the attempt number in `attempt_N/LOCAL_RANK` or
    `attempt_N_generation_M/LOCAL_RANK`.
    """
    return os.path.basename(os.path.dirname(folder)).split("_")[1]


def _pattern(runner: Jobs, job: Handle, what: str, hint: str) -> str:
    """Return a glob pattern for a submitted job's event logs."""
    url = runner.status(job).url
    if not url.startswith("file:"):
        raise UsageError(
            f"{job}: {what} unknown on this machine, because -s {job.scheduler} keeps relight "
            "run's log files where the job runs",
            hint=hint,
        )
    return _pattern_below(job, url, NAME)


def paths_below(job: Handle, url: str, name: str) -> list[str]:
    """Return the paths of a file in the run directories of a submitted job's agents, as far as they
    are on this machine.
    """
    return sorted(glob(_pattern_below(job, url, name))) if url.startswith("file:") else []


def _pattern_below(job: Handle, url: str, name: str) -> str:
    folder = url.removeprefix("file:").removeprefix("//")
    role = escape(job.role) if job.role else "*"
    return os.path.join(escape(folder), _LOGS_BELOW, role, "*", name)


def _check_found(job: Handle, pattern: str) -> None:
    if not glob(pattern):
        raise UsageError(
            f"{job} has no event log: no file {pattern}",
            hint="`relight run`, as in dist.ddp, writes it once its nodes have formed a group",
        )


def _folders(paths: Sequence[str]) -> dict[int, list[str]]:
    """Return the directories that contain each rank's log files, starting with the oldest
    generation.
    """
    found: list[tuple[float, int, str]] = []
    for path in paths:
        attempt = ""
        for _, text in file_lines(path, follow=False):
            line = event_lines.read(text)
            match event_lines.parse_event(line) if line is not None else None:
                case Formed(generation=generation, restart=restart):
                    attempt = files.attempt_directory(os.path.dirname(path), restart, generation)
                    named = f"_generation_{generation}"
                    if not os.path.exists(attempt):
                        attempt = attempt.removesuffix(named)
                case WorkerStarted(local_rank=local_rank, rank=rank):
                    assert line is not None
                    found.append((line.time, rank, os.path.join(attempt, str(local_rank))))
    folders: dict[int, list[str]] = {}
    for _, rank, folder in sorted(found):
        folders.setdefault(rank, []).append(folder)
    return folders


def _ranks(known: Sequence[int]) -> str:
    return f"it has ranks {known[0]} to {known[-1]}" if known else "it has not started any worker"


def file_lines(path: str, *, follow: bool) -> Lines:
    """Return the lines in an event log, given its path or the path of its run directory. With
    `follow`, keep waiting for new lines forever.

    Raises:
        MachineError: if it can't be read.
    """
    if os.path.isdir(path):
        path = os.path.join(path, NAME)
    return tail.lines_by_path(lambda: [path], lambda: follow)


def check_file(path: str) -> None:
    """Reject a path that is neither an event log nor a run directory that contains one.

    Raises:
        UsageError: if the path is neither.
        MachineError: if it can't be read.
    """
    if os.path.isdir(path):
        folder, path = path, os.path.join(path, NAME)
        if not os.path.exists(path):
            raise UsageError(
                f"{folder} contains no event log",
                hint="pass a run directory, which --log-dir contains for each run",
            )
    try:
        with files.opened(path) as file:
            beginning = file.read(_BEGINNING).decode(errors="replace")
    except OSError as error:
        raise MachineError(f"can't read {path}: {error.strerror}") from None
    if beginning and not any(map(event_lines.read, beginning.split("\n"))):
        raise UsageError(
            f"{path} is not an event log",
            hint=f"relight run --log-dir=DIR writes one: {NAME} in the run directory",
        )


def _run_lines(jobs: JobDirectory, job: Handle, *, follow: bool) -> Lines:
    found = jobs.find(job.app_id)
    if found is None and (pid := jobs.silent_pid(job.app_id)):
        why, hint = jobs.explain_silence(job.app_id, pid)
        raise MachineError(f"{job}: {why}", hint=hint)
    if found is None:
        raise UsageError(f"no such job: {job}", hint="see relight list")
    path = os.path.join(found.run_directory, NAME) if found.run_directory else ""
    if path and os.path.exists(path):
        return tail.lines_by_path(
            lambda: [path], lambda: follow and jobs.answers_or_lives(job.app_id)
        )
    if found.state == ENDED:
        raise UsageError(f"{job} has ended and kept no event log", hint=_OPTIONS)
    return (("", line) for line in jobs.events(job.app_id, EventsAfter(0, follow)))
