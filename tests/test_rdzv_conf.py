"""`--rdzv-conf`: torchrun's keys and relight's are validated, and none is ignored silently."""

import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from conftest import RELIGHT, clean_environment

from relight.base.errors import UsageError
from relight.base.values import BACKENDS, parse_conf
from relight.flags import rdzv_conf
from relight.flags.rdzv_conf import KEYS, Conf, backend_keys, parse, read_token

# The keys that torch 2.13 reads from the configuration, by backend.
TORCHRUN = {
    "static": "rank timeout",
    "c10d": "join_timeout last_call_timeout close_timeout heartbeat_timeout keep_alive_interval "
    "keep_alive_max_attempt store_type read_timeout is_host",
    "etcd": "timeout last_call_timeout etcd_prefix protocol cert key cacert",
    "etcd-v2": "join_timeout last_call_timeout close_timeout heartbeat_timeout keep_alive_interval "
    "keep_alive_max_attempt read_timeout protocol ssl_cert ssl_cert_key ca_cert",
}
GOOD = {"store_type": "tcp", "is_host": "yes", "protocol": "https", "etcd_prefix": "/jobs"}
WITHOUT_EFFECT = {"heartbeat_timeout", "cas_backoff_max_seconds"}
SECONDS = [
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "keep_alive_interval",
    "checkpoint_timeout",
    "read_timeout",
]


def conf(text: str, backend: str = "c10d") -> tuple[Conf, list[str]]:
    with patch.object(rdzv_conf, "read_file", lambda path: b"content of " + path.encode()):
        return parse(parse_conf(text), backend)


@pytest.mark.parametrize("backend", TORCHRUN)
def test_rdzv_conf_accepts_all_torchrun_keys(backend: str) -> None:
    """Keys without an effect cause a note."""
    for name in TORCHRUN[backend].split():
        given = f"protocol=https,cert=c,ssl_cert=c,{name}={GOOD.get(name, '7')}"
        _, notes = conf(given, backend)
        notes = [note for note in notes if f" {name} has no effect" in note]
        assert bool(notes) == (name in WITHOUT_EFFECT), notes


@pytest.mark.parametrize("backend", BACKENDS)
def test_prints_note_about_rdzv_conf_key_for_another_backend(backend: str) -> None:
    """A key that torchrun ignores with this backend causes a one-line note with the reason."""
    for name in {key for keys in TORCHRUN.values() for key in keys.split()} - set(
        backend_keys(backend)
    ):
        values, notes = conf(f"{name}=7", backend)
        assert values == conf("", backend)[0]
        assert len(notes) == 1
        assert f"{name} has no effect" in notes[0]
        assert "\n" not in notes[0]


def test_silent_node_counts_as_lost_after_ten_seconds_by_default() -> None:
    values, notes = conf("")
    assert notes == []
    assert (values.join_timeout, values.last_call_timeout, values.close_timeout) == (600, 5, 30)
    assert (values.lost_after_s, values.interval_s, values.ttl_s) == (10.0, 0.5, 6.0)
    assert (values.is_host, values.rank, values.takeover) == (None, None, "majority")


def test_long_keep_alive_interval_does_not_slow_down_heartbeats() -> None:
    values, _ = conf("keep_alive_interval=5,keep_alive_max_attempt=3,lease_ttl=3", "etcd")
    assert (values.lost_after_s, values.interval_s, values.ttl_s) == (15.0, 0.5, 3.0)


def test_rank_0_can_be_placed_at_endpoint_only_with_c10d() -> None:
    """With static it is always there, and with other backends no node hosts the endpoint."""
    assert conf("rank0=endpoint") == (Conf(rank0="endpoint"), [])
    (note,) = conf("rank0=endpoint", "static")[1]
    assert note.startswith("--rdzv-conf: rank0 has no effect with --rdzv-backend=static")
    with pytest.raises(UsageError, match="rank0=node1: expected endpoint"):
        conf("rank0=node1")


def test_each_rdzv_conf_key_sets_its_own_field() -> None:
    """Fractions of a second are kept."""
    values, notes = conf("join_timeout=2.5,keep_alive_max_attempt=8,takeover=alone,is_host=F")
    assert notes == []
    assert (values.join_timeout, values.keep_alive_max_attempt) == (2.5, 8)
    assert (values.takeover, values.is_host) == ("alone", False)


@pytest.mark.parametrize("word", ["1", "true", "T", "yes", "Y"])
def test_is_host_key_accepts_same_true_values_as_torchrun(word: str) -> None:
    assert conf(f"is_host={word}")[0].is_host is True


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf", "-0.0"])
def test_non_positive_timeout_is_rejected(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{name}={value}: expected a number of seconds"):
        conf(f"{name}={value}")


@pytest.mark.parametrize(
    ("text", "backend", "says"),
    [
        ("keep_alive_max_attempt=0", "c10d", "keep_alive_max_attempt=0: expected a whole number"),
        ("keep_alive_max_attempt=2.5", "c10d", "expected a whole number"),
        ("keep_alive_max_attempt=inf", "c10d", "expected a whole number"),
        ("keep_alive_interval=0.4,keep_alive_max_attempt=4", "c10d", r"is 1.6 s; .* 2 s"),
        ("lease_ttl=1", "etcd", "lease_ttl=1 is less than 2 s"),
        ("is_host=maybe", "c10d", "is_host=maybe: expected 1, true"),
        ("rank=-1", "static", "rank=-1: expected a whole number"),
        ("takeover=me", "c10d", "takeover=me: expected majority or alone"),
        ("store_type=disk", "c10d", "expected tcp or file"),
        ("exit_barrier_timeout=-1", "c10d", "exit_barrier_timeout=-1: .* from 0 to"),
        ("exit_barrier_timeout=nan", "c10d", "exit_barrier_timeout=nan: .* from 0 to"),
        ("protocol=ftp", "etcd", "protocol=ftp: expected http or https"),
        ("tls_cert=a", "c10d", "tls_key and tls_ca missing"),
        ("tls_cert=a,tls_ca=b", "static", "tls_key missing"),
        ("etcd_user=a", "etcd", "etcd_user and etcd_password_file must be set together"),
        (
            "etcd_password_file=a",
            "etcd-v2",
            "etcd_user and etcd_password_file must be set together",
        ),
    ],
)
def test_error_for_invalid_rdzv_conf_value_names_key(text: str, backend: str, says: str) -> None:
    """The error names the expected type."""
    with pytest.raises(UsageError, match=says):
        conf(text, backend)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("join_timeouts", "join_timeout"),
        ("keep-alive-interval", "keep_alive_interval"),
        ("hearbeat_timeout", "heartbeat_timeout"),
        ("IS_HOST", "is_host"),
        ("zzz", ""),
    ],
)
def test_prints_note_about_unknown_rdzv_conf_key(name: str, meant: str) -> None:
    """The note names the closest known key, or all known keys; torchrun silently ignores it."""
    values, [note] = conf(f"{name}=1")
    assert values == Conf()
    assert f"{name} has no effect: unknown key; " in note
    if meant:
        assert note.endswith(f"did you mean {meant}?")
    else:
        assert "known keys: join_timeout, " in note
        assert "etcd_prefix" not in note


@pytest.mark.processes
def test_prints_note_about_unknown_rdzv_conf_key_even_on_single_node(tmp_path: Path) -> None:
    """Otherwise, the typo would go unnoticed until the job has a second node."""
    command = [*RELIGHT, "run", "--nnodes=1", "--rdzv-conf=join_timout=3", "--no-python", "true"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True,
                            env=clean_environment())  # fmt: skip
    assert "join_timout has no effect" in result.stderr
    assert "did you mean join_timeout?" in result.stderr


@pytest.mark.parametrize("quote", ["'", '"'])
def test_quotes_around_rdzv_conf_values_are_removed(quote: str) -> None:
    """Python lists of arguments may contain such quotes."""
    text = f"{quote}join_timeout=5,last_call_timeout=1{quote}"
    assert parse_conf(text) == (("join_timeout", "5"), ("last_call_timeout", "1"))
    assert parse_conf(f"{quote}{quote}") == ()


def test_timeout_key_is_an_alias_for_join_timeout() -> None:
    """With static and etcd it defaults to 900 s, as in torchrun; `join_timeout` overrides it."""
    for backend in ("static", "etcd"):
        assert conf("", backend)[0].join_timeout == 900
        assert conf("timeout=900", backend)[0].join_timeout == 900
        values, notes = conf("timeout=900,join_timeout=60", backend)
        assert values.join_timeout == 60
        assert len(notes) == 1
    assert conf("timeout=900", "c10d")[0].join_timeout == 600


def test_etcd_and_etcd_v2_keys_set_same_fields() -> None:
    legacy = conf("protocol=HTTPS,cert=c,key=k,cacert=a", "etcd")
    newer = conf("protocol=https,ssl_cert=c,ssl_cert_key=k,ca_cert=a", "etcd-v2")
    assert legacy[0][-4:] == newer[0][-4:] == ("https", "c", "k", "a")
    assert legacy[1] == []
    assert "ssl_cert_key has no effect without ssl_cert" in conf("ssl_cert_key=k", "etcd-v2")[1][0]


@pytest.mark.parametrize(
    ("backend", "names"), [("etcd", "cert cacert"), ("etcd-v2", "ssl_cert ca_cert")]
)
def test_prints_note_about_certificates_without_tls(backend: str, names: str) -> None:
    """Without TLS, nothing is encrypted."""
    for name in names.split():
        _, notes = conf(f"{name}=c", backend)
        assert notes == [f"--rdzv-conf: {name} has no effect without protocol=https"]
        assert conf(f"protocol=https,{name}=c", backend)[1] == []


def test_last_duplicate_key_wins() -> None:
    """Torchrun does the same, but without a note."""
    values, notes = conf("join_timeout=1,join_timeout=2")
    assert values.join_timeout == 2
    assert notes == ["--rdzv-conf: join_timeout is given twice; the last value, 2, is used"]


@pytest.mark.parametrize("name", ["token_file", "tls_cert", "tls_key", "tls_ca"])
def test_unreadable_token_or_certificate_file_is_rejected_before_start(
    name: str, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    there.write_text("x")
    others = [key for key in ("tls_cert", "tls_key", "tls_ca") if key != name]
    pairs = ((name, "/gone"), *((key, str(there)) for key in others))
    with pytest.raises(UsageError, match="/gone: No such file"):
        parse(pairs, "c10d")


def test_trailing_newline_in_token_file_is_ignored(tmp_path: Path) -> None:
    """An empty file does not count as a token."""
    path = tmp_path / "token"
    path.write_text("hush\n")
    assert read_token(str(path)) == b"hush"
    assert parse((("token_file", str(path)),), "c10d")[0].token_file == str(path)
    path.write_text(" \n")
    with pytest.raises(UsageError, match="is empty"):
        parse((("token_file", str(path)),), "c10d")


def test_every_rdzv_conf_key_has_a_field_and_is_documented() -> None:
    """Every field also has a key. Only keys with an effect have a field."""
    assert {key.target for key in KEYS if key.backends} == set(Conf._fields)
    assert len({key.name for key in KEYS}) == len(KEYS)
    text = (Path(__file__).parent.parent / "docs" / "several-nodes.md").read_text()
    assert all(f"\n| `{key.name}` | " in text for key in KEYS)
    assert all(key.no_effect for key in KEYS if key.backends != BACKENDS)


@pytest.mark.processes
def test_table_of_rdzv_conf_keys_imports_no_additional_modules() -> None:
    """The table only imports modules that the command line needs anyway."""
    code = (
        "import sys, relight.flags.spec; before = set(sys.modules); import relight.flags.rdzv_conf;"
        "print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["relight.flags.rdzv_conf"]
