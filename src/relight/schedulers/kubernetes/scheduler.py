"""Jobs on a Kubernetes cluster: an Indexed Job for each role.

    render   the objects (`request`), as YAML for `kubectl apply -f -`
    submit   makes them one after the other; if one is refused, the others are removed
    status   Jobs and pods, by their labels (`replicas`)
    cancel   suspends the Jobs, which ends their pods
    delete   removes all

The id of a job is NAMESPACE:NAME, as in TorchX.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import islice
from typing import Any

from relight.errors import MachineError, UsageError
from relight.job.app import AppDef, RetryPolicy
from relight.job.user import user_name
from relight.schedulers import needs
from relight.schedulers.api import (
    AppStatus,
    Capabilities,
    Listed,
    LogQuery,
    Option,
    Request,
    no_replica,
)
from relight.schedulers.kubernetes import cluster, names, pods, replicas, request
from relight.schedulers.kubernetes.cluster import Cluster

_POLL_S = 1.0
_TRIES = 5
"""How often a lost connection for logs is opened again without a new line."""
_GONE = (404, 410)
_STARTS = 400
"""The API server's answer for logs of a container that has not started."""


def make() -> "Kubernetes":
    """Return the scheduler."""
    return Kubernetes()


class Kubernetes:
    """Sends jobs to the cluster of the current kubeconfig context."""

    name = "kubernetes"
    options: Sequence[Option] = (
        Option("namespace", str, None, "namespace (default: that of the context)"),
        Option("queue", str, None, "queue of Kueue, the label kueue.x-k8s.io/queue-name"),
        Option("service_account", str, None, "service account of the pods"),
        Option("image_secret", str, None, "secret with which images are pulled"),
        Option("image_pull_policy", str, None, "when to pull images", False,
               ("Always", "IfNotPresent", "Never")),
        Option("priority_class", str, None, "priority class of the pods"),
        Option("node_selector", dict, None, "labels that nodes must have, KEY:VALUE;KEY:VALUE"),
        Option("tolerations", list, None, "taints to tolerate, KEY=VALUE:EFFECT;KEY:EFFECT"),
        Option("topology", str, None, "a node label: all pods run in one domain of it"),
        Option("shm_size", str, None, "size of /dev/shm, such as 8Gi (default: the memory's)"),
        Option("user", int, None, "run as this user id"),
        Option("privileged", bool, False, "give containers all rights on the node"),
    )  # fmt: skip
    capabilities = Capabilities(
        retries=True, mounts=True, resources=True, elastic=True, images=True, since=True
    )

    def __init__(self) -> None:
        self._cluster = Cluster()

    def affinity(self) -> int:
        """Return how well Kubernetes suits this machine: a cluster is configured."""
        return 5 if find_spec("kubernetes") is not None and cluster.is_configured() else 0

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        """Return the objects of an app. See `Scheduler.render`."""
        namespace = str(cfg.get("namespace") or cluster.current_namespace())
        made = request.objects(app, cfg, app_id, namespace, secrets.token_hex(16))
        body = {"app_id": f"{namespace}:{made[0]['metadata']['name']}", "objects": made}
        notes = [*needs.too_little(app)]
        notes += [
            f"{role.name}: Kubernetes retries each replica by itself"
            for role in app.roles
            if role.max_retries and role.retry_policy is not RetryPolicy.REPLICA
        ]
        text = cluster.yaml().safe_dump_all(made, sort_keys=False, width=10**9)
        return Request(self.name, app, cfg, body, text, tuple(notes))

    def submit(self, request: Request) -> str:
        """Make the objects; return the id of the app."""
        app_id = str(request.body["app_id"])
        namespace, _, name = app_id.partition(":")
        with self._cluster.client() as client:
            made: list[Mapping[str, Any]] = []
            try:
                made.extend(_create(client, namespace, x) for x in request.body["objects"])
                _adopt(client, namespace, made)
            except BaseException:
                if made:
                    _remove(client, namespace, name)
                raise
        return app_id

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        """Return the statuses of those jobs that exist."""
        found = {}
        with self._cluster.client() as client:
            for app_id in app_ids:
                namespace, name = _parts(app_id)
                jobs = _jobs(client, namespace, f"{pods.APP}={name}")
                if jobs:
                    its = _pods(client, namespace, f"{pods.APP}={name}")
                    found[app_id] = replicas.status(jobs, its)
        return found

    def logs(self, app_id: str, query: LogQuery) -> Iterator[str]:
        """Return the lines that the pods of a replica have written, also of those that took its
        place; both streams are one.
        """
        namespace, name = _parts(app_id)
        with self._cluster.client() as client:
            jobs = _jobs(client, namespace, f"{pods.APP}={name}")
        if not jobs:
            raise _unknown(app_id)
        sizes = {
            job["metadata"]["labels"].get(pods.ROLE, ""): job["spec"].get("completions") or 0
            for job in jobs
        }
        if not 0 <= query.replica < sizes.get(query.role, 0):
            known = ", ".join(f"{role}/0 to {size - 1}" for role, size in sizes.items())
            raise no_replica(app_id, query, known)
        return self._lines(app_id, query)

    def cancel(self, app_id: str) -> None:
        """Suspend the Jobs: their pods are ended."""
        namespace, name = _parts(app_id)
        with self._cluster.client() as client:
            jobs = _jobs(client, namespace, f"{pods.APP}={name}")
            if not jobs:
                raise _unknown(app_id)
            if replicas.status(jobs, ()).state.is_over:
                return
            mark = {"metadata": {"annotations": {replicas.CANCELLED: "true"}}}
            for job in jobs:
                name, patch = job["metadata"]["name"], {**mark, "spec": {"suspend": True}}
                _json(_batch(client).patch_namespaced_job, name, namespace, patch)

    def delete(self, app_id: str) -> None:
        """Remove all objects of a job; its pods are ended, and their logs are lost."""
        namespace, name = _parts(app_id)
        with self._cluster.client() as client:
            if not _remove(client, namespace, name):
                raise _unknown(app_id)

    def list(self) -> Sequence[Listed]:
        """Return this user's jobs in the current namespace, newest first."""
        namespace = cluster.current_namespace()
        selector = f"{pods.USER}={names.label_value(user_name())}"
        with self._cluster.client() as client:
            jobs = _jobs(client, namespace, selector)
            its = replicas.of_app(_pods(client, namespace, selector))
        found: dict[str, list[Mapping[str, Any]]] = {}
        for job in jobs:
            found.setdefault(job["metadata"]["labels"].get(pods.APP, ""), []).append(job)
        listed = [
            Listed(
                f"{namespace}:{name}",
                replicas.status(its_jobs, its.get(name, ())).state,
                its_jobs[0]["metadata"]["labels"].get("app.kubernetes.io/name", name),
                _local(its_jobs[0]["metadata"].get("creationTimestamp")),
            )
            for name, its_jobs in found.items()
        ]
        return sorted(listed, key=lambda each: each.submitted, reverse=True)

    def close(self) -> None:
        """Close the connections; jobs continue."""
        self._cluster.close()

    def _lines(self, app_id: str, query: LogQuery) -> Iterator[str]:
        """Yield the lines of one pod after the other, until the replica or the job is over."""
        namespace, name = _parts(app_id)
        selector = f"{pods.APP}={name},{pods.ROLE}={query.role}"
        seen: set[str] = set()
        while True:
            with self._cluster.client() as client:
                its = replicas.of_replica(_pods(client, namespace, selector))
                jobs = _jobs(client, namespace, f"{pods.APP}={name}")
                over = not jobs or replicas.status(jobs, ()).state.is_over
                fresh = [
                    pod
                    for pod in its.get((query.role, query.replica), [])
                    if pod["metadata"]["uid"] not in seen and _has_started(pod)
                ]
                for pod in fresh:
                    seen.add(pod["metadata"]["uid"])
                    yield from _all_lines_of(client, namespace, pod["metadata"]["name"], query)
            if not query.follow or (over and not fresh):
                return
            if not fresh:
                time.sleep(_POLL_S)


def _parts(app_id: str) -> tuple[str, str]:
    """Return the namespace and the name of a job."""
    namespace, colon, name = app_id.partition(":")
    if not colon or not name:
        raise UsageError(f"{app_id} is no job of Kubernetes", hint="NAMESPACE:NAME")
    return namespace, name


def _unknown(app_id: str) -> UsageError:
    return UsageError(f"no job {app_id} on this cluster", hint="relight list -s kubernetes")


def _core(client: Any) -> Any:
    import kubernetes

    return kubernetes.client.CoreV1Api(client)


def _batch(client: Any) -> Any:
    import kubernetes

    return kubernetes.client.BatchV1Api(client)


def _json(call: Callable[..., Any], *arguments: Any, **options: Any) -> dict[str, Any]:
    """Return the server's answer as it is: the client's classes differ between its versions."""
    answer: dict[str, Any] = json.loads(call(*arguments, **options, _preload_content=False).data)
    return answer


def _create(client: Any, namespace: str, each: Mapping[str, Any]) -> Mapping[str, Any]:
    api = _batch(client) if each["kind"] == "Job" else _core(client)
    make = {
        "Job": "create_namespaced_job",
        "Service": "create_namespaced_service",
        "ConfigMap": "create_namespaced_config_map",
        "Secret": "create_namespaced_secret",
    }[each["kind"]]
    return _json(getattr(api, make), namespace, dict(each), field_validation="Strict")


def _adopt(client: Any, namespace: str, made: Sequence[Mapping[str, Any]]) -> None:
    """Make the first Job the owner of all else: whoever deletes it, by whatever tool, leaves
    nothing behind.
    """
    owner = next(each for each in made if each["kind"] == "Job")
    reference = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    patch = {"metadata": {"ownerReferences": [reference]}}
    core, batch = _core(client), _batch(client)
    for each in made:
        own = each["metadata"]["name"]
        match each["kind"]:
            case "Service":
                _json(core.patch_namespaced_service, own, namespace, patch)
            case "ConfigMap":
                _json(core.patch_namespaced_config_map, own, namespace, patch)
            case "Secret":
                _json(core.patch_namespaced_secret, own, namespace, patch)
            case "Job" if own != reference["name"]:
                _json(batch.patch_namespaced_job, own, namespace, patch)


def _remove(client: Any, namespace: str, name: str) -> bool:
    """Delete all objects of a job; return whether there were any."""
    core, batch = _core(client), _batch(client)
    selector = f"{pods.APP}={name}"
    found = False
    for listing, deleting, options in (
        (batch.list_namespaced_job, batch.delete_namespaced_job,
         {"propagation_policy": "Background"}),
        (core.list_namespaced_service, core.delete_namespaced_service, {}),
        (core.list_namespaced_config_map, core.delete_namespaced_config_map, {}),
        (core.list_namespaced_secret, core.delete_namespaced_secret, {}),
    ):  # fmt: skip
        for each in _json(listing, namespace, label_selector=selector)["items"]:
            found = True
            with _unless_gone():
                _json(deleting, each["metadata"]["name"], namespace, **options)
    return found


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    import kubernetes

    try:
        yield
    except kubernetes.client.ApiException as error:
        if error.status not in _GONE:
            raise


def _jobs(client: Any, namespace: str, selector: str) -> list[Mapping[str, Any]]:
    listed = _json(_batch(client).list_namespaced_job, namespace, label_selector=selector)
    return sorted(listed["items"], key=lambda job: str(job["metadata"]["name"]))


def _pods(client: Any, namespace: str, selector: str) -> list[Mapping[str, Any]]:
    listed = _json(_core(client).list_namespaced_pod, namespace, label_selector=selector)
    found: list[Mapping[str, Any]] = listed["items"]
    return found


def _has_started(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Running", "Succeeded", "Failed")


def _all_lines_of(client: Any, namespace: str, pod: str, query: LogQuery) -> Iterator[str]:
    """Yield the lines of a pod; if the connection is lost while they are followed, go on with the
    next one.
    """
    import urllib3

    seen, tries = 0, _TRIES
    while True:
        try:
            for line in islice(_lines_of(client, namespace, pod, query), seen, None):
                seen, tries = seen + 1, _TRIES
                yield line
        except urllib3.exceptions.HTTPError:
            tries -= 1
            if not query.follow or not tries:
                raise
            time.sleep(_POLL_S)
        else:
            return


def _lines_of(client: Any, namespace: str, pod: str, query: LogQuery) -> Iterator[str]:
    """Yield the lines of a pod, within the times of the query."""
    import kubernetes

    timed = query.since is not None or query.until is not None
    options: dict[str, Any] = {"follow": query.follow, "timestamps": timed, "container": "main"}
    if query.since is not None:
        age = (datetime.now(UTC) - query.since.astimezone(UTC)).total_seconds()
        options["since_seconds"] = max(1, int(age) + 1)
    try:
        stream = _core(client).read_namespaced_pod_log(
            pod, namespace, _preload_content=False, **options
        )
    except kubernetes.client.ApiException as error:
        if error.status in (*_GONE, _STARTS):  # the pod was removed, or starts
            return
        raise
    with contextlib.closing(stream):
        rest = b""
        for data in stream.stream(1 << 16, decode_content=True):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield from _within(line.decode(errors="replace"), query, timed)
        if rest:
            yield from _within(rest.decode(errors="replace"), query, timed)


def _within(line: str, query: LogQuery, timed: bool) -> Iterator[str]:
    if not timed:
        yield line
        return
    stamp, _, text = line.partition(" ")
    try:
        at = datetime.fromisoformat(stamp)
    except ValueError:
        raise MachineError(f"the API server sent a log line without a time: {line[:80]}") from None
    if (query.since is None or at >= query.since) and (query.until is None or at <= query.until):
        yield text


def _local(stamp: Any) -> str:
    try:
        at = datetime.fromisoformat(str(stamp))
    except ValueError:
        return ""
    return at.astimezone().isoformat(timespec="seconds")
