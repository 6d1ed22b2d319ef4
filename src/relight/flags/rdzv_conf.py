"""Defines the table of all `--rdzv-conf` keys, and the record that holds their checked values.

The names are the same as in torchrun (torch 2.13: `c10d_rendezvous_backend`, `dynamic_rendezvous`,
`static_tcp_rendezvous`, `etcd_rendezvous`, `etcd_rendezvous_backend`). The meanings are the same
wherever relight has the feature. Unlike torchrun, which silently ignores unknown keys, relight
prints a note for each key that is unknown or that the backend does not use.

A new setting needs a field in `Conf` with its default, a row in `KEYS`, and code that uses the
setting in one place.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from relight.base.errors import UsageError
from relight.base.text import did_you_mean
from relight.base.values import BACKENDS, MAX_SECONDS

_TIMEOUT_S = 900.0
"""torchrun's default for `timeout`, which some backends use as `join_timeout` (launcher/api.py)."""
_MAX_ATTEMPTS = 1_000_000
MIN_LOST_AFTER_S = 2.0
"""The minimum for `lost_after_s`, chosen so that a node that is merely busy is neither considered
lost nor frozen.
"""
MIN_TTL_S = 2.0
_LONGEST_INTERVAL_S = 0.5  # heartbeat_rate.USUAL_S, which would import core for this table
_TTL_SHARE = 0.6
"""How long a coordinator holds a registry by default, as a fraction of `lost_after_s`. After the
hold has lapsed, a successor waits for `lost_after_s` before it forms a generation.
"""


class Conf(NamedTuple):
    """The settings for the rendezvous and the group. All times are in seconds."""

    join_timeout: float = 600.0
    last_call_timeout: float = 5.0
    close_timeout: float = 30.0
    keep_alive_interval: float = 2.0
    keep_alive_max_attempt: int = 5
    read_timeout: float | None = None
    exit_barrier_timeout: float = 300.0
    checkpoint_timeout: float = 120.0
    store_type: str = "tcp"
    is_host: bool | None = None
    rank0: str = ""
    rank: int | None = None
    timeout: float | None = None
    """The name that torchrun uses for `join_timeout` with static and etcd. Its value is already in
    `join_timeout`.
    """
    takeover: str = "majority"
    lease_ttl: float | None = None
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    etcd_prefix: str = "/torchelastic/p2p"
    etcd_user: str = ""
    etcd_password_file: str = ""
    protocol: str = "http"
    cert: str = ""
    key: str = ""
    cacert: str = ""

    @property
    def lost_after_s(self) -> float:
        """The number of seconds that a node may be silent before it is considered lost."""
        return self.keep_alive_interval * self.keep_alive_max_attempt

    @property
    def ttl_s(self) -> float:
        """How many seconds a coordinator's hold on a registry lasts unless it is renewed."""
        if self.lease_ttl is not None:
            return self.lease_ttl
        return max(MIN_TTL_S, _TTL_SHARE * self.lost_after_s)

    @property
    def interval_s(self) -> float:
        """The time between two heartbeats. This time has an upper limit, regardless of the user's
        settings, because heartbeats also detect broken connections.
        """
        return min(self.keep_alive_interval, _LONGEST_INTERVAL_S)


class Key(NamedTuple):
    """One row of the table. `parse` raises ValueError if a value is invalid.

    The `backends` field lists the backends that use the key. The `no_effect` field explains why
    other backends ignore a key that torchrun has. The `no_effect` field is empty if all backends
    have the key.
    """

    name: str
    parse: Callable[[str], Any]
    backends: tuple[str, ...] = BACKENDS
    no_effect: str = ""
    field: str = ""
    is_file: bool = False

    @property
    def target(self) -> str:
        """The name of the field in `Conf`."""
        return self.field or self.name


def parse_seconds(text: str) -> float:
    """Parse a time above 0, possibly fractional. torchrun accepts only whole numbers."""
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError("expected a number of seconds") from None
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError(f"expected a number of seconds above 0, up to {MAX_SECONDS:.0f}")
    return seconds


def parse_wait(text: str) -> float:
    """Parse a waiting time. 0 means no wait."""
    try:
        return parse_seconds(text) if float(text) else 0.0
    except ValueError:
        raise ValueError(f"expected a number of seconds from 0 to {MAX_SECONDS:.0f}") from None


def parse_attempts(text: str) -> int:
    """Parse the number of failures to allow, at least 1."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError("expected a whole number") from None
    if not 1 <= number <= _MAX_ATTEMPTS or not number.is_integer():
        raise ValueError(f"expected a whole number above 0, up to {_MAX_ATTEMPTS}")
    return int(number)


def parse_rank(text: str) -> int:
    """Parse a node rank."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError("expected a whole number, at least 0")
    return int(text)


def parse_bool(text: str) -> bool:
    """Parse the spellings of yes and no that torchrun accepts."""
    word = text.lower()
    if word in ("1", "true", "t", "yes", "y"):
        return True
    if word in ("0", "false", "f", "no", "n"):
        return False
    raise ValueError("expected 1, true, t, yes, y or 0, false, f, no, n")


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser that accepts these words, regardless of case."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(f"expected {' or '.join(words)}")
        return word

    return parse


_ETCD = ("etcd", "etcd-v2")
_REGISTERS = (*_ETCD, "file")
_ONLY_ETCD = "it configures how to reach etcd"

KEYS: tuple[Key, ...] = (
    Key("join_timeout", parse_seconds),
    Key("last_call_timeout", parse_seconds),
    Key("close_timeout", parse_seconds),
    Key("keep_alive_interval", parse_seconds),
    Key("keep_alive_max_attempt", parse_attempts),
    Key("heartbeat_timeout", parse_seconds, (), "heartbeats don't wait for a response"),
    Key("cas_backoff_max_seconds", parse_seconds, (), "there is no shared state to write"),
    Key("exit_barrier_timeout", parse_wait),
    Key("checkpoint_timeout", parse_seconds),
    Key("takeover", one_of("majority", "alone")),
    Key("token_file", str, is_file=True),
    Key("tls_cert", str, is_file=True),
    Key("tls_key", str, is_file=True),
    Key("tls_ca", str, is_file=True),
    Key(
        "is_host",
        parse_bool,
        ("c10d", *_REGISTERS),
        "with the static rendezvous, node rank 0 hosts it",
    ),
    Key(
        "rank0",
        one_of("endpoint", "any"),
        ("c10d",),
        "only with c10d is the endpoint one of the nodes",
    ),
    Key("lease_ttl", parse_seconds, _REGISTERS, "the endpoint itself is the coordinator"),
    Key("store_type", one_of("tcp", "file"), ("c10d",), "only the c10d rendezvous has it"),
    Key("read_timeout", parse_seconds, ("c10d", "etcd-v2"), "only c10d and etcd-v2 have it"),
    Key("rank", parse_rank, ("static",), "only the static rendezvous has node ranks"),
    Key("timeout", parse_seconds, ("static", "etcd"), "join_timeout counts"),
    Key("etcd_prefix", str, ("etcd",), "only etcd has it"),
    Key("etcd_user", str, _ETCD, "only etcd has users"),
    Key("etcd_password_file", str, _ETCD, "only etcd has users", is_file=True),
    Key("protocol", one_of("http", "https"), _ETCD, _ONLY_ETCD),
    Key("cert", str, ("etcd",), _ONLY_ETCD, is_file=True),
    Key("key", str, ("etcd",), _ONLY_ETCD, is_file=True),
    Key("cacert", str, ("etcd",), _ONLY_ETCD, is_file=True),
    Key("ssl_cert", str, ("etcd-v2",), _ONLY_ETCD, "cert", is_file=True),
    Key("ssl_cert_key", str, ("etcd-v2",), _ONLY_ETCD, "key", is_file=True),
    Key("ca_cert", str, ("etcd-v2",), _ONLY_ETCD, "cacert", is_file=True),
)
"""The keys of `--rdzv-conf`, which `docs/several-nodes.md` describes."""

KEY_BY_NAME = {key.name: key for key in KEYS}


def read_file(path: str) -> bytes:
    """Return the content of a file whose path is the value of a key."""
    with open(path, "rb") as file:
        return file.read(1 << 20)


def parse(pairs: tuple[tuple[str, str], ...], backend: str) -> tuple[Conf, list[str]]:
    """Check the key-value pairs of `--rdzv-conf`. Return their values, and a note for each unused
    key.

    Args:
        pairs: the keys and values as written.
        backend: `--rdzv-backend`.

    Raises:
        UsageError: if a value is invalid, a file can't be read, or values contradict each other.
    """
    notes: list[str] = []
    values: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name, text in pairs:
        if name in texts and texts[name] != text:
            notes.append(f"--rdzv-conf: {name} is given twice; the last value, {text}, is used")
        texts[name] = text
    for name, text in texts.items():
        key = KEY_BY_NAME.get(name)
        if key is None and backend not in BACKENDS:
            continue  # a key of the plug-in
        if key is None:
            notes.append(_unknown(name, backend))
            continue
        if not has_key(backend, key):
            where = f" with --rdzv-backend={backend}" if key.backends else ""
            notes.append(f"--rdzv-conf: {name} has no effect{where}: {key.no_effect}")
            continue
        try:
            value = key.parse(text)
        except ValueError as error:
            raise UsageError(f"--rdzv-conf: {name}={text}: {error}") from None
        if key.is_file:
            _check_file(name, text)
        values[key.target] = value
    if "timeout" in values:
        if values.get("join_timeout", values["timeout"]) != values["timeout"]:
            notes.append("--rdzv-conf: timeout has no effect: join_timeout takes precedence")
        values.setdefault("join_timeout", values["timeout"])
    if has_key(backend, KEY_BY_NAME["timeout"]):
        values.setdefault("join_timeout", _TIMEOUT_S)
    if "key" in values and "cert" not in values:
        key_name, cert_name = ("key", "cert") if backend == "etcd" else ("ssl_cert_key", "ssl_cert")
        notes.append(f"--rdzv-conf: {key_name} has no effect without {cert_name}")
    conf = Conf(**values)
    if conf.protocol == "http":
        notes += [
            f"--rdzv-conf: {key.name} has no effect without protocol=https"
            for key in KEYS
            if key.target in ("cert", "cacert") and key.name in texts and key.target in values
        ]
    _check_together(conf, values)
    return conf, notes


def merged(
    pairs: tuple[tuple[str, str], ...], defaults: tuple[tuple[str, str], ...], backend: str
) -> tuple[tuple[str, str], ...]:
    """Return these key-value pairs, preceded by the pairs from `defaults` that are missing and that
    the backend can use.
    """
    given = {name for name, _ in pairs}
    missing = [
        (name, text)
        for name, text in defaults
        if name not in given and (key := KEY_BY_NAME.get(name)) and has_key(backend, key)
    ]
    return (*missing, *pairs)


def read_token(path: str) -> bytes:
    """Return the secret in a file, without surrounding whitespace.

    Raises:
        UsageError: if the file can't be read, or is empty.
    """
    try:
        token = read_file(path).strip()
    except OSError as error:
        raise UsageError(f"can't read the token in {path}: {error.strerror or error}") from None
    if not token:
        raise UsageError(f"the token file {path} is empty")
    return token


def has_key(backend: str, key: Key) -> bool:
    """Return whether a backend uses a key. Plug-ins use the same keys as `file`."""
    return (backend if backend in BACKENDS else "file") in key.backends


def backend_keys(backend: str) -> tuple[str, ...]:
    """Return the names of the keys that a backend uses."""
    return tuple(key.name for key in KEYS if has_key(backend, key))


def _unknown(name: str, backend: str) -> str:
    known = backend_keys(backend)
    accepted = tuple(key.name for key in KEYS if not key.backends)
    word = name.lower().replace("-", "_")
    remedy = did_you_mean(word, known + accepted, f"known keys: {', '.join(known)}")
    return f"--rdzv-conf: {name} has no effect: unknown key; {remedy}"


def _check_file(name: str, path: str) -> None:
    if name == "token_file":
        read_token(path)
        return
    try:
        read_file(path)
    except OSError as error:
        raise UsageError(f"--rdzv-conf: {name}={path}: {error.strerror or error}") from None


def _check_together(conf: Conf, given: Mapping[str, Any]) -> None:
    if conf.ttl_s < MIN_TTL_S:
        raise UsageError(
            f"--rdzv-conf: lease_ttl={conf.ttl_s:g} is less than {MIN_TTL_S:g} s",
            hint=(
                "leave it out for the default of 0.6 * keep_alive_interval * keep_alive_max_attempt"
            ),
        )
    if conf.lost_after_s > MAX_SECONDS:
        raise UsageError(
            f"--rdzv-conf: keep_alive_interval * keep_alive_max_attempt is {conf.lost_after_s:g} s;"
            f" must be at most {MAX_SECONDS:.0f} s"
        )
    if conf.lost_after_s < MIN_LOST_AFTER_S:
        raise UsageError(
            f"--rdzv-conf: keep_alive_interval * keep_alive_max_attempt is {conf.lost_after_s:g} s;"
            f" must be at least {MIN_LOST_AFTER_S:g} s",
            hint="otherwise a busy node would count as lost",
        )
    missing = [name for name in ("tls_cert", "tls_key", "tls_ca") if name not in given]
    if missing and len(missing) < 3:
        raise UsageError(
            f"--rdzv-conf: {' and '.join(missing)} missing",
            hint="set tls_cert, tls_key and tls_ca together",
        )
    if bool(conf.etcd_user) != bool(conf.etcd_password_file):
        raise UsageError("--rdzv-conf: etcd_user and etcd_password_file must be set together")
