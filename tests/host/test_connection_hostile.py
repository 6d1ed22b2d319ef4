"""Broken, unknown or hostile peers are turned away without affecting others."""

import collections
import contextlib
import json
import os
import random
import resource
import socket
import struct
from collections.abc import Iterator

import pytest
from ends import Ends, read_all

from relight.core.link import authentication, wire
from relight.net import connection as connections
from relight.net import listener as listeners
from relight.net.connection import Security

TOKEN = Security(b"token")
HELLO = {"type": "hello", "nonce": "ab" * 32, "token": False}


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give unauthenticated peers a third of a second."""
    for function in (connections.Connection.__init__, connections.dial):
        defaults = function.__kwdefaults__
        monkeypatch.setitem(defaults, "timeout_s", 0.3)


def greeting(**hello: object) -> bytes:
    return wire.GREETING + wire.encode({**HELLO, **hello})


@pytest.mark.parametrize("security", [Security(), TOKEN], ids=["open", "token"])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "its first bytes were"),
        (b"\x16\x03\x01\x02\x00\x01", "it uses TLS"),
        (b"\0" * 64, "its first bytes were"),
        (wire.GREETING + b"\xff\xff\xff\xff" + b"x" * 64, "4294967295 bytes exceeds the limit"),
        (wire.GREETING + struct.pack(">I", 4097), "exceeds the limit of 4096"),
        (wire.GREETING + wire.frame(b"[" * 4000), "not valid JSON"),
        (wire.GREETING + wire.frame(b""), "not valid JSON"),
        (wire.GREETING + wire.encode({"type": "heartbeat"}), "before it was authenticated"),
        (
            wire.GREETING + wire.encode({"type": "proof", "mac": "00"}),
            "before it was authenticated",
        ),
        (wire.GREETING + wire.encode({"type": "hello"}), "without a nonce"),
        (wire.GREETING + wire.encode({"type": "x" * 3000}), "before it was authenticated"),
    ],
)
def test_peer_without_greeting_gets_no_response(
    ends: Ends, security: Security, data: bytes, words: str
) -> None:
    """The owner isn't notified about that peer."""
    ends.listen(security)
    client = ends.raw(data)
    assert read_all(client, ends) == b""
    (line,) = ends.refused
    assert words in line and line.startswith("127.0.0.1:")
    assert len(line) < 300
    assert not ends.server.connections and not ends.server.reasons
    ends.pair(security)


def test_random_bytes_are_rejected(ends: Ends) -> None:
    """Hundreds of random byte streams do no harm, whether they follow a greeting, a hello or
    nothing.
    """
    ends.listen(TOKEN)
    chance = random.Random(7)
    starts = (b"", wire.GREETING, greeting(token=True))
    clients = []
    for number in range(300):
        clients.append(ends.raw(starts[number % 3] + chance.randbytes(chance.randrange(1, 5000))))
        clients[-1].shutdown(socket.SHUT_WR)
        ends.loop.run_once(0.001)
    ends.until(lambda: len(ends.refused) == 300)
    assert not ends.server.connections
    ends.pair(TOKEN)


def test_unauthenticated_peer_times_out(ends: Ends, short: None) -> None:
    """Silence, half a frame, and a byte now and then all end at the same deadline."""
    ends.listen(TOKEN)
    silent, half = ends.raw(), ends.raw(wire.GREETING + b"\0\0\0\x40{")
    unproven, slow = ends.raw(greeting(token=True)), ends.raw()
    started = ends.loop.now()
    feed = iter(wire.GREETING + struct.pack(">I", 4000) + b"{" * 4000)
    due = started

    def drip() -> bool:
        nonlocal due
        if ends.loop.now() >= due:
            due += 0.01
            with contextlib.suppress(OSError):
                slow.sendall(bytes([next(feed)]))
        return len(ends.refused) == 4

    ends.until(drip)
    reasons = collections.Counter(line.split(": ", 1)[1] for line in ends.refused)
    words = "no response to the greeting within 0.3 s (is it relight?)"
    assert reasons == {words: 3, "no proof within 0.3 s": 1}
    for client in (silent, half, unproven, slow):
        read_all(client, ends)


def test_authentication_deadline_does_not_apply_to_open_connections(
    ends: Ends, short: None
) -> None:
    """The deadline for authentication no longer applies after the proof."""
    ends.listen(TOKEN)
    connection, log, other = ends.pair(TOKEN)
    deadline = ends.loop.now() + 0.8
    ends.until(lambda: ends.loop.now() > deadline)
    assert connection.is_open and other.is_open and not log.reasons


def test_connection_to_silent_listener_times_out(ends: Ends, short: None) -> None:
    """The error names an unknown process that holds the endpoint's port, accepts the connection
    and sends nothing.
    """
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        ends.address = stranger.getsockname()
        connection, log = ends.dial(TOKEN)
        ends.until(lambda: log.reasons)
    assert log.reasons == ["no response to the greeting within 0.3 s (is it relight?)"]
    assert not connection.refused


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "does not speak relight's protocol"),
        (wire.GREETING + wire.frame(b"x" * 4000), "not valid JSON"),
        (wire.GREETING + b"\xff\xff\xff\xff", "exceeds the limit of 4096"),
        (wire.GREETING + wire.encode({"type": "generation"}), "before it was authenticated"),
        (greeting(token=True) + wire.encode({"type": "generation"}), "before it was authenticated"),
        (
            greeting(token=True) + wire.encode({"type": "proof", "mac": "ab" * 32}),
            "the peer has a different token",
        ),
        (
            wire.GREETING + wire.encode({"type": "refused", "reason": "\x1b[31m"}),
            "without a reason",
        ),
        (wire.GREETING + wire.encode({"type": "refused", "reason": ["tls"]}), "without a reason"),
        (b"", "instead of sending a greeting"),
        (wire.GREETING[:4], "instead of sending a greeting"),
        (greeting(token=True), "after its hello"),
    ],
)
def test_unauthenticated_listener_is_rejected_with_a_reason(
    ends: Ends, answer: bytes, words: str
) -> None:
    """The dialler accepts no message from a listener that hasn't proved itself."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        ends.address = stranger.getsockname()
        _, log = ends.dial(TOKEN)
        ends.loop.run_once(0.1)
        client, _ = stranger.accept()
        client.sendall(answer)
        client.shutdown(socket.SHUT_WR)
        ends.until(lambda: log.reasons)
        client.close()
    assert words in log.reasons[0]
    assert not log.messages and not log.hellos


@pytest.mark.parametrize(
    ("listener", "dialler", "at_listener", "at_dialler"),
    [
        (b"a", b"b", "has a different token", "a different token than this node"),
        (b"a", b"", "the peer has no token", "this job requires a token; set RELIGHT_TOKEN"),
        (b"", b"a", "this job requires a token; set RELIGHT_TOKEN", "the peer has no token"),
    ],
)
def test_token_mismatch_is_reported_on_both_sides(
    ends: Ends, listener: bytes, dialler: bytes, at_listener: str, at_dialler: str
) -> None:
    """Wrong, missing and unexpected tokens each have their own error, at both ends."""
    ends.listen(Security(listener))
    _, log = ends.dial(Security(dialler))
    ends.until(lambda: log.reasons and ends.refused)
    assert at_listener in ends.refused[0]
    assert at_dialler in log.reasons[0]
    assert not ends.server.connections and not ends.server.reasons and not log.hellos


def test_replayed_messages_do_not_open_a_connection(ends: Ends) -> None:
    """Replaying messages from a dialler that has the token doesn't open a connection."""
    with socket.create_server(("127.0.0.1", 0)) as between:
        listener_address = None
        ends.listen(TOKEN)
        listener_address, ends.address = ends.address, between.getsockname()
        connection, _ = ends.dial(TOKEN)
        ends.loop.run_once(0.1)
        inner, _ = between.accept()
        ends.address = listener_address
        outer = ends.raw()
        recorded = bytearray()
        for sock in (inner, outer):
            sock.setblocking(False)

        def relay() -> bool:
            for source, target, tape in ((inner, outer, recorded), (outer, inner, bytearray())):
                try:
                    data = source.recv(65536)
                except BlockingIOError:
                    continue
                tape += data
                target.sendall(data)
            return connection.is_open and bool(ends.server.connections)

        ends.until(relay)
        inner.close()
    replayed = ends.raw(bytes(recorded))
    read_all(replayed, ends)
    assert "has a different token" in ends.refused[0]
    assert len(ends.server.connections) == 1


def test_injected_frame_closes_authenticated_connection(ends: Ends) -> None:
    """A frame that the peer didn't seal is never decoded."""
    ends.listen(TOKEN)
    connection, _, other = ends.pair(TOKEN)
    connection.send({"type": "heartbeat"})
    ends.until(lambda: ends.server.messages)
    assert connection._stream._sock is not None
    connection._stream._sock.send(wire.frame(wire.encode_body({"type": "stop"}) + b"\0" * 16))
    ends.until(lambda: ends.server.reasons)
    assert "frame authentication failed" in ends.server.reasons[0]
    assert ends.server.messages == [{"type": "heartbeat"}]
    assert not other.is_open


def test_frame_size_is_still_limited_after_authentication(ends: Ends) -> None:
    """An authenticated peer may send frames of up to 4 MiB."""
    ends.listen()
    client = ends.raw(greeting() + b"\x10\0\0\0")
    read_all(client, ends)
    (reason,) = ends.server.reasons
    assert "exceeds the limit" in reason


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Let this process open 8192 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 8192:
        pytest.skip("the machine allows fewer than 8192 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thousands_of_idle_connections_do_not_block_others(
    many_descriptors: None, ends: Ends
) -> None:
    """With thousands of silent unknown peers, the group's connections still open and exchange
    messages.
    """
    ends.listen(TOKEN)
    connection, log, _ = ends.pair(TOKEN)
    clients = []
    for number in range(2500):
        clients.append(ends.raw(wire.GREETING[: number % 8]))
        if number % 50 == 0:
            connection.send({"type": "heartbeat"})
            ends.loop.run_once(0.001)
    ends.until(lambda: len(ends.server.messages) == 50)
    for _ in range(10):
        ends.pair(TOKEN)
    ends.until(lambda: len(ends.refused) >= 2500 - listeners.MAX_STRANGERS)
    assert "dropped: too many connections" in ends.refused[0]
    assert not log.reasons and not ends.server.reasons


def test_oldest_unauthenticated_peer_is_dropped_when_limit_is_exceeded(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open connections aren't affected."""
    monkeypatch.setattr(listeners, "MAX_STRANGERS", 3)
    ends.listen()
    connection, log, _ = ends.pair()
    clients = [ends.raw() for _ in range(5)]
    ends.until(lambda: len(ends.refused) == 2)
    assert all("dropped: too many connections" in line for line in ends.refused)
    assert read_all(clients[0], ends) == b"" and read_all(clients[1], ends) == b""
    with pytest.raises(BlockingIOError):
        clients[2].setblocking(False)
        clients[2].recv(1)
    connection.send({"type": "x"})
    ends.until(lambda: ends.server.messages)
    ends.pair()
    assert not log.reasons


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Use up all of this process's file descriptors inside the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    fill = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        with contextlib.suppress(OSError):
            while True:
                fill.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fill:
            os.close(fd)


def test_unauthenticated_peer_is_dropped_when_descriptors_run_out(ends: Ends) -> None:
    """Its descriptor is used for the next connection."""
    ends.listen()
    connection, _, _ = ends.pair()
    stranger = ends.raw()
    ends.settle()
    with socket.socket() as newer, no_descriptor_left():
        newer.connect(ends.address)
        newer.sendall(greeting())
        ends.until(lambda: len(ends.server.connections) == 2)
        connection.send({"type": "x"})
        ends.until(lambda: ends.server.messages)
    assert "dropped: too many connections" in ends.refused[0]
    assert stranger.recv(1) == b""


def test_listener_pauses_when_descriptors_run_out(ends: Ends) -> None:
    """If no peer can be dropped either, the listener pauses instead of spinning, and accepts again
    later.
    """
    ends.listen()
    connection, _, _ = ends.pair()
    with socket.socket() as newer:
        with no_descriptor_left():
            newer.connect(ends.address)
            newer.sendall(greeting())
            turns, started = 0, ends.loop.now()
            while ends.loop.now() - started < 0.5:
                ends.loop.run_once(0.1)
                turns += 1
            assert turns < 50
            connection.send({"type": "x"})
            ends.until(lambda: ends.server.messages)
        ends.until(lambda: len(ends.server.connections) == 2)


def test_connection_reset_is_treated_like_a_normal_close(ends: Ends) -> None:
    """It doesn't matter whether the peer resets the connection before or after its hello."""
    ends.listen()
    for data in (b"", b"rel", greeting()):
        client = ends.raw(data)
        ends.settle()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    ends.until(lambda: len(ends.refused) == 2 and ends.server.reasons)
    assert ends.server.reasons == ["the peer closed the connection"]
    ends.pair()


def test_hello_replaced_by_man_in_the_middle_opens_no_connection(ends: Ends) -> None:
    ends.listen(TOKEN)
    client = ends.raw(greeting(token=True, run="mine"))
    client.settimeout(0.05)
    data = bytearray()

    def answered() -> bool:
        try:
            data.extend(client.recv(65536))
        except TimeoutError:
            pass
        return len(data) > len(wire.GREETING) + 4

    ends.until(answered)
    answer = bytes(data[len(wire.GREETING) + 4 :])
    assert json.loads(answer)["token"] is True
    swapped = wire.encode_body({**HELLO, "token": True, "run": "other"})
    proof = authentication.Transcript(b"token", swapped, answer).proof(authentication.DIALLER)
    client.sendall(wire.encode({"type": "proof", "mac": proof}))
    ends.until(lambda: ends.refused)
    assert "has a different token" in ends.refused[0]
    assert not ends.server.connections


def test_connecting_to_peer_with_different_protocol_counts_as_rejection(ends: Ends) -> None:
    """The agent therefore gives up with the reason after a while instead of waiting forever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ends.address = server.getsockname()
        connection, log = ends.dial()
        peer, _ = server.accept()
        with peer:
            peer.sendall(b"relight 987\n")
            ends.until(lambda: bool(log.reasons))
    assert connection.turned_away
    assert "protocol 987" in log.reasons[0]
    assert "install the same version on all nodes" in log.reasons[0]
