"""Creates, lists, changes and deletes objects of any kind in a cluster.

Changes are JSON patches (RFC 6902), because versions of the kubernetes package handle merge patches
differently, and custom resources reject strategic merge patches.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

Object = Mapping[str, Any]


class ObjectKind(NamedTuple):
    """The names that the API uses for a kind of object, such as `batch/v1`, `Job` and `jobs`."""

    version: str
    kind: str
    plural: str

    @property
    def full_name(self) -> str:
        """The name for kubectl, which takes `jobs` to be those of batch/v1."""
        group = self.version.rpartition("/")[0]
        return f"{self.plural}.{group}" if group else self.plural


SERVICES = ObjectKind("v1", "Service", "services")
CONFIG_MAPS = ObjectKind("v1", "ConfigMap", "configmaps")
SECRETS = ObjectKind("v1", "Secret", "secrets")
PODS = ObjectKind("v1", "Pod", "pods")
EVENTS = ObjectKind("v1", "Event", "events")
NETWORK_POLICIES = ObjectKind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
POD_GROUPS = ObjectKind("scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups")
_CORE = {
    SERVICES: "service", CONFIG_MAPS: "config_map", SECRETS: "secret", PODS: "pod",
    EVENTS: "event",
}  # fmt: skip
"""The names that the kubernetes package uses for the core kinds."""
GONE = (404, 410)
"""The status codes for objects that don't exist, and for kinds that the cluster doesn't have."""


@contextmanager
def ignoring(*statuses: int) -> Iterator[None]:
    """Ignore the API server's errors with these status codes."""
    import kubernetes

    try:
        yield
    except kubernetes.client.ApiException as error:
        if error.status not in statuses:
            raise


def create(client: Any, resource: ObjectKind, each: Object, *, dry_run: bool = False) -> Object:
    """Create an object, or only have the server validate it."""
    options: dict[str, Any] = {"field_validation": "Strict"}
    if dry_run:
        options["dry_run"] = "All"
    call, place = _call(client, "create", resource, each["metadata"]["namespace"])
    return {**_json(call, *place, dict(each), **options), **_typed(resource)}


def listed(
    client: Any,
    resource: ObjectKind,
    namespace: str,
    selector: str = "",
    *,
    fields: str = "",
    unless: Sequence[int] = (),
) -> list[Object]:
    """Return the objects that match label and field selectors. The list is empty if the server
    responds with one of the status codes `unless`.
    """
    call, place = _call(client, "list", resource, namespace)
    said = {"label_selector": selector, "field_selector": fields}
    wanted = {name: value for name, value in said.items() if value}
    found: list[Object] = []
    with ignoring(*unless):
        found += _json(call, *place, **wanted)["items"]
    # The API omits the kind from each item in a list of built-in objects.
    return [{**each, **_typed(resource)} for each in found]


def patch(
    client: Any, resource: ObjectKind, each: Object, change: Sequence[Object], part: str = ""
) -> None:
    """Change an object, or one of its subresources such as `status`."""
    call, place = _call(client, "patch", resource, each["metadata"]["namespace"], part)
    _json(call, *place, each["metadata"]["name"], list(change))


def delete(client: Any, resource: ObjectKind, each: Object) -> None:
    """Delete an object, if it still exists, and in the background the objects that it owns."""
    call, place = _call(client, "delete", resource, each["metadata"]["namespace"])
    with ignoring(*GONE):
        _json(call, *place, each["metadata"]["name"], propagation_policy="Background")


def _typed(resource: ObjectKind) -> dict[str, str]:
    return {"apiVersion": resource.version, "kind": resource.kind}


def _call(
    client: Any, verb: str, resource: ObjectKind, namespace: str, part: str = ""
) -> tuple[Callable[..., Any], list[str]]:
    """Return the kubernetes package's method for a request, and the arguments that precede the
    object's name.
    """
    import kubernetes

    if resource not in _CORE:
        group, _, version = resource.version.rpartition("/")
        api = kubernetes.client.CustomObjectsApi(client)
        name = f"{verb}_namespaced_custom_object{part and '_'}{part}"
        return getattr(api, name), [group, version, namespace, resource.plural]
    core = kubernetes.client.CoreV1Api(client)
    method = getattr(core, f"{verb}_namespaced_{_CORE[resource]}")
    if verb in ("create", "list"):
        return method, [namespace]

    def named(namespace: str, name: str, *rest: Any, **options: Any) -> Any:
        return method(name, namespace, *rest, **options)

    return named, [namespace]


def _json(call: Callable[..., Any], *arguments: Any, **options: Any) -> dict[str, Any]:
    """Return the server's response as plain JSON, because the client's classes differ between
    versions.
    """
    answer: dict[str, Any] = json.loads(call(*arguments, **options, _preload_content=False).data)
    return answer
