"""The register in etcd: `--rdzv-backend=etcd`, and `etcd-v2` for the older API.

`etcd` uses v3 if the cluster has it, and v2 otherwise. The two APIs have separate stores, so all
nodes must choose the same: the version of the *cluster* decides, which every member reports alike.
"""

from collections.abc import Mapping

from relight.base.errors import UsageError
from relight.rendezvous import conf as rdzv_conf
from relight.rendezvous.conf import Conf
from relight.rendezvous.etcd_http import (
    EtcdMembers,
    Login,
    Tls,
    cluster_version,
    parse_members,
)
from relight.rendezvous.etcd_v2 import V2Register
from relight.rendezvous.etcd_v3 import V3Register
from relight.rendezvous.leader_lock import LeaderLock, Record, job_key

_UNHURRIED_S = 60.0
_READ_TIMEOUT_S = 60.0


def open(endpoint: str, job: str, pairs: Mapping[str, str]) -> LeaderLock:
    """Return the register of a job in etcd, with the API of the cluster; see `leader_lock.Open`."""
    return _EitherRegister(*_prepared(endpoint, job, pairs, "etcd"))


def open_v2(endpoint: str, job: str, pairs: Mapping[str, str]) -> LeaderLock:
    """Return the register of a job in etcd's v2 API; see `leader_lock.Open`."""
    return V2Register(*_prepared(endpoint, job, pairs, "etcd-v2"))


class _EitherRegister:
    """The register in the API that the cluster has, which is known once a member has answered."""

    def __init__(self, members: EtcdMembers, key: str, login: Login) -> None:
        self.own_address = ""
        self._members = members
        self._key = key
        self._login = login
        self._register: LeaderLock | None = None

    def hold(self, value: str, ttl_s: float) -> Record:
        """Take, renew or read the record; see `LeaderLock`."""
        try:
            return self._chosen(ttl_s).hold(value, ttl_s)
        finally:
            self.own_address = self._members.own_address

    def evict(self, record: Record, patience_s: float = 0.0) -> bool:
        """Remove the record of a dead holder; see `LeaderLock`."""
        return self._chosen(_UNHURRIED_S).evict(record, patience_s)

    def release(self) -> None:
        """Give the record back if this register holds it."""
        if self._register is not None:
            self._register.release()

    def close(self) -> None:
        """Close the connection."""
        self._members.close()

    def _chosen(self, ttl_s: float) -> LeaderLock:
        if self._register is None:
            self._members.hurry(ttl_s)
            new = cluster_version(self._members) >= (3, 0)
            register = V3Register if new else V2Register
            self._register = register(self._members, self._key, self._login)
        return self._register


def _prepared(
    endpoint: str, job: str, pairs: Mapping[str, str], backend: str
) -> tuple[EtcdMembers, str, Login]:
    conf, _ = rdzv_conf.parse(tuple(pairs.items()), backend)
    read_timeout_s = conf.read_timeout or _READ_TIMEOUT_S
    members = EtcdMembers(
        parse_members(endpoint, conf.protocol), _tls(conf, backend), read_timeout_s
    )
    key = f"/{conf.etcd_prefix.strip('/')}/{job_key(job)}/coordinator"
    return members, key.replace("//", "/"), _login(conf)


def _login(conf: Conf) -> Login:
    if not conf.etcd_user:
        return Login()
    path = conf.etcd_password_file
    try:
        password = rdzv_conf.read_file(path).rstrip(b"\r\n").decode(errors="surrogateescape")
    except OSError as error:
        raise UsageError(
            f"--rdzv-conf: etcd_password_file={path}: {error.strerror or error}"
        ) from None
    if not password:
        raise UsageError(f"--rdzv-conf: etcd_password_file={path}: the file is empty")
    return Login(conf.etcd_user, password)


def _tls(conf: Conf, backend: str) -> Tls:
    names = (
        ("cert", "key", "cacert") if backend == "etcd" else ("ssl_cert", "ssl_cert_key", "ca_cert")
    )
    if conf.protocol != "https":
        return Tls(None, *names)
    import ssl

    cert_name, key_name, cacert_name = names
    try:
        context = ssl.create_default_context(cafile=conf.cacert or None)
    except (ssl.SSLError, OSError):
        raise UsageError(
            f"--rdzv-conf: {cacert_name}={conf.cacert}: no PEM certificate in the file"
        ) from None
    if conf.cert:
        try:
            context.load_cert_chain(conf.cert, conf.key or None, password=_no_password)
        except (ssl.SSLError, OSError, _Locked) as error:
            file = f"{key_name}={conf.key}" if conf.key else f"{cert_name}={conf.cert}"
            if isinstance(error, _Locked):
                raise UsageError(
                    f"--rdzv-conf: {file}: the key is encrypted with a password"
                ) from None
            raise UsageError(
                f"--rdzv-conf: {cert_name}={conf.cert}: not a PEM certificate with its key in "
                f"{conf.key or 'the same file'}"
            ) from None
    return Tls(context, *names)


class _Locked(Exception):  # noqa: N818
    """A key file needs a password."""


def _no_password() -> str:
    raise _Locked
