"""Sends heartbeats and ballots as UDP datagrams. Unlike a lost TCP segment, a lost datagram doesn't
delay the datagrams after it.

A datagram consists of a key that identifies the connection (8 bytes), a number (8 bytes,
big-endian) or a ballot, and an authentication code over both (8 bytes of keyed BLAKE2b, RFC 7693),
computed with the connection's session key.

If no process is bound to a datagram's destination port, the destination machine reports that (ICMP
port unreachable, RFC 792 and 4443). The processes that outlive an agent share its socket as long as
they have workers, so such a report proves that all of these processes have exited. A report counts
only if it comes from the destination machine itself, rather than from a firewall or gateway in
between, and if it is about an address that has sent datagrams before.
"""

import errno
import os
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from relight.host.loop import Loop, Timer

Address = tuple[Any, ...]
"""An address in the form that the socket module uses."""
SIZE = 24
PROBE_S = 0.05
"""The interval between probes of a port whose process may have exited."""
_ROUNDS_AT_FIRST, _LATER_EACH = 20, 5
_OPEN_RETRY_S = 1.0
_RECVERR = (socket.IPPROTO_IP, 11), (socket.IPPROTO_IPV6, 25)
"""IP_RECVERR and IPV6_RECVERR (linux/in.h, in6.h): they allow errors to be read with MSG_ERRQUEUE,
together with the address that an error is about (ip(7)).
"""
_MSG_ERRQUEUE = 0x2000
_error = struct.Struct("=IBBBxII")
"""struct sock_extended_err (linux/errqueue.h): errno, origin, type, code, info, data."""
_FROM_NETWORK = (2, 3)
"""SO_EE_ORIGIN_ICMP and SO_EE_ORIGIN_ICMP6."""
_OFFENDER = 8
"""Minimum size of SO_EE_OFFENDER, a sockaddr_in or sockaddr_in6 after the error."""
_MAX_BYTES = 1200
"""A size that is never fragmented on any network (RFC 8200 requires support for 1,280-byte
packets).
"""
_AT_ONCE = 256
_number = struct.Struct(">Q")


class Heartbeats:
    """A socket for heartbeats. If the socket can't be opened, all methods do nothing.

    Args:
        loop: the agent's loop.
        address: the host and port to bind; port 0 means any port.
        family: the address family.
        on_datagram: called with each datagram and its sender.

    Attributes:
        on_unreachable: called with the destination (host and port) of a datagram that no process
            received.
    """

    def __init__(
        self,
        loop: Loop,
        address: tuple[str, int],
        family: int,
        on_datagram: Callable[[bytes, Address], None],
    ) -> None:
        self.on_unreachable: Callable[[tuple[str, int]], None] = lambda _: None
        self._loop = loop
        self._on_datagram = on_datagram
        self._socket: socket.socket | None = None
        self._probed: dict[Address, _Probe] = {}
        self._timer: Timer | None = None
        self._open(address, family)

    def _open(self, address: tuple[str, int], family: int) -> None:
        self._timer = None
        try:
            self._socket = socket.socket(family, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._socket.bind(address)
            self._loop.on_readable(self._socket, self._receive)
        except OSError as error:
            self.close()  # heartbeats are also sent over the connection
            if error.errno == errno.EADDRINUSE:  # by remaining processes of a previous agent
                self._timer = self._loop.call_after(
                    _OPEN_RETRY_S, lambda: self._open(address, family)
                )
            return
        for option in _RECVERR:
            # Wrong family; exits can't be detected unless one option is set.
            with suppress(OSError):
                self._socket.setsockopt(*option, 1)

    @property
    def port(self) -> int:
        """The port, or 0 if the socket is not open."""
        return 0 if self._socket is None else int(self._socket.getsockname()[1])

    def fileno(self) -> int:
        """Return the socket's descriptor, or -1 if the socket is not open."""
        return -1 if self._socket is None else self._socket.fileno()

    def probe(self, target: Address, *, on: bool = True) -> None:
        """Start or stop probing an address with datagrams. The machine at the address reports an
        error for each of them if no process is bound to the port.
        """
        if on:
            self._probed.setdefault(target, _Probe())
        else:
            self._probed.pop(target, None)
        if self._timer is None and self._probed:
            self._send_probes()

    def _send_probes(self) -> None:
        self._timer = None
        for target, probe in self._probed.items():
            probe.rounds += 1
            if probe.rounds <= _ROUNDS_AT_FIRST or probe.rounds % _LATER_EACH == 0:
                self.send(probe.content, target)
        if self._probed:
            self._timer = self._loop.call_after(PROBE_S, self._send_probes)

    def close(self) -> None:
        """Close the socket."""
        self._probed.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket is not None:
            self._loop.forget(self._socket)
            self._socket.close()
            self._socket = None

    def send(self, data: bytes, target: Address) -> None:
        """Send a datagram, or drop it if that fails."""
        if self._socket is None:
            return
        for _ in range(2):  # the first try may report the error of an earlier datagram
            try:
                self._socket.sendto(data, target)
            except OSError:
                continue
            return

    @staticmethod
    def prefix_key(session_key: bytes) -> bytes:
        """Return the key that identifies a connection in its datagrams."""
        return _code(b"beats", session_key)

    @classmethod
    def datagram(cls, number: int, session_key: bytes) -> bytes:
        """Return the heartbeat datagram with this number."""
        return cls.sealed(_number.pack(number), session_key)

    @classmethod
    def sealed(cls, content: bytes, session_key: bytes) -> bytes:
        """Return a datagram with this content and its authentication code."""
        body = cls.prefix_key(session_key) + content
        return body + _code(body, session_key)

    @classmethod
    def number_of(cls, data: bytes, session_key: bytes) -> int | None:
        """Return the number of a heartbeat, or None if the heartbeat does not belong to this
        connection.
        """
        if len(data) != SIZE or not cls.is_genuine(data, session_key):
            return None
        number: int = _number.unpack_from(data, 8)[0]
        return number

    @staticmethod
    def is_genuine(data: bytes, session_key: bytes) -> bool:
        """Return whether a datagram's sender knows the session key."""
        return _code(data[:-8], session_key) == data[-8:]

    def _receive(self) -> None:
        for _ in range(_AT_ONCE):
            if self._socket is None:
                return
            try:
                data, sender = self._socket.recvfrom(_MAX_BYTES)
            except BlockingIOError:
                break
            except OSError:
                continue  # it is also in the error queue
            self._loop.run_guarded(partial(self._on_datagram, data, sender), "a datagram")
        self._receive_errors()

    def _receive_errors(self) -> None:
        for _ in range(_AT_ONCE):
            if self._socket is None:
                return
            try:
                sent, controls, _, target = self._socket.recvmsg(64, 512, _MSG_ERRQUEUE)
            except OSError:
                return
            for level, kind, data in controls:
                if (level, kind) in _RECVERR and _is_refusal(data, numeric(target)[0]):
                    answer = partial(self._on_refused, sent, target)
                    self._loop.run_guarded(answer, "a refused datagram")

    def _on_refused(self, sent: bytes, target: Address) -> None:
        """Handle the error reported for a probe. Linux quotes the whole probe in the error, so an
        attacker who can't read the probe in transit can't forge an error.
        """
        for each, probe in list(self._probed.items()):
            if each[:2] == target[:2] and sent == probe.content:
                del self._probed[each]
                self.on_unreachable((str(target[0]), int(target[1])))


class _Probe:
    """A datagram that tests whether any process is bound to a port."""

    def __init__(self) -> None:
        self.content = os.urandom(8)
        self.rounds = 0


def numeric(address: Address) -> tuple[str, int]:
    """Return an address's host and port. Dual-stack sockets report IPv4 addresses in IPv6 form."""
    return str(address[0]).removeprefix("::ffff:"), int(address[1])


def _is_refusal(data: bytes, host: str) -> bool:
    """Return whether an error was reported by the destination itself, rather than by a firewall in
    between, because the port is unused. The argument `data` is a sock_extended_err, followed by the
    address of the machine that reported the error.
    """
    if len(data) < _error.size + _OFFENDER:
        return False
    number, origin, *_ = _error.unpack_from(data)
    family = int.from_bytes(data[_error.size : _error.size + 2], sys.byteorder)
    at = _error.size + (4 if family == socket.AF_INET else 8)
    size = 4 if family == socket.AF_INET else 16
    try:
        offender = socket.inet_ntop(family, data[at : at + size])
    except (OSError, ValueError):
        return False
    return (
        number == errno.ECONNREFUSED
        and origin in _FROM_NETWORK
        and offender.removeprefix("::ffff:") == host.partition("%")[0]
    )


def _code(content: bytes, session_key: bytes) -> bytes:
    # Loading OpenSSL takes two milliseconds, too long at job startup.
    from hashlib import blake2b

    return blake2b(content, key=session_key, digest_size=8).digest()
