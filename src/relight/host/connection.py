"""Connections between agents and their coordinator: non-blocking messages over TCP.

    dial / accept -> [TLS handshake] -> greeting and hello -> [proof of the token] -> messages

The side that dialled speaks first; the listener answers only a hello, so that a port scan learns
nothing. Until a peer has authenticated, it has five seconds, 4 KiB a frame, and one of a bounded
number of places.
"""

import errno
import os
import socket
from collections.abc import Callable

from relight.core import wire
from relight.core.fields import Malformed, Message
from relight.core.secret import NONCE_BYTES, TAG_BYTES, Opening, ProofRefused
from relight.host import dns
from relight.host.dns import resolve as resolve
from relight.host.loop import Loop, Timer
from relight.typed import NamedTuple, Protocol, TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl

    from relight.host.tls import TlsChannel

OPEN_TIMEOUT_S = 5.0
MAX_UNSENT = 16 * 1024 * 1024

_READ_SIZE = 64 * 1024  # above a TLS record, so that none stays behind half read
_LINGER_READS = 16
_LAST_READS_S = 1.0
T = TypeVar("T")
CLOSED = "the peer closed the connection"
"""The reason given when the peer closed the connection on purpose."""


class Security(NamedTuple):
    """The credentials that a peer must prove it has; none are required where it is empty."""

    secret: bytes = b""
    tls_server: "ssl.SSLContext | None" = None
    tls_client: "ssl.SSLContext | None" = None


class ConnectionOwner(Protocol):
    """Receives a connection's events as calls from the loop."""

    def opened(self, connection: "Connection", hello: Message) -> None:
        """Called when the peer has authenticated, with its hello."""

    def received(self, connection: "Connection", message: Message) -> None:
        """Called with each message."""

    def closed(self, connection: "Connection", reason: str) -> None:
        """Called when the connection ended or never opened; not after our own `close`."""


class Connection:
    """One peer, from the first byte on. Made by `dial` and by `Listener`.

    Attributes:
        owner: receives the events.
        opening: the greeting, hello and proof of the two sides.
        peer: its address for people, `10.0.0.3:41234`.
        heard_at: loop time at which bytes last arrived.
        is_open: the peer has authenticated, and messages flow.
        refused: no process listens there. The host is up, the process is not.
        unfit: the two sides have different tokens, or only one has TLS.
        session_key: 32 bytes that both ends know once it is open. Secret only with a token.
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
        timeout_s: float = OPEN_TIMEOUT_S,
    ) -> None:
        nonce = os.urandom(NONCE_BYTES)
        self.opening = Opening(hello, nonce, security.secret, dialled=dialled)
        self._loop = loop
        self.owner = owner
        self._security = security
        self._dialled = dialled
        self.peer = dns.peer_of(sock) or "?"
        self.heard_at = loop.now()
        self.is_open = self.refused = self.unfit = False
        self.session_key = b""
        self._sock: socket.socket | None = sock
        self._fd = sock.fileno()
        self._tls: TlsChannel | None = None
        self._decoder = wire.Decoder()
        self._seal: Callable[[bytes], bytes] | None = None
        self._waiting: list[bytes] = []
        self._greeted = False
        self._unsent = bytearray()
        self._doom = ""
        self._divert: Callable[[Connection, socket.socket], None] | None = None
        self._act = self._finish_connecting if dialled else self._peek
        self._watching_writable = False
        self._connect_error = 0
        self._timeout_s = timeout_s
        self._timer: Timer = loop.call_after(timeout_s, self._too_late)
        sock.setblocking(False)
        loop.on_readable(sock, self._ready)
        self._watch()

    def own_address(self) -> str:
        """Return the address of this machine that the peer sees, or an empty string."""
        return dns.own_address(self._sock) if self._sock is not None else ""

    def send(self, message: Message) -> None:
        """Send a message, or queue it if it can't be sent now; drop it on an ended connection.

        Raises:
            ValueError: the message is too large for the protocol.
        """
        if self._sock is None or self._doom:
            return
        body = wire.body_of(message)
        if not self.is_open:
            self._waiting.append(body)
            return
        self._push(body)
        if len(self._unsent) > MAX_UNSENT:
            self._fail_later(f"the peer does not read: {MAX_UNSENT >> 20} MiB are unsent", 0)
        self._watch()

    def drain(self) -> bool:
        """Send what the kernel takes now; return whether everything has been sent."""
        if self._sock is None:
            return True
        if self.is_open:
            self._flush()
            self._watch()
        return not self._unsent and not self._waiting

    def close(self) -> None:
        """Send what can be sent at once and end the connection; the owner is not called again."""
        if self._sock is not None:
            self._flush()
            self._end()

    def fail(self, reason: str) -> None:
        """End the connection and call the owner's `closed` with the reason."""
        if self._sock is not None:
            self._end()
            self.owner.closed(self, reason)

    def _ready(self) -> None:
        """Run the current step. An error, here or in the owner's handling of a message, ends this
        connection and nothing else.
        """

        def attempt() -> None:
            try:
                self._act()
            except Malformed as error:
                self.fail(f"it sent nonsense: {error}")

        if not self._loop.attempt(attempt, f"a message of {self.peer}"):
            reason = "relight made a mistake with its message"
            self._loop.attempt(lambda: self.fail(reason), f"the end of {self.peer}")
        self._watch()

    def _watch(self) -> None:
        """Watch for writability only while there is something to write."""
        if self._sock is None:
            return
        wanted = bool(self._unsent) or self._act == self._finish_connecting
        if self._tls is not None:
            wanted = self._tls.wants_write or (wanted and not self._tls.shaking)
        if wanted != self._watching_writable:
            self._watching_writable = wanted
            self._loop.on_writable(self._fd, self._ready if wanted else None)

    def _finish_connecting(self) -> None:
        assert self._sock is not None
        error = self._connect_error or self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self.refused = error == errno.ECONNREFUSED
            self.fail("refused" if self.refused else os.strerror(error))
            return
        if not dns.peer_of(self._sock):
            return  # woken by an event of an earlier socket with this descriptor
        self._start(self._security.tls_client)

    def _peek(self) -> None:
        """Tell the caller's protocol by its first byte: ours, TLS, or torch's."""
        sock = self._sock
        assert sock is not None
        first = self._try(lambda: sock.recv(1, socket.MSG_PEEK))
        if first is None:
            return
        if not first:
            self.fail("the peer closed the connection without a word")
        elif first == b"\0" and self._divert is not None:
            self._forget()
            self._divert(self, sock)
        elif self._security.tls_server is not None and first != b"\x16":
            if first == wire.GREETING[:1]:
                self._push(wire.body_of({"type": "refused", "reason": "tls"}))
            self.fail("the peer does not use TLS, and this job does")
        else:
            self._start(self._security.tls_server)

    def _start(self, tls: "ssl.SSLContext | None") -> None:
        """Start the protocol, over TLS if there is a context for it."""
        assert self._sock is not None
        try:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                from relight.host.tls import TlsChannel

                self._loop.forget(self._fd)  # the descriptor gets a new owner
                self._watching_writable = False
                self._tls = TlsChannel(self._sock, tls, server_side=not self._dialled)
                self._sock = self._tls.sock
                self._loop.on_readable(self._fd, self._ready)
        except OSError as error:
            self.fail(_words(error))
            return
        self._act = self._shake_hands if self._tls is not None else self._greet
        self._act()

    def _shake_hands(self) -> None:
        assert self._tls is not None
        if self._try(self._tls.shake_hands):
            self._greet()

    def _greet(self) -> None:
        self._act = self._transfer
        if self._dialled:
            self._push(self.opening.hello)
        self._transfer()

    def _transfer(self) -> None:
        self._flush()
        channel = self._tls or self._sock
        assert channel is not None
        data = self._try(lambda: channel.recv(_READ_SIZE))
        if not data:
            if data is not None:
                self.fail(self._doom or self._closed_by_peer())
            return
        self.heard_at = self._loop.now()
        messages = self._decoder.feed(data)
        while self._sock is not None:
            try:
                message = next(messages, None)
            except Malformed as error:
                self.fail(f"the peer does not speak relight's protocol: {error}")
                return
            if message is None:
                return
            if self.is_open:
                self.owner.received(self, message)
            else:
                self._receive_early(message)

    def _try(self, operation: Callable[[], T]) -> T | None:
        """Return the result of a socket operation; None if it would block or failed."""
        try:
            return operation()
        except BlockingIOError:
            return None
        except OSError as error:
            self.fail(self._doom or _words(error))
            return None

    def _receive_early(self, message: Message) -> None:
        """Handle a message of a peer before it has authenticated: its hello, then its proof."""
        opening = self.opening
        try:
            for answer in opening.receive(message, self._decoder.body):
                self._push(answer)
        except ProofRefused as refusal:
            if refusal.answer:
                self._push(refusal.answer)
            self.refused = refusal.itself and self._dialled  # TCP can do that on a free port
            self.unfit = not refusal.itself
            self.fail(refusal.reason)
            return
        if opening.done:
            self._open()

    def _open(self) -> None:
        opening = self.opening
        assert opening.peer_hello is not None
        self._timer.cancel()
        self._seal, self._decoder.unseal = opening.seal, opening.unseal
        self._decoder.limit = wire.MAX_FRAME + TAG_BYTES
        self.session_key = opening.session_key
        self.is_open = True
        waiting, self._waiting = self._waiting, []
        for body in waiting:
            self._push(body)
        self.owner.opened(self, opening.peer_hello)

    def _too_late(self) -> None:
        if self._act == self._finish_connecting:
            self.fail(f"no answer within {self._timeout_s:g} s")
        elif self.opening.peer_hello is not None:
            self.fail(f"no proof within {self._timeout_s:g} s")
        else:
            self.fail(f"no answer to the greeting within {self._timeout_s:g} s (is it relight?)")

    def _push(self, body: bytes) -> None:
        if not self._greeted:
            self._greeted = True
            self._unsent += wire.GREETING
        self._unsent += wire.frame(body if self._seal is None else self._seal(body))
        self._flush()

    def _flush(self) -> None:
        """Send what the kernel takes. An error ends the connection after the last reads."""
        channel = self._tls or self._sock
        if channel is None or (self._tls is not None and self._tls.shaking):
            return
        try:
            while self._unsent:
                del self._unsent[: channel.send(self._unsent[:_READ_SIZE])]
        except BlockingIOError:
            return
        except OSError as error:
            # The peer may have sent a reason before it closed: read that first.
            self._fail_later(_words(error), _LAST_READS_S)

    def _fail_later(self, reason: str, seconds: float) -> None:
        self._unsent.clear()
        if not self._doom:
            self._doom = reason
            self._timer.cancel()
            self._timer = self._loop.call_after(seconds, lambda: self.fail(reason))

    def _closed_by_peer(self) -> str:
        if self.is_open:
            return CLOSED
        if self.opening.peer_hello is not None:
            return "the peer closed the connection after its hello (do the tokens differ?)"
        return "the peer closed the connection instead of a greeting (is it relight?)"

    def _forget(self) -> None:
        """Stop watching the descriptor; its new owner uses it from now on."""
        self._timer.cancel()
        self._loop.forget(self._fd)
        self._sock = None
        self._tls = None
        self.is_open = False
        self._waiting.clear()

    def _end(self) -> None:
        sock = self._sock
        assert sock is not None
        self._forget()
        self._unsent.clear()
        try:
            # Closing a socket with unread bytes makes the kernel drop what was not yet sent.
            sock.shutdown(socket.SHUT_WR)
            for _ in range(_LINGER_READS):
                if not sock.recv(_READ_SIZE):
                    break
        except OSError:
            pass
        sock.close()


def dial(
    loop: Loop,
    address: tuple[str, int],
    owner: ConnectionOwner,
    hello: Message,
    security: Security,
    *,
    timeout_s: float = OPEN_TIMEOUT_S,
) -> Connection:
    """Connect to a numeric address within `timeout_s`; the owner is called on success and failure.

    Raises:
        ValueError: it is a name (see `resolve`), or the hello is too large.
    """
    family, target = dns.sock_address(*address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        error = sock.connect_ex(target)
        connection = Connection(
            loop, sock, owner, hello, security, dialled=True, timeout_s=timeout_s
        )
    except BaseException:
        sock.close()
        raise
    connection.peer = dns.text_of(*address)
    connection._connect_error = 0 if error == errno.EINPROGRESS else error
    return connection


def _words(error: OSError) -> str:
    if error.errno in (errno.ECONNRESET, errno.EPIPE):
        return CLOSED
    return error.strerror or str(error)
