"""Connects to a Ray cluster's dashboard through its REST API, and explains its errors.

The API's paths are `/api/version`, `/api/packages`, `/api/jobs` ("Ray Jobs REST API", Ray 2.60)
and, for the cluster's log files, `/api/v0/logs`, which `ray logs` also uses (`ray.util.state`, Ray
2.60).
"""

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from relight.base import env
from relight.base.errors import MachineError, RelightError, UsageError

DEFAULT = "127.0.0.1:8265"
MIN_VERSION = (2, 52)
"""The oldest Ray version that has been tested."""
_ANY = ("", "auto", "local")
"""Values of RAY_ADDRESS that don't specify a cluster."""
ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_LIMIT_S = 30.0
_UPLOAD_S = 600.0
_STARTS_S, _RETRY_S = 30.0, 0.5
_NO_AGENT = "No available agent to submit job"
"""The error that the dashboard returns before its first node accepts jobs (Ray 2.60)."""
_INTERVAL_S = 0.2
"""How often, in seconds, a node checks a followed log for new lines."""
_CHUNK = 1 << 16
_LONGEST = 400
_EXCEPTION = re.compile(r"^[\w.]*(?:Error|Exception): ", re.MULTILINE)
_HINT = (
    "set -cfg dashboard_address=HOST:8265 to the head node's dashboard; to reach a remote one, "
    "use `ray dashboard CLUSTER.yaml` or ssh -L 8265:127.0.0.1:8265"
)


def dashboard_url(address: str | None) -> str:
    """Return a dashboard's URL, without a trailing slash.

    Args:
        address: HOST, HOST:PORT or a URL. If None or empty, the address is RAY_API_SERVER_ADDRESS
            or RAY_ADDRESS from the environment, or 127.0.0.1:8265. RAY_ADDRESS may also be the
            address of Ray Client or of the GCS on the dashboard's host.

    Raises:
        UsageError: if the address has a different form.
    """
    variables = env.read()
    said, whose = address or "", "-cfg dashboard_address="
    for name in ADDRESSES:
        if not said and variables.get(name) not in _ANY:
            said, whose = variables.get(name), f"{name}="
    text = said or DEFAULT
    wrong = UsageError(
        f"{whose}{text} is not a dashboard address",
        hint="use HOST:8265, http://HOST:PORT or https://HOST:PORT",
    )
    try:
        text = _of_ray(whose.rstrip("="), text)
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if not host or parts.scheme not in ("http", "https") or parts.query or parts.username:
        raise wrong
    default = 8265 if "://" not in text else 443 if parts.scheme == "https" else 80
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{port or default}{parts.path.rstrip('/')}"


def is_named() -> bool:
    """Return whether an environment variable specifies a dashboard."""
    return any(env.read().get(name) not in _ANY for name in ADDRESSES)


def format_app_id(url: str, job: str) -> str:
    """Return a job's id, HOST:PORT:JOB, preceded by `https:` if the dashboard uses https."""
    where = url.removeprefix("http://").replace("https://", "https:")
    return f"{quote(where, safe=':[]')}:{job}"


def parse_app_id(app_id: str) -> tuple[str, str]:
    """Split a job's id into the dashboard's URL and the job's name.

    Raises:
        UsageError: if the text is not a Ray job id.
    """
    match = re.fullmatch(r"(https:)?((?:\[[0-9a-fA-F:.]+\]|[^:]+):\d+[^:]*):([^:]+)", app_id)
    if match is None:
        raise UsageError(f"not a Ray job id: {app_id}", hint="HOST:PORT:JOB")
    scheme = "https" if match[1] else "http"
    return f"{scheme}://{unquote(match[2])}", match[3]


def _of_ray(name: str, text: str) -> str:
    """Return the URL of the dashboard that one of Ray's environment variables specifies.
    RAY_ADDRESS may be the address of Ray Client (`ray://HOST:10001`) or of the cluster's GCS
    (`HOST:6379`). `ray job submit` gets the dashboard's address from either of them
    (`get_address_for_submission_client`, Ray 2.60). By default, they are on the same host as the
    dashboard.
    """
    bare = text.removeprefix("ray://")
    if name != "RAY_ADDRESS" or "://" in bare:
        return text
    place = urlsplit(f"//{bare}").netloc
    return re.sub(r":\d*$", "", place) or text


class Dashboard:
    """The dashboard of a Ray cluster. No connection is made until one is needed.

    Args:
        url: the dashboard's URL, as returned by `dashboard_url`.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def check(self) -> None:
        """Check that the URL belongs to a Ray dashboard, and that the cluster's version of Ray can
        run the driver.

        Raises:
            UsageError: if the URL does not belong to a Ray dashboard, or if Ray is too old.
            MachineError: if the dashboard does not respond.
        """
        version = str(self._json("GET", "/api/version").get("ray_version", ""))
        found = re.match(r"(\d+)\.(\d+)", version)
        if found is None:
            raise self._other()
        if (int(found[1]), int(found[2])) < MIN_VERSION:
            least = ".".join(map(str, MIN_VERSION))
            raise UsageError(
                f"the cluster at {self.url} has Ray {version}, but {least} is required"
            )

    def upload(self, name: str, data: bytes) -> None:
        """Upload a job package, unless it already exists."""
        path = f"/api/packages/gcs/{quote(name)}"
        if self._get(path) is None:
            self._bytes("PUT", path, data, _UPLOAD_S)

    def submit(self, request: Mapping[str, Any]) -> None:
        """Submit a job. Retry if it is rejected, because a newly started cluster rejects jobs for a
        few seconds.
        """
        end = time.monotonic() + _STARTS_S
        while True:
            try:
                self._json("POST", "/api/jobs/", request)
            except MachineError as error:
                if _NO_AGENT not in error.message or time.monotonic() >= end:
                    raise
                time.sleep(_RETRY_S)
            else:
                return

    def job(self, name: str) -> dict[str, Any] | None:
        """Return Ray's description of a job, or None if Ray doesn't know a job with this name."""
        found = self._get(f"/api/jobs/{quote(name)}")
        return None if found is None else self._read(found)

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs."""
        found = self._json("GET", "/api/jobs/")
        if not isinstance(found, list):
            raise self._other()
        return found

    def stop(self, name: str) -> None:
        """Request that Ray stop a job."""
        self._json("POST", f"/api/jobs/{quote(name)}/stop", {})

    def delete(self, name: str) -> None:
        """Remove a finished job from Ray's list."""
        self._json("DELETE", f"/api/jobs/{quote(name)}")

    def file(self, node: str, name: str) -> bytes | None:
        """Return one of a node's log files, or None if it does not exist."""
        answer = self._log("file", node, name)
        return None if answer is None else self._whole(answer)

    def follow(self, node: str, name: str) -> Iterator[bytes]:
        """Yield the content of one of a node's log files as the file grows. Stop if no data arrives
        for half a minute, because the connection may be dead, or the process that reads the file on
        the node may have exited.

        Raises:
            MachineError: if the connection is lost.
        """
        answer = self._log("stream", node, name)
        try:
            while answer is not None and (data := answer.read1(_CHUNK)):
                yield data
        except TimeoutError:
            return
        except (http.client.HTTPException, OSError, ValueError) as error:
            raise self._silent(error) from None
        finally:
            if answer is not None:
                answer.close()

    def _log(self, kind: str, node: str, name: str) -> http.client.HTTPResponse | None:
        query: dict[str, Any] = {"node_id": node, "filename": name, "lines": -1}
        if kind == "stream":
            query["interval"] = _INTERVAL_S
        path = f"/api/v0/logs/{kind}?{urlencode(query)}"
        answer = self._open("GET", path, absent=(404, 500))
        if answer is None and self._has_log(node, name):
            return self._open("GET", path)  # the log file may have been created in the meantime
        return answer

    def _has_log(self, node: str, name: str) -> bool:
        """Return whether a log file exists. Some versions of Ray don't report an error when a
        missing file is read.
        """
        listed = self._json("GET", f"/api/v0/logs?{urlencode({'node_id': node, 'glob': name})}")
        return name in json.dumps(listed)

    def _get(self, path: str) -> bytes | None:
        """Return the response to a GET request, or None if the path does not exist."""
        answer = self._open("GET", path, absent=(404,))
        return None if answer is None else self._whole(answer)

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        return self._read(self._bytes(method, path, data))

    def _bytes(
        self, method: str, path: str, data: bytes | None, limit_s: float = _LIMIT_S
    ) -> bytes:
        return self._whole(self._open(method, path, data, limit_s))

    def _open(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        limit_s: float = _LIMIT_S,
        *,
        absent: Sequence[int] = (),
    ) -> http.client.HTTPResponse | None:
        """Send a request, and return the response, or None if its status code is in `absent`."""
        headers = {**_headers(), "Content-Type": "application/json"}
        request = urllib.request.Request(  # noqa: S310  # `dashboard_url` only accepts http and https
            self.url + path, data=data, headers=headers, method=method
        )
        try:
            answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=limit_s)  # noqa: S310
        except urllib.error.HTTPError as error:
            said = self._whole(error)
            if error.code in absent:
                return None
            raise self._refused(error.code, said) from None
        except (http.client.HTTPException, OSError) as error:
            raise self._silent(error) from None
        return answer

    def _whole(self, answer: Any) -> bytes:
        try:
            with answer:
                return bytes(answer.read())
        except (http.client.HTTPException, OSError) as error:
            raise self._silent(error) from None

    def _read(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except ValueError:
            raise self._other() from None

    def _silent(self, error: BaseException) -> MachineError:
        reason = getattr(error, "reason", None) or error
        why = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        return MachineError(f"no response from a Ray dashboard at {self.url}: {why}", hint=_HINT)

    def _other(self) -> UsageError:
        return UsageError(f"{self.url} is not a Ray dashboard", hint=_HINT)

    def _refused(self, code: int, said: bytes) -> RelightError:
        why = _reason(said.decode(errors="replace"))
        if code in (401, 403):
            return UsageError(
                f"the Ray cluster at {self.url} rejects the token: {why}",
                hint="set RAY_AUTH_TOKEN or ~/.ray/auth_token, as for `ray job submit`",
            )
        if code == 404 and not said.startswith(b"Job "):
            return self._other()
        if "already exists" in why:
            return UsageError(f"Ray: {why}", hint="submit it again under another name")
        if code in (400, 404):
            return UsageError(f"Ray rejected the request: {why}")
        return MachineError(f"Ray: {code} {why}")


def _reason(said: str) -> str:
    """Return the error message from a response, in one line. If the response is a traceback, return
    the message of the last exception.
    """
    found = list(_EXCEPTION.finditer(said))
    text = said[found[-1].end() :] if found else said
    return " ".join(text.split())[:_LONGEST]


def _headers() -> dict[str, str]:
    """Return the headers to send with each request, which are those in RAY_JOB_HEADERS and the
    token.

    Raises:
        UsageError: if RAY_JOB_HEADERS is not a JSON object, or the token file can't be read.
    """
    variables = env.read()
    try:
        said = json.loads(variables.get("RAY_JOB_HEADERS") or "{}")
        headers = {str(name): str(value) for name, value in said.items()}
    except (ValueError, AttributeError):
        raise UsageError('RAY_JOB_HEADERS: expected {"NAME": "VALUE"}') from None
    token = _token(variables)
    if token and "authorization" not in map(str.lower, headers):
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _token(variables: env.Environment) -> str:
    """Return the token for a cluster that uses token authentication. The lookup is the same as in
    Ray.
    """
    if variables.get("RAY_AUTH_MODE") == "disabled":
        return ""
    if variables.get("RAY_AUTH_TOKEN"):
        return variables.get("RAY_AUTH_TOKEN").strip()
    named = variables.get("RAY_AUTH_TOKEN_PATH")
    path = os.path.expanduser(named or "~/.ray/auth_token")
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError as error:
        if named:
            raise UsageError(f"RAY_AUTH_TOKEN_PATH={named}: {error.strerror}") from None
        return ""
