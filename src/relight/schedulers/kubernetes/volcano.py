"""A Volcano Job, whose pods are scheduled together in a Volcano queue, as in TorchX.

Unlike TorchX's, it has one task per role instead of one per replica, which keeps the object small.
Source: the batch.volcano.sh/v1alpha1 API in Volcano 1.16 and, for its behaviour, the controller in
pkg/controllers/job.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from relight.base.errors import EXIT_PREEMPTED
from relight.job import launcher_file
from relight.job.app import AppDef, AppState, Role
from relight.schedulers.api import time_limit_s
from relight.schedulers.kubernetes import pods
from relight.schedulers.kubernetes.kind import Maker, Verdict, least, time_to_live
from relight.schedulers.kubernetes.names import label_name
from relight.schedulers.kubernetes.pods import MeetingPlace
from relight.schedulers.kubernetes.store import Object, ObjectKind

_ENDED_FROM_OUTSIDE = (EXIT_PREEMPTED, 143)
"""Agent exit codes in an evicted pod: SIGTERM, with and without a saved checkpoint."""
_RESTARTS = 1000
"""Maximum number of evictions for a job without retries. There is a maximum because Volcano can't
express "unlimited".
"""
_PLUGINS = {
    "env": [],
    # The plug-in svc provides host names and the Service through which pods find each other. Unlike
    # the Kubernetes Job controller, Volcano does not give pods a host name without it (OnPodCreate
    # in plugins/svc). A NetworkPolicy is an option for all kinds (`-cfg network_policy`).
    "svc": ["--publish-not-ready-addresses", "--disable-network-policy"],
}
INDEX = "volcano.sh/task-index"
"""The pod label with the pod's number in the task."""
_PHASES = {
    "Completed": AppState.SUCCEEDED,
    "Aborted": AppState.CANCELLED,
    "Terminated": AppState.FAILED,
    "Failed": AppState.FAILED,
}


class Volcano:
    """`-cfg kind=volcano`."""

    name = pods.VOLCANO
    resource = ObjectKind("batch.volcano.sh/v1alpha1", "Job", "jobs")
    index = f"metadata.labels['{INDEX}']"
    label = INDEX
    starts: Mapping[str, str] = MappingProxyType(
        {"RELIGHT_REQUEUES": "metadata.annotations['volcano.sh/job-retry-count']"}
    )
    container = "main"
    has_service = False  # the plug-in svc creates it

    def stem(self, name: str, role: Role, _is_only: bool, /) -> str:
        """Return the part of a pod's name that precedes the number."""
        return f"{name}-{label_name(role.name)}"

    def check(self, app: AppDef, cfg: Mapping[str, Any]) -> None:
        """Accept every app."""

    def specs(self, app: AppDef, cfg: Mapping[str, Any], place: MeetingPlace) -> Iterator[Maker]:
        """Yield one Volcano Job.

        Volcano fails a Job at restart number maxRetry (restartingUpdateStatus), so with TorchX's
        maxRetry = max_retries the last retry never runs.
        """
        retries = min((role.max_retries for role in app.roles), default=0)
        needed = sum(map(least, app.roles))
        spec: dict[str, Any] = {
            "schedulerName": cfg.get("scheduler") or pods.VOLCANO,
            "queue": cfg.get("queue") or "default",
            "minAvailable": needed,
            "maxRetry": retries + 1 if retries > 0 else _RESTARTS,
            "plugins": _PLUGINS,
            "policies": _policies(app, retries),
            "tasks": [_task(app, role, cfg, place) for role in app.roles],
            **time_to_live(cfg),
        }
        if needed < sum(role.num_replicas for role in app.roles):
            spec["minSuccess"] = needed
        if cfg.get("priority_class"):
            spec["priorityClassName"] = cfg["priority_class"]
        yield Maker(place.name, {}, spec)

    def roles(self, each: Object) -> dict[str, int]:
        """Return a Job's roles."""
        return {
            task["template"]["metadata"]["labels"].get(pods.ROLE, ""): task.get("replicas") or 0
            for task in each["spec"].get("tasks") or ()
        }

    def verdict(self, each: Object) -> Verdict:
        """Derive the verdict from a Job's phase."""
        state = (each.get("status") or {}).get("state") or {}
        return _PHASES.get(state.get("phase") or ""), str(state.get("message") or "")

    def cancelling(self, each: Object) -> tuple[str, list[dict[str, Any]]]:
        """Abort a Job, as TorchX does."""
        aborted = {"phase": "Aborted", "message": "it was cancelled"}
        if "status" in each:
            return "status", [{"op": "add", "path": "/status/state", "value": aborted}]
        return "status", [{"op": "add", "path": "/status", "value": {"state": aborted}}]


def _policies(app: AppDef, retries: int) -> list[dict[str, Any]]:
    """Return the lifecycle policies; the first match wins (applyPolicies).

    An error in the user's program ends the Job, or restarts it as a whole. If a pod is evicted,
    only this pod is recreated, and the other agents wait for it. Since Kubernetes 1.27 the kubelet
    reports an evicted pod as failed before it is deleted, so the exit code selects RestartPod. A
    pod that is deleted without a report gets the default action, SyncJob, which doesn't count as a
    retry. Launchers other than relight can't readmit a pod, so an eviction restarts the Job if it
    has retries, as in TorchX.
    """
    restart = {"action": "RestartJob"}
    if retries > 0 and not all(map(launcher_file.starts_relight, app.roles)):
        return [{"event": event, **restart} for event in ("PodEvicted", "PodFailed")]
    again = [{"exitCode": code, "action": "RestartPod"} for code in _ENDED_FROM_OUTSIDE]
    failed = restart if retries > 0 else {"action": "TerminateJob"}
    return [*again, {"event": "PodFailed", **failed}]


def _task(app: AppDef, role: Role, cfg: Mapping[str, Any], place: MeetingPlace) -> dict[str, Any]:
    template = pods.template(app, role, cfg, place)
    if seconds := time_limit_s(cfg):  # per pod, because a Volcano Job lacks a time limit
        template["spec"].setdefault("activeDeadlineSeconds", seconds)
    return {
        "name": label_name(role.name),
        "replicas": role.num_replicas,
        "minAvailable": least(role),
        "template": template,
    }
