"""A store in its own process, and a peer that speaks its protocol byte by byte."""

import json
import os
import socket
import struct
import subprocess
import sys

from conftest import LIMIT_S

SERVE = """
import json, resource, sys
from relight.net import tcp_store
from relight.host.loop import Loop
from relight.net.ports import bind

limits = json.loads(sys.argv[2])
files = limits.pop("files", None)
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
for name, value in limits.items():
    assert hasattr(tcp_store, name)
    setattr(tcp_store, name, value)
loop = Loop()
listener = bind("127.0.0.1", int(sys.argv[1]), listen=True)
store = tcp_store.TCPStore(loop, listener)
print(listener.getsockname()[1], flush=True)
words = []
loop.on_readable(0, lambda: words.append(sys.stdin.readline()))
loop.run_until(lambda: words)
loop.forget(0)
if words[0] == "forget":  # all have gone
    deadline = loop.call_after(180, lambda: sys.exit("a client was not forgotten"))
    loop.run_until(lambda: not store._clients)
    assert not store._waiting
store.close()
assert not store._clients and not store._waiting
loop.close()
"""


class StoreServer:
    """relight's store. `close` also checks that it exits cleanly.

    Args:
        port: The port to listen on, or 0 for any free one.
        limits: Replacements for constants in `relight.net.tcp_store`, and `files`, the number of
            descriptors it may have.
    """

    def __init__(self, port: int = 0, **limits: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", SERVE, str(port), json.dumps(limits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.port = int(self._process.stdout.readline() or 0)

    def most_memory(self) -> int:
        """Return its peak memory usage in bytes."""
        with open(f"/proc/{self._process.pid}/status", encoding="ascii") as status:
            line = next(line for line in status if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    def close(self, *, connected: bool = False) -> None:
        """Stop the server. Unless peers are still connected, check that it has forgotten all of
        them.
        """
        try:
            _, errors = self._process.communicate("end" if connected else "forget", timeout=LIMIT_S)
        finally:
            self._process.kill()
            self._process.wait()
        assert (self._process.returncode, errors) == (0, "")


def u64(number: int) -> bytes:
    return struct.pack("=Q", number)


def i64(number: int) -> bytes:
    return struct.pack("=q", number)


def text(value: bytes) -> bytes:
    """Encode a key or a value."""
    return u64(len(value)) + value


def keys(*names: bytes) -> bytes:
    return u64(len(names)) + b"".join(map(text, names))


VALIDATE = b"\0" + struct.pack("=I", 0x3C85F7CE)
SET, COMPARE_SET, GET, ADD, CHECK, WAIT, NUM_KEYS, DELETE, APPEND = map(bytes, zip(range(1, 10)))
MULTI_GET, MULTI_SET, CANCEL, PING, PUSH, POP, LENGTH, LIST, BARRIER = map(
    bytes, zip(range(10, 19))
)
STOP_WAITING, WAIT_CANCELED = b"\0", b"\1"


class Peer:
    """A connection to a store, with the greeting sent unless `greet` is false."""

    def __init__(self, port: int, greet: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if greet:
            self.send(VALIDATE)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self, size: int) -> bytes:
        """Return this many bytes, or fewer if the server closes the connection."""
        data = bytearray()
        while len(data) < size and (more := self.socket.recv(min(size - len(data), 1 << 20))):
            data += more
        return bytes(data)

    def value(self) -> bytes:
        return self.read(*struct.unpack("=Q", self.read(8)))

    def number(self) -> int:
        return struct.unpack("=q", self.read(8))[0]

    def ask(self, query: bytes, size: int) -> bytes:
        self.send(query)
        return self.read(size)

    def set(self, key: bytes, value: bytes) -> None:
        """Set a key, and return once the server has stored it."""
        self.send(SET + text(key) + text(value))
        self.sync()

    def get(self, key: bytes) -> bytes:
        self.send(GET + text(key))
        return self.value()

    def wait(self, *names: bytes) -> None:
        """Send a wait, and return once the server has read it without answering."""
        self.send(WAIT + keys(*names))
        self.sync()

    def sync(self) -> None:
        """Return once the server has executed all requests and all its answers have been read."""
        nonce = os.urandom(4)
        assert self.ask(PING + nonce, 4) == nonce

    def ended(self) -> bool:
        """Return whether the server closed the connection instead of answering."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def reset(self) -> None:
        """End the connection as a machine crash does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
