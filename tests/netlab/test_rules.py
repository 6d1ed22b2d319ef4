"""Firewalls and networks that lose large packets do what they say."""

import socket
from collections.abc import Iterator

import pytest

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
kind, address, port, size = sys.argv[1:]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
sock = socket.socket(family, getattr(socket, kind))
sock.settimeout(0.5)
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


def call(host: Host, kind: int, address: str, port: int, size: int = 10) -> str:
    return run(host, CALL, socket.SocketKind(kind).name, address, str(port), str(size))


@pytest.mark.parametrize("address", ["10.77.0.1", "fd77::1"])
def test_behind_a_wall_only_the_named_ports_answer(lab: Lab, address: str) -> None:
    """Behind a wall the ports that it names answer, others are silent, and the host itself reaches
    all.
    """
    serve(lab["node1"], SERVE)
    serve(lab["node2"], SERVE)
    lab.wall("node1", [7000])
    outside, inside = lab["node2"], lab["node1"]
    assert call(outside, socket.SOCK_STREAM, address, 7000) == "answered"
    assert call(outside, socket.SOCK_DGRAM, address, 7000) == "answered"
    assert call(outside, socket.SOCK_STREAM, address, 7001) == "TimeoutError"
    lab.wall("node1", [])
    assert call(outside, socket.SOCK_DGRAM, address, 7000) == "TimeoutError"
    other = address[:-1] + "2"
    assert call(inside, socket.SOCK_STREAM, other, 7001) == "answered"
    assert call(inside, socket.SOCK_DGRAM, other, 7000) == "answered"
    lab.wall("node1", None)
    assert call(outside, socket.SOCK_STREAM, address, 7001) == "answered"


def test_packets_above_the_senders_limit_are_lost(lab: Lab) -> None:
    """A packet above the limit of its sender is lost; smaller ones come, others may send more."""
    serve(lab["node1"], SERVE)
    serve(lab["node2"], SERVE)
    lab.limit("node2", 1400)
    assert call(lab["node2"], socket.SOCK_DGRAM, "10.77.0.1", 7000, 1372) == "answered"
    assert call(lab["node2"], socket.SOCK_DGRAM, "10.77.0.1", 7000, 1373) == "TimeoutError"
    assert call(lab["node1"], socket.SOCK_DGRAM, "10.77.0.2", 7000, 5000) == "answered"
    lab.limit("node2", None)
    assert call(lab["node2"], socket.SOCK_DGRAM, "10.77.0.1", 7000, 5000) == "answered"
