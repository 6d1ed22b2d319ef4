"""Internal errors: unexpected exceptions exit with 70, exceptions caused by a peer's message close
its connection, and errors from the machine are named.
"""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S, Launch, Start, clean_environment

from relight.agent.coordinator import Coordinator
from relight.base.errors import MachineError
from relight.base.fields import Malformed, to_json
from relight.core.group.group_types import GroupSettings, Hello
from relight.host.loop import Loop
from relight.net.connection import Connection, Security, dial
from relight.net.heartbeats import SIZE, Heartbeats
from relight.net.listener import Listener
from relight.net.store_port import StorePort
from relight.rendezvous.config import Meeting
from relight.rendezvous.discovery import Finder, Seeker
from relight.rendezvous.election_finder import Elector

BROKEN = """
import sys
from relight.cli import main
def broken(argv): raise {error}
main._command = lambda argv: broken
sys.argv[1:] = ["run"]
main.entry()
"""


@pytest.mark.mistakes
@pytest.mark.parametrize(
    ("error", "code"), [("main.RelightError('x')", 70), ("OSError(13, 'x')", 4), ("KeyError()", 70)]
)
def test_unwritable_stderr_does_not_change_exit_code(error: str, code: int) -> None:
    """Stderr is on a full disk, is closed, or has lost its reader."""
    reader, broken = os.pipe()
    os.close(reader)
    program = BROKEN.format(error=error)
    for redirection in ("2>/dev/full", "2>&-", f"2>&{broken}"):
        result = subprocess.run(
            ["bash", "-c", f'exec "$@" {redirection}', "bash", sys.executable, "-c", program],
            env=clean_environment(),
            pass_fds=[broken],
            check=False,
        )
        assert result.returncode == code, redirection
    os.close(broken)


@pytest.mark.mistakes
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        ("KeyError('x')", 70,
         "relight: error: internal error in relight (a bug): KeyError: 'x' (at "),
        ("RecursionError()", 70,
         "relight: error: internal error in relight (a bug): RecursionError (at "),
        ("OSError(24, 'Too many open files', '/etc/hosts')", 4,
         "relight: error: this machine refuses /etc/hosts: Too many open files\nhint: check"),
        ("OSError(13, 'Permission denied')", 4, "refuses PermissionError: [Errno 13] Permission"),
    ],
)  # fmt: skip
def test_unexpected_exception_gives_exit_code_70_and_one_line_error(
    error: str, code: int, said: str
) -> None:
    """The exit code is 4 if the machine refused something. One line says where in relight's code it
    happened, without a traceback.
    """
    result = subprocess.run(
        [sys.executable, "-c", BROKEN.format(error=error)],
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=False,
    )
    assert result.returncode == code
    assert said in result.stderr
    assert "Traceback" not in result.stderr and len(result.stderr.splitlines()) <= 2


BROKEN_LATER = """
from relight.agent.coordinator import Coordinator
def broken(*_): raise KeyError("x")
Coordinator.{method} = broken
from relight.cli.main import entry
entry()
"""


@pytest.mark.mistakes
@pytest.mark.parametrize("verb", ["run", "coordinator"])
@pytest.mark.parametrize("method", ["_check_silence", "received"])
def test_exception_in_coordinator_gives_exit_code_70(
    start: Start, tmp_path: Path, verb: str, method: str
) -> None:
    """Both a coordinating agent and `relight coordinator` exit. If a message triggered the
    exception, only the connection to its sender is closed; that node reconnects after a delay and
    reports that once.
    """
    code = BROKEN_LATER.format(method=method)
    where = ("--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meet", "--rdzv-id=job")
    nodes = ("--nnodes=2", "--no-python", "sleep", "600")
    flags = (verb, *where, *(nodes if verb == "run" else ()))
    broken = start(*flags, command=(sys.executable, "-c", code), text=True)
    assert broken.stderr is not None
    if method == "_check_silence":
        assert broken.wait(LIMIT_S) == 70
        assert (
            "error: internal error in relight (a bug): KeyError: 'x' (at " in broken.stderr.read()
        )
    else:
        until(broken, "1 of 2 nodes" if verb == "run" else " on port ")
        other = start("run", *where, *nodes, text=True)
        until(broken, "internal error in relight (a bug), please report it: a message of ")
        until(other, "waiting for the coordinator")
        until(broken, "internal error in relight (a bug), please report it: a message of ")
        other.kill()
        broken.terminate()
        assert broken.wait(LIMIT_S) == (128 + 15 if verb == "run" else 0)
        assert "the coordinator" not in str(other.stderr and other.stderr.read())
    assert "KeyError: 'x' (at " in Path(os.environ["RELIGHT_MISTAKES"]).read_text()


def until(process: "subprocess.Popen[Any]", words: str) -> None:
    """Read a process's stderr until some text appears."""
    assert process.stderr is not None
    while words not in (line := process.stderr.readline()):
        assert line, words


def test_agent_exits_with_code_4_if_descriptors_run_out(tmp_path: Path) -> None:
    """However low the limit on open files is, no traceback is printed."""
    for most in (11, 13, 14, 14, 15, 15, 17):  # for 14 and 15, spawner and guard are racing
        command = f"ulimit -n {most}; exec {sys.executable} -m relight run --no-python true"
        result = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, env=clean_environment(),
            cwd=tmp_path, check=False,
        )  # fmt: skip
        if result.returncode:
            assert result.returncode == 4, result.stderr
            assert "Too many open files" in result.stderr and "ulimit -n" in result.stderr
        assert "Traceback" not in result.stderr


def test_error_names_missing_proc_file_system(launch: Launch) -> None:
    inside = f"mount -t tmpfs none /proc && exec {sys.executable} -m relight run --no-python true"
    namespace = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
    if launch("mount -t tmpfs none /proc", command=namespace).returncode:
        namespace = ("unshare", "--mount", "sh", "-c")
    result = launch(inside, command=namespace)
    assert result.returncode == 4, result.stderr
    assert "/proc" in result.stderr and "mount /proc" in result.stderr


class Owner:
    """A connection owner whose message handler raises an exception."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.reasons: list[str] = []
        self.connections: list[Connection] = []

    def opened(self, connection: Connection, hello: Any) -> None:
        self.connections.append(connection)
        if hello.get("bad"):
            raise self.error

    def received(self, connection: Connection, message: Any) -> None:
        raise self.error

    def closed(self, connection: Connection, reason: str) -> None:
        self.reasons.append(reason)
        raise self.error


def serve(error: Exception, hello: dict[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Send a message to an owner that raises; return the errors and both closing reasons."""
    loop, mistakes = Loop(), list[str]()
    loop.on_internal_error = lambda what, error: mistakes.append(
        f"{what.partition(' of')[0]}: {error!r}"
    )
    sock = socket.create_server(("127.0.0.1", 0))
    there, here = Owner(error), Owner(error)
    here.closed = lambda connection, reason: here.reasons.append(reason)  # type: ignore[method-assign]
    listener = Listener(loop, sock, there, {}, Security())
    connection = dial(loop, sock.getsockname(), here, hello, Security())
    try:
        loop.run_until(lambda: connection.is_open or bool(here.reasons))
        connection.send({"type": "x"})
        loop.run_until(lambda: bool(here.reasons))
    finally:
        listener.close()
        for each in (connection, *there.connections):
            each.close()
        loop.close()
    return mistakes, there.reasons, here.reasons


@pytest.mark.parametrize("hello", [{}, {"bad": True}], ids=["received", "opened"])
def test_bug_in_message_handler_ends_only_its_connection(hello: dict[str, Any]) -> None:
    """The process continues after reporting it, even if closing the connection triggers another."""
    mistakes, there, here = serve(KeyError("x"), hello)
    assert mistakes == ["a message: KeyError('x')", "the end: KeyError('x')"]
    assert there == ["relight failed to handle its message, which is a bug in relight"]
    assert here == ["the peer closed the connection"]


def test_bug_before_peer_is_identified_ends_only_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The port remains in service."""

    def broken(*_: Any) -> None:
        raise KeyError("x")

    monkeypatch.setattr("relight.core.link.authentication.Opening._receive_hello", broken)
    mistakes, there, here = serve(KeyError("y"), {})
    assert mistakes == ["a message: KeyError('x')"] and not there
    assert here == ["the peer closed the connection instead of sending a greeting (is it relight?)"]


def test_malformed_message_is_blamed_on_peer() -> None:
    """Only Malformed blames the peer; other exceptions don't."""
    mistakes, there, _ = serve(Malformed("no rank"), {})
    assert there == ["it sent an invalid message: no rank"]
    assert mistakes[1:] == ["the end: Malformed('no rank')"] or len(mistakes) <= 1


def test_elector_that_sends_garbage_is_disconnected() -> None:
    """The other elector reports which peer it was, and why."""
    loop, said = Loop(), list[str]()
    sock = socket.create_server(("127.0.0.1", 0))
    host = sock.getsockname()
    meeting = Meeting(
        job="j", where="", register=None, ttl_s=0.0, hosts=(host, ("there", 1)), alone=False,
        hosted=None, local_addr="", fixed_port=False, node_rank=-1, interval_s=1.0,
        lease_s=1.0, checkpoint_s=1.0, dial_s=1.0, seek_s=1.0, close_s=1.0,
        security=Security(),
    )  # fmt: skip
    seeker = Seeker()
    seeker.report_refused = said.append  # type: ignore[method-assign]
    elector = Elector(loop, meeting, GroupSettings(1, 2, 0), 0, [[], []], seeker)
    finder = Finder()
    finder.take_connection = elector.take_connection  # type: ignore[method-assign]
    coordinator = Coordinator(loop, sock, Security(), finder, socket.socket.close, said.append)
    there = Owner(AssertionError())
    there.closed = lambda connection, reason: there.reasons.append(reason)  # type: ignore[method-assign]
    connection = dial(loop, host, there, {"sender": "elector"}, Security())
    try:
        loop.run_until(lambda: connection.is_open)
        connection.send({"type": "votereply", "voter": [1]})
        loop.run_until(lambda: bool(there.reasons))
    finally:
        for each in (elector, coordinator, connection, loop):
            each.close()
    assert there.reasons == ["the peer closed the connection"]
    (line,) = said
    assert re.fullmatch(
        r"127.0.0.1:\d+: it sent an invalid message: VoteReply.voter can't be a list", line
    )


def test_node_whose_settings_differ_from_coordinator_host_is_rejected() -> None:
    """A node with different settings is rejected, even if it connects before the agent joins."""
    loop, ours = Loop(), GroupSettings(1, 2, 0, lost_after_s=2.5)
    sock = socket.create_server(("127.0.0.1", 0))
    coordinator = Coordinator(loop, sock, Security(), Finder(), socket.socket.close, lambda _: None)
    coordinator.settings["j"] = ours
    owner = Owner(AssertionError())
    owner.closed = lambda connection, reason: owner.reasons.append(reason)  # type: ignore[method-assign]
    owner.received = lambda connection, message: owner.reasons.append(message["reason"])  # type: ignore[method-assign]
    hello = to_json(Hello("", "j", ours._replace(lost_after_s=1.25)))
    other = dial(loop, sock.getsockname(), owner, hello, Security())
    try:
        loop.run_until(lambda: len(owner.reasons) > 0, 10)
        assert coordinator.group("j", ours).membership.settings == ours
    finally:
        for each in (other, coordinator, loop):
            each.close()
    assert "is 1.25 s on this node, but the job was started with 2.5 s" in owner.reasons[0]


def test_datagram_that_cannot_be_verified_does_not_close_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The module that verifies datagrams loads lazily, and its disk may be lost by then."""

    def lost(session_key: bytes) -> bytes:
        raise ModuleNotFoundError("hashlib")

    loop = Loop()
    sock = socket.create_server(("127.0.0.1", 0))
    coordinator = Coordinator(loop, sock, Security(), Finder(), socket.socket.close, print)
    owner = Owner(AssertionError())
    hello = to_json(Hello("", "j", GroupSettings(1, 2, 0)))
    first, second = (dial(loop, sock.getsockname(), owner, hello, Security()) for _ in range(2))
    end = loop.now() + 10
    loop.call_at(end, lambda: None)
    try:
        loop.run_until(lambda: coordinator.others == 2 or loop.now() >= end)
        with monkeypatch.context() as patch:
            patch.setattr(Heartbeats, "prefix_key", lost)
            with pytest.raises(ModuleNotFoundError):
                coordinator._on_datagram(b"x" * SIZE, ("127.0.0.1", 1))
            first.close()
            loop.run_until(lambda: coordinator.others == 1 or loop.now() >= end)
        assert coordinator.others == 1
        datagram = Heartbeats.datagram(1, second.session_key)
        peer = coordinator._peers.find_sender(datagram)
        assert peer is not None and peer in coordinator._peers
    finally:
        for each in (second, coordinator, loop):
            each.close()


def test_peers_that_never_join_are_evicted() -> None:
    """Without a token, strangers that send only a greeting and heartbeats can't fill all slots."""
    loop, said = Loop(), list[str]()
    sock = socket.create_server(("127.0.0.1", 0))
    coordinator = Coordinator(loop, sock, Security(), Finder(), socket.socket.close, said.append)
    coordinator.report_refused = said.append  # type: ignore[method-assign]
    coordinator._listener.most_strangers = 20
    hello = to_json(Hello("", "another", GroupSettings(1, 2, 0)))
    owner = Owner(AssertionError())
    owner.closed = lambda connection, reason: owner.reasons.append(reason)  # type: ignore[method-assign]
    strangers = [dial(loop, sock.getsockname(), owner, hello, Security()) for _ in range(16)]
    end = loop.now() + 5
    try:
        loop.call_at(end, lambda: None)
        loop.run_until(lambda: len(owner.reasons) == 6 or loop.now() >= end)
        assert coordinator.others == 10
        assert len(said) == 6 and all("have not joined a job" in line for line in said)
    finally:
        for each in (*strangers, coordinator, loop):
            each.close()


def test_machine_error_during_message_handling_is_not_an_internal_error() -> None:
    """Such an error ends the command as usual."""
    with pytest.raises(MachineError):
        serve(MachineError("no socket is to be had"), {})


def test_internal_error_is_raised_if_there_is_no_event_log() -> None:
    """Tests never hide an internal error."""
    loop = Loop()

    def divide() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop.run_guarded(divide, "a test")
    loop.close()


def test_bug_in_datagram_or_store_request_is_contained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, mistakes = Loop(), list[str]()
    loop.on_internal_error = lambda what, error: mistakes.append(what)

    def broken(*_: Any) -> None:
        raise KeyError

    beats = Heartbeats(loop, ("127.0.0.1", 0), socket.AF_INET, broken)
    assert beats._socket is not None
    store = StorePort(loop, "127.0.0.1", 0, served=True)
    monkeypatch.setattr("relight.net.tcp_store._parse", broken)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        socket.create_connection(("127.0.0.1", store.port)) as client,
    ):
        sender.sendto(b"x", beats._socket.getsockname())
        client.sendall(b"\0" * 5)
        loop.run_until(lambda: len(mistakes) == 2)
        assert sorted(mistakes) == ["a datagram", "a request to the store"]
        assert client.recv(1) == b""
    store.close()
    beats.close()
    loop.close()
