"""Kueue: admits suspended objects to queues.

Sources: kubernetes-sigs/kueue, pkg/controller/jobframework/reconciler.go (commit 006767fe,
ReconcileGenericJob: each branch names its step there), and pkg/controller/core/
workload_controller.go (Reconcile).
"""

import uuid
from collections.abc import Callable

from clusters.kubernetes.state import KINDS, Object, State, has_condition, is_over

QUEUE = "kueue.x-k8s.io/queue-name"
JOB_UID = "kueue.x-k8s.io/job-uid"


class Kueue:
    """Kueue in one cluster. Its queues have unlimited quota.

    Args:
        state: The cluster's objects.
        queues: Returns the names of the existing queues, or None if Kueue isn't installed.
    """

    def __init__(self, state: State, queues: Callable[[], set[str] | None]) -> None:
        self.state, self._queues = state, queues

    def sync(self, job: Object) -> None:
        """Reconcile an object that has a queue label."""
        queues = self._queues()
        meta = job["metadata"]
        name = (meta.get("labels") or {}).get(QUEUE)
        if queues is None or not name or meta.get("ownerReferences"):
            return
        if has_condition(job, "Complete", "Completed", "Failed"):
            return  # 2. handle job is finished
        workload = self._workload(job, name)
        self._reconcile(workload, is_there=name in queues)
        if has_condition(workload, "Evicted"):  # 6. handle eviction
            self._suspend(job, True)
            if not self._is_active(job):
                self._set(workload, "QuotaReserved", "False", "Pending", "it was evicted")
                self._set(workload, "Admitted", "False", "NoReservation", "no reservation")
            return
        # 7. "Job admitted, unsuspending"; 8. "not admitted by a cluster queue, suspending"
        self._suspend(job, not has_condition(workload, "Admitted"))

    def sync_workload(self, workload: Object) -> None:
        """Reconcile the owner of a Workload that has changed."""
        uid = workload["metadata"]["labels"][JOB_UID]
        for each in list(self.state.objects.values()):
            if each["metadata"]["uid"] == uid:
                self.sync(each)

    def _reconcile(self, workload: Object, is_there: bool) -> None:
        """workload_controller.go, Reconcile: an inactive Workload is evicted."""
        if not workload["spec"].get("active", True):
            self._set(workload, "Evicted", "True", "Deactivated", "The workload is deactivated")
        elif not is_there:
            said = f"LocalQueue {workload['spec']['queueName']} doesn't exist"
            self._set(workload, "QuotaReserved", "False", "Inadmissible", said)
        elif not has_condition(workload, "Admitted"):
            self._set(workload, "Evicted", "False", "QuotaReserved", "it was readmitted")
            self._set(workload, "QuotaReserved", "True", "QuotaReserved", "quota reserved")
            self._set(workload, "Admitted", "True", "Admitted", "The workload is admitted")

    def _is_active(self, job: Object) -> bool:
        """IsActive: whether the object has pods that have not ended."""
        jobs = [job, *self.state.owned(job, "jobs"), *(
            each for jobset in self.state.owned(job, "jobsets")
            for each in self.state.owned(jobset, "jobs")
        )]  # fmt: skip
        return any(not is_over(pod) for each in jobs for pod in self.state.owned(each, "pods"))

    def _suspend(self, job: Object, wanted: bool) -> None:
        if bool(job["spec"].get("suspend")) != wanted:
            job["spec"]["suspend"] = wanted
            self.state.touch(job)

    def _workload(self, job: Object, queue: str) -> Object:
        """Source: constructWorkload."""
        meta = job["metadata"]
        for each in self.state.owned(job, "workloads"):
            return each
        version, kind = KINDS["workloads"]
        metadata = {
            "name": f"{job['kind'].lower()}-{meta['name']}-abcde", "namespace": meta["namespace"],
            "uid": str(uuid.uuid4()), "creationTimestamp": self.state.now(),
            "labels": {JOB_UID: meta["uid"]},
            "ownerReferences": [{"kind": job["kind"], "name": meta["name"], "uid": meta["uid"]}],
        }  # fmt: skip
        found: Object = {
            "apiVersion": version, "kind": kind, "metadata": metadata,
            "spec": {"queueName": queue, "active": True}, "status": {"conditions": []},
        }  # fmt: skip
        self.state.objects[(meta["namespace"], "workloads", metadata["name"])] = found
        self.state.touch(found)
        return found

    def _set(self, workload: Object, kind: str, value: str, reason: str, message: str) -> None:
        conditions = workload["status"]["conditions"]
        wanted = {"type": kind, "status": value, "reason": reason, "message": message}
        if wanted not in conditions:
            workload["status"]["conditions"] = [
                *(each for each in conditions if each["type"] != kind), wanted,
            ]  # fmt: skip
            self.state.touch(workload)
