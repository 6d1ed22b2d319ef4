"""Runs an app as a Volcano Job, whose pods are scheduled together in a Volcano queue, as in TorchX.

Unlike in TorchX, a Job has one task per role instead of one per replica, which keeps the object
small. Source: the batch.volcano.sh/v1alpha1 API in Volcano 1.16 and, for its behaviour, the
controller in pkg/controllers/job.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from relight.base.errors import EXIT_PREEMPTED
from relight.job import launcher_file
from relight.job.app import AppDef, AppState, Role
from relight.schedulers.api import ReplicaStatus, time_limit_s
from relight.schedulers.kubernetes import pods
from relight.schedulers.kubernetes.kind import Kind, Maker, Verdict, time_to_live, with_unfit_code
from relight.schedulers.kubernetes.names import label_name
from relight.schedulers.kubernetes.pods import MeetingPlace
from relight.schedulers.kubernetes.store import Object, ObjectKind

_ENDED_FROM_OUTSIDE = (EXIT_PREEMPTED, 143)
"""The exit codes of an agent in an evicted pod, after SIGTERM with and without a saved
checkpoint.
"""
_UNFIT_CODE, _UNFIT_DELAY = 76, "5m"
"""The exit code of an agent on an unfit node, and the delay before its pod is recreated. Without a
delay, a pod that is scheduled to the same node again would use up the retries.
"""
_RESTARTS = 1000
"""The maximum number of evictions for a job without retries. There is a maximum because Volcano
can't express "unlimited".
"""
_PLUGINS = {
    "env": [],
    # The svc plug-in provides host names and the Service through which pods find each other. Unlike
    # the Kubernetes Job controller, Volcano does not assign host names to pods without this plug-in
    # (OnPodCreate in plugins/svc). A NetworkPolicy is an option for all kinds (`-cfg
    # network_policy`).
    "svc": ["--publish-not-ready-addresses", "--disable-network-policy"],
}
INDEX = "volcano.sh/task-index"
"""The pod label that contains the pod's number within its task."""
_PHASES = {
    "Completed": AppState.SUCCEEDED,
    "Aborted": AppState.CANCELLED,
    "Terminated": AppState.FAILED,
    "Failed": AppState.FAILED,
}


class Volcano(Kind):
    """A Volcano Job, for `-cfg kind=volcano`."""

    name = pods.VOLCANO
    resource = ObjectKind("batch.volcano.sh/v1alpha1", "Job", "jobs")
    index = f"metadata.labels['{INDEX}']"
    label = INDEX
    starts: Mapping[str, str] = MappingProxyType(
        {"RELIGHT_REQUEUES": "metadata.annotations['volcano.sh/job-retry-count']"}
    )

    def stem(self, name: str, role: Role, _is_only: bool, /) -> str:
        """Return the part of a pod's name that precedes the number."""
        return f"{name}-{label_name(role.name)}"

    def specs(self, app: AppDef, cfg: Mapping[str, Any], place: MeetingPlace) -> Iterator[Maker]:
        """Yield a single Volcano Job.

        Volcano fails a Job at restart number maxRetry (restartingUpdateStatus), so the last retry
        would never run if maxRetry were max_retries, as it is in TorchX.
        """
        retries = min((role.max_retries for role in app.roles), default=0)
        needed = sum(role.least_replicas for role in app.roles)
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
        if len(app.roles) == 1 and app.roles[0].is_elastic:
            # The Job completes as soon as this many pods of any task have succeeded (runningState
            # in state/running.go). With several roles, these could be the wrong ones.
            spec["minSuccess"] = needed
        if cfg.get("priority_class"):
            spec["priorityClassName"] = cfg["priority_class"]
        yield Maker(place.name, {}, spec)

    def roles(self, each: Object) -> dict[str, int]:
        """Return a Job's roles and their numbers of replicas."""
        return {
            task["template"]["metadata"]["labels"].get(pods.ROLE, ""): task.get("replicas") or 0
            for task in each["spec"].get("tasks") or ()
        }

    def verdict(self, each: Object, _replicas: Sequence[ReplicaStatus], /) -> Verdict:
        """Derive the verdict from a Job's phase."""
        state = (each.get("status") or {}).get("state") or {}
        return _PHASES.get(state.get("phase") or ""), str(state.get("message") or "")

    def cancelling(self, each: Object, /) -> tuple[str, list[dict[str, Any]]]:
        """Abort a Job, as TorchX does."""
        aborted = {"phase": "Aborted", "message": "it was cancelled"}
        if "status" in each:
            return "status", [{"op": "add", "path": "/status/state", "value": aborted}]
        return "status", [{"op": "add", "path": "/status", "value": {"state": aborted}}]


def _policies(app: AppDef, retries: int) -> list[dict[str, Any]]:
    """Return the lifecycle policies. Volcano applies the first policy that matches (applyPolicies).

    An error in the user's program ends the Job, or restarts it as a whole. If a pod is evicted,
    only that pod is recreated, and the other agents wait for it. Since Kubernetes 1.27, the kubelet
    reports an evicted pod as failed before it is deleted, so the pod's exit code triggers
    RestartPod. A pod that is deleted without such a report triggers the default action, SyncJob,
    which doesn't count as a retry. Launchers other than relight can't readmit a pod. With these
    launchers, an eviction therefore restarts the whole Job if the Job has retries, as in TorchX.
    """
    restart = {"action": "RestartJob"}
    if retries > 0 and not all(map(launcher_file.starts_relight, app.roles)):
        return [{"event": event, **restart} for event in ("PodEvicted", "PodFailed")]
    again = [{"exitCode": code, "action": "RestartPod"} for code in _ENDED_FROM_OUTSIDE]
    if any(role.is_elastic for role in app.roles):
        again.append({"exitCode": _UNFIT_CODE, "action": "RestartPod", "timeout": _UNFIT_DELAY})
    failed = restart if retries > 0 else {"action": "TerminateJob"}
    return [*again, {"event": "PodFailed", **failed}]


def _task(app: AppDef, role: Role, cfg: Mapping[str, Any], place: MeetingPlace) -> dict[str, Any]:
    template = pods.template(app, with_unfit_code(role, _UNFIT_CODE), cfg, place)
    if seconds := time_limit_s(cfg):  # set on pods, because a Volcano Job lacks a time limit
        template["spec"].setdefault("activeDeadlineSeconds", seconds)
    return {
        "name": label_name(role.name),
        "replicas": role.num_replicas,
        "minAvailable": role.least_replicas,
        "template": template,
    }
