"""Stops jobs that Kueue manages. Kueue resumes a suspended job that it has admitted, and starts
a queued one later, so suspending a job doesn't stop it.

Source: ReconcileGenericJob in Kueue's pkg/controller/jobframework/reconciler.go ("Job admitted,
unsuspending"), and the Workload controller in pkg/controller/core, which evicts an inactive
Workload and never admits it again.
"""

from typing import Any

from relight.schedulers.kubernetes import store
from relight.schedulers.kubernetes.store import Object, ObjectKind

WORKLOADS = [
    ObjectKind(f"kueue.x-k8s.io/{version}", "Workload", "workloads")
    for version in ("v1beta2", "v1beta1")
]
_UNKNOWN = 404


def workload_selector(each: Object) -> str:
    """Return the label selector for the Workload of an object that is in a queue."""
    return f"kueue.x-k8s.io/job-uid={each['metadata']['uid']}"


def deactivate(client: Any, each: Object) -> bool:
    """Make Kueue stop an object or, if it is still queued, never start it.

    Returns:
        Whether Kueue manages the object.
    """
    import kubernetes

    namespace = each["metadata"]["namespace"]
    for resource in WORKLOADS:
        try:
            found = store.listed(client, resource, namespace, workload_selector(each))
        except kubernetes.client.ApiException as error:
            if error.status != _UNKNOWN:
                raise
            continue
        for workload in found:
            change = {"op": "add", "path": "/spec/active", "value": False}
            store.patch(client, resource, workload, [change])
        return bool(found)
    return False
