"""The scheduler interface: its methods, and a record of its capabilities.

`render` has no side effects and only reads the inputs of a request, such as the user's name or a
version. `--dryrun` shows its result, and `submit` sends exactly that.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from relight.base.errors import UsageError
from relight.job.app import NOTHING, AppDef, AppState
from relight.job.status import AppStatus as AppStatus
from relight.job.status import ReplicaStatus as ReplicaStatus
from relight.job.status import by_cause as by_cause


class Option(NamedTuple):
    """One run option, `-cfg name=value`. `kind` is one of str, int, float, bool, list and dict; a
    list is written as `a;b`, and a dict as `k:v;k:v`. `choices` contains the valid values, or is
    empty if any value is valid. `is_remote` marks a path on another machine, where `~` is that
    machine's home directory.

    Three names have a special meaning: `workspace` (the directories to copy for the job, also set
    by `--workspace`), `sync` (whether the working directory is copied) and `job_dir` (the job's
    working directory, if it isn't this one).
    """

    name: str
    kind: type
    default: Any
    help: str
    required: bool = False
    choices: tuple[str, ...] = ()
    is_remote: bool = False


class Capabilities(NamedTuple):
    """The parts of an app that a scheduler supports. Unsupported parts are rejected or noted before
    submission, never silently ignored. If `files` is true, replicas can access this machine's
    files, and a script that does not exist here is rejected.
    """

    retries: bool = False
    mounts: bool = False
    resources: bool = False
    elastic: bool = False
    images: bool = False
    survives_caller: bool = True
    since: bool = False
    files: bool = False


class Request(NamedTuple):
    """A request to the scheduler. `body` is complete and can be serialized as JSON. `text` is its
    human-readable form, such as a script or a list of commands. `notes` lists the parts of the app
    that this scheduler ignores. `app_id` is the id that `submit` will return, if known in advance;
    it identifies the job if the submitting process is killed.
    """

    scheduler: str
    app: AppDef
    cfg: Mapping[str, Any]
    body: Mapping[str, Any]
    text: str
    notes: tuple[str, ...] = ()
    app_id: str = ""


class JobSummary(NamedTuple):
    """One entry in a list of jobs. `message` is the reason for a failure, or empty."""

    app_id: str
    state: AppState
    name: str
    submitted: str = ""
    message: str = ""


class LogQuery(NamedTuple):
    """Selects one replica's log lines. `stream` is stdout, stderr or combined."""

    role: str
    replica: int
    follow: bool = False
    since: datetime | None = None
    until: datetime | None = None
    stream: str = "combined"


def local_time(milliseconds: object) -> str:
    """Format milliseconds since 1970 as local time; return an empty string for other values."""
    if not isinstance(milliseconds, int | float):
        return ""
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().isoformat(timespec="seconds")


def time_limit_s(cfg: Mapping[str, Any]) -> int:
    """Return the time limit in seconds from the option `timeout` in minutes, or 0 if unlimited."""
    minutes = cfg.get("timeout")
    if minutes is not None and minutes < 1:
        raise UsageError(f"-cfg timeout={minutes}: must be at least one minute")
    return int(minutes or 0) * 60


def check_replica(app_id: str, query: LogQuery, sizes: Mapping[str, int]) -> None:
    """Reject a query for a replica that does not exist, given the sizes of the job's roles."""
    if not 0 <= query.replica < sizes.get(query.role, 0):
        known = ", ".join(f"{role}/0 to {size - 1}" for role, size in sizes.items())
        raise no_replica(app_id, query, known)


def no_replica(app_id: str, query: LogQuery, known: str) -> UsageError:
    """Return the error for a replica that does not exist; `known` lists those that do."""
    return UsageError(
        f"{app_id} has no replica {query.role}/{query.replica}", hint=f"it has {known}"
    )


class Scheduler(Protocol):
    """Runs jobs. Errors meant for the user are RelightErrors, and a failed call leaves nothing
    behind.
    """

    name: str
    options: Sequence[Option] = ()
    capabilities: Capabilities = Capabilities()

    def affinity(self) -> int:
        """Return how suitable this scheduler is on this machine, for `-s auto`: 0 if it can't be
        used (no command, no daemon), 10 if it can, and 50 inside one of its jobs. Implementations
        wait at most 1 s for the network.
        """
        return 0

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        """Return the request for an app.

        Args:
            app: the app with its macros, which are substituted here.
            cfg: values for `options`, with defaults filled in and with the right types.
            app_id: a unique name, `NAME-RANDOM`; some schedulers assign their own.
        """

    def submit(self, request: Request) -> str:
        """Send a request; return this scheduler's id for the app, which contains no slash and does
        not end with a colon. Later calls receive only this id.
        """

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        """Return the statuses of the jobs that exist, using a single query."""

    def logs(self, app_id: str, query: LogQuery) -> Iterator[str]:
        """Return lines without line endings; with `follow`, continue until the replica is over."""

    def cancel(self, app_id: str) -> None:
        """Stop a job; do nothing if it is over."""

    def delete(self, app_id: str) -> None:
        """Stop a job and remove everything, including logs."""

    def list(self, cfg: Mapping[str, Any] = NOTHING, /) -> Sequence[JobSummary]:
        """Return this user's jobs, newest first; `cfg` has the values of `options` from the
        settings files, with defaults filled in.
        """

    def close(self) -> None:
        """Close connections. Jobs continue, unless `survives_caller` is false."""
        return
