"""Firewalls, and networks that drop large packets, work as documented."""

import socket
from collections.abc import Iterator

import pytest
from conftest import LIMIT_S

from netlab import Host, Lab
from netlab.test_netlab import run, serve

pytestmark = pytest.mark.needs_hosts

SERVE = """
import socket, threading
def tcp(port):
    server = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    def work():
        while True:
            connection, _ = server.accept()
            connection.sendall(b"x" * len(connection.recv(1 << 16)))
    threading.Thread(target=work, daemon=True).start()
tcp(7000)
tcp(7001)
echo = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
echo.bind(("::", 7000))
print("ready", flush=True)
while True:
    data, peer = echo.recvfrom(1 << 16)
    echo.sendto(b"x", peer)
"""

CALL = """
import socket, sys
kind, address, port, size, wait_s = sys.argv[1:]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
sock = socket.socket(family, getattr(socket, kind))
sock.settimeout(float(wait_s))
try:
    sock.connect((address, int(port)))
    sock.sendall(bytes(int(size)))
    sock.recv(1)
    print("answered", end="")
except OSError as error:
    print(type(error).__name__, end="")
"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(hosts=["node1", "node2"]) as made:
        yield made


def answers(host: Host, kind: int, address: str, port: int, size: int = 10) -> bool:
    return call(host, kind, address, port, size, LIMIT_S) == "answered"


def is_silent(host: Host, kind: int, address: str, port: int, size: int = 10) -> bool:
    return call(host, kind, address, port, size, 0.5) == "TimeoutError"


def call(host: Host, kind: int, address: str, port: int, size: int, wait_s: float) -> str:
    name = socket.SocketKind(kind).name
    return run(host, CALL, name, address, str(port), str(size), str(wait_s))


@pytest.mark.parametrize("address", ["10.77.0.1", "fd77::1"])
def test_firewall_allows_only_listed_ports(lab: Lab, address: str) -> None:
    """Other ports don't respond; the host itself can reach everything."""
    serve(lab["node1"], SERVE)
    serve(lab["node2"], SERVE)
    lab.wall("node1", [7000])
    outside, inside = lab["node2"], lab["node1"]
    assert answers(outside, socket.SOCK_STREAM, address, 7000)
    assert answers(outside, socket.SOCK_DGRAM, address, 7000)
    assert is_silent(outside, socket.SOCK_STREAM, address, 7001)
    lab.wall("node1", [])
    assert is_silent(outside, socket.SOCK_DGRAM, address, 7000)
    other = address[:-1] + "2"
    assert answers(inside, socket.SOCK_STREAM, other, 7001)
    assert answers(inside, socket.SOCK_DGRAM, other, 7000)
    lab.wall("node1", None)
    assert answers(outside, socket.SOCK_STREAM, address, 7001)


def test_packets_larger_than_the_senders_limit_are_dropped(lab: Lab) -> None:
    """Smaller packets arrive, and other hosts may send larger ones."""
    serve(lab["node1"], SERVE)
    serve(lab["node2"], SERVE)
    lab.limit("node2", 1400)
    assert answers(lab["node2"], socket.SOCK_DGRAM, "10.77.0.1", 7000, 1372)
    assert is_silent(lab["node2"], socket.SOCK_DGRAM, "10.77.0.1", 7000, 1373)
    assert answers(lab["node1"], socket.SOCK_DGRAM, "10.77.0.2", 7000, 5000)
    lab.limit("node2", None)
    assert answers(lab["node2"], socket.SOCK_DGRAM, "10.77.0.1", 7000, 5000)
