"""A registry with one image, which serves the requests of a Docker daemon's pull and push.

python registry.py PORT LAYER.tar ARCHITECTURE     # serves 127.0.0.1:PORT/test/shell:1
"""

import gzip
import hashlib
import itertools
import json
import sys
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO
from urllib.parse import parse_qs, urlsplit

KINDS = "application/vnd.docker"
MANIFEST = f"{KINDS}.distribution.manifest.v2+json"
UNKNOWN = b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}'


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def image(layer: bytes, architecture: str) -> dict[str, tuple[str, bytes]]:
    """Return the content types and contents that are served, by the last part of the path."""
    packed = gzip.compress(layer, 1)
    roots = {"type": "layers", "diff_ids": [digest(layer)]}
    known = {"architecture": architecture, "os": "linux", "config": {}, "rootfs": roots}
    config = json.dumps(known).encode()
    parts = [
        {"mediaType": f"{KINDS}.{kind}", "size": len(data), "digest": digest(data)}
        for kind, data in (
            ("container.image.v1+json", config),
            ("image.rootfs.diff.tar.gzip", packed),
        )
    ]
    whole = {"schemaVersion": 2, "mediaType": MANIFEST, "config": parts[0], "layers": parts[1:]}
    manifest = json.dumps(whole).encode()
    served = {f"/v2/test/shell/blobs/{digest(d)}": ("", d) for d in (config, packed)}
    names = ("1", digest(manifest))
    served |= {f"/v2/test/shell/manifests/{name}": (MANIFEST, manifest) for name in names}
    return {"/v2/": ("application/json", b"{}"), **served}


def chunks(file: IO[bytes], headers: Message) -> Iterator[bytes]:
    """Yield a request's body, which may have an unknown length."""
    if headers["Transfer-Encoding"] != "chunked":
        yield file.read(int(headers["Content-Length"] or 0))
        return
    while size := int(file.readline(), 16):
        yield file.read(size)
        file.readline()
    file.readline()


def main() -> None:
    served = image(Path(sys.argv[2]).read_bytes(), sys.argv[3])

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, data = served.get(self.path, ("application/json", UNKNOWN))
            self.send_response(200 if self.path in served else 404)
            self.send_header("Content-Type", kind or "application/octet-stream")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Docker-Content-Digest", digest(data))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        do_HEAD = do_GET

        def do_POST(self) -> None:
            """Start an upload, whose data comes in a PATCH before a PUT with the digest. The daemon
            pushes layers at the same time, so each upload needs a path of its own.
            """
            self._answer(202, f"{self.path.partition('?')[0]}{next(numbers)}")

        def do_PATCH(self) -> None:
            data = uploads[self.path] = b"".join(chunks(self.rfile, self.headers))
            self._answer(202, self.path, Range=f"0-{len(data) - 1}")

        def do_PUT(self) -> None:
            path, query = urlsplit(self.path)[2:4]
            data = uploads.pop(path, b"") + b"".join(chunks(self.rfile, self.headers))
            if query:
                name = parse_qs(query)["digest"][0]
                path = f"{path.partition('/uploads/')[0]}/{name}"
            kind = self.headers["Content-Type"] or ""
            for name in (path, f"{path.rpartition('/')[0]}/{digest(data)}"):
                served[name] = kind, data
            self._answer(201, path, **{"Docker-Content-Digest": digest(data)})

        def _answer(self, code: int, location: str, **headers: str) -> None:
            self.send_response(code)
            for name, value in {"Location": location, "Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

    uploads: dict[str, bytes] = {}
    numbers = itertools.count()

    with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answers) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
