"""The finder for a job whose coordinator is named in a registry: etcd, a file, or a plug-in.

The finder reads the registry's record or, if it doesn't exist, writes a record for this process.
`core/link/leader_lease` defines the rules. While the registry doesn't respond, it can't name
another coordinator, so a running group keeps running. A successor never takes over while workers of
the old group are running (docs/decisions/0012).
"""

import socket
from collections.abc import Callable
from typing import NamedTuple

from relight.base.errors import UsageError
from relight.core.link.leader_lease import Candidacy, Refused
from relight.core.link.lease import Refusal
from relight.host.loop import Alarm, Loop
from relight.net import dns
from relight.net.ports import is_loopback, is_ours, listen, no_free_port
from relight.rendezvous.config import Meeting
from relight.rendezvous.discovery import (
    CoordinatorAt,
    CoordinatorHere,
    Finder,
    Misconfigured,
    NotFound,
    Seeker,
)
from relight.rendezvous.leader_lock import LeaderLock, Record
from relight.rendezvous.leader_session import Answer, Candidate, CoordinatorAddress, describe_error

_SILENT_S = 5.0
"""A registry is reported as silent if it doesn't respond for this long."""
_SILENT = f"it has not responded for {_SILENT_S:g} s"
_ASK_RETRY_S = 0.3
_ANSWER_S = 2.0
_STAND_BACK_S = 3.0


class RegisterFinder(Finder):
    """Finds the coordinator named in a registry, and keeps renewing the record if this process is
    the coordinator.

    Args:
        loop: the process's event loop.
        meeting: the rendezvous, with a registry.
        port: this process's port, or 0 to bind any free port once a port is needed.
    """

    slows_heartbeats = False

    def __init__(self, loop: Loop, meeting: Meeting, port: int = 0) -> None:
        assert meeting.register is not None
        self._loop = loop
        self._meeting = meeting
        self._candidacy = Candidacy(meeting.ttl_s)
        self._candidate = Candidate(
            loop, meeting.register, meeting.where, meeting.ttl_s, self._candidacy
        )
        self._seeker: Seeker
        self.keeps_socket = bool(port)
        self._own = _OwnContact(meeting.local_addr, meeting.register, port)
        self._turn = 0
        self._tried_first = False
        """Whether the last address was the first address in the holder's record."""
        self._dialled: _Dialled | None = None
        """The holder that was reported most recently, or None after a failure."""
        self._cant_evict = ""
        """The reason why the record of a holder that refuses connections could not be removed."""
        self._answers = False
        self._may_host = False
        self._alarm = Alarm(loop, self._request)
        self._has_lost_nodes: Callable[[], bool] = lambda: False
        self._stale = Alarm(loop, self._on_stale)
        self._retired = False
        self._closed = False

    def open(self, seeker: Seeker) -> None:
        """Store the seeker."""
        self._seeker = self._candidate.seeker = seeker

    def seek(self, *, may_host: bool) -> None:
        """Read the registry's record. If it is empty and `may_host` is set, write a record for this
        process.
        """
        self._may_host = may_host and self._meeting.hosted is not False
        self._request()

    def answered(self) -> None:
        """Record that the coordinator has responded. If it refuses a connection later, it has
        probably exited.
        """
        if self._dialled is not None:
            self._candidacy.answered(self._dialled.record.revision)
        self._tried_first = False  # start with the next holder's first address
        self._own.close()

    def failed(self, *, refused: bool, working: bool) -> tuple[str, Refusal]:
        """Check whether a holder that refuses connections is still alive."""
        dialled, self._dialled = self._dialled, None
        if not refused or dialled is None or self._closed:
            return "", Refusal.NOTHING
        record, contact, address, is_first = dialled
        now, loopback = self._loop.now(), is_loopback(address)
        own_name = loopback and contact.host == socket.gethostname()
        seen = Refused(record.revision, is_first, is_ours(address), loopback, own_name, working)
        patience_s = self._candidacy.patience_s(seen, now)
        if patience_s is not None:
            self._candidate.evict(record, patience_s, self._on_evicted)
        where = (
            f"the coordinator on {contact.host} refuses connections at "
            f"{dns.format_address(address, contact.port)}"
        )
        if self._cant_evict:
            where += f", and its record can't be removed: {self._cant_evict}"
        elif self._candidacy.is_alive(now):
            where += ", but still renews its record (is there a firewall?)"
        return where, Refusal.HINT

    def coordinates(self, has_lost_nodes: Callable[[], bool]) -> bool:
        """Return whether this process holds the record. If a node is silent or lost while the
        registry doesn't respond, this process ends its hold, because that node may have evicted it.
        """
        now, candidacy = self._loop.now(), self._candidacy
        if not candidacy.holds(now):
            return False
        if candidacy.is_fresh(now):
            self._has_lost_nodes = has_lost_nodes
            if self._stale.when is None:  # this is called for each heartbeat of each node
                self._stale.set(candidacy.fresh_until())
            return True
        if not has_lost_nodes():
            return True
        self._loop.call_after(0, self._step_down)
        return False

    def set_enough_nodes(self, *, enough: bool) -> None:
        """End the hold if too few nodes are left for training, because the lost nodes may still be
        able to reach each other and the registry, but not this node.
        """
        if self._candidacy.has_too_few(enough=enough):
            reason = "too few nodes can reach it"
            self._candidate.release(reason)
            self._seeker.step_down(reason, _STAND_BACK_S)

    def retire(self) -> None:
        """Stop seeking, and release the record if a pending request still obtains it."""
        self._may_host, self._retired = False, True

    def close(self) -> None:
        """Stop, and release the record."""
        self._closed = True
        self._alarm.set(None)
        self._stale.set(None)
        self._own.close()
        self._candidate.close()

    def _request(self) -> None:
        self._alarm.set(None)
        if self._closed or self._retired or self._candidacy.holds(self._loop.now()):
            return
        if self._candidate.take(
            lambda: self._own.to_text() if self._may_host else "", self._on_found
        ):
            self._alarm.set(self._loop.now() + _SILENT_S)
        elif self._candidate.waiting_s() >= _SILENT_S:
            self._seeker.found(NotFound(_SILENT, _ASK_RETRY_S))
        else:
            self._alarm.set(self._loop.now() + _ASK_RETRY_S)

    def _on_found(self, found: Answer) -> None:
        if self._closed:
            return
        self._alarm.set(None)
        if self._retired:
            if isinstance(found, Record) and found.ours:
                self._candidate.release("the node has given up")
            return
        self._answers = self._answers or isinstance(found, Record)
        if isinstance(found, UsageError) and not self._answers:
            self._seeker.found(Misconfigured(found))
        elif isinstance(found, Exception):
            self._seeker.found(
                NotFound(describe_error(found), _ASK_RETRY_S)
            )  # the registry may recover
        elif found.ours:
            sock = self._own.take_socket()
            if sock is not None:
                self._seeker.listen(sock)
            self._seeker.found(CoordinatorHere(self._candidacy.until))
        elif not found.value:
            self._seeker.found(NotFound("no node has become the coordinator", _ASK_RETRY_S))
        else:
            self._resolve(found)

    def _on_evicted(self, result: bool | Exception) -> None:
        self._cant_evict = describe_error(result) if isinstance(result, Exception) else ""
        self._request()

    def _resolve(self, record: Record) -> None:
        """Resolve and report one of the holder's addresses. Every second call uses the first
        address in the record.
        """
        contact = CoordinatorAddress.parse(record.value)
        if contact is None:
            self._seeker.found(NotFound("its record was not written by relight", _ASK_RETRY_S))
            return
        self._turn += 1
        first, *others = contact.addresses
        is_first = self._tried_first = not others or not self._tried_first
        name = first if is_first else others[self._turn // 2 % len(others)]

        def on_addresses(addresses: list[tuple[str, int]], error: str) -> None:
            if self._closed:
                return
            if not addresses:
                self._seeker.found(NotFound(error, _ASK_RETRY_S))
                return
            self._dialled = _Dialled(record, contact, addresses[0][0], is_first)
            timeout_s = _ANSWER_S
            self._seeker.found(CoordinatorAt(addresses[0], timeout_s, contact.host))

        dns.resolve(self._loop, name, contact.port, on_addresses)

    def _on_stale(self) -> None:
        """Check whether a node was lost while the registry was still expected to respond. The next
        event may be too late to stop the workers before a successor continues without them.
        """
        self.coordinates(self._has_lost_nodes)

    def _step_down(self) -> None:
        if self._candidacy.holds(self._loop.now()):
            self._candidate.step_down("a node was lost during a register outage")


class _Dialled(NamedTuple):
    """A holder and the address to connect to. The `is_first` field indicates that it is the first
    address in the record.
    """

    record: Record
    contact: CoordinatorAddress
    address: str
    is_first: bool


class _OwnContact:
    """The record that this process writes, with its addresses and a port to listen on.

    Args:
        chosen: the address that the user chose, or empty.
        register: the registry. It provides one of this machine's addresses.
        port: this process's port, or 0 to bind any free port once a port is needed.
    """

    def __init__(self, chosen: str, register: LeaderLock, port: int) -> None:
        self._chosen = chosen
        self._register = register
        self._port = port
        self._sock: socket.socket | None = None

    def to_text(self) -> str:
        """Return the text of the record to write. This method is called in a thread.

        Raises:
            OSError: if no port is free.
        """
        port = self._port
        if not port:
            self._sock = self._sock or listen("", 0)
            if self._sock is None:
                raise OSError(no_free_port("the coordinator").message)
            port = self._sock.getsockname()[1]
        return CoordinatorAddress(socket.gethostname(), self._addresses(), port).to_text()

    def take_socket(self) -> socket.socket | None:
        """Return the bound socket, or None, and transfer its ownership to the caller."""
        sock, self._sock = self._sock, None
        return sock

    def close(self) -> None:
        """Close the socket unless its ownership has been transferred."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _addresses(self) -> tuple[str, ...]:
        """Return the addresses at which other nodes may be able to reach this machine.

        If a connection to the first address is refused, other nodes conclude that this process has
        exited (core/link/leader_lease). The first address must therefore belong to this machine, or
        never refuse a connection.
        """
        chosen, own = self._chosen, self._register.own_address
        if chosen or (own and not is_loopback(own)):
            return (chosen or own,)
        # The registry is on this machine or on a disk. Other nodes may be on this machine too.
        likely = (dns.outward_address(), socket.gethostname(), own)
        return tuple(dict.fromkeys(each for each in likely if each))
