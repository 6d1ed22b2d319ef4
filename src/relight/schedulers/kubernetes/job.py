"""Runs an app as Indexed Jobs, one per role. They don't require anything to be installed in the
cluster.

A pod is recreated without counting as a failure if it is preempted, if its node is lost, or if its
agent exits with 75. An error in the user's program fails the Job immediately, or after
`max_retries` per replica. An elastic role succeeds once its minimum number of replicas has
succeeded. It fails once permanently failed replicas put the minimum out of reach.

The Job controller fails a Job if each index has either succeeded or failed, before it looks at the
success policy (syncJob in pkg/controller/job). While an elastic role trains, its indexes must
therefore not fail: an agent on a node that the group runs without exits with 75.

The failure limit is set per index, because pods otherwise can't find out how many times their index
has been tried (Kubernetes 1.29, KEP 3850).
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from relight.base.errors import EXIT_GROUP, EXIT_MACHINE, EXIT_PREEMPTED
from relight.job.app import AppDef, Role
from relight.schedulers.api import ReplicaStatus, time_limit_s
from relight.schedulers.kubernetes import pods, run_times
from relight.schedulers.kubernetes.kind import (
    Kind,
    Maker,
    gang_annotation,
    queue_label,
    role_label,
    time_to_live,
    with_unfit_code,
)
from relight.schedulers.kubernetes.names import label_name
from relight.schedulers.kubernetes.pods import MeetingPlace
from relight.schedulers.kubernetes.store import Object, ObjectKind

_TRANSIENT = [EXIT_GROUP, EXIT_MACHINE, 129, 130, 137, 143]
"""Exit codes that don't indicate an error in the user's program. They mean that the rendezvous
failed, a machine rejected something, or a signal ended the agent. Such pods are recreated a few
times.
"""
_TRIES = 3
"""The least number of times that such a pod is recreated."""
_DELAY_S, _MAX_DELAY_S = 10, 600
"""The delay before a pod is recreated doubles each time (DefaultJobPodFailureBackOff and
MaxJobPodFailureBackOff in pkg/controller/job).
"""


class IndexedJob(Kind):
    """Indexed Jobs, for `-cfg kind=job` (the default)."""

    name = "job"
    resource = ObjectKind("batch/v1", "Job", "jobs")
    starts: Mapping[str, str] = MappingProxyType({
        "RELIGHT_REQUEUES": "metadata.annotations['batch.kubernetes.io/job-index-failure-count']",
        "RELIGHT_PREEMPTIONS":
            "metadata.annotations['batch.kubernetes.io/job-index-ignored-failure-count']",
    })  # fmt: skip
    has_service = True
    succeeded: Sequence[str] = ("Complete", "SuccessCriteriaMet")
    failed: Sequence[str] = ("Failed", "FailureTarget")

    def stem(self, name: str, role: Role, is_only: bool, /) -> str:
        """Return the name of a role's Job."""
        return name if is_only else f"{name}-{label_name(role.name)}"

    def specs(self, app: AppDef, cfg: Mapping[str, Any], place: MeetingPlace) -> Iterator[Maker]:
        """Yield a Job for each role."""
        for role in app.roles:
            name = self.stem(place.name, role, len(app.roles) == 1)
            labels = role_label(role) | queue_label(cfg)
            made = spec(app, role, cfg, place) | time_to_live(cfg)
            yield Maker(name, labels, made, gang_annotation(cfg, role))

    def roles(self, each: Object) -> dict[str, int]:
        """Return a Job's role and its number of replicas."""
        role = (each["metadata"].get("labels") or {}).get(pods.ROLE, "")
        return {role: each["spec"].get("completions") or 0}

    def has_succeeded(self, each: Object, _replicas: Sequence[ReplicaStatus], /) -> bool:
        """Return whether the Job controller has marked a Job as failed although enough replicas of
        an elastic role succeeded. This happens if all other indexes failed.
        """
        status = each.get("status") or {}
        reasons = {condition.get("reason") for condition in status.get("conditions") or ()}
        least = succeeded_count(each["spec"])
        return "FailedIndexes" in reasons and (status.get("succeeded") or 0) >= least

    def cancelling(self, _each: Object, /) -> tuple[str, list[dict[str, Any]]]:
        """End a Job through a time limit. The Job then counts as finished, so its time to live
        begins. A suspended Job is never removed, and Kueue would resume it.

        Source: ValidateJobSpecUpdate in Kubernetes' pkg/apis/batch/validation allows this change,
        and updateJob in pkg/controller/job applies it immediately.
        """
        return "", [{"op": "add", "path": "/spec/activeDeadlineSeconds", "value": 1}]


def spec(app: AppDef, role: Role, cfg: Mapping[str, Any], place: MeetingPlace) -> dict[str, Any]:
    """Return the specification of a role's Job."""
    size, least = role.num_replicas, role.least_replicas
    tries = _elastic_tries(role) if role.is_elastic else _TRIES
    found: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": size,
        "parallelism": size,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _rules(role)},
        "backoffLimitPerIndex": max(0, role.max_retries) or tries,
        "maxFailedIndexes": size - least,
    }
    if seconds := time_limit_s(cfg):
        # The time limit is set on the Job, because its pods may be recreated. The field counts from
        # status.startTime, so the time starts when the Job is allowed to start, and starts over
        # when Kueue readmits the Job.
        found["activeDeadlineSeconds"] = seconds
    if role.is_elastic:
        rule = {"succeededIndexes": f"0-{size - 1}", "succeededCount": least}
        found["successPolicy"] = {"rules": [rule]}
    return {**found, "template": pods.template(app, with_unfit_code(role), cfg, place)}


def _elastic_tries(role: Role) -> int:
    """Return how many times a pod of an elastic role is recreated. An index must not fail before
    the group has formed or its join timeout is over.
    """
    tries, delay_s, left_s = 0, _DELAY_S, run_times.join_timeout_s(role)
    while left_s > 0:
        tries, left_s = tries + 1, left_s - delay_s
        delay_s = min(2 * delay_s, _MAX_DELAY_S)
    return max(_TRIES, tries)


def succeeded_count(spec: Mapping[str, Any]) -> int:
    """Return how many replicas must succeed, given a Job's specification."""
    rules = (spec.get("successPolicy") or {}).get("rules") or [{}]
    return int(rules[0].get("succeededCount", spec["completions"]))


def _rules(role: Role) -> list[dict[str, Any]]:
    """Return the rules for handling a failed pod."""
    lost = {"type": "DisruptionTarget", "status": "True"}
    preempted = {"containerName": "main", "operator": "In", "values": [EXIT_PREEMPTED]}
    rules: list[dict[str, Any]] = [
        {"action": "Ignore", "onPodConditions": [lost]},
        {"action": "Ignore", "onExitCodes": preempted},
    ]
    if role.max_retries <= 0:
        codes = {"containerName": "main", "operator": "NotIn", "values": [0, *_TRANSIENT]}
        rules.append({"action": "FailJob", "onExitCodes": codes})
    return rules
