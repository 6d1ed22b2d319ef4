"""Manages a generation's MASTER_PORT. The port is bound before it is announced, so that no other
process can take it.

The agent on the node with rank 0 serves torch's TCPStore at this port (net/tcp_store). If agents
don't provide the store, rank 0's worker does.
"""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from relight.host.loop import Loop
from relight.net.ports import bind

if TYPE_CHECKING:
    from relight.net.tcp_store import TCPStore


class StorePort:
    """A port on this machine for the store of one generation's workers.

    If the agent serves the store, the socket listens immediately and the server is loaded when the
    first client connects, so that workers start without waiting for it. Otherwise the socket is
    bound but does not listen. The kernel then reserves the port, but a server that sets
    SO_REUSEADDR (as torch's does) can still bind to it and listen on it.

    Args:
        loop: the agent's loop.
        host: the address or host name to bind to.
        port: the port, or 0 for any free port. The attribute `port` contains the actual port.
        served: whether the agent serves the store.
        among: the candidate ports if `port` is 0. The first free port is used. If empty, all ports
            are candidates.

    Raises:
        UsageError: if the port is taken, or the address does not belong to this machine.
        MachineError: if no socket can be opened.
    """

    def __init__(
        self, loop: Loop, host: str, port: int, *, served: bool, among: range = range(0)
    ) -> None:
        self.served = served
        self._on_client: Callable[[int], None] = lambda _: None
        self._loop = loop
        self._socket = bind(host, port, listen=served, among=among)
        self.port: int = self._socket.getsockname()[1]
        self._store: TCPStore | None = None
        if served:
            loop.on_readable(self._socket, self._on_first_client)

    @property
    def most_clients(self) -> int:
        """The largest number of clients that were connected to the agent's server at the same
        time.
        """
        return self._store.most_clients if self._store is not None else 0

    def tell_arrivals(self, most: int, tell: Callable[[int], None]) -> None:
        """Call `tell` with the number of clients connected to the agent's server, once when the
        first client has connected and again when `most` clients have.
        """
        due = sorted({1, most})

        def on_client(clients: int) -> None:
            if due and clients >= due[0]:
                due.pop(0)
                tell(clients)

        self._on_client = on_client

    def adopt(self, connection: socket.socket) -> None:
        """Serve a client that connected through another port."""
        self._server().adopt(connection)

    def close(self) -> None:
        """End all connections and free the port."""
        if self._store is not None:
            self._store.close()
        else:
            self._loop.forget(self._socket)
            self._socket.close()

    def _on_first_client(self) -> None:
        self._server()

    def _server(self) -> "TCPStore":
        if self._store is None:
            from relight.net.tcp_store import TCPStore

            self._store = TCPStore(self._loop, self._socket)  # the store takes over the socket
            self._store.on_client = self._on_client
        return self._store
