"""The interface of a scheduler: its methods, and a record of its capabilities.

`render` is free of side effects and only reads the inputs of a request (the user's name, a
version). `--dryrun` shows its result, and `submit` sends exactly that.
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
    """One run option, `-cfg name=value`. `kind` is one of str, int, float, bool, list, dict; a list
    is written `a;b`, a dict `k:v;k:v`. `choices` are the valid values, empty for any. `is_remote`
    marks a path on another machine, where `~` is that machine's home directory.

    Three names have a meaning to relight: `workspace` (`--workspace`: directories to copy for the
    job), `sync` (the working directory is copied), `job_dir` (where a job runs if not here).
    """

    name: str
    kind: type
    default: Any
    help: str
    required: bool = False
    choices: tuple[str, ...] = ()
    is_remote: bool = False


class Capabilities(NamedTuple):
    """Which parts of an app a scheduler supports. Unsupported parts are refused or noted before
    submission, never ignored silently. With `files`, replicas see the files of this machine, and a
    script that is not here is refused.
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
    """A request to the scheduler: `body` is complete and can be written as JSON. `text` is for
    people (a script, a list of commands). `notes` list the parts of the app that this scheduler
    ignores. `app_id` is the id that `submit` will return, if known in advance; it identifies a job
    whose submission was killed.
    """

    scheduler: str
    app: AppDef
    cfg: Mapping[str, Any]
    body: Mapping[str, Any]
    text: str
    notes: tuple[str, ...] = ()
    app_id: str = ""


class JobSummary(NamedTuple):
    """One line of a list of jobs. `message` is the reason of a failure, if known."""

    app_id: str
    state: AppState
    name: str
    submitted: str = ""
    message: str = ""


class LogQuery(NamedTuple):
    """Which lines of which replica. `stream` is stdout, stderr or combined."""

    role: str
    replica: int
    follow: bool = False
    since: datetime | None = None
    until: datetime | None = None
    stream: str = "combined"


def local_time(milliseconds: object) -> str:
    """Format a time since 1970 in local time; return an empty string if it is not a number."""
    if not isinstance(milliseconds, int | float):
        return ""

    return datetime.fromtimestamp(milliseconds / 1000).astimezone().isoformat(timespec="seconds")


def check_replica(app_id: str, query: LogQuery, sizes: Mapping[str, int]) -> None:
    """Reject a query of a replica that a job lacks, given the sizes of its roles."""
    if not 0 <= query.replica < sizes.get(query.role, 0):
        known = ", ".join(f"{role}/0 to {size - 1}" for role, size in sizes.items())
        raise no_replica(app_id, query, known)


def no_replica(app_id: str, query: LogQuery, known: str) -> UsageError:
    """Return the error for a replica that a job does not have; `known` lists those that it has."""
    return UsageError(
        f"{app_id} has no replica {query.role}/{query.replica}", hint=f"it has {known}"
    )


class Scheduler(Protocol):
    """Runs jobs. All errors for the user are RelightErrors; a failed call leaves nothing behind."""

    name: str
    options: Sequence[Option] = ()
    capabilities: Capabilities = Capabilities()

    def affinity(self) -> int:
        """Return how well this scheduler suits this machine, for `-s auto`: 0 if it can't be used
        (no command, no daemon), 10 if it can, 50 inside one of its jobs. It waits at most 1 s
        for the network.
        """
        return 0

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        """Return the request of an app.

        Args:
            app: the app with its macros, which this substitutes.
            cfg: values for `options`, complete with defaults and of the right types.
            app_id: a unique name, `NAME-RANDOM`; some schedulers assign their own.
        """

    def submit(self, request: Request) -> str:
        """Send a request; return this scheduler's id of the app, a word without slash that does not
        end with a colon. Later calls know nothing but the id.
        """

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        """Return the statuses of those jobs that exist, with one query for all."""

    def logs(self, app_id: str, query: LogQuery) -> Iterator[str]:
        """Return lines without line ends; with `follow`, until the replica is over."""

    def cancel(self, app_id: str) -> None:
        """Stop a job; do nothing if it is over."""

    def delete(self, app_id: str) -> None:
        """Stop a job and remove everything, including logs."""

    def list(self, cfg: Mapping[str, Any] = NOTHING, /) -> Sequence[JobSummary]:
        """Return this user's jobs, newest first; `cfg` are the values of `options` in the settings
        files, complete with defaults.
        """

    def close(self) -> None:
        """Close connections. Jobs continue, unless `survives_caller` is false."""
        return
