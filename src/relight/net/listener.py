"""Accepts connections from other machines, and passes them on once their peers have
authenticated.
"""

import errno
import os
import socket
from collections.abc import Callable

from relight.base.fields import Message
from relight.host.loop import Loop
from relight.net.connection import Connection, ConnectionOwner, Security

MAX_STRANGERS = 2048

_ACCEPTS_AT_ONCE = 64
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_DESCRIPTOR_PAUSE_S = 0.1


class Listener:
    """Accepts connections, and passes them to the owner once their peers have authenticated.

    Args:
        sock: the bound and listening socket; `close` closes it.
        hello: the message sent to each peer that sends a hello. The attribute may be replaced.
        divert: takes over an accepted socket whose (still unread) first byte is 0. Such a peer is a
            client of torch's TCPStore.

    Attributes:
        on_refused: called with a message for each refused peer.
        most_strangers: how many unauthenticated peers may be connected at the same time.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        owner: ConnectionOwner,
        hello: Message,
        security: Security,
        *,
        divert: Callable[[socket.socket], None] | None = None,
    ) -> None:
        self.on_refused: Callable[[str], None] = lambda _: None
        self.hello = hello
        self._loop = loop
        self._sock = sock
        self._owner = owner
        self._security = security
        self._divert = divert
        self._strangers: dict[Connection, None] = {}
        # Unauthenticated peers must not use up the descriptors that workers need.
        self.most_strangers = max(1, min(MAX_STRANGERS, os.sysconf("SC_OPEN_MAX") // 2))
        self._closed = False
        sock.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Stop listening. Authenticated connections stay open, and pending connections are
        closed.
        """
        self._closed = True
        self._loop.forget(self._sock)
        self._sock.close()
        while self._strangers:
            self._strangers.popitem()[0].close()

    def opened(self, connection: Connection, hello: Message) -> None:
        """Pass a connection to the owner."""
        del self._strangers[connection]
        connection.owner = self._owner
        self._owner.opened(connection, hello)

    def received(self, connection: Connection, message: Message) -> None:
        """Do nothing. This is never called, because an open connection has a different owner."""
        raise AssertionError(connection.peer, message)

    def closed(self, connection: Connection, reason: str) -> None:
        """Report a peer that was refused or that closed its connection."""
        self._strangers.pop(connection, None)
        self.on_refused(f"{connection.peer}: {reason}")

    def _listen(self) -> None:
        if not self._closed:
            self._loop.on_readable(self._sock, self._accept)

    def _accept(self) -> None:
        for attempt in range(_ACCEPTS_AT_ONCE):
            try:
                sock, _address = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    continue  # the caller has already disconnected
                if attempt:
                    return  # also raised when no connection is pending; the loop calls again
                if not self._drop_oldest():
                    self._loop.forget(self._sock)
                    self._loop.call_after(_NO_DESCRIPTOR_PAUSE_S, self._listen)
                    return
                continue
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        if len(self._strangers) >= self.most_strangers:
            self._drop_oldest()
        connection = Connection(
            self._loop,
            sock,
            self,
            self.hello,
            self._security,
            dialled=False,
            divert=self._pass_on if self._divert is not None else None,
        )
        self._strangers[connection] = None

    def _pass_on(self, connection: Connection, sock: socket.socket) -> None:
        assert self._divert is not None
        del self._strangers[connection]
        self._divert(sock)

    def _drop_oldest(self) -> bool:
        for connection in self._strangers:
            connection.fail("dropped: too many connections have not sent a hello")
            return True
        return False
