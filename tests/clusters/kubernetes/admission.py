"""Admission by the API server before it stores an object: defaults, and refusals (403).

Sources: kubernetes/kubernetes, unless another repository is named.
"""

import base64
from collections.abc import Iterator

from clusters.kubernetes import validation
from clusters.kubernetes.state import Object, Refused, State, is_over

QUEUE = "kueue.x-k8s.io/queue-name"
CAPABILITIES = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
    "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip
"""A container's default capabilities: containerd/containerd, pkg/oci/spec.go, defaultUnixCaps."""
_JOB_LABELS = (
    ("batch.kubernetes.io/job-name", "name"), ("job-name", "name"),
    ("batch.kubernetes.io/controller-uid", "uid"), ("controller-uid", "uid"),
)  # fmt: skip


class Admission:
    """The admission rules of one cluster.

    Attributes:
        accounts, classes: The service accounts and priority classes that exist.
        restricted: The namespaces that enforce the `restricted` Pod Security Standard.
        quotas: By namespace, the number of pods allowed or the hard limits of a ResourceQuota.
        queues: The names of Kueue's queues, or None if it isn't installed.
        volcano_queues: Volcano's open queues.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.accounts = {"default"}
        self.classes: set[str] = set()
        self.restricted: set[str] = set()
        self.quotas: dict[str, int | dict[str, str]] = {}
        self.queues: set[str] | None = None
        self.volcano_queues = {"default", "q", "test"}

    def admit(self, plural: str, body: Object) -> None:
        """Set defaults, or refuse the object.

        Raises:
            Refused: If it is not admitted.
        """
        self._default(plural, body)
        if plural == "pods":
            self._admit_pod(body)
        validation.check(plural, body)
        if plural == "jobs.volcano" and body["spec"]["queue"] not in self.volcano_queues:
            # volcano 1.15, pkg/webhooks/admission/jobs/validate/admit_job.go
            queue = body["spec"]["queue"]
            said = f'unable to find job queue: queue "{queue}" not found'
            webhook = 'admission webhook "validatejob.volcano.sh" denied the request: '
            raise Refused(403, "Forbidden", webhook + said)
        self._admit_counts(plural, body)
        is_queued = self.queues is not None and QUEUE in (body["metadata"].get("labels") or {})
        is_child = bool(body["metadata"].get("ownerReferences"))
        if is_queued and not is_child and plural in ("jobs", "jobsets", "trainjobs"):
            body["spec"]["suspend"] = True

    # Defaults.

    def _default(self, plural: str, body: Object) -> None:
        for template in validation.pods(body):
            default_pod(template["spec"])
        if plural in ("jobs", "jobsets", "jobs.volcano", "trainjobs"):
            body["status"] = {}  # PrepareForCreate: clients can't set it
        if plural == "jobs":
            default_job(body)
        elif plural == "jobsets":
            default_jobset(body["spec"])
        elif plural == "jobs.volcano":
            default_volcano(body["spec"])
        elif plural == "secrets" and body.get("stringData"):
            # pkg/apis/core/v1/conversion.go: stringData is copied into data and never read back.
            data = body.setdefault("data", {})
            for name, text in body.pop("stringData").items():
                data[name] = base64.b64encode(str(text).encode()).decode()
        elif plural == "services":
            body.setdefault("spec", {}).setdefault("type", "ClusterIP")

    # Pods.

    def _admit_pod(self, pod: Object) -> None:
        spec, meta = pod["spec"], pod["metadata"]
        pod["status"] = {"phase": "Pending"}
        spec.setdefault("serviceAccountName", "default")
        self._tolerate(spec)
        if why := self._refusal(pod):
            name = meta.get("generateName", meta["name"])
            raise Refused(403, "Forbidden", f'pods "{name}" is forbidden: {why}')

    @staticmethod
    def _tolerate(spec: Object) -> None:
        """plugin/pkg/admission/defaulttolerationseconds/admission.go: 300 s unless specified."""
        known = spec.setdefault("tolerations", [])
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
            if not any(
                x.get("key", key) in (key, "") and x.get("effect", "NoExecute") in ("NoExecute", "")
                for x in known
            ):
                known.append(
                    {
                        "key": key,
                        "operator": "Exists",
                        "effect": "NoExecute",
                        "tolerationSeconds": 300,
                    }
                )

    def _refusal(self, pod: Object) -> str:
        namespace, spec = pod["metadata"]["namespace"], pod["spec"]
        account = spec["serviceAccountName"]
        if account not in self.accounts:
            # plugin/pkg/admission/serviceaccount/admission.go
            where = f"{namespace}/{account}"
            said = f'serviceaccount "{account}" not found'
            return f"error looking up service account {where}: {said}"
        name = spec.get("priorityClassName")
        if name is not None and name not in self.classes:
            # plugin/pkg/admission/priority/admission.go
            return f"no PriorityClass with name {name} was found"
        if namespace in self.restricted:
            found = ", ".join(violations(spec))
            if found:
                return f'violates PodSecurity "restricted:latest": {found}'
        return self._exceeded(pod)

    def _exceeded(self, pod: Object) -> str:
        """kubernetes/apiserver, pkg/admission/plugin/resourcequota/controller.go: CheckRequest.
        Pods that have ended do not count (pkg/quota/v1/evaluator/core/pods.go).
        """
        namespace = pod["metadata"]["namespace"]
        quota = self.quotas.get(namespace)
        if quota is None:
            return ""
        hard = quota if isinstance(quota, dict) else {"pods": str(quota)}
        wanted = usage(pod)
        computed = [
            x for x in hard if x.partition(".")[0] in ("requests", "limits", "cpu", "memory")
        ]
        if missing := [x for x in computed if x not in wanted and "/" not in x]:
            return f"failed quota: q: must specify {','.join(missing)} for: main"
        used: dict[str, float] = {}
        for each in self.state.of("pods"):
            if each["metadata"]["namespace"] == namespace and not is_over(each):
                for name, value in usage(each).items():
                    used[name] = used.get(name, 0) + value
        over = [
            name
            for name, limit in hard.items()
            if name in wanted and used.get(name, 0) + wanted[name] > validation.quantity(limit)
        ]
        if not over:
            return ""

        def of(values: dict[str, float]) -> str:
            return ",".join(f"{name}={values.get(name, 0):g}" for name in over)

        limits = ",".join(f"{name}={hard[name]}" for name in over)
        return f"exceeded quota: q, requested: {of(wanted)}, used: {of(used)}, limited: {limits}"

    def _admit_counts(self, plural: str, body: Object) -> None:
        """pkg/quota/v1/evaluator/core: count/RESOURCE, and the older names of some resources."""
        namespace = body["metadata"]["namespace"]
        quota = self.quotas.get(namespace)
        if not isinstance(quota, dict):
            return
        for name in (plural, f"count/{plural}", f"count/{plural}.batch"):
            if name in quota and plural != "pods":
                count = sum(x["metadata"]["namespace"] == namespace for x in self.state.of(plural))
                if count + 1 > validation.quantity(quota[name]):
                    said = (
                        f"exceeded quota: q, requested: {name}=1, used: {name}={count}, limited: "
                    )
                    its = f'{plural} "{body["metadata"]["name"]}" is forbidden: {said}'
                    raise Refused(403, "Forbidden", f"{its}{name}={quota[name]}")


def usage(pod: Object) -> dict[str, float]:
    """Return how much of a quota a pod uses."""
    found: dict[str, float] = {"pods": 1, "count/pods": 1}
    for container in pod["spec"]["containers"]:
        for kind in ("requests", "limits"):
            for name, value in ((container.get("resources") or {}).get(kind) or {}).items():
                key = f"{kind}.{name}"
                found[key] = found.get(key, 0) + validation.quantity(value)
                if kind == "requests" and name in ("cpu", "memory"):
                    found[name] = found[key]
    return found


def violations(spec: Object) -> Iterator[str]:
    """kubernetes/pod-security-admission, policy/check_*.go: level `restricted`."""
    pod = spec.get("securityContext") or {}
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    contexts = [(each["name"], each.get("securityContext") or {}) for each in containers]
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"host namespaces ({name}=true)"
    for name, its in contexts:
        if its.get("privileged"):
            yield f'privileged (container "{name}" must not set securityContext.privileged=true)'
        if its.get("allowPrivilegeEscalation") is not False:
            yield (
                f'allowPrivilegeEscalation != false (container "{name}" must set '
                "securityContext.allowPrivilegeEscalation=false)"
            )
        capabilities = its.get("capabilities") or {}
        added = set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}
        if "ALL" not in (capabilities.get("drop") or ()) or added:
            yield (
                f'unrestricted capabilities (container "{name}" must set '
                'securityContext.capabilities.drop=["ALL"])'
            )
        if not its.get("runAsNonRoot", pod.get("runAsNonRoot")):
            yield (
                f'runAsNonRoot != true (pod or container "{name}" must set '
                "securityContext.runAsNonRoot=true)"
            )
        if its.get("runAsUser", pod.get("runAsUser")) == 0:
            yield f'runAsUser=0 (container "{name}" must not set runAsUser=0)'
        profile = (its.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type")
        if profile not in ("RuntimeDefault", "Localhost"):
            yield (
                f'seccompProfile (pod or container "{name}" must set '
                'securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")'
            )
    allowed = {
        "name", "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image",
        "persistentVolumeClaim", "projected", "secret",
    }  # fmt: skip
    for volume in spec.get("volumes") or ():
        if other := volume.keys() - allowed:
            yield f'restricted volume types (volume "{volume["name"]}" uses {", ".join(other)})'


def default_pod(spec: Object) -> None:
    """pkg/apis/core/v1/defaults.go."""
    for name, value in (
        ("dnsPolicy", "ClusterFirst"),
        ("terminationGracePeriodSeconds", 30),
        ("securityContext", {}),
    ):
        if spec.get(name) is None:
            spec[name] = value
    for each in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        its = each.get("resources") or {}
        # SetDefaults_Pod: requests default to the limits.
        for name, value in (its.get("limits") or {}).items():
            its.setdefault("requests", {}).setdefault(name, value)


def default_job(job: Object) -> None:
    """pkg/apis/batch/v1/defaults.go: SetDefaults_Job; pkg/registry/batch/job/strategy.go:
    generateSelector.
    """
    spec, meta = job["spec"], job["metadata"]
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    per_index = spec.get("backoffLimitPerIndex") is not None
    replacement = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    for name, value in (
        ("parallelism", 1), ("backoffLimit", 2**31 - 1 if per_index else 6),
        ("completionMode", "NonIndexed"), ("suspend", False), ("manualSelector", False),
        ("podReplacementPolicy", replacement),
    ):  # fmt: skip
        if spec.get(name) is None:
            spec[name] = value
    template = spec["template"].setdefault("metadata", {})
    template["labels"] = template.get("labels") or {}
    if not meta.get("labels") and template["labels"]:
        meta["labels"] = dict(template["labels"])
    for label, part in _JOB_LABELS:
        template["labels"].setdefault(label, meta[part])
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": meta["uid"]}}


def default_jobset(spec: Object) -> None:
    """kubernetes-sigs/jobset 0.12, pkg/webhooks/jobset_webhook.go: Default."""
    spec.setdefault("successPolicy", {"operator": "All"})
    spec.setdefault("startupPolicy", {"startupPolicyOrder": "AnyOrder"})
    for each in spec.get("replicatedJobs") or ():
        each.setdefault("replicas", 1)
        job = each["template"]["spec"]
        job.setdefault("completionMode", "Indexed")
        job["template"]["spec"].setdefault("restartPolicy", "OnFailure")
    network = spec.setdefault("network", {})
    network.setdefault("enableDNSHostnames", True)
    network.setdefault("publishNotReadyAddresses", True)


def default_volcano(spec: Object) -> None:
    """volcano-sh/volcano 1.15, pkg/webhooks/admission/jobs/mutate/mutate_job.go.

    A maxRetry of 0 is 3: Volcano has no Job without retries.
    """
    spec["queue"] = spec.get("queue") or "default"
    spec["schedulerName"] = spec.get("schedulerName") or "volcano"
    spec["maxRetry"] = spec.get("maxRetry") or 3
    for index, task in enumerate(spec.get("tasks") or ()):
        task["name"] = task.get("name") or f"default{index}"
        task["replicas"] = task.get("replicas", 1)
        task["maxRetry"] = task.get("maxRetry") or 3
        if task.get("minAvailable") is None:
            task["minAvailable"] = task["replicas"]
    if not spec.get("minAvailable"):
        spec["minAvailable"] = sum(task["minAvailable"] for task in spec.get("tasks") or ())
    plugins = spec.get("plugins")
    if plugins and plugins.keys() & {"tensorflow", "mpi", "pytorch", "ray"}:
        plugins.setdefault("svc", [])
