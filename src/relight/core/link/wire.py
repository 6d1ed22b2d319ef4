"""Encodes and decodes messages between agents and their coordinator.

Each side first sends the line `relight 3`, with the name and version of the protocol. A peer with a
different protocol version is rejected, and receives the reason. A new release of relight may add
fields with defaults, as well as messages that are only sent to peers whose hello announces support
for them (`relays`, `answers`). Any other change requires a higher `PROTOCOL`. The line is followed
by frames. A frame is a 4-byte big-endian length, followed by that many bytes of JSON. The JSON is
an object whose key `type` names the message; the optional key `stimulus` is the id of the input
that caused it (host/loop). Nothing else is ever decoded, which rules out pickles, classes and
references. An oversized frame, invalid JSON or any other value raises `Malformed` and
ends the connection.

The first byte of a stream identifies the client: 0 is a torch TCPStore client, 0x16 is TLS.
"""

import json
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from relight.base import fields
from relight.base.fields import Malformed, Message, decode
from relight.base.package import __version__

PROTOCOL = 3
GREETING = b"relight %d\n" % PROTOCOL
MAX_FRAME = 4 * 1024 * 1024
"""Maximum frame size in bytes, large enough for a failure report with many ranks."""
MAX_HELLO = 4 * 1024
"""Maximum frame size in bytes for a peer that has not proved its identity yet."""

_NAME = b"relight "
_MAX_GREETING = 16
_MAX_VERSION = 40
_HEARTBEAT = b'{"type":"heartbeat","number":'
_DIGITS = 18
_length = struct.Struct(">I")


class OtherVersion(Malformed):
    """The peer uses a different version of the protocol."""


class _Cause(NamedTuple):
    stimulus: str


def take_stimulus(message: Message) -> str:
    """Remove the id of the input that caused a message, and return it. Return an empty string if
    there is none.

    Raises:
        Malformed: if it is not a name.
    """
    if "stimulus" not in message:  # a heartbeat; a coordinator receives thousands per second
        return ""
    cause: _Cause = fields.record(_Cause, message)
    del message["stimulus"]
    return cause.stimulus


def encode_body(message: Message, limit: int = MAX_FRAME, stimulus: str = "") -> bytes:
    """Encode a message as JSON. A heartbeat has no stimulus.

    Raises:
        ValueError: if the message is too large, or contains a number that JSON can't represent.
    """
    if message.get("type") == "heartbeat" and message.keys() - {"extra_s"} == {"type", "number"}:
        return _heartbeat(message)
    if stimulus:
        message = {**message, "stimulus": fields.fit(stimulus, "stimulus")}
    body = _encode(message).encode()
    if len(body) > limit:
        raise ValueError(f"a message of {len(body)} bytes exceeds the limit of {limit}")
    return body


def _heartbeat(message: Message) -> bytes:
    """Encode a heartbeat or its echo. A coordinator sends thousands of echoes per second, and a
    third of the time per echo would be spent in the JSON encoder.
    """
    body = _HEARTBEAT + b"%d" % message["number"]
    extra_s = message.get("extra_s")
    return body + (b',"extra_s":%.3f}' % extra_s if extra_s else b"}")


def frame(payload: bytes) -> bytes:
    """Wrap a payload in a frame."""
    return _length.pack(len(payload)) + payload


def encode(message: Message) -> bytes:
    """Encode a message as a frame.

    Raises:
        ValueError: under the same conditions as in `encode_body`.
    """
    return frame(encode_body(message))


class Decoder:
    """Splits a stream of bytes into messages.

    Args:
        limit: maximum frame size in bytes. This limit may be raised once the peer is authenticated.

    Attributes:
        unseal: turns a frame's payload into JSON, or raises `Malformed`. If `unseal` is set between
            two messages, it applies to all later messages.
        body: the last message as JSON.
    """

    def __init__(self, limit: int = MAX_HELLO) -> None:
        self.limit = limit
        self.unseal: Callable[[bytes], bytes] | None = None
        self.body = b""
        self._buffer = bytearray()
        self._greeted = False

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that `data` completes. Each message is subject to the limits in effect
        when it is decoded.

        Raises:
            Malformed: if the peer does not use this protocol. The stream is then unusable.
        """
        buffer = self._buffer
        buffer += data
        if not self._greeted:
            self._greeted = _cut_greeting(buffer)
        while self._greeted and len(buffer) >= 4:
            (length,) = _length.unpack_from(buffer)
            if length > self.limit:
                raise Malformed(f"a frame of {length} bytes exceeds the limit of {self.limit}")
            if len(buffer) - 4 < length:
                return
            payload = bytes(buffer[4 : 4 + length])
            del buffer[: 4 + length]
            self.body = payload if self.unseal is None else self.unseal(payload)
            yield parse(self.body)


def _cut_greeting(buffer: bytearray) -> bool:
    """Remove the first line from the buffer. Return whether that line was complete."""
    if buffer.startswith(GREETING):
        del buffer[: len(GREETING)]
        return True
    if GREETING.startswith(buffer):
        return False
    start = bytes(buffer[:_MAX_GREETING])
    if start.startswith(_NAME):
        version, newline, _ = start[len(_NAME) :].partition(b"\n")
        if version.isdigit() and newline:
            name = _version_in(buffer[len(_NAME) + len(version) + 1 :])
            theirs = f"relight {name}" if name else "another version of relight"
            raise OtherVersion(
                f"it runs {theirs} (protocol {version.decode()}), but this node runs relight "
                f"{__version__} (protocol {PROTOCOL}); install the same version on all nodes"
            )
        if (version.isdigit() or not version) and len(start) < _MAX_GREETING:
            return False
    if start[0] in (0x15, 0x16):
        raise Malformed("it uses TLS, but this side does not (tls_cert, tls_key, tls_ca)")
    raise Malformed(f"its first bytes were {start!r}")


def _version_in(data: bytes | bytearray) -> str:
    """Return the relight version in a possibly incomplete hello, or an empty string."""
    try:
        (length,) = _length.unpack_from(data)
        name = parse(bytes(data[4 : 4 + min(length, MAX_HELLO)])).get("version")
    except (struct.error, Malformed):
        return ""
    fits = isinstance(name, str) and name.isprintable() and len(name) <= _MAX_VERSION
    return str(name) if fits else ""


def parse(body: bytes) -> Message:
    """Parse a frame's body as a message.

    Raises:
        Malformed: if the body is not a message.
    """
    if body.startswith(_HEARTBEAT):  # without the decoder, as in `_heartbeat`
        number = body[len(_HEARTBEAT) : -1]
        if number.isdigit() and len(number) < _DIGITS and body.endswith(b"}"):
            return {"type": "heartbeat", "number": int(number)}
    message = decode(body)
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise Malformed("not an object with a type")
    return message


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
