"""Any process can reach the workers' store, and none can harm the other clients."""

import random
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
import store_server as wire
from store_server import Peer, StoreServer, i64, keys, text, u64

from relight.host.loop import Loop
from relight.net.ports import bind
from relight.net.tcp_store import TCPStore

MIB = 1024 * 1024
KEY_LIMIT, VALUE_LIMIT = 8 * 1024, 8 * MIB

Serve = Callable[..., StoreServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start stores. At the end, each must still serve others and exit cleanly."""
    servers: list[StoreServer] = []

    def begin(port: int = 0, **limits: float) -> StoreServer:
        servers.append(StoreServer(port, **limits))
        return servers[-1]

    yield begin
    for server in servers:
        try:
            still_serves(server)
        finally:
            server.close()


def still_serves(server: StoreServer) -> None:
    with Peer(server.port) as peer:
        peer.set(b"still", b"here")
        assert peer.get(b"still") == b"here"


TRANSCRIPT = {  # every request in sequence, with its answer
    wire.VALIDATE: b"",
    wire.SET + text(b"k") + text(b"value"): b"",
    wire.APPEND + text(b"k") + text(b"+"): b"",
    wire.GET + text(b"k"): text(b"value+"),
    wire.COMPARE_SET + text(b"k") + text(b"value+") + text(b"new"): text(b"new"),
    wire.ADD + text(b"n") + i64(-7): i64(-7),
    wire.CHECK + keys(b"k", b"n"): b"\0",
    wire.CHECK + keys(b"k", b"none"): b"\1",
    wire.CHECK + keys(): b"\0",
    wire.WAIT + keys(b"n", b"k", b"n"): wire.STOP_WAITING,
    wire.WAIT + keys(): wire.STOP_WAITING,
    wire.NUM_KEYS: i64(2),
    wire.LIST: i64(2) + text(b"k") + text(b"n"),
    wire.MULTI_GET + keys(b"n", b"none", b"k"): text(b"-7") + text(b"") + text(b"new"),
    wire.MULTI_GET + keys(): b"",
    wire.MULTI_SET + u64(2) + text(b"x") + text(b"1") + text(b"") + text(b""): b"",
    wire.MULTI_SET + u64(0): b"",
    wire.GET + text(b""): text(b""),
    wire.DELETE + text(b"x"): i64(1),
    wire.DELETE + text(b"x") + wire.NUM_KEYS: i64(0) + i64(3),
    wire.PUSH + text(b"q") + text(b"one"): b"",
    wire.LENGTH + text(b"q"): i64(1),
    wire.POP + text(b"q"): i64(1) + text(b"one"),
    wire.POP + text(b"q") + wire.LENGTH + text(b"q"): i64(0) + i64(0),
    wire.CHECK + keys(b"k", b"q"): b"\1",
    wire.WAIT + keys(b"none") + wire.CANCEL: wire.WAIT_CANCELED,
    wire.BARRIER + text(b"b") + i64(1): wire.STOP_WAITING,
    wire.PING + b"\0\xff12": b"\0\xff12",
}


def test_requests_can_be_fragmented_in_any_way(serve: Serve) -> None:
    """The answers don't depend on how the requests are split into packets."""
    asked, answers = b"".join(TRANSCRIPT), b"".join(TRANSCRIPT.values())
    splits = random.Random(1)
    for largest in (len(asked), 1, 3, 50):
        with Peer(serve().port, greet=False) as peer:
            position = 0
            while position < len(asked):
                size = splits.randint(1, largest) if largest < len(asked) else largest
                peer.send(asked[position : position + size])
                position += size
            assert peer.read(len(answers)) == answers
            peer.sync()


def test_partial_request_from_disconnected_peer_has_no_effect(serve: Serve) -> None:
    """Half a request has no effect, however its sender disconnects."""
    server = serve()
    changes = (
        wire.SET + text(b"set") + text(b"value"),
        wire.APPEND + text(b"append") + text(b"value"),
        wire.COMPARE_SET + text(b"compare") + text(b"") + text(b"value"),
        wire.ADD + text(b"add") + i64(1),
        wire.MULTI_SET + u64(1) + text(b"multi") + text(b"value"),
        wire.PUSH + text(b"queue") + text(b"value"),
        wire.BARRIER + text(b"barrier") + i64(2),
    )
    for request in changes:
        for size in range(1, len(request)):
            for leave in (Peer.close, Peer.reset):
                peer = Peer(server.port)
                peer.send(request[:size])
                leave(peer)
    with Peer(server.port) as peer:
        assert peer.ask(wire.NUM_KEYS + wire.LENGTH + text(b"queue"), 16) == i64(0) * 2


HUGE = (KEY_LIMIT + 1, VALUE_LIMIT + 1, 2**31, 2**32, 2**63, 2**64 - 1)
REFUSED = {
    "no greeting": wire.GET + text(b"k"),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00",
    "wrong magic": b"\0abcd",
    "greeted twice": wire.VALIDATE * 2,
    "unknown query": wire.VALIDATE + b"\x13",
    "last query": wire.VALIDATE + b"\xff",
    "a word for a number": wire.VALIDATE + wire.SET + text(b"k") + text(b"word")
    + wire.ADD + text(b"k") + i64(1),
    "a word for a barrier": wire.VALIDATE + wire.SET + text(b"k") + text(b"word")
    + wire.BARRIER + text(b"k") + i64(1),
    "8193 bytes of key": wire.VALIDATE + wire.GET + text(b"k" * (KEY_LIMIT + 1)),
    **{f"key of {n}": wire.VALIDATE + wire.GET + u64(n) for n in HUGE},
    **{f"value of {n}": wire.VALIDATE + wire.SET + text(b"k") + u64(n) for n in HUGE[1:]},
    **{
        f"{n} times {query.hex()}": wire.VALIDATE + query + u64(n)
        for query in (wire.CHECK, wire.WAIT, wire.MULTI_GET, wire.MULTI_SET)
        for n in (128 * 1024 + 1, 2**63, 2**64 - 1)
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> Iterator[StoreServer]:
    """Provide one store for many small attacks."""
    server = StoreServer()
    yield server
    server.close()


@pytest.mark.parametrize("attack", REFUSED)
def test_malformed_request_closes_only_its_own_connection(shared: StoreServer, attack: str) -> None:
    """A peer that violates the protocol is dropped immediately, and only that peer."""
    with Peer(shared.port) as friend, Peer(shared.port, greet=False) as peer:
        peer.send(REFUSED[attack])
        assert peer.ended()
        friend.sync()
    still_serves(shared)


def test_random_bytes_do_not_affect_other_clients(shared: StoreServer) -> None:
    """Random data, with or without a greeting, doesn't affect other clients."""
    noise = random.Random(2)
    for _ in range(300):
        with Peer(shared.port, greet=noise.random() < 0.8) as peer:
            data = noise.randbytes(noise.randint(1, 300))
            if noise.random() < 0.7:  # an existing request with small lengths
                data = b"".join(
                    bytes([noise.randint(1, 18)]) + u64(noise.randint(0, 9)) + noise.randbytes(9)
                    for _ in range(20)
                )
            try:
                peer.send(data)
            except ConnectionError:
                pass  # already dropped
    still_serves(shared)


def test_largest_keys_and_values_are_accepted(shared: StoreServer) -> None:
    """Values at torch's limits are accepted, in a single request or in many."""
    key, value = b"k" * KEY_LIMIT, bytes(range(256)) * (VALUE_LIMIT // 256)
    with Peer(shared.port) as peer:
        peer.set(key, value)
        assert peer.get(key) == value
        assert peer.ask(wire.DELETE + text(key), 8) == i64(1)
        many = [b"%d" % number for number in range(128 * 1024)]
        assert peer.ask(wire.CHECK + keys(*many), 1) == b"\1"


def test_idle_connections_cost_little_and_block_no_other_client(serve: Serve) -> None:
    """Connections that send nothing cost little and block nothing."""
    server = serve()
    before = server.most_memory()
    idle = [Peer(server.port, greet=number % 2 == 0) for number in range(500)]
    still_serves(server)
    assert server.most_memory() - before < 16 * MIB
    for peer in idle:
        peer.close()


def test_client_without_greeting_is_disconnected(serve: Serve) -> None:
    """A connection without the magic number is closed after a while. One that sent it
    stays open.
    """
    server = serve(_MAX_SILENT_S=0.5)
    with (
        Peer(server.port) as friend,
        Peer(server.port, greet=False) as silent,
        Peer(server.port, greet=False) as half,
    ):
        half.send(wire.VALIDATE[:3])
        assert silent.ended()
        assert half.ended()
        friend.sync()


def test_clients_cannot_use_up_the_agents_descriptors(serve: Serve) -> None:
    """Beyond a certain share of the descriptors, new clients are refused until others have left."""
    server = serve(files=128)
    friends = [Peer(server.port) for _ in range(64)]
    for friend in friends:
        friend.sync()
    for _ in range(10):
        with Peer(server.port, greet=False) as refused:
            assert refused.ended()
    friends[0].sync()
    for friend in friends:
        friend.close()
    # The fixture reconnects. It may have to retry until the server has noticed that they left.
    for _ in range(1000):
        with Peer(server.port, greet=False) as peer:
            peer.socket.settimeout(0.05)
            try:
                assert peer.socket.recv(1) == b""
            except TimeoutError:
                return
    pytest.fail("nobody is served any more")


LONG = b"k" * KEY_LIMIT
ANSWERS = {  # requests, the answer to each, and their number
    "values": (wire.GET + text(LONG), text(bytes(MIB)), 40),
    "lists of values": (wire.MULTI_GET + keys(*[LONG] * 40), text(bytes(MIB)) * 40, 2),
    "lists of keys": (wire.LIST, i64(1) + text(LONG), 5_000),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_peer_that_reads_no_responses_costs_little_memory(serve: Serve, kind: str) -> None:
    """The server stops reading from it until it reads. Then it gets all answers in order."""
    request, answer, count = ANSWERS[kind]
    server = serve()
    with Peer(server.port) as peer:
        peer.set(LONG, bytes(MIB))
        before = server.most_memory()
        unsent = memoryview(request * count)
        peer.socket.settimeout(0.3)
        try:
            while unsent:
                unsent = unsent[peer.socket.send(unsent) :]
        except TimeoutError:
            pass  # the server has stopped reading
        peer.socket.settimeout(20)
        with Peer(server.port) as friend:
            assert friend.get(LONG) == bytes(MIB)
        assert server.most_memory() - before < 16 * MIB
        rest = threading.Thread(target=peer.send, args=(unsent,))
        rest.start()
        for _ in range(count):
            assert peer.read(len(answer)) == answer
        rest.join()
        peer.sync()


def test_unread_responses_to_disconnected_peer_are_discarded(serve: Serve) -> None:
    """Unread answers, and waits by peers that are gone, are discarded."""
    server = serve()
    with Peer(server.port) as friend:
        friend.set(b"big", bytes(MIB))
        for leave in (Peer.close, Peer.reset):
            reader, waiter = Peer(server.port), Peer(server.port)
            reader.send((wire.GET + text(b"big")) * 100)
            waiter.wait(b"later", b"never")
            leave(reader)
            leave(waiter)
        friend.set(b"later", b"1")


def test_endless_request_costs_little_memory(serve: Serve) -> None:
    """Values in a MULTI_SET are stored as they arrive, and the number of keys in a WAIT
    is limited.
    """
    server = serve()
    with Peer(server.port) as peer:
        before = server.most_memory()
        peer.send(wire.MULTI_SET + u64(128 * 1024))
        for _ in range(40):
            peer.send(text(b"same") + text(bytes(MIB)))
        still_serves(server)
        assert server.most_memory() - before < 16 * MIB
    with Peer(server.port) as peer:
        with pytest.raises(ConnectionError):
            peer.send(wire.WAIT + u64(128 * 1024))
            for _ in range(128 * 1024):
                peer.send(text(bytes(KEY_LIMIT)))
        assert server.most_memory() - before < 160 * MIB


def test_only_the_latest_of_several_pending_waits_counts(serve: Serve) -> None:
    """A peer that keeps sending waits without getting an answer only waits for the last one."""
    with Peer(serve().port) as peer, Peer(peer.socket.getpeername()[1]) as friend:
        peer.send(wire.WAIT + keys(*[b"%d" % n for n in range(1000)]))
        peer.wait(b"a", b"b")
        peer.wait(b"last")
        friend.set(b"a", b"")
        friend.set(b"b", b"")
        peer.sync()
        friend.set(b"last", b"")
        assert peer.read(1) == wire.STOP_WAITING


def test_full_store_rejects_values_and_keeps_serving(serve: Serve) -> None:
    """A value that doesn't fit ends its connection. Deleting frees exactly as many bytes."""
    server = serve(_MAX_STORED=10_000)
    grow = (
        wire.SET + text(b"k") + text(bytes(9_500)),
        wire.APPEND + text(b"a") + text(bytes(4_000)) + wire.APPEND + text(b"a")
        + text(bytes(5_500)),
        wire.PUSH + text(b"q") + text(bytes(9_500)),
        wire.MULTI_SET + u64(2) + text(b"k") + text(b"") + text(b"l") + text(bytes(9_500)),
        wire.COMPARE_SET + text(b"k") + text(b"") + text(bytes(9_500)),
        b"".join(wire.ADD + text(b"%d" % n) + i64(1) for n in range(20)),
    )  # fmt: skip
    shrink = b"".join(wire.DELETE + text(b"%d" % n) for n in range(20))
    for request in grow:
        with Peer(server.port) as peer:
            peer.send(request)
            peer.socket.recv(200)  # ADD's answers
            while not peer.ended():
                pass
        with Peer(server.port) as peer:
            peer.send(shrink + b"".join(wire.DELETE + text(key) for key in (b"k", b"l", b"a")))
            peer.read(23 * 8)
            peer.sync()
    with Peer(server.port) as peer:
        for _ in range(200):  # if anything were counted twice, the store would soon be full
            peer.set(b"k", bytes(3_000))
            peer.set(b"k", bytes(5_000))
            peer.send(wire.APPEND + text(b"k") + text(bytes(2_000)))
            assert peer.ask(wire.DELETE + text(b"k"), 8) == i64(1)
            peer.send(wire.PUSH + text(b"q") + text(bytes(7_000)) + wire.POP + text(b"q"))
            assert peer.number() == 1
            assert len(peer.value()) == 7_000


def test_later_requests_from_dropped_peer_are_not_executed(serve: Serve) -> None:
    """After a violation, the rest of the same packet is ignored."""
    server = serve()
    with Peer(server.port) as peer:
        peer.send(wire.SET + text(b"before") + text(b"") + b"\xff" + wire.SET + text(b"after"))
        assert peer.ended()
    with Peer(server.port) as peer:
        assert peer.ask(wire.CHECK + keys(b"before"), 1) == b"\0"
        assert peer.ask(wire.CHECK + keys(b"after"), 1) == b"\1"


def test_port_can_be_reused_immediately(serve: Serve) -> None:
    """A generation's store may take the port of the previous one, even while connections to that
    linger.
    """
    first = StoreServer()
    peers = [Peer(first.port) for _ in range(5)]
    peers[0].set(b"old", b"generation")
    first.close(connected=True)
    with Peer(serve(first.port).port) as peer:
        assert peer.ask(wire.NUM_KEYS, 8) == i64(0)
    for peer in peers:
        assert peer.ended()
        peer.close()


def test_nagle_is_disabled() -> None:
    """Connections inherit TCP_NODELAY from the listening socket."""
    loop = Loop()
    listener = bind("127.0.0.1", 0, listen=True)
    store = TCPStore(loop, listener)
    with Peer(listener.getsockname()[1]):
        loop.run_until(lambda: bool(store._clients))
        (client,) = store._clients
        assert client._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        store.close()
    loop.close()
