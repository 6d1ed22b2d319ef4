"""The status of a job, and of each of its replicas."""

from collections.abc import Iterable
from typing import NamedTuple

from relight.core.status.goodput import Account
from relight.core.status.snapshot import RankUse
from relight.job.app import AppState

_SIGKILL, _SIGTERM = 9, 15  # numbers of Linux: this client may run on Windows, without SIGKILL
_STOPPED = {_SIGKILL: 1, _SIGTERM: 2}
"""Signals that end replicas when another one has failed, the less telling one last."""


class ReplicaStatus(NamedTuple):
    """One replica. `exitcode` is None while unknown. `error` is its failure in one line;
    `last_line` is the last that it printed, and `use` is what it has used, where the scheduler
    knows them.
    """

    role: str
    replica: int
    state: AppState
    host: str = ""
    exitcode: int | None = None
    error: str = ""
    last_line: str = ""
    use: RankUse | None = None


class AppStatus(NamedTuple):
    """A job. It has failed when one replica has failed, and is over when all are; `restarts` is
    None if unknown. `account` says where its time has gone, where that is known.
    """

    state: AppState
    message: str = ""
    replicas: tuple[ReplicaStatus, ...] = ()
    restarts: int | None = None
    url: str = ""
    account: Account | None = None

    @property
    def exitcode(self) -> int:
        """The exit code that a command waiting for the job ends with."""
        if self.state is AppState.SUCCEEDED:
            return 0
        failed = [r.exitcode for r in by_cause(self.replicas) if r.exitcode]
        return (failed[0] if failed[0] > 0 else 128 - failed[0]) if failed else 1


def by_cause(replicas: Iterable[ReplicaStatus]) -> list[ReplicaStatus]:
    """Return replicas in another order: those that were probably stopped because another one has
    failed come last.
    """

    def rank(replica: ReplicaStatus) -> tuple[bool, int]:
        code = replica.exitcode or 0
        number = -code if code < 0 else code - 128
        return replica.state is not AppState.FAILED, _STOPPED.get(number, 0)

    return sorted(replicas, key=rank)
