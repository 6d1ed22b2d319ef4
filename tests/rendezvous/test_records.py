"""The content of a registry: only valid records are accepted, and no content does harm."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S, RELIGHT, Launch, clean_environment
from etcd_server import wait_for

from relight.rendezvous.leader_session import CoordinatorAddress

pytestmark = pytest.mark.forked

BAD = {
    "an endless port": '{"host":"h","addresses":["127.0.0.1"],"port":Infinity}',
    "no number": '{"host":"h","addresses":["127.0.0.1"],"port":NaN}',
    "a port as text": '{"host":"h","addresses":["127.0.0.1"],"port":"77"}',
    "half a port": '{"host":"h","addresses":["127.0.0.1"],"port":1.5}',
    "true": '{"host":"h","addresses":["127.0.0.1"],"port":true}',
    "port 0": '{"host":"h","addresses":["127.0.0.1"],"port":0}',
    "deep": "[" * 60000,
    "a list": "[]",
    "nothing": "null",
    "a new line": '{"host":"h\\n","addresses":["127.0.0.1"],"port":77}',
    "an escape": '{"host":"\\u001b[31m","addresses":["127.0.0.1"],"port":77}',
    "a zero": '{"host":"h","addresses":["a\\u0000b"],"port":77}',
    "half a character": '{"host":"h","addresses":["\\ud800"],"port":77}',
    "no address": '{"host":"h","addresses":[],"port":77}',
    "an empty address": '{"host":"h","addresses":[""],"port":77}',
    "many addresses": json.dumps({"host": "h", "addresses": ["127.0.0.1"] * 99, "port": 77}),
    "a long name": json.dumps({"host": "h" * 999, "addresses": ["127.0.0.1"], "port": 77}),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_malformed_coordinator_record_is_rejected(text: str) -> None:
    assert CoordinatorAddress.parse(text) is None


def test_coordinator_record_round_trips() -> None:
    """A coordinator's record is read as it was written."""
    contact = CoordinatorAddress("gpu-01", ("10.0.0.1", "fd77::1", "gpu-01.example"), 29400)
    assert CoordinatorAddress.parse(contact.to_text()) == contact


def write(directory: Path, value: str, ttl_s: float = 3.0) -> Path:
    """Write a record that nobody renews; it lapses after `ttl_s`, or `lease_ttl`."""
    directory.mkdir()
    record = directory / "job"
    record.write_text(
        json.dumps({"token": "t", "value": value, "revision": "r.1", "beat": 1, "ttl_s": ttl_s})
    )
    return record


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Start `relight …` with the registry in a directory; return the file with its output."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(verb: str, *flags: str) -> Path:
        path = tmp_path / f"out.{len(processes)}"
        where = ("--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meet", "--rdzv-id=job")
        with path.open("wb") as file:
            processes.append(
                subprocess.Popen(
                    [*RELIGHT, verb, *where, *flags],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=clean_environment(TMPDIR=str(tmp_path)),
                )
            )
        return path

    yield begin
    for process in processes:
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)


def test_agents_continue_once_an_invalid_record_has_expired(
    tmp_path: Path, start: Callable[..., Path]
) -> None:
    """Agents and coordinators report an invalid record, and continue once it has lapsed."""
    write(tmp_path / "meet", BAD["an endless port"])
    agent = start("run", "--nnodes=1:2", "--rdzv-conf=lease_ttl=3,last_call_timeout=0.2",
                  "--no-python", "true")  # fmt: skip
    standby = start("coordinator", "--rdzv-conf=lease_ttl=3")
    wait_for(lambda: "its record was not written by" in agent.read_text(), "the agent's word")
    wait_for(lambda: "its record was not written by" in standby.read_text(), "the standby's word")
    wait_for(lambda: "generation 0" in agent.read_text(), "a generation")
    assert "Traceback" not in agent.read_text() + standby.read_text()


def test_connection_refused_at_loopback_does_not_evict_another_host(
    tmp_path: Path, start: Callable[..., Path]
) -> None:
    """A connection refused at a loopback address proves nothing about another machine, so that
    machine's record stays until it lapses.
    """
    with socket.socket() as sock:
        sock.bind(("127.0.0.2", 0))
        port = sock.getsockname()[1]
        value = json.dumps({"host": "h", "addresses": ["127.0.0.2"], "port": port})
        record = write(tmp_path / "meet", value, 600)
        standby = start("coordinator")
        wait_for(lambda: "the coordinator on h refuses" in standby.read_text(), "a refusal")
        agent = start("run", "--nnodes=1:2", "--rdzv-conf=join_timeout=4", "--no-python", "true")
        wait_for(lambda: "no coordinator" in agent.read_text(), "the agent's end")
        assert json.loads(record.read_text())["token"] == "t"
        assert " on port " not in standby.read_text()


def test_fifo_in_place_of_record_is_rejected_immediately(tmp_path: Path, launch: Launch) -> None:
    """A FIFO would block the process that opens it."""
    (tmp_path / "meet").mkdir()
    os.mkfifo(tmp_path / "meet" / "job")
    result = launch("run", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meet",
                    "--rdzv-id=job", "--nnodes=2", "--no-python", "true")  # fmt: skip
    assert result.returncode == 2
    assert "job in it is not a regular file\nhint: remove it" in result.stderr


def test_directory_that_cannot_contain_files_is_rejected_immediately(launch: Launch) -> None:
    result = launch("run", "--rdzv-backend=file", "--rdzv-endpoint=/proc", "--rdzv-id=job",
                    "--nnodes=2", "--no-python", "true")  # fmt: skip
    assert result.returncode == 2
    assert "--rdzv-endpoint=/proc: can't create files there" in result.stderr


PLUG_IN = """
import time
from relight.rendezvous.leader_lock import NOBODY
class Register:
    own_address = ""
    def __init__(self, found): self.found = found
    def hold(self, value, ttl_s):
        if self.found is time: time.sleep(600)
        return self.found
    def evict(self, record, patience_s=0.0): return False
    def release(self): pass
    def close(self): pass
def raises(endpoint, job, pairs): raise RuntimeError("no luck")
def nothing(endpoint, job, pairs): return None
def none(endpoint, job, pairs): return Register(None)
def blocks(endpoint, job, pairs): return Register(time)
"""


@pytest.fixture
def plug_ins(tmp_path: Path) -> str:
    """A directory with plug-ins that break the rules."""
    meta = tmp_path / "plugins" / "bad_plug_ins-1.0.dist-info"
    meta.mkdir(parents=True)
    (meta.parent / "bad_plug_ins.py").write_text(PLUG_IN)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-plug-ins\nVersion: 1.0\n")
    names = ("raises", "nothing", "none", "blocks")
    lines = [f"{name} = bad_plug_ins:{name}\n" for name in names]
    (meta / "entry_points.txt").write_text("[relight.rendezvous]\n" + "".join(lines))
    return str(meta.parent)


@pytest.mark.parametrize("verb", ["run", "coordinator"])
@pytest.mark.parametrize(
    ("backend", "says"),
    [
        ("raises", r"--rdzv-backend=raises: the plug-in can't open /x: RuntimeError\('no luck'\)"),
        ("nothing", "--rdzv-backend=nothing: the plug-in returned None, which lacks hold, evict"),
        ("none", "Register.hold returned None, not a Record"),
    ],
)
def test_misbehaving_plugin_is_identified_in_the_error(
    plug_ins: str, launch: Launch, verb: str, backend: str, says: str
) -> None:
    """No workers are started."""
    flags = (f"--rdzv-backend={backend}", "--rdzv-endpoint=/x", "--rdzv-id=job")
    more = ("--nnodes=2", "--no-python", "true") if verb == "run" else ()
    result = launch(verb, *flags, *more, PYTHONPATH=plug_ins)
    assert result.returncode == 2
    assert re.search(says + ".*\nhint: report this to the plug-in's authors", result.stderr)
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_plugin_that_never_returns_is_identified_in_the_error(
    plug_ins: str, launch: Launch
) -> None:
    """A backend call that never returns is named, and the join timeout applies."""
    flags = ("--rdzv-backend=blocks", "--rdzv-endpoint=/x", "--rdzv-id=job", "--nnodes=2")
    result = launch("run", *flags, "--rdzv-conf=join_timeout=7", "--no-python", "true",
                    PYTHONPATH=plug_ins)  # fmt: skip
    assert result.returncode == 3
    says = "waiting for the coordinator at blocks /x: it has not responded for 5 s"
    assert says in result.stderr
    assert re.search(r"no coordinator at blocks /x for \d+ s: it has not responded", result.stderr)
