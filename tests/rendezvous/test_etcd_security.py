"""etcd with TLS, users, and passwords; invalid settings are refused immediately and clearly."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S
from etcd_server import Certificates, EtcdServer, make_certificates

from relight.base.errors import UsageError
from relight.rendezvous import backends, etcd_http
from relight.rendezvous.leader_lock import NOBODY, LeaderLock
from rendezvous.claims import Place
from rendezvous.proxy import Proxy

pytestmark = [pytest.mark.needs_etcd, pytest.mark.needs_openssl]

New = Callable[..., LeaderLock]
LONG_S = 60.0
NAMES = {
    "etcd": {"cert": "cert", "key": "key", "ca": "cacert"},
    "etcd-v2": {"cert": "ssl_cert", "key": "ssl_cert_key", "ca": "ca_cert"},
}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine's etcd may take longer than 2 s to check a password."""
    monkeypatch.setattr(etcd_http, "_MAX_TIMEOUT_S", LIMIT_S)


@pytest.fixture(params=["etcd", "etcd-v2"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates from a different authority."""
    return make_certificates(tmp_path_factory.mktemp("strangers"))


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory, files: Certificates) -> Iterator[EtcdServer]:
    """An etcd that requires client certificates."""
    directory = tmp_path_factory.mktemp("tls")
    with EtcdServer(directory, certificates=files, client_certificates=True) as server:
        yield server


def pairs(backend: str, files: Certificates, *, client: bool = True) -> dict[str, object]:
    names = NAMES[backend]
    found: dict[str, object] = {"protocol": "https", names["ca"]: files.ca}
    if client:
        found |= {names["cert"]: files.client, names["key"]: files.client_key}
    return found


# TLS.


def test_node_with_client_certificate_can_hold_lock_over_tls(
    tls: EtcdServer, files: Certificates, backend: str, registers: New
) -> None:
    """A node with a CA file and its own certificate can hold the lock over TLS."""
    place = Place(backend, tls.endpoint, f"tls {backend}")
    first, second = (registers(place, **pairs(backend, files)) for _ in range(2))
    mine = first.hold("first", LONG_S)
    assert mine.ours
    assert second.hold("second", LONG_S) == mine._replace(ours=False)
    assert first.hold("first", LONG_S) == mine
    port = tls.ports[0]
    named = registers(place._replace(endpoint=f"localhost:{port}"), **pairs(backend, files))
    assert named.hold("", LONG_S).value == "first"


def test_server_is_verified_even_without_client_certificate(
    tmp_path: Path, files: Certificates, backend: str, registers: New
) -> None:
    with EtcdServer(tmp_path / "etcd", certificates=files) as server:
        place = Place(backend, server.endpoint, "tls")
        assert registers(place, **pairs(backend, files, client=False)).hold("a", LONG_S).ours


def test_server_certificate_from_another_authority_is_rejected(
    tls: EtcdServer, strangers: Certificates, backend: str, registers: New
) -> None:
    register = registers(Place(backend, tls.endpoint, "tls"), **pairs(backend, strangers))
    with pytest.raises(UsageError, match=f"{tls.endpoint}: certificate not trusted: ") as e:
        register.hold("a", LONG_S)
    assert f"{NAMES[backend]['ca']}=FILE" in e.value.hint


def test_system_authorities_are_used_if_no_ca_file_is_given(
    tls: EtcdServer, backend: str, registers: New
) -> None:
    register = registers(Place(backend, tls.endpoint, "tls"), protocol="https")
    with pytest.raises(UsageError, match="certificate not trusted"):
        register.hold("a", LONG_S)


def test_server_certificate_for_another_host_is_rejected(
    tls: EtcdServer, files: Certificates, backend: str, registers: New
) -> None:
    """The certificate comes from the right authority, but names a different host."""
    with Proxy(tls.endpoint, "127.0.0.2") as proxy:
        register = registers(Place(backend, proxy.endpoint, "tls"), **pairs(backend, files))
        with pytest.raises(UsageError, match=r"not trusted: .*127\.0\.0\.2"):
            register.hold("a", LONG_S)


@pytest.mark.parametrize("of_whom", ["nobody", "strangers"])
def test_missing_or_untrusted_client_certificate_is_reported(
    tls: EtcdServer,
    files: Certificates,
    strangers: Certificates,
    backend: str,
    registers: New,
    of_whom: str,
) -> None:
    """A node with no certificate, or one from another authority, reports that."""
    given = pairs(backend, strangers if of_whom == "strangers" else files)
    given[NAMES[backend]["ca"]] = files.ca
    if of_whom == "nobody":
        given = pairs(backend, files, client=False)
    register = registers(Place(backend, tls.endpoint, "tls"), **given)
    error = _refusal(register)
    assert "rejects our certificate, or requires one" in error.message
    assert f"{NAMES[backend]['cert']}=FILE" in error.hint


def _refusal(register: LeaderLock) -> UsageError:
    """Return the final error; the connection may be closed before the refusal arrives."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            register.hold("a", LONG_S)
        except UsageError as error:
            return error
        except OSError:
            time.sleep(0.05)
    raise AssertionError("no refusal")


def test_tls_to_plain_server_error_shows_the_setting(
    server: EtcdServer, files: Certificates, backend: str, registers: New
) -> None:
    register = registers(Place(backend, server.endpoint, "tls"), **pairs(backend, files))
    with pytest.raises(UsageError, match=f"{server.endpoint} does not use TLS") as caught:
        register.hold("a", LONG_S)
    assert caught.value.hint == "--rdzv-conf=protocol=http"


def test_plain_http_to_tls_server_error_shows_the_setting(
    tls: EtcdServer, backend: str, registers: New
) -> None:
    register = registers(Place(backend, tls.endpoint, "tls"))
    with pytest.raises(UsageError, match=f"{tls.endpoint} uses TLS") as caught:
        register.hold("a", LONG_S)
    assert caught.value.hint == "--rdzv-conf=protocol=https"


def test_unusable_etcd_member_does_no_harm_if_another_works(
    tls: EtcdServer, server: EtcdServer, files: Certificates, backend: str, registers: New
) -> None:
    """A member that can't be used does no harm as long as another one works."""
    both = Place(backend, f"{server.endpoint},{tls.endpoint}", f"both {time.monotonic()}")
    register = registers(both, **pairs(backend, files))
    assert register.hold("a", LONG_S).ours
    assert register.hold("a", LONG_S).ours


def test_invalid_certificate_error_shows_the_setting(
    files: Certificates, strangers: Certificates, backend: str, tmp_path: Path
) -> None:
    """Invalid files are detected before anything starts."""
    text = tmp_path / "text"
    text.write_text("no certificate")
    names = NAMES[backend]
    for changed, value, says in (
        ("ca", text, f"{names['ca']}={text}: no PEM certificate"),
        ("ca", "/gone", f"{names['ca']}=/gone: No such file"),
        ("cert", text, f"{names['cert']}={text}: not a PEM certificate"),
        ("key", text, f"{names['cert']}={files.client}: not a PEM certificate with its key"),
        ("key", strangers.client_key, "not a PEM certificate with its key"),
    ):
        given = {k: str(v) for k, v in pairs(backend, files).items()} | {names[changed]: str(value)}
        with pytest.raises(UsageError, match=says):
            backends.open(backend, "host", "job", given)


# Users.


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """An etcd with users whose sessions last for a second."""
    with EtcdServer(tmp_path_factory.mktemp("users"), flags=["--auth-token-ttl=1"]) as server:
        server.require_users()
        yield server


@pytest.fixture
def user(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Return settings for a user with a password."""

    def settings(name: str, password: str, prefix: str = "/jobs") -> dict[str, str]:
        path = tmp_path / f"password.{name}"
        path.write_text(f"{password}\n")
        return {"etcd_user": name, "etcd_password_file": str(path), "etcd_prefix": prefix}

    return settings


def test_user_with_password_can_hold_evict_and_release_lock(
    users: EtcdServer, registers: New, user: Callable[..., dict[str, str]]
) -> None:
    place = Place("etcd", users.endpoint, "user")
    first, second = (registers(place, **user("user", "userpw")) for _ in range(2))
    mine = first.hold("first", LONG_S)
    assert mine.ours
    second.evict(second.hold("second", LONG_S))
    assert second.hold("second", LONG_S).ours
    second.release()
    assert first.hold("", LONG_S) == NOBODY


@pytest.mark.slow
def test_expired_etcd_session_is_replaced_silently(
    users: EtcdServer, registers: New, user: Callable[..., dict[str, str]]
) -> None:
    """A session that has expired, or that a restarted server doesn't know, is replaced silently."""
    server = users
    register = registers(Place("etcd", server.endpoint, "session"), **user("user", "userpw"))
    mine = register.hold("a", LONG_S)
    time.sleep(3)  # etcd removes sessions some time after they expire
    assert register.hold("a", LONG_S) == mine
    server.stop(0)
    with pytest.raises(OSError, match="refused"):
        register.hold("a", LONG_S)
    server.start(0)
    server.wait_healthy()
    assert register.hold("a", LONG_S) == mine


def test_wrong_password_is_not_shown_in_error(
    users: EtcdServer, registers: New, user: Callable[..., dict[str, str]]
) -> None:
    """A wrong password or an unknown user causes an immediate error without the password."""
    place = Place("etcd", users.endpoint, "wrong")
    for name in ("user", "nobody"):
        register = registers(place, **user(name, "guessed"))
        with pytest.raises(UsageError, match=rf"user {name}|\({name}\)") as caught:
            register.hold("a", LONG_S)
        assert place.endpoint in caught.value.message
        assert "guessed" not in caught.value.message + caught.value.hint


def test_missing_etcd_user_error_lists_the_settings(users: EtcdServer, registers: New) -> None:
    register = registers(Place("etcd", users.endpoint, "nobody"))
    with pytest.raises(UsageError, match="requires a user and a password") as caught:
        register.hold("a", LONG_S)
    assert "etcd_user=NAME,etcd_password_file=FILE" in caught.value.hint


def test_missing_permission_error_shows_the_key(
    users: EtcdServer, registers: New, tmp_path: Path
) -> None:
    """A user who lacks permission for the job's keys learns which key it is."""
    path = tmp_path / "password"
    path.write_text("userpw")
    login = {"etcd_user": "user", "etcd_password_file": path}
    register = registers(Place("etcd", users.endpoint, "j"), **login, etcd_prefix="/other")
    with pytest.raises(UsageError, match="user user may not read and write /other/j/coordinator"):
        register.hold("a", LONG_S)


def test_etcd_server_without_users_accepts_every_node(
    server: EtcdServer, registers: New, user: Callable[..., dict[str, str]]
) -> None:
    """Even nodes that send a password are accepted."""
    register = registers(Place("etcd", server.endpoint, "any"), **user("user", "userpw"))
    assert register.hold("a", LONG_S).ours


def test_missing_or_empty_password_file_is_rejected(tmp_path: Path) -> None:
    """The file is checked before anything starts."""
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for path, says in ((empty, "the file is empty"), ("/gone", "No such file")):
        given = {"etcd_user": "user", "etcd_password_file": str(path)}
        with pytest.raises(UsageError, match=f"etcd_password_file={path}: {says}"):
            backends.open("etcd", "host", "job", given)


# Disabled APIs.


def test_missing_gateway_error_explains_how_to_start_etcd(tmp_path: Path, registers: New) -> None:
    """The error explains how to start etcd with the JSON gateway."""
    with EtcdServer(tmp_path / "etcd", flags=["--enable-grpc-gateway=false"]) as server:
        register = registers(Place("etcd", server.endpoint, "job"))
        with pytest.raises(UsageError, match="has no JSON gateway at /v3") as caught:
            register.hold("a", LONG_S)
        assert "--enable-grpc-gateway" in caught.value.hint
