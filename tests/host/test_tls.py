"""TLS in both directions between two ends of a connection, with certificates created by openssl."""

import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S
from ends import Ends, read_all

from relight.base.errors import UsageError
from relight.core.link import wire
from relight.net.connection import Security
from relight.net.tls import contexts

pytestmark = pytest.mark.needs_openssl


def openssl(*arguments: object) -> None:
    subprocess.run(
        ["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=LIMIT_S
    )


def make_authority(directory: Path, name: str) -> Path:
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
    openssl(
        "req", "-x509", "-new", "-key", key, "-subj", f"/CN={name}", "-days", 2,
        "-out", certificate,
    )  # fmt: skip
    return certificate


def make_node(directory: Path, name: str, authority: Path, days: int = 2) -> tuple[Path, Path]:
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    request = directory / f"{name}.csr"
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
    openssl("req", "-new", "-key", key, "-subj", f"/CN={name}", "-out", request)
    openssl(
        "x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority.with_suffix(".key"),
        "-CAcreateserial", "-days", days, "-out", certificate,
    )  # fmt: skip
    return certificate, key


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an authority `ca` with nodes `a` and `b`, and a stranger from the
    authority `other`.
    """
    directory = tmp_path_factory.mktemp("tls")
    authority, other = make_authority(directory, "ca"), make_authority(directory, "other")
    make_node(directory, "a", authority)
    make_node(directory, "b", authority)
    make_node(directory, "stranger", other)
    make_node(directory, "late", authority, days=-1)
    (directory / "text").write_text("no certificate")
    openssl("pkey", "-in", directory / "a.key", "-aes128", "-passout", "pass:x", "-out",
            directory / "locked.key")  # fmt: skip
    return directory


@pytest.fixture
def node(files: Path) -> Callable[..., Security]:
    def security(name: str, ca: str = "ca", secret: bytes = b"") -> Security:
        paths = (files / f"{name}.crt", files / f"{name}.key", files / f"{ca}.crt")
        return Security(secret, *contexts(*map(str, paths)))

    return security


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.close()


Node = Callable[..., Security]


@pytest.mark.parametrize("secret", [b"", b"token"])
def test_messages_are_delivered_over_tls(ends: Ends, node: Node, secret: bytes) -> None:
    """Nodes with the same authority connect, and small and large messages arrive in order in both
    directions.
    """
    ends.listen(node("a", secret=secret))
    connection, log = ends.dial(node("b", secret=secret))
    ends.until(lambda: connection.is_open and ends.server.connections)
    (other,) = ends.server.connections
    assert connection.session_key == other.session_key
    large = {"type": "large", "text": "x" * (wire.MAX_FRAME - 100)}
    for number in range(500):
        connection.send({"type": "count", "number": number})
        other.send({"type": "back", "number": number})
    for _ in range(3):
        connection.send(large)
        other.send(large)
    ends.until(lambda: len(ends.server.messages) == 503 and len(log.messages) == 503)
    assert [m.get("number") for m in ends.server.messages] == [*range(500), None, None, None]
    assert ends.server.messages[-1] == log.messages[-1] == large
    assert connection.drain() and other.drain()


def test_traffic_is_encrypted_with_tls_1_3(ends: Ends, node: Node) -> None:
    """The last message before a close also arrives."""
    ends.listen(node("a"))
    connection, log = ends.dial(node("b"))
    ends.until(lambda: connection.is_open and ends.server.connections)
    assert connection._stream._tls is not None
    assert connection._stream._tls.sock.version() == "TLSv1.3"
    (other,) = ends.server.connections
    other.send({"type": "last"})
    other.close()
    ends.until(lambda: log.reasons)
    assert log.messages == [{"type": "last"}]
    assert log.reasons == ["the peer closed the connection"]


def test_minimum_tls_version_is_1_2(ends: Ends, node: Node) -> None:
    ends.listen(node("a"))
    old = node("b")
    assert old.tls_client is not None
    old.tls_client.maximum_version = ssl.TLSVersion.TLSv1_2
    connection, _ = ends.dial(old)
    ends.until(lambda: connection.is_open and ends.server.connections)
    assert old.tls_client.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_node_with_certificate_from_another_authority_is_rejected(
    ends: Ends, node: Node, version: ssl.TLSVersion
) -> None:
    """A certificate not signed by the job's authority is useless, and both sides report why."""
    ends.listen(node("a"))
    stranger = node("stranger")  # it accepts the listener, but not vice versa
    assert stranger.tls_client is not None
    stranger.tls_client.maximum_version = version
    connection, log = ends.dial(stranger)
    ends.until(lambda: log.reasons and ends.refused)
    assert "the peer's certificate is not trusted" in ends.refused[0]
    assert "the peer does not accept our certificate" in log.reasons[0]
    assert not ends.server.connections and not connection.refused


def test_listener_with_untrusted_certificate_is_rejected(ends: Ends, node: Node) -> None:
    """The dialler checks the listener's certificate before it sends anything."""
    ends.listen(node("stranger", ca="ca"))
    _, log = ends.dial(node("b"))
    ends.until(lambda: log.reasons and ends.refused)
    assert "the peer's certificate is not trusted" in log.reasons[0]
    assert "the peer does not accept our certificate" in ends.refused[0]


def test_expired_certificate_is_rejected(ends: Ends, node: Node) -> None:
    """The error says `expired`."""
    ends.listen(node("a"))
    _, log = ends.dial(node("late"))
    ends.until(lambda: log.reasons and ends.refused)
    assert "expired" in ends.refused[0] and "expired" in log.reasons[0]


def test_peer_without_certificate_is_rejected(ends: Ends, node: Node, files: Path) -> None:
    ends.listen(node("a"))
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.load_verify_locations(files / "ca.crt")
    _, log = ends.dial(Security(tls_client=bare))
    ends.until(lambda: log.reasons and ends.refused)
    assert "peer did not return a certificate" in ends.refused[0]
    assert not ends.server.connections


def test_dialler_without_tls_gets_error_that_tls_is_required(ends: Ends, node: Node) -> None:
    ends.listen(node("a"))
    _, log = ends.dial()
    ends.until(lambda: log.reasons and ends.refused)
    assert log.reasons == ["the peer requires TLS: set tls_cert, tls_key and tls_ca"]
    assert "the peer does not use TLS" in ends.refused[0]


def test_listener_without_tls_recognises_dialler_with_tls(ends: Ends, node: Node) -> None:
    """If only the dialler uses TLS, both sides report that difference."""
    ends.listen()
    _, log = ends.dial(node("b"))
    ends.until(lambda: log.reasons and ends.refused)
    assert "it uses TLS" in ends.refused[0]
    assert "TLS handshake" in log.reasons[0]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello"])
def test_invalid_tls_handshake_closes_the_connection(ends: Ends, node: Node, data: bytes) -> None:
    """The next node can still connect."""
    ends.listen(node("a"))
    read_all(ends.raw(data), ends)
    assert len(ends.refused) == 1
    connection, _ = ends.dial(node("b"))
    ends.until(lambda: connection.is_open)


def test_aborted_tls_handshake_does_not_affect_the_listener(ends: Ends, node: Node) -> None:
    """The peer closes or resets the connection in the middle of the handshake."""
    ends.listen(node("a"))
    for _ in range(3):
        ends.raw(b"\x16\x03\x01").close()
    ends.until(lambda: len(ends.refused) == 3)
    assert "the peer closed the connection during the TLS handshake" in ends.refused[0]
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        ends.address = stranger.getsockname()
        _, log = ends.dial(node("b"))
        ends.loop.run_once(0.1)
        stranger.accept()[0].close()
        ends.until(lambda: log.reasons)
    assert log.reasons[0] in (
        "the peer closed the connection during the TLS handshake",
        "the peer closed the connection",
    )


def test_store_client_needs_no_tls(ends: Ends, node: Node) -> None:
    """A client of torch's store, whose first byte is 0, is passed on just as without TLS."""
    diverted: list[socket.socket] = []
    ends.listen(node("a"), divert=diverted.append)
    ends.raw(b"\0x")
    ends.until(lambda: diverted)
    diverted[0].setblocking(True)
    assert diverted[0].recv(5) == b"\0x"
    diverted[0].close()


@pytest.mark.parametrize(
    ("cert", "key", "ca", "words"),
    [
        ("text", "a.key", "ca.crt", "tls_cert: .*text contains no PEM certificate"),
        ("a.crt", "text", "ca.crt", "tls_key: .*text contains no PEM key"),
        ("a.crt", "a.key", "text", "tls_ca: .*text contains no PEM certificate"),
        ("a.crt", "b.key", "ca.crt", "tls_key: .*b.key is not the key for .*a.crt"),
        ("a.crt", "locked.key", "ca.crt", "tls_key: .*locked.key is encrypted with a password"),
    ],
)
def test_unusable_tls_file_error_shows_path_and_option(
    files: Path, cert: str, key: str, ca: str, words: str
) -> None:
    """The file contains something else. Missing files are rejected before (test_rdzv_conf)."""
    with pytest.raises(UsageError, match=words):
        contexts(str(files / cert), str(files / key), str(files / ca))


def test_tls_read_that_must_write_first_waits_for_writability(
    ends: Ends, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If TLS has to write before it can continue reading, the loop waits for writability just that
    long.
    """
    ends.listen(node("a"))
    connection, _ = ends.dial(node("b"))
    ends.until(lambda: connection.is_open and ends.server.connections)
    (other,) = ends.server.connections
    assert other._stream._tls is not None
    ends.settle()

    def full(size: int) -> bytes:
        raise ssl.SSLWantWriteError

    with monkeypatch.context() as patch:
        patch.setattr(other._stream._tls.sock, "recv", full)
        other._stream._wake()
    assert other._stream._watching_writable
    connection.send({"type": "x"})
    ends.until(lambda: ends.server.messages)
    assert not other._stream._watching_writable
