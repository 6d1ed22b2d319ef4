"""Merges the user's overrides into the pod template. They come from a YAML or JSON file (`-cfg
pods=FILE`) and from TorchX overlays in the `kubernetes` metadata (`job/overlays.py`).

    spec:
      hostNetwork: true
      containers:
        - name: main
          volumeMounts: [{name: scratch, mountPath: /scratch}]
      volumes: [{name: scratch, emptyDir: {}}]

The file is merged in the same way as `kubectl patch` would merge it. Mappings are merged by key,
lists of containers, volumes and variables by `name`, and mounts by `mountPath`. Any other list
replaces relight's list, and `null` removes a value.
"""

import json
from collections.abc import Mapping
from typing import Any

from relight.base.errors import UsageError
from relight.job import overlays
from relight.job.app import AppDef, Role
from relight.schedulers.kubernetes import cluster

_KEYS = {"volumeMounts": "mountPath", "ports": "containerPort", "hostAliases": "ip"}
"""The keys that identify the entries in some lists. In all other lists, the key is `name`."""
_PARTS = ("metadata", "spec", "apiVersion", "kind")
NAMESPACE, _POD = "kubernetes", "V1Pod"


def read(path: str) -> dict[str, Any]:
    """Read an overrides file.

    Raises:
        UsageError: if the overrides can't be read or are not a valid part of a pod.
    """
    what = f"-cfg pods={path}"
    return _checked(_loaded(path, what), what)


def overlay(of: AppDef | Role) -> dict[str, Any]:
    """Return the pod overlay from the metadata of an app or a role. The overlay is given as a dict,
    a path or a `file://` URL.

    Raises:
        UsageError: if the overrides can't be read or are not a valid part of a pod.
    """
    found = of.metadata.get(NAMESPACE)
    if not found:
        return {}
    what = f"the metadata {NAMESPACE} of {of.name}"
    if isinstance(found, str):
        what = f"{what}, {found}"
        found = _loaded(found.removeprefix("file://"), what)
    return _checked(overlays.select_kind(found, _POD, what), what)


def _loaded(path: str, what: str) -> Any:
    try:
        with open(path) as file:
            return cluster.yaml().load(file, _loader())
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{what}: {why}", hint="the path of a YAML file") from None
    except cluster.yaml().YAMLError as error:
        why = " ".join(str(error).split())
        raise UsageError(f"{what} is not valid YAML: {why}") from None


def _loader() -> Any:
    """Return YAML's safe loader, extended to accept the tuples that TorchX overlays may contain."""

    class Loader(cluster.yaml().SafeLoader):  # type: ignore[misc]
        pass

    Loader.add_constructor(
        "tag:yaml.org,2002:python/tuple",
        lambda loader, node: tuple(loader.construct_sequence(node, deep=True)),
    )
    return Loader


def _checked(found: Any, what: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise UsageError(f"{what}: expected a mapping, as in a pod", hint="metadata: and spec:")
    unknown = [str(name) for name in found if overlays.overlay_field(str(name)) not in _PARTS]
    if unknown or found.get("kind", "Pod") != "Pod":
        wrong = ", ".join(unknown) or f"kind {found['kind']}"
        raise UsageError(f"{what}: {wrong} is not part of a pod", hint="metadata: and spec:")
    parts = {name: found[name] for name in found if name not in ("apiVersion", "kind")}
    try:
        json.dumps(parts)
    except TypeError as error:  # for example, a date, which JSON doesn't support
        raise UsageError(f"{what}: {error}", hint="put the value in quotes") from None
    return parts


def merged(base: Any, override: Any, name: str = "") -> Any:
    """Return part of a pod with the user's overrides applied.

    Args:
        base: the part as relight renders it.
        override: the user's version.
        name: the part's name.
    """
    if isinstance(base, Mapping) and isinstance(override, Mapping):
        whole = {**base}
        for key, value in override.items():
            whole[key] = merged(base.get(key), value, key)
        return {key: value for key, value in whole.items() if value is not None}
    key = _KEYS.get(name, "name")
    if isinstance(base, list) and isinstance(override, list) and _are_distinct(override, key):
        by_key = {each.get(key): each for each in base}
        for each in override:
            by_key[each[key]] = merged(by_key.get(each[key]), each)
        return list(by_key.values())
    return override


def _are_distinct(entries: list[Any], key: str) -> bool:
    return bool(entries) and all(isinstance(each, Mapping) and key in each for each in entries)
