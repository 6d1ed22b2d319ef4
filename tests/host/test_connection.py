"""Connections between well-behaved peers, over real sockets and a real loop."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from conftest import LIMIT_S
from ends import Ends, Log

from relight.core.link import wire
from relight.net import connection as connections
from relight.net.connection import Connection, Security, dial
from relight.net.dns import resolve
from relight.net.listener import Listener

WITH_TOKEN = Security(b"token")


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.close()


security = pytest.mark.parametrize("security", [Security(), WITH_TOKEN], ids=["open", "token"])


@security
def test_each_side_receives_the_hello_from_the_other(ends: Ends, security: Security) -> None:
    """Each owner receives the peer's hello once, and both connections derive the same key."""
    ends.listen(security)
    connection, log, other = ends.pair(security)
    assert log.hellos == [{"type": "hello", "run": "listener"}]
    assert ends.server.hellos == [{"type": "hello", "run": "dialler"}]
    assert connection.session_key == other.session_key
    assert len(connection.session_key) == 32
    assert ends.pair(security)[0].session_key != connection.session_key
    assert connection.peer == "{}:{}".format(*ends.address)
    assert other.peer.startswith("127.0.0.1:") and other.peer != connection.peer
    assert connection.own_address() == other.own_address() == "127.0.0.1"


@security
def test_messages_arrive_in_order_in_both_directions(ends: Ends, security: Security) -> None:
    """Thousands of small messages and a large one of several megabytes arrive intact
    and in order.
    """
    ends.listen(security)
    connection, log, other = ends.pair(security)
    large = {"type": "large", "text": "x" * (wire.MAX_FRAME - 100)}
    for number in range(2000):
        connection.send({"type": "count", "number": number})
        other.send({"type": "back", "number": number})
    connection.send(large)
    ends.until(lambda: len(ends.server.messages) == 2001 and len(log.messages) == 2000)
    assert [m.get("number") for m in ends.server.messages] == [*range(2000), None]
    assert ends.server.messages[-1] == large
    assert [m["number"] for m in log.messages] == list(range(2000))


@security
def test_message_sent_before_handshake_is_dropped(ends: Ends, security: Security) -> None:
    """No message is sent to a peer that isn't authenticated yet."""
    ends.listen(security)
    connection, _ = ends.dial(security)
    connection.send({"type": "early"})
    ends.until(lambda: connection.is_open)
    connection.send({"type": "late"})
    ends.until(lambda: ends.server.messages)
    assert ends.server.messages == [{"type": "late"}]
    assert connection.drain()


def test_refused_connection_is_reported(ends: Ends) -> None:
    """If no process is listening, the owner is notified exactly once, with `refused` set."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        ends.address = sock.getsockname()
    connection, log = ends.dial()
    assert not log.reasons
    ends.until(lambda: log.reasons)
    ends.settle()
    assert log.reasons == ["refused"]
    assert connection.refused and not connection.is_open


def test_connection_closed_by_peer_is_reported_once(ends: Ends) -> None:
    """The owner is notified once, with `refused` unset."""
    ends.listen()
    connection, log, other = ends.pair()
    other.close()
    ends.until(lambda: log.reasons)
    ends.settle()
    assert log.reasons == ["the peer closed the connection"]
    assert not connection.refused and not connection.is_open
    assert not ends.server.reasons


@security
def test_close_flushes_queued_messages(ends: Ends, security: Security) -> None:
    """The last message arrives even if the peer is sending at the same time."""
    ends.listen(security)
    connection, log, other = ends.pair(security)
    connection.send({"type": "heartbeat"})
    other.send({"type": "last"})
    other.close()
    for _ in range(20):
        connection.send({"type": "heartbeat"})
    ends.until(lambda: log.reasons)
    assert log.messages == [{"type": "last"}]
    assert log.reasons == ["the peer closed the connection"]


def test_close_does_not_lose_data_already_sent(ends: Ends) -> None:
    """The data arrives even though the peer's last messages haven't been read."""
    ends.listen()
    client = ends.raw(_hello())
    ends.until(lambda: ends.server.connections)
    (connection,) = ends.server.connections
    message = {"type": "x", "text": "x" * 10_000}
    while connection.drain():
        connection.send(message)
    client.sendall(wire.encode({"type": "heartbeat"}))
    while not connection.drain():
        client.recv(4096)
    connection.close()
    data = bytearray()
    while part := client.recv(65536):
        data += part
    last = wire.parse(bytes(data[data.rindex(b'{"type":"x"') :]))
    assert {**last, "stimulus": ""} == {**message, "stimulus": ""}


def test_closed_connection_neither_sends_nor_receives(ends: Ends) -> None:
    """After a close, even one within a callback, nothing is sent or received and no
    callback runs.
    """
    ends.listen()
    connection, log, other = ends.pair()
    ends.server.on_message = lambda connection, message: connection.close()
    for _ in range(3):
        connection.send({"type": "x"})
    ends.until(lambda: log.reasons)
    assert len(ends.server.messages) == 1 and not ends.server.reasons
    connection.send({"type": "x"})
    connection.close()
    other.close()
    assert connection.drain() and connection.own_address() == ""


def test_heard_at_timestamp_is_updated_only_by_messages(ends: Ends) -> None:
    """It is the time of the peer's last message."""
    ends.listen()
    connection, _, other = ends.pair()
    before = other.heard_at
    ends.settle()
    assert other.heard_at == before
    connection.send({"type": "heartbeat"})
    ends.until(lambda: ends.server.messages)
    assert before < other.heard_at <= ends.loop.now()


def test_peer_that_stops_reading_is_disconnected(ends: Ends) -> None:
    """The connection closes above 16 MiB of unsent data. The sender never blocks, and its owner is
    notified.
    """
    ends.listen()
    client = ends.raw(_hello())
    ends.until(lambda: ends.server.connections)
    (connection,) = ends.server.connections
    message = {"type": "x", "text": "x" * (1 << 20)}
    for _ in range(40):
        connection.send(message)
    assert not ends.server.reasons
    ends.until(lambda: ends.server.reasons)
    assert ends.server.reasons == ["the peer is not reading: 16 MiB are queued"]
    client.close()


def test_slow_reader_receives_all_data(ends: Ends) -> None:
    """The rest of a partial write is sent once the peer reads, and `drain` reports when
    it is done.
    """
    ends.listen()
    connection, _, other = ends.pair()
    message = {"type": "x", "text": "x" * (1 << 20)}
    for _ in range(12):
        other.send(message)
    assert not other.drain()
    ends.until(other.drain)
    connection.send({"type": "y"})
    ends.until(lambda: ends.server.messages)


def test_oversized_message_raises_error_at_sender(ends: Ends) -> None:
    """The connection stays open."""
    ends.listen()
    connection, _, _ = ends.pair()
    with pytest.raises(ValueError, match="exceeds the limit"):
        connection.send({"type": "x", "text": "x" * wire.MAX_FRAME})
    connection.send({"type": "y"})
    ends.until(lambda: ends.server.messages)


def test_oversized_hello_is_rejected_before_a_socket_is_opened(ends: Ends) -> None:
    """A hello that no peer would accept is an immediate error."""
    ends.listen()
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match="exceeds the limit"):
        dial(ends.loop, ends.address, Log(), {"x": "x" * wire.MAX_HELLO}, Security())
    with pytest.raises(ValueError, match="not a numeric address"):
        dial(ends.loop, ("localhost", 1), Log(), {}, Security())
    assert set(os.listdir("/proc/self/fd")) == before


def test_connection_attempt_times_out_without_response(ends: Ends) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # never accepts, so the queue is full after a connection or two
        ends.address = full.getsockname()
        dialled = [ends.dial(timeout_s=0.3) for _ in range(6)]
        ends.until(lambda: all(log.reasons for _, log in dialled))
    reasons = {log.reasons[0] for _, log in dialled}
    assert reasons == {
        "no response within 0.3 s",
        "no response to the greeting within 0.3 s (is it relight?)",
    }
    assert not any(connection.refused for connection, _ in dialled)


def test_ipv6_peer_address_has_brackets(ends: Ends) -> None:
    """Connections over IPv6 work."""
    sock = socket.create_server(("::1", 0), family=socket.AF_INET6)
    ends.address = sock.getsockname()[:2]
    ends.opened.append(Listener(ends.loop, sock, ends.server, {}, Security()))
    connection, _, other = ends.pair()
    assert connection.peer == f"[::1]:{ends.address[1]}"
    assert other.peer.startswith("[::1]:")
    assert connection.own_address() == "::1"


def test_dual_stack_socket_reports_plain_ipv4_peer_address(ends: Ends) -> None:
    """The listener accepts IPv4 and IPv6 on all addresses."""
    sock = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    ends.address = ("127.0.0.1", sock.getsockname()[1])
    ends.opened.append(Listener(ends.loop, sock, ends.server, {}, Security()))
    _, _, other = ends.pair()
    assert other.peer.startswith("127.0.0.1:")
    assert other.own_address() == "127.0.0.1"


def test_store_client_is_diverted_before_its_data_is_read(ends: Ends) -> None:
    """A client whose first byte is 0 is passed to `divert` before anything is read."""
    diverted: list[socket.socket] = []
    ends.listen(WITH_TOKEN, divert=diverted.append)
    ends.raw(b"\0\1\2")
    ends.until(lambda: diverted)
    (sock,) = diverted
    ends.settle()
    assert sock.recv(10) == b"\0\1\2"
    assert sock not in ends.loop
    sock.close()
    ends.pair(WITH_TOKEN)
    assert not ends.refused and not ends.server.reasons


def test_listener_hello_can_be_changed(ends: Ends) -> None:
    """Peers that connect later receive the new hello."""
    listener = ends.listen()
    ends.pair()
    listener.hello = {"run": "later"}
    _, log, _ = ends.pair()
    assert log.hellos[0]["run"] == "later"


def test_open_connections_outlive_their_listener(ends: Ends) -> None:
    """Closing the listener only closes connections that aren't open yet."""
    listener = ends.listen()
    connection, _, _ = ends.pair()
    silent = ends.raw()
    ends.settle()
    listener.close()
    assert silent.recv(1) == b""
    connection.send({"type": "x"})
    ends.until(lambda: ends.server.messages)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(ends.address, timeout=LIMIT_S)


def test_idle_connections_do_not_wake_the_loop(ends: Ends) -> None:
    """With nothing to send, no connection is left watching for writability."""
    ends.listen(WITH_TOKEN)
    connection, _, _ = ends.pair(WITH_TOKEN)
    for _ in range(8):
        connection.send({"type": "x", "text": "x" * (1 << 20)})
    ends.until(lambda: len(ends.server.messages) == 8)
    ends.settle()
    start = ends.loop.now()
    ends.loop.run_once(0.3)
    assert ends.loop.now() - start > 0.29


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_numeric_address_resolves_to_itself(ends: Ends, host: str) -> None:
    """The callback is called from the loop."""
    found: list[object] = []
    resolve(ends.loop, host, 29400, lambda addresses, error: found.append((addresses, error)))
    assert not found
    ends.until(lambda: found)
    assert found == [([(host, 29400)], "")]


def test_names_are_resolved_in_background(ends: Ends) -> None:
    """A name yields addresses to connect to, and an unknown name yields an error message."""
    found: dict[str, tuple[list[tuple[str, int]], str]] = {}
    names = ["localhost", "no-such-host.invalid", "bad\0name", "x" * 300, "bücher..invalid"]
    for name in names:
        resolve(ends.loop, name, 1, lambda a, e, name=name: found.update({name: (a, e)}))
    ends.until(lambda: len(found) == len(names))
    addresses, error = found["localhost"]
    assert ("127.0.0.1", 1) in addresses or ("::1", 1) in addresses
    assert not error
    for name in names[1:]:
        addresses, error = found[name]
        assert not addresses and error


def test_slow_name_lookup_does_not_block_the_loop(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are still served during a name lookup."""
    real, (hold, release) = socket.getaddrinfo, os.pipe()

    def slow(host: object, *rest: object, **options: object) -> object:
        if host == b"slow.test" and "flags" not in options:
            os.read(hold, 1)
            host = b"127.0.0.1"
        return real(host, *rest, **options)

    found: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", slow)
        ends.listen()
        resolve(ends.loop, "slow.test", 1, lambda addresses, _: found.append(addresses))
        ends.pair()
        assert not found
        os.write(release, b"x")
        ends.until(lambda: found)
    assert found == [[("127.0.0.1", 1)]]
    os.close(hold)
    os.close(release)


def test_plain_connection_imports_no_hashlib_ssl_or_threading() -> None:
    """Without a token or TLS, neither hashlib nor ssl is loaded. Threads are never loaded."""
    script = (
        "import socket, sys\n"
        "from relight.net import connection as c, listener\n"
        "from relight.host.loop import Loop\n"
        "class Owner:\n"
        "    def opened(self, connection, hello): done.append(1)\n"
        "    received = closed = opened\n"
        "done = []\n"
        "loop = Loop()\n"
        "sock = socket.create_server(('127.0.0.1', 0))\n"
        "listener.Listener(loop, sock, Owner(), {}, c.Security())\n"
        "c.dial(loop, sock.getsockname(), Owner(), {}, c.Security())\n"
        "loop.run_until(lambda: len(done) == 2)\n"
        "c.dns.resolve(loop, '127.0.0.1', 1, lambda *_: done.append(1))\n"
        "loop.run_until(lambda: len(done) == 3)\n"
        "names = 'ssl hmac hashlib threading asyncio encodings.idna random'.split()\n"
        "print([name for name in names if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert result.stdout == "[]\n"


def _hello() -> bytes:
    hello = {"type": "hello", "nonce": "ab" * 32, "token": False}
    return wire.GREETING + wire.encode(hello)


def test_nagle_is_disabled(ends: Ends) -> None:
    """Both ends turn off the delay with which TCP collects small messages."""
    ends.listen()
    connection, _, other = ends.pair()
    for end in (connection, other):
        assert end._stream._sock is not None
        assert end._stream._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_message_received_byte_by_byte_is_decoded(ends: Ends) -> None:
    ends.listen()
    client = ends.raw()
    for byte in _hello() + wire.encode({"type": "x"}):
        client.sendall(bytes([byte]))
        ends.loop.run_once(0.01)
    ends.until(lambda: ends.server.messages == [{"type": "x"}])


def test_tcp_self_connection_counts_as_refused(ends: Ends) -> None:
    """TCP can connect a socket to itself, which means that nothing else is listening there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        ends.address = probe.getsockname()
    sock = socket.socket()
    sock.bind(ends.address)
    sock.connect(ends.address)
    log = Log()
    connection = Connection(ends.loop, sock, log, {}, Security(), dialled=True)
    ends.opened.append(connection)
    ends.until(lambda: log.reasons)
    assert log.reasons == ["this side received its own hello"]
    assert connection.refused


def test_stale_socket_event_does_not_complete_connection(ends: Ends) -> None:
    """A connection that is woken up before it is established keeps waiting."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        ends.address = full.getsockname()
        dialled = [ends.dial() for _ in range(6)]
        for connection, _ in dialled:
            connection._stream._wake()
        ends.settle()
        waiting = [c for c, _ in dialled if c._stream.connecting]
        assert waiting
        assert not any(log.reasons for _, log in dialled)


def test_pending_messages_are_read_after_failed_write(ends: Ends) -> None:
    ends.listen()
    client = ends.raw(_hello())
    ends.until(lambda: ends.server.connections)
    (connection,) = ends.server.connections
    client.recv(65536)
    client.sendall(wire.encode({"type": "why"}))
    client.close()
    deadline = time.monotonic() + LIMIT_S
    while not connection._doom and time.monotonic() < deadline:
        connection.send({"type": "x"})
    assert connection._doom
    ends.until(lambda: ends.server.reasons)
    assert ends.server.messages == [{"type": "why"}]
    assert ends.server.reasons == ["the peer closed the connection"]


def test_wire_format_is_plain_json(ends: Ends) -> None:
    """On the wire there is a greeting, followed by readable JSON."""
    ends.listen()
    client = ends.raw(_hello())
    ends.until(lambda: ends.server.connections)
    data = client.recv(65536)
    assert data.startswith(b"relight 3\n")
    body = json.loads(data[len(wire.GREETING) + 4 :])
    assert body["type"] == "hello" and body["run"] == "listener"
    assert connections.OPEN_TIMEOUT_S == 5
