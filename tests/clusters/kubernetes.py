"""A stand-in for a Kubernetes cluster, as no API server can be installed here: an HTTP server that
keeps objects, makes the pods of Indexed Jobs, and runs the command of each pod as a process.

    with ApiServer(directory) as server:
        server.kubeconfig   # for the variable KUBECONFIG

What it does as a real one: names must be unique (409), objects have uid, resourceVersion and
times, lists take label selectors and do not repeat the kind, patches are JSON patches and say so,
a dry run makes nothing, an owner's deletion deletes what it owns, a failed pod is judged by
podFailurePolicy, backoffLimit and backoffLimitPerIndex, and the kubelet's `$(NAME)` is expanded.
JobSets, TrainJobs and Jobs of Volcano make Jobs and pods as their controllers do, but know only
what relight says in them. A namespace must exist (404), as must the service account and the
priority class of a pod: the server refuses the pod, not the Job, and an event says so. Kueue, where
there is one, suspends what names a queue until the queue exists. It checks neither schemas nor
quotas of resources, and all pods share this host: they run on loopback, and the host names of pods
are replaced by it.
"""

import base64
import contextlib
import datetime
import json
import os
import re
import signal
import ssl
import subprocess
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from conftest import LIMIT_S
from etcd_server import Certificates, free_ports
from netlab import Lab

Object = dict[str, Any]
INDEX = "batch.kubernetes.io/job-completion-index"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
KINDS = {
    "services": ("v1", "Service"),
    "configmaps": ("v1", "ConfigMap"),
    "secrets": ("v1", "Secret"),
    "pods": ("v1", "Pod"),
    "events": ("v1", "Event"),
    "workloads": ("kueue.x-k8s.io/v1beta1", "Workload"),
    "jobs": ("batch/v1", "Job"),
    "jobsets": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    "jobs.volcano": ("batch.volcano.sh/v1alpha1", "Job"),
    "trainjobs": ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
}
QUEUE = "kueue.x-k8s.io/queue-name"
VOLCANO_INDEX = "volcano.sh/task-index"
VOLCANO_RETRIES = "volcano.sh/job-retry-count"
_PATH = re.compile(
    r"/(api/v1|apis/[^/]+/\w+)/namespaces/([^/]+)/(\w+)(?:/([^/]+))?(?:/(log|status))?"
)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ApiServer:
    """The server, its controller and its kubelet.

    Attributes:
        objects: by namespace, plural and name.
        refuse: called with method, plural and body; returns a status and a message to refuse it.
        unschedulable: indexes of pods that find no node.
        namespaces, accounts, classes: the namespaces that exist, and the service accounts and
            priority classes.
        restricted: the namespaces that enforce the Pod Security Standard of this name.
        quotas: how many pods a namespace may have.
        queues: those of Kueue; None: it is not installed.
    """

    def __init__(self, directory: Path, certificates: Certificates | None = None) -> None:
        self.directory = directory
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.refuse: Callable[[str, str, Object], tuple[int, str] | None] = lambda *_: None
        self.unschedulable: set[int] = set()
        self.namespaces = {"ns", "team-a", "other"}
        self.accounts = {"default"}
        self.classes: set[str] = set()
        self.restricted: set[str] = set()
        self.quotas: dict[str, int] = {}
        self.queues: set[str] | None = None
        self.lab: Lab | None = None
        """Hosts with the names of the pods in which they run, as a cluster's nodes; None: all pods
        run on this host.
        """
        self.installed = set(KINDS) - {"workloads"}
        """The kinds that this cluster knows; of the others it answers 404."""
        self.dry_runs: list[str] = []
        """The plurals of objects that were only checked."""
        self.selectors: list[str] = []
        """Those of all lists that were asked for."""
        self.drops = 0
        """How many connections for logs are dropped after their first data."""
        self.waiting: dict[str, str] = {}
        """What each container waits for: reason and message."""
        self.token = ""
        """What clients have to prove themselves with; empty if they need not."""
        self._lock = threading.RLock()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._is_closed = False
        self._version = 0
        self._port = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                outer.answer(self)

            do_GET = do_POST = do_PATCH = do_DELETE = handle_any

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self.port = int(self._server.server_address[1])
        self.url = f"http{'s' if certificates else ''}://127.0.0.1:{self.port}"
        if certificates is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificates.server, certificates.server_key)
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.kubeconfig = directory / "kubeconfig"

    def __enter__(self) -> "ApiServer":
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                    "contexts": [
                        {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}
                    ],
                    "current-context": "x",
                }
            )
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        with self._lock:  # a pod that ends may be replaced just now
            self._is_closed = True
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def of(self, plural: str) -> list[Object]:
        """All objects of a kind."""
        with self._lock:
            return [each for (_, its, _), each in self.objects.items() if its == plural]

    # The API.

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = urllib.parse.urlsplit(handler.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        size = int(handler.headers.get("Content-Length") or 0)
        body = json.loads(handler.rfile.read(size) or b"null") if size else {}
        match = _PATH.fullmatch(url.path)
        if match is None:
            self._send(handler, 404, {"message": f"no such path: {url.path}"})
            return
        group, namespace, plural, name, part = match.groups()
        plural = "jobs.volcano" if "volcano" in group else plural
        method = handler.command
        if plural not in self.installed or group.partition("/")[2] != KINDS[plural][0]:
            self._send(handler, 404, {"message": "the server could not find the resource"})
        elif self.token and handler.headers.get("Authorization") != f"bearer {self.token}":
            self._send(handler, 401, {"kind": "Status", "message": "Unauthorized"})
        elif method == "PATCH" and (why := _bad_patch(handler, plural, body)):
            self._send(handler, 415, {"message": why})
        elif refused := self.refuse(method, plural, body):
            self._send(handler, refused[0], {"kind": "Status", "message": refused[1]})
        elif part == "log":
            self._send_log(handler, namespace, name, query)
        else:
            code, found = self._change(method, namespace, plural, name, body, query)
            self._send(handler, code, found)

    def _change(
        self,
        method: str,
        namespace: str,
        plural: str,
        name: str | None,
        body: Object,
        query: Object,
    ) -> tuple[int, Object]:
        with self._lock:
            if method == "GET" and name is None:
                return 200, self._list(namespace, plural, query)
            if method == "POST":
                if namespace not in self.namespaces:
                    return 404, {"message": f'namespaces "{namespace}" not found', "code": 404}
                return self._make(namespace, plural, body, query)
            key = (namespace, plural, name or "")
            if key not in self.objects:
                return 404, {"message": f'{plural} "{name}" not found', "code": 404}
            if method == "PATCH":
                for each in body:
                    _add(self.objects[key], each["path"], each["value"])
                self._touch(self.objects[key])
                self._controller(plural)(self.objects[key])
            elif method == "DELETE":
                self._delete(key)
                return 200, {"kind": "Status", "status": "Success"}
            return 200, self.objects[key]

    def _list(self, namespace: str, plural: str, query: Object) -> Object:
        selector = query.get("labelSelector", "")
        self.selectors.append(selector)
        fields = dict(
            pair.split("=", 1) for pair in query.get("fieldSelector", "").split(",") if pair
        )
        wanted = dict(pair.split("=", 1) for pair in selector.split(",") if pair)
        items = [
            each
            for (its, kind, _), each in self.objects.items()
            if (its, kind) == (namespace, plural)
            and wanted.items() <= (each["metadata"].get("labels") or {}).items()
            and all(each.get(name) == value for name, value in fields.items())
        ]
        version, kind = KINDS[plural]
        meta = {"resourceVersion": str(self._version)}
        items = [{k: v for k, v in x.items() if k not in ("kind", "apiVersion")} for x in items]
        return {"apiVersion": version, "kind": f"{kind}List", "metadata": meta, "items": items}

    def _make(self, namespace: str, plural: str, body: Object, query: Object) -> tuple[int, Object]:
        name = body["metadata"]["name"]
        key = (namespace, plural, name)
        if key in self.objects:
            return 409, {"message": f'{plural} "{name}" already exists', "code": 409}
        if query.get("dryRun"):
            self.dry_runs.append(plural)
            return 201, body
        body["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
        self.objects[key] = body
        self._touch(body)
        if plural in ("jobs", "jobsets", "jobs.volcano", "trainjobs"):
            body["status"] = {}
        if self.queues is not None and QUEUE in (body["metadata"].get("labels") or {}):
            self._enqueue(body)
        self._controller(plural)(body)
        return 201, body

    def _enqueue(self, each: Object) -> None:
        """Do as Kueue: suspend an object until its queue takes it, and say why it does not."""
        meta = each["metadata"]
        if (queue := meta["labels"][QUEUE]) in (self.queues or ()):
            return
        each["spec"]["suspend"] = True
        reserved = {
            "type": "QuotaReserved", "status": "False", "reason": "Inadmissible",
            "message": f"LocalQueue {queue} doesn't exist",
        }  # fmt: skip
        metadata = {
            "name": f"{each['kind'].lower()}-{meta['name']}-abcde", "namespace": meta["namespace"],
            "uid": str(uuid.uuid4()), "labels": {"kueue.x-k8s.io/job-uid": meta["uid"]},
            "ownerReferences": [{"kind": each["kind"], "name": meta["name"], "uid": meta["uid"]}],
        }  # fmt: skip
        self.objects[(meta["namespace"], "workloads", metadata["name"])] = {
            "metadata": metadata, "status": {"conditions": [reserved]}
        }  # fmt: skip

    def add_queue(self, name: str) -> None:
        """Make a queue of Kueue, which takes what waits for it."""
        with self._lock:
            assert self.queues is not None
            self.queues.add(name)
            for (_, plural, _), each in list(self.objects.items()):
                if (each["metadata"].get("labels") or {}).get(QUEUE) == name and "spec" in each:
                    each["spec"]["suspend"] = False
                    self._controller(plural)(each)

    def warn(self, about: Object, reason: str, message: str) -> None:
        """Make an event."""
        meta = about["metadata"]
        involved = {"kind": about["kind"], "name": meta["name"], "uid": meta["uid"]}
        name = f"{meta['name']}.{uuid.uuid4().hex[:16]}"
        self.objects[(meta["namespace"], "events", name)] = {
            "metadata": {"name": name, "uid": str(uuid.uuid4()), "creationTimestamp": now()},
            "involvedObject": involved, "type": "Warning", "reason": reason, "message": message,
            "lastTimestamp": now(),
        }  # fmt: skip

    def admit(self) -> None:
        """Let the controllers try again what was refused."""
        with self._lock:
            for (_, plural, _), each in list(self.objects.items()):
                self._controller(plural)(each)

    def _controller(self, plural: str) -> Callable[[Object], None]:
        controllers = {
            "jobs": self._control,
            "jobsets": self._control_jobset,
            "jobs.volcano": self._control_volcano,
            "trainjobs": self._control_trainjob,
        }
        return controllers.get(plural, lambda _: None)

    def _touch(self, each: Object) -> None:
        self._version += 1
        each["metadata"]["resourceVersion"] = str(self._version)

    def _delete(self, key: tuple[str, str, str]) -> None:
        each = self.objects.pop(key)
        uid = each["metadata"]["uid"]
        if key[1] == "pods":
            self._stop(uid)
        for other, its in list(self.objects.items()):
            owners = its["metadata"].get("ownerReferences") or []
            if any(owner["uid"] == uid for owner in owners) and other in self.objects:
                self._delete(other)

    def _send(self, handler: BaseHTTPRequestHandler, code: int, body: Object) -> None:
        data = json.dumps(body).encode()
        handler.send_response(code)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        if code == 429:
            handler.send_header("Retry-After", "1")
        handler.end_headers()
        handler.wfile.write(data)

    def _send_log(
        self, handler: BaseHTTPRequestHandler, namespace: str, name: str, query: Object
    ) -> None:
        with self._lock:
            pod = self.objects.get((namespace, "pods", name))
        path = self.directory / f"{name}.log"
        if pod is None or not path.exists():
            self._send(handler, 404 if pod is None else 400, {"message": f"no logs of {name}"})
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/plain")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        with path.open("rb") as file, contextlib.suppress(OSError):
            while True:
                over = query.get("follow", "").lower() != "true" or self._is_over(pod)
                if data := file.read(1 << 16):
                    handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                    if self.drops:
                        self.drops -= 1
                        handler.close_connection = True
                        return
                elif over:
                    handler.wfile.write(b"0\r\n\r\n")
                    return
                else:
                    time.sleep(0.02)

    @staticmethod
    def _is_over(pod: Object) -> bool:
        return pod["status"].get("phase") in ("Succeeded", "Failed")

    # The Job controller.

    def _control(self, job: Object) -> None:
        """Make the pods that a Job lacks, end those that it must not have, or end the Job."""
        spec, status, meta = job["spec"], job["status"], job["metadata"]
        if any(x["type"] in ("Complete", "Failed") for x in status.get("conditions", ())):
            return
        mine = [
            pod
            for pod in self.of("pods")
            if pod["metadata"]["ownerReferences"][0]["uid"] == meta["uid"]
        ]
        if spec.get("suspend"):
            for pod in mine:
                self._delete((meta["namespace"], "pods", pod["metadata"]["name"]))
            if not any(x["type"] == "Suspended" for x in status.get("conditions", ())):
                self._condition(job, "Suspended", "")
            return
        status["conditions"] = [x for x in status.get("conditions", ()) if x["type"] != "Suspended"]
        if why := self._failure(spec, mine):
            self._condition(job, "Failed", why)
            return
        done = {_index(pod) for pod in mine if pod["status"]["phase"] == "Succeeded"}
        least = spec["completions"]
        for rule in (spec.get("successPolicy") or {}).get("rules", ()):
            least = rule["succeededCount"]
        if len(done) >= least:
            self._condition(job, "Complete", "")
            return
        live = {_index(pod) for pod in mine if not self._is_over(pod)}
        counted = _failures(spec, mine)
        for index in sorted(set(range(spec["completions"])) - done - live):
            name = f"{meta['name']}-{index}-{uuid.uuid4().hex[:5]}"
            number = {INDEX: str(index)}
            if "backoffLimitPerIndex" in spec:
                number[FAILURES] = str(counted.get(index, 0))
                failed = [x for x in mine if _index(x) == index and self._is_over(x)]
                if ignored := len(failed) - counted.get(index, 0):
                    number[IGNORED] = str(ignored)
            self._make_pod(job, spec["template"], name, number)

    def _failure(self, spec: Object, mine: list[Object]) -> str:
        """Return why a Job has failed by its failed pods, or an empty text."""
        for pod in mine:
            if pod["status"]["phase"] == "Failed" and _action(spec, pod) == "FailJob":
                return f"Container main for pod {pod['metadata']['name']} failed"
        counted = _failures(spec, mine)
        each = spec.get("backoffLimitPerIndex")
        if each is not None and any(number > each for number in counted.values()):
            return "Job has failed indexes"
        if each is None and sum(counted.values()) > spec.get("backoffLimit", 6):
            return "Job has reached the specified backoff limit"
        return ""

    def _condition(self, job: Object, kind: str, message: str) -> None:
        job["status"].setdefault("conditions", []).append(
            {"type": kind, "status": "True", "message": message, "lastTransitionTime": now()}
        )
        if kind in ("Failed", "Complete"):
            for pod in self.of("pods"):
                owner = pod["metadata"]["ownerReferences"][0]["uid"]
                if owner == job["metadata"]["uid"] and not self._is_over(pod):
                    self._stop(pod["metadata"]["uid"])
            self._tell_owner(job)

    def _own(self, owner: Object, plural: str, name: str, labels: Object, spec: Object) -> Object:
        """Make an object that another one owns, if it does not exist; return it."""
        meta, (version, kind) = owner["metadata"], KINDS[plural]
        key = (meta["namespace"], plural, name)
        if key not in self.objects:
            reference = {"uid": meta["uid"], "kind": owner["kind"], "name": meta["name"]}
            metadata = {"name": name, "namespace": meta["namespace"], "labels": dict(labels)}
            metadata["ownerReferences"] = [reference]
            body = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
            self._make(meta["namespace"], plural, body, {})
        return self.objects[key]

    def _control_jobset(self, jobset: Object) -> None:
        """Make the Jobs of a JobSet, and end it as they end."""
        spec, name = jobset["spec"], jobset["metadata"]["name"]
        suspended = bool(spec.get("suspend"))
        ends = []
        for each in spec["replicatedJobs"]:
            template = each["template"]
            labels = (template.get("metadata") or {}).get("labels") or {}
            own = f"{name}-{each['name']}-0"
            job = self._own(jobset, "jobs", own, labels, {**template["spec"], "suspend": suspended})
            if job["spec"]["suspend"] != suspended:
                job["spec"]["suspend"] = suspended
                self._control(job)
            ends.append({x["type"] for x in job["status"].get("conditions", ())})
        if suspended:
            self._end(jobset, "Suspended")
        elif any("Failed" in its for its in ends):
            self._end(jobset, "Failed")
        elif all("Complete" in its for its in ends):
            self._end(jobset, "Completed")

    def _control_trainjob(self, trainjob: Object) -> None:
        """Make the JobSet of a TrainJob by the runtime torch-distributed, and end as it ends."""
        spec, name = trainjob["spec"], trainjob["metadata"]["name"]
        trainer = spec["trainer"]
        (patch,) = spec["runtimePatches"]
        (step,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        pod = json.loads(json.dumps(step["template"]["spec"]["template"]))
        (container,) = pod["spec"]["containers"]
        container |= {key: trainer[key] for key in ("image", "command", "env")}
        pod["spec"] |= {"restartPolicy": "Never"}
        job = {
            "completions": trainer["numNodes"],
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": pod,
        }
        template = {"metadata": step["template"]["metadata"], "spec": job}
        jobs = [{"name": step["name"], "replicas": 1, "template": template}]
        jobset = self._own(trainjob, "jobsets", name, {}, {"replicatedJobs": jobs})
        if bool(spec.get("suspend")) != bool(jobset["spec"].get("suspend")):
            jobset["spec"]["suspend"] = bool(spec.get("suspend"))
            self._control_jobset(jobset)
        ends = {x["type"] for x in jobset["status"].get("conditions", ())}
        for theirs, ours in (
            ("Suspended", "Suspended"), ("Failed", "Failed"), ("Completed", "Complete")
        ):  # fmt: skip
            if theirs in ends:
                self._end(trainjob, ours)

    def _end(self, each: Object, kind: str) -> None:
        """Add a condition to an object that makes Jobs, and tell its owner."""
        conditions = each["status"].setdefault("conditions", [])
        if all(x["type"] != kind for x in conditions):
            conditions.append({"type": kind, "status": "True", "message": ""})
            self._tell_owner(each)

    def _tell_owner(self, each: Object) -> None:
        for owner in each["metadata"].get("ownerReferences") or ():
            for (_, plural, _), other in list(self.objects.items()):
                if other["metadata"]["uid"] == owner["uid"]:
                    self._controller(plural)(other)

    def _control_volcano(self, job: Object) -> None:
        """Make the pods of a Job of Volcano that it lacks, or end it."""
        spec, meta = job["spec"], job["metadata"]
        state = job["status"].setdefault("state", {"phase": "Pending"})
        mine = [
            pod
            for pod in self.of("pods")
            if pod["metadata"]["ownerReferences"][0]["uid"] == meta["uid"]
        ]
        phases = [pod["status"]["phase"] for pod in mine]
        if state["phase"] in ("Completed", "Failed", "Terminated", "Aborted"):
            pass
        elif "Failed" in phases:
            policy = spec["policies"][-1]
            retries = job["status"].get("retryCount", 0)
            if policy["action"] == "RestartJob" and retries + 1 < spec["maxRetry"]:
                job["status"]["retryCount"] = retries + 1
                for pod in mine:
                    self._delete((meta["namespace"], "pods", pod["metadata"]["name"]))
                mine = []
            else:
                state["phase"] = "Terminated" if policy["action"] != "RestartJob" else "Failed"
        elif phases.count("Succeeded") >= spec.get("minSuccess", max(1, self._size(spec))):
            state["phase"] = "Completed"
        if state["phase"] in ("Completed", "Failed", "Terminated", "Aborted"):
            for pod in mine:
                if not self._is_over(pod):
                    self._stop(pod["metadata"]["uid"])
            return
        names = {pod["metadata"]["name"] for pod in mine}
        retried = job["status"].get("retryCount", 0)
        for task in spec["tasks"]:
            for number in range(task["replicas"]):
                name = f"{meta['name']}-{task['name']}-{number}"
                if name not in names:
                    state["phase"] = "Running"
                    marks = {VOLCANO_INDEX: str(number), VOLCANO_RETRIES: str(retried)}
                    self._make_pod(job, task["template"], name, marks)

    @staticmethod
    def _size(spec: Object) -> int:
        return sum(task["replicas"] for task in spec["tasks"])

    def _make_pod(self, job: Object, template: Object, name: str, number: dict[str, str]) -> None:
        meta = job["metadata"]
        index = int(next(iter(number.values())))
        owner = {"kind": job["kind"], "name": meta["name"], "uid": meta["uid"]}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "uid": str(uuid.uuid4()),
                "creationTimestamp": now(),
                "labels": {**template["metadata"]["labels"], **number},
                "annotations": {**number, INDEX: str(index)},
                "ownerReferences": [owner],
            },
            "spec": json.loads(json.dumps(template["spec"])),
            "status": {"phase": "Pending"},
        }
        if why := self._refusal(pod):
            said = f'Error creating: pods "{name}" is forbidden: {why}'
            self.warn(job, "FailedCreate", said)
            return
        self.objects[(meta["namespace"], "pods", name)] = pod
        if index in self.unschedulable:
            said = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
            condition = {"type": "PodScheduled", "status": "False", "message": said}
            pod["status"] |= {"conditions": [{**condition, "reason": "Unschedulable"}]}
        elif self.waiting:
            state = {"state": {"waiting": dict(self.waiting)}, "name": "main"}
            pod["status"] |= {"containerStatuses": [state]}
        else:
            self._run(pod, index)

    def _refusal(self, pod: Object) -> str:
        """Return why the server refuses a pod: what the admission of Kubernetes says."""
        namespace = pod["metadata"]["namespace"]
        account = pod["spec"].get("serviceAccountName", "default")
        if account not in self.accounts:
            where = f"{namespace}/{account}"
            said = f'serviceaccount "{account}" not found'
            return f"error looking up service account {where}: {said}"
        name = pod["spec"].get("priorityClassName")
        if name is not None and name not in self.classes:
            return f"no PriorityClass with name {name} was found"
        said = pod["spec"].get("securityContext") or {}
        if namespace in self.restricted and not said.get("runAsNonRoot"):
            return 'violates PodSecurity "restricted:latest": runAsNonRoot != true'
        used = sum(not self._is_over(each) for each in self.of("pods"))
        if used >= self.quotas.get(namespace, used + 1):
            limit = self.quotas[namespace]
            return f"exceeded quota: q, requested: pods=1, used: pods={used}, limited: pods={limit}"
        return ""

    # The kubelet.

    def _run(self, pod: Object, index: int) -> None:
        if self._is_closed:
            return
        container, name = pod["spec"]["containers"][0], pod["metadata"]["name"]
        variables = self._variables(pod, container, index)

        def expanded(text: str) -> str:
            return re.sub(
                r"\$(?:\$|\(([\w.-]+)\))",
                lambda m: "$" if m[0] == "$$" else variables.get(m[1], m[0]),
                text,
            )

        words = [expanded(word) for word in container["command"]]
        for volume in pod["spec"].get("volumes", ()):
            if "configMap" in volume:
                words = [w.replace("/opt/relight", str(self._files(pod, volume))) for w in words]
            if "downwardAPI" in volume:
                (self.directory / "pod").touch()
                words = [w.replace("/etc/relight", str(self.directory)) for w in words]
        pod["spec"]["nodeName"] = f"node{index}"
        if self.lab is not None:
            words = [*self.lab[self._host(pod, index)].entrance, *words]
        log = (self.directory / f"{name}.log").open("ab")
        process = subprocess.Popen(
            words,
            env={"PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": str(index), **variables},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        self._processes[pod["metadata"]["uid"]] = process
        state = {"name": "main", "state": {"running": {"startedAt": now()}}}
        pod["status"] |= {"phase": "Running", "containerStatuses": [state]}
        threading.Thread(target=self._wait, args=(pod, process), daemon=True).start()

    def _variables(self, pod: Object, container: Object, index: int) -> dict[str, str]:
        """Return the variables of a container; on loopback, pods meet at one free port."""
        found: dict[str, str] = {}
        for each in container.get("env", ()):
            source = each.get("valueFrom") or {}
            if "fieldRef" in source:
                part, key = re.fullmatch(
                    r"metadata\.(labels|annotations)\['(.*)'\]", source["fieldRef"]["fieldPath"]
                ).groups()  # type: ignore[union-attr]
                found[each["name"]] = pod["metadata"][part].get(key, "")
            elif "secretKeyRef" in source:
                key = (pod["metadata"]["namespace"], "secrets", source["secretKeyRef"]["name"])
                found[each["name"]] = self.objects[key]["stringData"][source["secretKeyRef"]["key"]]
            else:
                found[each["name"]] = each["value"].replace("$$", "$")
        if "RELIGHT_RANK0_HOST" in found and self.lab is None:
            found["RELIGHT_RANK0_HOST"] = "127.0.0.1"
        return found

    @staticmethod
    def _host(pod: Object, index: int) -> str:
        owner = pod["metadata"]["ownerReferences"][0]["name"]
        return f"{owner}-{index}.{pod['spec']['subdomain']}"

    def _files(self, pod: Object, volume: Object) -> Path:
        """Write the files of a ConfigMap; return their directory."""
        name = volume["configMap"]["name"]
        folder = self.directory / name
        folder.mkdir(exist_ok=True)
        known = self.objects[(pod["metadata"]["namespace"], "configmaps", name)]
        for file, data in known["binaryData"].items():
            path = folder / file
            if not path.exists():
                path.write_bytes(base64.b64decode(data))
                path.chmod(volume["configMap"]["defaultMode"])
        return folder

    def _wait(self, pod: Object, process: "subprocess.Popen[bytes]") -> None:
        code = process.wait()
        code = 128 - code if code < 0 else code
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now()}
        with self._lock:
            state = {"name": "main", "state": {"terminated": ended}}
            phase = "Failed" if code else "Succeeded"
            pod["status"] |= {"phase": phase, "containerStatuses": [state]}
            self._tell_owner(pod)

    def _stop(self, uid: str) -> None:
        process = self._processes.get(uid)
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)

    def find_nodes(self) -> None:
        """Let all pods that wait for a node run."""
        with self._lock:
            self.unschedulable = set()
            for pod in self.of("pods"):
                if pod["status"]["phase"] == "Pending":
                    self._run(pod, _index(pod))

    def evict(self, index: int) -> None:
        """Drain the node of a replica: its pod is ended, and marked as disrupted."""
        with self._lock:
            for pod in self.of("pods"):
                if _index(pod) == index and pod["status"]["phase"] == "Running":
                    lost = {"type": "DisruptionTarget", "status": "True"}
                    pod["status"]["conditions"] = [lost]
                    self._stop(pod["metadata"]["uid"])

    def time_out(self, index: int) -> None:
        """End the pod of a replica as if its activeDeadlineSeconds were over."""
        with self._lock:
            for pod in self.of("pods"):
                if _index(pod) == index and pod["status"]["phase"] == "Running":
                    said = "Pod was active on the node longer than the specified deadline"
                    pod["status"] |= {"reason": "DeadlineExceeded", "message": said}
                    self._stop(pod["metadata"]["uid"])

    def lose(self, index: int) -> None:
        """The node of a replica fails, and no other one is free."""
        assert self.lab is not None
        self.unschedulable = {index}
        (pod,) = (x for x in self.of("pods") if _index(x) == index)
        pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
        self.lab.cut(self._host(pod, index))
        self._processes[pod["metadata"]["uid"]].kill()


def _index(pod: Object) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def _failures(spec: Object, pods: list[Object]) -> dict[int, int]:
    """Return how often the pods of each index have failed, as the backoff limits count it."""
    counted: dict[int, int] = {}
    for pod in pods:
        if pod["status"]["phase"] == "Failed" and _action(spec, pod) != "Ignore":
            counted[_index(pod)] = counted.get(_index(pod), 0) + 1
    return counted


def _action(spec: Object, pod: Object) -> str:
    """Return what podFailurePolicy says about a failed pod."""
    conditions = {each["type"] for each in pod["status"].get("conditions", ())}
    code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
    for rule in (spec.get("podFailurePolicy") or {}).get("rules", ()):
        if any(each["type"] in conditions for each in rule.get("onPodConditions", ())):
            return str(rule["action"])
        codes = rule.get("onExitCodes")
        if codes and (code in codes["values"]) == (codes["operator"] == "In"):
            return str(rule["action"])
    return "Count"


def _bad_patch(handler: BaseHTTPRequestHandler, plural: str, body: Any) -> str:
    """Return why a patch is no JSON patch, or an empty text."""
    said = handler.headers.get("Content-Type") or ""
    if said == "application/json-patch+json" and isinstance(body, list):
        return ""
    return f"{said} is no type of a patch of {plural}"


def _add(one: Object, path: str, value: Any) -> None:
    """Apply an operation `add` of a JSON patch (RFC 6902) to an object."""
    *parts, last = path.removeprefix("/").split("/")
    for part in parts:
        one = one[part]
    one[last] = value


def free_port() -> int:
    return free_ports(1)[0]


@contextlib.contextmanager
def until(condition: Callable[[], Any]) -> Iterator[None]:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it does not become true"
        time.sleep(0.02)
    yield
