"""Who gets a response from a status page, tested with raw requests."""

import json
import socket
import threading
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, NamedTuple

import pytest
from conftest import LIMIT_S

from relight.base.errors import MachineError
from relight.inspect.page import server as page_server
from relight.inspect.page.server import PageServer, Served

TOKEN = "not-to-be-guessed"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str


class Page:
    """A made-up job's page, and the actions performed on it."""

    def __init__(self, token: str, *, is_public: bool = False) -> None:
        self.done: list[str] = []
        self.state: dict[str, Any] = {"job": {"name": "train", "taken": 1}, "ranks": [[0, "a"]]}
        actions = {"stacks": lambda: self.do("stacks"), "cancel": lambda: self.do("cancel")}
        served = Served(lambda: dict(self.state), self.output, self.metrics, actions)
        self.server = PageServer("127.0.0.1", 0, token, served, is_public=is_public)
        self.port = self.server.port
        run = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        run.start()

    def do(self, what: str) -> str:
        self.done.append(what)
        return f"{what} done"

    def output(self, rank: int, stream: str) -> str:
        return f"{stream} of {rank}: <b>bold</b>"

    def metrics(self) -> tuple[str, bytes]:
        raise MachineError("no metrics", hint="install them")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), LIMIT_S)

    def ask(self, what: str = "GET /state", **headers: str) -> Answer:
        """Send a request. `Host` and the token are valid unless given."""
        own = {"Host": f"127.0.0.1:{self.port}", "Authorization": f"Bearer {TOKEN}"}
        every = {**own, **headers}
        lines = [f"{what} HTTP/1.1", *(f"{k.replace('_', '-')}: {v}" for k, v in every.items())]
        with self.connect() as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            return parsed(connection)

    def act(self, what: str, **headers: str) -> Answer:
        """Send the page's own request, with some headers changed by the arguments."""
        return self.ask(f"POST /{what}", **{"Origin": f"http://127.0.0.1:{self.port}", **headers})


def parsed(connection: socket.socket) -> Answer:
    data = b""
    while more := connection.recv(65536):
        data += more
    head, _, body = data.decode().partition("\r\n\r\n")
    first, *rest = head.split("\r\n")
    pairs = (line.split(": ", 1) for line in rest)
    return Answer(int(first.split()[1]), {k.lower(): v for k, v in pairs}, body)


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page(TOKEN)
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:1", "localhost:80", "[::1]:80", "10.0.0.7", "LOCALHOST."]
)
def test_ip_address_or_localhost_is_accepted_as_host(page: Page, host: str) -> None:
    assert page.ask(Host=host).status == 200


@pytest.mark.parametrize("what", ["GET /", "GET /state", "GET /stream", "GET /metrics"])
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example",
             "", "127.0.0.1@evil.example"]
)  # fmt: skip
def test_dns_rebinding_is_rejected(page: Page, what: str, host: str) -> None:
    """In such an attack, the user's browser reads this server on behalf of a page from
    evil.example.
    """
    answer = page.ask(what, Host=host)
    assert answer.status == 421
    assert "train" not in answer.body


def test_request_without_host_header_is_rejected(page: Page) -> None:
    with page.connect() as connection:
        connection.sendall(b"GET /state HTTP/1.0\r\n\r\n")
        assert parsed(connection).status == 421


@pytest.mark.parametrize("what", ["/state", "/stream", "/metrics", "/output?rank=0", "/page.js"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_cross_site_reads_are_forbidden(page: Page, what: str, site: str) -> None:
    assert page.ask(f"GET {what}", Sec_Fetch_Site=site).status == 403


def test_cross_site_link_can_open_page(page: Page) -> None:
    assert page.ask("GET /", Sec_Fetch_Site="cross-site").status == 200


@pytest.mark.parametrize("what", ["GET /", "GET /state", "GET /nothing", "POST /x", "BREW /"])
def test_every_response_has_restrictive_security_headers(page: Page, what: str) -> None:
    """They forbid inline and external scripts and styles, frames, type sniffing, referrers and
    caching. No other origin gets access (CORS).
    """
    headers = page.ask(what).headers
    policy = dict(part.strip().split(" ", 1) for part in
                  headers["content-security-policy"].split(";"))  # fmt: skip
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert not any(name.startswith("access-control") for name in headers)
    assert headers["server"] == "relight"


def test_page_has_no_inline_scripts_or_external_urls(page: Page) -> None:
    """The policy can therefore forbid them."""
    assets = files("relight.inspect.page") / "assets"
    html = (assets / "index.html").read_text()
    assert "<style" not in html and " style=" not in html and " onclick" not in html
    assert html.count("<script") == 1 and '<script src="page.js"' in html
    for name in ("index.html", "page.js", "page.css"):
        text = (assets / name).read_text()
        assert "https://" not in text and "http://" not in text, name
        assert "innerHTML" not in text and "insertAdjacentHTML" not in text, name
        assert page.ask(f"GET /{name if name != 'index.html' else ''}").body == text


WRONG = (
    "Bearer guess",
    TOKEN,
    "",
    f"Basic {TOKEN}",
    "Bearer \u00e4",
    "Bearer ",
    f"Bearer {TOKEN}x",
)
READS = ("state", "stream", "metrics", "output?rank=0", "nothing")


@pytest.mark.parametrize("what", READS)
def test_reading_status_page_requires_token(page: Page, what: str) -> None:
    """The token isn't part of any address, as addresses end up in logs."""
    for wrong in WRONG:
        answer = page.ask(f"GET /{what}", Authorization=wrong)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer"), wrong
        assert "train" not in answer.body and TOKEN not in answer.body
        assert page.ask(f"HEAD /{what}", Authorization=wrong).status in (401, 405)
    mark = "&" if "?" in what else "?"
    assert page.ask(f"GET /{what}{mark}token={TOKEN}", Authorization="").status == 401


@pytest.mark.parametrize("what", ["", "page.js", "page.css", "icon.svg"])
def test_static_files_need_no_token(page: Page, what: str) -> None:
    """A browser loads them before the page knows its token."""
    assert page.ask(f"GET /{what}", Authorization="").status == 200


def test_public_page_needs_token_only_for_actions() -> None:
    page = Page(TOKEN, is_public=True)
    try:
        assert page.ask(Authorization="").status == 200
        assert page.ask("GET /output?rank=0", Authorization="Bearer wrong").status == 200
        assert page.act("cancel", Authorization="").status == 401
        assert page.act("cancel").status == 200
    finally:
        page.server.shutdown()
        page.server.server_close()


def test_stack_dumps_and_cancellation_require_token(page: Page) -> None:
    assert page.act("stacks")[0::2] == (200, "stacks done")
    assert page.act("cancel").status == 200
    assert page.done == ["stacks", "cancel"]


@pytest.mark.parametrize("wrong", WRONG)
def test_request_with_wrong_token_is_rejected(page: Page, wrong: str) -> None:
    assert page.act("cancel", Authorization=wrong).status == 401
    assert not page.done


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", "https://127.0.0.1", "http://127.0.0.1:1"]
)
def test_request_from_another_origin_is_rejected_even_with_token(page: Page, origin: str) -> None:
    assert page.act("cancel", Origin=origin).status == 403
    assert page.act("cancel", Host="evil.example", Origin="http://evil.example").status == 421
    assert not page.done


def test_get_request_never_performs_an_action(page: Page) -> None:
    assert page.ask("GET /cancel", Authorization=f"Bearer {TOKEN}").status == 404
    assert page.act("cancel?x=1").status == 200  # a query doesn't change the action
    assert page.act("nothing").status == 404
    assert page.ask("PUT /cancel", Authorization=f"Bearer {TOKEN}").status == 501
    assert page.done == ["cancel"]


def test_page_without_token_is_read_only() -> None:
    page = Page("", is_public=True)
    try:
        for token in ("", "Bearer ", f"Bearer {TOKEN}"):
            assert page.act("cancel", Authorization=token).status == 403
        assert page.ask().status == 200
        assert not page.done
    finally:
        page.server.shutdown()
        page.server.server_close()


def test_oversized_request_body_is_rejected_without_reading_it(page: Page) -> None:
    assert page.act("cancel", Content_Length="1000000000").status == 413
    assert page.act("cancel", Content_Length="-1").status == 413
    assert not page.done


def test_worker_output_is_served_as_plain_text(page: Page) -> None:
    """A browser shows markup printed by a worker as text."""
    answer = page.ask("GET /output?rank=3&stream=stderr")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.body == "stderr of 3: <b>bold</b>"
    for query in ("", "?rank=x", "?rank=-1", "?rank=1&stream=../x", "?rank=99999999999999"):
        assert page.ask(f"GET /output{query}").status == 400


def test_response_for_unavailable_feature_suggests_remedy(page: Page) -> None:
    answer = page.ask("GET /metrics")
    assert (answer.status, answer.body) == (503, "no metrics\nhint: install them\n")


@pytest.mark.parametrize("path", ["/../page.js", "/assets/page.js", "//evil.example/", "/%2e%2e/x"])
def test_only_page_assets_are_served(page: Page, path: str) -> None:
    assert page.ask(f"GET {path}").status in (400, 404)


def events(connection: socket.socket) -> Iterator[dict[str, Any]]:
    with connection.makefile("r", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def test_event_stream_sends_full_state_then_changes(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "_EVERY_S", 0.01)
    with page.connect() as connection:
        head = f"Host: localhost:{page.port}\r\nAuthorization: Bearer {TOKEN}"
        connection.sendall(f"GET /stream HTTP/1.1\r\n{head}\r\n\r\n".encode())
        stream = events(connection)
        assert next(stream) == {**page.state, "full": True}
        page.state["ranks"] = [[0, "a"], [1, "b"]]
        assert next(stream) == {"ranks": [[1, "b"]]}
        page.state["ranks"] = [[1, "b"]]
        page.server.closing.set()  # the last state is sent before the end
        assert list(stream) == [{"gone": [0]}]


def test_event_streams_above_limit_are_rejected_with_reason(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = 0
    while page.server.streams.acquire(blocking=False):
        held += 1
    answer = page.ask("GET /stream")
    assert answer.status == 503
    assert f"{held} browsers" in answer.body
    assert page.ask("GET /state").status == 200


def test_connections_above_limit_are_closed(page: Page) -> None:
    """The page can't be made to use up the node's memory, and other clients are still served."""
    idle = [page.connect() for _ in range(page_server._MAX_CONNECTIONS)]
    try:
        with page.connect() as one_more:
            one_more.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
            try:
                assert one_more.recv(1) == b""
            except ConnectionResetError:
                pass
    finally:
        for each in idle:
            each.close()


def test_slowloris_request_is_dropped(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow clients can't occupy all connections forever."""
    monkeypatch.setattr(page_server, "_LIMIT_S", 0.3)
    with page.connect() as slow:
        slow.settimeout(0.05)
        slow.sendall(b"GET / HTTP/1.1\r\nX")
        for _ in range(400):
            try:
                slow.sendall(b"x")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            raise AssertionError("it is still connected")


def test_page_is_served_after_its_files_are_removed(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade removes or replaces them while the job is running."""
    monkeypatch.delattr(page_server, "files")
    assert page.ask("GET /").status == page.ask("GET /page.js").status == 200


@pytest.mark.mistakes
def test_only_request_that_needs_removed_module_fails(page: Page) -> None:
    def stacks() -> str:
        raise ModuleNotFoundError("No module named 'relight.core.status.node_stacks'")

    page.server.served = page.server.served._replace(actions={"stacks": stacks})
    answer = page.act("stacks")
    assert answer.status == 500
    assert answer.body.count("\n") == 1
    assert "No module named 'relight.core.status.node_stacks'" in answer.body
    assert page.ask("GET /state").status == 200
