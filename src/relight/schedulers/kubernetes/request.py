"""The objects of an app on Kubernetes.

    Service     headless; gives each pod the host name NAME-INDEX.NAME, also before it is ready
    ConfigMap   the launcher that travels with the job (`job/launcher_file.py`), if it is needed
    Secret      the token with which agents prove that they belong to the job
    Job         one for each role, with an index for each replica (completionMode Indexed)

A pod that is preempted or whose node is lost is made again and counts as no failure; an error of
the user's program fails the Job at once, or after `max_retries` for each replica. A role that may
shrink succeeds when so many replicas have succeeded as it needs.
"""

import base64
from collections.abc import Mapping
from typing import Any

from relight.errors import EXIT_GROUP, EXIT_MACHINE, UsageError
from relight.job import launcher_file
from relight.job.app import AppDef, Role
from relight.schedulers.kubernetes import names, pods
from relight.schedulers.kubernetes.pods import Place

QUEUE = "kueue.x-k8s.io/queue-name"
_TRANSIENT = [EXIT_GROUP, EXIT_MACHINE, 129, 130, 137, 143]
"""Exit codes that are no error of the user's program: nodes did not meet, a machine refused
something, or a signal has ended the agent. Such pods are made again a few times.
"""
_TRIES = 3


def objects(
    app: AppDef, cfg: Mapping[str, Any], app_id: str, namespace: str, token: str
) -> list[dict[str, Any]]:
    """Return the objects of an app, in the order in which they are made.

    Args:
        app: the app with its macros.
        cfg: the options of the scheduler.
        app_id: a unique name.
        namespace: where they are made.
        token: of the agents.

    Raises:
        UsageError: a part of the app or an option can't be expressed for Kubernetes.
    """
    if not app.roles:
        raise UsageError(f"the app {app.name} has no roles")
    name = names.app_name(app, app_id)
    is_only = len(app.roles) == 1
    place = Place(name, names.job_name(name, app.roles[0], is_only=is_only))

    def made(kind: str, version: str, own: str, **rest: Any) -> dict[str, Any]:
        metadata = {"name": own, "namespace": namespace, "labels": pods.labels(app, name)}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}

    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {pods.APP: name},
    }
    found = [made("Service", "v1", name, spec=spec)]
    if any(map(launcher_file.needed, app.roles)):
        text = base64.b64encode(launcher_file.build()).decode()
        data = {launcher_file.NAME: text}
        found.append(made("ConfigMap", "v1", f"{name}-launcher", binaryData=data, immutable=True))
    if any(pods.TOKEN not in role.env for role in app.roles):
        found.append(made("Secret", "v1", f"{name}-token", stringData={pods.TOKEN: token}))
    for role in app.roles:
        own = names.job_name(name, role, is_only=is_only)
        job = made("Job", "batch/v1", own, spec=_job(app, role, cfg, place))
        job["metadata"]["labels"] |= {pods.ROLE: names.label_value(role.name)}
        if cfg.get("queue"):
            job["metadata"]["labels"][QUEUE] = cfg["queue"]
        found.append(job)
    return found


def _job(app: AppDef, role: Role, cfg: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Return the specification of a role's Job."""
    size = role.num_replicas
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": size,
        "parallelism": size,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _rules(role)},
    }
    if role.max_retries > 0:
        spec |= {"backoffLimitPerIndex": role.max_retries, "maxFailedIndexes": 0}
    else:
        spec["backoffLimit"] = _TRIES * size
    least = size if role.min_replicas is None else role.min_replicas
    if least < size:
        rule = {"succeededIndexes": f"0-{size - 1}", "succeededCount": least}
        spec["successPolicy"] = {"rules": [rule]}
    return {**spec, "template": pods.template(app, role, cfg, place)}


def _rules(role: Role) -> list[dict[str, Any]]:
    """Return what a failed pod means."""
    lost = {"type": "DisruptionTarget", "status": "True"}
    rules: list[dict[str, Any]] = [{"action": "Ignore", "onPodConditions": [lost]}]
    if role.max_retries <= 0:
        codes = {"containerName": "main", "operator": "NotIn", "values": [0, *_TRANSIENT]}
        rules.append({"action": "FailJob", "onExitCodes": codes})
    return rules
