"""Runs jobs on a Kubernetes cluster, as Indexed Jobs or another kind of object (`kinds`).

    render   returns the objects (`request`) as YAML for `kubectl apply -f -`
    submit   creates them one by one; if one is rejected, removes the others
    status   reads the pods and the objects that create them, selected by label (`replicas`)
    cancel   ends the objects that create the pods, or has Kueue stop them
    delete   removes all objects

A job's id is NAMESPACE:NAME, as in TorchX, or CONTEXT@NAMESPACE:NAME with `-cfg context=`.
"""

import contextlib
import secrets
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import islice
from typing import Any

from relight.base import redaction
from relight.base.errors import MachineError, UsageError
from relight.base.text import split_lines
from relight.job.app import NOTHING, AppDef, RetryPolicy, VolumeMount
from relight.job.user import user_name
from relight.schedulers import resource_checks
from relight.schedulers.api import (
    AppStatus,
    Capabilities,
    JobSummary,
    LogQuery,
    Option,
    Request,
    Scheduler,
    check_replica,
)
from relight.schedulers.kubernetes import (
    cluster,
    kueue,
    locks,
    names,
    pods,
    reasons,
    replicas,
    request,
    store,
)
from relight.schedulers.kubernetes.cluster import Cluster
from relight.schedulers.kubernetes.kind import QUEUE, Kind
from relight.schedulers.kubernetes.kinds import DEFAULT, KINDS
from relight.schedulers.kubernetes.names import JobId
from relight.schedulers.kubernetes.pods import RESERVED
from relight.schedulers.kubernetes.store import Object
from relight.schedulers.kubernetes.trainjob import RUNTIME
from relight.schedulers.uninterruptible import finished

_POLL_S, _LONGEST_POLL_S = 0.5, 5.0
_TRIES = 5
"""The maximum number of times to reconnect to a log without receiving a new line."""
_FORBIDDEN, _EXISTS, _BROKEN = 403, 409, 500
_TTL_S = 7 * 24 * 3600
_PARTS = (store.SERVICES, store.CONFIG_MAPS, store.SECRETS)
_ADDITIONS = (store.NETWORK_POLICIES, store.POD_GROUPS)
"""Optional objects. The cluster may not have these kinds, or the user's Role may not grant
permission for them.
"""
_FOUND_BY_LABEL = (store.SERVICES, *_ADDITIONS)
_STARTS = 400
"""The API server's status code if a container's logs are requested before the container has
started.
"""


class Kubernetes(Scheduler):
    """Submits jobs to the cluster in the current kubeconfig context."""

    name = "kubernetes"
    options: Sequence[Option] = (
        Option("kind", str, "job", "kind of object that creates the pods", False, tuple(KINDS)),
        Option("context", str, None, "context of the kubeconfig (default: the current one)"),
        Option("namespace", str, None, "namespace (default: that of the context)"),
        Option("queue", str, None, "Kueue queue; with kind=volcano, Volcano queue"),
        Option("runtime", str, None, f"runtime for kind=trainjob (default: {RUNTIME})"),
        Option("service_account", str, None, "service account of the pods"),
        Option("image_secret", str, None, "secret for pulling images"),
        Option("image_pull_policy", str, None, "when to pull images", False,
               ("Always", "IfNotPresent", "Never")),
        Option("priority_class", str, None, "priority class of the pods"),
        Option("node_selector", dict, None, "labels that nodes must have, KEY:VALUE;KEY:VALUE"),
        Option("tolerations", list, None, "taints to tolerate, KEY=VALUE:EFFECT;KEY:EFFECT"),
        Option("topology", str, None, "a node label: all pods run in the same domain of it"),
        Option("rank_order", list, None,
               "pod labels that determine the rank order, starting with the widest domain"),
        Option("exclude", list, None, "names of nodes on which no pod may run"),
        Option("scheduler", str, None, "scheduler for the pods (default: the cluster's)"),
        Option("gang", bool, False, "start pods together: scheduler=volcano, or Coscheduling"),
        Option("shm_size", str, None, "size of /dev/shm, such as 8Gi (default: the memory size)"),
        Option("user", int, None, "run as this user id"),
        Option("fs_group", int, None, "group id that may write to the pods' volumes"),
        Option("privileged", bool, False, "run privileged containers"),
        Option("capabilities", list, None, "Linux capabilities to add, such as IPC_LOCK"),
        Option("host_paths", bool, True, "allow mounts of the node's directories and devices"),
        Option("restricted", bool, False, "comply with the Pod Security Standard restricted"),
        Option("network_policy", bool, False, "allow connections only from pods of the same job"),
        Option("reserved_millicpu", int, RESERVED["reserved_millicpu"],
               "thousandths of a CPU to leave out of the request"),
        Option("reserved_memmb", int, RESERVED["reserved_memmb"],
               "megabytes of memory to leave out of the request"),
        Option("efa_device_count", int, None, "number of EFA devices (default: the resource's)"),
        Option("timeout", int, None, "minutes after which the job is stopped"),
        Option("ttl", int, _TTL_S,
               "seconds until the cluster removes the job after it has ended; -1: never"),
        Option("pods", str, None, "a YAML or JSON file that is merged into each pod"),
        Option("validate_spec", bool, True, "have the server validate all objects before creating "
        "any"),
        Option("image_repo", str, None, "repository for the image with the workspace"),
        Option("quiet", bool, False, "don't show the progress of building and pushing images"),
    )  # fmt: skip
    capabilities = Capabilities(
        retries=True,
        mounts=True,
        resources=True,
        elastic=True,
        images=True,
        since=True,
        pushes_images=True,
    )
    bypasses = staticmethod(locks.bypasses)

    def __init__(self) -> None:
        self._clusters: dict[str, Cluster] = {}

    def affinity(self) -> int:
        """Return how suitable Kubernetes is on this machine. Kubernetes requires a cluster to be
        configured.
        """
        return 5 if find_spec("kubernetes") is not None and cluster.is_configured() else 0

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        """Return the objects for an app. See `Scheduler.render`."""
        names.check_options(cfg)
        _check_host_paths(app, cfg)
        context = str(cfg.get("context") or "")
        namespace = str(cfg.get("namespace") or cluster.current_namespace(context))
        job, made = request.objects(app, cfg, app_id, namespace, secrets.token_hex(16))
        body = {"objects": made}
        notes = (*resource_checks.too_little(app, gpus=True), *_notes(app, cfg))
        text = request.as_text(made, _selected([x for x in made if not _is_shared(x)], job))
        return Request(self.name, app, cfg, body, text, notes, str(job))

    def submit(self, request: Request) -> str:
        """Create the objects, and return the app's id."""
        job = names.read_id(request.app_id)
        objects = request.body["objects"]
        with self._client(job) as client:
            if request.cfg.get("validate_spec", True):
                for each in objects:
                    _create(client, each, dry_run=True)
            made: list[Object] = []
            try:
                made.extend(finished(_create, client, each) for each in objects)
                _adopt(client, made)
            except BaseException as error:  # including a signal
                if made or not _is_answer(error):
                    _remove_after(client, job, objects, error)
                raise
        return request.app_id

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        """Return the status of each job that exists."""
        found = {}
        for app_id in app_ids:
            job = names.read_id(app_id)
            with self._client(job) as client:
                kind, objects = _makers(client, job)
                if objects:
                    its = store.listed(client, store.PODS, job.namespace, _selector(job))
                    status = replicas.status(kind, objects, its)
                    if replicas.is_unexplained(status):
                        told = reasons.find_reasons(client, job, objects)
                        status = replicas.status(kind, objects, its, told)
                    found[app_id] = status
        return found

    def native(self, app_id: str) -> list[dict[str, Any]]:
        """Return the objects that create a job's pods.

        Raises:
            UsageError: if the job does not exist.
        """
        with self._client(names.read_id(app_id)) as client:
            _, found = _existing_makers(client, app_id)
        return [dict(each) for each in found]

    def logs(self, app_id: str, query: LogQuery) -> Iterator[str]:
        """Return the output lines from a replica's pods, including replacement pods, with stdout
        and stderr combined.
        """
        job = names.read_id(app_id)
        query = query._replace(role=names.label_value(query.role))
        with self._client(job) as client:
            kind, objects = _existing_makers(client, app_id)
        sizes = {role: size for each in objects for role, size in kind.roles(each).items()}
        check_replica(app_id, query, sizes)
        return self._lines(job, query)

    def cancel(self, app_id: str) -> None:
        """Terminate a job's pods. Its objects are kept, those of a Job until its time to live is
        over.
        """
        with self._client(names.read_id(app_id)) as client:
            kind, objects = _existing_makers(client, app_id)
            for each in objects:
                # The annotation doesn't count, because the pods of a cancelled job may run again.
                state, _ = kind.verdict(each, ())
                if state is None or not state.is_over:
                    _cancel(client, kind, each)

    def delete(self, app_id: str) -> None:
        """Remove all of a job's objects. Its pods are terminated, and their logs are lost."""
        job = names.read_id(app_id)
        with self._client(job) as client:
            if not _remove(client, job):
                raise _unknown(app_id)

    def list(self, cfg: Mapping[str, Any] = NOTHING, /) -> Sequence[JobSummary]:
        """Return this user's jobs in the namespace from the settings or the context, newest
        first.
        """
        context = str(cfg.get("context") or "")
        namespace = str(cfg.get("namespace") or cluster.current_namespace(context))
        selector = f"{pods.USER}={names.label_value(user_name())}"
        listed: list[JobSummary] = []
        with self._client(JobId(context, namespace, "")) as client:
            its = replicas.by_app(store.listed(client, store.PODS, namespace, selector))
            for kind in KINDS.values():
                found = replicas.by_app(_list_kind(client, kind, namespace, selector))
                listed += [
                    JobSummary(
                        str(JobId(context, namespace, name)),
                        replicas.status(kind, objects, its.get(name, ())).state,
                        objects[0]["metadata"]["labels"].get("app.kubernetes.io/name", name),
                        _local(objects[0]["metadata"].get("creationTimestamp")),
                    )
                    for name, objects in found.items()
                ]
        return sorted(listed, key=lambda each: each.submitted, reverse=True)

    def close(self) -> None:
        """Close the connections. Jobs keep running."""
        for each in self._clusters.values():
            each.close()

    def _client(self, job: JobId) -> AbstractContextManager[Any]:
        """Return a client for the cluster that a job runs on."""
        return self._clusters.setdefault(job.context, Cluster(job.context)).client()

    def _lines(self, job: JobId, query: LogQuery) -> Iterator[str]:
        """Yield the output lines of one pod after another, until the replica or the job is over."""
        pause, seen = _POLL_S, set[str]()
        while True:
            with self._client(job) as client:
                # The order matters, because a pod may start and finish between the two requests.
                kind, objects = _makers(client, job)
                over = not objects or replicas.status(kind, objects, ()).state.is_over
                # Query only this replica, because a user may follow hundreds of replicas.
                selector = f"{_selector(job)},{pods.ROLE}={query.role},{kind.label}={query.replica}"
                found = store.listed(client, store.PODS, job.namespace, selector)
                fresh = [
                    pod
                    for pod in replicas.by_replica(found).get((query.role, query.replica), [])
                    if pod["metadata"]["uid"] not in seen and _has_started(pod)
                ]
                for pod in fresh:
                    seen.add(pod["metadata"]["uid"])
                    yield from _follow_lines(client, pod, kind.container, query)
            if not query.follow or (over and not fresh):
                return
            if not fresh:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_POLL_S)


def _selector(job: JobId) -> str:
    """Return the label selector for a job's objects."""
    return f"{pods.APP}={job.name}"


def _unknown(app_id: str) -> UsageError:
    return UsageError(f"no job {app_id} on this cluster", hint="relight list -s kubernetes")


def _check_host_paths(app: AppDef, cfg: Mapping[str, Any]) -> None:
    """Raise an error for a mount of a node's path if these are not allowed."""
    if cfg.get("host_paths", True):
        return
    for role in app.roles:
        for mount in role.mounts:
            if not isinstance(mount, VolumeMount):
                raise UsageError(
                    f"{role.name}: mount of {mount.src_path}: -cfg host_paths=False allows no "
                    "paths of the node",
                    hint="mount a PersistentVolumeClaim (type=volume)",
                )


def _notes(app: AppDef, cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes on behavior that users may not expect."""
    whole = cfg.get("kind") == "volcano"
    for role in app.roles:
        if role.max_retries and (role.retry_policy is RetryPolicy.REPLICA) is whole:
            together = "Volcano restarts all replicas together"
            what = together if whole else "Kubernetes retries each replica individually"
            yield f"{role.name}: {what}"
        if redaction.redact_argv(role.args) != list(role.args):
            yield (
                f"{role.name}: anyone who can read jobs in the namespace can read the secrets in "
                "its arguments (hidden in a dry run); use --env to keep them in a Secret: "
                "docs/clusters/kubernetes.md#secrets"
            )
    if len(app.roles) > 1 and (cfg.get("kind") or DEFAULT.name) == DEFAULT.name:
        yield (
            "if one role fails, the others keep running until relight cancel, because each is a "
            "Job of its own; kind=jobset and kind=volcano stop them"
        )
    if cfg.get("runtime") and cfg.get("kind") != "trainjob":
        yield "runtime has no effect without kind=trainjob"


def _resource(each: Object) -> store.ObjectKind:
    """Return the API resource for an object that relight created."""
    made = (*_PARTS, *_ADDITIONS, *(kind.resource for kind in KINDS.values()))
    return next(x for x in made if (x.version, x.kind) == (each["apiVersion"], each["kind"]))


def _is_shared(each: Object) -> bool:
    """Return whether an object is the shared launcher rather than part of a job."""
    return request.LAUNCHER in (each["metadata"].get("labels") or {})


def _create(client: Any, each: Object, *, dry_run: bool = False) -> Object:
    """Create an object, or only have the server validate it. An existing launcher is reused.

    Raises:
        UsageError: if a ConfigMap with the launcher's name exists but was not created by relight.
    """
    with store.ignoring(*((_EXISTS,) if _is_shared(each) else ())):
        return store.create(client, _resource(each), each, dry_run=dry_run)
    meta = each["metadata"]
    selector = f"{request.LAUNCHER}={meta['labels'][request.LAUNCHER]}"
    for known in store.listed(client, store.CONFIG_MAPS, meta["namespace"], selector):
        same = known.get("binaryData") == each["binaryData"] and known.get("immutable")
        if known["metadata"]["name"] == meta["name"] and same:
            return known
    raise UsageError(
        f"the ConfigMap {meta['namespace']}/{meta['name']} does not contain the launcher of this "
        "relight version",
        hint=f"kubectl delete configmap -n {meta['namespace']} {meta['name']}",
    )


def _makers(client: Any, job: JobId) -> tuple[Kind, Sequence[Object]]:
    """Return a job's kind, and the objects that create its pods (empty for an unknown job)."""
    for kind in KINDS.values():
        if found := _list_kind(client, kind, job.namespace, _selector(job)):
            return kind, found
    return DEFAULT, ()


def _existing_makers(client: Any, app_id: str) -> tuple[Kind, Sequence[Object]]:
    """Do the same as `_makers`, but raise an error for an unknown job."""
    kind, found = _makers(client, names.read_id(app_id))
    if not found:
        raise _unknown(app_id)
    return kind, found


def _list_kind(client: Any, kind: Kind, namespace: str, selector: str) -> Sequence[Object]:
    """List the objects of a kind, sorted by name. The list is empty if the cluster does not know
    this kind, or if the kind is an extension that this user may not access.
    """
    unless = () if kind is DEFAULT else (_FORBIDDEN, *store.GONE)
    found = store.listed(client, kind.resource, namespace, selector, unless=unless)
    return sorted(found, key=lambda each: str(each["metadata"]["name"]))


def _cancel(client: Any, kind: Kind, each: Object) -> None:
    """Terminate the pods of an object. It is only marked as cancelled if that succeeds."""
    part, change = kind.cancelling(each)
    if part:
        store.patch(client, kind.resource, each, change, part)
        return
    meta = each["metadata"]
    expires = kind is DEFAULT and not each["spec"].get("suspend")  # a suspended Job doesn't
    if QUEUE in (meta.get("labels") or {}) and not expires and kueue.deactivate(client, each):
        # Kueue suspends the object. If relight did that, older versions of Kueue would reactivate
        # the Workload, because the object still has the node selector of its first admission
        # (updateWorkloadToMatchJob in pkg/controller/jobframework/reconciler.go).
        change = []
    marks = {**(meta.get("annotations") or {}), replicas.CANCELLED: "true"}
    mark = {"op": "add", "path": "/metadata/annotations", "value": marks}
    store.patch(client, kind.resource, each, [mark, *change])


def _adopt(client: Any, made: Sequence[Object]) -> None:
    """Make the Jobs own the other objects, so that nothing is left behind when the Jobs are deleted
    by any tool. Every Job becomes an owner, because the cluster may remove a Job that has finished
    while others are still running. A dependent object is only deleted along with its last owner
    (attemptToDeleteItem in pkg/controller/garbagecollector).
    """
    resources = [kind.resource for kind in KINDS.values()]
    owners = [each for each in made if _resource(each) in resources]
    references = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
        }
        for owner in owners
    ]
    change = {"op": "add", "path": "/metadata/ownerReferences", "value": references}
    for each in made:
        if each not in owners and not _is_shared(each):
            store.patch(client, _resource(each), each, [change])


def _is_answer(error: BaseException) -> bool:
    """Return whether the server rejected a request and therefore created nothing."""
    import kubernetes

    return isinstance(error, kubernetes.client.ApiException) and error.status < _BROKEN


def _remove_after(client: Any, job: JobId, objects: Sequence[Object], first: BaseException) -> None:
    """Remove the objects that were created for a job whose submission failed.

    Args:
        client: the cluster's client.
        job: the job.
        objects: all of the objects that the complete job consists of.
        first: the error that caused the submission to fail.

    Raises:
        MachineError: if the removal fails too. The message names the objects that may be left over.
    """
    import kubernetes
    import urllib3

    try:
        _remove(client, job, is_known=True)
    except (kubernetes.client.ApiException, urllib3.exceptions.HTTPError, OSError):
        refused = isinstance(first, kubernetes.client.ApiException)
        why = cluster.explained(first).message if refused else "the API server has failed"
        raise MachineError(
            f"{why}; some objects of {job} may have been created",
            hint=f"kubectl delete {_selected(objects, job)}",
        ) from None


def _selected(objects: Iterable[Object], job: JobId) -> str:
    """Return arguments for kubectl that select a job's objects."""
    kinds = ",".join(dict.fromkeys(_resource(each).full_name for each in objects))
    context = f" --context {shlex.quote(job.context)}" if job.context else ""
    return f"{kinds}{context} -n {job.namespace} -l {_selector(job)}"


def _remove(client: Any, job: JobId, *, is_known: bool = False) -> bool:
    """Delete all of a job's objects, and return whether there were any.

    Secrets are deleted by name, because the permission to list them includes their values. As the
    names could be those of other Secrets, the job must exist, or be known to have existed.
    """
    kind, objects = _makers(client, job)
    found = is_known or bool(objects)
    for each in objects:
        store.delete(client, kind.resource, each)
    for resource in _FOUND_BY_LABEL:
        with store.ignoring(*store.GONE, *((_FORBIDDEN,) if resource in _ADDITIONS else ())):
            for each in store.listed(client, resource, job.namespace, _selector(job)):
                found = True
                store.delete(client, resource, each)
    for suffix in (pods.TOKENS, pods.SECRETS) if found else ():
        secret = {"metadata": {"name": job.name + suffix, "namespace": job.namespace}}
        store.delete(client, store.SECRETS, secret)
    return found


def _has_started(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Running", "Succeeded", "Failed")


def _follow_lines(client: Any, pod: Object, container: str, query: LogQuery) -> Iterator[str]:
    """Yield a pod's output lines. If the connection is lost while following the log, resume with
    the next line.
    """
    import urllib3

    seen, tries = 0, _TRIES
    while True:
        try:
            for line in islice(_read_lines(client, pod, container, query), seen, None):
                seen, tries = seen + 1, _TRIES
                yield line
        except urllib3.exceptions.HTTPError:
            tries -= 1
            if not query.follow or not tries:
                raise
            time.sleep(_POLL_S)
        else:
            return


def _read_lines(client: Any, pod: Object, container: str, query: LogQuery) -> Iterator[str]:
    """Yield a pod's output lines from the query's time range."""
    import kubernetes

    timed = query.since is not None or query.until is not None
    options: dict[str, Any] = {"follow": query.follow, "timestamps": timed, "container": container}
    if query.since is not None:
        age = (datetime.now(UTC) - query.since.astimezone(UTC)).total_seconds()
        options["since_seconds"] = max(1, int(age) + 1)
    try:
        stream = kubernetes.client.CoreV1Api(client).read_namespaced_pod_log(
            pod["metadata"]["name"],
            pod["metadata"]["namespace"],
            _preload_content=False,
            **options,
        )
    except kubernetes.client.ApiException as error:
        if error.status in (*store.GONE, _STARTS):  # the pod has been removed, or is starting
            return
        raise
    with contextlib.closing(stream):
        for line in split_lines(stream.stream(1 << 16, decode_content=True)):
            yield from _within(line, query, timed)


def _within(line: str, query: LogQuery, timed: bool) -> Iterator[str]:
    if not timed:
        yield line
        return
    stamp, _, text = line.partition(" ")
    try:
        at = datetime.fromisoformat(stamp)
    except ValueError:
        raise MachineError(
            f"the API server sent a log line without a timestamp: {line[:80]}"
        ) from None
    if (query.since is None or at >= query.since) and (query.until is None or at <= query.until):
        yield text


def _local(stamp: Any) -> str:
    try:
        at = datetime.fromisoformat(str(stamp))
    except ValueError:
        return ""
    return at.astimezone().isoformat(timespec="seconds")
