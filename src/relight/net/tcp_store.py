"""Implements a server for torch's TCPStore protocol at MASTER_ADDR:MASTER_PORT. Each generation has
its own server.

The store starts empty, so no worker can read addresses from an earlier generation. Every rank is a
client (`TORCHELASTIC_USE_AGENT_STORE=True`). This module is loaded when the first client connects
(net/store_port).

The protocol is torch 2.13's (torch/csrc/distributed/c10d/TCPStore.cpp, TCPStoreBackend.hpp,
TCPStoreLibUvBackend.cpp). A client first sends VALIDATE and a magic number. A request consists of a
byte that identifies the query, followed by the query's fields. Integers take 8 bytes in native byte
order. A key or a value is sent as its length, followed by that many bytes.

Any host may connect, so all sizes and counts are limited. The server closes a connection after a
malformed or oversized request, and stops reading from a peer that doesn't read its replies.
"""

import socket
import struct
from collections import deque
from collections.abc import Callable

from relight.host import system
from relight.host.descriptors import receive
from relight.host.loop import Loop

_MAGIC = struct.pack("=I", 0x3C85F7CE)
_MAX_KEY = 8 * 1024
_MAX_VALUE = 8 * 1024 * 1024
_MAX_KEYS = 128 * 1024

# Limits that torch does not have.
_MAX_LISTED = 64 * 1024 * 1024  # total size of the keys in one CHECK or WAIT
_MAX_STORED = 4 * 1024 * 1024 * 1024  # total size of all keys and values
_MAX_UNSENT = 1024 * 1024  # size of unread replies
_MAX_SILENT_S = 30.0  # from connecting to the magic number
_SPARE_FILES = 256  # descriptors reserved for the rest of the agent

_ENTRY = 800  # maximum overhead of a key and its value in bytes
_READ = 64 * 1024

_STOP_WAITING, _WAIT_CANCELED = b"\x00", b"\x01"
_READY, _NOT_READY = b"\x00", b"\x01"

# A field's size in bytes. If positive, the field has a length prefix, and this is the maximum; if
# negative, its absolute value is the exact size.
_KEY, _VALUE, _NUMBER, _NONCE = _MAX_KEY, _MAX_VALUE, -8, -4

_u64 = struct.Struct("=Q")
_i64 = struct.Struct("=q")

_Value = bytes | bytearray
_AfterRepeats = Callable[["_Client"], None] | None
_Query = tuple[tuple[int, ...], Callable[..., None]]
"""The fields of a request, and the store's method that is called with the client and these
fields.
"""


class _BadRequest(Exception):  # noqa: N818  # caused by the peer, not by us
    """Raised if a request is malformed or exceeds a limit."""


class TCPStore:
    """The store of one generation's workers.

    Args:
        loop: the agent's loop.
        listener: the socket that clients connect to, which `close` closes.
    """

    def __init__(self, loop: Loop, listener: socket.socket) -> None:
        self.values: dict[bytes, _Value] = {}
        self.on_client: Callable[[int], None] = lambda _: None
        """Called with the number of clients whenever a client connects."""
        self.most_clients = 0
        """The largest number of clients that were connected at the same time."""
        self._queues: dict[bytes, deque[bytes]] = {}  # no queue is empty
        self._stored = 0
        self._waiting: dict[bytes, dict[_Client, None]] = {}  # in order of arrival
        self._clients: set[_Client] = set()
        files = system.open_files()
        self._max_clients = max(files - _SPARE_FILES, files // 2, 64)
        self._loop = loop
        self._listener = listener
        loop.on_readable(listener, self._accept)

    def close(self) -> None:
        """End all connections and free the port."""
        self._loop.forget(self._listener)
        self._listener.close()
        for client in list(self._clients):
            client.close()

    def adopt(self, connection: socket.socket) -> None:
        """Serve a client that connected through another port."""
        if len(self._clients) < self._max_clients:
            self._clients.add(_Client(self._loop, self, connection))
            self.most_clients = max(self.most_clients, len(self._clients))
            self.on_client(len(self._clients))
        else:
            connection.close()

    def forget(self, client: "_Client") -> None:
        """Remove a client that disconnected."""
        self._clients.discard(client)
        self.cancel_wait(client)

    def cancel_wait(self, client: "_Client") -> None:
        """End a client's wait for keys."""
        for key in client.awaited:
            waiting = self._waiting[key]
            del waiting[client]
            if not waiting:
                del self._waiting[key]
        client.awaited.clear()

    def _accept(self) -> None:
        for _ in range(64):
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # no more connections, or the peer has already disconnected
            self.adopt(connection)

    def _set(self, _: "_Client", key: bytes, value: bytes) -> None:
        self._store(key, value)
        self._wake_all(key)

    def _compare_set(self, client: "_Client", key: bytes, expected: bytes, desired: bytes) -> None:
        current = self.values.get(key)
        if current is None and expected:
            current = expected  # torch's reply for a missing key
        elif current is None or current == expected:
            self._store(key, current := desired)
        client.reply_value(current)
        self._wake_all(key)  # regardless of the result, as in torch

    def _get(self, client: "_Client", key: bytes) -> None:
        client.reply_value(self.values.get(key, b""))

    def _add(self, client: "_Client", key: bytes, amount: bytes) -> None:
        total = self._increase(key, _i64.unpack(amount)[0])
        self._wake_all(key)
        client.reply(_i64.pack(total))

    def _check(self, client: "_Client", count: bytes) -> None:
        client.repeat(count, self._LISTED, self._answer_check)

    def _answer_check(self, client: "_Client") -> None:
        client.reply(_READY if all(map(self._is_set, client.listed)) else _NOT_READY)

    def _wait(self, client: "_Client", count: bytes) -> None:
        client.repeat(count, self._LISTED, self._answer_wait)

    def _answer_wait(self, client: "_Client") -> None:
        self._reply_when_set(client, [key for key in client.listed if not self._is_set(key)])

    def _list_key(self, client: "_Client", key: bytes) -> None:
        client.listed.append(key)
        client.listed_size += len(key)
        if client.listed_size > _MAX_LISTED:
            raise _BadRequest

    _LISTED: _Query = ((_KEY,), _list_key)

    def _count_keys(self, client: "_Client") -> None:
        client.reply(_i64.pack(len(self.values)))

    def _delete(self, client: "_Client", key: bytes) -> None:
        value = self.values.pop(key, None)
        if value is not None:
            self._account(-_size(key, value))
        client.reply(_i64.pack(int(value is not None)))

    def _append(self, _: "_Client", key: bytes, value: bytes) -> None:
        current = self.values.get(key, b"")
        if isinstance(current, bytearray):  # so that appending does not copy it
            self._account(len(value))
            current += value
        else:
            self._store(key, bytearray(current) + value)
        self._wake_all(key)

    def _multi_get(self, client: "_Client", count: bytes) -> None:
        client.repeat(count, ((_KEY,), TCPStore._get))

    def _multi_set(self, client: "_Client", count: bytes) -> None:
        client.repeat(count, ((_KEY, _VALUE), TCPStore._set))

    def _cancel(self, client: "_Client") -> None:
        self.cancel_wait(client)
        client.reply(_WAIT_CANCELED)

    def _ping(self, client: "_Client", nonce: bytes) -> None:
        client.reply(nonce)

    def _queue_push(self, _: "_Client", key: bytes, value: bytes) -> None:
        self._account(_size(key, value))
        self._queues.setdefault(key, deque()).append(value)
        for client in list(self._waiting.get(key, ())):
            self._wake(client, key)
            if not client.awaited:
                return  # each value goes to one client only

    def _queue_pop(self, client: "_Client", key: bytes) -> None:
        queue = self._queues.get(key, deque())
        client.reply(_i64.pack(len(queue)))
        if queue:
            value = queue.popleft()
            client.reply_value(value)
            self._account(-_size(key, value))
            if not queue:
                del self._queues[key]

    def _queue_length(self, client: "_Client", key: bytes) -> None:
        client.reply(_i64.pack(len(self._queues.get(key, ()))))

    def _list_keys(self, client: "_Client") -> None:
        client.reply(_i64.pack(len(self.values)))
        for key in self.values:
            client.reply_value(key)

    def _barrier(self, client: "_Client", key: bytes, world_size: bytes) -> None:
        arrived = self._increase(key, 1)
        if arrived >= _i64.unpack(world_size)[0]:
            self._wake_all(key)
            client.reply(_STOP_WAITING)
        else:
            self._reply_when_set(client, [key])

    def _is_set(self, key: bytes) -> bool:
        return key in self.values or key in self._queues

    def _store(self, key: bytes, value: _Value) -> None:
        current = self.values.get(key)
        self._account(_size(key, value) if current is None else len(value) - len(current))
        self.values[key] = value

    def _account(self, size: int) -> None:
        if self._stored + size > _MAX_STORED:
            raise _BadRequest
        self._stored += size

    def _increase(self, key: bytes, amount: int) -> int:
        total = _number(self.values.get(key, b"0")) + amount
        total = (total + 2**63) % 2**64 - 2**63  # it wraps around, as in torch
        self._store(key, b"%d" % total)
        return total

    def _reply_when_set(self, client: "_Client", keys: list[bytes]) -> None:
        self.cancel_wait(client)  # torch's client makes one wait request at a time
        for key in keys:
            self._waiting.setdefault(key, {})[client] = None
        client.awaited.update(keys)
        if not keys:
            client.reply(_STOP_WAITING)

    def _wake_all(self, key: bytes) -> None:
        for client in list(self._waiting.get(key, ())):
            self._wake(client, key)

    def _wake(self, client: "_Client", key: bytes) -> None:
        waiting = self._waiting[key]
        del waiting[client]
        if not waiting:
            del self._waiting[key]
        client.awaited.remove(key)
        if not client.awaited:
            client.reply(_STOP_WAITING)
            client.send()

    QUERIES: dict[int, _Query] = {  # numbered as in torch's QueryType
        1: ((_KEY, _VALUE), _set),
        2: ((_KEY, _VALUE, _VALUE), _compare_set),
        3: ((_KEY,), _get),
        4: ((_KEY, _NUMBER), _add),
        5: ((_NUMBER,), _check),
        6: ((_NUMBER,), _wait),
        7: ((), _count_keys),
        8: ((_KEY,), _delete),
        9: ((_KEY, _VALUE), _append),
        10: ((_NUMBER,), _multi_get),
        11: ((_NUMBER,), _multi_set),
        12: ((), _cancel),
        13: ((_NONCE,), _ping),
        14: ((_KEY, _VALUE), _queue_push),
        15: ((_KEY,), _queue_pop),
        16: ((_KEY,), _queue_length),
        17: ((), _list_keys),
        18: ((_KEY, _NUMBER), _barrier),
    }


class _Client:
    """A connection to a client. It parses received bytes into queries, and sends the replies."""

    def __init__(self, loop: Loop, store: TCPStore, connection: socket.socket) -> None:
        self.awaited: set[bytes] = set()  # missing keys that the client is waiting for
        self.listed: list[bytes] = []  # keys of its CHECK or WAIT received so far
        self.listed_size = 0
        self._loop = loop
        self._store = store
        self._socket = connection
        self._queries: dict[int, _Query] = {0: ((_NONCE,), self._validate)}
        self._repeated_query = self._queries[0]
        self._repeats_left = 0  # how many more times `_repeated_query` follows
        self._after_repeats: _AfterRepeats = None
        self._unread = bytearray()
        self._needed = 1  # the size of `_unread` from which parsing can succeed
        self._unsent = bytearray()
        self._paused = False  # don't read until a reply has been sent
        self._closed = False
        self._deadline = loop.call_after(_MAX_SILENT_S, self.close)
        connection.setblocking(False)
        loop.on_readable(connection, self._receive)

    def reply(self, data: bytes) -> None:
        self._unsent += data

    def reply_value(self, value: _Value) -> None:
        self._unsent += _u64.pack(len(value))
        self._unsent += value

    def repeat(self, count: bytes, query: _Query, then: _AfterRepeats = None) -> None:
        """Expect the fields of `query` (without the query byte) `count` times, and then call
        `then`.
        """
        (self._repeats_left,) = _u64.unpack(count)
        if self._repeats_left > _MAX_KEYS:
            raise _BadRequest
        self._repeated_query, self._after_repeats = query, then
        self.listed, self.listed_size = [], 0

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._deadline.cancel()
            self._loop.forget(self._socket)
            self._socket.close()
            self._store.forget(self)

    def send(self) -> None:
        """Send as much of the queued replies as the client accepts."""
        if self._closed:
            return
        if self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.close()
                return
            del self._unsent[:sent]
        paused = bool(self._unsent) or len(self._unread) >= self._needed
        if paused != self._paused:
            self._paused = paused
            self._loop.on_readable(self._socket, None if paused else self._receive)
            self._loop.on_writable(self._socket, self._resume if paused else None)

    def _resume(self) -> None:
        if self._unsent:
            self.send()
        else:
            self._answer(b"")

    def _receive(self) -> None:
        data = receive(self._socket, _READ)
        if data is None:
            return
        if not data:
            self.close()
        elif len(self._unread) + len(data) < self._needed:
            self._unread += data
        else:
            self._answer(data)

    def _answer(self, data: bytes) -> None:
        if not self._loop.run_guarded(lambda: self._answer_all(data), "a request to the store"):
            self.close()

    def _answer_all(self, data: bytes) -> None:
        """Answer the requests that `data` completes, and keep an incomplete request for later."""
        if self._unread:
            data = bytes(self._unread + data)
            self._unread.clear()
        done, size = 0, len(data)
        self._needed = 1
        try:
            while done < size and len(self._unsent) < _MAX_UNSENT and not self._closed:
                repeated = self._repeats_left > 0
                query = self._repeated_query if repeated else self._queries.get(data[done])
                if query is None:
                    raise _BadRequest  # noqa: TRY301
                layout, act = query
                fields, end = _parse(data, done if repeated else done + 1, layout)
                if end > size:
                    self._needed = end - done
                    break
                done = end
                act(self._store, self, *fields)
                if repeated:
                    self._repeats_left -= 1
                if self._after_repeats is not None and not self._repeats_left:
                    then, self._after_repeats = self._after_repeats, None
                    then(self)
        except _BadRequest:
            self.close()
        self._unread += data[done:]
        self.send()

    def _validate(self, _store: TCPStore, _client: "_Client", magic: bytes) -> None:
        if magic != _MAGIC:
            raise _BadRequest
        self._deadline.cancel()
        self._queries = TCPStore.QUERIES


def _parse(data: bytes, position: int, layout: tuple[int, ...]) -> tuple[list[bytes], int]:
    """Parse a request, and return its fields and the position of its end. If the request is
    incomplete, that position is beyond the end of the data.
    """
    fields, size = [], len(data)
    for limit in layout:
        if limit < 0:
            start, end = position, position - limit
        else:
            start = end = position + 8
            if end <= size:
                (length,) = _u64.unpack_from(data, position)
                if length > limit:
                    raise _BadRequest
                end += length
        if end > size:
            return [], end
        fields.append(data[start:end])
        position = end
    return fields, position


def _number(value: _Value) -> int:
    """Parse a number in the same way as C's strtol, which accepts spaces, a sign and digits, and
    ignores the rest.
    """
    text = value[:1000].lstrip()
    digits = text[1:] if text.startswith((b"+", b"-")) else text
    end = len(text) - len(digits.lstrip(b"0123456789"))
    try:
        number = int(text[:end])
        _i64.pack(number)
    except (ValueError, struct.error):
        raise _BadRequest from None
    return number


def _size(key: bytes, value: _Value) -> int:
    return _ENTRY + len(key) + len(value)
