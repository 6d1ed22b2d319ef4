"""Connects to a Docker daemon, and explains its errors."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from relight.base import env
from relight.base.errors import MachineError, UsageError
from relight.schedulers.api import client_library

_SOCKET = "unix:///var/run/docker.sock"
_HINT = "check whether it is running; DOCKER_HOST sets its address"


class Daemon:
    """The Docker daemon at DOCKER_HOST, or the local daemon if DOCKER_HOST is not set. The
    connection is only opened when it is needed.
    """

    def __init__(self) -> None:
        self._client: Any = None

    @contextmanager
    def client(self) -> Iterator[Any]:
        """Yield the docker package's low-level client, and convert its errors to RelightErrors.

        Raises:
            UsageError: if the docker package is missing.
            MachineError: if the daemon doesn't respond, or rejects the request.
        """
        docker, requests, urllib3 = client_library(
            "Docker", "docker", "'docker>=7'", "docker", "requests", "urllib3"
        )
        where = address()
        try:
            if self._client is None:
                number = refusal(where)
                if number:  # otherwise, the client would leave its socket open
                    denied = number in (errno.EACCES, errno.EPERM)
                    raise MachineError(
                        f"no Docker daemon at {where}: {os.strerror(number)}",
                        hint="only root and the docker group can use its socket"
                        if denied
                        else _HINT,
                    )
                self._client = docker.APIClient(
                    version="auto",
                    use_ssh_client=True,
                    **docker.utils.kwargs_from_env(environment=dict(env.read().variables)),
                )
            yield self._client
        except docker.errors.APIError as error:
            raise MachineError(f"Docker: {explanation(error)}") from None
        except (
            docker.errors.DockerException,
            requests.RequestException,
            urllib3.exceptions.HTTPError,  # while reading a response
            ConnectionError,
        ) as error:
            if isinstance(error.__cause__, NameError):  # a dependency of the client is missing
                raise UsageError(
                    f"DOCKER_HOST={where} requires the paramiko package",
                    hint="pip install paramiko",
                ) from None
            raise MachineError(
                f"no response from the Docker daemon at {where}: {_innermost(error)}", hint=_HINT
            ) from None

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None


@contextmanager
def ignoring(*codes: int) -> Iterator[None]:
    """Ignore the daemon's errors with these status codes."""
    import docker

    try:
        yield
    except docker.errors.APIError as error:
        if error.status_code not in codes:
            raise


def address() -> str:
    """Return the daemon's address."""
    return env.read().get("DOCKER_HOST") or _SOCKET


def refusal(where: str) -> int:
    """Try to connect to the daemon's local socket. Return the errno if that fails, or 0 if the
    socket accepts the connection or the daemon is on another machine.
    """
    if not where.startswith(("unix://", "/")):
        return 0
    if not hasattr(socket, "AF_UNIX"):  # Windows, without a DOCKER_HOST
        return errno.ENOENT
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(where.removeprefix("unix://"))
        except OSError as error:
            return error.errno or errno.EIO
    return 0


def explanation(error: Any) -> str:
    """Return the daemon's error message in one line."""
    return " ".join(str(error.explanation or error).split())


def _innermost(error: BaseException) -> str:
    """Return the root cause of a chain of exceptions, in one line."""
    while error.__context__ is not None:
        error = error.__context__
    return getattr(error, "strerror", None) or " ".join(str(error).split())
