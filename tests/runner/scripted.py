"""A scheduler that follows a test's script and records its requests."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relight.base.errors import MachineError, UsageError
from relight.job import macros
from relight.job.app import AppDef, AppState
from relight.schedulers.api import (
    AppStatus,
    Capabilities,
    JobSummary,
    LogQuery,
    Option,
    ReplicaStatus,
    Request,
)


class Scripted:
    """Numbers jobs 1, 2, …; `states` are the successive states of a job, one per query."""

    name = "scripted"
    options = (
        Option("queue", str, "main", "the queue"),
        Option("secret", str, None, "for the queue"),
    )
    capabilities = Capabilities(survives_caller=True, since=True, files=True)

    def __init__(self) -> None:
        self.stop_signal: list[Any] = []
        self.jobs: dict[str, Request] = {}
        self.states: list[AppState] = [AppState.RUNNING]
        self.others: list[JobSummary] = []
        self.lines: list[str] = []
        self.refuses: BaseException | None = None
        self.is_out_of_reach = False
        self.refused: set[str] = set()
        self.liking = 0

    def affinity(self) -> int:
        return self.liking

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        values = {"app_id": app_id, "rank0_env": "HOST", "img_root": "", "replica_id": "0"}
        roles = [macros.substitute(role, values) for role in app.roles]
        commands = [[role.entrypoint, *role.args] for role in roles]
        text = "\n".join(" ".join(command) for command in commands)
        return Request(self.name, app, cfg, {"commands": commands}, text, ("scripted only",))

    def submit(self, request: Request) -> str:
        if self.refuses is not None:
            raise self.refuses
        app_id = str(len(self.jobs) + 1)
        self.jobs[app_id] = request
        return app_id

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        self.stop_signal.append(("status", tuple(app_ids)))
        if self.is_out_of_reach:
            raise MachineError("scripted does not answer")
        if refused := self.refused & set(app_ids):
            raise UsageError(f"the cluster of {refused} is gone")
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        replica = ReplicaStatus("echo", 0, state, "host", 3 if state is AppState.FAILED else None)
        return {id: AppStatus(state, "", (replica,)) for id in app_ids if id in self.jobs}

    def logs(self, app_id: str, query: LogQuery) -> Iterator[str]:
        self.stop_signal.append(("logs", app_id, query))
        if app_id not in self.jobs:
            raise UsageError(f"no job {app_id}")
        return iter(self.lines)

    def cancel(self, app_id: str) -> None:
        self.stop_signal.append(("cancel", app_id))
        self.states = [AppState.CANCELLED]

    def delete(self, app_id: str) -> None:
        self.stop_signal.append(("delete", app_id))
        self.jobs.pop(app_id, None)

    def list(self, cfg: Mapping[str, Any]) -> Sequence[JobSummary]:
        self.stop_signal.append(("list", dict(cfg)))
        return self.others

    def close(self) -> None:
        self.stop_signal.append("close")


ONLY = Scripted()


def make() -> Scripted:
    """Return the scheduler; tests replace `ONLY`."""
    return ONLY
