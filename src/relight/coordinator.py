"""Serves groups to the agents of other nodes: connections and heartbeats.

The agent that holds the endpoint runs a `Coordinator`. It listens there, for all jobs that use the
endpoint, passes the messages of nodes to their groups, and reports nodes that fall silent.

A node sends heartbeats over its connection. Where packets are lost, TCP delays all that follows, so
heartbeats also come as datagrams to the same port; either counts. Datagrams carry a code that only
the two ends of the connection can compute.
"""

import socket
from collections.abc import Callable

from relight.core import fields, waiting, wire
from relight.core.fields import Malformed, Message
from relight.core.group_types import GroupSettings, Hello, NodeLost, Told
from relight.core.messages import (
    Beat,
    Form,
    FromAgent,
    FromCoordinator,
    JobEnded,
    Join,
    Note,
    Redirect,
)
from relight.errors import EXIT_USAGE
from relight.group import Group, Sink
from relight.host.connection import Connection, Security
from relight.host.descriptors import raise_limit
from relight.host.heartbeats import Address, Heartbeats
from relight.host.listener import Listener
from relight.host.loop import Loop
from relight.host.ports import is_loopback

_HEARD = FromAgent | Beat
_JOBS_TOLD = 16
_IDLE_LOOK_S = 0.5
"""How often to check for silent nodes while there is no job, and so no node to lose."""
_STALL_S = 0.5
"""A longer delay means that this process was suspended, not that other nodes were silent."""


class Coordinator:
    """The groups of all jobs that meet at one endpoint.

    Args:
        loop: the agent's loop.
        sock: bound to the endpoint and listening.
        security: what agents must prove.
        divert: called with clients of torch's TCPStore that connect to the endpoint's port.
        log: called with a line for each peer that was turned away.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        security: Security,
        divert: Callable[[socket.socket], None],
        log: Callable[[str], None],
    ) -> None:
        self.groups: dict[str, Group] = {}
        self.seen_address = ""
        """The address at which other nodes reach this machine; empty until one has connected."""
        self.holds: Callable[[], bool] = lambda: True
        """Whether this host is the coordinator now; an endpoint with several hosts elects one."""
        self.on_elector: Callable[[Connection, GroupSettings | None], None] = _close
        """Called with connections from the electors of the endpoint's other hosts."""
        self.whereabouts: Callable[[], int] = lambda: -1
        """Returns which host of the endpoint is the coordinator, if this one is not."""
        self.on_ballot: Callable[[bytes], None] = _ignore
        """Called with datagrams that are not an agent's heartbeats."""
        self.longest_patience_s = float("inf")
        """Longest `lost_after_s` accepted: longer leases would outlast this process's hold on a
        register.
        """
        self.on_job: Callable[[str, str], None] = _ignore
        """Called when the first node of a job arrives, and when its last node has gone."""
        raise_limit()
        self._loop = loop
        self._peers: dict[Connection, _Peer] = {}
        self._unjoined: dict[Connection, None] = {}
        self._beats = Heartbeats(loop, sock.getsockname()[:2], sock.family, self._on_datagram)
        self._by_key: dict[bytes, Connection] = {}
        self._by_node: dict[tuple[Group, str], _Peer] = {}
        self._listener = Listener(loop, sock, self, self._hello(), security, divert=divert)
        self._listener.on_refused = self._on_refused
        self._log = log
        self._stalled_at = float("-inf")
        self._looked_at = loop.now()
        self._timer = loop.call_after(0, self._look)

    @property
    def others(self) -> int:
        """How many agents of other nodes are connected."""
        return len(self._peers)

    def group(self, job: str, settings: GroupSettings) -> Group:
        """Return the group of a job; create it for the job's first node."""
        if job not in self.groups:
            self.on_job(job, "its first node has come")
            group = self.groups[job] = Group(self._loop, settings, self.holds)
            group.on_drop = lambda node: self._drop(group, node)
            self._listener.hello = self._hello()
        return self.groups[job]

    def say(self, text: str) -> None:
        """Print a message to the users of all agents."""
        for connection in self._peers:
            connection.send(fields.to_json(Note(text)))
            connection.drain()

    def resign(self) -> None:
        """Disconnect all agents and forget their groups; go on listening."""
        for connection in list(self._peers):
            connection.close()
        self._peers.clear()
        self._unjoined.clear()
        self._by_key.clear()
        self._by_node.clear()
        for group in self.groups.values():
            group.close()
        self.groups.clear()
        self._listener.hello = self._hello()

    def close(self) -> None:
        """Stop listening, and close all connections."""
        self._timer.cancel()
        self._listener.close()
        self._beats.close()
        self.resign()

    # Called by the listener.

    def opened(self, connection: Connection, hello: Message) -> None:
        """Take the connection of a new agent, of any job."""
        sender, job, settings, _ = fields.record(Hello, hello)
        if sender == "elector":
            self.on_elector(connection, settings)
            return
        if not self.holds():
            connection.send(fields.to_json(Redirect(self.whereabouts())))
            connection.close()
            return
        if sender or settings is None or settings.least > settings.most:
            self._turn_away(connection, "it asks for no number of nodes that can be")
            return
        if settings.lost_after_s > self.longest_patience_s:
            asked_s, ours_s = settings.lost_after_s, self.longest_patience_s
            self._turn_away(connection, waiting.too_patient(asked_s, ours_s))
            return
        group = self.group(job, settings)
        refusal = waiting.other_patience(settings.lost_after_s, group.membership.settings)
        if refusal:
            self._turn_away(connection, refusal)
            return
        own = connection.own_address()
        if own and (not self.seen_address or is_loopback(self.seen_address)):
            self.seen_address = own
        self._peers[connection] = _Peer(connection, group)
        self._by_key[self._beats.key_of(connection.session_key)] = connection
        self._unjoined[connection] = None
        if len(self._unjoined) > self._listener.places // 2:  # anyone gets here without a token
            oldest = next(iter(self._unjoined))
            self._forget(oldest)
            oldest.close()
            self._log(f"{oldest.peer}: dropped for a newer one: too many join no job")

    def received(self, connection: Connection, message: Message) -> None:
        """Handle a message of an agent."""
        peer, told = self._peers[connection], fields.message(_HEARD, message)
        if isinstance(told, Beat):
            if self.holds():
                peer.is_new(told.number)
                connection.send(message)  # the echo renews the agent's lease
            return
        if isinstance(told, Join):
            if peer.node not in ("", told.node):
                raise Malformed("a second node")
            older = self._by_node.get((peer.group, told.node))
            if older is not None and older is not peer:
                self._forget(older.connection)  # the agent has reconnected
                older.connection.close()
            peer.node = told.node
            self._unjoined.pop(connection, None)
            self._by_node[peer.group, told.node] = peer
            peer.group.sinks[told.node] = self._sink(connection)
        if peer.node:
            peer.group.step(Told(peer.node, told))

    def closed(self, connection: Connection, reason: str) -> None:
        """Handle the end of an agent's connection."""
        if connection in self._peers:
            patient_until = self._patient_until(self._peers[connection])
            if self._loop.now() < patient_until:
                # The agent gave us up while we were suspended; it will reconnect.
                self._loop.call_at(patient_until, lambda: self._lose(connection, reason))
            else:
                self._lose(connection, reason)
        else:
            self._log(f"{connection.peer}: {reason}")

    def sink_of_own(self, deliver: Sink) -> Sink:
        """Return the sink of the agent in this process."""

        def sink(message: FromCoordinator) -> None:
            shown = self._with_address(message)
            self._loop.call_after(0, lambda: deliver(shown))

        return sink

    def _sink(self, connection: Connection) -> Sink:
        def sink(message: FromCoordinator) -> None:
            connection.send(fields.to_json(self._with_address(message)))

        return sink

    def _with_address(self, message: FromCoordinator) -> FromCoordinator:
        """Fill in this host's address, which only other nodes can tell.

        An agent that reached us over loopback is on this host, too.
        """
        if not isinstance(message, Form):
            return message
        generation = message.generation
        if generation.master_addr and not is_loopback(generation.master_addr):
            return message
        address = self.seen_address or generation.master_addr or "127.0.0.1"
        return message._replace(generation=generation._replace(master_addr=address))

    def _turn_away(self, connection: Connection, reason: str) -> None:
        end = JobEnded(EXIT_USAGE, f"the coordinator does not take this node: {reason}", (), None)
        connection.send(fields.to_json(end))
        connection.close()
        self._log(f"{connection.peer}: {reason}")

    def _on_refused(self, line: str) -> None:
        """Log a refused peer, but not one that says nothing: standbys and port probes do that."""
        if not line.endswith("without a word"):
            self._log(line)

    def _lose(self, connection: Connection, reason: str) -> None:
        peer = self._peers.get(connection)
        if peer is None:
            return
        self._forget(connection)
        if peer.node:
            peer.group.sinks.pop(peer.node, None)
            peer.group.step(NodeLost(peer.node, reason))

    def _drop(self, group: Group, node: str) -> None:
        """Disconnect a node that the group gave up: without echoes, its workers' lease expires."""
        group.sinks.pop(node, None)
        peer = self._by_node.get((group, node))
        if peer is not None:
            self._forget(peer.connection)
            peer.connection.close()

    def _forget(self, connection: Connection) -> None:
        peer = self._peers.pop(connection)
        self._unjoined.pop(connection, None)
        if self._by_node.get((peer.group, peer.node)) is peer:
            del self._by_node[peer.group, peer.node]
        self._by_key.pop(self._beats.key_of(connection.session_key), None)

    def _forget_empty_groups(self) -> None:
        """Forget jobs without nodes: if nodes come back, the job starts again from generation 0."""
        empty = [job for job, group in self.groups.items() if not group.sinks]
        used = {peer.group for peer in self._peers.values()} if empty else set()
        for job in empty:
            if self.groups[job] not in used:
                self.groups.pop(job).close()
                self.on_job(job, "its nodes have gone")
                self._listener.hello = self._hello()

    def _hello(self) -> Message:
        """Return the hello with the jobs served here, so that an agent with another token sees
        whether it has reached its own job.
        """
        hello: Message = {"sender": "coordinator"}
        if len(self.groups) > _JOBS_TOLD:  # on a head node each agent would have to read them all
            return hello
        told: Message = {**hello, "jobs": list(self.groups)}
        return told if len(wire.body_of(told)) <= wire.MAX_HELLO // 2 else hello

    # Heartbeats and silence.

    def _on_datagram(self, data: bytes, sender: Address) -> None:
        connection = self._by_key.get(data[:8])
        if connection is None:
            self.on_ballot(data)
            return
        number = self._beats.number_of(data, connection.session_key)
        if number is not None and self.holds() and self._peers[connection].is_new(number):
            connection.heard_at = self._loop.now()
            self._beats.send(data, sender)

    def _look(self) -> None:
        now = self._loop.now()
        patiences = [group.membership.settings.lost_after_s for group in self.groups.values()]
        interval = min(patiences) / 8 if patiences else _IDLE_LOOK_S
        if now - self._looked_at > interval + _STALL_S:
            self._stalled_at = now
        self._looked_at = now
        self._timer = self._loop.call_after(interval, self._look)
        self._forget_empty_groups()
        for connection, peer in list(self._peers.items()):
            silent_s = now - connection.heard_at
            if silent_s > peer.patience_s and now >= self._patient_until(peer):
                connection.close()
                self._lose(connection, f"no word for {silent_s:.1f} s")

    def _patient_until(self, peer: "_Peer") -> float:
        return self._stalled_at + 2 * peer.patience_s


def _close(connection: Connection, settings: GroupSettings | None) -> None:
    del settings
    connection.close()


def _ignore(*what: object) -> None:
    del what


class _Peer:
    """An agent of another node."""

    def __init__(self, connection: Connection, group: Group) -> None:
        self.connection = connection
        self.group = group
        self.patience_s = group.membership.settings.lost_after_s
        self.node = ""
        self._beat = -1

    def is_new(self, number: int) -> bool:
        """Return whether a heartbeat is new, and not one that an eavesdropper has repeated."""
        is_new = number > self._beat
        self._beat = max(self._beat, number)
        return is_new
