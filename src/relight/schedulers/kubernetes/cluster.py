"""Chooses the Kubernetes cluster, connects to it, and explains its errors."""

import json
import logging
import os
import re
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from relight.base import env
from relight.base.errors import MachineError, RelightError, UsageError
from relight.base.text import did_you_mean
from relight.schedulers.api import client_library

_IN_CLUSTER = "/var/run/secrets/kubernetes.io/serviceaccount"
_LOOK_AT = "check the file in KUBECONFIG or, if that is not set, ~/.kube/config"
_PACKAGES = "'kubernetes>=31' 'PyYAML>=6'"
_TOO_MANY, _CONFLICT = 429, 409
_TRIES = 5
_JSON_PATCH = "application/json-patch+json"
_FORBIDDEN = re.compile(r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"')


def current_namespace(context: str) -> str:
    """Return the namespace of a context (the current context if `context` is empty), or of the pod
    in which this process is running.

    Raises:
        UsageError: if no kubeconfig has such a context.
    """
    config = _kubeconfig()
    wanted = context or config.get("current-context")
    for each in config["contexts"]:
        if each.get("name") == wanted:
            return str((each.get("context") or {}).get("namespace") or "default")
    if context:
        known = [str(each.get("name")) for each in config["contexts"]]
        raise UsageError(
            f"-cfg context: the kubeconfig has no context {context}",
            hint=did_you_mean(context, known, f"it has {', '.join(known) or 'none'}"),
        )
    try:
        with open(f"{_IN_CLUSTER}/namespace") as file:
            return file.read().strip() or "default"
    except OSError:
        return "default"


def is_configured() -> bool:
    """Return whether a cluster is configured."""
    return os.path.exists(_IN_CLUSTER) or any(map(os.path.exists, _paths()))


class Cluster:
    """The cluster that the kubeconfig specifies, or the cluster that this process runs in. No
    connection is made until one is needed.

    Args:
        context: a kubeconfig context, or empty for the current context.
    """

    def __init__(self, context: str = "") -> None:
        self._context = context
        self._client: Any = None

    @contextmanager
    def client(self) -> Iterator[Any]:
        """Yield an ApiClient from the kubernetes package, and convert its errors to RelightErrors.

        Raises:
            UsageError: if the kubernetes package is missing, no cluster is configured, or the
                cluster rejects the request.
            MachineError: if the cluster does not respond.
        """
        kubernetes, urllib3 = client_library(
            "Kubernetes", "kubernetes", _PACKAGES, "kubernetes", "urllib3"
        )
        if self._client is None:
            self._client = _configured(kubernetes, self._context)
        try:
            yield self._client
        except kubernetes.client.ApiException as error:
            raise explained(error) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            where = self._client.configuration.host
            raise MachineError(
                f"no response from the API server {where}: {_reason(error)}",
                hint="kubectl cluster-info",
            ) from None

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None


def explained(error: Any) -> RelightError:
    """Convert an API server error to a one-line error for the user."""
    try:
        said = json.loads(error.body or "{}")
    except ValueError:
        said = {}
    message = " ".join(str(said.get("message") or error.reason or "").split())
    if error.status == 401:
        return UsageError(
            "the cluster rejects the credentials; they may have expired",
            hint="log in again, then check `kubectl auth whoami`",
        )
    if error.status == 403 and (found := _FORBIDDEN.search(message)):
        verb, resource, group = found.groups()
        what = f"{resource}.{group}" if group else resource
        return UsageError(
            f"Kubernetes does not allow this user to {verb} {what}: {message}",
            hint=(
                f"this needs a Role with verb {verb} on {what}; check kubectl auth can-i {verb} "
                f"{what}"
            ),
        )
    if error.status == 409 and "already exists" in message:
        return UsageError(f"Kubernetes: {message}", hint="submit it again under another name")
    if error.status == 404 and message.startswith("namespaces "):
        return UsageError(f"Kubernetes rejected the request: {message}", hint="-cfg namespace=NAME")
    if error.status in (400, 403, 404, 422):
        return UsageError(f"Kubernetes rejected the request: {message}")
    return MachineError(f"Kubernetes: {error.status} {message}")


def _configured(kubernetes: Any, context: str) -> Any:
    """Return a client for the configured cluster. The kubernetes package raises arbitrary
    exceptions for a broken kubeconfig file. If the user's credential program fails, the package
    only logs the error.

    Raises:
        UsageError: if the configuration is missing or unusable.
    """
    try:
        with _logged() as errors:
            client = _client(kubernetes, context)
        _read_certificates(client.configuration)
        place = urllib.parse.urlsplit(client.configuration.host)
        if place.scheme not in ("http", "https") or not place.hostname or place.port == 0:
            errors.append(f"the server is {client.configuration.host}: expected https://HOST:PORT")
    except kubernetes.config.ConfigException as error:
        raise UsageError(
            f"no Kubernetes cluster is configured: {' '.join(str(error).split())}", hint=_LOOK_AT
        ) from None
    except Exception as error:
        errors = [str(error) or type(error).__name__]
    if errors:
        why = " ".join(errors[0].split())
        raise UsageError(f"invalid Kubernetes configuration: {why}", hint=_LOOK_AT)
    return client


def _read_certificates(configuration: Any) -> None:
    """Read the certificate files now. Otherwise, they would only be read when a connection is made,
    and an error would look as if the server had not responded.
    """
    import ssl

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for path, read in (
        (configuration.ssl_ca_cert, tls.load_verify_locations),
        (configuration.cert_file, lambda path: tls.load_cert_chain(path, configuration.key_file)),
    ):
        try:
            if path:
                read(path)
        except OSError as error:
            raise OSError(f"the certificate {path}: {error}") from None


@contextmanager
def _logged() -> Iterator[list[str]]:
    """Collect the errors that are logged inside the `with` block, because the package doesn't
    report them in any other way.
    """
    found: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield found
    finally:
        root.removeHandler(handler)


def _client(kubernetes: Any, context: str) -> Any:
    configuration = kubernetes.client.Configuration()
    files = _paths()
    if context or any(map(os.path.exists, files)) or not os.path.exists(_IN_CLUSTER):
        kubernetes.config.load_kube_config(
            config_file=os.pathsep.join(files),
            context=context or None,
            client_configuration=configuration,
        )
    else:
        kubernetes.config.load_incluster_config(client_configuration=configuration)
    configuration.retries = _retries()
    client = kubernetes.client.ApiClient(configuration)
    usual = client.select_header_content_type

    def content_type(offered: Sequence[str], *rest: Any) -> Any:
        """Declare that patches are JSON patches, because the package's default differs between
        versions.
        """
        is_patch = any("patch" in each for each in offered)
        return _JSON_PATCH if is_patch else usual(offered, *rest)

    client.select_header_content_type = content_type
    return client


def _retries() -> Any:
    """Return the retry policy for requests. Read requests are retried after a lost connection. All
    requests are retried if an overloaded server specifies when to retry (429, Retry-After). Changes
    are retried after a conflict with another change (409), because they declare the desired state
    regardless of the previous state.
    """
    from urllib3.util import Retry

    class Patient(Retry):  # type: ignore[misc]  # urllib3 is not on the path of every check
        def is_retry(self, method: str, status_code: int, has_retry_after: bool = False) -> bool:
            busy = status_code == _TOO_MANY and has_retry_after
            collided = method == "PATCH" and status_code == _CONFLICT
            return busy or collided or super().is_retry(method, status_code, has_retry_after)

    return Patient(_TRIES)


def _paths() -> list[str]:
    """Return the paths of the kubeconfig files."""
    said = env.read().get("KUBECONFIG") or "~/.kube/config"
    return [os.path.expanduser(path) for path in str(said).split(os.pathsep) if path]


def _kubeconfig() -> dict[str, Any]:
    """Return the kubeconfig contexts. Multiple files are merged as kubectl does."""
    merged: dict[str, Any] = {"contexts": []}
    for path in _paths():
        try:
            with open(path) as file:
                found = yaml().safe_load(file)
        except OSError:
            continue
        except Exception as error:  # raised by the yaml package
            why = " ".join(str(error).split())
            raise UsageError(f"can't read kubeconfig {path}: {why}") from None
        if isinstance(found, dict):
            contexts = found.get("contexts") or []
            if not isinstance(contexts, list) or not all(isinstance(x, dict) for x in contexts):
                raise UsageError(f"can't read kubeconfig {path}: contexts is not a list")
            merged["contexts"] += contexts
            if found.get("current-context"):
                merged.setdefault("current-context", found["current-context"])
    return merged


def yaml() -> Any:
    """Import the yaml package.

    Raises:
        UsageError: if the package is missing.
    """
    return client_library("Kubernetes", "PyYAML", _PACKAGES, "yaml")[0]


def _reason(error: BaseException) -> str:
    inner = getattr(error, "reason", None) or error
    return " ".join(str(inner).split())
