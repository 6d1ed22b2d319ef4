"""One agent's link to the coordinator of a multi-node job. The link carries out the decisions made
by `core/link/link_state`.

    core/link/link_state    the link's state, until when workers may run, when to retry
    rendezvous/discovery    finds the coordinator, possibly in this process
    this module             connects, sends heartbeats, hosts the coordinator, passes messages on
"""

import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from relight.agent.group import Group, LinkOwner
from relight.base import fields
from relight.base.errors import EXIT_GROUP
from relight.base.fields import Message
from relight.base.text import pluralize
from relight.core.group import group_messages
from relight.core.group.group_types import GroupSettings, Hello, PredecessorPossible, Received
from relight.core.group.messages import (
    Announce,
    Confirm,
    FromAgent,
    FromCoordinator,
    GenerationFormed,
    Heartbeat,
    JobEnded,
    Join,
    NodeLeaving,
    NodesGone,
    Redirect,
)
from relight.core.link.lease import Refusal
from relight.core.link.link_state import (
    REDIAL_LIMIT_S,
    Broken,
    CoordinatorLost,
    Dialing,
    Disconnect,
    Echoed,
    Event,
    GiveUp,
    Heard,
    Hosting,
    JobOver,
    Left,
    LetWorkersRun,
    Link,
    LinkSettings,
    LinkState,
    NothingFound,
    Opened,
    Say,
    SecondFailed,
    Seek,
    SendHeartbeat,
    SteppedDown,
)
from relight.core.ranks import NO_GENERATION
from relight.core.workers.supervision import FOR_EVER
from relight.events.event_types import StateChanged, Tick, changed
from relight.host import system
from relight.host.loop import Alarm, Loop
from relight.net.connection import Connection, dial
from relight.net.dns import sock_address
from relight.net.heartbeats import Address, Heartbeats
from relight.net.ports import is_loopback
from relight.net.store_port import StorePort
from relight.rendezvous import discovery as finders
from relight.rendezvous.config import Meeting
from relight.rendezvous.finders import make_finder

if TYPE_CHECKING:
    from relight.agent.coordinator import Coordinator

_Heard = FromCoordinator | Heartbeat | Redirect
_SYN_RETRY_S = 0.25
_NOTE_AFTER_S = 5.0
"""How long the coordinator's host waits for other nodes to connect before it prints a note."""


class RemoteLink(finders.Seeker):
    """The link in a multi-node job.

    Args:
        loop: the agent's loop.
        settings: the user's settings.
        join: the message that describes this node to the group.
        meeting: where and how the nodes meet.
    """

    def __init__(self, loop: Loop, settings: GroupSettings, join: Join, meeting: Meeting) -> None:
        self.join = join
        self.core = Link(
            LinkSettings(
                where=meeting.where,
                interval_s=meeting.interval_s,
                lease_s=meeting.lease_s,
                lost_after_s=settings.lost_after_s,
                seek_s=meeting.seek_s,
                join_timeout_s=settings.join_timeout_s,
            ),
            loop.now(),
        )
        self._loop = loop
        self._settings = settings
        self._meeting = meeting
        self._finder = make_finder(loop, meeting, settings)
        self._owner: LinkOwner
        self._shared: StorePort | None = None
        self._coordinator: Coordinator | None = None
        self._group: Group | None = None
        self._connection: Connection | None = None
        self._connections = 0
        self._second: Connection | None = None
        """A second connection, opened to replace a connection on which nothing arrives."""
        self._heartbeats: dict[int, Heartbeats] = {}
        """The heartbeat sockets by address family. They are opened before the spawner and its guard
        are forked, so that both inherit them.
        """
        self._peer = self._second_peer = _Coordinator()
        """The coordinators at the other ends of the two connections."""
        self._dial_again = Alarm(loop, self._dial_unanswered)
        self._met_coordinator = False
        """Whether a coordinator has sent a message, or the one in this process has formed a
        generation.
        """
        self._predecessor = ""
        """Why a coordinator before the one in this process is possible, as the group knows it."""
        self._warned = False
        self._lost = _Coordinator()
        """The previous coordinator, until a new one has confirmed this node's generation."""
        self._gone: tuple[int, ...] = ()
        """The group rank of the previous coordinator's node, once its machine reports that no
        process of its agent is left.
        """
        self._seeks = Seek()
        self._alarm = Alarm(loop, partial(self._step, Tick()))
        self._end: JobEnded | None = None
        """How the job ended for this node."""
        self._closed = False

    def open(self, owner: LinkOwner) -> None:
        """Find or become the coordinator, and join."""
        self._owner = owner
        for family in (socket.AF_INET, socket.AF_INET6):
            heartbeats = Heartbeats(self._loop, ("", 0), family, self._on_datagram)
            heartbeats.on_unreachable = self._on_unreachable
            self._heartbeats[family] = heartbeats
        self.say(f"{self._meeting.who}: rendezvous at {self._meeting.where}")
        self._finder.open(self)
        self._step(Tick())

    @property
    def has_joined(self) -> bool:
        """Whether messages reach the group."""
        connection = self._connection
        return self._group is not None or (connection is not None and connection.is_open)

    def unheard_s(self) -> float:
        """Return how long it has been since a coordinator responded, or 0 if the coordinator is in
        this process.
        """
        return 0.0 if self._group is not None else self.core.unheard_s(self._loop.now())

    @property
    def relays(self) -> bool:
        """Whether the coordinator forwards queries to all nodes (`AskNodes`)."""
        connection = self._connection
        if connection is None or not connection.is_open:
            return self._group is not None
        return (connection.opening.peer_hello or {}).get("relays") is True

    def send(self, message: FromAgent) -> None:
        """Send a message to the coordinator. If there is no coordinator, the message is dropped,
        and the next coordinator receives `LinkOwner.messages_after_join`.
        """
        if self._group is not None:
            self._group.step(Received(self.join.node, message))
            if isinstance(message, NodeLeaving) and self._coordinator is not None:
                self._coordinator.broadcast_text(
                    f"the coordinator, {self.join.host}, left: {message.reason}"
                )
        elif self._connection is not None and self._connection.is_open:
            self._connection.send(fields.to_json(message))

    def share_port(self, store: StorePort) -> int:
        """Let workers connect to `store` through the endpoint's port. Return the endpoint's port,
        or 0 if this host doesn't own the endpoint.
        """
        if not (self._meeting.fixed_port and self._meeting.hosted):
            return 0
        self._shared = store
        return self._meeting.port

    @property
    def _others_run(self) -> bool:
        """Whether other nodes are still running after this node has finished."""
        return self._end is not None and self._end.others_run

    def leave(self) -> None:
        """Disconnect if the job has ended for all nodes, so that the coordinator doesn't have to
        wait until this agent has finished, for example if its console is blocked.
        """
        if self._end is not None and not self._others_run and self._group is None:
            self.send(NodeLeaving("the job is over"))
            self._step(Left())

    def close(self, stop_waiting: Callable[[], bool]) -> None:
        """Leave the job. A coordinator first waits until the other nodes have been notified of how
        the job ended. A host that takes part in elections stays as long as other nodes need its
        vote.
        """
        if self._others_run:
            self._serve_others(stop_waiting)
        if self._coordinator is not None:
            self._wait_until_others_left(stop_waiting)
        if self._coordinator is not None:  # it may have stepped down while waiting
            self._coordinator.close()
        self._closed = True
        self._step(Left())
        self._disconnect()
        for heartbeats in self._heartbeats.values():
            heartbeats.close()
        self._finder.close()

    def _serve_others(self, stop_waiting: Callable[[], bool]) -> None:
        """Stay as long as finders on other nodes need this host's finder."""

        def is_needed() -> bool:
            coordinator = self._coordinator
            return self._finder.is_needed(
                connected=coordinator is not None and coordinator.others > 0
            )

        if is_needed():
            self._disconnect()
            if not stop_waiting():
                self.say(
                    "local workers have ended; staying up to vote in coordinator elections until "
                    "the other nodes finish"
                )
            self._loop.run_until(lambda: not is_needed() or stop_waiting())

    def _wait_until_others_left(self, stop_waiting: Callable[[], bool]) -> None:
        def is_over() -> bool:
            return self._group is not None and self._group.membership.end is not None

        if not is_over() and self._has_others() and not stop_waiting():
            self.say(
                "local workers have ended; staying up to coordinate until the other nodes finish"
            )
            self._loop.run_until(lambda: not self._has_others() or stop_waiting() or is_over())
        self._loop.run_until(
            lambda: not self._has_others() or stop_waiting(), self._meeting.close_s
        )

    def _has_others(self) -> bool:
        """Return whether this job's group has other nodes, whether connected or silent. Nodes in
        other jobs don't count, because they can find a new coordinator.
        """
        if self._group is None:
            return False
        members = self._group.membership.members
        return len(members) > (self.join.node in members)

    # Carrying out the effects of the state machine.

    def _step(self, event: Event) -> None:
        """Pass an event to the state machine and carry out its effects."""
        before = self.core.state
        effects = self.core.step(event, self._loop.now())
        after = self.core.state
        if after is not before:  # this comes first, because the rest may lead to the next step
            self.record(changed("link", before.value, after.value, event))
        for effect in effects:
            match effect:
                case Seek():
                    self._seeks = effect
                    if effect.beside and self._connection is not None:
                        self._dial_second(self._peer.dialled)  # the finder may have to wait too
                    self._finder.seek(may_host=not self.core.turned_away)
                case SendHeartbeat():
                    self._send_heartbeat(effect)
                case LetWorkersRun(until):
                    self._owner.set_lease(until)
                case Disconnect():
                    self._disconnect()
                case CoordinatorLost():
                    self._finder.coordinator_lost()
                case Say(text):
                    self.say(text)
                case GiveUp(exit_code, reason):
                    self._give_up(exit_code, reason)
        self._alarm.set(self.core.deadline())

    def _give_up(self, exit_code: int, reason: str) -> None:
        report: tuple[str, ...] = ()
        if exit_code == EXIT_GROUP:
            report = f"error: {reason}", *self._examine_endpoint()
        self._deliver(JobEnded(exit_code, reason, report, None))
        self._finder.retire()  # this node's workers may keep running without being reported

    def _examine_endpoint(self) -> list[str]:
        """Diagnose the endpoint from this machine, which takes at most 2 s."""
        if not self._meeting.hosts or self.core.turned_away:
            return []
        try:
            from relight.health.endpoint import at_timeout
        except Exception:  # the modules are gone, or belong to another version
            return []
        return at_timeout(self._meeting.host, self._meeting.port)

    def _deliver(self, message: FromCoordinator) -> None:
        """Pass a message to the agent. If the nodes never found each other, the message also names
        the command that finds out why.
        """
        if isinstance(message, JobEnded):
            self._end = message
            if not message.others_run:
                self._step(JobOver())
            if message.exit_code == EXIT_GROUP and message.root is None:  # not a worker's exit code
                report = message.report or (f"error: {message.reason}",)
                if not self.core.turned_away:
                    hint = f"hint: {self._meeting.doctor}"
                    report = *report, hint
                message = message._replace(report=report)
        self._owner.received(message)

    # Called by the finder.

    def listen(self, sock: socket.socket) -> None:
        """Accept other nodes on this socket."""
        from relight.agent.coordinator import Coordinator

        self._coordinator = Coordinator(
            self._loop, sock, self._meeting.security, self._finder, self._divert, self.say,
            is_held=system.SPAWNER_STAYS and self._owner.announce() is None,
        )  # fmt: skip
        self._coordinator.settings[self._meeting.job] = self._settings
        self._coordinator.on_group = self._owner.on_group

    def found(self, result: finders.SearchResult) -> None:
        """Connect to the coordinator or become it, depending on the finder's result."""
        if self._closed or self._end is not None:  # it may serve other nodes without joining them
            return
        if isinstance(result, finders.CoordinatorHere):
            self._host(result.until)
        elif self._connection is not None:
            under_way = None if self._second is None else self._second_peer.dialled
            if (
                self._seeks.beside
                and isinstance(result, finders.CoordinatorAt)
                and result.address != under_way
            ):
                self._dial_second(result.address)
        elif self.core.state is LinkState.SEEKING:
            match result:
                case finders.CoordinatorAt(address, timeout_s):
                    self._step(Dialing())
                    self._dial(address, timeout_s)
                case finders.NotFound(reason, again_s):
                    if self.core.turned_away:
                        reason += f"; the last one refused this node: {self.core.turned_away}"
                    self._step(NothingFound(reason, again_s))
                case finders.Misconfigured(error):
                    hint = [f"hint: {error.hint}"] if error.hint else []
                    report = f"error: {error.message}", *hint
                    self._owner.received(JobEnded(error.exit_code, error.message, report, None))

    def extended(self, until: float) -> None:
        """Record that this process remains the coordinator."""
        if self._group is not None:
            self._step(Hosting(until))
            present = self._group.membership.present()
            self._finder.set_enough_nodes(enough=present >= self._settings.min_nodes)
            self._update_predecessor(self._group)

    def step_down(self, reason: str, again_s: float) -> None:
        """Stop acting as the coordinator. If the job has ended, no decisions are left to make, and
        connected nodes still receive the result.
        """
        if self._group is not None and self._group.membership.end is not None:
            return
        coordinator, group, self._group = self._coordinator, self._group, None
        if group is not None and group.membership.live.id != NO_GENERATION:
            self._met_coordinator = True  # this process is one
        if coordinator is None or self._closed:
            return
        if self._finder.keeps_socket:
            coordinator.step_down()
        else:
            self._coordinator = None
            coordinator.close()
        if not self._others_run:
            self.say(f"this node no longer coordinates the group: {reason}")
            self._step(SteppedDown(again_s))

    def say(self, text: str) -> None:
        """Print a message to the user."""
        self._owner.say(text)

    def record(self, event: StateChanged) -> None:
        """Write a state change of the link or the finder to the event log."""
        self._owner.record(event)

    def report_refused(self, line: str) -> None:
        """Print which connection was refused, unless such a message was printed recently."""
        if self._coordinator is not None:
            self._coordinator.report_refused(line)

    # The coordinator in this process.

    def _host(self, until: float) -> None:
        coordinator = self._coordinator
        if coordinator is None or self._group is not None:
            return
        self._step(Hosting(until))
        self._group = coordinator.group(self._meeting.job, self._settings)
        coordinator.own_node = self.join.node
        self._group.recipients[self.join.node] = partial(coordinator.deliver, self._on_own_message)
        self._loop.call_after(_NOTE_AFTER_S, self._note_missing_nodes)
        if self._meeting.warning and not self._warned:
            self._warned = True
            self.say(f"note: {self._meeting.warning}")
        if until != FOR_EVER:
            self.say("this node coordinates the group now")
        self._predecessor = ""
        self._update_predecessor(self._group)
        # A coordinator can't lose the node that it runs on, so no stop time is sent.
        first = self._meeting.endpoint_first
        self._send_join(self.join._replace(stop_s=None, comes_first=first))

    def _update_predecessor(self, group: Group) -> None:
        """Let the group know if more or less is known about an earlier coordinator."""
        reason = self._finder.predecessor()
        if reason != self._predecessor:
            self._predecessor = reason
            group.step(PredecessorPossible(reason))

    def _note_missing_nodes(self) -> None:
        """If no other node has connected, say how to start one. If no other machine has connected
        to a loopback address, nodes there may be waiting in groups of their own.
        """
        group, coordinator = self._group, self._coordinator
        if group is None or coordinator is None or group.membership.lacks_nodes_since() is None:
            return
        seen, addresses = coordinator.seen_address, self._finder.loopback_addresses()
        if addresses and (not seen or is_loopback(seen)):
            self.say(group_messages.only_this_machine(self._meeting.where, addresses))
        if not seen:
            self.say(group_messages.start_other_nodes(self._settings.ordered))

    def _on_own_message(self, message: FromCoordinator) -> None:
        """Handle a message from the coordinator in this process."""
        self._step(self._heard(message))
        self._deliver(message)

    def _divert(self, client: socket.socket) -> None:
        """Accept a client of the workers' store that has connected to the endpoint's port."""
        if self._shared is None:
            client.close()
        else:
            self._shared.adopt(client)

    # Callbacks of the connection: `opened`, `received` and `closed`.

    def _dial(self, address: tuple[str, int], timeout_s: float) -> None:
        try:
            self._connection = self._connect(address, timeout_s)
        except OSError as error:
            reason = f"can't connect to {address[0]}:{address[1]}: {error.strerror}"
            self._step(Broken(reason))
            return
        self._peer = _Coordinator(address)

    def _connect(self, address: tuple[str, int], timeout_s: float) -> Connection:
        hello = fields.plain(Hello(job=self._meeting.job, settings=self._settings))
        return dial(self._loop, address, self, hello, self._meeting.security, timeout_s=timeout_s)

    def _dial_second(self, address: tuple[str, int]) -> None:
        """Open a second connection alongside the silent one. Retry every `_SYN_RETRY_S` until the
        machine responds, because TCP itself waits a second before it resends the first packet.
        """
        self._close_second()
        try:
            self._second = self._connect(address, REDIAL_LIMIT_S)
        except OSError:
            return  # the first connection may still recover
        self._second_peer = _Coordinator(address)
        self._dial_again.set(self._loop.now() + _SYN_RETRY_S)

    def _dial_unanswered(self) -> None:
        if self._second is not None and not self._second.is_answered:
            self._dial_second(self._second_peer.dialled)

    def _close_second(self) -> None:
        self._dial_again.set(None)
        if self._second is not None:
            self._second.close()
            self._second = None

    def opened(self, connection: Connection, hello: Message) -> None:
        """Join the group because the coordinator has responded."""
        if hello.get("sender") != "coordinator":
            connection.fail("a program other than a relight coordinator listens there")
            return
        if connection is self._second:
            connection.send(fields.to_json(Heartbeat(0)))  # only a coordinator echoes it
        else:
            self._enter(connection)

    def _enter(self, connection: Connection) -> None:
        """Join the group served by the coordinator that responded."""
        hello = connection.opening.peer_hello or {}
        self._peer.is_held = hello.get("held") is True
        self._connections += 1
        own = connection.own_address()
        self._send_join(
            self.join._replace(
                address=self._meeting.local_addr or own,
                udp_address=own,
                udp_port=self._heartbeats_to(self._peer).port if system.SPAWNER_STAYS else 0,
                connection=self._connections,
            )
        )
        self._step(Opened(connection.peer))

    def _on_second(self, second: Connection, heard: _Heard) -> None:
        """Replace the silent connection with the second one if a coordinator responds on the second
        one. A connection to the coordinator must not be closed for any other reason.
        """
        if isinstance(heard, Heartbeat):
            self._second = None
            self._disconnect()
            self._connection, self._peer = second, self._second_peer
            self._enter(second)
            return
        self._close_second()
        if isinstance(heard, Redirect):
            self._finder.redirected(heard.host)
            if heard.host >= 0:
                self._finder.seek(may_host=not self.core.turned_away)
            else:
                self._step(SecondFailed(Refusal.NOTHING))

    def _send_join(self, join: Join) -> None:
        announce = self._announce()
        self.send(join._replace(announce=announce, met_coordinator=self._met_coordinator))
        for message in self._owner.messages_after_join():
            self.send(message)

    def _announce(self) -> Announce | None:
        announce = self._owner.announce()
        if announce is None:
            return None
        lapsed = self.core.may_be_superseded(self._loop.now())
        return announce._replace(lapsed=lapsed, gone=self._gone)

    def received(self, connection: Connection, message: Message) -> None:
        """Handle a message from the coordinator."""
        heard = fields.message(_Heard, message)
        if connection is self._second:
            self._on_second(connection, heard)
            return
        if isinstance(heard, Redirect):
            reason = self._finder.redirected(heard.host)
            self._disconnect()
            self._step(Broken(reason, stepped_down=True))
            return
        if not self._peer.has_answered:
            self._peer.has_answered = self._met_coordinator = True
            self._finder.answered()
        if isinstance(heard, Heartbeat):
            self._step(Heard(confirms_lease=False))
            self._step(Echoed(heard.number, extra_s=heard.extra_s))
            if self._second is not None and not self._second.is_open:
                self._close_second()  # it is no longer needed
            return
        if isinstance(heard, Confirm | GenerationFormed):
            self._peer.rank = heard.coordinator
            if not (isinstance(heard, Confirm) and heard.recovers):
                self._forget_lost()
        if (
            isinstance(heard, GenerationFormed)
            and heard.place.local_world_size != self.join.local_world_size
        ):
            assigned = pluralize(heard.place.local_world_size, "worker")
            raise fields.Malformed(
                f"the coordinator assigned {assigned}; this node has {self.join.local_world_size}"
            )
        self._step(self._heard(heard))
        self._deliver(heard)

    def closed(self, connection: Connection, reason: str) -> None:
        """Handle a connection that was closed or could not be established."""
        working = self._owner.generation != NO_GENERATION
        if connection is self._second:
            self._close_second()
            _, refusal = self._finder.failed(refused=connection.refused, working=working)
            self._step(SecondFailed(refusal))
            return
        self._drop_connection()
        if self._closed:
            return
        better, refusal = self._finder.failed(refused=connection.refused, working=working)
        turned_away = connection.turned_away
        if turned_away and self._serves_other_jobs(connection):
            reason, turned_away = (
                "the coordinator there serves other jobs, with a different token",
                False,
            )
        self._step(Broken(better or reason, refusal, turned_away))

    def _heard(self, message: FromCoordinator) -> Heard:
        """Return the event for a message, which may allow the workers on this node to run,
        including workers that have yet to be started.
        """
        if isinstance(message, Confirm):
            return Heard(message.generation == self._owner.generation, message.recovers)
        return Heard(confirms_lease=isinstance(message, GenerationFormed))

    def _serves_other_jobs(self, connection: Connection) -> bool:
        """Return whether the coordinator that rejected this node serves other jobs but not this
        one.
        """
        jobs = (connection.opening.peer_hello or {}).get("jobs")
        return isinstance(jobs, list) and self._meeting.job not in jobs

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._drop_connection()

    def _drop_connection(self) -> None:
        self._connection = None
        self._close_second()
        if self._peer.is_proof:
            self._forget_lost()
            self._lost = self._peer
            self._heartbeats_to(self._lost).probe(self._lost.address)
        self._peer = _Coordinator()

    def _forget_lost(self) -> None:
        if self._lost.address:
            self._heartbeats_to(self._lost).probe(self._lost.address, on=False)
        self._lost, self._gone = _Coordinator(), ()

    def _send_heartbeat(self, effect: SendHeartbeat) -> None:
        connection = self._connection
        if connection is None:
            return
        if effect.over_connection:
            connection.send(fields.to_json(Heartbeat(effect.number)))
        if effect.as_datagram:
            datagram = Heartbeats.datagram(effect.number, connection.session_key)
            self._heartbeats_to(self._peer).send(datagram, self._peer.address)

    def _heartbeats_to(self, peer: "_Coordinator") -> Heartbeats:
        return self._heartbeats[socket.AF_INET6 if ":" in peer.address[0] else socket.AF_INET]

    def held(self) -> tuple[int, ...]:
        """Return the descriptors to share with processes that may outlive this agent while its
        workers are running (net/heartbeats).
        """
        fds = [each.fileno() for each in self._heartbeats.values()]
        if self._coordinator is not None:
            fds.append(self._coordinator.datagrams_fd)
        return tuple(fd for fd in fds if fd >= 0)

    def _on_datagram(self, data: bytes, sender: Address) -> None:
        del sender
        if self._connection is not None:
            number = Heartbeats.number_of(data, self._connection.session_key)
            if number is not None:
                self._peer.answers_datagrams = True
                self._step(Echoed(number, over_connection=False))

    def _on_unreachable(self, address: tuple[str, int]) -> None:
        """Record that no process holds the coordinator's port, and notify the successor."""
        if not self._lost.address or address != self._lost.address[:2]:
            return
        if not self._gone:
            self._gone = (self._lost.rank,)
            self.send(NodesGone(self._owner.generation, self._gone))


class _Coordinator:
    """Known facts about a coordinator: its address as dialled and that of its datagrams, its node's
    group rank or -1, whether it has sent a message, whether it has replied to a datagram, and
    whether the processes that outlive its agent share the socket.
    """

    def __init__(self, dialled: tuple[str, int] = ("", 0)) -> None:
        self.dialled = dialled
        self.address: Address = sock_address(*dialled)[1] if dialled[0] else ()
        self.rank = -1
        self.has_answered = self.answers_datagrams = self.is_held = False

    @property
    def is_proof(self) -> bool:
        """Whether the workers on the coordinator's node are known to have exited once its machine
        reports that no process is bound to the coordinator's address.
        """
        return self.rank >= 0 and self.answers_datagrams and self.is_held
