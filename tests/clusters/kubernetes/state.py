"""The cluster's objects, and what all controllers do with them.

Sources: kubernetes/kubernetes 1.33 unless a docstring names another; paths start at its root.
"""

import contextlib
import datetime
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str, str]
KINDS = {
    "services": ("v1", "Service"),
    "configmaps": ("v1", "ConfigMap"),
    "secrets": ("v1", "Secret"),
    "pods": ("v1", "Pod"),
    "events": ("v1", "Event"),
    "networkpolicies": ("networking.k8s.io/v1", "NetworkPolicy"),
    "workloads": ("kueue.x-k8s.io/v1beta1", "Workload"),
    "jobs": ("batch/v1", "Job"),
    "jobsets": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    "jobs.volcano": ("batch.volcano.sh/v1alpha1", "Job"),
    "trainjobs": ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
}
PLURALS = {known: plural for plural, known in KINDS.items()}
TRACKED = "batch.kubernetes.io/job-tracking"
"""The finalizer that keeps a Job's pod until it has been counted."""
INDEX = "batch.kubernetes.io/job-completion-index"
VOLCANO_INDEX = "volcano.sh/task-index"


class Refused(Exception):
    """An error response from the API server."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    @property
    def status(self) -> Object:
        return {
            "kind": "Status", "apiVersion": "v1", "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        }  # fmt: skip


def not_found(plural: str, name: str) -> Refused:
    return Refused(404, "NotFound", f'{plural} "{name}" not found')


def copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def stamp(at: float) -> str:
    """Format a time as the API does, in whole seconds."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


def is_over(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def is_terminating(pod: Object) -> bool:
    """Whether a pod is being deleted and has not ended yet."""
    return "deletionTimestamp" in pod["metadata"] and not is_over(pod)


def has_condition(each: Object, *kinds: str) -> bool:
    conditions = each.get("status", {}).get("conditions") or ()
    return any(x["type"] in kinds and x["status"] == "True" for x in conditions)


def number(pod: Object) -> int:
    """Return a pod's number within its Job or its Volcano task."""
    meta = pod["metadata"]
    found = (meta.get("annotations") or {}).get(INDEX) or (meta.get("labels") or {}).get(
        VOLCANO_INDEX
    )
    return int(found or 0)


class State:
    """Objects, and the queue of those that a controller has to process.

    Attributes:
        objects: Objects by namespace, plural, and name.
        controllers: By plural; each is called with an object of that kind that may have changed.
        admit_object: Called before an object is stored, to set defaults or refuse it.
        stop: Ends a pod's containers within seconds.
        settled: Called when no controller has anything left to do; runs the scheduler and the
            kubelet.
        updated: Called after each change to pods and services.
    """

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.controllers: dict[str, Callable[[Object], None]] = {}
        self.admit_object: Callable[[str, Object], None] = lambda *_: None
        self.settled: Callable[[], None] = lambda: None
        self.stop: Callable[[Object, float], None] = lambda *_: None
        self.updated: Callable[[], None] = lambda: None
        self.pod_events: list[Callable[[Object, str], None]] = []
        """Called with a pod and `changed` or `deleted`, before its owner is."""
        self.lock = threading.RLock()
        self.version = 0
        self.made: list[str] = []
        """The plurals of all objects ever stored."""
        self._late = 0.0
        self._queue: list[str] = []
        self._is_syncing = False

    # Time.

    def time(self) -> float:
        """Return the cluster's time: ours plus the time skipped by `elapse`."""
        return time.time() + self._late

    def now(self) -> str:
        return stamp(self.time())

    def age(self, text: str) -> float:
        """Return how many seconds ago an API timestamp was."""
        return self.time() - seconds(text)

    def skip(self, by_s: float) -> None:
        self._late += by_s

    # Objects.

    def of(self, plural: str) -> list[Object]:
        """All objects of one kind."""
        with self.lock:
            return [each for (_, its, _), each in self.objects.items() if its == plural]

    def find(self, namespace: str, plural: str, name: str) -> Object | None:
        return self.objects.get((namespace, plural, name))

    def owned(self, owner: Object, plural: str) -> list[Object]:
        uid = owner["metadata"]["uid"]
        return [
            each
            for each in self.of(plural)
            if any(x["uid"] == uid for x in each["metadata"].get("ownerReferences") or ())
        ]

    @staticmethod
    def plural(each: Object) -> str:
        return PLURALS[each["apiVersion"], each["kind"]]

    def key(self, each: Object) -> Key:
        meta = each["metadata"]
        return meta["namespace"], self.plural(each), meta["name"]

    def create(self, namespace: str, body: Object, dry_run: bool = False) -> Object:
        """Store an object, after admission.

        Raises:
            Refused: If the server refuses it.
        """
        meta = body.setdefault("metadata", {})
        meta["namespace"] = namespace
        if "name" not in meta and "generateName" in meta:
            meta["name"] = meta["generateName"][:58] + uuid.uuid4().hex[:5]
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": self.now(), "generation": 1}
        meta.pop("resourceVersion", None)
        plural = self.plural(body)
        self.admit_object(plural, body)
        key = (namespace, plural, meta["name"])
        if key in self.objects:
            raise Refused(409, "AlreadyExists", f'{plural} "{meta["name"]}" already exists')
        if not dry_run:
            self.objects[key] = body
            self.made.append(plural)
            self.touch(body)
        return body

    def own(self, owner: Object, body: Object) -> Object:
        """Create an object that is controlled by another one."""
        meta = owner["metadata"]
        reference = {
            "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"],
            "uid": meta["uid"], "controller": True, "blockOwnerDeletion": True,
        }  # fmt: skip
        body["metadata"]["ownerReferences"] = [reference]
        return self.create(meta["namespace"], body)

    def touch(self, each: Object) -> None:
        """Record a change to an object, so that its controller and its owner's controller run."""
        self.version += 1
        each["metadata"]["resourceVersion"] = str(self.version)
        self.enqueue(each)
        if each["kind"] in ("Pod", "Service"):
            self.updated()

    def enqueue(self, each: Object) -> None:
        uids = [x["uid"] for x in each["metadata"].get("ownerReferences") or ()]
        self._queue += [each["metadata"]["uid"], *uids]

    def enqueue_after(self, each: Object, delay_s: float) -> None:
        def enqueue() -> None:
            with self.changing():
                self.enqueue(each)

        timer = threading.Timer(delay_s, enqueue)
        timer.daemon = True
        timer.start()

    def sync(self) -> None:
        """Run controllers until none of them has anything left to do."""
        if self._is_syncing:
            return
        self._is_syncing = True
        try:
            while True:
                while self._queue:
                    uid = self._queue.pop(0)
                    for (_, plural, _), each in list(self.objects.items()):
                        if each["metadata"]["uid"] == uid and plural in self.controllers:
                            self.controllers[plural](each)
                self.settled()
                if not self._queue:
                    return
        finally:
            self._is_syncing = False

    def change_pod(self, pod: Object, **status: Any) -> None:
        """Change a pod's status, as its kubelet does."""
        pod["status"] |= status
        for each in self.pod_events:
            each(pod, "changed")
        self.touch(pod)
        self._forget(pod)

    def delete_pod(self, pod: Object, grace_s: float | None = None) -> None:
        """Delete a pod. It disappears once its containers have ended and its finalizers are
        removed.

        pkg/registry/core/pod/strategy.go, CheckGracefulDelete: a pod without a node, or one that
        has ended, has no grace period.
        """
        meta = pod["metadata"]
        if grace_s is None:
            grace_s = pod["spec"].get("terminationGracePeriodSeconds", 30)
        if meta.get("deletionGracePeriodSeconds", grace_s + 1) <= grace_s:
            return
        meta.setdefault("deletionTimestamp", self.now())
        meta["deletionGracePeriodSeconds"] = grace_s
        self.touch(pod)
        if not is_over(pod) and "nodeName" in pod["spec"] and pod["status"]["phase"] == "Running":
            self.stop(pod, grace_s)
            return
        if not is_over(pod) and TRACKED in meta.get("finalizers", ()):
            # pkg/controller/podgc, gcUnscheduledTerminating: such a pod therefore counts as failed.
            self.change_pod(pod, phase="Failed")
        self._forget(pod)

    def release(self, pod: Object) -> None:
        """Remove the Job controller's finalizer."""
        meta = pod["metadata"]
        if TRACKED in meta.get("finalizers", ()):
            meta["finalizers"] = [x for x in meta["finalizers"] if x != TRACKED]
            self.touch(pod)
        self._forget(pod)

    def _forget(self, pod: Object) -> None:
        """Remove a deleted pod once nothing holds it."""
        meta = pod["metadata"]
        is_running = not is_over(pod) and pod["status"].get("phase") == "Running"
        if "deletionTimestamp" in meta and not meta.get("finalizers") and not is_running:
            self.remove(pod)

    def remove(self, each: Object) -> None:
        key = self.key(each)
        if self.objects.get(key) is not each:
            return
        del self.objects[key]
        self.enqueue(each)
        if each["kind"] == "Pod":
            for event in self.pod_events:
                event(each, "deleted")
            self.updated()

    def delete(
        self, each: Object, policy: str = "Background", grace_s: float | None = None
    ) -> None:
        """Delete an object, and its dependents unless the policy is Orphan.

        pkg/controller/garbagecollector: dependents without another owner are deleted.
        """
        if each["kind"] == "Pod":
            self.delete_pod(each, grace_s)
            return
        uid = each["metadata"]["uid"]
        self.remove(each)
        self.updated()
        for other in list(self.objects.values()):
            owners = other["metadata"].get("ownerReferences") or []
            if all(x["uid"] != uid for x in owners) or not owners:
                continue
            other["metadata"]["ownerReferences"] = [x for x in owners if x["uid"] != uid]
            if other["kind"] == "Pod":
                self.release(other)  # orphan pods: pkg/controller/job, syncOrphanPod
            is_there = self.objects.get(self.key(other)) is other
            if policy != "Orphan" and is_there and not other["metadata"]["ownerReferences"]:
                self.delete(other, policy)

    def condition(self, each: Object, kind: str, value: str, reason: str, message: str) -> None:
        """Set a condition; it only becomes False if it was True before."""
        conditions = each["status"].setdefault("conditions", [])
        known = next((x for x in conditions if x["type"] == kind), None)
        wanted = {"status": value, "reason": reason, "message": message}
        if known is None and value != "True":
            return
        if known is None:
            conditions.append({"type": kind, **wanted, "lastTransitionTime": self.now()})
        elif any(known[name] != its for name, its in wanted.items()):
            known |= {**wanted, "lastTransitionTime": self.now()}
        else:
            return
        self.touch(each)

    def warn(self, about: Object, reason: str, message: str) -> None:
        """Create an event."""
        meta = about["metadata"]
        involved = {"kind": about["kind"], "name": meta["name"], "uid": meta["uid"]}
        name = f"{meta['name']}.{uuid.uuid4().hex[:16]}"
        self.objects[(meta["namespace"], "events", name)] = {
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": name, "uid": str(uuid.uuid4()), "namespace": meta["namespace"],
                         "creationTimestamp": self.now()},
            "involvedObject": involved, "type": "Warning", "reason": reason, "message": message,
            "lastTimestamp": self.now(),
        }  # fmt: skip

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock, and run the controllers at the end."""
        with self.lock:
            yield
            self.sync()
