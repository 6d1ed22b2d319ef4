"""Implements a byte stream to one peer over a non-blocking socket, either in plain text or with
TLS.
"""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from relight.host.loop import Callback, Loop
from relight.net import dns

if TYPE_CHECKING:
    import ssl

    from relight.net.tls import TlsChannel

_READ_SIZE = 64 * 1024  # larger than a TLS record, so that each one is read completely
_LINGER_READS = 16


class ByteStream:
    """A TCP connection with non-blocking reads and a queue for writes.

    The stream watches the socket for writability only while there is something to write.

    Args:
        loop: the event loop.
        sock: the socket. Closing the stream closes it.
        on_ready: called when there may be something to read, or when connecting or the TLS
            handshake can continue.
        on_broken: called with the error when sending is no longer possible. Data from the peer can
            still be read.
        connecting: whether the connection is still being established.
        connect_error: the immediate errno of connect(2), or 0.

    Attributes:
        connecting: whether the connection has yet to be established.
        unsent: bytes not yet accepted by the kernel.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        on_ready: Callback,
        on_broken: Callable[[OSError], None],
        *,
        connecting: bool,
        connect_error: int = 0,
    ) -> None:
        self.connecting = connecting
        self.unsent = bytearray()
        self._loop = loop
        self._sock: socket.socket | None = sock
        self._fd = sock.fileno()
        self._tls: TlsChannel | None = None
        self._on_ready = on_ready
        self._on_broken = on_broken
        self._connect_error = connect_error
        self._watching_writable = False
        sock.setblocking(False)
        loop.on_readable(sock, self._wake)
        self._watch()

    @property
    def is_closed(self) -> bool:
        """Whether the stream has been closed or released."""
        return self._sock is None

    def own_address(self) -> str:
        """Return this machine's address as seen by the peer, or an empty string."""
        return dns.own_address(self._sock) if self._sock is not None else ""

    def connect(self) -> bool:
        """Return whether the connection is established.

        Raises:
            OSError: if it failed.
        """
        assert self._sock is not None
        error = self._connect_error or self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        # The event may belong to an earlier socket that had the same descriptor number.
        self.connecting = not dns.peer_address(self._sock)
        return not self.connecting

    def peek(self) -> bytes | None:
        """Return the next byte without consuming it. The results and errors are the same as for
        `read`.
        """
        assert self._sock is not None
        try:
            return self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return None

    def start(self, tls: "ssl.SSLContext | None", *, server_side: bool) -> None:
        """Configure the socket for small messages, and start TLS if a context is given.

        Raises:
            OSError: if the connection has ended.
        """
        assert self._sock is not None
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            from relight.net.tls import TlsChannel

            self._loop.forget(self._fd)  # the descriptor gets a new owner
            self._watching_writable = False
            self._tls = TlsChannel(self._sock, tls, server_side=server_side)
            self._sock = self._tls.sock
            self._loop.on_readable(self._fd, self._wake)

    def shake_hands(self) -> bool:
        """Continue the TLS handshake, and return whether it is complete.

        Raises:
            OSError: if it failed.
        """
        assert self._tls is not None
        try:
            return self._tls.shake_hands()
        except BlockingIOError:
            return False

    def read(self) -> bytes | None:
        """Return the bytes that have been received, or None if nothing has arrived yet. The result
        is empty if the peer has closed its end.

        Raises:
            OSError: if the connection has failed.
        """
        channel = self._tls or self._sock
        assert channel is not None
        try:
            return channel.recv(_READ_SIZE)
        except BlockingIOError:
            return None

    def write(self, data: bytes) -> None:
        """Queue bytes, and send as much of the queue as the kernel accepts."""
        self.unsent += data
        self.flush()

    def flush(self) -> None:
        """Send as much of the queue as the kernel accepts."""
        channel = self._tls or self._sock
        if channel is not None and (self._tls is None or not self._tls.shaking):
            try:
                while self.unsent:
                    del self.unsent[: channel.send(self.unsent[:_READ_SIZE])]
            except BlockingIOError:
                pass
            except OSError as error:
                self.unsent.clear()
                self._on_broken(error)
        self._watch()

    def release(self) -> socket.socket:
        """Stop watching the socket, and hand it over to its new owner."""
        sock = self._sock
        assert sock is not None
        self._loop.forget(self._fd)
        self._sock = None
        self._tls = None
        self.unsent.clear()
        return sock

    def close(self) -> None:
        """Close the connection. The kernel still delivers the data that it has accepted."""
        sock = self.release()
        with suppress(OSError):
            # Closing a socket with unread bytes makes the kernel drop unsent data.
            sock.shutdown(socket.SHUT_WR)
            for _ in range(_LINGER_READS):
                if not sock.recv(_READ_SIZE):
                    break
        sock.close()

    def _wake(self) -> None:
        self._on_ready()
        self._watch()

    def _watch(self) -> None:
        if self._sock is None:
            return
        wanted = bool(self.unsent) or self.connecting
        if self._tls is not None:
            wanted = self._tls.wants_write or (wanted and not self._tls.shaking)
        if wanted != self._watching_writable:
            self._watching_writable = wanted
            self._loop.on_writable(self._fd, self._wake if wanted else None)
