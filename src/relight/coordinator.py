"""Serves groups to the agents of other nodes: connections and heartbeats.

The agent that holds the endpoint has a `Coordinator`. It listens there, for all jobs that use the
endpoint, and tells each group what its nodes say and when one falls silent.

A node beats over its connection. Where packets are lost, TCP holds back what follows, so beats also
come as datagrams, to the same port; either counts. They carry a code that only the two ends of the
connection can make.
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
"""How often to look where there is no job, and so nobody to lose."""
_STALL_S = 0.5
"""An agent that was stopped, or a machine that was, must not take it for the silence of others."""


class Coordinator:
    """The groups of all jobs that meet at one endpoint.

    Args:
        loop: the agent's loop.
        sock: bound to the endpoint and listening.
        security: what agents must prove.
        divert: takes clients of torch's TCPStore that come to the endpoint's port.
        log: is told of peers that were turned away.
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
        """The address of this machine that other nodes use, once one has come."""
        self.holds: Callable[[], bool] = lambda: True
        """Whether this host is the coordinator now; an endpoint of several hosts elects one."""
        self.on_elector: Callable[[Connection, GroupSettings | None], None] = _close
        """Takes connections from the electors of other hosts of the endpoint."""
        self.whereabouts: Callable[[], int] = lambda: -1
        """Which host of the endpoint is the coordinator, if this one is not."""
        self.on_ballot: Callable[[bytes], None] = _ignore
        """Takes datagrams that are no heartbeats of an agent."""
        self.longest_patience_s = float("inf")
        """Leases of jobs with a longer one would outlast the hold of this process on a register."""
        self.on_job: Callable[[str, str], None] = _ignore
        """Is told of the first node of each job, and when the last has gone."""
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
        """Return the group of a job; it is made if this is its first node."""
        if job not in self.groups:
            self.on_job(job, "its first node has come")
            group = self.groups[job] = Group(self._loop, settings, self.holds)
            group.on_drop = lambda node: self._drop(group, node)
            self._listener.hello = self._hello()
        return self.groups[job]

    def say(self, text: str) -> None:
        """Tell the users of all agents."""
        for connection in self._peers:
            connection.send(fields.to_json(Note(text)))
            connection.drain()

    def resign(self) -> None:
        """Send all agents away and forget their groups; go on listening."""
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
        """Stop listening, and end all connections."""
        self._timer.cancel()
        self._listener.close()
        self._beats.close()
        self.resign()

    # From the listener.

    def opened(self, connection: Connection, hello: Message) -> None:
        """An agent of some job has come."""
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
        if len(self._unjoined) > self._listener.places // 2:  # without a token, strangers come here
            oldest = next(iter(self._unjoined))
            self._forget(oldest)
            oldest.close()
            self._log(f"{oldest.peer}: dropped for a newer one: too many join no job")

    def received(self, connection: Connection, message: Message) -> None:
        """An agent says something."""
        peer, told = self._peers[connection], fields.message(_HEARD, message)
        if isinstance(told, Beat):
            if self.holds():
                peer.is_new(told.number)
                connection.send(message)  # the echo is its lease
            return
        if isinstance(told, Join):
            if peer.node not in ("", told.node):
                raise Malformed("a second node")
            older = self._by_node.get((peer.group, told.node))
            if older is not None and older is not peer:
                self._forget(older.connection)  # it has come again before we saw it go
                older.connection.close()
            peer.node = told.node
            self._unjoined.pop(connection, None)
            self._by_node[peer.group, told.node] = peer
            peer.group.sinks[told.node] = self._sink(connection)
        if peer.node:
            peer.group.step(Told(peer.node, told))

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection to an agent is gone."""
        if connection in self._peers:
            patient_until = self._patient_until(self._peers[connection])
            if self._loop.now() < patient_until:
                # It gave us up while we stood still; it will be back.
                self._loop.call_at(patient_until, lambda: self._lose(connection, reason))
            else:
                self._lose(connection, reason)
        else:
            self._log(f"{connection.peer}: {reason}")

    def sink_of_own(self, deliver: Sink) -> Sink:
        """Return the sink of the agent that is in this process."""

        def sink(message: FromCoordinator) -> None:
            shown = self._with_address(message)
            self._loop.call_after(0, lambda: deliver(shown))

        return sink

    def _sink(self, connection: Connection) -> Sink:
        def sink(message: FromCoordinator) -> None:
            connection.send(fields.to_json(self._with_address(message)))

        return sink

    def _with_address(self, message: FromCoordinator) -> FromCoordinator:
        """Fill in the address of this host, which we learn only from others.

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
        """A standby, or a probe of a port, connects and says nothing: that is no news."""
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
        """The group gives a node up: without echoes the lease of its workers ends."""
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
        """A job that nobody is in any more begins anew if its nodes come back."""
        empty = [job for job, group in self.groups.items() if not group.sinks]
        used = {peer.group for peer in self._peers.values()} if empty else set()
        for job in empty:
            if self.groups[job] not in used:
                self.groups.pop(job).close()
                self.on_job(job, "its nodes have gone")
                self._listener.hello = self._hello()

    def _hello(self) -> Message:
        """Say which jobs are here: who has another token sees whether it is that of its own job."""
        hello: Message = {"sender": "coordinator"}
        if len(self.groups) > _JOBS_TOLD:  # a head node's agents would all have to read them
            return hello
        told: Message = {**hello, "jobs": list(self.groups)}
        return told if len(wire.body_of(told)) <= wire.MAX_HELLO // 2 else hello

    # Who is silent.

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
        """Whether a beat is no repetition of one that somebody has overheard."""
        is_new = number > self._beat
        self._beat = max(self._beat, number)
        return is_new
