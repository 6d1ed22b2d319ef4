"""The user's own part of each pod: a YAML or JSON file that is merged into the template.

    spec:
      hostNetwork: true
      containers:
        - name: main
          volumeMounts: [{name: scratch, mountPath: /scratch}]
      volumes: [{name: scratch, emptyDir: {}}]

It is merged as by `kubectl patch`: mappings by their keys, lists of containers, volumes and
variables by `name`, mounts by `mountPath`. Other lists replace those of relight; `null` removes.
"""

import json
from collections.abc import Mapping
from typing import Any

from relight.base.errors import UsageError
from relight.schedulers.kubernetes import cluster

_KEYS = {"volumeMounts": "mountPath", "ports": "containerPort", "hostAliases": "ip"}
"""By what the entries of a list are told apart, where that is not their name."""
_PARTS = ("metadata", "spec", "apiVersion", "kind")


def read(path: str) -> dict[str, Any]:
    """Return the content of a file of overrides.

    Raises:
        UsageError: it can't be read, or is no part of a pod.
    """
    try:
        with open(path) as file:
            found = cluster.yaml().safe_load(file)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"-cfg pods={path}: {why}", hint="the path of a YAML file") from None
    except cluster.yaml().YAMLError as error:
        why = " ".join(str(error).split())
        raise UsageError(f"-cfg pods={path} is no YAML: {why}") from None
    if not isinstance(found, dict):
        raise UsageError(
            f"-cfg pods={path}: expected a mapping, as of a pod", hint="metadata: and spec:"
        )
    unknown = [str(name) for name in found if name not in _PARTS]
    if unknown or found.get("kind", "Pod") != "Pod":
        what = ", ".join(unknown) or f"kind {found['kind']}"
        raise UsageError(
            f"-cfg pods={path}: {what} is no part of a pod", hint="metadata: and spec:"
        )
    parts = {name: found[name] for name in ("metadata", "spec") if name in found}
    try:
        json.dumps(parts)
    except TypeError as error:  # such as a date, which only YAML has
        raise UsageError(f"-cfg pods={path}: {error}", hint="put the value in quotes") from None
    return parts


def merged(base: Any, override: Any, name: str = "") -> Any:
    """Return a part of a pod with overrides.

    Args:
        base: the part as relight makes it.
        override: what the user says of it.
        name: its name.
    """
    if isinstance(base, Mapping) and isinstance(override, Mapping):
        whole = {**base}
        for key, value in override.items():
            whole[key] = merged(base.get(key), value, key)
        return {key: value for key, value in whole.items() if value is not None}
    key = _KEYS.get(name, "name")
    if isinstance(base, list) and isinstance(override, list) and _are_told_apart(override, key):
        by_key = {each.get(key): each for each in base}
        for each in override:
            by_key[each[key]] = merged(by_key.get(each[key]), each)
        return list(by_key.values())
    return override


def _are_told_apart(entries: list[Any], key: str) -> bool:
    return bool(entries) and all(isinstance(each, Mapping) and key in each for each in entries)
