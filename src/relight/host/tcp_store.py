"""A server of torch's TCPStore protocol: what MASTER_ADDR:MASTER_PORT leads to, one for a
generation.

It is bound before its port is announced, so no other process can take the port, and it starts
empty, so no worker meets the addresses of a generation that is dead. Every rank is a client
(`TORCHELASTIC_USE_AGENT_STORE=True`).

The protocol is that of torch 2.13 (torch/csrc/distributed/c10d/TCPStore.cpp, TCPStoreBackend.hpp,
TCPStoreLibUvBackend.cpp). A client first sends VALIDATE and a magic number. A request is one byte
for the query and its arguments: integers are 8 bytes in the byte order of the machine, texts and
values are a length and that many bytes. What does not parse, or is larger than torch's own limits,
closes the connection.
"""

import errno
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from relight.errors import MachineError, UsageError
from relight.host.loop import Loop

MAGIC = 0x3C85F7CE
_MAX_KEY = 8 * 1024
_MAX_VALUE = 8 * 1024 * 1024
_MAX_KEYS = 128 * 1024
_MAX_UNSENT = 64 * 1024 * 1024
_READ = 256 * 1024
_BACKLOG = 4096

_STOP_WAITING, _WAIT_CANCELED = b"\x00", b"\x01"
_READY, _NOT_READY = b"\x00", b"\x01"

_u32 = struct.Struct("=I")
_u64 = struct.Struct("=Q")
_i64 = struct.Struct("=q")


class _Incomplete(Exception):  # noqa: N818  # not an error: more bytes are on their way
    """The request goes on beyond what has arrived; at least `size` bytes are needed."""

    def __init__(self, size: int) -> None:
        self.size = size


class _Malformed(Exception):  # noqa: N818  # what a stranger did, not what we did
    """The bytes are no request of this protocol."""


class _Request:
    """A cursor over the bytes of a request."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position

    def take(self, size: int) -> bytes:
        start = self.position
        self.position = end = start + size
        if end > len(self.data):
            raise _Incomplete(end)
        return self.data[start:end]

    def length(self, limit: int) -> int:
        start = self.position
        self.position = end = start + 8
        if end > len(self.data):
            raise _Incomplete(end)
        (size,) = _u64.unpack_from(self.data, start)
        if size > limit:
            raise _Malformed(f"a length of {size} is above the limit of {limit}")
        return int(size)

    def key(self) -> bytes:
        return self.take(self.length(_MAX_KEY))

    def value(self) -> bytes:
        return self.take(self.length(_MAX_VALUE))

    def all_keys(self) -> list[bytes]:
        return [self.key() for _ in range(self.length(_MAX_KEYS))]

    def number(self) -> int:
        (number,) = _i64.unpack(self.take(8))
        return int(number)


class TCPStore:
    """The store of one generation's workers.

    Args:
        loop: the agent's loop.
        host: the address to listen on; a name is looked up.
        port: the port, 0 for any free one; `port` then tells which.

    Raises:
        UsageError: the port is taken, or the address is none of this machine.
        MachineError: no socket is to be had.
    """

    def __init__(self, loop: Loop, host: str, port: int) -> None:
        self.values: dict[bytes, bytes] = {}
        self._queues: dict[bytes, deque[bytes]] = {}
        self._waiting: dict[bytes, list[_Client]] = {}
        self._clients: set[_Client] = set()
        self._loop = loop
        self._listener = _bind(host, port)
        self._listener.listen(_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        loop.on_readable(self._listener, self._accept)

    def close(self) -> None:
        """End all connections and free the port."""
        self._loop.forget(self._listener)
        self._listener.close()
        for client in list(self._clients):
            client.close()

    def forget(self, client: "_Client") -> None:
        """A client has gone."""
        self._clients.discard(client)
        self.cancel_wait(client)

    def cancel_wait(self, client: "_Client") -> None:
        """A client no longer waits for anything."""
        for key in client.awaited:
            waiting = self._waiting.get(key)
            if waiting is not None and client in waiting:
                waiting.remove(client)
                if not waiting:
                    del self._waiting[key]
        client.awaited.clear()

    def _accept(self) -> None:
        for _ in range(64):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                return  # the peer has gone already, or we are out of descriptors: it will try again
            self._clients.add(_Client(self._loop, self, connection))

    # The queries, in the numbering of torch's QueryType; VALIDATE (0) is the client's own affair.

    def _set(self, _: "_Client", request: _Request) -> None:
        key = request.key()
        self._store(key, request.value())

    def _compare_set(self, client: "_Client", request: _Request) -> None:
        key, expected, desired = request.key(), request.value(), request.value()
        current = self.values.get(key)
        if current is None and expected:
            client.reply_value(expected)  # torch's answer for a key that is not there
            return
        if current is None or current == expected:
            self._store(key, desired)
        client.reply_value(self.values[key])

    def _get(self, client: "_Client", request: _Request) -> None:
        client.reply_value(self.values.get(request.key(), b""))

    def _add(self, client: "_Client", request: _Request) -> None:
        key, amount = request.key(), request.number()
        total = self._number_at(key) + amount
        self._store(key, b"%d" % total)
        client.reply(_i64.pack(total))

    def _check(self, client: "_Client", request: _Request) -> None:
        client.reply(_READY if all(map(self._has, request.all_keys())) else _NOT_READY)

    def _wait(self, client: "_Client", request: _Request) -> None:
        missing = [key for key in request.all_keys() if not self._has(key)]
        if not missing:
            client.reply(_STOP_WAITING)
            return
        for key in missing:
            self._waiting.setdefault(key, []).append(client)
        client.awaited.extend(missing)

    def _count_keys(self, client: "_Client", _: _Request) -> None:
        client.reply(_i64.pack(len(self.values)))

    def _delete(self, client: "_Client", request: _Request) -> None:
        existed = self.values.pop(request.key(), None) is not None
        client.reply(_i64.pack(int(existed)))

    def _append(self, _: "_Client", request: _Request) -> None:
        key, value = request.key(), request.value()
        self._store(key, self.values.get(key, b"") + value)

    def _multi_get(self, client: "_Client", request: _Request) -> None:
        for key in request.all_keys():
            client.reply_value(self.values.get(key, b""))

    def _multi_set(self, _: "_Client", request: _Request) -> None:
        count = request.length(_MAX_KEYS)
        for key, value in [(request.key(), request.value()) for _i in range(count)]:
            self._store(key, value)

    def _cancel(self, client: "_Client", _: _Request) -> None:
        self.cancel_wait(client)
        client.reply(_WAIT_CANCELED)

    def _ping(self, client: "_Client", request: _Request) -> None:
        client.reply(request.take(4))

    def _queue_push(self, _: "_Client", request: _Request) -> None:
        key, value = request.key(), request.value()
        self._queues.setdefault(key, deque()).append(value)
        waiting = self._waiting.get(key)
        if waiting:
            self._wake(waiting[0], key)  # one value, one client

    def _queue_pop(self, client: "_Client", request: _Request) -> None:
        queue = self._queues.get(request.key())
        client.reply(_i64.pack(len(queue) if queue else 0))
        if queue:
            client.reply_value(queue.popleft())

    def _queue_length(self, client: "_Client", request: _Request) -> None:
        client.reply(_i64.pack(len(self._queues.get(request.key(), ()))))

    def _list_keys(self, client: "_Client", _: _Request) -> None:
        client.reply(_i64.pack(len(self.values)))
        for key in self.values:
            client.reply_value(key)

    def _barrier(self, client: "_Client", request: _Request) -> None:
        key, world_size = request.key(), request.number()
        arrived = self._number_at(key) + 1
        self.values[key] = b"%d" % arrived
        if arrived >= world_size:
            self._wake_all(key)
            client.reply(_STOP_WAITING)
        else:
            self._waiting.setdefault(key, []).append(client)
            client.awaited.append(key)

    QUERIES: tuple[Callable[["TCPStore", "_Client", _Request], None], ...] = (
        _set,
        _compare_set,
        _get,
        _add,
        _check,
        _wait,
        _count_keys,
        _delete,
        _append,
        _multi_get,
        _multi_set,
        _cancel,
        _ping,
        _queue_push,
        _queue_pop,
        _queue_length,
        _list_keys,
        _barrier,
    )

    def _has(self, key: bytes) -> bool:
        return key in self.values or bool(self._queues.get(key))

    def _number_at(self, key: bytes) -> int:
        try:
            return int(self.values.get(key, b"0"))
        except ValueError:
            raise _Malformed(f"the value of {key!r} is not a number") from None

    def _store(self, key: bytes, value: bytes) -> None:
        self.values[key] = value
        if key in self._waiting:
            self._wake_all(key)

    def _wake_all(self, key: bytes) -> None:
        for client in list(self._waiting.get(key, ())):
            self._wake(client, key)

    def _wake(self, client: "_Client", key: bytes) -> None:
        waiting = self._waiting[key]
        waiting.remove(client)
        if not waiting:
            del self._waiting[key]
        client.awaited.remove(key)
        if not client.awaited:
            client.reply(_STOP_WAITING)
            client.send()


class _Client:
    """One connection: bytes in, queries, bytes out."""

    def __init__(self, loop: Loop, store: TCPStore, connection: socket.socket) -> None:
        self.awaited: list[bytes] = []
        """Keys that this client waits for and that are not there."""
        self._loop = loop
        self._store = store
        self._socket = connection
        self._unread = b""
        self._needed = 5
        self._validated = False
        self._unsent: list[bytes] = []
        self._sending = False
        connection.setblocking(False)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            pass  # already reset by the peer; reading will tell
        loop.on_readable(connection, self._receive)

    def reply(self, data: bytes) -> None:
        self._unsent.append(data)

    def reply_value(self, value: bytes) -> None:
        self._unsent.append(_u64.pack(len(value)) + value)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.forget(self._socket)
            self._socket.close()
            self._store.forget(self)

    def send(self) -> None:
        """Send what has been replied, as far as the peer takes it."""
        if not self._unsent or self._socket.fileno() < 0:
            return
        data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        self._unsent = [data[sent:]] if sent < len(data) else []
        if len(data) - sent > _MAX_UNSENT:
            self.close()
        elif bool(self._unsent) != self._sending:
            self._sending = bool(self._unsent)
            self._loop.on_writable(self._socket, self.send if self._sending else None)

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        if self._unread:
            data = self._unread + data
        if len(data) < self._needed:
            self._unread = data
            return
        try:
            done = self._answer(data)
        except _Malformed:
            self.close()
            return
        self._unread = data[done:]
        if self._unsent:
            self.send()

    def _answer(self, data: bytes) -> int:
        """Answer all whole requests in `data`; return how many bytes they were."""
        done, size = 0, len(data)
        queries = TCPStore.QUERIES
        self._needed = 1
        while done < size:
            request = _Request(data, done + 1)
            try:
                if not self._validated:
                    self._validate(data[done], request)
                elif 1 <= data[done] <= len(queries):
                    # Each query reads all of its request before it acts, so that it may be tried
                    # again.
                    queries[data[done] - 1](self._store, self, request)
                else:
                    raise _Malformed(f"no query has number {data[done]}")
            except _Incomplete as incomplete:
                self._needed = incomplete.size - done
                return done
            done = request.position
        return done

    def _validate(self, query: int, request: _Request) -> None:
        if query != 0 or _u32.unpack(request.take(4))[0] != MAGIC:
            raise _Malformed("not a client of a TCPStore")
        self._validated = True


class Reservation:
    """Holds a port of this machine for rank 0's worker, which serves the store itself.

    The socket is bound but does not listen: nobody else is given the port, while a server that sets
    SO_REUSEADDR, as torch's does, may still bind and listen on it.

    Args, Raises: as for `TCPStore`.
    """

    def __init__(self, loop: Loop, host: str, port: int) -> None:
        del loop
        self._socket = _bind(host, port)
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()


def _bind(host: str, port: int) -> socket.socket:
    host = host.strip("[]")
    family, address = _resolve(host, port)
    try:
        bound = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise MachineError(f"can't open a socket: {error.strerror}") from None
    try:
        # So that a restart on a given port does not wait for the old connections' TIME_WAIT.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {host}:{port} for the workers' store is taken by another program",
                hint="leave out --master-port for a free port, or choose another",
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(
                f"{host} is not an address of this machine",
                hint="--master-addr and --local-addr take an address of this machine",
            ) from None
        raise MachineError(f"can't bind {host}:{port}: {error.strerror}") from None
    bound.setblocking(False)
    return bound


def _resolve(host: str, port: int) -> tuple[int, tuple[Any, ...]]:
    """Return the family and address to bind; an address in digits costs no look-up."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return family, (host, port)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(
            f"the address {host} for the workers' store is unknown: {error}",
            hint="--master-addr and --local-addr take an address of this machine",
        ) from None
    return family, address
