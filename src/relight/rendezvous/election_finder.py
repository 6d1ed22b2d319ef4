"""The finder for an endpoint that lists several hosts: `--rdzv-endpoint=host1,host2,host3`.

On each of these hosts, the agent that listens on the endpoint's port is the host's elector. The
electors choose a coordinator from among themselves (`core/link/election`), and agents can query any
elector for the current coordinator. If the coordinator's host is lost, another host takes over as
soon as a majority of the hosts agrees. The agents then announce their current generation to the new
coordinator, and their workers keep running.

An elector opens a connection to every other host in the list, and only sends messages over these
connections. It receives messages over the connections that the other electors have opened. A
connection is replaced if nothing is received on it for a second. When a packet is lost, TCP delays
all data after it, so each ballot is also sent as a datagram to the same port, and whichever copy
arrives first counts. Datagrams are authenticated with the key of the most recently opened
connection, even after that connection has been closed, because opening a new one takes a long time
when packets are being lost.
"""

import os
from collections.abc import Callable
from functools import partial
from socket import AF_INET, AF_INET6

from relight.base import fields
from relight.base.fields import Malformed, Message
from relight.core.group import group_messages
from relight.core.group.group_types import GroupSettings, Hello
from relight.core.group.messages import Heartbeat
from relight.core.link import wire
from relight.core.link.election import BallotReceived, BecomeCoordinator, Election, SendBallot
from relight.core.link.lease import Refusal
from relight.core.link.votes import Ballot
from relight.events.event_types import Tick, changed
from relight.host.loop import Alarm, Loop
from relight.net.connection import CLOSED, Connection, dial
from relight.net.dns import resolve
from relight.net.heartbeats import Heartbeats
from relight.net.ports import is_loopback, is_ours, listen
from relight.rendezvous.config import Meeting
from relight.rendezvous.discovery import CoordinatorAt, CoordinatorHere, Finder, NotFound, Seeker

_VOTE_S = 1.0
"""How long a vote is valid. A vote doesn't have to outlast a lease, because the elected host
continues the running generation and only forms another one when all leases have expired
(core/group/membership).
"""
_PING_S = 0.25
"""The interval between heartbeats to each of the other hosts."""
_SILENT_S = 1.0
"""A connection is closed if no echo arrives for this long, and the next ping opens a new one."""
_HEARD = Ballot | Heartbeat
_MAX_KEYS = 64
"""The maximum number of keys to keep from other hosts' connections. Older keys are discarded."""


class ElectionFinder(Finder):
    """Determines which of the endpoint's hosts is the coordinator, and takes part in electing it.

    Args:
        loop: the process's event loop.
        meeting: the rendezvous, with the endpoint's hosts.
        settings: the user's settings.
    """

    def __init__(self, loop: Loop, meeting: Meeting, settings: GroupSettings) -> None:
        self._loop = loop
        self._meeting = meeting
        self._settings = settings
        self._seeker: Seeker
        self._addresses: list[list[tuple[str, int]]] = [[] for _ in meeting.hosts]
        self._unresolved = len(meeting.hosts)
        self._seek_waits = False
        self._known_coordinator = -1
        self._dialled = self._answered = -1
        self._asks_answered = False  # whether to query the host that responded last next
        self._unanswered = 0  # attempts since a coordinator last responded
        self._turn = 0
        self._elector: Elector | None = None
        self._needed_at: float | None = None
        """The time at which this host was last known to be needed."""
        self._wait_from = 0.0

    def open(self, seeker: Seeker) -> None:
        """Resolve all host names. A host whose name can't be resolved counts as lost."""
        self._seeker = seeker
        for index, (host, port) in enumerate(self._meeting.hosts):
            resolve(self._loop, host, port, partial(self._on_host, index))

    def seek(self, *, may_host: bool) -> None:
        """Report the elected coordinator. If none is known, report the next host to query."""
        del may_host
        if self._unresolved:
            self._seek_waits = True
            return
        if self._elector is None:
            self._become_elector()
        reason = "none of its hosts responds as the coordinator"
        if self._elector is not None:
            if self._elector.is_coordinator:
                self._seeker.found(CoordinatorHere(self._elector.election.lease_until()))
                return
            self._known_coordinator = self.coordinator_index()
            reason = self._elector.election.explain(self._loop.now())
        index = self._next()
        addresses = self._addresses[index]
        if not addresses or (self._elector is not None and index == self._elector.election.me):
            self._seeker.found(NotFound(reason))
            return
        self._dialled = index
        address = addresses[self._turn % len(addresses)]
        self._seeker.found(CoordinatorAt(address, self._limit_s()))

    def _next(self) -> int:
        """Return the index of the host to query next. This is the coordinator's host if known, or
        otherwise the other hosts in turn. Every second query goes to the host that responded last,
        because a network partition may have healed.
        """
        known, self._known_coordinator = self._known_coordinator, -1
        if known < 0 and self._asks_answered:
            known, self._asks_answered = self._answered, False
        if known >= 0:
            return known
        self._asks_answered = self._answered >= 0
        count = len(self._addresses)
        if self._elector is not None and self._turn % count == self._elector.election.me:
            self._turn += 1
        self._turn += 1
        return (self._turn - 1) % count

    def _limit_s(self) -> float:
        """Return how long to wait for a response. The limit is short at first, so that a lost host
        causes little delay. It increases while the coordinator can't be reached, because the
        coordinator may be far away.
        """
        rounds = 1 + self._unanswered // len(self._addresses)
        return min(_VOTE_S * rounds, max(_VOTE_S, self._meeting.dial_s))

    def answered(self) -> None:
        """Record that the queried host is the coordinator."""
        self._answered, self._asks_answered = self._dialled, True

    def coordinator_lost(self) -> None:
        """Reset the time limit, because the coordinator had responded in time before it was
        lost.
        """
        self._unanswered = 0

    def failed(self, *, refused: bool, working: bool) -> tuple[str, Refusal]:
        """Record that the next query should go to the next host in the list. A refused connection
        doesn't prove anything about the job, because another host may have taken over. A refusal by
        a host that was never the coordinator doesn't even suggest anything.
        """
        del working
        self._unanswered += not refused
        self._turn = self._dialled + 1
        is_hint = refused and self._dialled == self._answered
        return "", Refusal.HINT if is_hint else Refusal.NOTHING

    def redirected(self, host: int) -> str:
        """Record which host the peer named as the coordinator, if any."""
        if host < len(self._addresses):
            self._known_coordinator = host
        return "the endpoint's hosts have not elected a coordinator yet"

    def coordinates(self, has_lost_nodes: Callable[[], bool]) -> bool:
        """Return whether this host is currently the elected coordinator."""
        del has_lost_nodes
        elector = self._elector
        return elector is not None and elector.election.coordinates(self._loop.now())

    def coordinator_index(self) -> int:
        """Return the index of the coordinator's host, or -1 if it is unknown."""
        return -1 if self._elector is None else self._elector.election.coordinator(self._loop.now())

    def take_connection(self, connection: Connection, settings: GroupSettings | None) -> None:
        """Pass a connection from another elector to this host's elector."""
        if self._elector is not None:
            self._elector.take_connection(connection, settings)
        else:
            connection.close()

    def take_ballot(self, data: bytes) -> None:
        """Pass a datagram to this host's elector. The datagram may come from a process outside this
        job.
        """
        if self._elector is not None:
            self._elector.take_ballot(data)

    def is_needed(self, *, connected: bool) -> bool:
        """Return whether this host must keep voting. It may stop when no other host has been the
        coordinator, and no other node has been connected to this host, for the time that nodes are
        given to find a new coordinator. Time during which a host is silent doesn't count, because
        its nodes may come back after a network partition.
        """
        elector = self._elector
        if elector is None:
            return False
        now = self._loop.now()
        elsewhere = self.coordinator_index() not in (-1, elector.election.me)
        if self._needed_at is None or connected or elsewhere:
            self._needed_at = self._wait_from = now
        elif elector.has_silent_host() and now < self._needed_at + self._settings.lost_after_s:
            self._wait_from = now
        return now < self._wait_from + self._settings.rejoin_grace_s

    def predecessor(self) -> str:
        """Return why another process may have been the coordinator before this one, or ""."""
        return "" if self._elector is None else self._elector.election.predecessor()

    def retire(self) -> None:
        """Permanently stop taking part in elections."""
        self.close()
        self._elector = None

    def close(self) -> None:
        """Close the elector."""
        if self._elector is not None:
            self._elector.close()

    def _on_host(self, index: int, found: list[tuple[str, int]], error: str) -> None:
        del error
        self._addresses[index] = found
        self._unresolved -= 1
        if not self._unresolved and self._seek_waits:
            self.seek(may_host=True)

    def _become_elector(self) -> None:
        """Become the elector for one of the listed hosts if that host is this machine and its port
        is free.
        """
        # Several loopback addresses with the same port are separate hosts in the list. But Debian
        # maps a machine's own name to 127.0.1.1; in that case the other hosts can only reach this
        # one if it listens on all addresses.
        all_here = all(is_loopback(each) for found in self._addresses for each, _ in found)
        for index, found in enumerate(self._addresses):
            if not any(is_ours(address) for address, _ in found):
                continue
            sock = listen(found[0][0] if all_here else "", self._meeting.hosts[index][1])
            if sock is None:
                continue
            self._elector = Elector(
                self._loop,
                self._meeting,
                self._settings,
                index,
                self._addresses,
                self._seeker,
            )
            self._seeker.listen(sock)
            return


class Elector:
    """Takes part in elections over connections to the other listed hosts.

    Args:
        loop: the agent's loop.
        meeting: the rendezvous.
        settings: the user's settings.
        me: this host's index in the list.
        addresses: the addresses of each host.
        seeker: is notified of this host's role, of each elector whose messages are refused, and of
            each state change.

    Attributes:
        election: the state machine.
        is_coordinator: whether this host was the coordinator after the last step.
    """

    def __init__(
        self,
        loop: Loop,
        meeting: Meeting,
        settings: GroupSettings,
        me: int,
        addresses: list[list[tuple[str, int]]],
        seeker: Seeker,
    ) -> None:
        self._loop = loop
        self._meeting = meeting
        self._settings = settings
        self._addresses = addresses
        self._seeker = seeker
        names = [host for host, _ in meeting.hosts]
        incarnation = os.urandom(8).hex()
        self.election = Election(
            names, me, incarnation, loop.now(), vote_s=_VOTE_S, alone=meeting.alone
        )
        self.is_coordinator = False
        self._outgoing: dict[int, Connection] = {}
        self._up: set[int] = set()
        """Hosts that have responded and have not closed or refused a connection since then."""
        self._incoming: dict[Connection, None] = {}  # in order of arrival
        self._ballots = Ballots(loop)
        self._turn = 0
        self._alarm = Alarm(loop, partial(self._step, Tick()))
        self._alarm.set(self.election.deadline())  # the first of two hosts needs no other vote
        self._ping_timer = loop.call_after(0, self._ping)

    def has_silent_host(self) -> bool:
        """Return whether any host has stopped responding without closing its connection."""
        now = self._loop.now()
        return any(self.election.is_silent(host, now) for host in self._up)

    def take_connection(self, connection: Connection, settings: GroupSettings | None) -> None:
        """Handle a connection that another elector has opened."""
        if settings is not None and settings.lost_after_s != self._settings.lost_after_s:
            connection.fail(group_messages.other_lost_after(settings.lost_after_s, self._settings))
            return
        connection.owner = self
        self._incoming[connection] = None
        self._ballots.admit(connection.session_key)

    def take_ballot(self, data: bytes) -> None:
        """Handle a datagram from another elector, and drop datagrams from outside this job."""
        ballot = self._ballots.parse_datagram(data)
        if ballot is not None:
            self._step(BallotReceived(ballot))

    def close(self) -> None:
        """Close all connections."""
        self._alarm.set(None)
        self._ping_timer.cancel()
        for connection in [*self._outgoing.values(), *self._incoming]:
            connection.close()
        self._ballots.close()

    # The methods below are called by both incoming and outgoing connections.

    def opened(self, connection: Connection, hello: Message) -> None:
        """Record that another host has responded."""
        del hello
        for index, each in self._outgoing.items():
            if connection is each:
                self._up.add(index)
                self._ballots.keys[index] = connection.session_key
                self._step(Tick())
                return

    def received(self, connection: Connection, message: Message) -> None:
        """Handle a message from another elector."""
        heard = fields.message(_HEARD, message)
        if not isinstance(heard, Heartbeat):
            self._step(BallotReceived(heard))
        elif connection in self._incoming:
            connection.send(fields.to_json(heard))

    def closed(self, connection: Connection, reason: str) -> None:
        """Forget a connection that has ended; the next ping opens a new one."""
        if connection.session_key and reason != CLOSED:
            # Other reasons are normal. For example, that host may not be up yet.
            self._seeker.report_refused(f"{connection.peer}: {reason}")
        self._incoming.pop(connection, None)
        if connection.session_key or connection.refused:
            self._up -= {i for i, each in self._outgoing.items() if each is connection}
        self._outgoing = {i: each for i, each in self._outgoing.items() if each is not connection}

    def _ping(self) -> None:
        now = self._loop.now()
        for index, addresses in enumerate(self._addresses):
            connection = self._outgoing.get(index)
            if index == self.election.me or not addresses:
                continue
            if connection is not None and now - connection.heard_at > _SILENT_S:
                connection.close()
                del self._outgoing[index]
                connection = None
            if connection is None:
                self._turn += 1
                address = self._ballots.addresses[index] = addresses[self._turn % len(addresses)]
                hello = fields.plain(Hello("elector", self._meeting.job, self._settings))
                security = self._meeting.security
                try:
                    self._outgoing[index] = dial(
                        self._loop, address, self, hello, security, timeout_s=_SILENT_S
                    )
                except OSError:
                    continue
            elif connection.is_open:
                connection.send(fields.to_json(Heartbeat(0)))
        self._ping_timer = self._loop.call_after(_PING_S, self._ping)

    def _step(self, event: BallotReceived | Tick) -> None:
        before = self.election.state
        for effect in self.election.step(event, self._loop.now()):
            match effect:
                case SendBallot(host, message):
                    self._ballots.tell(host, message)
                    connection = self._outgoing.get(host)
                    if connection is not None and connection.is_open:
                        connection.send(fields.to_json(message))
                case BecomeCoordinator():
                    pass  # `coordinates` reflects it from now on
        self._alarm.set(self.election.deadline())
        after = self.election.state
        if after is not before:
            self._seeker.record(changed("election", before.value, after.value, event))
        self._report_role()

    def _report_role(self) -> None:
        """Report to the seeker whether this host is the coordinator."""
        now, before = self._loop.now(), self.is_coordinator
        self.is_coordinator = self.election.coordinates(now)
        if self.is_coordinator and before:
            self._seeker.extended(self.election.lease_until())
        elif self.is_coordinator:
            self._seeker.found(CoordinatorHere(self.election.lease_until()))
        elif before:
            self._seeker.step_down(self.election.explain(now), 0.0)


class Ballots:
    """Sends and parses the datagrams that electors exchange. Datagrams may get lost.

    Args:
        loop: the agent's loop.

    Attributes:
        keys: the key of the latest connection to each host that has responded.
        addresses: for each host, the address of the most recent connection.
    """

    def __init__(self, loop: Loop) -> None:
        self.keys: dict[int, bytes] = {}
        self.addresses: dict[int, tuple[str, int]] = {}
        self._loop = loop
        self._sockets: dict[int, Heartbeats] = {}
        self._admitted: dict[bytes, bytes] = {}

    def admit(self, key: bytes) -> None:
        """Accept ballots that are authenticated with the key of a connection opened by another
        host.
        """
        self._admitted[Heartbeats.prefix_key(key)] = key
        if len(self._admitted) > _MAX_KEYS:
            del self._admitted[next(iter(self._admitted))]

    def tell(self, host: int, message: Ballot) -> None:
        """Send a message to a host that has responded before."""
        if host not in self.keys:
            return
        address = self.addresses[host]
        family = AF_INET6 if ":" in address[0] else AF_INET
        if family not in self._sockets:
            self._sockets[family] = Heartbeats(self._loop, ("", 0), family, lambda *_: None)
        body = wire.encode_body(fields.to_json(message))
        self._sockets[family].send(Heartbeats.sealed(body, self.keys[host]), address)

    def close(self) -> None:
        """Close the sockets."""
        for each in self._sockets.values():
            each.close()

    def parse_datagram(self, data: bytes) -> Ballot | None:
        """Return the message in a datagram, or None if it is not from an elector in this job."""
        key = self._admitted.get(data[:8])
        if key is None or not Heartbeats.is_genuine(data, key):
            return None
        try:
            message: Ballot = fields.message(Ballot, wire.parse(data[8:-8]))
        except Malformed:
            return None  # sent by a different version, which its connection will report
        return message
