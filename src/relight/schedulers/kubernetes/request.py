"""The objects of an app on Kubernetes.

Service     headless; gives each pod the host name NAME-INDEX.NAME, also before it is ready
ConfigMap   the launcher that travels with the job (`job/launcher_file.py`), if it is needed
Secret      the token with which agents prove that they belong to the job
Job ...     what makes the pods, by `-cfg kind=` (`kinds`)
"""

import base64
from collections.abc import Mapping
from typing import Any

from relight.base import redaction
from relight.base.errors import UsageError
from relight.job import launcher_file
from relight.job.app import AppDef, Role
from relight.schedulers.kubernetes import names, pods
from relight.schedulers.kubernetes.kinds import DEFAULT, KINDS
from relight.schedulers.kubernetes.names import JobId
from relight.schedulers.kubernetes.pods import MeetingPlace


def objects(
    app: AppDef, cfg: Mapping[str, Any], app_id: str, namespace: str, token: str
) -> tuple[JobId, list[dict[str, Any]]]:
    """Return the id of an app and its objects, in the order in which they are made.

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
    kind = KINDS[cfg.get("kind") or DEFAULT.name]
    kind.check(app, cfg)
    is_only = len(app.roles) == 1

    def stem(name: str, role: Role) -> str:
        return kind.stem(name, role, is_only)

    name = names.app_name(app, app_id, stem)
    job = JobId(str(cfg.get("context") or ""), namespace, name)
    place = MeetingPlace(str(job), name, stem(name, app.roles[0]), kind.index, kind.starts)

    def made(of: str, version: str, own: str, **rest: Any) -> dict[str, Any]:
        metadata = {"name": own, "namespace": namespace, "labels": pods.labels(app, name)}
        return {"apiVersion": version, "kind": of, "metadata": metadata, **rest}

    found = []
    if kind.has_service:
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {pods.APP: name},
        }
        found.append(made("Service", "v1", name, spec=spec))
    if any(map(launcher_file.needed, app.roles)):
        text = base64.b64encode(launcher_file.build()).decode()
        data = {launcher_file.NAME: text}
        found.append(made("ConfigMap", "v1", f"{name}-launcher", binaryData=data, immutable=True))
    if any(pods.TOKEN not in role.env for role in app.roles):
        found.append(made("Secret", "v1", f"{name}-token", stringData={pods.TOKEN: token}))
    for own, labels, spec in kind.specs(app, cfg, place):
        each = made(kind.resource.kind, kind.resource.version, own, spec=spec)
        each["metadata"]["labels"] |= labels
        found.append(each)
    return job, found


def shown(part: Any) -> Any:
    """Return a part of an object for people, with the user's secrets hidden. The token of the
    agents stays: it is made for this request alone, and `kubectl apply` needs it.
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
