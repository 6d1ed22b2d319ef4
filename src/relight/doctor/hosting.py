"""Implements the meeting's host, which admits the other nodes, starts the probes and sends out the
findings.

The message types are defined in health/doctor_messages.py.
"""

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from relight.base import fields
from relight.base.fields import Malformed, Message
from relight.base.values import Nodes
from relight.core.group.group_types import Hello
from relight.core.group.messages import StartProbes, Target
from relight.doctor import network
from relight.health.doctor_messages import (
    Clock,
    DoctorNode,
    FromNode,
    NodeRefused,
    NodesPresent,
    Probe,
    ProbeReport,
    Verdict,
)
from relight.health.finding import ERROR, WARNING, Finding
from relight.health.probes import Prober, mtu_to, new_cookie
from relight.host.loop import Loop, Timer
from relight.net.connection import Connection
from relight.net.dns import is_numeric
from relight.net.listener import Listener
from relight.net.ports import is_loopback
from relight.rendezvous.config import Meeting

REPORT_S = 3.5
"""All reports must have arrived this many seconds after the start of the probes."""

_SEGMENT = 536
"""A packet size in bytes that every network can carry. The doctor's own messages must get through
even on networks that drop larger packets.
"""
_MAX_REFUSED = 4
_DRAIN_S = 1.0


class GatherSettings(NamedTuple):
    """The settings for the meeting.

    The `nodes` field is the number of nodes. The `wait_s` field is how long to wait for more nodes
    after the last one has joined. The `facts` field contains the values that should be equal on all
    nodes.
    """

    meeting: Meeting
    nodes: Nodes
    wait_s: float
    facts: dict[str, str]


@dataclass(eq=False)
class _Attendee:
    """A node that has joined the meeting. The first such node is the host itself.

    Attributes:
        node: the description of the node.
        connection: the connection to the node. None for the host itself, or once the connection has
            closed.
        reported: whether the node has reported its probes.
    """

    node: DoctorNode
    connection: Connection | None
    reported: bool = False


class MeetingHost:
    """The host of the meeting.

    Args:
        loop: the event loop.
        sock: a listening socket, bound to the endpoint.
        settings: the settings. Nodes with a different job or number of nodes are rejected.
        own: the local node's description.
        prober: the local node's prober.
        say: called with messages for the user about the nodes that have joined.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        settings: GatherSettings,
        own: DoctorNode,
        prober: Prober,
        say: Callable[[list[str]], None],
    ) -> None:
        self.verdict: Verdict | None = None
        self._loop = loop
        self._job, self._wanted = settings.meeting.job, settings.nodes
        self._prober = prober
        self._wait_s = settings.wait_s
        self._say = say
        self._port = sock.getsockname()[1]
        self._attendees = [_Attendee(own, None)]
        self._seen_address = ""
        self._refused: dict[str, str] = {}
        self._probes: dict[tuple[int, int], Probe] = {}
        self._began_at: float | None = None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT)
        hello = fields.plain(Hello("doctor"))
        self._listener = Listener(loop, sock, self, hello, settings.meeting.security)
        self._listener.on_refused = self._on_refused
        self._timer: Timer = loop.call_after(self._wait_s, self._start)
        self._announce_nodes()

    def close(self) -> None:
        """Wait briefly until the nodes have read the verdict and left, and close what remains.

        Closing first would be wrong: with data from a node still unread, the kernel resets the
        connection, and what it has not delivered of the verdict is lost.
        """
        self._timer.cancel()
        self._listener.close()
        self._loop.run_until(self._all_have_left, _DRAIN_S)
        for connection in self._connections():
            connection.close()

    def _all_have_left(self) -> bool:
        left = self._connections()
        for connection in left:
            connection.drain()
        return not left

    # Called by the listener:

    def opened(self, connection: Connection, hello: Message) -> None:
        """Refuse a new connection if its node can't join the meeting."""
        sender, job, settings, _ = fields.record(Hello, hello)
        if sender != "doctor":
            connection.fail("the peer is not `relight doctor`, but this side is")
            return
        if job != self._job or settings is None or settings[:2] != self._wanted:
            reason = (
                f"the other nodes were started with --rdzv-id={self._job} --nnodes={self._wanted}"
            )
        elif not self._is_open():
            reason = f"{len(self._attendees)} nodes have already joined, as many as --nnodes allows"
        else:
            return
        connection.send(fields.to_json(NodeRefused(reason)))
        connection.close()

    def received(self, connection: Connection, message: Message) -> None:
        """Handle a message from a node."""
        match fields.message(FromNode, message):
            case DoctorNode() as node:
                self._admit(connection, node)
            case Clock(number):
                connection.send(fields.to_json(Clock(number, time.time())))
            case ProbeReport() as report:
                self._take_report(connection, report)

    def closed(self, connection: Connection, reason: str) -> None:
        """Handle the end of a connection to a node."""
        del reason
        number = self._number_of(connection)
        if not number:
            return
        if self._began_at is None:
            del self._attendees[number]
            self._announce_nodes()
        else:
            self._attendees[number].connection = None
            self._end_if_complete()

    def _on_refused(self, line: str) -> None:
        peer, _, reason = line.partition(": ")
        if len(self._refused) < _MAX_REFUSED:
            self._refused[peer.rpartition(":")[0].strip("[]")] = reason

    def _admit(self, connection: Connection, node: DoctorNode) -> None:
        if self._number_of(connection):
            raise Malformed("a second node")
        if node.address and not is_numeric(node.address):
            raise Malformed(f"an invalid address: {node.address:.40}")
        if not self._is_open():
            connection.close()
            return
        seen = connection.peer.rpartition(":")[0].strip("[]")
        names = set(self._names())
        count = sum(name.partition(" #")[0] == node.name for name in names)
        node = node._replace(
            name=f"{node.name} #{count + 1}" if count else node.name,
            seen_as=seen if node.own != seen else "",
            clock_s=None,
            clock_error_s=0.0,
        )
        self._attendees.append(_Attendee(node, connection))
        address = connection.own_address()
        if not self._seen_address or is_loopback(self._seen_address):
            self._seen_address = address
        self._timer.cancel()
        if not self._is_open():
            self._start()
        else:
            self._timer = self._loop.call_after(self._wait_s, self._start)
            self._announce_nodes()

    def _announce_nodes(self) -> None:
        came = self._names()
        self._say(list(came))
        self._send_to_all(NodesPresent(came))

    def _send_to_all(self, message: Any) -> None:
        for connection in self._connections():
            connection.send(fields.to_json(message))

    def _is_open(self) -> bool:
        """Return whether more nodes may join."""
        return self._began_at is None and len(self._attendees) < self._wanted.max_nodes

    def _number_of(self, connection: Connection) -> int:
        """Return a connection's node number, or 0 if the node isn't an attendee."""
        connections = [each.connection for each in self._attendees]
        return connections.index(connection) if connection in connections else 0

    def _names(self) -> tuple[str, ...]:
        return tuple(each.node.name for each in self._attendees)

    def _connections(self) -> list[Connection]:
        return [each.connection for each in self._attendees if each.connection is not None]

    # Probes.

    def _start(self) -> None:
        self._began_at = self._loop.now()
        if len(self._attendees) == 1:
            self._end()
            return
        nodes = [each.node for each in self._attendees]
        others = [n.address for n in nodes[1:] if n.address and not is_loopback(n.address)]
        self._attendees[0].node = nodes[0]._replace(mtu=mtu_to(others[0]) if others else 0)
        targets = tuple(Target(self._address_of(n), n.tcp_port, n.udp_port) for n in nodes)
        cookie = new_cookie()
        for number, each in enumerate(self._attendees):
            if each.connection is not None:
                each.connection.send(fields.to_json(StartProbes(cookie.hex(), number, targets)))
        self._timer = self._loop.call_after(REPORT_S, self._end)
        self._prober.start(cookie, 0, targets, lambda found: self._record(0, found, 0.0, 0.0))

    def _address_of(self, node: DoctorNode) -> str:
        """Return the address at which others can reach a node. A node that connected over loopback
        is on this machine.
        """
        if not node.address or is_loopback(node.address):
            return self._seen_address or "127.0.0.1"
        return node.address

    def _take_report(self, connection: Connection, report: ProbeReport) -> None:
        number = self._number_of(connection)
        if self._began_at is None or not number or self._attendees[number].reported:
            raise Malformed("unexpected report")
        if any(target >= len(self._attendees) for target, _ in report.probes):
            raise Malformed("a report on an unknown node")
        self._record(number, dict(report.probes), report.clock_s, report.clock_error_s)

    def _record(
        self, number: int, found: dict[int, Probe], clock_s: float | None, clock_error_s: float
    ) -> None:
        """Record the report from the node with this number."""
        self._probes.update({(number, target): probe for target, probe in found.items()})
        reporter = self._attendees[number]
        reporter.node = reporter.node._replace(clock_s=clock_s, clock_error_s=clock_error_s)
        reporter.reported = True
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        own, *others = self._attendees
        if own.reported and all(each.reported or each.connection is None for each in others):
            self._end()

    def _end(self) -> None:
        if self.verdict is not None:
            return
        self._timer.cancel()
        nodes = [each.node for each in self._attendees]
        missing = [n for n, each in enumerate(self._attendees) if not each.reported]
        findings: list[Finding] = []
        if len(nodes) > 1:
            findings = network.judge(nodes, self._probes, port=self._port, missing=missing)
        came = self._names()
        findings += [*_missing_nodes(came, self._wanted), *self._refused_hosts()]
        seconds = self._loop.now() - (self._began_at or 0.0)
        self.verdict = Verdict(tuple(findings), came, seconds).bounded()
        self._send_to_all(self.verdict)

    def _refused_hosts(self) -> Iterator[Finding]:
        for host, reason in self._refused.items():
            yield Finding(
                WARNING,
                f"refused a connection from there: {reason}",
                host,
                "",
                "if it belongs to the job, use the same version of relight, RELIGHT_TOKEN and "
                "tls_ settings on all nodes",
            )


def _missing_nodes(came: tuple[str, ...], wanted: Nodes) -> Iterator[Finding]:
    """Yield a finding about nodes that have not joined."""
    if missing := wanted.max_nodes - len(came):
        yield Finding(
            ERROR if len(came) < wanted.min_nodes else WARNING,
            f"{missing} of {wanted} nodes did not join",
            "",
            f"these nodes joined: {', '.join(came)}" if came else "",
            "run the same command on the others within --timeout; it shows whether they can reach "
            "the endpoint",
        )
