"""Owners, listeners and dialled connections on one loop, for the connection tests."""

import socket
import time
from collections.abc import Callable
from typing import Any

from conftest import LIMIT_S

from relight.base.fields import Message
from relight.host.loop import Loop
from relight.net.connection import Connection, Security, dial
from relight.net.listener import Listener

OPEN_TO_ALL = Security()


class Log:
    """A connection owner that records its callbacks."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.hellos: list[Message] = []
        self.messages: list[Message] = []
        self.reasons: list[str] = []
        self.on_message: Callable[[Connection, Message], None] = lambda connection, message: None

    def opened(self, connection: Connection, hello: Message) -> None:
        self.connections.append(connection)
        self.hellos.append(hello)

    def received(self, connection: Connection, message: Message) -> None:
        self.messages.append(message)
        self.on_message(connection, message)

    def closed(self, connection: Connection, reason: str) -> None:
        self.reasons.append(reason)


class Ends:
    """A listener and connections to it, all on one loop."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.server = Log()
        self.refused: list[str] = []
        self.opened: list[Any] = []
        self.address = ("127.0.0.1", 0)

    def listen(self, security: Security = OPEN_TO_ALL, **options: Any) -> Listener:
        sock = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = sock.getsockname()
        hello = {"run": "listener"}
        listener = Listener(self.loop, sock, self.server, hello, security, **options)
        listener.on_refused = self.refused.append
        self.opened.append(listener)
        return listener

    def dial(self, security: Security = OPEN_TO_ALL, **options: Any) -> tuple[Connection, Log]:
        log = Log()
        connection = dial(self.loop, self.address, log, {"run": "dialler"}, security, **options)
        self.opened.append(connection)
        return connection, log

    def pair(self, security: Security = OPEN_TO_ALL) -> tuple[Connection, Log, Connection]:
        """Return an open connection, its owner, and the listener's end."""
        before = len(self.server.connections)
        connection, log = self.dial(security)
        self.until(lambda: connection.is_open and len(self.server.connections) > before)
        return connection, log, self.server.connections[-1]

    def raw(self, data: bytes = b"") -> socket.socket:
        """Return a plain client that has sent `data`."""
        sock = socket.create_connection(self.address, timeout=LIMIT_S)
        self.opened.append(sock)
        sock.sendall(data)
        return sock

    def until(self, done: Callable[[], object]) -> None:
        """Run the loop until `done`, and fail if that takes forever."""
        deadline = time.monotonic() + LIMIT_S
        while not done():
            assert time.monotonic() < deadline, (self.server.reasons, self.refused)
            self.loop.run_once(0.05)

    def settle(self) -> None:
        """Run the loop until it has nothing left to do."""
        for _ in range(20):
            self.loop.run_once(0.005)

    def close(self) -> None:
        for thing in [*self.opened, *self.server.connections]:
            thing.close()
        self.loop.close()


def read_all(sock: socket.socket, ends: Ends) -> bytes:
    """Run the loop, and return everything received until the other end closes."""
    data, ended = bytearray(), False
    sock.setblocking(False)

    def look() -> bool:
        nonlocal ended
        try:
            part = sock.recv(65536)
            ended = not part
            data.extend(part)
        except BlockingIOError:
            pass
        except ConnectionError:
            ended = True
        return ended

    ends.until(look)
    return bytes(data)
