"""Patches and kubectl apply, both client-side and server-side.

Sources: kubernetes/kubectl 0.36 (commit dee3483a), pkg/cmd/apply/apply.go (applyOneObject) and
pkg/util/apply.go (GetModifiedConfiguration); kubernetes/apiserver, pkg/endpoints/handlers/patch.go;
sigs.k8s.io/structured-merge-diff. All lists are atomic here, even where a schema merges them by a
key.
"""

import json
from typing import TYPE_CHECKING, Any

from clusters.kubernetes.state import PLURALS, Object, Refused, copy

if TYPE_CHECKING:
    from clusters.kubernetes.server import ApiServer

JSON, MERGE = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
Path = tuple[str, ...]


def load(raw: bytes) -> Any:
    """Parse a JSON or YAML request body."""
    try:
        return json.loads(raw)
    except ValueError:
        import yaml

        return yaml.safe_load(raw)


def check_patch(kind: str, plural: str, version: str, body: Any) -> None:
    """patch.go: strategic merge patches are unsupported for custom resources.

    Raises:
        Refused: With code 415.
    """
    is_custom = "." in version.partition("/")[0] and not version.startswith("networking.k8s.io")
    known = [JSON, MERGE, APPLY] if is_custom else [JSON, MERGE, STRATEGIC, APPLY]
    if kind not in known or isinstance(body, list) != (kind == JSON):
        said = "the body of the request was in an unknown format - accepted media types include: "
        raise Refused(415, "UnsupportedMediaType", said + ", ".join(known))


def patched(each: Object, body: Any, kind: str) -> Object:
    """Return an object with a patch applied; `each` is modified."""
    if kind == JSON:
        for operation in body:
            _operate(each, operation)
        return each
    return merged(each, body)


def _operate(each: Any, operation: Object) -> None:
    """Apply an operation (RFC 6902); a path that does not exist is refused with code 422."""
    parts = operation["path"].removeprefix("/").split("/")
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in parts]
    try:
        for part in parents:
            each = each[int(part)] if isinstance(each, list) else each[part]
        if isinstance(each, list):
            index = len(each) if last == "-" else int(last)
            if operation["op"] == "add":
                each.insert(index, operation["value"])
            elif operation["op"] == "remove":
                del each[index]
            else:
                each[index] = operation["value"]
        elif operation["op"] == "add":
            each[last] = operation["value"]
        elif operation["op"] == "remove":
            del each[last]
        elif operation["op"] == "test":
            assert each[last] == operation["value"]
        else:
            each[last]
            each[last] = operation["value"]
    except (KeyError, IndexError, TypeError, AssertionError):
        said = "the server rejected our request due to an error in our request"
        raise Refused(422, "Invalid", said) from None


def merged(each: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    found = dict(each) if isinstance(each, dict) else {}
    for name, value in patch.items():
        if name.startswith("$"):
            continue  # directives of strategic merge patches only concern lists
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


# Server-side apply.


def leaves(each: Any, path: Path = ()) -> dict[Path, Any]:
    """Return an object's leaf values by path; a list is one value."""
    if not isinstance(each, dict) or not each:
        return {path: each}
    found: dict[Path, Any] = {}
    for name, value in each.items():
        found |= leaves(value, (*path, name))
    return found


def _owned(body: Object) -> dict[Path, Any]:
    ignored = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")}
    return {path: value for path, value in leaves(body).items() if path not in ignored}


def entry(manager: str, body: Object) -> Object:
    """Return a manager's entry in managedFields."""
    fields = [list(path) for path in _owned(body)]
    return {"manager": manager, "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": fields}


def applied(known: Object, body: Object, manager: str, force: bool) -> Object:
    """Return an object with a manager's configuration applied.

    Raises:
        Refused: With code 409, if another manager has set a field to a different value.
    """
    managers = copy(known["metadata"].get("managedFields") or [])
    now, wanted = leaves(known), _owned(body)
    for other in managers:
        theirs = {tuple(path) for path in other["fieldsV1"]}
        conflicts = [p for p in wanted if p in theirs and now.get(p) != wanted[p]]
        if other["manager"] != manager and conflicts:
            if not force:
                where = ", ".join("." + ".".join(path) for path in conflicts)
                count = f"Apply failed with {len(conflicts)} conflict"
                raise Refused(
                    409, "Conflict", f'{count}: conflict with "{other["manager"]}": {where}'
                )
            other["fieldsV1"] = [x for x in other["fieldsV1"] if tuple(x) not in conflicts]
    new = merged(copy(known), {k: v for k, v in body.items() if k not in ("apiVersion", "kind")})
    others = {tuple(p) for x in managers if x["manager"] != manager for p in x["fieldsV1"]}
    for other in managers:
        if other["manager"] == manager:
            for path in map(tuple, other["fieldsV1"]):
                if path not in wanted and path not in others:
                    _remove(new, path)
    managers = [x for x in managers if x["manager"] != manager]
    new["metadata"]["managedFields"] = [*managers, entry(manager, body)]
    return dict(new)


def _remove(each: Any, path: Path) -> None:
    *parents, last = path
    for name in parents:
        each = each.get(name) or {}
    each.pop(last, None)


# kubectl.


def kubectl_apply(
    server: "ApiServer", text: str, server_side: bool = False, namespace: str = "ns"
) -> list[str]:
    """Act like `kubectl apply -f -`, which continues after an error; return the errors.

    With client-side apply, the whole object is written into an annotation, so an object larger than
    256 KiB is refused.
    """
    import yaml

    errors = []
    for body in filter(None, yaml.safe_load_all(text)):
        try:
            _apply_one(server, body, server_side, body["metadata"].get("namespace", namespace))
        except Refused as refused:
            errors.append(refused.message)
    return errors


def _apply_one(server: "ApiServer", body: Object, server_side: bool, namespace: str) -> None:
    plural = PLURALS.get((body["apiVersion"], body["kind"]))
    if plural is None:
        raise Refused(404, "NotFound", f'no matches for kind "{body["kind"]}"')
    group = "api" if "/" not in body["apiVersion"] else "apis"
    collection = f"/{group}/{body['apiVersion']}/namespaces/{namespace}/{plural.partition('.')[0]}"
    one = f"{collection}/{body['metadata']['name']}"
    strict = {"fieldValidation": "Strict"}
    if server_side:
        query = {"fieldManager": "kubectl", **strict}
        server.request("PATCH", one, query, body, APPLY)
        return
    modified = copy(body)
    modified["metadata"]["annotations"] = {
        **(body["metadata"].get("annotations") or {}),
        LAST_APPLIED: json.dumps(body, separators=(",", ":")) + "\n",
    }
    try:
        _, current = server.request("GET", one, {}, {})
    except Refused as refused:
        if refused.code != 404:
            raise
        server.request("POST", collection, {"fieldManager": "kubectl-client-side-apply"}, modified)
        return
    before = json.loads((current["metadata"].get("annotations") or {}).get(LAST_APPLIED, "{}"))
    patch = difference(before, current, modified)
    if patch:
        server.request("PATCH", one, strict, patch, MERGE)


def difference(before: Any, current: Any, wanted: Any) -> Object:
    """Return a three-way merge patch: changed values, and null for removed ones."""
    found: Object = {}
    for name, value in wanted.items():
        its = current.get(name) if isinstance(current, dict) else None
        if isinstance(value, dict) and isinstance(its, dict):
            old = before.get(name) if isinstance(before, dict) else None
            if patch := difference(old or {}, its, value):
                found[name] = patch
        elif value != its:
            found[name] = value
    for name in before if isinstance(before, dict) else ():
        if name not in wanted and isinstance(current, dict) and name in current:
            found[name] = None
    return found
