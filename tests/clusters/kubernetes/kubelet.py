"""The scheduler and the kubelets: pods run as processes on this machine.

Sources: kubernetes/kubernetes pkg/kubelet (kubelet_pods.go, kuberuntime/security_context.go),
unless another one is named. Containers are only partly isolated: by the host names that they
resolve, the directories of their volumes (not mountable here, so their paths are replaced in the
command and variables), their capabilities if root runs the tests, and, with a Lab, their
network. All of them see this machine's file system and users. Only a pod's first container runs, it
is not PID 1, and it runs as the current user.
"""

import base64
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

from needs import missing
from netlab import Lab

from clusters.kubernetes import dns
from clusters.kubernetes.admission import CAPABILITIES
from clusters.kubernetes.state import Object, State, is_over, number

_ENTER = """
umount /etc/hosts 2> /dev/null  # a Lab's
mount --bind "$0/hosts" /etc/hosts || exit 1
[ ! -e /etc/nsswitch.conf ] || mount --bind "$0/nsswitch.conf" /etc/nsswitch.conf || exit 1
exec "$@"
"""


class Waiting(Exception):
    """A container can't be created yet."""

    def __init__(self, reason: str, message: str, event: str = "") -> None:
        super().__init__(message)
        self.reason, self.message, self.event = reason, message, event


class Kubelet:
    """The nodes of one cluster.

    Attributes:
        unschedulable: The indexes of pods that don't fit on any node.
        zones: Zones by node number; when a pod is bound, it gets its node's zone as a label from
            the admission plug-in PodTopologyLabels (plugin/pkg/admission/podtopologylabels), which
            is enabled since 1.35.
        waiting: For each container, the reason and message of its waiting state.
        lab: The hosts in which pods run, by HOSTNAME.SUBDOMAIN or the pod's name. If None, all pods
            run on this host, with the address 127.0.0.1. Since they could not tell which of several
            names is their own, a variable that lists host names of pods then contains this address,
            provided that the names will resolve.
    """

    def __init__(self, state: State, directory: Path) -> None:
        self.state, self.directory = state, directory
        self.unschedulable: set[int] = set()
        self.zones: dict[int, str] = {}
        self.waiting: dict[str, str] = {}
        self.lab: Lab | None = None
        self.is_closed = False
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._hosts: dict[str, Path] = {}

    def close(self) -> None:
        with self.state.lock:  # an ended pod may be replaced at this moment
            self.is_closed = True
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    # The scheduler.

    def schedule(self) -> None:
        """Assign pending pods to nodes, and start them."""
        for pod in self.state.of("pods"):
            meta, status = pod["metadata"], pod["status"]
            if status["phase"] != "Pending" or "deletionTimestamp" in meta or self.is_closed:
                continue
            if "nodeName" not in pod["spec"]:
                if number(pod) in self.unschedulable or not self._has_gang(pod):
                    self._postpone(pod)
                    continue
                pod["spec"]["nodeName"] = f"node{number(pod)}"
                if zone := self.zones.get(number(pod)):
                    meta.setdefault("labels", {}).setdefault("topology.kubernetes.io/zone", zone)
            self._start(pod)

    def _postpone(self, pod: Object) -> None:
        said = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
        if pod["status"].get("conditions"):
            return
        condition = {"type": "PodScheduled", "status": "False", "message": said}
        pod["status"]["conditions"] = [{**condition, "reason": "Unschedulable"}]
        self.state.touch(pod)

    def _has_gang(self, pod: Object) -> bool:
        """Volcano's plug-in gang: no pod starts until minAvailable pods of its Job have nodes."""
        uids = {x["uid"] for x in pod["metadata"].get("ownerReferences") or ()}
        for job in self.state.of("jobs.volcano"):
            if job["metadata"]["uid"] in uids:
                pods = self.state.owned(job, "pods")
                fit = sum(
                    "nodeName" in x["spec"] or number(x) not in self.unschedulable for x in pods
                )
                return bool(fit >= job["spec"]["minAvailable"])
        return True

    # Containers.

    def _start(self, pod: Object) -> None:
        container = pod["spec"]["containers"][0]
        name = container["name"]
        try:
            words, variables = self._prepare(pod, container)
        except Waiting as wait:
            state = {"reason": wait.reason} | ({"message": wait.message} if wait.message else {})
            if pod["status"].get("containerStatuses") != [
                {"name": name, "state": {"waiting": state}}
            ]:
                pod["status"]["containerStatuses"] = [{"name": name, "state": {"waiting": state}}]
                if wait.event:
                    self.state.warn(pod, "FailedMount", wait.event)
                self.state.touch(pod)
            return
        self._run(pod, container, words, variables)

    def _prepare(self, pod: Object, container: Object) -> tuple[list[str], dict[str, str]]:
        """Return the command and variables of a container.

        Raises:
            Waiting: If something that it needs does not exist yet.
        """
        if self.waiting:
            raise Waiting(self.waiting["reason"], self.waiting.get("message", ""))
        paths = self._mount(pod, container)
        self._check_user(pod, container)
        pod["status"].setdefault("podIP", self._address(pod))
        variables = self._variables(pod, container)
        if self.lab is None:
            names = dns.names(self.state, pod["metadata"]["namespace"])
            for name, value in variables.items():
                if names & set(value.split(",")):
                    variables[name] = "127.0.0.1"

        def local(text: str) -> str:
            for path in sorted(paths, key=len, reverse=True):
                text = text.replace(path, str(paths[path]))
            return text

        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        words = [local(expand(word, variables)) for word in words]
        return words, {name: local(value) for name, value in variables.items()}

    @staticmethod
    def _check_user(pod: Object, container: Object) -> None:
        """verifyRunAsNonRoot: the image's user is root, as in most images."""
        context = {
            **(pod["spec"].get("securityContext") or {}), **(container.get("securityContext") or {})
        }  # fmt: skip
        if context.get("runAsNonRoot") and "runAsUser" not in context:
            said = "container has runAsNonRoot and image will run as root"
            raise Waiting("CreateContainerConfigError", said)

    def _address(self, pod: Object) -> str:
        host = self._host(pod)
        return "127.0.0.1" if self.lab is None else str(self.lab[host].address)

    def _host(self, pod: Object) -> str:
        """Return a pod's Lab host."""
        spec = pod["spec"]
        name = f"{dns.hostname(pod)}.{spec.get('subdomain', '')}"
        is_known = self.lab is not None and name in self.lab.hosts
        return name if is_known else str(pod["metadata"]["name"])

    def _mount(self, pod: Object, container: Object) -> dict[str, Path]:
        """Create the directories for volumes; return them by their path in the container."""
        volumes = {each["name"]: each for each in pod["spec"].get("volumes") or ()}
        found: dict[str, Path] = {}
        for mount in container.get("volumeMounts") or ():
            volume = volumes[mount["name"]]
            folder = self.directory / "volumes" / pod["metadata"]["name"] / mount["name"]
            files = self._files(pod, volume)
            if files is None:
                continue
            folder.mkdir(parents=True, exist_ok=True)
            for name, (data, mode) in files.items():
                path = folder / name
                path.unlink(missing_ok=True)
                path.write_bytes(data)
                path.chmod(mode)
            found[mount["mountPath"]] = (
                folder / mount["subPath"] if mount.get("subPath") else folder
            )
        return found

    def _files(self, pod: Object, volume: Object) -> dict[str, tuple[bytes, int]] | None:
        """Return a volume's files with their modes, or None if the kubelet does not fill it."""
        namespace = pod["metadata"]["namespace"]
        if projected := volume.get("projected"):
            mode = projected.get("defaultMode", 0o644)
            found: dict[str, tuple[bytes, int]] = {}
            for each in projected["sources"]:
                for part, source in each.items():
                    own = {**source, "secretName": source.get("name"), "defaultMode": mode}
                    found |= self._files(pod, {"name": volume["name"], part: own}) or {}
            return found
        for part, plural, key in (
            ("configMap", "configmaps", "name"), ("secret", "secrets", "secretName")
        ):  # fmt: skip
            source = volume.get(part)
            if source is None:
                continue
            known = self.state.find(namespace, plural, source[key])
            if known is None:
                if source.get("optional"):
                    return {}
                said = f'MountVolume.SetUp failed for volume "{volume["name"]}" : '
                event = f'{said}{part.lower()} "{source[key]}" not found'
                raise Waiting("ContainerCreating", "", event)
            data = {k: base64.b64decode(v) for k, v in (known.get("binaryData") or {}).items()}
            for name, text in (known.get("data") or {}).items():
                data[name] = base64.b64decode(text) if part == "secret" else text.encode()
            mode = source.get("defaultMode", 0o644)
            items = source.get("items") or [{"key": name, "path": name} for name in data]
            return {x["path"]: (data[x["key"]], x.get("mode", mode)) for x in items}
        if "downwardAPI" in volume:
            return {
                each["path"]: (_field(pod, each["fieldRef"]["fieldPath"]).encode(), 0o644)
                for each in volume["downwardAPI"].get("items") or ()
            }
        return None

    def _variables(self, pod: Object, container: Object) -> dict[str, str]:
        """makeEnvironmentVariables: in order, and `$(NAME)` only refers to earlier variables."""
        namespace = pod["metadata"]["namespace"]
        found: dict[str, str] = {}
        for each in container.get("envFrom") or ():
            for part, plural in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
                if part in each:
                    for name, value in self._data(namespace, plural, each[part]).items():
                        found[each.get("prefix", "") + name] = value
        for each in container.get("env") or ():
            source = each.get("valueFrom") or {}
            name = each["name"]
            if "fieldRef" in source:
                found[name] = _field(pod, source["fieldRef"]["fieldPath"])
            elif "resourceFieldRef" in source:
                its = source["resourceFieldRef"]["resource"].partition(".")
                found[name] = str(container["resources"].get(its[0], {}).get(its[2], "0"))
            elif source:
                part = "secretKeyRef" if "secretKeyRef" in source else "configMapKeyRef"
                plural = "secrets" if part == "secretKeyRef" else "configmaps"
                data = self._data(namespace, plural, source[part])
                if source[part]["key"] in data:
                    found[name] = data[source[part]["key"]]
                elif not source[part].get("optional"):
                    kind = "Secret" if plural == "secrets" else "ConfigMap"
                    where = f"{kind} {namespace}/{source[part]['name']}"
                    said = f"couldn't find key {source[part]['key']} in {where}"
                    raise Waiting("CreateContainerConfigError", said)
            else:
                found[name] = expand(each.get("value") or "", found)
        return found

    def _data(self, namespace: str, plural: str, source: Object) -> dict[str, str]:
        known = self.state.find(namespace, plural, source["name"])
        if known is None:
            if source.get("optional"):
                return {}
            kind = plural.removesuffix("s").replace("configmap", "configmap")
            said = f'{kind} "{source["name"]}" not found'
            raise Waiting("CreateContainerConfigError", said)
        data = known.get("data") or {}
        if plural == "secrets":
            return {name: base64.b64decode(text).decode() for name, text in data.items()}
        return dict(data)

    def _run(
        self, pod: Object, container: Object, words: list[str], variables: dict[str, str]
    ) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.directory), "HOSTNAME": dns.hostname(pod),
            "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443", **variables,
        }  # fmt: skip
        log = (self.directory / f"{name}.log").open("ab")
        said = ""
        try:
            process = subprocess.Popen(
                self._entered(pod, container, words),
                env=environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:  # the command does not exist or is too long for execve(2)
            said = f"failed to create containerd task: exec: {error}"
        log.close()
        started = {"startedAt": self.state.now()}
        if said:
            ended = {"exitCode": 128, "reason": "StartError", "message": said, **started}
            statuses = [{"name": container["name"], "state": {"terminated": ended}}]
            self.state.change_pod(pod, phase="Failed", containerStatuses=statuses)
            return
        self._processes[uid] = process
        ready = "False" if container.get("readinessProbe") else "True"
        conditions = [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": ready},
        ]
        state = {"name": container["name"], "state": {"running": started}, "ready": ready == "True"}
        self.state.change_pod(
            pod,
            phase="Running",
            startTime=self.state.now(),
            conditions=conditions,
            containerStatuses=[state],
        )
        threading.Thread(target=self._wait, args=(pod, process), daemon=True).start()

    def _entered(self, pod: Object, container: Object, words: list[str]) -> list[str]:
        """Return a command that runs another in a pod's namespaces, with its capabilities."""
        words = [*_limits(container), *words]
        if not missing("mounts"):
            folder = self.directory / "dns" / pod["metadata"]["uid"]
            folder.mkdir(parents=True)
            (folder / "nsswitch.conf").write_text("hosts: files\n")
            (folder / "hosts").touch()
            self._hosts[pod["metadata"]["uid"]] = folder / "hosts"
            options = [] if os.geteuid() == 0 else ["--map-root-user"]
            words = ["unshare", "--mount", *options, "sh", "-c", _ENTER, str(folder), *words]
        if self.lab is not None:
            words = [*self.lab[self._host(pod)].entrance, *words]
        self.publish()
        return words

    def publish(self) -> None:
        """Write the names that each pod can resolve."""
        for pod in self.state.of("pods"):
            path = self._hosts.get(pod["metadata"]["uid"])
            if path is not None and not is_over(pod):
                text = dns.hosts_file(self.state, pod)
                if self.lab is None:
                    text += f"127.0.0.1 {socket.gethostname()}\n"
                with path.open("r+") as file:  # keep the same file, because it is mounted
                    file.write(text)
                    file.truncate()

    def _wait(self, pod: Object, process: "subprocess.Popen[bytes]") -> None:
        code = process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # pid_namespaces(7): nothing outlives PID 1
        code = 128 - code if code < 0 else code
        with self.state.changing():
            if is_over(pod):
                return
            ended = {
                "exitCode": code, "reason": "Error" if code else "Completed",
                "finishedAt": self.state.now(),
            }  # fmt: skip
            name = pod["spec"]["containers"][0]["name"]
            self.state.change_pod(
                pod,
                phase="Failed" if code else "Succeeded",
                containerStatuses=[{"name": name, "state": {"terminated": ended}}],
            )

    def stop(self, pod: Object, grace_s: float) -> None:
        """killContainer: SIGTERM, followed by SIGKILL when the grace period is over."""
        process = self._processes.get(pod["metadata"]["uid"])
        if process is None or process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)

        def kill() -> None:
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()

    # Node failures.

    def _pod(self, index: int) -> Object | None:
        for pod in self.state.of("pods"):
            if number(pod) == index and pod["status"]["phase"] == "Running":
                return pod
        return None

    def _disrupt(self, pod: Object, reason: str, message: str) -> None:
        lost = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        pod["status"].setdefault("conditions", []).append(lost)

    def evict(self, index: int) -> None:
        """Drain a replica's node (pkg/registry/core/pod/storage/eviction.go)."""
        with self.state.changing():
            if pod := self._pod(index):
                self._disrupt(pod, "EvictionByEvictionAPI", "Eviction API: evicting")
                self.state.delete_pod(pod)

    def time_out(self, index: int) -> None:
        """End a replica's pod as if its activeDeadlineSeconds had passed
        (pkg/kubelet/active_deadline.go).
        """
        with self.state.changing():
            if pod := self._pod(index):
                said = "Pod was active on the node longer than the specified deadline"
                pod["status"] |= {"reason": "DeadlineExceeded", "message": said}
                self.stop(pod, pod["spec"].get("terminationGracePeriodSeconds", 30))

    def lose(self, index: int) -> None:
        """Make a replica's node fail: the cloud removes it, and all others are taken.

        pkg/controller/podgc/gc_controller.go: its pods are marked as failed and deleted 40 s after
        the node is gone.
        """
        assert self.lab is not None
        with self.state.changing():
            self.unschedulable = {index}
            pod = self._pod(index)
            assert pod is not None
            self.lab.cut(self._host(pod))
            self._processes[pod["metadata"]["uid"]].kill()
            self._disrupt(pod, "DeletionByPodGC", "PodGC: node no longer exists")
            pod["status"]["phase"] = "Failed"
            self.state.change_pod(pod)
            self.state.delete_pod(pod, 0)

    def freeze(self, index: int, for_s: float) -> None:
        """Make a replica's node silent for some time, without removing it.

        pkg/controller/tainteviction: the pod is deleted after its tolerationSeconds. The node's
        kubelet does not learn of that, so the pod stays Running and terminating as long as the node
        exists.
        """
        with self.state.changing():
            self.state.skip(for_s)
            pod = self._pod(index)
            assert pod is not None
            process = self._processes.pop(pod["metadata"]["uid"])
            os.killpg(process.pid, signal.SIGSTOP)
            self._processes[f"frozen {process.pid}"] = process  # out of reach for `stop`
            bounds = [
                x["tolerationSeconds"]
                for x in pod["spec"]["tolerations"]
                if x.get("key") == "node.kubernetes.io/unreachable" and "tolerationSeconds" in x
            ]
            if bounds and for_s >= min(bounds):
                said = "Taint manager: deleting due to NoExecute taint"
                self._disrupt(pod, "DeletionByTaintManager", said)
                self.state.delete_pod(pod)


def expand(text: str, variables: dict[str, str]) -> str:
    """kubernetes/third_party/forked/golang/expansion: expand `$(NAME)`, and `$$` to `$`."""
    return re.sub(
        r"\$(?:\$|\(([\w.-]+)\))",
        lambda m: "$" if m[0] == "$$" else variables.get(m[1], m[0]),
        text,
    )


def _field(pod: Object, path: str) -> str:
    """pkg/fieldpath/fieldpath.go: ExtractFieldPathAsString, and fields of a pod's status."""
    match = re.fullmatch(r"metadata\.(labels|annotations)\['(.*)'\]", path)
    if match:
        return str((pod["metadata"].get(match[1]) or {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        its = pod["metadata"].get(path.partition(".")[2]) or {}
        return "\n".join(f'{name}="{value}"' for name, value in sorted(its.items()))
    known = {
        "metadata.name": pod["metadata"]["name"], "metadata.uid": pod["metadata"]["uid"],
        "metadata.namespace": pod["metadata"]["namespace"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", ""),
        "status.podIP": pod["status"].get("podIP", ""), "status.hostIP": "127.0.0.1",
    }  # fmt: skip
    return str(known[path])


def _limits(container: Object) -> list[str]:
    """Return a prefix that limits a command's capabilities.

    pkg/kubelet/kuberuntime/security_context.go and containerd: the runtime's defaults, plus the
    added capabilities and minus the dropped ones. capabilities(7): root has the bounding set, and
    without DAC_OVERRIDE it can't write to another user's files.
    """
    context = container.get("securityContext") or {}
    if os.geteuid() != 0 or context.get("privileged") or shutil.which("setpriv") is None:
        return []
    said = context.get("capabilities") or {}
    dropped = {name.removeprefix("CAP_") for name in said.get("drop") or ()}
    kept = set() if "ALL" in dropped else CAPABILITIES - dropped
    kept |= {name.removeprefix("CAP_") for name in said.get("add") or ()}
    bounds = ",".join(["-all", *(f"+{name.lower()}" for name in sorted(kept))])
    words = ["setpriv", "--inh-caps=-all", f"--bounding-set={bounds}"]
    if context.get("allowPrivilegeEscalation") is False:
        words.append("--no-new-privs")
    return [*words, "--"]
