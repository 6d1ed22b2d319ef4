"""Requests that no browser sends: each is rejected with a response, and the page keeps working."""

import socket
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from relight.inspect.page import server as page_server

from .test_page_access import TOKEN, Page, parsed

HOST = b"Host: localhost\r\n"
ACT = HOST + b"Origin: http://localhost\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    made = Page(TOKEN)
    wrong: list[str] = []
    made.server.handle_error = lambda *_: wrong.append(traceback.format_exc())  # type: ignore[method-assign]
    yield made
    made.server.shutdown()
    made.server.server_close()
    assert not wrong


def status_of(page: Page, request: bytes) -> int:
    """Send a request and nothing more, and return the status of the response."""
    with page.connect() as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return parsed(connection).status


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET http://[ HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"HEAD http://[ HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"POST http://[::1/cancel HTTP/1.1\r\n" + ACT + b"\r\n", 400),
        (b"GET http://[v1.x]/ HTTP/1.1\r\n" + HOST + b"\r\n", 200),  # RFC 3986: IPvFuture
        (b"GET http://\xe2\x84\x80/ HTTP/1.1\r\n" + HOST + b"\r\n", 200),  # as Latin-1
        (b"GET http://localhost/ HTTP/1.1\r\n" + HOST + b"\r\n", 200),  # RFC 9112, 3.2.2
        (b"GET * HTTP/1.1\r\n" + ACT + b"\r\n", 404),
        (b"\r\n", 400),
        (b"  \r\n\r\n", 400),
        (b"\0\xff\xfe\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 421),  # HTTP/0.9 has no Host
        (b"POST /cancel\r\n\r\n", 400),
        (b"GET / HTTP/x.y\r\n\r\n", 400),
        (b"GET / HTTP/1." + b"1" * 5000 + b"\r\n\r\n", 400),
        (b"GET / x HTTP/1.1\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"get / HTTP/1.1\r\n" + HOST + b"\r\n", 501),
        (b"__class__ / HTTP/1.1\r\n" + HOST + b"\r\n", 501),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", 400),  # TLS
        (b"GET /" + b"x" * 70000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: x\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: [\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n", 421),
        (b"GET /output?rank=0&stream=%ff HTTP/1.1\r\n" + ACT + b"\r\n", 400),
        (b"POST /cancel HTTP/1.1\r\n" + ACT + b"Content-Length: x\r\n\r\n", 413),
        (b"POST /cancel HTTP/1.1\r\n" + ACT + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
        (b"POST /cancel HTTP/1.1\r\n" + ACT + b"Content-Length: 9\r\n\r\nshort", 400),
        (b"POST /x HTTP/1.1\r\n" + ACT + b"Content-Length: 99999\r\n\r\n" + b"x" * 99999, 404),
    ],
    ids=lambda each: repr(each[:40]) if isinstance(each, bytes) else "",
)
def test_malformed_request_is_rejected_and_status_page_keeps_working(
    page: Page, request_: bytes, status: int
) -> None:
    assert status_of(page, request_) == status
    assert not page.done
    assert page.ask().status == 200


def test_request_with_incomplete_header_or_body_times_out(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "_LIMIT_S", 0.2)
    monkeypatch.setattr(page_server._Request, "timeout", 0.4)
    for request, status in (
        (b"GET / HTTP/1.1\r\nHo", 408),
        (b"POST /cancel HTTP/1.1\r\n" + ACT + b"Content-Length: 9\r\n\r\n", 400),
    ):
        with page.connect() as connection:
            connection.sendall(request)
            assert parsed(connection).status == status
    assert not page.done


TEXTS = some.binary(max_size=20) | some.sampled_from(
    [b"GET", b"POST", b"HEAD", b" ", b"/", b"//", b"/state", b"/cancel", b"http://[", b"[", b"]",
     b":", b"?", b"#", b"%", b"%00", b"@", b"HTTP/1.1", b"HTTP/", b"\r\n", b"\n", b"\r", b"\0",
     HOST, b"Host:", b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"Origin: [\r\n",
     b"Authorization: Bearer \xff\r\n", b"Expect: 100-continue\r\n", b"Connection: keep-alive\r\n"]
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(some.lists(TEXTS, min_size=1, max_size=8))
def test_every_request_gets_a_response(page: Page, parts: list[Any]) -> None:
    data = b"".join(parts)
    if data:
        assert 200 <= status_of(page, data) <= 505
        assert not page.done
