"""Implements the status page's HTTP server, which serves a few browsers and streams changes as
Server-Sent Events.

    GET  /           the page, with /page.js and /page.css; contains no job data without the token
    GET  /stream     the job's state, then its changes every second (Server-Sent Events)
    GET  /state      the job's state once, as JSON
    GET  /output     the end of a rank's output: ?rank=3&stream=stderr
    GET  /metrics    metrics for Prometheus
    POST /stacks     captures the stacks of the ranks on all nodes
    POST /cancel     stops the job like ctrl-C

All of these requests except the first require the token. On a public page, only POST requests
require the token. The job's state is read only when a request arrives. `access` decides which
requests are allowed.
"""

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qs, urlsplit

from relight.base.errors import RelightError, describe_bug
from relight.inspect.page import access
from relight.inspect.page.changes import changes

_EVERY_S = 1.0
_ALIVE_S = 15.0
"""The interval between keep-alive messages on an idle stream, because proxies close idle
connections.
"""
_LIMIT_S = 10.0
"""How long a client may take to send its request, or to read the response."""
_MAX_CONNECTIONS, _MAX_STREAMS = 64, 16
_MAX_BODY = 4096
_MAX_UNREAD, _LINGER_S = 1 << 20, 1.0
"""The limits for draining the rest of a request if the response was sent before the request was
fully read. If the server closed the connection while there was unread data, the client would lose
the response (RFC 9112, 9.6).
"""
_LAST_S = 1.0
"""How long streams may take to send the job's last state before the server closes them."""
_UNAUTHORIZED = 401
_JSON, _TEXT = "application/json", "text/plain; charset=utf-8"
_ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_NUMBER = re.compile(r"[0-9]{1,9}")
_MAX_SHOWN = 200
_STREAMS = ("stdout", "stderr", "combined")


class Served(NamedTuple):
    """The job that the server shows, as functions that return its data and perform actions on it.

    The `look` function returns the job as a JSON object. It may be called often, and from any
    thread. The `output` function takes a rank and a stream. The `metrics` function returns a
    content type and a body. The `actions` field maps the name of each action to a function that
    performs it and returns a message for the user.
    """

    look: Callable[[], dict[str, Any]]
    output: Callable[[int, str], str]
    metrics: Callable[[], tuple[str, bytes]]
    actions: Mapping[str, Callable[[], str]]


class PageServer(ThreadingHTTPServer):
    """Serves the page of one job.

    Args:
        host: the address to listen on.
        port: the port; 0 means any free one.
        token: the token required to read and to act; empty for a public page without actions.
        served: the job to serve.
        is_public: whether the page can be read without a token.

    Raises:
        OSError: if the port is in use, or the address does not belong to this machine.
    """

    daemon_threads = True
    request_queue_size = _MAX_CONNECTIONS

    def __init__(
        self, host: str, port: int, token: str, served: Served, *, is_public: bool = False
    ) -> None:
        self.address_family, address = _resolved(host, port)
        self.token, self.served, self.is_public = token, served, is_public
        folder = files("relight.inspect.page") / "assets"  # an upgrade may replace it later
        self.assets = {path: (folder / name).read_bytes() for path, (name, _) in _ASSETS.items()}
        self.names = _names(host)
        self.closing = threading.Event()
        self.streams = threading.BoundedSemaphore(_MAX_STREAMS)
        self._connections = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__(address, _Request)

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self.server_address[1])

    def server_bind(self) -> None:
        """Bind the socket without looking up this machine's name in DNS, as the base class
        would.
        """
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close the connection if there are too many
        connections.
        """
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error when a client disconnects. `_Request` reports internal errors."""

    def finish(self) -> None:
        """Send the job's last state on all streams, and then close them."""
        self.closing.set()
        until = time.monotonic() + _LAST_S
        for _ in range(_MAX_STREAMS):
            self.streams.acquire(timeout=max(0.0, until - time.monotonic()))


class _Request(BaseHTTPRequestHandler):
    server: PageServer
    timeout = _LIMIT_S + 1.0
    default_request_version = "HTTP/1.0"  # responses to HTTP/0.9 would lack a status
    server_version, sys_version = "relight", ""

    def handle_one_request(self) -> None:
        """Handle a request if its headers arrive in time. Without this time limit, a client that
        sends its headers byte by byte could occupy a connection slot forever.
        """
        self._head_limit = threading.Timer(_LIMIT_S, self._give_up)
        self._head_limit.daemon = True
        self._head_limit.start()
        try:
            super().handle_one_request()
        finally:
            self._head_limit.cancel()

    def parse_request(self) -> bool:
        """Parse the request line and the headers. If they are malformed, send an error and return
        False.
        """
        try:
            is_parsed = super().parse_request()
        finally:
            self._head_limit.cancel()
        if not is_parsed:
            if not self.requestline.split():
                self.send_error(400, "an empty line is not a request")
            return False
        if len(self.headers.get_all("Host", ())) > 1:
            self.send_error(400, "more than one Host")
            return False
        try:
            self._url: SplitResult = urlsplit(self.path)
        except ValueError as error:
            self.send_error(400, f"{self.path[:_MAX_SHOWN]} is not a valid address: {error}")
            return False
        return True

    def finish(self) -> None:
        """Briefly read and discard the rest of the request, so that the client receives the
        response.
        """
        super().finish()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_LINGER_S)
            left, until = _MAX_UNREAD, time.monotonic() + _LINGER_S
            while left > 0 and time.monotonic() < until and (data := self.connection.recv(1 << 16)):
                left -= len(data)

    def _give_up(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.sendall(b"HTTP/1.0 408 Request Timeout\r\nConnection: close\r\n\r\n")
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        """Respond to a read request."""
        url = self._url
        headers, server = self._headers(), self.server
        refused = access.check_get(headers, server.names, url.path)
        if refused is None and url.path not in _ASSETS and not server.is_public:
            refused = access.refusal_without_token(headers, server.token)
        if refused is not None:
            self.send_error(refused.status, refused.why)
        elif url.path in _ASSETS:
            self._answer(200, _ASSETS[url.path][1], self.server.assets[url.path])
        elif url.path == "/stream":
            self._stream()
        elif url.path == "/state":
            self._answer(200, _JSON, json.dumps(self.server.served.look()).encode())
        elif url.path == "/metrics":
            self._attempt(lambda: self._answer(200, *self.server.served.metrics()))
        elif url.path == "/output":
            self._output(parse_qs(url.query))
        else:
            self.send_error(404, "there is no such page")

    def do_HEAD(self) -> None:
        """Respond as to a GET request, but without a body."""
        if self._url.path == "/stream":
            self.send_error(405, "GET only")
        else:
            self.do_GET()

    def do_POST(self) -> None:
        """Perform an action on the job."""
        refused = access.check_post(self._headers(), self.server.names, self.server.token)
        action = self.server.served.actions.get(self._url.path.removeprefix("/"))
        length = self.headers.get("Content-Length", "0")
        if refused is not None:
            self.send_error(refused.status, refused.why)
        elif action is None:
            self.send_error(404, "there is no such action")
        elif not (_NUMBER.fullmatch(length) and int(length) <= _MAX_BODY):
            self.send_error(413, f"the body must have at most {_MAX_BODY} bytes")
        elif len(self._body(int(length))) < int(length):
            self.send_error(400, "the body is shorter than its Content-Length")
        else:
            self._attempt(lambda: self._answer(200, _TEXT, action().encode()))

    def _body(self, length: int) -> bytes:
        try:
            return self.rfile.read(length)
        except TimeoutError:
            return b""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Respond in plain text, with the usual headers. The base class calls this for malformed
        requests.
        """
        del explain
        text = message or "this page can't be served"
        self._answer(code, _TEXT, f"{text}\n".encode())

    def version_string(self) -> str:
        """Return this server's name, without versions."""
        return self.server_version

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing, because log messages would appear on the job's terminal."""

    def _headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items()}

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except RelightError as error:
            hint = f"\nhint: {error.hint}" if error.hint else ""
            self._answer(503, _TEXT, f"{error.message}{hint}\n".encode())
        except Exception as error:  # such as an import that fails after an upgrade
            self._answer(500, _TEXT, f"internal error in relight: {describe_bug(error)}\n".encode())

    def _output(self, query: Mapping[str, list[str]]) -> None:
        rank = (query.get("rank") or [""])[0]
        stream = (query.get("stream") or ["combined"])[0]
        if not _NUMBER.fullmatch(rank) or stream not in _STREAMS:
            self.send_error(400, f"rank is a number, stream is {', '.join(_STREAMS)}")
            return
        text = self.server.served.output(int(rank), stream)
        self._attempt(lambda: self._answer(200, _TEXT, text.encode()))

    def _stream(self) -> None:
        if not self.server.streams.acquire(blocking=False):
            self.send_error(503, f"{_MAX_STREAMS} browsers are already viewing this job")
            return
        try:
            self._head(200, "text/event-stream")
            self._send_changes()
        except OSError:
            pass  # the browser has disconnected
        finally:
            self.server.streams.release()

    def _send_changes(self) -> None:
        sent: dict[str, Any] = {}
        quiet_s, closing = 0.0, False
        while not closing:
            closing = self.server.closing.is_set()  # if set, this is the last iteration
            look = self.server.served.look()
            new = changes(sent, look)
            sent = look
            quiet_s = 0.0 if new else quiet_s + _EVERY_S
            if new:
                self.wfile.write(b"data: " + json.dumps(new).encode() + b"\n\n")
            elif quiet_s >= _ALIVE_S:
                quiet_s = 0.0
                self.wfile.write(b": \n\n")
            if not closing:
                self.server.closing.wait(_EVERY_S)

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        with contextlib.suppress(OSError):  # the browser has disconnected
            self._head(status, kind, len(body))
            if self.command != "HEAD":
                self.wfile.write(body)

    def _head(self, status: int, kind: str, length: int | None = None) -> None:
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        if status == _UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        for name, value in access.HEADERS.items():
            self.send_header(name, value)
        self.end_headers()


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return found[0][0], found[0][4]


def _names(host: str) -> frozenset[str]:
    """Return the host names by which clients may address this server. They may also use its IP
    addresses.
    """
    own = socket.gethostname()
    return frozenset(name.lower() for name in (host, own, socket.getfqdn(own)) if name)
