"""Etcd endpoints that are invalid, or where nothing or something else is listening."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from conftest import LIMIT_S
from etcd_server import EtcdServer

from relight.base.errors import UsageError
from relight.rendezvous import etcd
from relight.rendezvous.leader_lock import NOBODY, LeaderLock
from rendezvous.claims import Place

New = Callable[..., LeaderLock]
LONG_S = 60.0


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
REPLIES = {
    "nothing": b"",
    "text": b"220 mail.example.com ESMTP\r\n",
    "bytes": bytes(range(256)),
    "no body": HEAD + b"Content-Length: 0\r\n\r\n",
    "short": HEAD + b"Content-Length: 100\r\n\r\n{}",
    "list": HEAD + b"Content-Length: 2\r\n\r\n[]",
    "object": HEAD + b"Content-Length: 2\r\n\r\n{}",
    "page": b"HTTP/1.1 200 OK\r\n\r\n<html>Please log in</html>",
    "deep": HEAD + b"\r\n" + b"[" * 60000,
    "long": HEAD + b"\r\n" + b" " * 1_000_000,
    "endless": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b"x" * 0x400 + b"\r\n",
    "headers": HEAD + b"X: y\r\n" * 200 + b"\r\n{}",
    "redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    "error": b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\noops",
    "numbers": HEAD + b"Content-Length: %d\r\n\r\n%s" % (80, b'{"header":{},"kvs":[{"create_'
        b'revision":"' + b"9" * 10 + b'","value":"!"}],"node":1   }'),
}  # fmt: skip


@pytest.fixture
def impostor() -> Iterator[Callable[[bytes], str]]:
    """A server that sends the same response to every request."""
    listener = socket.create_server(("127.0.0.1", 0))
    reply = [b""]

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.settimeout(5)
            with client:
                try:
                    client.recv(65536)
                    client.sendall(reply[0])
                except OSError:
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def begin(answer: bytes) -> str:
        reply[0] = answer
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield begin
    listener.shutdown(socket.SHUT_RDWR)
    thread.join(LIMIT_S)
    listener.close()


@pytest.mark.parametrize("name", list(REPLIES))
def test_garbage_response_error_shows_the_endpoint(
    impostor: Callable[[bytes], str], name: str, registers: New
) -> None:
    """Whatever responds instead of etcd, the result is a one-line error that names the endpoint."""
    endpoint = impostor(REPLIES[name])
    register = registers(Place("etcd", endpoint, "job"))
    for value in ("", "mine"):
        with pytest.raises(OSError, match=endpoint) as caught:
            register.hold(value, LONG_S)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500


def test_error_lists_every_endpoint_tried(registers: New) -> None:
    """The error has the reason for each endpoint that was tried."""
    with socket.create_server(("127.0.0.1", 0)) as full:
        silent = f"127.0.0.1:{full.getsockname()[1]}"
        register = registers(Place("etcd", f"{silent},127.0.0.1:1,name.invalid", "job"))
        with pytest.raises(OSError, match="etcd at") as caught:
            register.hold("a", 1.0)
    assert f"etcd at {silent}: no response within 0.5 s" in str(caught.value)
    assert "etcd at 127.0.0.1:1: Connection refused" in str(caught.value)
    assert "etcd at name.invalid:2379: the name does not resolve" in str(caught.value)


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("", "no --rdzv-endpoint"),
        ("host:0", "port 0"),
        ("host:99999", "from 0 to 65535"),
        ("host:port", "'port' is not a port number"),
        ("host:2379,", "no host between two commas"),
        ("https://host:2379", "contradicts protocol=http"),
        ("http://a:1,ftp://b:2", "contradicts protocol=http"),
        ("http://host:2379/v3", "names no host"),
        ("[::1", "expected"),
    ],
)
def test_invalid_etcd_endpoint_is_rejected_up_front(endpoint: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        etcd.open(endpoint, "job", {}, "etcd")


@pytest.mark.needs_etcd
def test_etcd_member_urls_are_accepted_as_endpoints(server: EtcdServer, registers: New) -> None:
    """Members may be given as the URLs that etcd itself prints."""
    place = Place("etcd", f"http://{server.endpoint}/,http://127.0.0.1:1", "urls")
    assert registers(place).hold("value", 20).ours


@pytest.mark.needs_etcd
def test_etcd_endpoint_may_be_a_hostname_or_ipv6_address(
    server: EtcdServer, registers: New
) -> None:
    """An IPv6 address is written in brackets."""
    port = server.ports[0]
    assert registers(Place("etcd", f"localhost:{port}", "names")).hold("", LONG_S) == NOBODY
    with pytest.raises(OSError, match=r"etcd at \[::1\]:1: "):
        registers(Place("etcd", "[::1]:1", "names")).hold("", LONG_S)
    assert registers(Place("etcd", f"[::1]:1,127.0.0.1:{port}", "names")).hold("", 9) == NOBODY


def test_invalid_protocol_is_rejected_when_lock_is_opened() -> None:
    with pytest.raises(UsageError, match="protocol=ftp"):
        etcd.open("host", "job", {"protocol": "ftp"}, "etcd")


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"HTTP/1.1 200"]
)
def test_member_that_responds_byte_by_byte_times_out(registers: New, head: bytes) -> None:
    """A member that only sends a byte now and then times out like a silent one."""
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        while not ended.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                try:
                    client.recv(65536)
                    client.sendall(head)
                    while not ended.wait(0.05):
                        client.sendall(b" ")
                except OSError:
                    continue

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        try:
            place = Place("etcd", f"127.0.0.1:{listener.getsockname()[1]}", "drip")
            with pytest.raises(OSError, match=r"no response within 0\.5 s"):
                registers(place).hold("", 1.0)
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
