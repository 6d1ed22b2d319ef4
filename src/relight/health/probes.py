"""Imitates a job's workers: connects to free ports, and sends large amounts of data and large
datagrams.

    caller                                     prober
    connect, cookie and its number      ->
                                        <-     b"+"
    LARGE bytes                         ->
                                        <-     b"="
    datagram: cookie ? number size ...  ->
                                        <-     datagram: cookie ! number size

A prober counts and discards all data that it receives, and never replies to a peer that does not
know the cookie. A reply is never larger than its request. The numbers identify the nodes.
"""

import errno
import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from relight.base.fields import Malformed
from relight.core.group.messages import Target
from relight.health.doctor_messages import Probe, ProbeResult
from relight.host.descriptors import receive
from relight.host.loop import Loop, Timer
from relight.net.dns import sock_address
from relight.net.ports import any_address, is_loopback, listen

COOKIE_BYTES = 16
LARGE = 14_000
"""More than one packet on any network, but small enough to take a single round trip (RFC 6928)."""
LIMIT_S = 2.5
"""Long enough for a second connection attempt after the first packet is lost."""
MAX_PEERS = 200
"""More simultaneous connections could exceed the open-file limit."""

_SEND_TIMES_S = (0.0, 0.3, 0.7, 1.2, 1.7)
_SIZES = (100, 576, 1280, 1400, 1450, 1492, 1500, 4000, 8900)
_LARGEST = 16000
_MAX_CALLERS = 2 * MAX_PEERS + 64
_AT_ONCE = 256
_hello = struct.Struct(">16sI")
_datagram = struct.Struct(">16scII")

# linux/in.h and linux/in6.h; the socket module lacks them.
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PROBE = 10, 23, 3
_IP_MTU, _IPV6_MTU = 14, 24


def mtu_to(address: str) -> int:
    """Return the size of the largest packet that this machine sends to a numeric address, or 0 if
    the size is unknown or the address belongs to this machine.
    """
    if is_loopback(address):
        return 0
    family, target = sock_address(address, 9)
    six = family == socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(target)
            if sock.getsockname()[0] == target[0]:
                return 0
            level = socket.IPPROTO_IPV6 if six else socket.IPPROTO_IP
            return sock.getsockopt(level, _IPV6_MTU if six else _IP_MTU)
    except OSError:
        return 0


class Prober:
    """Receives probes from other nodes, and sends this node's own probes.

    Args:
        loop: the event loop.
        udp_port: the port for datagrams, or 0 for any free port.

    Attributes:
        tcp_port: the port for connections.
        udp_port: the port for datagrams, or 0.
        udp_taken: whether another program is using the requested port for datagrams.
    """

    def __init__(self, loop: Loop, udp_port: int = 0) -> None:
        self._loop = loop
        self._cookie = b""
        self._number = 0
        self._callers: list[_Caller] = []
        self._others: dict[int, _Other] = {}
        self._timers: list[Timer] = []
        self._done: Callable[[dict[int, Probe]], None] | None = None
        self._listener = listen("", 0)
        self.tcp_port = 0
        if self._listener is not None:
            self._listener.setblocking(False)
            self.tcp_port = self._listener.getsockname()[1]
            loop.on_readable(self._listener, self._accept)
        self._udp = _datagram_socket(udp_port)
        self.udp_taken = self._udp is None and udp_port != 0
        self._udp = self._udp or _datagram_socket(0)
        self.udp_port = self._udp.getsockname()[1] if self._udp is not None else 0
        if self._udp is not None:
            loop.on_readable(self._udp, self._receive_safely)

    def start(
        self,
        cookie: bytes,
        number: int,
        nodes: Sequence[Target],
        done: Callable[[dict[int, Probe]], None],
    ) -> None:
        """Probe the other nodes, and call `done` with the results after at most `LIMIT_S` seconds.

        Args:
            cookie: a secret that all nodes share.
            number: the number of this node.
            nodes: the addresses of all nodes, including this one.
            done: called once.
        """
        self._cookie, self._number, self._done = cookie, number, done
        for caller in list(self._callers):
            caller.check(cookie)
        count = min(len(nodes) - 1, MAX_PEERS)
        for target in [(number + 1 + step) % len(nodes) for step in range(count)]:
            address, tcp_port, udp_port = nodes[target]
            try:
                family, where = sock_address(address, udp_port)
                mtu = mtu_to(address)
            except ValueError:
                continue
            six = self._udp is not None and self._udp.family == socket.AF_INET6
            if six and family == socket.AF_INET:
                where = ("::ffff:" + where[0], udp_port)
            hello = _hello.pack(cookie, number)
            call = _Call(self._loop, (address, tcp_port), hello, self._check_finished)
            self._others[target] = _Other(call, where if udp_port else None, mtu)
        for seconds in _SEND_TIMES_S:
            self._timers.append(self._loop.call_after(seconds, self._send))
        self._timers.append(self._loop.call_after(LIMIT_S, self._finish))
        self._timers.append(self._loop.call_after(0, self._check_finished))

    def close(self) -> None:
        """Close the sockets and end all probes."""
        self._done = None
        for timer in self._timers:
            timer.cancel()
        for other in self._others.values():
            other.call.close()
        for caller in list(self._callers):
            caller.close()
        for sock in (self._listener, self._udp):
            if sock is not None:
                self._loop.forget(sock)
                sock.close()
        self._listener = self._udp = None

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if len(self._callers) >= _MAX_CALLERS:
                sock.close()
                return
            _Caller(self._loop, sock, self._callers, lambda: self._cookie)

    # Datagrams.

    def _send(self) -> None:
        for other in self._others.values():
            if other.where is None:
                continue
            limit, reached = other.largest, other.answered
            sizes = {100, limit} if not reached else {s for s in (*_SIZES, limit) if s > reached}
            for size in sorted(size for size in sizes if size <= limit):
                self._send_one(b"?", size, other.where, pad=True)

    def _send_one(self, kind: bytes, size: int, where: tuple[Any, ...], *, pad: bool) -> None:
        if self._udp is None:
            return
        data = _datagram.pack(self._cookie, kind, self._number, size)
        if pad:
            data = data.ljust(size - _header(where), b"\0")
        with suppress(OSError):  # too large for the interface, or forbidden: no reply
            self._udp.sendto(data, where)

    def _receive_safely(self) -> None:
        self._loop.run_guarded(self._receive, "a datagram")

    def _receive(self) -> None:
        for _ in range(_AT_ONCE):
            if self._udp is None:
                return
            try:
                data, sender = self._udp.recvfrom(1 << 16)
            except OSError:
                return
            if len(data) < _datagram.size or not self._cookie:
                continue
            cookie, kind, number, size = _datagram.unpack_from(data)
            other = self._others.get(number)
            if cookie != self._cookie or other is None or size > _LARGEST:
                continue
            if kind == b"?" and len(data) + _header(sender) >= min(size, 1 << 16):
                other.heard = max(other.heard, size)
                self._send_one(b"!", size, sender, pad=False)
            elif kind == b"!":
                other.answered = max(other.answered, size)
                self._check_finished()

    # Finishing.

    def _check_finished(self) -> None:
        """Finish early if all results have arrived."""
        if all(
            other.call.large == ProbeResult.PASSED and other.answered >= other.largest
            for other in self._others.values()
        ):
            self._finish()

    def _finish(self) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        found = {}
        for number, other in self._others.items():
            call = other.call
            call.close()
            found[number] = Probe(call.tcp, call.large, other.answered, other.heard, other.mtu)
        done(found)


class _Other:
    """Another node, with the sizes of the largest datagrams that have got through so far, as in
    `Probe`.

    Args:
        call: the connection to the node.
        where: the address for datagrams, or None.
        mtu: the size of the largest packet that the interface accepts, or 0 if unknown.
    """

    def __init__(self, call: "_Call", where: tuple[Any, ...] | None, mtu: int) -> None:
        self.call = call
        self.where = where
        self.mtu = mtu
        self.largest = min(mtu or 1500, _LARGEST) if where is not None else 0
        self.answered = 0
        self.heard = 0


class _Call:
    """A connection to another node."""

    def __init__(
        self, loop: Loop, address: tuple[str, int], hello: bytes, changed: Callable[[], None]
    ) -> None:
        self.tcp, self.large = ProbeResult.SILENT, ProbeResult.UNTRIED
        self._loop = loop
        self._changed = changed
        self._unsent = bytearray(hello)
        family, target = sock_address(*address)
        self._sock: socket.socket | None = None
        try:
            self._sock = socket.socket(family, socket.SOCK_STREAM)
            self._sock.setblocking(False)
            error = self._sock.connect_ex(target)
        except OSError as failure:
            error = failure.errno or errno.EIO
        if error not in (0, errno.EINPROGRESS) or self._sock is None:
            self._fail(error)
            return
        loop.on_writable(self._sock, self._closing_on_error(self._connected))

    def close(self) -> None:
        """End the connection. Replies that have not arrived by now count as missing."""
        if self._sock is not None:
            self._loop.forget(self._sock)
            self._sock.close()
            self._sock = None

    def _closing_on_error(self, act: Callable[[], None]) -> Callable[[], None]:
        """Return a callback that closes only this connection if `act` raises."""

        def attempt() -> None:
            if not self._loop.run_guarded(act, "an answer to a probe"):
                self.close()

        return attempt

    def _connected(self) -> None:
        assert self._sock is not None
        error = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._fail(error)
            return
        self.tcp = ProbeResult.MUTE
        self._loop.on_readable(self._sock, self._closing_on_error(self._listen))
        self._write()

    def _write(self) -> None:
        if self._sock is None:
            return
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            self._loop.on_writable(self._sock, self._closing_on_error(self._write))
            return
        except OSError:
            self.close()
            return
        self._loop.on_writable(self._sock, None)

    def _listen(self) -> None:
        assert self._sock is not None
        heard = receive(self._sock, 16)
        if heard is None:
            return
        if heard.startswith(b"+") and self.tcp == ProbeResult.MUTE:
            self.tcp, self.large = ProbeResult.PASSED, ProbeResult.STUCK
            self._unsent += bytes(LARGE)
            self._write()
            heard = heard[1:]
            if not heard:
                return
        if heard == b"=" and self.tcp == ProbeResult.PASSED:
            self.large = ProbeResult.PASSED
        self.close()
        self._changed()

    def _fail(self, error: int) -> None:
        if error == errno.ECONNREFUSED:
            self.tcp = ProbeResult.REFUSED
        elif error == errno.ETIMEDOUT:
            self.tcp = ProbeResult.SILENT
        else:
            self.tcp = ProbeResult.NO_ROUTE
        self.close()


class _Caller:
    """A connection from another node."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        callers: "list[_Caller]",
        cookie: Callable[[], bytes],
    ) -> None:
        self._loop, self._sock, self._callers, self._cookie = loop, sock, callers, cookie
        self._hello = bytearray()
        self._left = -1
        callers.append(self)
        sock.setblocking(False)
        loop.on_readable(sock, self._on_readable)

    def close(self) -> None:
        """End the connection."""
        if self in self._callers:
            self._callers.remove(self)
            self._loop.forget(self._sock)
            self._sock.close()

    def check(self, cookie: bytes) -> None:
        """Reply to the connection's hello, once it has arrived, if it contains the cookie."""
        if len(self._hello) < _hello.size or not cookie or self._left >= 0:
            return
        if _hello.unpack(self._hello)[0] != cookie:
            self.close()
            return
        self._left = LARGE
        self._say(b"+")

    def _on_readable(self) -> None:
        """Read pending data. An error closes only this connection."""
        if not self._loop.run_guarded(self._read, "a probe"):
            self.close()

    def _read(self) -> None:
        wanted = 1 << 16 if self._left >= 0 else max(1, _hello.size - len(self._hello))
        data = receive(self._sock, wanted)
        if data is None:
            return
        if not data:
            self.close()
        elif self._left < 0:
            self._hello += data
            if len(self._hello) > _hello.size:
                self.close()
            else:
                self.check(self._cookie())
        else:
            self._left -= len(data)
            if self._left <= 0:
                self._say(b"=")

    def _say(self, word: bytes) -> None:
        try:
            self._sock.send(word)
        except OSError:
            self.close()


def new_cookie() -> bytes:
    """Return a cookie that can't be guessed."""
    return os.urandom(COOKIE_BYTES)


def cookie_from(text: str) -> bytes:
    """Return the cookie from a message.

    Raises:
        Malformed: if the text is not a cookie.
    """
    try:
        cookie = bytes.fromhex(text)
    except ValueError:
        cookie = b""
    if len(cookie) != COOKIE_BYTES:
        raise Malformed("no cookie")
    return cookie


def _header(where: tuple[Any, ...]) -> int:
    """Return the size in bytes of a datagram's IP and UDP headers."""
    return 48 if ":" in where[0] and not where[0].startswith("::ffff:") else 28


def _datagram_socket(port: int) -> socket.socket | None:
    """Return a socket whose datagrams are never fragmented by routers, or None if that is
    unsupported.
    """
    address = any_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        sock = socket.socket(family, socket.SOCK_DGRAM)
    except OSError:
        return None
    try:
        sock.setblocking(False)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PROBE)
        sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PROBE)
        sock.bind((address, port))
    except OSError:
        sock.close()
        return None
    return sock
