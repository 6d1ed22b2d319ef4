"""Agents with other versions: a recorded older peer, and one with a different protocol.

The records come from `record_peers.py`. A peer with this version's protocol works; any other peer
is refused before workers start, and one line names both versions.
"""

import json
import re
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S, Start
from etcd_server import free_ports

import relight
from nodes.record_peers import SCRIPT, words
from relight.base.fields import Message
from relight.core.link import wire

RECORDS = sorted((Path(__file__).parent / "recorded").glob("*.json"))
HEARTBEAT_S = 0.2
AWAITED = (
    "hello", "join", "nodeready", "workerfailed", "workerssucceeded", "generationformed",
    "stopworkers", "jobended",
)  # fmt: skip
"""Other messages arrive at varying times."""
OURS = f"relight {re.escape(relight.__version__)} \\(protocol {wire.PROTOCOL}\\)"


class Peer:
    """One side of a recording, which talks to a live process over a connection.

    Args:
        record: The recorded messages.
        side: `agent` or `coordinator`.
        connection: The connection to the live process.
    """

    def __init__(self, record: dict[str, Any], side: str, connection: socket.socket) -> None:
        self._side, self._connection = side, connection
        self._said, self._origins = record["said"], dict[str, str]()
        self._lock = threading.Lock()
        connection.settimeout(LIMIT_S)
        connection.sendall(record["greeting"].encode())
        self._live = self._messages()

    def play(self) -> None:
        """Send each recorded message after the messages that preceded it."""
        for side, message in self._said:
            if side == self._side:
                self._send(message)
                if message["type"] == "hello" and side == "agent":
                    threading.Thread(target=self._send_heartbeats, daemon=True).start()
                continue
            if message["type"] not in AWAITED:
                continue
            heard = next(each for each in self._live if each["type"] == message["type"])
            if message["type"] == "generationformed":
                recorded = message["generation"]["id"]["origin"]
                self._origins[recorded] = heard["generation"]["id"]["origin"]
        self._live.close()

    def _send(self, message: Message) -> None:
        text = json.dumps(message)
        for recorded, live in self._origins.items():
            text = text.replace(recorded, live)
        with self._lock:
            self._connection.sendall(wire.frame(text.encode()))

    def _send_heartbeats(self) -> None:
        number = 0
        try:
            while True:
                time.sleep(HEARTBEAT_S)
                number += 1
                self._send({"type": "heartbeat", "number": number})
        except OSError:
            pass  # the job is over

    def _messages(self) -> Generator[Message, None, None]:
        with self._connection.makefile("rb") as stream:
            assert stream.readline() == wire.GREETING
            while head := stream.read(4):
                message = json.loads(stream.read(*struct.unpack(">I", head)))
                if message["type"] != "heartbeat":
                    yield message
                elif self._side == "coordinator":
                    self._send(message)


@pytest.fixture(params=RECORDS, ids=lambda path: path.stem)
def record(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A recording from a version that has this version's protocol."""
    found: dict[str, Any] = json.loads(request.param.read_text())
    if found["greeting"] != wire.GREETING.decode():
        pytest.skip("another protocol")
    return found


@pytest.fixture
def agent(start: Start, script: Callable[[str], Path]) -> Callable[..., "subprocess.Popen[bytes]"]:
    """Start an agent of this version, with its messages in a pipe."""

    def run(endpoint: str, is_host: int) -> "subprocess.Popen[bytes]":
        script(SCRIPT)
        return start(
            *words(endpoint, is_host)[3:],
            stdout=subprocess.DEVNULL,
            variables={"OMP_NUM_THREADS": "1"},
        )

    return run


def connect(port: int) -> socket.socket:
    """Connect to a process that may still be starting up."""
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.02)


def line_of(agent: "subprocess.Popen[bytes]", pattern: str) -> str:
    """Return the next line on stderr that matches a pattern."""
    assert agent.stderr is not None
    seen = []
    for line in agent.stderr:
        seen.append(line.decode())
        if re.search(pattern, seen[-1]):
            return seen[-1]
    raise AssertionError(seen)


def test_agent_of_previous_version_can_join_current_coordinator(
    record: dict[str, Any], agent: Any
) -> None:
    """A failure on the older node restarts the job, which ends successfully on both nodes."""
    port = free_ports(1)[0]
    here = agent(f"127.0.0.1:{port}", 1)
    with connect(port) as connection:
        Peer(record, "agent", connection).play()
    assert here.wait(LIMIT_S) == 0
    assert "2 workers on 2 nodes" in here.stderr.read().decode()


def test_current_agent_can_join_coordinator_of_previous_version(
    record: dict[str, Any], agent: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_S)
        here = agent(f"127.0.0.1:{server.getsockname()[1]}", 0)
        connection, _ = server.accept()
        with connection:
            Peer(record, "coordinator", connection).play()
            assert here.wait(LIMIT_S) == 0
    assert "2 workers on 2 nodes" in here.stderr.read().decode()


def hello(version: str | None) -> bytes:
    """Return the first bytes sent by an agent with a different protocol."""
    named: Message = {} if version is None else {"version": version}
    return b"relight 987\n" + wire.encode({"type": "hello", "nonce": "0" * 64, **named})


@pytest.mark.parametrize(
    ("version", "named"), [("9.8.7", r"relight 9\.8\.7"), (None, "another version of relight")]
)
def test_agent_with_different_protocol_is_rejected_with_a_reason(
    version: str | None, named: str, agent: Any
) -> None:
    """The coordinator reports its version and the remedy; the agent learns the version it needs."""
    port = free_ports(1)[0]
    here = agent(f"127.0.0.1:{port}", 1)
    with connect(port) as connection:
        connection.settimeout(LIMIT_S)
        connection.sendall(hello(version))
        with connection.makefile("rb") as stream:
            answer = stream.read()
    line = line_of(here, "refused a connection")
    assert re.search(
        rf"from 127\.0\.0\.1:\d+: it runs {named} \(protocol 987\), "
        rf"but this node runs {OURS}; install the same version on all nodes",
        line,
    )
    assert answer.startswith(wire.GREETING)
    assert f'"version":"{relight.__version__}"'.encode() in answer


def test_agent_explains_protocol_mismatch_with_coordinator(agent: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_S)
        here = agent(f"127.0.0.1:{server.getsockname()[1]}", 0)
        said = threading.Event()

        def refuse() -> None:
            while not said.is_set():
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(hello("9.8.7"))

        answering = threading.Thread(target=refuse)
        answering.start()
        line = line_of(here, "it runs")
        said.set()
        answering.join(LIMIT_S)
    assert re.search(
        rf"coordinator at 127\.0\.0\.1:\d+: it runs relight 9\.8\.7 \(protocol 987\), "
        rf"but this node runs {OURS}; install the same version on all nodes",
        line,
    )
