"""Facts that a single machine can find out about an endpoint."""

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest
from conftest import LIMIT_S, Launch, Start
from etcd_server import free_ports
from hypothesis import given
from hypothesis import strategies as st

from relight.core.link import wire
from relight.health import endpoint
from relight.health.endpoint import (
    COORDINATOR,
    DOCTOR,
    NO_ROUTE,
    REFUSED,
    RELIGHT,
    SILENT,
    EndpointAnswer,
    EndpointReport,
    identify_answer,
    judge,
)
from relight.health.finding import ERROR, OK, WARNING

HELLO = {"type": "hello", "nonce": "00" * 32, "token": False}


@pytest.mark.parametrize(
    ("data", "closed", "what"),
    [
        (wire.GREETING + wire.encode({**HELLO, "sender": "coordinator"}), False, COORDINATOR),
        (wire.GREETING + wire.encode({**HELLO, "sender": "doctor"}), False, DOCTOR),
        (wire.GREETING + wire.encode({"type": "refused", "reason": "tls"}), True, RELIGHT),
        (b"relight 7\n", True, RELIGHT),
        (b"", True, "closes the connection"),
        (b"", False, "sends nothing"),
        (b"HTTP/1.1 400 Bad Request\r\n", False, "a web server"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", False, "an SSH server"),
        (b"\x15\x03\x01\x00\x02", True, "TLS"),
        (b"-ERR unknown command\r\n", False, "-ERR unknown command"),
    ],
)
def test_listening_program_is_identified_by_its_first_bytes(
    data: bytes, closed: bool, what: str
) -> None:
    assert what in identify_answer(data, closed=closed)


@given(st.binary(max_size=200), st.booleans())
def test_description_of_endpoint_response_is_safe_to_print(data: bytes, closed: bool) -> None:
    """Control characters never reach the terminal."""
    assert identify_answer(data, closed=closed).isprintable()


@pytest.mark.parametrize(
    ("answers", "level", "words"),
    [
        ((), ERROR, "does not resolve"),
        ((EndpointAnswer("10.0.0.1", REFUSED),), ERROR, "the connection is refused"),
        ((EndpointAnswer("10.0.0.1", REFUSED, ours=True),), OK, "its port is free"),
        ((EndpointAnswer("10.0.0.1", SILENT),), ERROR, "nothing was received"),
        ((EndpointAnswer("10.0.0.1", SILENT, alive=True),), ERROR, "is up: a firewall drops"),
        (
            (EndpointAnswer("10.0.0.1", f"{NO_ROUTE}: Network is unreachable"),),
            ERROR,
            "there is no route",
        ),
        ((EndpointAnswer("10.0.0.1", "it is a web server"),), ERROR, "is in use by a program"),
        (
            (EndpointAnswer("10.0.0.1", COORDINATOR),),
            OK,
            "a relight coordinator is listening there",
        ),
        (
            (EndpointAnswer("fd00::1", SILENT), EndpointAnswer("10.0.0.1", COORDINATOR)),
            OK,
            "a relight coordinator",
        ),
        ((EndpointAnswer("10.0.0.1", DOCTOR),), OK, "another `relight doctor`"),
        ((EndpointAnswer("10.0.0.1", RELIGHT),), WARNING, "requires TLS or a token"),
    ],
)
def test_each_kind_of_endpoint_response_yields_one_finding(
    answers: tuple[EndpointAnswer, ...], level: str, words: str
) -> None:
    """One usable address is enough."""
    (found,) = judge(EndpointReport("gpu-01", 29400, answers))
    assert found.level == level
    assert words in f"{found.what} {found.why}"
    assert found.where == "gpu-01:29400"
    assert found.remedy or level == OK


@pytest.mark.parametrize(("host", "words"), [("gpu-01", "Debian"), ("127.0.0.1", "no other")])
def test_loopback_endpoint_is_reported_as_an_error(host: str, words: str) -> None:
    found = judge(EndpointReport(host, 29400, (EndpointAnswer("127.0.1.1", REFUSED, ours=True),)))
    assert found[0].level == ERROR
    assert words in found[0].why


Serve = Callable[[bytes | None], int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a local server that sends each client this answer, or stays silent without one."""
    servers: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def begin(answer: bytes | None) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def work() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    if answer is None:
                        connection.recv(1)
                    else:
                        connection.sendall(answer)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return int(server.getsockname()[1])

    yield begin
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
    for thread in threads:
        thread.join(LIMIT_S)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.0 400 no\r\n\r\n", "it is a web server"),
        (b"", "it closes the connection without responding"),
        (None, "it accepts connections and sends nothing"),
    ],
)
def test_program_at_endpoint_that_is_not_a_coordinator_is_reported(
    serve: Serve, answer: bytes | None, words: str
) -> None:
    """The program is described by its behaviour and its process."""
    port = serve(answer)
    lines = endpoint.at_timeout("127.0.0.1", port)
    (line,) = [line for line in lines if "is in use by a program" in line]
    assert words in line
    assert f"(pid {os.getpid()})" in line
    assert any("another port in --rdzv-endpoint" in line for line in lines)


def test_running_coordinator_is_recognized_and_not_disturbed(start: Start, launch: Launch) -> None:
    (port,) = free_ports(1)
    flags = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}")
    first = start("run", *flags, "--no-python", "true", stderr=subprocess.PIPE)
    assert first.stderr is not None
    while b"1 of" not in first.stderr.readline():
        pass
    lines = endpoint.at_timeout("127.0.0.1", port)
    assert any("a relight coordinator is listening there" in line for line in lines), lines
    assert launch("run", *flags, "--no-python", "true").returncode == 0
    assert first.wait(LIMIT_S) == 0


def test_endpoint_check_always_finishes(serve: Serve) -> None:
    """Neither a hung name server nor a silent program can block it."""
    answer = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(endpoint, "resolve_addresses", lambda _: answer.wait())
        lines = endpoint.at_timeout("gpu-01", 29400, seconds=0.5)
    answer.set()
    assert "does not resolve" in lines[0]
    endpoint.at_timeout("127.0.0.1", serve(None), seconds=0.5)


def test_endpoint_check_after_a_timeout_reports_its_own_errors() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(endpoint, "examine", lambda *_: 1 / 0)
        assert endpoint.at_timeout("gpu-01", 29400) == [
            "the endpoint could not be examined: division by zero"
        ]
    for host in ("", "\0", "a" * 300, "[::1]", "ä", "1.2.3.4.5"):
        assert endpoint.at_timeout(host, 29400)
    assert endpoint.at_timeout("127.0.0.1", 99999)


def test_doctor_without_nnodes_reports_only_the_local_view(launch: Launch, serve: Serve) -> None:
    result = launch("doctor", f"--rdzv-endpoint=127.0.0.1:{serve(b'x')}")
    assert result.returncode == 1
    assert "is in use by a program" in result.stdout
