"""Implements the connections over which agents and their coordinator exchange messages, using
non-blocking TCP.

    dial / accept -> handshake -> messages

A peer must authenticate (`net/handshake.py`) within five seconds, and may only send frames of up to
4 KiB until then. The number of unauthenticated peers is also limited.
"""

import errno
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from relight.base.fields import Malformed, Message
from relight.core.link import wire
from relight.core.link.authentication import NONCE_BYTES, TAG_BYTES, Opening
from relight.host.loop import Loop
from relight.net import dns
from relight.net.byte_stream import ByteStream
from relight.net.handshake import Handshake, HandshakeFailed
from relight.net.ports import free_ports

if TYPE_CHECKING:
    import ssl

OPEN_TIMEOUT_S = 5.0
MAX_UNSENT = 16 * 1024 * 1024

_LAST_READS_S = 1.0
CLOSED = "the peer closed the connection"
"""The reason that is reported if the peer closed the connection deliberately."""


class Security(NamedTuple):
    """The credentials that a peer must prove it has. An empty field means that nothing is
    required.
    """

    secret: bytes = b""
    tls_server: "ssl.SSLContext | None" = None
    tls_client: "ssl.SSLContext | None" = None

    @property
    def is_open(self) -> bool:
        """Whether any peer is accepted."""
        return not self.secret and self.tls_server is None


class ConnectionOwner(Protocol):
    """Receives a connection's events. The event loop calls the methods."""

    def opened(self, connection: "Connection", hello: Message) -> None:
        """Called with the peer's hello once the peer has authenticated."""

    def received(self, connection: "Connection", message: Message) -> None:
        """Called with each message."""

    def closed(self, connection: "Connection", reason: str) -> None:
        """Called when the connection has ended or could not be opened, but not after a call to
        `close`.
        """


class Connection:
    """A connection to a peer, from the first byte on. `dial` and `Listener` create connections.

    Args:
        divert: takes over an accepted socket whose (still unread) first byte is 0. Such a peer is a
            client of torch's TCPStore.

    Attributes:
        owner: receives the events.
        opening: the handshake, in which both sides exchange a hello and prove that they know the
            token.
        peer: its human-readable address, such as `10.0.0.3:41234`.
        heard_at: when bytes last arrived, in loop time.
        is_open: whether the peer has authenticated and messages can be exchanged.
        refused: whether the connection was refused, so the host is up but the port is closed.
        turned_away: whether the two sides have different tokens or protocol versions, or only one
            of them uses TLS.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        owner: ConnectionOwner,
        hello: Message,
        security: Security,
        *,
        dialled: bool,
        connect_error: int = 0,
        timeout_s: float = OPEN_TIMEOUT_S,
        divert: "Callable[[Connection, socket.socket], None] | None" = None,
    ) -> None:
        self.owner = owner
        self.opening = Opening(hello, os.urandom(NONCE_BYTES), security.secret, dialled=dialled)
        self.peer = dns.peer_address(sock) or "?"
        self.heard_at = loop.now()
        self.is_open = self.refused = self.turned_away = False
        self._loop = loop
        self._stream = ByteStream(
            loop,
            sock,
            self._ready,
            self._on_broken,
            connecting=dialled,
            connect_error=connect_error,
        )
        self._handshake: Handshake | None = Handshake(
            self._stream,
            self.opening,
            security.tls_client if dialled else security.tls_server,
            dialled=dialled,
            divert=None if divert is None else lambda: divert(self, self._release()),
        )
        self._decoder = wire.Decoder()
        self._doom = ""
        late = self._handshake.if_late
        self._timer = loop.call_after(timeout_s, lambda: self.fail(late(timeout_s)))

    @property
    def session_key(self) -> bytes:
        """32 bytes that both ends know once the connection is open. They are secret only if there
        is a token.
        """
        return self.opening.session_key

    @property
    def is_answered(self) -> bool:
        """Whether the peer's machine has accepted the connection."""
        return not self._stream.connecting

    def own_address(self) -> str:
        """Return this machine's address as seen by the peer, or an empty string."""
        return self._stream.own_address()

    def send(self, message: Message) -> None:
        """Send a message, or queue it if it can't be sent now. Drop it unless the connection is
        open.

        Raises:
            ValueError: if the message is too large for the protocol.
        """
        if not self.is_open or self._doom:
            return
        body = wire.encode_body(message, stimulus=self._loop.stimulus)
        seal = self.opening.seal
        self._stream.write(wire.frame(body if seal is None else seal(body)))
        if len(self._stream.unsent) > MAX_UNSENT:
            self._fail_later(f"the peer is not reading: {MAX_UNSENT >> 20} MiB are queued", 0)

    def drain(self) -> bool:
        """Send as much data as the kernel accepts, and return whether everything has been sent."""
        if self.is_open:
            self._stream.flush()
        return not self._stream.unsent

    def close(self) -> None:
        """Flush without blocking, and close the connection. The owner is not called again."""
        if not self._stream.is_closed:
            self._stream.flush()
            self._end()

    def fail(self, reason: str) -> None:
        """End the connection, and call the owner's `closed` method with the reason."""
        if not self._stream.is_closed:
            self._end()
            self.owner.closed(self, reason)

    def _ready(self) -> None:
        """Handle data from the peer. An error here or in the owner's handler ends only this
        connection.
        """
        if not self._loop.run_guarded(self._take, f"a message of {self.peer}"):
            reason = "relight failed to handle its message, which is a bug in relight"
            self._loop.run_guarded(lambda: self.fail(reason), f"the end of {self.peer}")

    def _take(self) -> None:
        try:
            data = self._read()
            if data:
                self._decode(data)
        except HandshakeFailed as failure:
            self.refused = failure.refused
            self.turned_away = failure.turned_away
            self.fail(failure.reason)
        except Malformed as error:
            self.fail(f"it sent an invalid message: {error}")

    def _read(self) -> bytes | None:
        """Return the bytes of the frames that have been received since the handshake."""
        try:
            if self._handshake is not None and not self._handshake.proceed():
                return None
            if self._stream.unsent:
                self._stream.flush()
            data = self._stream.read()
        except OSError as error:
            self.fail(self._doom or _describe_error(error))
            return None
        if data == b"":
            handshake = self._handshake
            self.fail(self._doom or (CLOSED if handshake is None else handshake.if_closed()))
        return data

    def _decode(self, data: bytes) -> None:
        self.heard_at = self._loop.now()
        messages = self._decoder.feed(data)
        while not self._stream.is_closed:
            try:
                message = next(messages, None)
            except wire.OtherVersion as error:
                self.turned_away = True
                if self._handshake is not None:
                    self._handshake.answer_other_version()
                self.fail(str(error))
                return
            except Malformed as error:
                self.fail(f"the peer does not speak relight's protocol: {error}")
                return
            if message is None:
                return
            if self._handshake is None:
                self._loop.begin(wire.take_stimulus(message))
                self.owner.received(self, message)
            elif self._handshake.receive(message, self._decoder.body):
                self._open()

    def _open(self) -> None:
        opening = self.opening
        self._timer.cancel()
        self._decoder.unseal = opening.unseal
        self._decoder.limit = wire.MAX_FRAME + TAG_BYTES
        self.is_open, self._handshake = True, None
        self.owner.opened(self, opening.end())

    def _on_broken(self, error: OSError) -> None:
        self._fail_later(_describe_error(error), _LAST_READS_S)

    def _fail_later(self, reason: str, seconds: float) -> None:
        """End the connection after `seconds`, so that a reason that the peer has sent can still be
        read.
        """
        self._stream.unsent.clear()
        if not self._doom:
            self._doom = reason
            self._timer.cancel()
            self._timer = self._loop.call_after(seconds, lambda: self.fail(reason))

    def _release(self) -> socket.socket:
        self._retire()
        return self._stream.release()

    def _end(self) -> None:
        self._retire()
        self._stream.close()

    def _retire(self) -> None:
        self._timer.cancel()
        self.is_open = False


def dial(
    loop: Loop,
    address: tuple[str, int],
    owner: ConnectionOwner,
    hello: Message,
    security: Security,
    *,
    timeout_s: float = OPEN_TIMEOUT_S,
) -> Connection:
    """Connect to a numeric address within `timeout_s` seconds. The owner is notified of success or
    failure.

    Raises:
        ValueError: if the address is a name (see `dns.resolve`), or the hello is too large.
    """
    family, target = dns.sock_address(*address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        error = sock.connect_ex(target)
        connection = Connection(
            loop,
            sock,
            owner,
            hello,
            security,
            dialled=True,
            connect_error=0 if error == errno.EINPROGRESS else error,
            timeout_s=timeout_s,
        )
    except BaseException:
        sock.close()
        raise
    connection.peer = dns.format_address(*address)
    return connection


def _describe_error(error: OSError) -> str:
    if error.errno in (errno.ECONNRESET, errno.EPIPE):
        return CLOSED
    if error.errno == errno.EADDRNOTAVAIL:  # connect(2)
        return f"this machine has no address for it, or no free port among {free_ports()}"
    return error.strerror or str(error)
