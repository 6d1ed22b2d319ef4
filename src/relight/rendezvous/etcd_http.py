"""Sends HTTP requests to the members of an etcd cluster, as if they were one server.

Requests go to the member that responded last. If that member fails, is too slow, or lacks a leader,
the other members are tried in turn. A request may therefore arrive late or twice, and callers must
be able to detect this.
"""

import http.client
import io
import json
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from relight.base.errors import UsageError
from relight.base.values import parse_endpoint

DEFAULT_PORT = 2379
_LONGEST_ANSWER = 64 * 1024
_MIN_TIMEOUT_S = 0.5
_MAX_TIMEOUT_S = 2.0
_ANOTHER_MAY_KNOW = (408, 429)
_NO_SPACE = "database space exceeded"
"""ErrNoSpace (etcd, api/v3rpc/rpctypes/error.go): the NOSPACE alarm has been raised. Until it is
disarmed, etcd rejects puts and new leases, but still allows reads, deletes and lease keep-alives.
"""


class Login(NamedTuple):
    """An etcd user. The fields are empty if no login is needed."""

    user: str = ""
    password: str = ""


class Tls(NamedTuple):
    """How to use TLS, along with the names of the TLS settings for use in hints."""

    context: ssl.SSLContext | None
    cert: str = "cert"
    key: str = "key"
    cacert: str = "cacert"


class EtcdAnswer(NamedTuple):
    """A member's response. `body` is empty if the response isn't a JSON object. Only the first
    object in a stream is kept.
    """

    status: int
    body: dict[str, Any]
    member: str


class EtcdMembers:
    """The members of one etcd cluster.

    Args:
        addresses: hosts and ports.
        tls: how to use TLS.
        timeout_s: the time limit for connecting to a member, and also for its response.

    Attributes:
        own_address: this machine's address on connections to members, or empty if unknown.
    """

    def __init__(
        self, addresses: Sequence[tuple[str, int]], tls: Tls, timeout_s: float = _MAX_TIMEOUT_S
    ) -> None:
        self.own_address = ""
        self._addresses = list(dict.fromkeys(addresses))
        self._tls = tls
        self._most_timeout_s = self._timeout_s = min(_MAX_TIMEOUT_S, timeout_s)
        self._turn = 0
        self._connection: http.client.HTTPConnection | None = None
        self._answered = False

    def hurry(self, ttl_s: float) -> None:
        """Shorten the time limit so that a second member can be tried within `ttl_s` seconds,
        because a later response is useless.
        """
        self._timeout_s = min(self._most_timeout_s, max(_MIN_TIMEOUT_S, ttl_s / 2))

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> EtcdAnswer:
        """Return the first response that doesn't report a fault in the member that sent it.

        Raises:
            OSError: if no member currently responds.
            UsageError: if a retry can't help, because of a permanent error.
        """
        failures: list[str] = []
        hopeless: list[UsageError] = []
        for _ in self._addresses:
            try:
                answer = self._post_to_member(path, body, headers)
            except UsageError as error:
                hopeless.append(error)
                failures.append(error.message)
            except OSError as error:
                failures.append(f"etcd at {self._member}: {error}")
            else:
                self._answered = True
                if answer.status < 500 and answer.status not in _ANOTHER_MAY_KNOW:
                    return answer
                failures.append(f"etcd at {answer.member}: {error_message(answer)}")
            self.move_on()
        if hopeless and (not self._answered or len(hopeless) == len(self._addresses)):
            raise hopeless[0]
        raise OSError("; ".join(dict.fromkeys(failures)))

    def move_on(self) -> None:
        """Send requests to the next member first from now on."""
        self.close()
        self._turn = (self._turn + 1) % len(self._addresses)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _member(self) -> str:
        host, port = self._addresses[self._turn]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _post_to_member(self, path: str, body: bytes, headers: dict[str, str]) -> EtcdAnswer:
        kept, self._connection = self._connection, None
        if kept is not None:
            try:
                return self._exchange(kept, path, body, headers)
            except TimeoutError:
                kept.close()
                raise OSError(f"no response within {self._timeout_s:g} s") from None
            except (OSError, http.client.HTTPException):
                kept.close()  # the member may have closed it since the last response, so try again
        connection = self._new_connection()
        try:
            connection.connect()
            return self._exchange(connection, path, body, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            raise self._explained(error) from None

    def _new_connection(self) -> http.client.HTTPConnection:
        host, port = self._addresses[self._turn]
        if self._tls.context is None:
            return http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        return http.client.HTTPSConnection(
            host, port, timeout=self._timeout_s, context=self._tls.context
        )

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        path: str,
        body: bytes,
        headers: dict[str, str],
    ) -> EtcdAnswer:
        sock: socket.socket = connection.sock
        sock.settimeout(self._timeout_s)
        self.own_address = sock.getsockname()[0]
        until = time.monotonic() + self._timeout_s

        def timed(sock: Any, *args: Any, **options: Any) -> http.client.HTTPResponse:
            return http.client.HTTPResponse(_Timed(sock, until), *args, **options)  # type: ignore[arg-type]

        connection.response_class = timed  # type: ignore[assignment]
        connection.request("POST", path, body, headers)
        with connection.getresponse() as response:
            data = response.read(_LONGEST_ANSWER + 1)
            reusable = response.isclosed() and not response.will_close
        if len(data) > _LONGEST_ANSWER:
            raise OSError("its response is too long")
        if reusable:
            self._connection = connection
        else:
            connection.close()
        return EtcdAnswer(response.status, _parsed(data), self._member)

    def _explained(self, error: Exception) -> OSError | UsageError:
        """Convert an exception from the connection to the current member into an error for the
        user.
        """
        where = f"etcd at {self._member}"
        if isinstance(error, ssl.SSLCertVerificationError):
            return UsageError(
                f"{where}: certificate not trusted: {error.verify_message}",
                hint=(
                    f"--rdzv-conf={self._tls.cacert}=FILE names its CA; the certificate must "
                    "contain the host name used in --rdzv-endpoint"
                ),
            )
        if isinstance(error, ssl.SSLError) and _is_about_us(error.reason or ""):
            return UsageError(
                f"{where} rejects our certificate, or requires one: {_describe_tls_error(error)}",
                hint=f"--rdzv-conf={self._tls.cert}=FILE,{self._tls.key}=FILE",
            )
        if isinstance(error, ConnectionResetError | ssl.SSLError | http.client.BadStatusLine):
            found = self._speaks_other_protocol()
            if found:
                other = "http" if self._tls.context else "https"
                return UsageError(f"{where} {found}", hint=f"--rdzv-conf=protocol={other}")
        if isinstance(error, TimeoutError):
            return OSError(f"no response within {self._timeout_s:g} s")
        if isinstance(
            error, http.client.RemoteDisconnected | http.client.IncompleteRead | ssl.SSLEOFError
        ):
            return OSError("it closed the connection without a response")
        if isinstance(error, ssl.SSLError):
            return OSError(f"the TLS handshake failed: {_describe_tls_error(error)}")
        if isinstance(error, socket.gaierror):
            return OSError(f"the name does not resolve: {error.strerror}")
        if isinstance(error, OSError):
            return OSError(error.strerror or str(error))
        return OSError(f"the program listening there does not speak HTTP ({type(error).__name__})")

    def _speaks_other_protocol(self) -> str:
        """Describe the mismatch if only one side of the connection uses TLS, or return an empty
        string.

        etcd closes the connection immediately in both cases, as does a member that is shutting
        down.
        """
        try:
            with socket.create_connection(self._addresses[self._turn], self._timeout_s) as sock:
                if self._tls.context is not None:
                    sock.sendall(b"GET /version HTTP/1.0\r\n\r\n")
                    plain = sock.recv(5) == b"HTTP/"
                    return "does not use TLS" if plain else ""
                probe = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                probe.check_hostname = False
                probe.verify_mode = ssl.CERT_NONE  # no data is sent over it
                with probe.wrap_socket(sock):
                    return "uses TLS"
        except ssl.SSLError as error:
            return "uses TLS" if "ALERT" in (error.reason or "") else ""
        except (OSError, ValueError):
            return ""


class _Timed(io.RawIOBase):
    """Reads from a socket, with a single deadline for all reads, because a peer may send its
    response one byte at a time.
    """

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)
        self._until = until

    def makefile(self, mode: str) -> io.BufferedReader:
        del mode
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def parse_members(endpoint: str, protocol: str = "http") -> list[tuple[str, int]]:
    """Parse the hosts and ports in `--rdzv-endpoint=HOST[:PORT][,…]`. Each item may also be a URL.

    Raises:
        UsageError: if the endpoint is invalid, or if a URL uses a different protocol.
    """
    parts = [part.strip().rpartition("://") for part in endpoint.split(",")]
    for scheme in {scheme for scheme, _, _ in parts} - {"", protocol}:
        raise UsageError(
            f"--rdzv-endpoint={endpoint} contradicts protocol={protocol}",
            hint=f"--rdzv-conf=protocol={scheme}" if scheme in ("http", "https") else "",
        )
    if any(scheme for scheme, _, _ in parts):
        endpoint = ",".join(rest.removesuffix("/") for _, _, rest in parts)
    try:
        first = parse_endpoint("" if "/" in endpoint else endpoint)
    except ValueError as error:
        raise UsageError(
            f"--rdzv-endpoint={endpoint}: {error}",
            hint=f"pass HOST:PORT[,HOST:PORT…]; the default port is {DEFAULT_PORT}",
        ) from None
    if not first.host:
        raise UsageError(
            f"--rdzv-endpoint={endpoint} names no host" if endpoint else "no --rdzv-endpoint",
            hint=f"pass HOST:PORT[,HOST:PORT…]; the default port is {DEFAULT_PORT}",
        )
    members = [
        (each.host, DEFAULT_PORT if each.port is None else each.port)
        for each in (first, *first.others)
    ]
    if any(port == 0 for _, port in members):
        raise UsageError(f"--rdzv-endpoint={endpoint}: port 0 is not valid for etcd")
    return members


def error_message(answer: EtcdAnswer) -> str:
    """Return the error message that an etcd response contains."""
    error = answer.body.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    for text in (answer.body.get("message"), error):
        if isinstance(text, str) and text:
            cause = answer.body.get("cause")
            if _NO_SPACE in text:
                cause = "compact and defragment etcd, then run `etcdctl alarm disarm`"
            return (f"{text}: {cause}" if isinstance(cause, str) and cause else text)[:300]
    return f"HTTP status {answer.status}"


def nonsense(answer: EtcdAnswer) -> OSError:
    """Return the error to raise for a response that doesn't come from etcd."""
    return OSError(f"the program listening at {answer.member} does not respond like etcd")


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        body, _ = json.JSONDecoder().raw_decode(data.decode())
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _is_about_us(reason: str) -> bool:
    """Return whether the member rejected the handshake because our certificate is invalid or
    missing.
    """
    return "ALERT" in reason and any(
        word in reason for word in ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "DENIED")
    )


def _describe_tls_error(error: ssl.SSLError) -> str:
    return (error.reason or "unknown").lower().replace("_", " ")
