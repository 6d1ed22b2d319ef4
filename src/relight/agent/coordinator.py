"""Hosts the groups that agents on other nodes join, and handles their connections and heartbeats.

The agent that holds the endpoint runs a `Coordinator`. The coordinator listens on that endpoint for
all jobs that use it, passes messages from nodes to their groups, and reports nodes that stop
responding.

A node sends heartbeats over its connection. When packets are lost, TCP delays everything after
them, so each heartbeat is also sent as a datagram to the same port. Whichever copy arrives first
counts. Each datagram carries an authentication code that only the two ends of the connection can
compute.

A closed connection doesn't prove that the node is lost. The node may reconnect, and its group waits
for it (core/group/silence). While the group is waiting, the coordinator probes the node's heartbeat
port. Once the node's machine reports that no process holds that port, the agent and all its workers
must have exited (net/heartbeats).
"""

import socket
from collections.abc import Callable, Iterator
from functools import partial

from relight.agent.group import Group, Recipient
from relight.base import fields
from relight.base.errors import EXIT_USAGE
from relight.base.fields import Malformed, Message
from relight.core.group import group_messages
from relight.core.group.group_types import (
    GroupSettings,
    Hello,
    NodeHeard,
    NodeLost,
    NodeSilent,
    Received,
    Slept,
)
from relight.core.group.messages import (
    Confirm,
    FromAgent,
    FromCoordinator,
    GenerationFormed,
    Heartbeat,
    JobEnded,
    Join,
    Note,
    Redirect,
    StartProbes,
)
from relight.core.link import heartbeat_rate, wire
from relight.flags.spec import LOCAL_HOSTS
from relight.host.descriptors import raise_limit
from relight.host.loop import Loop
from relight.net.connection import Connection, Security
from relight.net.handshake import SAID_NOTHING
from relight.net.heartbeats import Address, Heartbeats, numeric
from relight.net.listener import Listener
from relight.net.ports import is_loopback
from relight.rendezvous.discovery import Finder

_MAX_JOBS_NAMED = 16
_SAY_EVERY_S = 10.0
"""Minimum time between two messages about refused connections."""
_NOTE_AFTER_S = 5.0
"""How long several jobs wait for nodes before their nodes are notified about the other jobs."""
_CHECK_S = 0.25
"""How often to check for nodes that have stopped responding."""
_SILENT_AFTER_S = 1.3
"""When a node counts as silent. A node sends heartbeats at most 0.5 s apart, or less often in large
groups (core/link/heartbeat_rate).
"""
_STALL_S = 0.5
"""A longer delay means that this process was suspended, not that other nodes were silent."""
_NOBODY_LEFT = "its host reports that all of its agent's processes have exited"


class Coordinator:
    """The groups of all jobs that share an endpoint.

    Args:
        loop: the agent's loop.
        sock: the listening socket, bound to the endpoint.
        security: the credentials that agents must prove.
        finder: reports whether this process is currently the coordinator, and elects the
            coordinator if the endpoint has several hosts.
        divert: called with each client of torch's TCPStore that connects to the endpoint's port.
        say: prints a line about a refused connection to the user.
        is_held: whether processes that outlive this one will inherit the datagram socket.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        security: Security,
        finder: Finder,
        divert: Callable[[socket.socket], None],
        say: Callable[[str], None],
        *,
        is_held: bool = False,
    ) -> None:
        self.groups: dict[str, Group] = {}
        self.own_node = ""
        """The name of the node in this process, or empty."""
        self.seen_address = ""
        """The address at which other nodes reach this machine, or empty until one has connected."""
        self.settings: dict[str, GroupSettings] = {}
        """The settings of the agent in this process, by job. Nodes with different settings are
        refused, even if they connect first.
        """
        self.on_group: Callable[[str, Group], None] = lambda *_: None
        """Called with a job and its group, before the group's first step."""
        self.on_job: Callable[[str, str], None] = lambda *_: None
        """Called when the first node of a job arrives, and when its last node has left."""
        raise_limit()
        self._loop = loop
        self._finder = finder
        self._say = say
        self._quiet_until = 0.0
        self._peers = _Peers()
        self._heartbeats = Heartbeats(loop, sock.getsockname()[:2], sock.family, self._on_datagram)
        self._heartbeats.on_unreachable = self._on_unreachable
        self._is_held = is_held and self.datagrams_fd >= 0
        self._listener = Listener(loop, sock, self, self._hello(), security, divert=divert)
        self._listener.on_refused = self._on_refused
        self._noted: set[Group] = set()
        self._check_due = loop.now()
        self._timer = loop.call_at(self._check_due, self._check_silence)

    @property
    def datagrams_fd(self) -> int:
        """The datagram socket's descriptor, or -1."""
        return self._heartbeats.fileno()

    @property
    def others(self) -> int:
        """The number of connected agents on other nodes."""
        return len(self._peers)

    def group(self, job: str, settings: GroupSettings) -> Group:
        """Return a job's group. Create the group if this is the job's first node."""
        if job not in self.groups:
            self.on_job(job, "its first node has connected")
            settings = self.settings.get(job, settings)
            group = self.groups[job] = Group(self._loop, settings, self.coordinates)
            group.on_drop = lambda node: self._drop(group, node)
            self.on_group(job, group)
            self._listener.hello = self._hello()
        return self.groups[job]

    def coordinates(self) -> bool:
        """Return whether this process is currently the coordinator. The group checks this before it
        makes a decision.
        """
        self._notice_sleep()
        return self._finder.coordinates(self._has_lost_nodes)

    def broadcast_text(self, text: str) -> None:
        """Print a message on all agents."""
        for peer in self._peers:
            peer.connection.send(fields.to_json(Note(text)))
            peer.connection.drain()

    def report_refused(self, line: str) -> None:
        """Print which connection was refused, unless such a message was printed recently."""
        now = self._loop.now()
        if now >= self._quiet_until:
            self._quiet_until = now + _SAY_EVERY_S
            self._say(f"refused a connection from {line}")

    def step_down(self) -> None:
        """Disconnect the nodes of all running jobs and forget their groups, but keep listening.
        Jobs that have ended need no further decisions, so their nodes stay connected and still
        receive the result.
        """
        self._disconnect(
            {job: group for job, group in self.groups.items() if group.membership.end is None}
        )

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._timer.cancel()
        self._listener.close()
        self._heartbeats.close()
        self._disconnect(dict(self.groups))

    # Called by the listener.

    def opened(self, connection: Connection, hello: Message) -> None:
        """Accept the connection from a new agent of any job."""
        sender, job, settings, _ = fields.record(Hello, hello)
        if sender == "elector":
            self._finder.take_connection(connection, settings)
            return
        if not self.coordinates():
            self._redirect(connection)
            return
        if sender or settings is None:
            self._refuse(connection, "it is not a relight agent")
            return
        least, most = settings.min_nodes, settings.max_nodes
        if least > most or {least, most} != {settings.whole(least), settings.whole(most)}:
            self._refuse(connection, "its --nnodes is not valid")
            return
        group = self.group(job, settings)
        refusal = group_messages.other_lost_after(settings.lost_after_s, group.membership.settings)
        if refusal:
            self._refuse(connection, refusal)
            return
        own = connection.own_address()
        if own and (not self.seen_address or is_loopback(self.seen_address)):
            self.seen_address = own
        self._peers.add(_Peer(connection, group))
        # Peers without a token can get this far.
        if len(self._peers.unjoined) > self._listener.most_strangers // 2:
            oldest = next(iter(self._peers.unjoined))
            self._peers.remove(oldest)
            oldest.connection.close()
            self.report_refused(
                f"{oldest.connection.peer}: dropped: too many connections have not joined a job"
            )

    def received(self, connection: Connection, message: Message) -> None:
        """Handle a message from an agent."""
        peer = self._peers.by_connection[connection]
        if message["type"] == "heartbeat":
            number = fields.record(Heartbeat, message).number
            if self.coordinates():
                peer.is_new(number)
                self._hear(peer)
                peer.extra_s = self._extra_s(peer.group)
                # The echo renews the agent's lease.
                connection.send({**message, "extra_s": peer.extra_s} if peer.extra_s else message)
            return
        heard = fields.message(FromAgent, message)
        if isinstance(heard, Join):
            if peer.node not in ("", heard.node):
                raise Malformed("a second node")
            # Unless the job has ended, the group would defer the message.
            if peer.group.membership.end is None and not self.coordinates():
                if connection in self._peers.by_connection:
                    self.closed(connection, "this process isn't the coordinator")
                self._redirect(connection)
                return
            # Earlier events come first, while `recipients` still has the previous connection. If
            # one of them formed a generation and the agent received it over the new connection, it
            # would start workers of which its Join and NodeReady, already sent, say nothing.
            peer.group.handle_deferred()
            latest = self._peers.by_node.get((peer.group, heard.node))
            if latest is not None and heard.connection < latest.number:
                self._remove(peer)  # the message was delayed by a network outage
                connection.close()
                return
            peer.number = heard.connection
            if latest is not None and latest is not peer:
                self._remove(latest)  # the agent has reconnected
                latest.connection.close()
            self._peers.join(peer, heard.node)
            peer.claimed = heard.udp_address, heard.udp_port
            peer.group.recipients[heard.node] = partial(self._send, peer)
        if peer.node:
            self._hear(peer)
            peer.group.step(Received(peer.node, heard))

    def closed(self, connection: Connection, reason: str) -> None:
        """Handle the loss of an agent's connection."""
        self._notice_sleep()
        peer = self._peers.by_connection.get(connection)
        if peer is None:
            self.report_refused(f"{connection.peer}: {reason}")
            return
        self._peers.disconnect(peer)
        peer.group.recipients.pop(peer.node, None)
        # Its Join may have been deferred.
        if peer.node in peer.group.membership.members or peer.group.defers(peer.node):
            self._fall_silent(peer, reason)
        else:  # it has left
            self._remove(peer)

    def deliver(self, agent: Recipient, message: FromCoordinator) -> None:
        """Pass a message to the agent in this process, in the next iteration of the loop."""
        self._loop.call_after(0, partial(agent, self._with_address(message)))

    def _send(self, peer: "_Peer", message: FromCoordinator) -> None:
        if isinstance(message, GenerationFormed | Confirm):
            ranks = peer.group.membership.live.roster.group_ranks
            message = message._replace(coordinator=ranks.get(self.own_node, -1))
        peer.connection.send(fields.to_json(self._with_address(message)))

    def _with_address(self, message: FromCoordinator) -> FromCoordinator:
        """Replace any loopback address in a message with the address at which other nodes have
        reached this host.

        A node that connects over loopback is on this host.
        """
        if isinstance(message, StartProbes):
            nodes = tuple(n._replace(address=self._reached_at(n.address)) for n in message.nodes)
            return message._replace(nodes=nodes)
        if not isinstance(message, GenerationFormed):
            return message
        generation = message.generation
        address = self._reached_at(generation.master_addr)
        return message._replace(generation=generation._replace(master_addr=address))

    def _reached_at(self, address: str) -> str:
        """Return the address at which other nodes can reach the node that reported `address` as its
        own.
        """
        if address not in LOCAL_HOSTS and not is_loopback(address):
            return address
        return self.seen_address or address or "127.0.0.1"

    def _redirect(self, connection: Connection) -> None:
        connection.send(fields.to_json(Redirect(self._finder.coordinator_index())))
        connection.close()

    def _refuse(self, connection: Connection, reason: str) -> None:
        end = JobEnded(EXIT_USAGE, f"the coordinator refuses this node: {reason}", (), None)
        connection.send(fields.to_json(end))
        connection.close()
        self.report_refused(f"{connection.peer}: {reason}")

    def _on_refused(self, line: str) -> None:
        """Print which peer was refused, unless the peer sent nothing. Port probes and the standby
        process of `relight coordinator` connect without sending data.
        """
        if not line.endswith(SAID_NOTHING):
            self.report_refused(line)

    def _disconnect(self, groups: dict[str, Group]) -> None:
        closing = set(groups.values())
        for peer in [*self._peers.unjoined, *self._peers.by_node.values()]:
            if peer.group in closing:
                self._remove(peer)
                peer.connection.close()
        for job, group in groups.items():
            group.close()
            del self.groups[job]
        self._listener.hello = self._hello()

    def _drop(self, group: Group, node: str) -> None:
        """Disconnect a node that the group has dropped. The node no longer receives echoes, so its
        workers' lease expires.
        """
        group.recipients.pop(node, None)
        peer = self._peers.by_node.get((group, node))
        if peer is not None:
            self._remove(peer)
            peer.connection.close()

    def _remove(self, peer: "_Peer") -> None:
        self._peers.remove(peer)
        self._probe(peer, on=False)

    def _has_lost_nodes(self) -> bool:
        now = self._loop.now()
        memberships = [group.membership for group in self.groups.values()]
        return any(each.lost(now) for each in memberships if each.end is None)

    def _forget_empty_groups(self) -> None:
        """Forget jobs without any remaining nodes. If any of the nodes returns, its job starts over
        at generation 0.
        """
        empty = [
            job for job, group in self.groups.items()
            if not group.recipients and not len(group.membership.members)
        ]  # fmt: skip
        used = {peer.group for peer in self._peers} if empty else set()
        for job in empty:
            if self.groups[job] not in used:
                self.groups.pop(job).close()
                self.on_job(job, "its last node has disconnected")
                self._listener.hello = self._hello()

    def _hello(self) -> Message:
        """Return the hello message. The message lists the jobs served here. From this list, an
        agent whose token is refused can tell whether its own job's coordinator refused it.
        """
        hello: Message = {"sender": "coordinator", "relays": True, "held": self._is_held}
        if len(self.groups) > _MAX_JOBS_NAMED:  # every agent would have to read the whole list
            return hello
        longer: Message = {**hello, "jobs": list(self.groups)}
        return longer if len(wire.encode_body(longer)) <= wire.MAX_HELLO // 2 else hello

    # Heartbeats and silence.

    def _on_datagram(self, data: bytes, sender: Address) -> None:
        peer = self._peers.find_sender(data)
        if peer is None:
            self._finder.take_ballot(data)
            return
        number = self._heartbeats.number_of(data, peer.connection.session_key)
        if number is not None and self.coordinates() and peer.is_new(number):
            peer.connection.heard_at = self._loop.now()
            if numeric(sender) == peer.claimed:  # no gateway in between
                peer.address = sender
            self._hear(peer)
            self._heartbeats.send(data, sender)

    def _extra_s(self, group: Group) -> float:
        if not self._finder.slows_heartbeats:
            return 0.0
        return heartbeat_rate.extra_s(len(self._peers), group.membership.settings.lost_after_s)

    def _notice_sleep(self) -> None:
        """Detect whether this process was suspended. If the check for silent nodes is overdue, run
        it now. Nodes that seem silent may be healthy, and the first events after a suspension are
        other nodes' reactions to the suspension.
        """
        if self._slept():
            self._check_silence()

    def _slept(self) -> bool:
        return self._loop.now() > self._check_due + _STALL_S

    def _check_silence(self) -> None:
        now, slept = self._loop.now(), self._slept()
        self._check_due = now + _CHECK_S
        self._timer.cancel()
        self._timer = self._loop.call_at(self._check_due, self._check_silence)
        self._forget_empty_groups()
        self._note_waiting_jobs(now)
        if slept:
            for group in list(self.groups.values()):
                group.step(Slept())
        for peer in [*self._peers]:
            is_here = peer.node and peer.connection in self._peers.by_connection  # still connected
            silent_s = now - peer.connection.heard_at
            if is_here and not peer.is_silent and silent_s > _SILENT_AFTER_S + peer.extra_s:
                self._fall_silent(peer, "")

    def _fall_silent(self, peer: "_Peer", reason: str) -> None:
        if not peer.is_silent:
            self._probe(peer)
        peer.is_silent = True
        peer.group.step(NodeSilent(peer.node, peer.connection.heard_at, reason))
        self.coordinates()  # without that node, this process may have to step down immediately

    def _hear(self, peer: "_Peer") -> None:
        if peer.is_silent:
            peer.is_silent = False
            self._probe(peer, on=False)
            peer.group.step(NodeHeard(peer.node))

    def _probe(self, peer: "_Peer", *, on: bool = True) -> None:
        """Probe a silent node's machine for remaining processes that belong to the node's agent."""
        if peer.address:
            self._heartbeats.probe(peer.address, on=on)

    def _on_unreachable(self, address: tuple[str, int]) -> None:
        for peer in [*self._peers.by_node.values()]:
            if peer.is_silent and peer.address[:2] == address:
                self._drop(peer.group, peer.node)
                peer.group.step(NodeLost(peer.node, _NOBODY_LEFT))
                return

    def _note_waiting_jobs(self, now: float) -> None:
        """If several jobs are waiting for nodes, notify each job's nodes of the other jobs, once.
        These may actually be a single job whose nodes were started with different ids.
        """
        lacking: dict[str, Group] = {}
        for job, group in self.groups.items():
            since = group.membership.lacks_nodes_since()
            if since is not None and now >= since + _NOTE_AFTER_S:
                lacking[job] = group
        self._noted.intersection_update(self.groups.values())
        if len(lacking) < 2 or self._noted.issuperset(lacking.values()):
            return
        waits = {}
        for job, group in lacking.items():
            hosts = [member.join.host for member in group.membership.members]
            waits[job] = hosts, group.membership.settings.needed
        note = Note(group_messages.several_jobs(waits))
        for group in set(lacking.values()) - self._noted:
            for send in group.recipients.values():
                send(note)
        self._noted.update(lacking.values())


class _Peer:
    """An agent on another node."""

    def __init__(self, connection: Connection, group: Group) -> None:
        self.connection = connection
        self.group = group
        self.number = 0
        """The number of the peer's connection."""
        self.is_silent = False
        self.extra_s = 0.0
        """How much longer than usual the agent waits between two heartbeats, as sent in the last
        echo.
        """
        self.claimed = "", 0
        """The source address that the agent claims for its heartbeat datagrams."""
        self.address: Address = ()
        """The address in `claimed`, once it has been verified."""
        self.key = b""
        """The prefix of the agent's datagrams, or empty until a datagram has arrived."""
        self.node = ""
        self._latest_heartbeat = -1

    def is_new(self, number: int) -> bool:
        """Return whether a heartbeat is new, as opposed to one that an eavesdropper replayed."""
        is_new = number > self._latest_heartbeat
        self._latest_heartbeat = max(self._latest_heartbeat, number)
        return is_new


class _Peers:
    """The agents on other nodes. Iteration yields those that are connected. Each node has one
    connection.

    Attributes:
        unjoined: peers that have not joined their group yet, oldest first.
        by_node: peers that have joined, by group and node. Some of them have lost their connection,
            and their groups are waiting for them.
    """

    def __init__(self) -> None:
        self.unjoined: dict[_Peer, None] = {}
        self.by_connection: dict[Connection, _Peer] = {}
        self.by_node: dict[tuple[Group, str], _Peer] = {}
        self._by_key: dict[bytes, _Peer] = {}
        """Agents by the prefix of their datagrams."""
        self._without_key: dict[_Peer, None] = {}
        """Agents that aren't in `_by_key` yet because none of their datagrams has arrived."""

    def __len__(self) -> int:
        return len(self.by_connection)

    def __iter__(self) -> Iterator[_Peer]:
        return iter(self.by_connection.values())

    def add(self, peer: _Peer) -> None:
        """Add an agent that has not joined yet."""
        self.by_connection[peer.connection] = peer
        self.unjoined[peer] = self._without_key[peer] = None

    def join(self, peer: _Peer, node: str) -> None:
        """Record that an agent has joined its group as a node."""
        peer.node = node
        self.unjoined.pop(peer, None)
        self.by_node[peer.group, node] = peer

    def disconnect(self, peer: _Peer) -> None:
        """Record that an agent has lost its connection."""
        self.by_connection.pop(peer.connection, None)
        self.unjoined.pop(peer, None)
        self._without_key.pop(peer, None)
        self._by_key.pop(peer.key, None)

    def remove(self, peer: _Peer) -> None:
        """Remove an agent."""
        self.disconnect(peer)
        if self.by_node.get((peer.group, peer.node)) is peer:
            del self.by_node[peer.group, peer.node]

    def find_sender(self, data: bytes) -> _Peer | None:
        """Return the agent that sent a datagram, identified by its prefix."""
        for peer in list(self._without_key):
            peer.key = Heartbeats.prefix_key(peer.connection.session_key)
            self._by_key[peer.key] = peer
            del self._without_key[peer]
        return self._by_key.get(data[:8])
