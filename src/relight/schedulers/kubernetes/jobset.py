"""Runs an app as a JobSet, which combines the Jobs for all roles into one object that Kueue admits
as a whole.

Source: the jobset.x-k8s.io/v1alpha2 API in JobSet 0.12.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relight.job.app import AppDef, AppState, Role
from relight.schedulers.api import ReplicaStatus
from relight.schedulers.kubernetes import pods
from relight.schedulers.kubernetes.job import IndexedJob, spec, succeeded_count
from relight.schedulers.kubernetes.kind import (
    Kind,
    Maker,
    gang_annotation,
    queue_label,
    role_label,
    time_to_live,
)
from relight.schedulers.kubernetes.names import label_name
from relight.schedulers.kubernetes.pods import MeetingPlace
from relight.schedulers.kubernetes.store import Object, ObjectKind


class JobSet(IndexedJob):
    """A JobSet, for `-cfg kind=jobset`."""

    name = "jobset"
    resource = ObjectKind("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets")
    succeeded, failed = ("Completed",), ("Failed",)
    cancelling = Kind.cancelling

    def stem(self, name: str, role: Role, _is_only: bool, /) -> str:
        """Return the name that JobSet gives to a role's only Job."""
        return f"{name}-{label_name(role.name)}-0"

    def specs(self, app: AppDef, cfg: Mapping[str, Any], place: MeetingPlace) -> Iterator[Maker]:
        """Yield a single JobSet. Its Jobs retry failed pods on their own, and the JobSet fails as
        soon as one of its Jobs fails.
        """
        jobs = [
            {
                "name": label_name(role.name),
                "replicas": 1,
                "template": {
                    "metadata": _metadata(role, cfg),
                    "spec": spec(app, role, cfg, place),
                },
            }
            for role in app.roles
        ]
        made = {
            "network": {"enableDNSHostnames": False},  # relight's own Service provides hostnames
            "successPolicy": {"operator": "All"},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": jobs,
        }
        yield Maker(place.name, queue_label(cfg), made | time_to_live(cfg))

    def roles(self, each: Object) -> dict[str, int]:
        """Return a JobSet's roles and their numbers of replicas."""
        jobs = [job["template"] for job in each["spec"].get("replicatedJobs") or ()]
        return {
            (job["metadata"].get("labels") or {}).get(pods.ROLE, ""): job["spec"]["completions"]
            for job in jobs
        }

    def has_succeeded(self, each: Object, replicas: Sequence[ReplicaStatus], /) -> bool:
        """Return whether each role has as many succeeded replicas as it needs. A JobSet also fails
        if one of its Jobs has failed although enough replicas of an elastic role succeeded (see
        `IndexedJob`). A failure policy can't prevent that, because its actions only fail or restart
        a JobSet.
        """
        succeeded = Counter(x.role for x in replicas if x.state is AppState.SUCCEEDED)
        return all(
            succeeded[job["template"]["metadata"]["labels"][pods.ROLE]]
            >= succeeded_count(job["template"]["spec"])
            for job in each["spec"]["replicatedJobs"]
        )


def _metadata(role: Role, cfg: Mapping[str, Any]) -> dict[str, Any]:
    annotations = gang_annotation(cfg, role)
    return {"labels": role_label(role), **({"annotations": annotations} if annotations else {})}
