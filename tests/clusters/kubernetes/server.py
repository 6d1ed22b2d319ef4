"""The API server: HTTP access to the objects, and what tests do to the cluster.

Sources: kubernetes/apiserver 0.33, pkg/endpoints/handlers; kubernetes/apimachinery 0.36.
"""

import contextlib
import json
import re
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from conftest import LIMIT_S
from etcd_server import Certificates, free_ports
from netlab import Lab

from clusters.kubernetes import apply, jobs, jobsets, validation
from clusters.kubernetes.admission import Admission
from clusters.kubernetes.kubelet import Kubelet
from clusters.kubernetes.kueue import Kueue
from clusters.kubernetes.state import KINDS, Key, Object, Refused, State, copy, is_over, not_found
from clusters.kubernetes.volcano import Volcano

_PATH = re.compile(
    r"/(api/v1|apis/[^/]+/\w+)/namespaces/([^/]+)/(\w+)(?:/([^/]+))?(?:/(log|status))?"
)
_DISCOVERY = re.compile(r"/(?:api|apis|api/v1|apis/[^/]+/\w+)")


class ApiServer:
    """The server, its controllers, and its kubelets.

    Attributes:
        objects: Objects by namespace, plural, and name.
        refuse: Called with method, plural, and body; returns a status and a message to refuse a
            request.
        namespaces: The namespaces that exist.
        installed: The kinds that this cluster knows; it answers 404 for others.
        dry_runs: The plurals of objects that were only checked.
        selectors: The selectors of all list requests.
        drops: The number of log connections to drop after their first data.
        token: The bearer token that clients must send, or an empty string.
        rights: The user's rights as verb, API group and resource, or None for all rights.
        used: The rights that the user's requests needed.

    The other attributes belong to the admission rules and the kubelet.
    """

    def __init__(self, directory: Path, certificates: Certificates | None = None) -> None:
        self.directory = directory
        self.state = State()
        self.admission = Admission(self.state)
        self.kubelet = Kubelet(self.state, directory)
        self.refuse: Callable[[str, str, Object], tuple[int, str] | None] = lambda *_: None
        self.namespaces = {"ns", "team-a", "other"}
        self.installed = set(KINDS) - {"workloads"}
        self.dry_runs: list[str] = []
        self.selectors: list[str] = []
        self.drops = 0
        self.token = ""
        self.rights: set[tuple[str, str, str]] | None = None
        self.used: set[tuple[str, str, str]] = set()
        self._connect()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                outer.answer(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

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

    def _connect(self) -> None:
        """Connect the parts of the cluster."""
        state, volcano = self.state, Volcano(self.state)
        state.admit_object = self._admit
        state.settled, state.stop = self.kubelet.schedule, self.kubelet.stop
        state.updated = self.kubelet.publish
        state.pod_events.append(volcano.pod_event)
        kueue = Kueue(state, lambda: self.queues)

        def queued(sync: Callable[[State, Object], None]) -> Callable[[Object], None]:
            def sync_both(each: Object) -> None:
                kueue.sync(each)
                sync(state, each)

            return sync_both

        state.controllers = {
            "jobs": queued(jobs.sync),
            "jobsets": queued(jobsets.sync),
            "trainjobs": queued(jobsets.sync_trainjob),
            "jobs.volcano": volcano.sync,
            "workloads": kueue.sync_workload,
        }

    def _admit(self, plural: str, body: Object) -> None:
        self.admission.admit(plural, body)

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
        self.kubelet.close()

    # The interface for tests.

    @property
    def objects(self) -> dict[Key, Object]:
        return self.state.objects

    @property
    def _lock(self) -> threading.RLock:  # type: ignore[valid-type]
        return self.state.lock

    def of(self, plural: str) -> list[Object]:
        """All objects of one kind."""
        return self.state.of(plural)

    @property
    def pods_made(self) -> int:
        """The number of pods ever created, including those deleted by controllers."""
        return self.state.made.count("pods")

    accounts = property(lambda self: self.admission.accounts)
    classes = property(lambda self: self.admission.classes)

    @property
    def restricted(self) -> set[str]:
        return self.admission.restricted

    @restricted.setter
    def restricted(self, names: set[str]) -> None:
        self.admission.restricted = names

    @property
    def quotas(self) -> dict[str, Any]:
        return self.admission.quotas

    @quotas.setter
    def quotas(self, quotas: dict[str, Any]) -> None:
        self.admission.quotas = quotas

    @property
    def queues(self) -> set[str] | None:
        return self.admission.queues

    @queues.setter
    def queues(self, queues: set[str] | None) -> None:
        self.admission.queues = queues
        self.installed.add("workloads")

    @property
    def unschedulable(self) -> set[int]:
        return self.kubelet.unschedulable

    @unschedulable.setter
    def unschedulable(self, indexes: set[int]) -> None:
        self.kubelet.unschedulable = indexes

    @property
    def waiting(self) -> dict[str, str]:
        return self.kubelet.waiting

    @waiting.setter
    def waiting(self, waiting: dict[str, str]) -> None:
        self.kubelet.waiting = waiting

    @property
    def lab(self) -> Lab | None:
        return self.kubelet.lab

    @lab.setter
    def lab(self, lab: Lab | None) -> None:
        self.kubelet.lab = lab

    def warn(self, about: Object, reason: str, message: str) -> None:
        """Create an event."""
        self.state.warn(about, reason, message)

    def admit(self) -> None:
        """Let the controllers retry refused requests."""
        with self.state.changing():
            for each in list(self.objects.values()):
                self.state.enqueue(each)

    def elapse(self, by_s: float) -> None:
        """Advance the cluster's clock, so that limits and expiries are reached immediately."""
        self.state.skip(by_s)
        self.admit()

    def find_nodes(self) -> None:
        """Run all pods that are waiting for a node."""
        self.kubelet.unschedulable = set()
        self.admit()

    def evict(self, index: int) -> None:
        self.kubelet.evict(index)

    def time_out(self, index: int) -> None:
        self.kubelet.time_out(index)

    def lose(self, index: int) -> None:
        self.kubelet.lose(index)

    def delete(self, namespace: str, plural: str, name: str) -> None:
        """Act like `kubectl delete`, which also deletes dependents in the background."""
        with self.state.changing():
            self.state.delete(self.objects[(namespace, plural, name)])

    def _delete(self, key: Key) -> None:
        self.delete(*key)

    def add_queue(self, name: str) -> None:
        """Create a Kueue queue, which admits the objects that are waiting for it."""
        with self.state.changing():
            assert self.admission.queues is not None
            self.admission.queues.add(name)
            for each in list(self.objects.values()):
                self.state.enqueue(each)

    # Requests.

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = urllib.parse.urlsplit(handler.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        size = int(handler.headers.get("Content-Length") or 0)
        raw = handler.rfile.read(size) if size else b""
        kind = (handler.headers.get("Content-Type") or "").partition(";")[0].strip()
        try:
            if _DISCOVERY.fullmatch(url.path):
                self._send(handler, 200, self._discovery(url.path))
                return
            self._check(handler, size)
            match = _PATH.fullmatch(url.path)
            if match is not None:
                self._authorize(handler.command, match)
            if match is not None and match[5] == "log":
                self._send_log(handler, match[2], match[4], query)
                return
            body = apply.load(raw) if raw else {}
            code, found = self.request(handler.command, url.path, query, body, kind)
            self._send(handler, code, found)
        except Refused as refused:
            self._send(handler, refused.code, refused.status)

    def _authorize(self, method: str, match: re.Match[str]) -> None:
        """kubernetes/apiserver, pkg/endpoints/request/requestinfo.go: NewRequestInfo; RBAC grants
        subresources separately (plugin/pkg/auth/authorizer/rbac in kubernetes). The message is from
        pkg/endpoints/handlers/responsewriters/errors.go.
        """
        prefix, namespace, resource, name, part = match.groups()
        verb = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}.get(
            method, "get"
        )
        if not name:
            verb = {"get": "list", "delete": "deletecollection"}.get(verb, verb)
        group = prefix.split("/")[1] if prefix.startswith("apis/") else ""
        what = f"{resource}/{part}" if part else resource
        self.used.add((verb, group, what))
        if self.rights is not None and (verb, group, what) not in self.rights:
            said = f'cannot {verb} resource "{what}" in API group "{group}" in the namespace'
            full = f"{resource}.{group}" if group else resource
            raise Refused(403, "Forbidden", f'{full} is forbidden: User "u" {said} "{namespace}"')

    def _check(self, handler: BaseHTTPRequestHandler, size: int) -> None:
        authorization = handler.headers.get("Authorization") or ""
        if self.token and authorization.lower() != f"bearer {self.token}".lower():
            raise Refused(401, "Unauthorized", "Unauthorized")
        if size > validation.REQUEST_MAX_B:
            said = f"Request entity too large: limit is {validation.REQUEST_MAX_B}"
            raise Refused(413, "RequestEntityTooLarge", said)

    def request(
        self, method: str, path: str, query: dict[str, str], body: Any, kind: str = ""
    ) -> tuple[int, Object]:
        """Return a copy of the response to a request.

        Raises:
            Refused: With the server's code and message.
        """
        match = _PATH.fullmatch(path)
        if match is None:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        group, namespace, plural, name, part = match.groups()
        plural = f"{plural}.volcano" if group == "apis/batch.volcano.sh/v1alpha1" else plural
        version = group.removeprefix("apis/").removeprefix("api/")
        if plural not in self.installed or version != KINDS[plural][0]:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if method == "PATCH":
            apply.check_patch(kind, plural, version, body)
        if refused := self.refuse(method, plural, body):
            reason = {401: "Unauthorized", 403: "Forbidden", 409: "Conflict", 422: "Invalid"}
            raise Refused(refused[0], reason.get(refused[0], "InternalError"), refused[1])
        with self.state.changing():
            code, found = self._change(
                method, (namespace, plural, name or ""), part, query, body, kind
            )
            return code, copy(found)

    def _change(
        self, method: str, key: Key, part: str | None, query: dict[str, str], body: Any, kind: str
    ) -> tuple[int, Object]:
        namespace, plural, name = key
        if method == "GET" and not name:
            return 200, self._list(namespace, plural, query)
        if method == "POST":
            return 201, self._make(namespace, plural, body, query)
        known = self.objects.get(key)
        if method == "PATCH" and kind == apply.APPLY:
            return self._apply(key, known, body, query)
        if known is None:
            raise not_found(plural, name)
        if method == "GET":
            return 200, known
        if method == "DELETE":
            self._remove(known, {**query, **(body or {})})
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        new = copy(known)
        new = body if method == "PUT" else apply.patched(new, body, kind)
        return 200, self._update(known, new, part)

    def _make(self, namespace: str, plural: str, body: Object, query: dict[str, str]) -> Object:
        if namespace not in self.namespaces:
            raise not_found("namespaces", namespace)
        version, kind = KINDS[plural]
        if (body.get("apiVersion"), body.get("kind")) != (version, kind):
            its = f"{body.get('kind')} in version {body.get('apiVersion')}"
            said = f"{its} cannot be handled as a {kind}"
            raise Refused(400, "BadRequest", said)
        its = body["metadata"].get("namespace", namespace)
        if its != namespace:
            said = "the namespace of the provided object does not match that of the request"
            raise Refused(400, "BadRequest", said)
        is_dry = bool(query.get("dryRun"))
        # etcdserver: the store refuses larger objects, after validation.
        found = self.state.create(namespace, copy(body), is_dry)
        if len(json.dumps(found)) > validation.STORED_MAX_B:
            self.objects.pop((namespace, plural, found["metadata"]["name"]), None)
            raise Refused(500, "InternalError", "etcdserver: request is too large")
        if is_dry:
            self.dry_runs.append(plural)
        return found

    def _update(self, known: Object, new: Object, part: str | None) -> Object:
        """kubernetes/apiserver, pkg/registry/rest/update.go: an object update leaves the status
        unchanged, and a /status update leaves everything else unchanged. An old resourceVersion is
        a conflict.
        """
        plural, meta = self.state.plural(known), known["metadata"]
        version = new["metadata"].get("resourceVersion", meta["resourceVersion"])
        if version != meta["resourceVersion"]:
            said = (
                f'Operation cannot be fulfilled on {plural} "{meta["name"]}": the object has been '
            )
            raise Refused(
                409, "Conflict", said + "modified; please apply your changes to the latest"
            )
        if part == "status":
            new = {**known, "status": new.get("status") or {}}
        elif plural != "pods":
            new = {**new, **({"status": known["status"]} if "status" in known else {})}
        if part != "status":
            validation.check_update(plural, known, new)
        if new == known:
            return known
        if new.get("spec") != known.get("spec"):
            new["metadata"]["generation"] = meta.get("generation", 1) + 1
        known.clear()
        known |= new
        self.state.touch(known)
        return known

    def _apply(
        self, key: Key, known: Object | None, body: Object, query: dict[str, str]
    ) -> tuple[int, Object]:
        """Server-side apply."""
        manager = query.get("fieldManager")
        if not manager:
            said = (
                "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value: is required for"
            )
            raise Refused(422, "Invalid", f"{said} apply patch")
        if known is None:
            made = self._make(key[0], key[1], body, query)
            made["metadata"]["managedFields"] = [apply.entry(manager, body)]
            return 201, made
        new = apply.applied(known, body, manager, query.get("force") == "true")
        return 200, self._update(known, new, None)

    def _remove(self, known: Object, options: Object) -> None:
        """kubernetes/apiserver, registry/generic/registry/store.go. By default, deleting a batch/v1
        Job orphans its pods: kubernetes, pkg/registry/batch/job/strategy.go,
        DefaultGarbageCollectionPolicy.
        """
        plural = self.state.plural(known)
        policy = options.get("propagationPolicy")
        if policy is None:
            policy = "Orphan" if plural == "jobs" else "Background"
        grace = options.get("gracePeriodSeconds")
        self.state.delete(known, policy, None if grace is None else float(grace))

    def _list(self, namespace: str, plural: str, query: dict[str, str]) -> Object:
        selector = query.get("labelSelector", "")
        self.selectors.append(selector)
        items = [
            each
            for (its, kind, _), each in self.objects.items()
            if (its, kind) == (namespace, plural)
            and _selects(selector, each["metadata"].get("labels") or {})
            and _matches(query.get("fieldSelector", ""), each)
        ]
        version, kind = KINDS[plural]
        meta = {"resourceVersion": str(self.state.version)}
        items = [{k: v for k, v in x.items() if k not in ("kind", "apiVersion")} for x in items]
        return {"apiVersion": version, "kind": f"{kind}List", "metadata": meta, "items": items}

    def _discovery(self, path: str) -> Object:
        """Answer kubectl's first requests."""
        groups: dict[str, list[str]] = {}
        for version, _ in KINDS.values():
            group, _, number = version.rpartition("/")
            if group and number not in groups.setdefault(group, []):
                groups[group].append(number)
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            listed = []
            for group, numbers in groups.items():
                known = [{"groupVersion": f"{group}/{x}", "version": x} for x in numbers]
                listed.append({"name": group, "versions": known, "preferredVersion": known[0]})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        wanted = path.removeprefix("/apis/").removeprefix("/api/")
        verbs = ["create", "delete", "get", "list", "patch", "update"]
        resources = [
            {"name": plural.partition(".")[0], "singularName": kind.lower(), "namespaced": True,
             "kind": kind, "verbs": verbs}
            for plural, (version, kind) in KINDS.items()
            if version == wanted and plural in self.installed
        ]  # fmt: skip
        if not resources:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": wanted,
                "resources": resources}  # fmt: skip

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
        self, handler: BaseHTTPRequestHandler, namespace: str, name: str, query: dict[str, str]
    ) -> None:
        """Send a pod's log, which exists as long as the pod does."""
        if refused := self.refuse(handler.command, "pods", {}):
            raise Refused(refused[0], "Forbidden", refused[1])
        with self.state.lock:
            pod = self.objects.get((namespace, "pods", name))
        path = self.directory / f"{name}.log"
        if pod is None:
            raise not_found("pods", name)
        if not path.exists():
            said = f'container "main" in pod "{name}" is waiting to start: ContainerCreating'
            raise Refused(400, "BadRequest", said)
        handler.send_response(200)
        handler.send_header("Content-Type", "text/plain")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        with path.open("rb") as file, contextlib.suppress(OSError):
            while True:
                over = query.get("follow", "").lower() != "true" or is_over(pod)
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


def _selects(selector: str, labels: dict[str, str]) -> bool:
    """apimachinery, pkg/labels/selector.go: A=B, A==B, A!=B, A, !A, A in (B,C), A notin (B,C)."""
    for part in filter(None, re.split(r",(?![^(]*\))", selector)):
        part = part.strip()
        if match := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", part):
            values = [x.strip() for x in match[3].split(",")]
            if (labels.get(match[1]) in values) != (match[2] == "in"):
                return False
        elif "!=" in part:
            name, _, value = part.partition("!=")
            if labels.get(name.strip()) == value.strip():
                return False
        elif "=" in part:
            name, _, value = part.replace("==", "=").partition("=")
            if labels.get(name.strip()) != value.strip():
                return False
        elif part.startswith("!"):
            if part[1:].strip() in labels:
                return False
        elif part not in labels:
            return False
    return True


def _matches(selector: str, each: Object) -> bool:
    """Evaluate a field selector: A.B=C or A.B!=C."""
    for part in filter(None, selector.split(",")):
        is_equal = "!=" not in part
        path, _, value = part.replace("!=", "=").replace("==", "=").partition("=")
        found: Any = each
        for name in path.split("."):
            found = (found or {}).get(name, "") if isinstance(found, dict) else ""
        if (str(found) == value) != is_equal:
            return False
    return True


def free_port() -> int:
    return free_ports(1)[0]


@contextlib.contextmanager
def until(condition: Callable[[], Any]) -> Iterator[None]:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it does not become true"
        time.sleep(0.02)
    yield
