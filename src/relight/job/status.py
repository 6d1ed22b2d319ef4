"""The status of a job, and of each of its replicas.

Properties that repeat a field have TorchX's names (nightly 2026-10).
"""

from collections.abc import Iterable
from typing import NamedTuple

from relight.base.errors import RelightError
from relight.core.status.charts import Progress
from relight.core.status.goodput import Account
from relight.core.status.preload_status import PreloadStatus
from relight.core.status.snapshot import Chart, RankUse
from relight.job.app import AppState

_SIGKILL, _SIGTERM = 9, 15  # Linux numbers, as this client may run on Windows, without SIGKILL
_STOPPED = {_SIGKILL: 1, _SIGTERM: 2}
"""Signals that end replicas after another one's failure; the less telling one is last."""


class ReplicaStatus(NamedTuple):
    """One replica. `exitcode` is None while unknown. `error` is its failure in one line.
    `last_line` is the last line of its output, `use` its resource usage, and `pid` its process on
    this machine, where the scheduler knows them. `topology` is the place of its node in the
    network, if ranks follow it.
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
        """`replica`."""
        return self.replica

    @property
    def hostname(self) -> str:
        """`host`."""
        return self.host


class RoleStatus(NamedTuple):
    """The replicas of one role."""

    role: str
    replicas: list[ReplicaStatus]


class AppStatus(NamedTuple):
    """A job. It has failed when one replica has failed, and is over when all are; `restarts` is
    None if unknown. `account` breaks down its time, `progress` is how far it is, and `charts` are
    its numbers over time, if known; `preload` says how far imports for restarts are, on this node.
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
        """`message`."""
        return self.message

    @property
    def num_restarts(self) -> int:
        """`restarts`, 0 if unknown."""
        return self.restarts or 0

    @property
    def ui_url(self) -> str | None:
        """`url`."""
        return self.url or None

    @property
    def roles(self) -> list[RoleStatus]:
        """`replicas`, by role."""
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
            AppStatusError: if it did not succeed, or is not over.
        """
        if self.state is not AppState.SUCCEEDED:
            raise AppStatusError(self)

    @property
    def exitcode(self) -> int:
        """The exit code that a command waiting for the job ends with."""
        if self.state is AppState.SUCCEEDED:
            return 0
        failed = [r.exitcode for r in by_cause(self.replicas) if r.exitcode]
        return (failed[0] if failed[0] > 0 else 128 - failed[0]) if failed else 1


class AppStatusError(RelightError):
    """A job that had to succeed has not; `status` is its status."""

    def __init__(self, status: AppStatus) -> None:
        why = f": {status.message}" if status.message else ""
        super().__init__(f"the job is {status.state.name}{why}")
        self.status = status
        self.exit_code = status.exitcode


def by_cause(replicas: Iterable[ReplicaStatus]) -> list[ReplicaStatus]:
    """Sort replicas; those probably stopped because of another one's failure come last."""

    def rank(replica: ReplicaStatus) -> tuple[bool, int]:
        code = replica.exitcode or 0
        number = -code if code < 0 else code - 128
        return replica.state is not AppState.FAILED, _STOPPED.get(number, 0)

    return sorted(replicas, key=rank)
