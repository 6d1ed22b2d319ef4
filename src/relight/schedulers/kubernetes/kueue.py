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
    namespace, selector = each["metadata"]["namespace"], workload_selector(each)
    change = {"op": "add", "path": "/spec/active", "value": False}
    for resource in WORKLOADS:
        found = store.listed(client, resource, namespace, selector, unless=(_UNKNOWN,))
        for workload in found:
            store.patch(client, resource, workload, [change])
        if found:
            return True
    return False
