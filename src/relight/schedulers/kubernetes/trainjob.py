"""Runs an app as a Kubeflow Trainer TrainJob, using a runtime that an administrator has installed.

The runtime determines what happens to failed pods. Source: the trainer.kubeflow.org/v1alpha1 API in
Kubeflow Trainer 2.3.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from relight.base.errors import UsageError
from relight.job.app import AppDef, Role
from relight.schedulers.kubernetes import pods
from relight.schedulers.kubernetes.kind import Kind, Maker, only_role, queue_label, role_label
from relight.schedulers.kubernetes.pods import MeetingPlace
from relight.schedulers.kubernetes.store import Object, ObjectKind

RUNTIME = "torch-distributed"
"""The runtime for PyTorch that comes with Kubeflow Trainer."""
_STEP = "node"
"""The name of the runtime's replicated job, and of its container."""
_OF_RUNTIME = ("priority_class", "image_pull_policy", "pods", "timeout", "scheduler", "gang")
"""Options that a TrainJob can't express."""
_FORWARDED = (
    "serviceAccountName", "nodeSelector", "affinity", "tolerations", "imagePullSecrets",
    "securityContext", "terminationGracePeriodSeconds", "volumes",
)  # fmt: skip
"""The pod fields that a TrainJob may set."""


class TrainJob(Kind):
    """A TrainJob, for `-cfg kind=trainjob`."""

    name = "trainjob"
    resource = ObjectKind("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs")
    starts: Mapping[str, str] = MappingProxyType(
        {"RELIGHT_REQUEUES": "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']"}
    )
    container = _STEP

    def stem(self, name: str, _role: Role, _is_only: bool, /) -> str:
        """Return the name of the Job that Kubeflow Trainer creates."""
        return f"{name}-{_STEP}-0"

    def check(self, app: AppDef, cfg: Mapping[str, Any]) -> None:
        """Reject settings that the runtime determines."""
        role = only_role(self, app)
        if role.is_elastic:
            raise UsageError(
                f"{role.name}: a TrainJob has a fixed number of pods and succeeds when all succeed",
                hint="use -cfg kind=job for an elastic job",
            )
        for name in _OF_RUNTIME:
            if cfg.get(name):
                raise UsageError(
                    f"-cfg {name} is not supported for TrainJob; its runtime sets it",
                    hint=f"set it in the runtime {cfg.get('runtime') or RUNTIME}, or kind=jobset",
                )
        if role.max_retries:
            raise UsageError(
                f"{role.name}: TrainJob does not support max_retries={role.max_retries}; its "
                "runtime's failure policy applies",
                hint="use --max_retries=0 or -cfg kind=jobset",
            )

    def specs(self, app: AppDef, cfg: Mapping[str, Any], place: MeetingPlace) -> Iterator[Maker]:
        """Yield a single TrainJob."""
        role = only_role(self, app)
        template = pods.template(app, role, cfg, place)
        pod = template["spec"]
        main = pod["containers"][0]
        patched = {name: pod[name] for name in _FORWARDED if name in pod}
        its = {name: main[name] for name in ("volumeMounts", "securityContext") if name in main}
        container = {"name": _STEP, **its}
        labelled = {"metadata": {"labels": role_label(role)}}
        step = {
            "name": _STEP,
            "template": {
                **labelled,
                "spec": {
                    "template": {
                        "metadata": template["metadata"],
                        "spec": {**patched, "containers": [container]},
                    }
                },
            },
        }
        runtime = {"name": cfg.get("runtime") or RUNTIME}
        yield Maker(
            place.name,
            role_label(role) | queue_label(cfg),
            {
                "runtimeRef": runtime,
                "trainer": {
                    "image": main["image"],
                    "command": main["command"],
                    "env": main["env"],
                    "numNodes": role.num_replicas,
                    "resourcesPerNode": main["resources"],
                },
                "runtimePatches": [
                    {
                        "manager": "relight",
                        "trainingRuntimeSpec": {
                            "template": {"spec": {"replicatedJobs": [step]}},
                        },
                    }
                ],
            },
        )

    def roles(self, each: Object) -> dict[str, int]:
        """Return a TrainJob's role and its number of replicas."""
        role = (each["metadata"].get("labels") or {}).get(pods.ROLE, "")
        return {role: each["spec"]["trainer"].get("numNodes") or 1}
