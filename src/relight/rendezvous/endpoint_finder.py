"""The finder for an endpoint with a single host. The process that can bind the endpoint's address
is the coordinator.

Host names and reverse lookups are not trusted, because only a successful bind proves that an
address belongs to this machine. The name is looked up repeatedly until a coordinator is found.
"""

import socket
from collections.abc import Callable

from relight.core.link.lease import Refusal
from relight.host.loop import Loop
from relight.net.dns import resolve
from relight.net.ports import is_loopback, is_ours, listen
from relight.rendezvous.config import Meeting
from relight.rendezvous.discovery import CoordinatorAt, CoordinatorHere, Finder, NotFound, Seeker

_TRIES = 3
_LOOKUP_INTERVAL = 25
"""Number of connection attempts before the endpoint's name is looked up again."""
_LOOKUP_S = 1.0


class EndpointFinder(Finder):
    """Hosts the endpoint if its address belongs to this machine, or otherwise finds the machine
    that hosts it.

    Args:
        loop: the process's event loop.
        meeting: the rendezvous; only its first host is used.
    """

    def __init__(self, loop: Loop, meeting: Meeting) -> None:
        self.addresses: list[tuple[str, int]] = []
        """The addresses that the endpoint's name resolves to."""
        self._loop = loop
        self._meeting = meeting
        self._seeker: Seeker
        self._target = ""
        self._turn = 0
        self._may_host = True
        self._closed = False

    def open(self, seeker: Seeker) -> None:
        """Store the seeker."""
        self._seeker = seeker

    def seek(self, *, may_host: bool) -> None:
        """Try to host the endpoint. If that fails, report the endpoint's address."""
        self._may_host = may_host
        if not self.addresses:
            self._look_up(self._on_addresses)
            return
        if self._turn % _LOOKUP_INTERVAL == _LOOKUP_INTERVAL - 1:
            self._look_up(self._on_other_addresses)
        self._answer("")

    def failed(self, *, refused: bool, working: bool) -> tuple[str, Refusal]:
        """Report that a refused connection means that the endpoint's host is up but isn't running a
        coordinator.
        """
        del working
        if not refused:
            return "", Refusal.NOTHING
        return "", Refusal.PROOF if is_ours(self._target) else Refusal.HINT

    def coordinator_lost(self) -> None:
        """Look up the host name again, because a restarted pod has a different address."""
        self._look_up(self._on_other_addresses)

    def loopback_addresses(self) -> list[str]:
        """Return the endpoint's addresses if all of them are loopback addresses, or an empty
        list.
        """
        addresses = [address for address, _ in self.addresses]
        return addresses if all(map(is_loopback, addresses)) else []

    def close(self) -> None:
        """Stop reporting results."""
        self._closed = True

    def _look_up(self, on_addresses: Callable[[list[tuple[str, int]], str], None]) -> None:
        resolve(self._loop, self._meeting.host, self._meeting.port, on_addresses)

    def _on_other_addresses(self, addresses: list[tuple[str, int]], error: str) -> None:
        del error
        self.addresses = addresses or self.addresses

    def _on_addresses(self, addresses: list[tuple[str, int]], error: str) -> None:
        self.addresses = addresses or self.addresses
        if not self._closed:
            self._answer(error)

    def _answer(self, error: str) -> None:
        if self._may_host and self._try_to_host():
            return
        if not self.addresses:
            if self._may_host and self._is_here_anyway():
                not_found = NotFound("the endpoint's port is already in use on this machine")
            else:
                not_found = NotFound(error, _LOOKUP_S)
            self._seeker.found(not_found)
            return
        self._turn += 1
        address = self.addresses[self._turn % len(self.addresses)]
        self._target = address[0]
        self._seeker.found(CoordinatorAt(address, self._meeting.dial_s))

    def _is_here_anyway(self) -> bool:
        """Return whether this machine hosts the endpoint even though none of the endpoint's
        addresses belongs to this machine.

        A name that resolves to a different address belongs to another machine, even if it is also
        this machine's host name; `is_host=1` overrides that.
        """
        own_name = self._meeting.host == socket.gethostname()
        return bool(self._meeting.hosted) or (own_name and not self.addresses)

    def _try_to_host(self) -> bool:
        """Host the endpoint if its address belongs to this machine and its port is free."""
        if self._meeting.hosted is False:
            return False
        ours = [address for address, _ in self.addresses if is_ours(address)]
        if not ours and not self._is_here_anyway():
            return False
        if not ours and self._turn < _TRIES * len(self.addresses):
            return False  # the address may be translated by NAT, or belong to another node
        # Listen on all addresses, even for a loopback endpoint, because other nodes may know this
        # machine by a different name, and Debian maps a machine's own name to 127.0.1.1.
        sock = listen("", self._meeting.port)
        if sock is None:
            return False
        self._seeker.listen(sock)
        self._seeker.found(CoordinatorHere())
        return True
