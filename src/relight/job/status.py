"""How a job is, and each of its replicas."""

from typing import NamedTuple

from relight.job.app import AppState


class ReplicaStatus(NamedTuple):
    """One replica. `exitcode` is None while it is not known. `error` is its failure in one line."""

    role: str
    replica: int
    state: AppState
    host: str = ""
    exitcode: int | None = None
    error: str = ""


class AppStatus(NamedTuple):
    """A job. It fails when one replica has failed, and is over when all are; `restarts` is None if
    not known.
    """

    state: AppState
    message: str = ""
    replicas: tuple[ReplicaStatus, ...] = ()
    restarts: int | None = None
    url: str = ""

    @property
    def exitcode(self) -> int:
        """The exit code that a command waiting for the job ends with."""
        if self.state is AppState.SUCCEEDED:
            return 0
        # What was stopped because something else had failed comes last.
        first = sorted(self.replicas, key=lambda r: r.state is not AppState.FAILED)
        failed = [r.exitcode for r in first if r.exitcode]
        return (failed[0] if failed[0] > 0 else 128 - failed[0]) if failed else 1
