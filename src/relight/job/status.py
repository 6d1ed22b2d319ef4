"""Defines the status of a job and its replicas.

Some properties duplicate a field under the name that it has in TorchX (nightly 2026-10).
"""

from collections.abc import Iterable
from typing import NamedTuple

from relight.base.errors import RelightError
from relight.core.status.charts import Progress
from relight.core.status.goodput import Account
from relight.core.status.preload_status import PreloadStatus
from relight.core.status.snapshot import Chart, RankUse
from relight.job.app import AppState

_SIGKILL, _SIGTERM = 9, 15  # Linux numbers; Windows clients lack SIGKILL
_STOPPED = {_SIGKILL: 1, _SIGTERM: 2}
"""Signals that end the remaining replicas after one replica has failed. The less informative signal
comes last.
"""


class ReplicaStatus(NamedTuple):
    """The status of one replica. `exitcode` is None as long as it is unknown. `error` describes the
    replica's failure in one line. If the scheduler knows them, `last_line` is the last line of the
    replica's output, `use` is its resource usage, and `pid` is its process on this machine.
    `topology` is its node's location in the network, if that determines the order of ranks.
    """

    role: str
    replica: int
    state: AppState
    host: str = ""
    exitcode: int | None = None
    error: str = ""
    last_line: str = ""
    use: RankUse | None = None
    pid: int = 0
    topology: str = ""

    @property
    def id(self) -> int:
        """TorchX's name for `replica`."""
        return self.replica

    @property
    def hostname(self) -> str:
        """TorchX's name for `host`."""
        return self.host


class RoleStatus(NamedTuple):
    """The replicas of one role."""

    role: str
    replicas: list[ReplicaStatus]


class AppStatus(NamedTuple):
    """The status of a job. A job has failed once any replica has failed, and it is over once all
    replicas are over. `account` shows how the job's time was spent, `progress` is how far the job
    has progressed, and `charts` contains its metrics over time. `preload` is the progress of
    preloading imports for restarts on this node. `restarts`, `account` and `progress` are None if
    unknown.
    """

    state: AppState
    message: str = ""
    replicas: tuple[ReplicaStatus, ...] = ()
    restarts: int | None = None
    url: str = ""
    account: Account | None = None
    preload: PreloadStatus | None = None
    progress: Progress | None = None
    charts: tuple[Chart, ...] = ()

    @property
    def msg(self) -> str:
        """TorchX's name for `message`."""
        return self.message

    @property
    def num_restarts(self) -> int:
        """TorchX's name for `restarts`, or 0 if unknown."""
        return self.restarts or 0

    @property
    def ui_url(self) -> str | None:
        """TorchX's name for `url`."""
        return self.url or None

    @property
    def roles(self) -> list[RoleStatus]:
        """The replicas, grouped by role."""
        found: dict[str, list[ReplicaStatus]] = {}
        for each in self.replicas:
            found.setdefault(each.role, []).append(each)
        return [RoleStatus(*each) for each in found.items()]

    def is_terminal(self) -> bool:
        """Return whether the state is final."""
        return self.state.is_over

    def raise_for_status(self) -> None:
        """Raise an error unless the job has succeeded.

        Raises:
            AppStatusError: if the job did not succeed, or is not over.
        """
        if self.state is not AppState.SUCCEEDED:
            raise AppStatusError(self)

    @property
    def exitcode(self) -> int:
        """The exit code for a command that waits for the job."""
        if self.state is AppState.SUCCEEDED:
            return 0
        failed = [r.exitcode for r in by_cause(self.replicas) if r.exitcode]
        return (failed[0] if failed[0] > 0 else 128 - failed[0]) if failed else 1


class AppStatusError(RelightError):
    """Raised when a job did not succeed as expected. `status` is the job's status."""

    def __init__(self, status: AppStatus) -> None:
        why = f": {status.message}" if status.message else ""
        super().__init__(f"the job is {status.state.name}{why}")
        self.status = status
        self.exit_code = status.exitcode


def by_cause(replicas: Iterable[ReplicaStatus]) -> list[ReplicaStatus]:
    """Sort replicas so that those that were probably stopped because another replica failed come
    last.
    """

    def rank(replica: ReplicaStatus) -> tuple[bool, int]:
        code = replica.exitcode or 0
        number = -code if code < 0 else code - 128
        return replica.state is not AppState.FAILED, _STOPPED.get(number, 0)

    return sorted(replicas, key=rank)
