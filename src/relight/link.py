"""An agent's link to its group: what it says goes to the coordinator, wherever that is; what the
coordinator says comes back.

    LocalLink    a job of one node: the group is in this process
    RemoteLink   several nodes: the coordinator is at the endpoint, and may have to be us

RemoteLink, as seen from outside:

    seeking      tries in turns to host the endpoint and to reach it
      | its address is ours and the port is free       -> hosting
      | a coordinator answers                          -> connected
      | neither for long enough                        -> the job ends here, exit code 3
    connected    beats; each echo extends the lease of the workers here
      | the connection ends, or no echo for too long   -> seeking, while workers run on their lease
    hosting      the coordinator is in this process; there is no lease to lose

A refused connection is no silence: the host lives and nobody is coordinator there, so that the
lease goes on, for 5 s after the last echo; a firewall refuses as well. Where nothing is heard at
all it ends, and the workers freeze until we know more, because the others may have gone on without
us.
"""

import socket
from collections.abc import Callable, Sequence

from relight.core.group import Hello, Settings, Told
from relight.core.messages import (
    Announce,
    Beat,
    Confirm,
    End,
    Form,
    FromAgent,
    FromCoordinator,
    Join,
    Leave,
    Redirect,
)
from relight.errors import EXIT_GROUP, EXIT_USAGE
from relight.group import Group
from relight.host.loop import Loop, Timer
from relight.host.ports import is_loopback, is_ours, listen
from relight.typed import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relight.coordinator import Coordinator
    from relight.core.fields import Message
    from relight.host.beats import Address, Beats
    from relight.host.connection import Connection
    from relight.host.tcp_store import TCPStore
    from relight.rendezvous.meeting import Meeting

_RETRY_S = 0.2
_TRIES = 3
_LOOK_UP_EVERY = 25
"""How many times to dial before the endpoint's name is looked up again."""
_UNFIT_S = 30.0
"""How long nodes of the same job that have another token may still be there, from a former try."""
_BURST_S = 0.05
"""Time between beats while the last one has no echo."""
_REFUSALS_S = 5.0
"""How long a refused connection is believed: long enough for a coordinator to be started again."""
_LOG_EVERY_S = 10.0
_HEARD = FromCoordinator | Beat | Redirect


class Owner(Protocol):
    """The agent, as its link sees it."""

    def announce(self) -> Announce | None:
        """Return the generation whose workers are here, if any."""

    def standing(self) -> Sequence[FromAgent]:
        """Return what the coordinator should know beyond that: whether this node is ready."""

    def told(self, message: FromCoordinator) -> None:
        """Take what the coordinator says."""

    def lease(self, until: float | None) -> None:
        """The workers may run until this time, on the loop's clock; None is for ever."""

    def say(self, message: str) -> None:
        """Tell the user."""


class LocalLink:
    """The link of a job of one node."""

    def __init__(self, loop: Loop, settings: Settings, join: Join) -> None:
        self._group = Group(loop, settings)
        self._loop = loop
        self._join = join

    def open(self, owner: Owner) -> None:
        """Join."""
        node = self._join.node

        def sink(message: FromCoordinator) -> None:
            self._loop.call_after(0, lambda: owner.told(message))

        self._group.sinks[node] = sink
        self.send(self._join)

    def send(self, message: FromAgent) -> None:
        """Tell the group."""
        self._group.step(Told(self._join.node, message))

    def close(self, give_up: Callable[[], bool]) -> None:
        """End."""
        del give_up
        self._group.close()


class RemoteLink:
    """The link of a job of several nodes.

    Args:
        loop: the agent's loop.
        settings: what the job was asked to be.
        join: what this node brings.
        meeting: where and how.
    """

    def __init__(self, loop: Loop, settings: Settings, join: Join, meeting: "Meeting") -> None:
        self._shared: TCPStore | None = None
        self._loop = loop
        self._settings = settings
        self._join = join
        self._meeting = meeting
        self._owner: Owner
        self._coordinator: Coordinator | None = None
        self._group: Group | None = None
        self._connection: Connection | None = None
        self._timer: Timer | None = None
        self._beats: Beats | None = None
        self._beat_timer: Timer | None = None
        self._addresses: list[tuple[str, int]] = []
        self._target: Address = ()
        self._turn = 0
        self._told: set[str] = set()
        self._since = loop.now()
        self._number = 0
        self._sent: dict[int, float] = {}
        self._echoed_at = 0.0
        self._quiet_until = 0.0
        self._heard = False
        """Whether the coordinator has said something over this connection."""
        self._leased_until = 0.0
        self._unfit_since: float | None = None
        self._unfit = ""
        self._confirmed = False
        self._closed = False

    def open(self, owner: Owner) -> None:
        """Find the coordinator, or become it, and join."""
        self._owner = owner
        self._since = self._loop.now()
        self._owner.say(f"{self._meeting.who} meets at {self._meeting.where}")
        self._look_up()

    def send(self, message: FromAgent) -> None:
        """Tell the coordinator. While there is none, `Owner.standing` is what it will hear."""
        from relight.core import fields

        if self._group is not None:
            self._group.step(Told(self._join.node, message))
            if isinstance(message, Leave) and self._coordinator is not None:
                self._coordinator.say(
                    f"{self._join.host}, which coordinates, left: {message.reason}"
                )
        elif self._connection is not None and self._connection.is_open:
            self._connection.send(fields.to_json(message))

    def share_port(self, store: "TCPStore") -> int:
        """Let workers reach `store` at the endpoint's port; return that, or 0 if it is not ours."""
        if not (self._meeting.fixed_port and self._meeting.hosted):
            return 0
        self._shared = store
        return self._meeting.port

    def close(self, give_up: Callable[[], bool]) -> None:
        """End. A coordinator first waits until the other nodes know how the job ended."""
        coordinator = self._coordinator
        if coordinator is not None:
            over = self._group is not None and self._group.membership.end is not None
            limit = self._loop.call_after(self._meeting.close_s, lambda: None) if over else None
            if not over and self._has_others() and not give_up():
                self._owner.say("the workers here are done; coordinating the other nodes until "
                                "theirs are")  # fmt: skip
            self._loop.run_until(
                lambda: (
                    not self._has_others()
                    or give_up()
                    or (limit is not None and self._loop.now() >= limit.when)
                )
            )
            coordinator.close()
        self._closed = True
        self._disconnect()
        for timer in (self._timer, self._beat_timer):
            if timer is not None:
                timer.cancel()
        if self._beats is not None:
            self._beats.close()

    def _has_others(self) -> bool:
        """Whether other nodes are in the group of this job. Other jobs find a new coordinator."""
        return self._group is not None and len(self._group.sinks) > 1

    # Seeking.

    def _look_up(self) -> None:
        from relight.host.connection import resolve

        if not self._closed:
            resolve(self._loop, self._meeting.host, self._meeting.port, self._on_addresses)

    def _on_addresses(self, addresses: list[tuple[str, int]], error: str) -> None:
        if self._closed:
            return
        self._addresses = addresses or self._addresses
        if not self._addresses and not self._host_anyway():
            self._retry(error, self._look_up, 1.0)
        else:
            self._seek()

    def _on_other_addresses(self, addresses: list[tuple[str, int]], error: str) -> None:
        del error
        self._addresses = addresses or self._addresses

    def _host_anyway(self) -> bool:
        """Whether the endpoint is this machine, although none of its addresses is.

        A name that resolves to another address belongs to another machine, also if ours is called
        the same; `is_host=1` overrules that.
        """
        own_name = self._meeting.host == socket.gethostname()
        return bool(self._meeting.hosted) or (own_name and not self._addresses)

    def _seek(self) -> None:
        if self._closed or self._try_to_host():
            return
        if not self._addresses:
            self._retry("the endpoint's port is taken on this machine", self._look_up)
            return
        self._turn += 1
        self._dial(self._addresses[self._turn % len(self._addresses)])

    def _dial(self, address: tuple[str, int], timeout_s: float = 0.0) -> None:
        from relight.core.fields import plain
        from relight.host.connection import dial
        from relight.host.names import sock_address

        hello = plain(Hello(job=self._meeting.job, settings=self._settings))
        self._target = sock_address(*address)[1]
        try:
            self._connection = dial(
                self._loop,
                address,
                self,
                hello,
                self._meeting.security,
                timeout_s=timeout_s or self._meeting.dial_s,
            )
        except OSError as error:
            self._retry(f"can't connect to {address[0]}:{address[1]}: {error.strerror}")

    def _retry(
        self, reason: str, again: Callable[[], None] | None = None, seconds: float = _RETRY_S
    ) -> None:
        """Try again soon; say why if that is news."""
        if self._loop.now() - (self._unfit_since or self._loop.now()) > _UNFIT_S:
            text = f"the coordinator at {self._meeting.where} turns us away: {self._unfit}"
            self._owner.told(End(EXIT_USAGE, text, (), None))
            return
        waited = self._loop.now() - self._since
        ever = self._echoed_at > 0  # or it was never connected
        if waited > (self._settings.join_timeout_s if ever else self._meeting.seek_s):
            text = f"no coordinator at {self._meeting.where} for {waited:.0f} s: {reason}"
            report = f"error: {text}", *self._what_is_wrong()
            self._tell(End(EXIT_GROUP, text, report, None))
            return
        if reason not in self._told and waited >= 1:
            self._told.add(reason)
            self._owner.say(f"waiting for the coordinator at {self._meeting.where}: {reason}")
        self._timer = self._loop.call_after(seconds, again or self._seek)

    def _what_is_wrong(self) -> list[str]:
        """Look at the endpoint from here, for 2 s at most."""
        if not self._meeting.hosts or self._unfit_since is not None:
            return []
        from relight.doctor import at_timeout

        return at_timeout(self._meeting.host, self._meeting.port)

    def _try_to_host(self) -> bool:
        """Host the endpoint if it is an address of this machine and its port is free.

        Only binding tells for sure whether an address is ours: names lie, in both directions.
        """
        if self._meeting.hosted is False or self._unfit_since is not None:
            return False  # who does not know the job's token must not found another group
        ours = [address for address, _ in self._addresses if is_ours(address)]
        if not ours and not self._host_anyway():
            return False
        if not ours and self._turn < _TRIES * len(self._addresses):
            return False  # the address may be translated; or another node is meant
        # An endpoint that says loopback is for this machine only. Debian also gives a machine's own
        # name the address 127.0.1.1, where nobody else comes in.
        meant = self._meeting.host == "localhost" or self._meeting.host in ours
        only = ours[0] if ours and meant and is_loopback(ours[0]) else ""
        sock = listen(only, self._meeting.port)
        if sock is not None:
            self._host(sock)
        return sock is not None

    def _host(self, sock: socket.socket) -> None:
        self._coordinator = self._make_coordinator(sock)
        if self._loop.now() < self._leased_until:
            self._lease(None)  # nobody can have gone on without the workers here
        self._serve(self._coordinator)

    def _make_coordinator(self, sock: socket.socket) -> "Coordinator":
        from relight.coordinator import Coordinator

        return Coordinator(self._loop, sock, self._meeting.security, self._divert, self._log)

    def _serve(self, coordinator: "Coordinator") -> None:
        """Join the group of a coordinator in this process."""
        self._group = coordinator.group(self._meeting.job, self._settings)
        self._group.sinks[self._join.node] = coordinator.sink_of_own(self._on_own)
        self._told.clear()
        # This process can't give itself up.
        self.send(self._join._replace(announce=self._owner.announce(), stop_s=None))
        for message in self._owner.standing():
            self.send(message)

    def _divert(self, client: socket.socket) -> None:
        """Take a client of the workers' store that has come to the endpoint's port."""
        if self._shared is None:
            client.close()
        else:
            self._shared.adopt(client)

    def _on_own(self, message: FromCoordinator) -> None:
        """The coordinator in this process says something."""
        if self._lets_run(message):
            self._lease_of_own()
        self._tell(message)

    def _lease_of_own(self) -> None:
        """What this process coordinates can't go on without it."""
        self._lease(None)

    # Connected. The next three are the connection's owner.

    def opened(self, connection: "Connection", hello: "Message") -> None:
        """The coordinator has answered."""
        if hello.get("sender") != "coordinator":
            connection.fail("what listens there is no coordinator")
            return
        announce = self._owner.announce()
        self._confirmed = announce is None
        self._unfit_since = None
        address = self._meeting.local_addr or connection.own_address()
        self.send(self._join._replace(address=address, announce=announce))
        for message in self._owner.standing():
            self.send(message)
        self._echoed_at = self._loop.now()
        self._beat()

    def received(self, connection: "Connection", message: "Message") -> None:
        """The coordinator says something."""
        from relight.core import fields

        told = fields.message(_HEARD, message)
        self._heard = True
        if isinstance(told, Beat):
            self._echo(told.number)
            return
        if isinstance(told, Redirect):
            self._redirected(connection, told.host)
            return
        if isinstance(told, Form) and told.place.local_world_size != self._join.slots:
            raise fields.Malformed(f"a place for {told.place.local_world_size} workers")
        self._told.clear()
        if self._lets_run(told):
            self._confirmed = True
            self._lease(self._echoed_at + self._meeting.lease_s)
        self._tell(told)

    def _lets_run(self, message: FromCoordinator) -> bool:
        """Whether the coordinator says that the workers here, or those to be started, may run."""
        if isinstance(message, Confirm):
            announce = self._owner.announce()
            return announce is not None and announce.generation == message.generation
        return isinstance(message, Form)

    def _redirected(self, connection: "Connection", host: int) -> None:
        """Who was asked says that number `host` of the endpoint's list coordinates."""
        connection.fail(f"it coordinates no longer (host {host} may)")

    def closed(self, connection: "Connection", reason: str) -> None:
        """The connection is gone, or could not be made."""
        from relight.host.connection import resolve

        was_open = self._beat_timer is not None
        was_heard, self._heard = self._heard, False
        self._connection = None
        self._stop_beating()
        if self._closed:
            return
        if connection.refused:
            self._renew_by_refusal()
        if connection.unfit and self._is_of_others(connection):
            reason = "another job, with another token, holds it"
        elif connection.unfit and self._unfit_since is None:
            self._unfit_since = self._loop.now()
            self._unfit = reason
        if was_heard:
            self._since = self._loop.now()
            self._owner.say(f"lost the coordinator at {connection.peer}: {reason}; looking for it")
            if self._addresses:  # a pod that comes back has another address
                resolve(
                    self._loop, self._meeting.host, self._meeting.port, self._on_other_addresses
                )
            self._seek()
        else:
            again = self._seek if self._turn % _LOOK_UP_EVERY else self._look_up
            # Who opens and says nothing does not take us: to come again at once would not help.
            self._retry(reason, again, 1.0 if connection.unfit or was_open else _RETRY_S)

    def _is_of_others(self, connection: "Connection") -> bool:
        """Whether who turned us away coordinates other jobs, and not ours."""
        jobs = (connection.opening.peer_hello or {}).get("jobs")
        return isinstance(jobs, list) and self._meeting.job not in jobs

    def _renew_by_refusal(self) -> None:
        """The endpoint's host lives, and nobody is coordinator there, nor was one meanwhile.

        A firewall may say so as well, in the name of a host where a coordinator has gone on.
        """
        now = self._loop.now()
        is_proof = is_ours(str(self._target[0])) or now < self._echoed_at + _REFUSALS_S
        if now < self._leased_until and is_proof:
            self._lease(now + self._meeting.lease_s)

    def _lease(self, until: float | None) -> None:
        self._leased_until = float("inf") if until is None else until
        self._owner.lease(until)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._stop_beating()

    # Beats.

    def _beat(self) -> None:
        connection = self._connection
        if connection is None:
            return
        now = self._loop.now()
        silent_s = now - self._echoed_at
        if silent_s > self._settings.lost_after_s:
            connection.close()
            self.closed(connection, f"no word from it for {silent_s:.1f} s")
            return
        late = silent_s > self._meeting.interval_s * 1.6
        self._number += 1
        self._sent[self._number] = now
        if late:  # one a time is lost; many are not
            if self._beats is None:
                self._open_beats(connection)
            if self._beats is not None:
                data = self._beats.datagram(self._number, connection.session_key)
                self._beats.send(data, self._target)
        else:
            connection.send({"type": "beat", "number": self._number})
        pause = _BURST_S if late else self._meeting.interval_s
        self._beat_timer = self._loop.call_after(pause, self._beat)

    def _open_beats(self, connection: "Connection") -> None:
        from relight.host.beats import Beats

        own = connection.own_address()
        family = socket.AF_INET6 if ":" in own else socket.AF_INET
        self._beats = Beats(self._loop, (own, 0), family, self._on_datagram)

    def _on_datagram(self, data: bytes, sender: "Address") -> None:
        del sender
        if self._connection is not None and self._beats is not None:
            self._echo(self._beats.number_of(data, self._connection.session_key))

    def _echo(self, number: int | None) -> None:
        sent_at = self._sent.get(number or 0)
        if sent_at is None:
            return
        self._echoed_at = max(self._echoed_at, sent_at)
        for older in [n for n, at in self._sent.items() if at <= sent_at]:
            del self._sent[older]
        if self._confirmed:
            self._lease(self._echoed_at + self._meeting.lease_s)

    def _stop_beating(self) -> None:
        if self._beat_timer is not None:
            self._beat_timer.cancel()
            self._beat_timer = None
        if self._beats is not None:
            self._beats.close()
            self._beats = None
        self._sent.clear()

    def _tell(self, message: FromCoordinator) -> None:
        """Tell the agent; where nodes did not meet, with what finds out why."""
        if isinstance(message, End) and message.exit_code == EXIT_GROUP:
            report = message.report or (f"error: {message.reason}",)
            if self._unfit_since is None:
                report = *report, f"hint: on all nodes at the same time, {self._meeting.doctor}"
            message = message._replace(report=report)
        self._owner.told(message)

    def _log(self, line: str) -> None:
        """Say who was turned away, but not each of many."""
        now = self._loop.now()
        if now >= self._quiet_until:
            self._quiet_until = now + _LOG_EVERY_S
            self._owner.say(f"turned away {line}")
