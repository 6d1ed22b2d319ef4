"""A Job of Volcano, as TorchX makes it: its pods are scheduled together, in a queue of Volcano.

Unlike that of TorchX it has one task for each role, not for each replica: the object stays small.
Source: the API batch.volcano.sh/v1alpha1 of Volcano 1.16.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from relight.job.app import AppDef, AppState, Role
from relight.schedulers.kubernetes import pods
from relight.schedulers.kubernetes.kind import Verdict, least
from relight.schedulers.kubernetes.names import label_name
from relight.schedulers.kubernetes.pods import MeetingPlace
from relight.schedulers.kubernetes.store import Object, ObjectKind

INDEX = "volcano.sh/task-index"
"""The label of a pod with its number in the task."""
_PHASES = {
    "Completed": AppState.SUCCEEDED,
    "Aborted": AppState.CANCELLED,
    "Terminated": AppState.FAILED,
    "Failed": AppState.FAILED,
}


class Volcano:
    """`-cfg kind=volcano`."""

    name = "volcano"
    resource = ObjectKind("batch.volcano.sh/v1alpha1", "Job", "jobs")
    index = f"metadata.labels['{INDEX}']"
    label = INDEX
    starts: Mapping[str, str] = MappingProxyType(
        {"RELIGHT_REQUEUES": "metadata.annotations['volcano.sh/job-retry-count']"}
    )
    container = "main"
    has_service = True

    def stem(self, name: str, role: Role, _is_only: bool, /) -> str:
        """Return what Volcano puts before the number of a pod."""
        return f"{name}-{label_name(role.name)}"

    def check(self, app: AppDef, cfg: Mapping[str, Any]) -> None:
        """Accept every app."""

    def specs(
        self, app: AppDef, cfg: Mapping[str, Any], place: MeetingPlace
    ) -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
        """Yield one Job of Volcano.

        A pod that is preempted or whose node is lost is made again by Volcano itself. An error of
        the user's program ends the Job, or restarts all of it up to `max_retries` times.
        """
        retries = min((role.max_retries for role in app.roles), default=0)
        needed = sum(map(least, app.roles))
        failed = "RestartJob" if retries > 0 else "TerminateJob"
        spec: dict[str, Any] = {
            "schedulerName": "volcano",
            "queue": cfg.get("queue") or "default",
            "minAvailable": needed,
            "maxRetry": max(0, retries),
            "plugins": {"env": []},
            "policies": [{"event": "PodFailed", "action": failed}],
            "tasks": [_task(app, role, cfg, place) for role in app.roles],
        }
        if needed < sum(role.num_replicas for role in app.roles):
            spec["minSuccess"] = needed
        if cfg.get("priority_class"):
            spec["priorityClassName"] = cfg["priority_class"]
        yield place.name, {}, spec

    def roles(self, each: Object) -> dict[str, int]:
        """Return the roles of a Job."""
        return {
            task["template"]["metadata"]["labels"].get(pods.ROLE, ""): task.get("replicas") or 0
            for task in each["spec"].get("tasks") or ()
        }

    def verdict(self, each: Object) -> Verdict:
        """Return what the phase of a Job says."""
        state = (each.get("status") or {}).get("state") or {}
        return _PHASES.get(state.get("phase") or ""), str(state.get("message") or "")

    def cancelling(self, each: Object) -> tuple[str, list[dict[str, Any]]]:
        """Abort a Job, as TorchX does."""
        aborted = {"phase": "Aborted", "message": "it was cancelled"}
        if "status" in each:
            return "status", [{"op": "add", "path": "/status/state", "value": aborted}]
        return "status", [{"op": "add", "path": "/status", "value": {"state": aborted}}]


def _task(app: AppDef, role: Role, cfg: Mapping[str, Any], place: MeetingPlace) -> dict[str, Any]:
    return {
        "name": label_name(role.name),
        "replicas": role.num_replicas,
        "minAvailable": least(role),
        "template": pods.template(app, role, cfg, place),
    }
