"""Defines the scheduler interface, and how a scheduler declares its capabilities.

`render` has no side effects, and only reads the data needed for a request, such as the user's name
or a version. `--dryrun` shows its result, and `submit` sends exactly that.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from typing import Any, NamedTuple, Protocol, TypeVar

from relight.base.errors import UsageError
from relight.job import macros
from relight.job.app import NOTHING, AppDef, AppState
from relight.job.status import AppStatus as AppStatus
from relight.job.status import ReplicaStatus as ReplicaStatus
from relight.job.status import by_cause as by_cause

T = TypeVar("T")
_JOB = "RELIGHT_JOB_ID"


class Option(NamedTuple):
    """A run option (`-cfg name=value`). The `kind` field is one of str, int, float, bool, list and
    dict. A list is written as `a;b`, and a dict as `k:v;k:v`. The `choices` field contains the
    valid values, or is empty if any value is valid. The `is_remote` field indicates that the value
    is a path on another machine, where `~` is the home directory on that machine.

    Three names have a special meaning: `workspace` (the directories to copy for the job, also set
    by `--workspace`), `sync` (whether the working directory is copied) and `job_dir` (the job's
    working directory, if it isn't the current directory).
    """

    name: str
    kind: type
    default: Any
    help: str
    required: bool = False
    choices: tuple[str, ...] = ()
    is_remote: bool = False


class Locks(NamedTuple):
    """The names of the options that the site's file locks, and the values that it sets. A
    scheduler whose options or apps can set the same thing in another way has a method
    `bypasses(app, cfg, locks)` that yields what does so, and the name of the locked option.
    """

    names: Collection[str] = ()
    values: Mapping[str, Any] = NOTHING

    def sets(self, name: str, cfg: Mapping[str, Any]) -> bool:
        """Return whether the value of an option is the site's own."""
        return name in self.values and self.values[name] == cfg.get(name)


class Capabilities(NamedTuple):
    """The parts of an app that a scheduler supports. Unsupported parts are rejected or reported in
    a note before submission, but never silently ignored. If `files` is true, replicas can access
    this machine's files, and a script that does not exist here is rejected. If `pushes_images` is
    true, `--workspace` is added to the role's image, which is pushed to the repository in the
    scheduler's option `image_repo`.
    """

    retries: bool = False
    mounts: bool = False
    resources: bool = False
    elastic: bool = False
    images: bool = False
    survives_caller: bool = True
    since: bool = False
    files: bool = False
    pushes_images: bool = False


class Request(NamedTuple):
    """A request to the scheduler. The `body` field is complete and can be serialized as JSON.
    The `text` field is its human-readable form, such as a script or a list of commands. The `notes`
    field lists the parts of the app that this scheduler ignores. The `app_id` field is the id that
    `submit` will return, if known in advance. It identifies the job if the submitting process is
    killed.
    """

    scheduler: str
    app: AppDef
    cfg: Mapping[str, Any]
    body: Mapping[str, Any]
    text: str
    notes: tuple[str, ...] = ()
    app_id: str = ""


class JobSummary(NamedTuple):
    """An entry in a list of jobs. The `message` field is the reason why the job failed, or
    empty.
    """

    app_id: str
    state: AppState
    name: str
    submitted: str = ""
    message: str = ""


class LogQuery(NamedTuple):
    """A selection of log lines from one replica. The `stream` field is stdout, stderr or
    combined.
    """

    role: str
    replica: int
    follow: bool = False
    since: datetime | None = None
    until: datetime | None = None
    stream: str = "combined"


def client_library(scheduler: str, package: str, install: str, *modules: str) -> list[Any]:
    """Import modules of a scheduler's client library.

    Args:
        scheduler: the scheduler's name, for messages.
        package: the package that contains the first module.
        install: the packages to install, as arguments for pip.
        modules: the modules' names.

    Raises:
        UsageError: if a module is missing.
    """
    try:
        return [import_module(name) for name in modules]
    except ImportError:
        raise UsageError(
            f"the {scheduler} scheduler requires the {package} package",
            hint=f"pip install {install}, in relight's environment",
        ) from None


DEVICE_FILES = {
    "vpc.amazonaws.com/efa": "/dev/infiniband/uverbs",
    "aws.amazon.com/neurondevice": "/dev/neuron",
}
"""The device files for a named resource's devices, without their numbers, as in TorchX."""


def local_time(milliseconds: object) -> str:
    """Format a number of milliseconds since 1970 as local time, or return an empty string for any
    other value.
    """
    if not isinstance(milliseconds, int | float):
        return ""
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().isoformat(timespec="seconds")


def with_job_id(app: AppDef, app_id: str) -> AppDef:
    """Return the app with its full job id in RELIGHT_JOB_ID, for a scheduler whose ids differ from
    the macro `app_id`. The id in TORCHX_JOB_ID keeps the form that it has in TorchX.
    """
    roles = [
        replace(role, env={**role.env, _JOB: role.env[_JOB].replace(macros.app_id, app_id)})
        if _JOB in role.env
        else role
        for role in app.roles
    ]
    return replace(app, roles=roles)


def time_limit_s(cfg: Mapping[str, Any]) -> int:
    """Convert the `timeout` option from minutes to seconds. Return 0 without a limit."""
    minutes = cfg.get("timeout")
    if minutes is not None and minutes < 1:
        raise UsageError(f"-cfg timeout={minutes}: must be at least one minute")
    return int(minutes or 0) * 60


def check_replica(app_id: str, query: LogQuery, sizes: Mapping[str, int]) -> None:
    """Reject a query for a replica that does not exist. The argument `sizes` contains the number of
    replicas in each role.
    """
    if not 0 <= query.replica < sizes.get(query.role, 0):
        known = ", ".join(f"{role}/0 to {size - 1}" for role, size in sizes.items())
        raise no_replica(app_id, query, known)


def find_replica(app_id: str, query: LogQuery, replicas: Mapping[tuple[str, int], T]) -> T:
    """Return the replica that a query is for. The argument `replicas` contains all replicas, by
    their roles and numbers.

    Raises:
        UsageError: if there is no such replica.
    """
    key = (query.role, query.replica)
    if key not in replicas:
        known = ", ".join(f"{role}/{number}" for role, number in replicas)
        raise no_replica(app_id, query, known)
    return replicas[key]


def no_replica(app_id: str, query: LogQuery, known: str) -> UsageError:
    """Return the error for a replica that does not exist. The argument `known` lists the replicas
    that do.
    """
    return UsageError(
        f"{app_id} has no replica {query.role}/{query.replica}", hint=f"it has {known}"
    )


class Scheduler(Protocol):
    """The interface that every scheduler implements. A scheduler runs jobs. Errors intended for the
    user are RelightErrors. If a call fails, it must not leave anything behind.
    """

    name: str
    options: Sequence[Option] = ()
    capabilities: Capabilities = Capabilities()

    def affinity(self) -> int:
        """Return how suitable this scheduler is on this machine, for `-s auto`. Return 0 if the
        scheduler can't be used (for example, because its command or daemon is missing), 10 if it
        can be used, and 50 inside one of its jobs. Implementations may wait at most 1 s for the
        network.
        """
        return 0

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        """Return the request for an app.

        Args:
            app: the app. This method substitutes its macros.
            cfg: a value of the right type for each of `options`, with defaults filled in.
            app_id: a unique name of the form `NAME-RANDOM`. Some schedulers assign their own ids
                instead.
        """

    def submit(self, request: Request) -> str:
        """Send a request, and return the id that this scheduler uses for the app. The id doesn't
        contain a slash and doesn't end with a colon. Later calls receive only this id.
        """

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        """Return the status of each job that exists, using a single query."""

    def logs(self, app_id: str, query: LogQuery) -> Iterator[str]:
        """Return log lines without line endings. With `follow`, keep returning new lines until the
        replica has finished.
        """

    def cancel(self, app_id: str) -> None:
        """Stop a job, or do nothing if it is over."""

    def delete(self, app_id: str) -> None:
        """Stop a job, and remove everything that belongs to it, including its logs."""

    def list(self, cfg: Mapping[str, Any] = NOTHING, /) -> Sequence[JobSummary]:
        """Return this user's jobs, newest first. `cfg` contains the values of `options` from the
        settings files, with defaults filled in.
        """

    def close(self) -> None:
        """Close all connections. Jobs keep running, unless `survives_caller` is false."""
        return
