"""A network between a client and a server that a test can degrade: TCP, one request at a time."""

import random
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Self

from conftest import LIMIT_S


class Fate(NamedTuple):
    """What happens to a request and its reply.

    A late request is delivered even if the client has disconnected by then.
    """

    late_s: float = 0.0
    lose_request: bool = False
    lose_reply: bool = False


FINE = Fate()
Choose = Callable[[bytes], Fate]


class Proxy:
    """Listens on `address` and forwards requests to a server.

    Attributes:
        choose: Returns the fate of a request, given its bytes.
        rewrite: Changes the server's replies.
        requests: All requests so far.
    """

    def __init__(self, target: str, address: str = "127.0.0.1") -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.choose: Choose = lambda request: FINE
        self.rewrite: Callable[[bytes], bytes] = lambda reply: reply
        self.requests: list[bytes] = []
        self._socks: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((address, 0))
        self.endpoint = f"{address}:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join(LIMIT_S)
        self._listener.close()

    def cut(self) -> None:
        """Close all connections."""
        for sock in list(self._socks):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _start(self, function: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                server = socket.create_connection(self._target, 10)
            except OSError:
                return
            with server:
                server.settimeout(None)
                self._socks |= {client, server}
                fate = [FINE]
                self._start(self._pump_replies, server, client, fate)
                try:
                    self._pump_requests(client, server, fate)
                except OSError:
                    pass
                finally:
                    self._socks -= {client, server}
                    for sock in (client, server):
                        try:
                            sock.shutdown(socket.SHUT_RDWR)
                        except OSError:
                            pass

    def _pump_requests(
        self, client: socket.socket, server: socket.socket, fate: list[Fate]
    ) -> None:
        data = b""
        while more := client.recv(65536):
            data += more
            if not _is_whole(data):
                continue
            self.requests.append(data)
            fate[0] = self.choose(data)
            if fate[0].late_s:
                time.sleep(fate[0].late_s)
            if fate[0].lose_request:
                return
            server.sendall(data)
            data = b""
            if fate[0].lose_reply:
                time.sleep(0.02)  # the server reads it before it sees the end of the stream

    def _pump_replies(self, server: socket.socket, client: socket.socket, fate: list[Fate]) -> None:
        try:
            while data := server.recv(65536):
                if fate[0].lose_reply:
                    break
                client.sendall(self.rewrite(data))
        except OSError:
            pass
        for sock in (client, server):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def _is_whole(data: bytes) -> bool:
    """Return whether this is a complete HTTP request, or not HTTP at all."""
    head, end, body = data.partition(b"\r\n\r\n")
    if not head[:1].isalpha():
        return True
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return bool(end) and len(body) >= int(length[1] if length else 0)


def bad_luck(seed: int, badness: float, latest_s: float) -> Choose:
    """Return fates with which each request may be lost, delayed, or unanswered."""
    rng = random.Random(seed)

    def choose(request: bytes) -> Fate:
        return Fate(
            late_s=rng.random() * latest_s if rng.random() < badness else 0.0,
            lose_request=rng.random() < badness / 2,
            lose_reply=rng.random() < badness,
        )

    return choose
