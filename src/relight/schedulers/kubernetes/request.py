"""Builds the Kubernetes objects for an app.

ConfigMaps     the launcher (`job/launcher_file.py`), if needed; they are named after its content,
               shared by all jobs in a namespace, and not owned by any job
Service        headless; gives each pod the host name NAME-INDEX.NAME, even before it is ready
Secret         the token with which agents prove that they belong to the job
Secret         variables that look like secrets
NetworkPolicy  lets only pods of the job connect to them, with `-cfg network_policy`
PodGroup       makes the Coscheduling plug-in start pods together, with `-cfg gang`
Job ...        creates the pods; `-cfg kind=` selects the kind of object (`kinds`)
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relight.base import redaction
from relight.job import launcher_file
from relight.job.app import AppDef, Role
from relight.schedulers.api import with_job_id
from relight.schedulers.kubernetes import cluster, names, pods, store
from relight.schedulers.kubernetes.kinds import DEFAULT, KINDS
from relight.schedulers.kubernetes.names import JobId
from relight.schedulers.kubernetes.pods import MeetingPlace

LAUNCHER = "relight/launcher"
"""The label on a ConfigMap that contains a launcher."""


def objects(
    app: AppDef, cfg: Mapping[str, Any], app_id: str, namespace: str, token: str
) -> tuple[JobId, list[dict[str, Any]]]:
    """Return an app's id, and its objects in creation order.

    Args:
        app: the app, whose macros have not been substituted yet.
        cfg: the scheduler's options.
        app_id: a unique name.
        namespace: the objects' namespace.
        token: the token that agents authenticate with.

    Raises:
        UsageError: if part of the app or an option can't be expressed in Kubernetes.
    """
    kind = KINDS[cfg.get("kind") or DEFAULT.name]
    kind.check(app, cfg)
    is_only = len(app.roles) == 1

    def stem(name: str, role: Role) -> str:
        return kind.stem(name, role, is_only)

    name = names.app_name(app, app_id, stem)
    job = JobId(str(cfg.get("context") or ""), namespace, name)
    app = with_job_id(app, str(job))
    place = MeetingPlace(name, stem(name, app.roles[0]), kind.index, kind.starts)

    def made(of: store.ObjectKind, own: str, **rest: Any) -> dict[str, Any]:
        metadata = {"name": own, "namespace": namespace, "labels": pods.labels(app, name)}
        return {"apiVersion": of.version, "kind": of.kind, "metadata": metadata, **rest}

    found: list[dict[str, Any]] = []
    if any(map(launcher_file.needed, app.roles)):
        found += _launcher(namespace)
    if kind.has_service:
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {pods.APP: name},
        }
        found.append(made(store.SERVICES, name, spec=spec))
    if any(pods.TOKEN not in role.env for role in app.roles):
        found.append(made(store.SECRETS, f"{name}-token", stringData={pods.TOKEN: token}))
    secrets = {key: value for role in app.roles for key, value in pods.secrets(role, place).items()}
    if secrets:
        found.append(made(store.SECRETS, pods.secret_name(place), stringData=secrets))
    if cfg.get("network_policy"):
        of_job = {"podSelector": {"matchLabels": {pods.APP: name}}}
        spec = {**of_job, "policyTypes": ["Ingress"], "ingress": [{"from": [of_job]}]}
        found.append(made(store.NETWORK_POLICIES, name, spec=spec))
    if pods.has_pod_group({**cfg, "kind": kind.name}):
        members = {"minMember": sum(role.least_replicas for role in app.roles)}
        found.append(made(store.POD_GROUPS, name, spec=members))
    for maker in kind.specs(app, cfg, place):
        each = made(kind.resource, maker.name, spec=maker.spec)
        each["metadata"]["labels"] |= maker.labels
        if maker.annotations:
            each["metadata"]["annotations"] = dict(maker.annotations)
        found.append(each)
    return job, found


def _launcher(namespace: str) -> Iterator[dict[str, Any]]:
    """Yield the ConfigMaps that contain the launcher. All jobs of one relight version in a
    namespace share them.
    """
    labels = {
        "app.kubernetes.io/name": "relight-launcher",
        "app.kubernetes.io/managed-by": "relight",
        LAUNCHER: launcher_file.digest(),
    }
    for name, files in pods.launcher().items():
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "binaryData": {path: base64.b64encode(data).decode() for path, data in files.items()},
            "immutable": True,
        }


def as_text(made: Sequence[Mapping[str, Any]], selected: str) -> str:
    """Return objects as YAML for `kubectl apply -f -`. The Secret that contains the user's
    variables is omitted, and a comment has its manifest without the values.

    Args:
        made: the objects.
        selected: arguments for `kubectl delete` that select the job's objects.
    """
    hidden = [
        each
        for each in made
        if each["kind"] == "Secret" and each["metadata"]["name"].endswith(pods.SECRETS)
    ]
    whole = [shown(each) for each in made if each not in hidden]
    comments = [f"# {line}\n" for line in _comments(whole, hidden, selected)]
    return "".join(comments) + str(
        cluster.yaml().safe_dump_all(whole, sort_keys=False, width=10**9)
    )


def _comments(
    whole: Sequence[Mapping[str, Any]], hidden: Sequence[Mapping[str, Any]], selected: str
) -> Iterator[str]:
    yield f"to remove all objects of the job: kubectl delete {selected}"
    for each in hidden:
        # As a file, because the shell keeps the arguments of commands in its history.
        yield f"the Secret {each['metadata']['name']} is not shown; pods wait until it exists."
        yield "Fill in the values, and create it with kubectl create -f FILE:"
        empty = {**each, "stringData": dict.fromkeys(each["stringData"], "")}
        text = str(cluster.yaml().safe_dump(empty, sort_keys=False, width=10**9))
        yield from (f"  {line}" for line in text.splitlines())
    if any(redaction.HIDDEN in str(each) for each in whole):
        yield f"arguments that look like secrets are replaced by {redaction.HIDDEN}, also for"
        yield "kubectl: pass them as variables, or use relight submit"


def shown(part: Any) -> Any:
    """Return part of an object for display, with the user's secrets hidden. The agents' token is
    not hidden, because only this request uses it and `kubectl apply` needs it.
    """
    if isinstance(part, Mapping):
        if isinstance(part.get("name"), str) and isinstance(part.get("value"), str):
            name, value = part["name"], part["value"]
            return {**part, "value": redaction.redact_env({name: value})[name]}
        return {
            key: redaction.redact_argv(each) if key == "command" else shown(each)
            for key, each in part.items()
        }
    return [shown(each) for each in part] if isinstance(part, list) else part
