"""Which hosts an ssh job runs on, and the frames exchanged between the two sides."""

import random
from pathlib import Path

import pytest

from relight.base.errors import UsageError
from relight.schedulers.ssh import frames, hosts
from relight.schedulers.ssh.hosts import SshHost


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1", SshHost("node1")),
        ("ann@node1", SshHost("node1", "ann")),
        ("node1:2222", SshHost("node1", "", 2222)),
        ("ann@10.0.0.1:2222", SshHost("10.0.0.1", "ann", 2222)),
        ("fd77::1", SshHost("fd77::1")),
        ("[fd77::1]:2222", SshHost("fd77::1", "", 2222)),
        ("a@b@node1", SshHost("node1", "a@b")),
    ],
)
def test_host_with_user_and_port_is_parsed(text: str, expected: SshHost) -> None:
    assert hosts.parse(text) == expected
    assert hosts.parse(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    ["", "@node1", "node1:", "node1:x", "node1:0", "node1:99999", "-oProxyCommand=x", "a b",
     "$(x)", "-l@node1", "[fd77::1", "[fd77::1]2222", "node1;x"],
)  # fmt: skip
def test_invalid_host_is_rejected(text: str) -> None:
    """Ssh or a shell could misinterpret these."""
    with pytest.raises(UsageError, match="is not a host"):
        hosts.parse(text)


def test_mpirun_hostfile_is_parsed(tmp_path: Path) -> None:
    """Comments, slots and empty lines are ignored."""
    file = tmp_path / "hosts"
    file.write_text("# all\nnode1 slots=8\n\n  ann@node2:2222  max_slots = 4 # new\nnode1\n")
    found = hosts.parse_hosts({"hostfile": str(file)})
    assert found == [SshHost("node1"), SshHost("node2", "ann", 2222), SshHost("node1")]


@pytest.mark.parametrize(
    ("text", "message"),
    [("node1\nnode2 slots\n", "hosts:2: 'slots'"), ("a\n\n@x\n", "hosts:3: '@x'"),
     ("node1 node2\n", "hosts:1: 'node2'"), ("# none\n", "lists no hosts")],
)  # fmt: skip
def test_error_in_hostfile_is_reported_with_line_number(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        hosts.parse_hosts({"hostfile": str(file)})


def test_job_without_hosts_is_rejected(tmp_path: Path) -> None:
    """They must be given in exactly one way."""
    with pytest.raises(UsageError, match="requires a list of hosts"):
        hosts.parse_hosts({"hosts": None, "hostfile": None})
    with pytest.raises(UsageError, match="-cfg hosts and -cfg hostfile are mutually exclusive"):
        hosts.parse_hosts({"hosts": ["a"], "hostfile": "b"})
    with pytest.raises(UsageError, match=r"can't read host file .*No such file"):
        hosts.parse_hosts({"hostfile": str(tmp_path / "nosuch")})


def test_user_supplied_ssh_arguments_come_first() -> None:
    """They take precedence. Ssh is never allowed to prompt."""
    cfg = {"ssh_args": "-F 'my config' -o LogLevel=DEBUG", "port": 2200, "identity": "~/key"}
    words = hosts.command(SshHost("node1", "ann"), cfg, "/opt/it's/python")
    assert words[:8] == [
        *("ssh", "-T", "-o", "BatchMode=yes", "-F", "my config", "-o", "LogLevel=DEBUG")
    ]
    assert words.index("LogLevel=DEBUG") < words.index("LogLevel=INFO")
    assert words[words.index("-p") + 1] == "2200" and words[words.index("-l") + 1] == "ann"
    assert words[-3:-1] == ["--", "node1"]
    own = hosts.command(SshHost("node1", "", 22), cfg, "python3")
    assert own[own.index("-p") + 1] == "22", "what a host says is nearer"
    with pytest.raises(UsageError, match=r"ssh_args=.*quotation"):
        hosts.command(SshHost("node1"), {"ssh_args": "-F 'x"}, "python3")


def test_message_frames_survive_any_fragmentation() -> None:
    """Output that the shell printed first is discarded."""
    sent = [(frames.OUT, b"x" * n) for n in (0, 1, 5, 70000)] + [(frames.END, b"{}")]
    stream = b"Welcome to\nrelight ss" + frames.GREETING
    stream += b"".join(frames.frame(kind, payload) for kind, payload in sent)
    for seed in range(20):
        chance, decoder, at = random.Random(seed), frames.FrameDecoder(frames.GREETING), 0
        found: list[frames.Frame] = []
        while at < len(stream):
            size = chance.choice((1, 3, 20, 5000, 100000))
            found += decoder.feed(stream[at : at + size])
            at += size
        assert found == sent
        assert decoder.greeted and decoder.noise == b"Welcome to\nrelight ss"


def test_excessive_frame_length_is_rejected() -> None:
    with pytest.raises(ValueError, match="a frame of"):
        frames.FrameDecoder().feed(b"o\xff\xff\xff\xff")
