"""The link of a job whose endpoint lists several hosts: `--rdzv-endpoint=host1,host2,host3`.

The agent that holds the endpoint's port on one of these hosts is its elector. The electors choose a
coordinator among themselves (`core/election`); agents ask any of them who it is. When the
coordinator's host is gone, the next one takes over as soon as a majority of the hosts agrees. The
agents announce the generation that they are in, and their workers go on.

An elector has a connection to each other host of the list, over which it speaks; it hears over
those that the others made. A connection that is not answered for a second is made anew.
"""

import os
from collections.abc import Callable
from functools import partial

from relight.core import election, fields, waiting
from relight.core.election import BecomeCoordinator, Election, Heard, Resign, Send
from relight.core.fields import Message
from relight.core.group import Hello, Settings
from relight.core.messages import Beat, End, FromCoordinator, Join
from relight.events import Tick
from relight.host.connection import CLOSED, Connection, dial, resolve
from relight.host.loop import Loop, Timer
from relight.host.ports import is_ours, listen
from relight.link import Owner, RemoteLink
from relight.rendezvous.meeting import Meeting

_PING_S = 0.25
_SILENT_S = 1.0
_HEARD = election.Message | Beat


class ElectedLink(RemoteLink):
    """The link to whichever host of the endpoint is the coordinator.

    Args: as for `RemoteLink`.
    """

    def __init__(self, loop: Loop, settings: Settings, join: Join, meeting: Meeting) -> None:
        super().__init__(loop, settings, join, meeting)
        self._hosts = meeting.hosts
        self._known: list[list[tuple[str, int]]] = [[] for _ in self._hosts]
        self._unknown = len(self._hosts)
        self._hint = -1
        self._asked = -1
        self._elector: Elector | None = None
        self._votes_on = False
        """Whether this node is done, and others are not."""

    def open(self, owner: Owner) -> None:
        """Find the coordinator, or become it, and join."""
        self._owner = owner
        self._since = self._loop.now()
        self._owner.say(f"{self._meeting.who} meets at {self._meeting.where}")
        for index, (host, port) in enumerate(self._hosts):
            resolve(self._loop, host, port, partial(self._on_host, index))

    def close(self, give_up: Callable[[], bool]) -> None:
        """End. A coordinator first waits until the other nodes know how the job ended. A host that
        is done goes on voting for the coordinator of those that are not.
        """
        if self._elector is not None and self._votes_on:
            self._vote_on(self._elector, give_up)
        super().close(give_up)
        if self._elector is not None:
            self._elector.close()

    def _tell(self, message: FromCoordinator) -> None:
        self._votes_on = isinstance(message, End) and message.others_run
        super()._tell(message)

    def _vote_on(self, elector: "Elector", give_up: Callable[[], bool]) -> None:
        """Stay until there has been no coordinator but this host for as long as nodes may take to
        find another one, and no other node is connected here.
        """
        self._disconnect()
        needed_at = self._loop.now()

        def is_needed() -> bool:
            nonlocal needed_at
            connected = self._coordinator is not None and self._coordinator.others > 0
            if connected or elector.whereabouts() not in (-1, elector.me):
                needed_at = self._loop.now()
            return self._loop.now() < needed_at + self._settings.rejoin_s

        if not give_up():
            self._owner.say("the workers here are done; this host of the endpoint votes on for the "
                            "other nodes until theirs are")  # fmt: skip
        self._loop.run_until(lambda: not is_needed() or give_up())

    def _on_host(self, index: int, found: list[tuple[str, int]], error: str) -> None:
        del error  # a host that is not known is a host that is gone
        self._known[index] = found
        self._unknown -= 1
        if not self._unknown and not self._closed:
            self._seek()

    def _stand(self) -> None:
        """Become the elector of a host of the list, if this is one and its port is free."""
        for index, found in enumerate(self._known):
            if not any(is_ours(address) for address, _ in found):
                continue
            loopback = all(address.startswith("127.") for address, _ in found)
            sock = listen(found[0][0] if loopback else "", self._hosts[index][1])
            if sock is None:
                continue
            coordinator = self._make_coordinator(sock)
            self._elector = Elector(
                self._loop,
                self._meeting,
                self._settings,
                index,
                self._known,
                self._on_role,
                self._log,
            )
            coordinator.holds = self._elector.holds
            coordinator.on_elector = self._elector.take
            coordinator.whereabouts = self._elector.whereabouts
            self._coordinator = coordinator
            return

    def _look_up(self) -> None:
        self._seek()

    def _seek(self) -> None:
        if self._closed or self._connection is not None or self._group is not None:
            return
        if self._elector is None:
            self._stand()
        reason = "none of its hosts answers as the coordinator"
        if self._elector is not None:
            if self._elector.holds():
                self._on_role(True)
                return
            self._hint = self._elector.whereabouts()
            reason = self._elector.explain()
        index = self._hint if self._hint >= 0 else self._turn % len(self._hosts)
        self._hint = -1
        self._turn += 1
        addresses = self._known[index]
        if not addresses or (self._elector is not None and index == self._elector.me):
            self._retry(reason)
            return
        self._asked = index
        self._dial(addresses[self._turn % len(addresses)], timeout_s=self._meeting.lease_s)

    def _redirected(self, connection: Connection, host: int) -> None:
        """The host that was asked says where the coordinator is, if it knows."""
        del connection
        if host < len(self._hosts):
            self._hint = host
        self._disconnect()
        self._retry("the hosts of the endpoint have not chosen a coordinator yet")

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection is gone: ask the next host first."""
        self._turn = self._asked + 1
        super().closed(connection, reason)

    def _renew_by_refusal(self) -> None:
        """A host without coordinator proves nothing: another one may have taken over."""

    def _on_role(self, holds: bool) -> None:
        """This host has become the coordinator, or is no longer."""
        coordinator, elector = self._coordinator, self._elector
        if coordinator is None or elector is None or self._closed:
            return
        if self._votes_on:  # it serves the others, and does not join them
            if not holds:
                coordinator.resign()
            return
        if holds and self._group is None:
            self._disconnect()
            self._confirmed = self._owner.announce() is None
            self._owner.say("this node coordinates the group now")
            self._serve(coordinator)
        elif not holds and self._group is not None:
            self._group = None
            coordinator.resign()
            self._owner.say(f"this node coordinates the group no longer: {elector.explain()}")
            self._since = self._loop.now()
            self._seek()
        if holds and self._confirmed:
            self._lease(elector.lease_until())

    def _lease_of_own(self) -> None:
        """The lease is that of the votes."""
        self._confirmed = True
        if self._elector is not None:
            self._lease(self._elector.lease_until())


class Elector:
    """The election, carried out: connections to the other hosts of the list.

    Args:
        loop: the agent's loop.
        meeting: where and how the nodes meet.
        settings: what the job was asked to be; votes count for as long as leases.
        me: the index of this host in its list.
        known: the addresses of each host.
        on_role: is told, again and again, whether this host is the coordinator.
        log: is told of electors whose messages are not taken.
    """

    def __init__(
        self,
        loop: Loop,
        meeting: Meeting,
        settings: Settings,
        me: int,
        known: list[list[tuple[str, int]]],
        on_role: Callable[[bool], None],
        log: Callable[[str], None],
    ) -> None:
        self.me = me
        self._loop = loop
        self._meeting = meeting
        self._settings = settings
        self._known = known
        self._on_role = on_role
        self._log = log
        names = [host for host, _ in meeting.hosts]
        incarnation = os.urandom(8).hex()
        self._election = Election(
            names, me, incarnation, loop.now(), vote_s=meeting.lease_s, alone=meeting.alone
        )
        self._out: dict[int, Connection] = {}
        self._in: set[Connection] = set()
        self._turn = 0
        self._elected_at = 0.0
        self._closed = False
        self._timer: Timer | None = None
        self._ping_timer = loop.call_after(0, self._ping)

    def holds(self) -> bool:
        """Return whether this host is the coordinator at this moment.

        It only begins when the leases that the one before may have given are over.
        """
        now = self._loop.now()
        return self._election.holds(now) and now >= self._elected_at + self._meeting.lease_s

    def whereabouts(self) -> int:
        """Return which host is the coordinator, -1 if that is not known."""
        return self._election.coordinator(self._loop.now())

    def explain(self) -> str:
        """Return in words what is being waited for."""
        return self._election.explain(self._loop.now())

    def lease_until(self) -> float:
        """Return until when this host is the coordinator for sure."""
        return self._election.lease_until()

    def take(self, connection: Connection, settings: Settings | None) -> None:
        """Hear another elector over a connection that it made."""
        if settings is not None and settings.lost_after_s != self._settings.lost_after_s:
            # Its votes would count for another time than ours.
            connection.fail(waiting.other_patience(settings.lost_after_s, self._settings))
            return
        connection.owner = self
        self._in.add(connection)

    def close(self) -> None:
        """End."""
        self._closed = True
        for timer in (self._timer, self._ping_timer):
            if timer is not None:
                timer.cancel()
        for connection in [*self._out.values(), *self._in]:
            connection.close()

    # The owner of connections in both directions.

    def opened(self, connection: Connection, hello: Message) -> None:
        """Another host has answered."""
        del hello
        if connection in self._out.values():
            self._step(Tick())

    def received(self, connection: Connection, message: Message) -> None:
        """Another elector says something."""
        heard = fields.message(_HEARD, message)
        if not isinstance(heard, Beat):
            self._step(Heard(heard))
        elif connection in self._in:
            connection.send(fields.to_json(heard))

    def closed(self, connection: Connection, reason: str) -> None:
        """A connection is gone; it is made anew with the next ping."""
        if connection.session_key and reason != CLOSED:
            self._log(f"{connection.peer}: {reason}")  # else nobody was there yet, or has gone
        self._in.discard(connection)
        self._out = {i: known for i, known in self._out.items() if known is not connection}

    def _ping(self) -> None:
        if self._closed:
            return
        now = self._loop.now()
        for index, addresses in enumerate(self._known):
            connection = self._out.get(index)
            if index == self.me or not addresses:
                continue
            if connection is not None and now - connection.heard_at > _SILENT_S:
                connection.close()
                del self._out[index]
                connection = None
            if connection is None:
                self._turn += 1
                address = addresses[self._turn % len(addresses)]
                hello = fields.plain(Hello("elector", self._meeting.job, self._settings))
                security = self._meeting.security
                try:
                    self._out[index] = dial(
                        self._loop, address, self, hello, security, timeout_s=_SILENT_S
                    )
                except OSError:
                    continue
            elif connection.is_open:
                connection.send(fields.to_json(Beat(0)))
        self._ping_timer = self._loop.call_after(_PING_S, self._ping)

    def _step(self, event: Heard | Tick) -> None:
        for effect in self._election.step(event, self._loop.now()):
            match effect:
                case Send(host, message):
                    connection = self._out.get(host)
                    if connection is not None and connection.is_open:
                        connection.send(fields.to_json(message))
                case BecomeCoordinator():
                    self._elected_at = self._loop.now()
                case Resign():
                    pass
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._election.deadline(), self._on_deadline)
        self._on_role(self.holds())

    def _on_deadline(self) -> None:
        self._timer = None
        self._step(Tick())
