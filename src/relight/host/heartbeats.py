"""Heartbeats and ballots as UDP datagrams: unlike in a TCP stream, none waits for a lost one.

A datagram is a key that identifies the connection (8 bytes), a number (8 bytes, big-endian) or a
ballot, and an authentication code over both (8 bytes of keyed BLAKE2b, RFC 7693), made with the
connection's session key.
"""

import socket
import struct
from collections.abc import Callable
from functools import partial

from relight.host.loop import Loop
from relight.typed import Any

Address = tuple[Any, ...]
"""An address of the socket module."""
SIZE = 24
_MOST_BYTES = 1200
"""No network fragments a datagram of that size (RFC 8200 requires packets of 1,280 bytes)."""
_AT_ONCE = 256
_number = struct.Struct(">Q")


class Heartbeats:
    """A socket for heartbeats. If none can be opened, nothing is sent or received.

    Args:
        loop: the agent's loop.
        address: where to bind, host and port; port 0 for any.
        family: of the address.
        on_datagram: called with each datagram and its sender.
    """

    def __init__(
        self,
        loop: Loop,
        address: tuple[str, int],
        family: int,
        on_datagram: Callable[[bytes, Address], None],
    ) -> None:
        self._loop = loop
        self._on_datagram = on_datagram
        self._socket: socket.socket | None = None
        try:
            self._socket = socket.socket(family, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._socket.bind(address)
            loop.on_readable(self._socket, self._receive)
        except OSError:
            self.close()  # heartbeats go over the connection as well

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._loop.forget(self._socket)
            self._socket.close()
            self._socket = None

    def send(self, data: bytes, target: Address) -> None:
        """Send a datagram; it is dropped if that fails."""
        if self._socket is not None:
            try:
                self._socket.sendto(data, target)
            except OSError:
                return

    @staticmethod
    def key_of(session_key: bytes) -> bytes:
        """Return the key that identifies the connection in a datagram."""
        return _code(b"beats", session_key)

    @classmethod
    def datagram(cls, number: int, session_key: bytes) -> bytes:
        """Return the heartbeat with a number."""
        return cls.sealed(_number.pack(number), session_key)

    @classmethod
    def sealed(cls, content: bytes, session_key: bytes) -> bytes:
        """Return a datagram with this content and its authentication code."""
        body = cls.key_of(session_key) + content
        return body + _code(body, session_key)

    @classmethod
    def number_of(cls, data: bytes, session_key: bytes) -> int | None:
        """Return the number of a heartbeat, or None if it does not belong to this connection."""
        if len(data) != SIZE or not cls.is_genuine(data, session_key):
            return None
        number: int = _number.unpack_from(data, 8)[0]
        return number

    @staticmethod
    def is_genuine(data: bytes, session_key: bytes) -> bool:
        """Return whether the sender of a datagram has the session key."""
        return _code(data[:-8], session_key) == data[-8:]

    def _receive(self) -> None:
        for _ in range(_AT_ONCE):
            if self._socket is None:
                return
            try:
                data, sender = self._socket.recvfrom(_MOST_BYTES)
            except OSError:
                return
            self._loop.attempt(partial(self._on_datagram, data, sender), "a datagram")


def _code(content: bytes, session_key: bytes) -> bytes:
    # It loads OpenSSL in two milliseconds, which the start of a job has better use for.
    from hashlib import blake2b

    return blake2b(content, key=session_key, digest_size=8).digest()
