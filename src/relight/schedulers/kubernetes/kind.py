"""The interface for a kind of Kubernetes object that creates pods, such as a Job."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from relight.base.errors import EXIT_PREEMPTED, UNFIT_CODE_VARIABLE, UsageError
from relight.job import launcher_file
from relight.job.app import NOTHING, AppDef, AppState, Role
from relight.schedulers.api import ReplicaStatus
from relight.schedulers.kubernetes.names import label_value
from relight.schedulers.kubernetes.pods import ROLE, VOLCANO, MeetingPlace
from relight.schedulers.kubernetes.store import Object, ObjectKind

Verdict = tuple[AppState | None, str]
"""The state of the pods as a whole, and the reason for it. The state is None while it depends on
individual pods.
"""
INDEX = "batch.kubernetes.io/job-completion-index"
"""The label and the annotation that contain the index of an Indexed Job's pod. The label exists
since Kubernetes 1.28.
"""
QUEUE = "kueue.x-k8s.io/queue-name"
NEVER = -1


class Maker(NamedTuple):
    """An object that creates pods, with its name, additional metadata and specification."""

    name: str
    labels: Mapping[str, str]
    spec: dict[str, Any]
    annotations: Mapping[str, str] = NOTHING


class Kind(Protocol):
    """A kind of object that creates pods. An app has either one such object, or one for each role.

    Attributes:
        name: the kind's name for `-cfg kind=NAME`.
        resource: the kind's name in the API.
        index: the pod field that contains the replica number.
        label: the pod label that contains the replica number.
        starts: environment variables and their pod fields, which count how many times the replica
            has been started before.
        container: the name of the container that runs the command.
        has_service: whether relight creates the Service through which pods find each other.
        succeeded: conditions of an object that mean success.
        failed: conditions of an object that mean failure.
    """

    name: str
    resource: ObjectKind
    index: str = f"metadata.annotations['{INDEX}']"
    label: str = INDEX
    starts: Mapping[str, str]
    container: str = "main"
    has_service: bool = False
    succeeded: Sequence[str] = ("Complete",)
    failed: Sequence[str] = ("Failed",)

    def stem(self, name: str, role: Role, is_only: bool, /) -> str:
        """Return the part of a role's pod host names that precedes the number."""

    def check(self, app: AppDef, cfg: Mapping[str, Any]) -> None:
        """Raise a UsageError for anything that this kind of object can't express."""
        del app, cfg

    def specs(self, app: AppDef, cfg: Mapping[str, Any], place: MeetingPlace) -> Iterator[Maker]:
        """Yield the app's objects."""

    def roles(self, each: Object) -> dict[str, int]:
        """Return an object's roles and their numbers of replicas."""

    def verdict(self, each: Object, replicas: Sequence[ReplicaStatus], /) -> Verdict:
        """Derive the verdict from an object's conditions and from its replicas."""
        for _ in conditions(each, *self.succeeded):
            return AppState.SUCCEEDED, ""
        for _, message in conditions(each, *self.failed):
            if self.has_succeeded(each, replicas):
                return AppState.SUCCEEDED, ""
            return AppState.FAILED, message
        for _ in conditions(each, "Suspended"):
            queue = (each["metadata"].get("labels") or {}).get(QUEUE, "")
            return (
                AppState.PENDING,
                f"the {each['kind']} is suspended: it is waiting in its queue, {queue}",
            )
        return None, ""

    def has_succeeded(self, _each: Object, _replicas: Sequence[ReplicaStatus], /) -> bool:
        """Return whether enough replicas have succeeded although the object has failed."""
        return False

    def cancelling(self, _each: Object, /) -> tuple[str, list[dict[str, Any]]]:
        """Return the subresource to patch (an empty string for the object itself), and a JSON patch
        that terminates the pods. A patched status says by itself that the job was cancelled.

        By default, the patch suspends the object through `spec.suspend`.
        """
        return "", [{"op": "add", "path": "/spec/suspend", "value": True}]


def role_label(role: Role) -> dict[str, str]:
    """Return the label that distinguishes a role's pods from those of other roles."""
    return {ROLE: label_value(role.name)}


def queue_label(cfg: Mapping[str, Any]) -> dict[str, str]:
    """Return the label that adds an object to a Kueue queue."""
    return {QUEUE: cfg["queue"]} if cfg.get("queue") else {}


def time_to_live(cfg: Mapping[str, Any]) -> dict[str, int]:
    """Return the field that specifies how long an object is kept after it has finished."""
    ttl = cfg.get("ttl")
    if ttl is None or ttl == NEVER:
        return {}
    if ttl < NEVER:
        raise UsageError(f"-cfg ttl={ttl}: expected seconds, or {NEVER} to keep the job")
    return {"ttlSecondsAfterFinished": ttl}


def gang_annotation(cfg: Mapping[str, Any], role: Role) -> dict[str, str]:
    """Return the Job annotation that Volcano uses to create the PodGroup for the Job's pods.

    Source: getMinMemberFromUpperRes in Volcano's pkg/controllers/podgroup.
    """
    wanted = cfg.get("gang") and cfg.get("scheduler") == VOLCANO
    return {"scheduling.volcano.sh/group-min-member": str(role.least_replicas)} if wanted else {}


def conditions(each: Object, *names: str) -> Iterator[tuple[str, str]]:
    """Yield each of the named conditions that is true, along with its message, in the given
    order.
    """
    known = {
        condition["type"]: str(condition.get("message") or "")
        for condition in (each.get("status") or {}).get("conditions") or ()
        if condition.get("status") == "True"
    }
    for name in names:
        if name in known:
            yield name, known[name]


def with_unfit_code(role: Role, code: int = EXIT_PREEMPTED) -> Role:
    """Return the role with a variable for its agents. In an elastic job, an agent whose node fails
    its health check while the others train exits with this code. The pod is then recreated without
    counting a failure.
    """
    if not role.is_elastic or not launcher_file.starts_relight(role):
        return role
    return replace(role, env={UNFIT_CODE_VARIABLE: str(code), **role.env})


def only_role(kind: Kind, app: AppDef) -> Role:
    """Return an app's only role.

    Raises:
        UsageError: if the app has several roles.
    """
    if len(app.roles) == 1:
        return app.roles[0]
    raise UsageError(
        f"app {app.name} has {len(app.roles)} roles, but a {kind.resource.kind} runs one",
        hint="use -cfg kind=job, kind=jobset or kind=volcano",
    )
