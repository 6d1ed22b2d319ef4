"""Heartbeat datagrams: only the peer's own machine can report that a port is closed."""

import errno
import os
import socket
import struct
from collections.abc import Iterator

import pytest
from conftest import LIMIT_S

from relight.host.loop import Loop
from relight.net import heartbeats
from relight.net.heartbeats import Heartbeats

FAMILIES = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def beats(loop: Loop) -> Iterator[Heartbeats]:
    made = Heartbeats(loop, ("127.0.0.1", 0), socket.AF_INET, lambda *_: None)
    yield made
    made.close()


def bound(family: int, host: str) -> socket.socket:
    """Return another process's socket."""
    other = socket.socket(family, socket.SOCK_DGRAM)
    other.setblocking(False)
    other.bind((host, 0))
    return other


def take(sock: socket.socket) -> bool:
    """Receive a datagram if one has arrived."""
    try:
        sock.recv(1)
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize(("family", "host"), FAMILIES)
def test_closed_heartbeat_port_is_reported(loop: Loop, family: int, host: str) -> None:
    try:
        other = bound(family, host)
    except OSError:
        pytest.skip("no IPv6")
    told: list[tuple[str, int]] = []
    beats = Heartbeats(loop, (host, 0), family, lambda *_: None)
    beats.on_unreachable = told.append
    with other:
        target = other.getsockname()
        beats.probe(target)
        loop.run_until(lambda: take(other), LIMIT_S)
        assert told == []
    loop.run_until(lambda: told, LIMIT_S)
    assert told == [target[:2]]
    beats.close()


def test_port_held_by_another_process_is_not_reported(loop: Loop, beats: Heartbeats) -> None:
    """An agent's guard keeps its socket open for as long as there are workers to stop."""
    told: list[tuple[str, int]] = []
    beats.on_unreachable = told.append
    other = bound(socket.AF_INET, "127.0.0.1")
    held = socket.socket(fileno=os.dup(other.fileno()))
    beats.probe(other.getsockname())
    other.close()
    held.setblocking(False)
    for _ in range(3):
        loop.run_until(lambda: take(held), LIMIT_S)
    assert told == []
    held.close()
    loop.run_until(lambda: told, LIMIT_S)


def test_port_that_is_no_longer_probed_receives_no_datagrams(loop: Loop, beats: Heartbeats) -> None:
    with bound(socket.AF_INET, "127.0.0.1") as other, bound(socket.AF_INET, "127.0.0.1") as last:
        for each in (other, last):
            beats.probe(each.getsockname())
        beats.probe(other.getsockname(), on=False)
        take(other)  # the first probe was sent to both
        for _ in range(3):
            loop.run_until(lambda: take(last), LIMIT_S)
        assert not take(other)


def test_refused_datagram_does_not_stop_datagrams_to_other_peers(
    loop: Loop, beats: Heartbeats
) -> None:
    """A socket error concerns a single address, and hides nothing from the others."""
    came: list[bytes] = []
    beats._on_datagram = lambda data, _: came.append(data)
    gone = bound(socket.AF_INET, "127.0.0.1")
    target = gone.getsockname()
    gone.close()
    with bound(socket.AF_INET, "127.0.0.1") as other:
        beats.send(b"x", target)
        other.sendto(b"alive", ("127.0.0.1", beats.port))
        loop.run_until(lambda: came, LIMIT_S)
        beats.send(b"back", other.getsockname())
        assert other.recv(10) == b"back"


def control(number: int, origin: int, offender: str, family: int = socket.AF_INET) -> bytes:
    """Return a sock_extended_err followed by the address that reported it (linux/errqueue.h)."""
    packed = socket.inet_pton(family, offender)
    before = b"\0" * (2 if family == socket.AF_INET else 6)  # port and flow information
    return (
        struct.pack("=IBBBxII", number, origin, 3, 3, 0, 0)
        + struct.pack("=H", family)
        + (before + packed + b"\0" * 8)
    )


def test_only_the_peers_machine_can_report_a_closed_port() -> None:
    """Reports from a gateway or firewall in between, or about unknown ports, don't count."""
    refused, icmp, icmp6 = errno.ECONNREFUSED, 2, 3
    assert heartbeats._is_refusal(control(refused, icmp, "10.0.0.2"), "10.0.0.2")
    six = control(refused, icmp6, "fe80::1", socket.AF_INET6)
    assert heartbeats._is_refusal(six, "fe80::1%eth0")
    for data in (
        control(refused, icmp, "10.0.0.1"),  # a gateway
        control(errno.EHOSTUNREACH, icmp, "10.0.0.2"),
        control(errno.EMSGSIZE, icmp, "10.0.0.2"),
        control(refused, 1, "10.0.0.2"),  # the machine itself
        control(refused, icmp, "10.0.0.2")[:20],
        control(refused, icmp, "10.0.0.2")[:22],
        b"",
    ):
        assert not heartbeats._is_refusal(data, "10.0.0.2")


def test_icmp_error_must_quote_the_probe(loop: Loop, beats: Heartbeats) -> None:
    """Anyone can forge an ICMP error in the machine's name, but can't know the quoted data."""
    told: list[tuple[str, int]] = []
    beats.on_unreachable = told.append
    with bound(socket.AF_INET, "127.0.0.1") as other:
        target = other.getsockname()
        beats.probe(target)
        probe = other.recv(100)
        for forged in (b"", probe[:-1], probe[::-1]):
            beats._on_refused(forged, target)
        assert told == []
        beats._on_refused(probe, target)
        assert told == [target]
