"""A proxy for a service on this host that can hold back one response.

with Held("127.0.0.1:8265", "POST", "/api/jobs/") as service:
    ...                        # talk to service.address
    service.reached.wait()     # the service has handled the request, but its response is held back
    service.release.set()
"""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from conftest import LIMIT_S


class Held:
    """The proxy. `made` has the method and path of each request that passed through."""

    def __init__(self, upstream: str, method: str, path: str) -> None:
        self.reached, self.release = threading.Event(), threading.Event()
        self.made: list[tuple[str, str]] = []
        held = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                service = http.client.HTTPConnection(upstream, timeout=LIMIT_S)
                service.request(self.command, self.path, body, dict(self.headers))
                answer = service.getresponse()
                data = answer.read()
                held.made.append((self.command, self.path))
                if (self.command, self.path) == (method, path):
                    held.reached.set()
                    held.release.wait(LIMIT_S)
                try:
                    self.send_response(answer.status)
                    for name in ("Content-Type", "x-amzn-errortype"):
                        if name in answer.headers:
                            self.send_header(name, answer.headers[name])
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # nobody is waiting for it any longer

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Held":
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
