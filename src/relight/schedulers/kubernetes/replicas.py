"""Derives a job's status from its pods and from the objects that create them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from relight.job.app import NOTHING, AppState
from relight.schedulers.api import AppStatus, ReplicaStatus, by_cause
from relight.schedulers.kubernetes import pods, volcano
from relight.schedulers.kubernetes.kind import INDEX, Kind
from relight.schedulers.kubernetes.store import Object

CANCELLED = "relight/cancelled"
"""The annotation on a Job that has been cancelled."""
_PHASES = {
    "Pending": AppState.PENDING,
    "Running": AppState.RUNNING,
    "Succeeded": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
}
_BAD_WAITING = (
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError",
    "CreateContainerError", "RunContainerError", "ErrImageNeverPull",
)  # fmt: skip
"""Reasons why a container is waiting that may never go away."""
_OUT_OF_MEMORY = "out of memory: the container used more than its limit"
"""The error of a container that the kernel killed. Its exit code is that of a replica that was
stopped because another one failed, but it is a cause.
"""
_POD_FAILED = "its pod failed"
_NAMES_RANK = re.compile(r"(?:probably |perhaps )?(?:the )?ranks?\b")


def by_replica(
    found: Iterable[Mapping[str, Any]],
) -> dict[tuple[str, int], list[Mapping[str, Any]]]:
    """Group pods by role and replica index, oldest first."""
    replicas: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for pod in found:
        labels = pod["metadata"].get("labels") or {}
        index = labels.get(INDEX) or (pod["metadata"].get("annotations") or {}).get(INDEX)
        index = index or labels.get(volcano.INDEX) or "0"
        replicas.setdefault((labels.get(pods.ROLE, ""), int(index)), []).append(pod)
    for its in replicas.values():
        its.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
    return replicas


def by_app(found: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Group pods or other objects by job name."""
    apps: dict[str, list[Mapping[str, Any]]] = {}
    for pod in found:
        apps.setdefault((pod["metadata"].get("labels") or {}).get(pods.APP, ""), []).append(pod)
    return apps


def status(
    kind: Kind,
    objects: Sequence[Object],
    found: Iterable[Mapping[str, Any]],
    told: Mapping[str, str] = NOTHING,
) -> AppStatus:
    """Return a job's status.

    Args:
        kind: the kind of objects that the job consists of.
        objects: the objects that create the job's pods.
        found: the job's pods.
        told: the reasons why objects aren't making progress, by object name (`reasons`).
    """
    replicas = by_replica(found)
    of_pods = {pod["metadata"]["name"] for its in replicas.values() for pod in its}
    of_makers = {name: why for name, why in told.items() if name not in of_pods}
    statuses, states, messages = list[ReplicaStatus](), list[AppState](), list[str]()
    for each in objects:
        no_pods = _why_no_pods(of_makers, each["metadata"]["name"])
        numbered = [(role, n) for role, size in kind.roles(each).items() for n in range(size)]
        its = [_replica(*key, replicas.get(key, []), told, no_pods) for key in numbered]
        statuses += its
        is_active = any(_is_active(pod) for key in numbered for pod in replicas.get(key, ()))
        state, message = _verdict(kind, each, its, no_pods, is_active=is_active)
        states.append(state)
        messages += [message] if message else []
    retries = sum(len(its) - 1 for its in replicas.values())
    return AppStatus(_whole(states), "; ".join(messages), tuple(statuses), retries)


def is_unexplained(status: AppStatus) -> bool:
    """Return whether any replica is waiting without a reason from its pod."""
    waits = (AppState.SUBMITTED, AppState.PENDING)
    return not status.state.is_over and any(
        each.state in waits and not each.error for each in status.replicas
    )


def _why_no_pods(told: Mapping[str, str], maker: str) -> str:
    """Return why an object that creates pods, or a Job that this object created, isn't making
    progress.
    """
    its = [name for name in told if name == maker or name.startswith(f"{maker}-")]
    return told[min(its, key=len)] if its else ""


def _whole(states: Sequence[AppState]) -> AppState:
    for state in (AppState.FAILED, AppState.CANCELLED, AppState.RUNNING, AppState.PENDING):
        if state in states:
            return state
    return AppState.SUCCEEDED if states else AppState.UNKNOWN


def _is_active(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is pending or running, and is not being deleted."""
    phase = (pod.get("status") or {}).get("phase")
    return phase in ("Pending", "Running") and "deletionTimestamp" not in pod["metadata"]


def _verdict(
    kind: Kind, each: Object, replicas: Sequence[ReplicaStatus], no_pods: str, *, is_active: bool
) -> tuple[AppState, str]:
    """Return the state of an object's replicas, and the reason for it. `no_pods` explains why pods
    are missing.
    """
    why = _reason(replicas)
    state, message = kind.verdict(each, replicas)
    is_cancelled = (each["metadata"].get("annotations") or {}).get(CANCELLED)
    # The annotation must not hide pods that are running, whoever started them.
    ends = state is AppState.FAILED or (state is not AppState.SUCCEEDED and not is_active)
    if is_cancelled and ends:
        return AppState.CANCELLED, "it was cancelled"
    if state is AppState.FAILED:
        return state, why or message
    if state is AppState.PENDING and no_pods:
        return state, f"{message}: {no_pods}"
    if state is not None:
        return state, message
    if any(replica.state is AppState.RUNNING for replica in replicas):
        return AppState.RUNNING, ""
    return AppState.PENDING, why


def _reason(replicas: Sequence[ReplicaStatus]) -> str:
    """Return why replicas failed or are waiting, in one line.

    An agent's termination message is the headline of the job's failure, which is the same in all
    pods and usually names the rank. The line then names the role, because the replica with the
    first of these pods may not be the one that failed.
    """
    found = [each for each in by_cause(replicas) if each.error]
    if not found:
        return ""
    first = next((each for each in found if each.error == _OUT_OF_MEMORY), found[0])
    is_headline = _NAMES_RANK.match(first.error) or (
        first.state is AppState.FAILED
        and first.error not in (_OUT_OF_MEMORY, _POD_FAILED, _exit_code(first.exitcode))
        and [each.error for each in found].count(first.error) > 1
    )
    place = first.role if is_headline else f"{first.role}/{first.replica}"
    return f"{place}: {first.error}"


def _replica(
    role: str,
    number: int,
    found: Sequence[Mapping[str, Any]],
    told: Mapping[str, str],
    no_pods: str,
) -> ReplicaStatus:
    if not found:
        return ReplicaStatus(role, number, AppState.SUBMITTED, "", None, no_pods)
    pod = found[-1]
    known = pod.get("status") or {}
    state = _PHASES.get(known.get("phase") or "", AppState.UNKNOWN)
    host = str((pod.get("spec") or {}).get("nodeName") or "")
    exitcode, message = _end(known)
    if state is AppState.PENDING:
        message = message or _waits(known) or told.get(pod["metadata"]["name"], "")
    return ReplicaStatus(role, number, state, host, exitcode, message)


def _end(known: Mapping[str, Any]) -> tuple[int | None, str]:
    """Return the container's exit code and the reason for its failure."""
    reason, said = (" ".join(str(known.get(name) or "").split()) for name in ("reason", "message"))
    of_pod = ": ".join(filter(None, (reason, said)))  # for example, the pod was evicted
    for container in known.get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            code = ended.get("exitCode")
            if code == 0:
                return 0, ""
            reason = str(ended.get("reason") or "")
            said = " ".join(str(ended.get("message") or "").split())
            if of_pod:
                return code, of_pod
            if reason == "OOMKilled":
                return code, _OUT_OF_MEMORY
            return code, said or _exit_code(code)
    if known.get("phase") == "Failed":
        return None, of_pod or _POD_FAILED
    return None, ""


def _exit_code(code: int | None) -> str:
    return f"exit code {code}"


def _waits(known: Mapping[str, Any]) -> str:
    """Return why a pod is waiting, or an empty string."""
    for container in known.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _BAD_WAITING:
            said = " ".join(str(waiting.get("message") or "").split())
            return f"{waiting['reason']}: {said}" if said else str(waiting["reason"])
    for condition in known.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            said = " ".join(str(condition.get("message") or "").split())
            return f"{condition.get('reason') or 'Unschedulable'}: {said}"
    return ""
