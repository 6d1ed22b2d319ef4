"""A coordinator and silent nodes, with real sockets in one process."""

import socket
from collections.abc import Callable, Iterator

import pytest
from conftest import LIMIT_S

from relight.agent.coordinator import Coordinator
from relight.base import fields
from relight.base.fields import Message
from relight.core.group.group_types import GroupSettings, Hello
from relight.core.group.messages import Join, NodeLeaving
from relight.core.link import heartbeat_rate
from relight.host.loop import Loop
from relight.net.connection import Connection, Security, dial
from relight.net.heartbeats import Heartbeats
from relight.rendezvous.discovery import Finder
from relight.rendezvous.register_finder import RegisterFinder

SETTINGS = GroupSettings(1, 4, 0, lost_after_s=1e6)
HOST = "127.0.0.1"


class Agent:
    """An agent's connection, and its socket for datagrams."""

    def __init__(self, loop: Loop, port: int) -> None:
        self.loop, self.target = loop, (HOST, port)
        self.datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.datagrams.setblocking(False)
        self.datagrams.bind((HOST, 0))
        self.dialled: list[Connection] = []
        self.numbers = self.beats = 0
        self.heard: list[Message] = []
        self.connection = self.dial()

    def dial(self) -> Connection:
        hello = fields.plain(Hello(job="job", settings=SETTINGS))
        self.dialled.append(dial(self.loop, self.target, self, hello, Security()))
        return self.dialled[-1]

    def opened(self, connection: Connection, hello: Message) -> None:
        self.numbers += 1
        join = Join("a", "host", HOST, 1, "default", -1, 1, 4, 0, {}, None)
        udp_port = self.datagrams.getsockname()[1]
        join = join._replace(udp_address=HOST, udp_port=udp_port, connection=self.numbers)
        connection.send(fields.to_json(join))

    def received(self, connection: Connection, message: Message) -> None:
        self.heard.append(message)

    def closed(self, connection: Connection, reason: str) -> None:
        pass

    def beat(self) -> None:
        """Send a heartbeat as a datagram."""
        self.beats += 1
        datagram = Heartbeats.datagram(self.beats, self.connection.session_key)
        self.datagrams.sendto(datagram, self.target)

    def take(self) -> bool:
        """Receive any pending datagram; return whether one was pending."""
        try:
            return bool(self.datagrams.recv(100))
        except BlockingIOError:
            return False


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def coordinator(loop: Loop) -> Iterator[Coordinator]:
    sock = socket.create_server((HOST, 0))
    made = Coordinator(loop, sock, Security(), Finder(), lambda _: None, lambda _: None)
    made.port = sock.getsockname()[1]  # type: ignore[attr-defined]
    yield made
    made.close()


@pytest.fixture
def agent(loop: Loop, coordinator: Coordinator) -> Iterator[Agent]:
    """An agent whose datagrams have reached the coordinator."""
    made = Agent(loop, coordinator.port)  # type: ignore[attr-defined]
    until(loop, lambda: members(coordinator))
    made.beat()
    until(loop, made.take)  # the echo
    yield made
    for connection in made.dialled:
        connection.close()
    made.datagrams.close()


def until(loop: Loop, done: Callable[[], object]) -> None:
    met = False

    def is_met() -> bool:
        nonlocal met
        met = bool(done())
        return met

    loop.run_until(is_met, LIMIT_S)
    assert met


def members(coordinator: Coordinator) -> int:
    return sum(len(group.membership.members) for group in coordinator.groups.values())


def test_silent_node_is_probed_until_it_responds(
    loop: Loop, coordinator: Coordinator, agent: Agent
) -> None:
    probed = coordinator._heartbeats._probed
    until(loop, lambda: probed)
    agent.beat()
    until(loop, lambda: not probed)
    assert members(coordinator) == 1


def test_nodes_in_large_group_send_fewer_heartbeats(
    loop: Loop, coordinator: Coordinator, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The echo tells the node, and the coordinator expects its next heartbeat later."""
    agent.connection.send({"type": "heartbeat", "number": 8})
    until(loop, lambda: agent.heard)
    monkeypatch.setattr(heartbeat_rate, "FULL_RATE_AGENTS", 0.01)
    agent.connection.send({"type": "heartbeat", "number": 9})
    until(loop, lambda: len(agent.heard) == 2)
    assert agent.heard == [
        {"type": "heartbeat", "number": 8},
        {"type": "heartbeat", "number": 9, "extra_s": 1.5},
    ]
    (peer,) = coordinator._peers
    for silent_s, is_silent in ((2.5, False), (3.5, True)):
        peer.connection.heard_at = loop.now() - silent_s
        coordinator._check_silence()
        assert peer.is_silent is is_silent


def test_heartbeat_rate_is_not_reduced_if_registry_is_used(
    loop: Loop, coordinator: Coordinator, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator without its registry must notice a lost node within two seconds."""
    monkeypatch.setattr(heartbeat_rate, "FULL_RATE_AGENTS", 0.01)
    monkeypatch.setattr(Finder, "slows_heartbeats", RegisterFinder.slows_heartbeats)
    agent.connection.send({"type": "heartbeat", "number": 9})
    until(loop, lambda: agent.heard)
    assert agent.heard == [{"type": "heartbeat", "number": 9}]


def test_node_with_closed_port_is_lost(loop: Loop, coordinator: Coordinator, agent: Agent) -> None:
    agent.datagrams.close()
    agent.connection.close()
    until(loop, lambda: not members(coordinator))
    assert not coordinator._peers.by_node
    assert not coordinator._heartbeats._probed


def test_node_that_left_leaves_no_state_in_coordinator(
    loop: Loop, coordinator: Coordinator, agent: Agent
) -> None:
    agent.connection.send(fields.to_json(NodeLeaving("the job is over")))
    agent.connection.drain()
    agent.connection.close()
    until(loop, lambda: not members(coordinator) and not coordinator.others)
    assert not coordinator._peers.by_node
    assert not coordinator._heartbeats._probed


def test_new_connection_from_node_stops_probes_on_old_one(
    loop: Loop, coordinator: Coordinator, agent: Agent
) -> None:
    until(loop, lambda: coordinator._heartbeats._probed)
    agent.connection = agent.dial()
    until(loop, lambda: agent.numbers == 2 and not coordinator._heartbeats._probed)
    assert members(coordinator) == 1


def test_coordinator_that_steps_down_stops_probing(
    loop: Loop, coordinator: Coordinator, agent: Agent
) -> None:
    until(loop, lambda: coordinator._heartbeats._probed)
    coordinator.step_down()
    assert not coordinator._heartbeats._probed
