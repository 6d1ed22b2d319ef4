"""Opens the registry in etcd, for `--rdzv-backend=etcd` and `etcd-v2`. As in torchrun, some
settings have different names in the two backends. Both backends use the v3 API.
"""

import ssl
from collections.abc import Mapping

from relight.base.errors import UsageError
from relight.flags import rdzv_conf
from relight.flags.rdzv_conf import Conf
from relight.net import tls
from relight.rendezvous.etcd_http import EtcdMembers, Login, Tls, parse_members
from relight.rendezvous.etcd_v3 import EtcdRegister
from relight.rendezvous.leader_lock import job_key

_READ_TIMEOUT_S = 60.0


def open(endpoint: str, job: str, pairs: Mapping[str, str], backend: str) -> EtcdRegister:
    """Return a job's registry in etcd, as `leader_lock.Open` describes. The settings are those of
    `backend`.
    """
    conf, _ = rdzv_conf.parse(tuple(pairs.items()), backend)
    read_timeout_s = conf.read_timeout or _READ_TIMEOUT_S
    members = EtcdMembers(
        parse_members(endpoint, conf.protocol), _tls(conf, backend), read_timeout_s
    )
    key = f"/{conf.etcd_prefix.strip('/')}/{job_key(job)}/coordinator"
    return EtcdRegister(members, key.replace("//", "/"), _login(conf))


def _login(conf: Conf) -> Login:
    if not conf.etcd_user:
        return Login()
    path = conf.etcd_password_file
    password = rdzv_conf.read_file(path).rstrip(b"\r\n").decode(errors="surrogateescape")
    if not password:
        raise UsageError(f"--rdzv-conf: etcd_password_file={path}: the file is empty")
    return Login(conf.etcd_user, password)


def _tls(conf: Conf, backend: str) -> Tls:
    names = (
        ("cert", "key", "cacert") if backend == "etcd" else ("ssl_cert", "ssl_cert_key", "ca_cert")
    )
    if conf.protocol != "https":
        return Tls(None, *names)
    cert_name, key_name, cacert_name = names
    try:
        context = ssl.create_default_context(cafile=conf.cacert or None)
    except (ssl.SSLError, OSError):
        raise UsageError(
            f"--rdzv-conf: {cacert_name}={conf.cacert}: no PEM certificate in the file"
        ) from None
    if conf.cert:
        try:
            context.load_cert_chain(conf.cert, conf.key or None, password=tls.no_password)
        except (ssl.SSLError, OSError, tls.KeyLocked) as error:
            file = f"{key_name}={conf.key}" if conf.key else f"{cert_name}={conf.cert}"
            if isinstance(error, tls.KeyLocked):
                raise UsageError(
                    f"--rdzv-conf: {file}: the key is encrypted with a password"
                ) from None
            raise UsageError(
                f"--rdzv-conf: {cert_name}={conf.cert}: not a PEM certificate with its key in "
                f"{conf.key or 'the same file'}"
            ) from None
    return Tls(context, *names)
