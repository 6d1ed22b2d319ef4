"""Probes between local stations: their results, and callers left without a reply."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from conftest import LIMIT_S

from relight.core.group.messages import Target
from relight.health.doctor_messages import Probe, ProbeResult
from relight.health.probes import LARGE, Prober, _datagram, _hello, mtu_to, new_cookie
from relight.host.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def prober(loop: Loop, stack: ExitStack) -> Prober:
    made = Prober(loop)
    stack.callback(made.close)
    return made


def probe(loop: Loop, one: Prober, cookie: bytes, others: list[Target]) -> list[Probe]:
    """Return node 0's results for the others."""
    found: list[dict[int, Probe]] = []
    one.start(cookie, 0, [Target("127.0.0.1", one.tcp_port, one.udp_port), *others], found.append)
    end = time.monotonic() + LIMIT_S
    while not found:
        assert time.monotonic() < end
        loop.run_once(0.1)
    return [found[0][number] for number in range(1, len(others) + 1)]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_two_probers_reach_each_other(loop: Loop, stack: ExitStack, address: str) -> None:
    """The one that is contacted first waits for its cookie."""
    one, two = prober(loop, stack), prober(loop, stack)
    cookie = new_cookie()
    nodes = [Target(address, each.tcp_port, each.udp_port) for each in (one, two)]
    found: dict[int, dict[int, Probe]] = {}
    one.start(cookie, 0, nodes, lambda probes: found.update({0: probes}))
    loop.run_once(0.05)
    two.start(cookie, 1, nodes, lambda probes: found.update({1: probes}))
    end = time.monotonic() + LIMIT_S
    while len(found) < 2:
        assert time.monotonic() < end
        loop.run_once(0.1)
    for probes in found.values():
        (result,) = probes.values()
        assert (result.tcp, result.large, result.answered) == (
            ProbeResult.PASSED,
            ProbeResult.PASSED,
            1500,
        )


def test_closed_port_is_distinguished_from_unrelated_program(loop: Loop, stack: ExitStack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        free = closed.getsockname()[1]
    other = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    one = prober(loop, stack)
    there = [Target("127.0.0.1", free, free), Target("127.0.0.1", other.getsockname()[1], free)]
    refused, mute = probe(loop, one, new_cookie(), there)
    assert (refused.tcp, mute.tcp) == (ProbeResult.REFUSED, ProbeResult.MUTE)
    assert refused.answered == mute.answered == 0


def test_large_packets_get_stuck_if_peer_stops_reading(loop: Loop, stack: ExitStack) -> None:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    one = prober(loop, stack)
    found: list[dict[int, Probe]] = []
    nodes = [Target("127.0.0.1", 0, 0), Target("127.0.0.1", listener.getsockname()[1], 0)]
    one.start(new_cookie(), 0, nodes, found.append)
    peer = stack.enter_context(listener.accept()[0])
    loop.run_once(1)
    assert len(peer.recv(100)) == _hello.size
    peer.sendall(b"+")
    end = time.monotonic() + LIMIT_S
    while not found:
        assert time.monotonic() < end
        loop.run_once(0.1)
    assert (found[0][1].tcp, found[0][1].large) == (ProbeResult.PASSED, ProbeResult.STUCK)


def test_peer_without_cookie_gets_no_reply(loop: Loop, stack: ExitStack) -> None:
    """It gets none, whether over a connection or as a datagram."""
    one = prober(loop, stack)
    cookie = new_cookie()
    one.start(cookie, 0, [Target("127.0.0.1", 0, 0), Target("127.0.0.1", 9, 9)], lambda _: None)
    caller = stack.enter_context(socket.create_connection(("127.0.0.1", one.tcp_port)))
    caller.sendall(_hello.pack(new_cookie(), 1))
    caller.setblocking(False)
    asker = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    asker.bind(("127.0.0.1", 0))
    asker.setblocking(False)
    target = ("127.0.0.1", one.udp_port)
    for data in (
        b"",
        b"x" * 500,
        _datagram.pack(new_cookie(), b"?", 1, 100),
        _datagram.pack(cookie, b"?", 7, 25),  # a node that doesn't exist
        _datagram.pack(cookie, b"?", 1, 1500),  # smaller than it claims
        _datagram.pack(cookie, b"?", 1, 1 << 31),
    ):
        asker.sendto(data, target)
    asker.sendto(_datagram.pack(cookie, b"?", 1, 30), target)
    end = time.monotonic() + LIMIT_S
    answers: list[bytes] = []
    closed = False
    while not (answers and closed):
        assert time.monotonic() < end
        loop.run_once(0.05)
        try:
            answers.append(asker.recv(100))
        except BlockingIOError:
            pass
        try:
            closed = caller.recv(10) == b""
        except BlockingIOError:
            pass
    assert answers == [_datagram.pack(cookie, b"!", 0, 30)]
    with pytest.raises(BlockingIOError):
        asker.recv(100)


@pytest.mark.parametrize("broken", ["_Call._listen", "_Caller._read", "Prober._receive"])
def test_unexpected_exception_fails_only_one_probe(
    loop: Loop, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """All other probes succeed."""
    mistakes: list[str] = []
    loop.on_internal_error = lambda what, error: mistakes.append(f"{what}: {error}")

    def go_wrong(_: object) -> None:
        if isinstance(_, Prober) and _._udp is not None:
            _._udp.recv(1 << 16)
        raise KeyError("x")

    monkeypatch.setattr(f"relight.health.probes.{broken}", go_wrong)
    one, two = prober(loop, stack), prober(loop, stack)
    cookie = new_cookie()
    nodes = [Target("127.0.0.1", each.tcp_port, each.udp_port) for each in (one, two)]
    found: list[dict[int, Probe]] = []
    two.start(cookie, 1, nodes, found.append)
    one.start(cookie, 0, nodes, found.append)
    end = time.monotonic() + LIMIT_S
    while len(found) < 2:
        assert time.monotonic() < end
        loop.run_once(0.1)
    assert mistakes and all(each.endswith("'x'") for each in mistakes)
    (result,) = found[0].values()
    if broken == "Prober._receive":
        assert (result.tcp, result.answered) == (ProbeResult.PASSED, 0)
    else:
        assert (result.tcp, result.answered) == (ProbeResult.MUTE, 1500)


def test_loopback_mtu_is_reported_as_unknown() -> None:
    """Loopback has its own MTU, which reveals nothing about any network."""
    assert mtu_to("127.0.0.1") == mtu_to("::1") == 0
    assert LARGE > 9000
