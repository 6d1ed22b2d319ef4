"""Determines why a job is waiting when neither its pods nor the objects that own them report a
reason.

    events      warnings: a pod is rejected (no such service account or priority class, a quota,
                a Pod Security Standard), or its volumes can't be mounted
    workloads   Kueue's reasons for a queued job: a missing queue, no quota

The API server accepts a job even if one of these problems prevents its pods from running, and the
job then waits. Both sources are optional. If the user doesn't have permission to list them, the
reasons are less specific.
"""

from collections.abc import Iterable
from typing import Any

from relight.schedulers.kubernetes import kueue, store
from relight.schedulers.kubernetes.kind import QUEUE
from relight.schedulers.kubernetes.names import JobId
from relight.schedulers.kubernetes.store import Object

_NOT_TOLD = (403, 404)
"""The status codes if the user lacks the permission, or the cluster lacks the kind of object."""


def find_reasons(client: Any, job: JobId, objects: Iterable[Object]) -> dict[str, str]:
    """Return the reasons why a job's objects aren't making progress, by object name.

    Args:
        client: the cluster's client.
        job: the job.
        objects: the objects that create the job's pods.
    """
    found = _warnings(client, job)
    for each in objects:
        if (each["metadata"].get("labels") or {}).get(QUEUE):
            found |= _kueue_reasons(client, job, each)
    return found


def _warnings(client: Any, job: JobId) -> dict[str, str]:
    """Return the last warning about each of a job's objects."""
    events = store.listed(
        client, store.EVENTS, job.namespace, fields="type=Warning", unless=_NOT_TOLD
    )
    found = {}
    for event in sorted(events, key=_time):
        name = str((event.get("involvedObject") or {}).get("name") or "")
        if name == job.name or name.startswith(f"{job.name}-"):
            said = " ".join(str(event.get("message") or "").split())
            found[name] = f"{event.get('reason')}: {said}"
    return found


def _time(event: Object) -> str:
    stamps = (event.get(name) for name in ("lastTimestamp", "eventTime"))
    return str(next(filter(None, stamps), None) or event["metadata"].get("creationTimestamp"))


def _kueue_reasons(client: Any, job: JobId, each: Object) -> dict[str, str]:
    """Return the reasons that Kueue reports, by object name."""
    selector = kueue.workload_selector(each)
    for resource in kueue.WORKLOADS:
        for workload in store.listed(client, resource, job.namespace, selector, unless=_NOT_TOLD):
            for condition in (workload.get("status") or {}).get("conditions") or ():
                if condition.get("type") == "QuotaReserved" and condition.get("status") == "False":
                    return {each["metadata"]["name"]: " ".join(str(condition["message"]).split())}
    return {}
