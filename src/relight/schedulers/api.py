"""What a scheduler is: one file, the same verbs, and a record of what it can.

`render` is pure but for reading what a request needs (the user's name, a version): it has no side
effect, and `--dryrun` shows its result. `submit` sends exactly that.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from relight.job.app import AppDef, AppState
from relight.job.status import AppStatus as AppStatus
from relight.job.status import ReplicaStatus as ReplicaStatus

if TYPE_CHECKING:
    from datetime import datetime  # 1 ms, and only logs need it


class Option(NamedTuple):
    """One run option, `-cfg name=value`. `kind` is one of str, int, float, bool, list, dict; a list
    is written `a;b`, a dict `k:v;k:v`. `choices` are the valid values, empty for any.
    """

    name: str
    kind: type
    default: Any
    help: str
    required: bool = False
    choices: tuple[str, ...] = ()


class Capabilities(NamedTuple):
    """What a scheduler does with the parts of an app. What it does not do is refused or noted
    before anything is sent, never ignored in silence.
    """

    retries: bool = False
    mounts: bool = False
    resources: bool = False
    elastic: bool = False
    images: bool = False
    survives_caller: bool = True
    since: bool = False


class Request(NamedTuple):
    """What would be sent: `body` is JSON-able and complete; `text` is what people read (a script, a
    list of commands); `notes` says what of the app has no effect here.
    """

    scheduler: str
    app: AppDef
    cfg: Mapping[str, Any]
    body: Mapping[str, Any]
    text: str
    notes: tuple[str, ...] = ()


class Listed(NamedTuple):
    """One line of a list of jobs."""

    app_id: str
    state: AppState
    name: str
    submitted: str = ""


class LogQuery(NamedTuple):
    """Which lines of which replica. `streams` is stdout, stderr or combined."""

    role: str
    replica: int
    follow: bool = False
    since: "datetime | None" = None
    until: "datetime | None" = None
    stream: str = "combined"


class Scheduler(Protocol):
    """One way to run jobs. All errors for the user are RelightErrors; nothing half done is left."""

    name: str
    options: Sequence[Option]
    capabilities: Capabilities

    def affinity(self) -> int:
        """Return how likely jobs are meant for this scheduler here, for `-s auto`: 0 it can't be
        used (no command, no daemon), 10 it can, 50 we are inside of it. Quick, no network wait
        above 1 s.
        """

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        """Return the request of an app.

        Args:
            app: macros are still in it; this substitutes them.
            cfg: values for `options`, complete with defaults and of the right types.
            app_id: a unique name that may be used, `NAME-RANDOM`; some schedulers give their own.
        """

    def submit(self, request: Request) -> str:
        """Send a request; return the id of the app with this scheduler."""

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        """Return the statuses of jobs that are known, with one query for all."""

    def logs(self, app_id: str, query: LogQuery) -> Iterator[str]:
        """Return lines without their ends; with `follow`, until the replica is over."""

    def cancel(self, app_id: str) -> None:
        """Stop a job; nothing if it is over."""

    def delete(self, app_id: str) -> None:
        """Stop it and forget all of it, logs included."""

    def list(self) -> Sequence[Listed]:
        """Return this user's jobs, newest first."""

    def close(self) -> None:
        """Give up connections. Jobs run on, unless `survives_caller` is false."""
