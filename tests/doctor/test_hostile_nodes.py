"""Hostile nodes and a hostile host among a job's doctors."""

import json
import socket
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from fuzzing import EXAMPLES, Chance, fuzzed, kinds_of

from relight.base import fields
from relight.base.values import Nodes
from relight.core.group.group_types import GroupSettings, Hello
from relight.doctor.hosting import GatherSettings, MeetingHost
from relight.health.doctor_messages import Clock, DoctorNode, FromHost, FromNode, ProbeReport
from relight.host.loop import Loop
from relight.net.connection import Security


class Peer:
    """A node's connection, with the messages that the node has received."""

    peer = "10.0.0.7:41234"

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.closed = False

    def own_address(self) -> str:
        return "10.0.0.1"

    def send(self, message: Any) -> None:
        self.heard.append(fields.message(FromHost, json.loads(json.dumps(message))))

    def drain(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def settings(nodes: Nodes) -> GatherSettings:
    meeting: Any = SimpleNamespace(job="j", security=Security())
    return GatherSettings(meeting, nodes, 60.0, {})


@partial(fuzzed, most=EXAMPLES // 4)
def test_hostile_messages_never_break_the_check_between_nodes(chance: Chance) -> None:
    """Each message is accepted or `Malformed`, and all nodes get a readable verdict."""
    loop = Loop()
    prober: Any = SimpleNamespace(start=lambda *_: None)  # doesn't probe any node
    own = DoctorNode("here", "10.0.0.1", 1, 1, 1500, (), {})
    sock = socket.create_server(("127.0.0.1", 0))
    host = MeetingHost(loop, sock, settings(Nodes(2, 3)), own, prober, lambda _: None)
    peers: list[Any] = [Peer(), Peer()]
    try:
        stranger: Any = Peer()
        with pytest.raises(fields.Malformed):
            host.received(stranger, fields.to_json(own._replace(address="a.name")))
        for peer in peers:
            host.opened(peer, fields.plain(Hello("doctor", "j", GroupSettings(2, 3, 0))))
            address = chance.choice(["", "10.0.0.7", "fd77::7", "127.0.0.1"])
            node = chance.valid(DoctorNode)._replace(address=address)
            host.received(peer, fields.to_json(node))
        for _ in range(chance.randrange(6)):
            kind = chance.choice(kinds_of(FromNode))
            said = chance.written(chance.near(fields.to_json(chance.valid(kind))))
            try:
                heard = fields.decode(said)
                if isinstance(heard, dict):
                    host.received(chance.choice(peers), heard)
            except fields.Malformed:
                continue
        report = fields.to_json(ProbeReport((), 0.0, 0.0))
        for peer in peers:
            try:
                host.received(peer, report)
            except fields.Malformed:  # the node has sent a malformed message
                pass
        host._end()
        assert host.verdict is not None and len(host.verdict.came) == 3
        told = fields.plain(host.verdict)
        assert all(fields.plain(peer.heard[-1]) == told for peer in peers)
        host.received(peers[0], fields.to_json(Clock(7)))
        assert peers[0].heard[-1].number == 7
    finally:
        for peer in peers:
            host.closed(peer, "over")
        host._listener.close()
        loop.close()


def test_host_lets_nodes_close_their_connections_first() -> None:
    """A close with unread data would reset the connection and could discard the verdict."""
    loop = Loop()
    prober: Any = SimpleNamespace(start=lambda *_: None)
    own = DoctorNode("here", "10.0.0.1", 1, 1, 1500, (), {})
    sock = socket.create_server(("127.0.0.1", 0))
    host = MeetingHost(loop, sock, settings(Nodes(2, 2)), own, prober, lambda _: None)
    peer: Any = Peer()
    try:
        host.opened(peer, fields.plain(Hello("doctor", "j", GroupSettings(2, 2, 0))))
        host.received(peer, fields.to_json(own._replace(name="there", address="10.0.0.7")))
        host.received(peer, fields.to_json(ProbeReport((), 0.0, 0.0)))
        host._end()
        loop.call_after(0.01, lambda: host.closed(peer, "over"))
        host.close()
        assert not peer.closed
        assert fields.plain(peer.heard[-1]) == fields.plain(host.verdict)
    finally:
        loop.close()
