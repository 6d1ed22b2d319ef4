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


_NONE = "<NONE>"
"""TorchX's value for the lack of an error."""


class _ReplicaFields(NamedTuple):
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
    address: str = ""


class ReplicaStatus(_ReplicaFields):
    """The status of one replica. `exitcode` is None while unknown. `error` describes the replica's
    failure in one line. If the scheduler knows them, `last_line` is the last line of the replica's
    output, `use` is its resource usage, and `pid` is its process on this machine.
    `topology` is its node's location in the network, if that determines the order of ranks.
    `address` is the host's address if it differs from `host`.
    """

    __slots__ = ()

    def __new__(
        cls,
        role: str,
        replica: int = 0,
        state: AppState = AppState.UNKNOWN,
        host: str = "",
        exitcode: int | None = None,
        error: str = "",
        last_line: str = "",
        use: RankUse | None = None,
        pid: int = 0,
        topology: str = "",
        address: str = "",
        *,
        id: int = 0,
        hostname: str = "",
        structured_error_msg: str = "",
        hostaddr: str | None = None,
    ) -> "ReplicaStatus":
        """Accept TorchX's field names in addition to relight's."""
        return super().__new__(
            cls,
            role,
            replica or id,
            state,
            host or hostname,
            exitcode,
            error or _given(structured_error_msg),
            last_line,
            use,
            pid,
            topology,
            address or hostaddr or "",
        )

    @property
    def id(self) -> int:
        """TorchX's name for `replica`."""
        return self.replica

    @property
    def hostname(self) -> str:
        """TorchX's name for `host`."""
        return self.host

    @property
    def hostaddr(self) -> str:
        """The host's address or, if unknown, its name."""
        return self.address or self.host

    @property
    def structured_error_msg(self) -> str:
        """TorchX's name for `error`. If empty, `<NONE>`."""
        return self.error or _NONE


class RoleStatus(NamedTuple):
    """The replicas of one role."""

    role: str
    replicas: list[ReplicaStatus]


class _AppFields(NamedTuple):
    state: AppState
    message: str = ""
    replicas: tuple[ReplicaStatus, ...] = ()
    restarts: int | None = None
    url: str = ""
    account: Account | None = None
    preload: PreloadStatus | None = None
    progress: Progress | None = None
    charts: tuple[Chart, ...] = ()
    error: str = ""


class AppStatus(_AppFields):
    """The status of a job. A job has failed once any replica has failed, and it is over once all
    replicas are over. `account` shows how the job's time was spent, `progress` is how far the job
    has progressed, and `charts` contains its metrics over time. `preload` is the progress of
    preloading imports for restarts on this node. `restarts`, `account` and `progress` are None if
    unknown. `error` describes the job's failure; if empty, see the replicas' errors.
    """

    __slots__ = ()

    def __new__(
        cls,
        state: AppState,
        message: str = "",
        replicas: Iterable[ReplicaStatus] = (),
        restarts: int | None = None,
        url: str = "",
        account: Account | None = None,
        preload: PreloadStatus | None = None,
        progress: Progress | None = None,
        charts: tuple[Chart, ...] = (),
        error: str = "",
        *,
        msg: str = "",
        num_restarts: int | None = None,
        structured_error_msg: str = "",
        ui_url: str | None = None,
        roles: Iterable[RoleStatus] = (),
    ) -> "AppStatus":
        """Accept TorchX's field names in addition to relight's."""
        return super().__new__(
            cls,
            state,
            message or msg,
            tuple(replicas) or tuple(each for role in roles for each in role.replicas),
            num_restarts if restarts is None else restarts,
            url or ui_url or "",
            account,
            preload,
            progress,
            charts,
            error or _given(structured_error_msg),
        )

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
    def structured_error_msg(self) -> str:
        """The first error of the job or a replica, or `<NONE>`."""
        errors = (self.error, *(each.error for each in self.replicas))
        return next(filter(None, errors), _NONE)

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
    """Raised if a job did not succeed. `status` is the job's status."""

    def __init__(self, status: AppStatus) -> None:
        why = f": {status.message}" if status.message else ""
        super().__init__(f"the job is {status.state.name}{why}")
        self.status = status
        self.exit_code = status.exitcode


def _given(error: str) -> str:
    return "" if error == _NONE else error


def by_cause(replicas: Iterable[ReplicaStatus]) -> list[ReplicaStatus]:
    """Sort replicas so that those that were probably stopped because another replica failed come
    last.
    """

    def rank(replica: ReplicaStatus) -> tuple[bool, int]:
        code = replica.exitcode or 0
        number = -code if code < 0 else code - 128
        return replica.state is not AppState.FAILED, _STOPPED.get(number, 0)

    return sorted(replicas, key=rank)
