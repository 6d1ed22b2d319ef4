"""The protocol that the two sides of an ssh connection use over stdin and stdout.

A frame consists of its kind (1 byte), a length (4 bytes, big-endian) and that many bytes:

    local to remote   ORDER (JSON), the first frame; any number of ARCHIVE frames, each with a
                      part of a tar archive; GO; STOP; BEAT, sent every few seconds, because
                      the connection is otherwise considered lost
    remote to local   OUT and ERR, the replica's output; END (JSON), the last frame

The remote side sends GREETING first. Any output before GREETING was printed by a shell's startup
files.
"""

import json
import os
import struct
from collections.abc import Callable
from typing import NamedTuple

from relight.base import fields
from relight.host.loop import Loop

NAME = b"relight ssh "
GREETING = NAME + b"1\n"
ORDER, ARCHIVE, GO, BEAT, STOP, OUT, ERR, END = (b"%c" % letter for letter in b"OAGBSoeE")
HIGH_WATER = 1 << 20
"""The maximum number of bytes queued for writing. Senders wait while more bytes are queued."""
_MAX_PAYLOAD = 1 << 26
_NOISE_LIMIT = 1 << 20
_HEAD = struct.Struct(">cI")

Frame = tuple[bytes, bytes]


class ReplicaEnded(NamedTuple):
    """The content of an END frame: the result of an order.

    The `exitcode` field is the replica's exit code (negative for a signal), or None. `error` is the
    reason that the system reports for the replica's end, and `error_file` is the content of its
    error file. `message`, `hint` and the exit `code` describe why an order could not be executed.
    """

    exitcode: int | None = None
    error: str = ""
    error_file: str = ""
    message: str = ""
    hint: str = ""
    code: int = 0

    @classmethod
    def parse(cls, payload: bytes) -> "ReplicaEnded":
        """Parse a frame's payload.

        Raises:
            Malformed: if the payload is invalid.
        """
        ended: ReplicaEnded = fields.record(cls, fields.decode(payload))
        return ended

    def to_payload(self) -> bytes:
        """Serialize the result into a payload that `parse` accepts."""
        return json.dumps(fields.plain(self)).encode()


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """Encode a frame."""
    return _HEAD.pack(kind, len(payload)) + payload


class FrameDecoder:
    """Decodes a stream of bytes into frames.

    Args:
        greeting: the bytes that the other side sends first, or empty.
    """

    def __init__(self, greeting: bytes = b"") -> None:
        self.greeted = not greeting
        self.noise = b""
        """The bytes that were received instead of the greeting."""
        self._greeting = greeting
        self._left = b""

    def feed(self, data: bytes) -> list[Frame]:
        """Decode more data, and return the frames that are now complete.

        Raises:
            ValueError: if the data is not a valid frame.
        """
        self._left += data
        if not self.greeted:
            before, greeting, after = self._left.partition(self._greeting)
            self.greeted = bool(greeting)
            if not self.greeted:
                self.noise = self._left = self._left[-_NOISE_LIMIT:]
                return []
            self.noise, self._left = before, after
        frames: list[Frame] = []
        at = 0
        while len(self._left) - at >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._left, at)
            if length > _MAX_PAYLOAD:
                raise ValueError(f"a frame of {length} bytes")
            end = at + _HEAD.size + length
            if len(self._left) < end:
                break
            frames.append((kind, self._left[at + _HEAD.size : end]))
            at = end
        self._left = self._left[at:]
        return frames


class FrameChannel:
    """Sends and receives frames in an event loop, without blocking.

    Args:
        loop: the event loop.
        reader: the descriptor to read from.
        writer: the descriptor to write to.
        on_frame: called with each frame.
        on_end: called once, after the last frame.
        on_room: called when most of the queued bytes have been written.
        greeting: the bytes that the other side sends first, or empty.
    """

    def __init__(
        self,
        loop: Loop,
        reader: int,
        writer: int,
        *,
        on_frame: Callable[[bytes, bytes], None],
        on_end: Callable[[], None],
        on_room: Callable[[], None] = lambda: None,
        greeting: bytes = b"",
    ) -> None:
        self.decoder = FrameDecoder(greeting)
        self.ended = False
        """Whether the last frame has arrived."""
        self.broken = False
        """Whether it is no longer possible to send frames."""
        self._loop, self._reader, self._writer = loop, reader, writer
        self._on_frame, self._on_end, self._on_room = on_frame, on_end, on_room
        self._waiting = bytearray()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        loop.on_readable(reader, self._read)

    @property
    def waiting(self) -> int:
        """The number of bytes that have not been written yet."""
        return len(self._waiting)

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send a frame, or drop it if the channel is broken."""
        self.send_raw(frame(kind, payload))

    def send_raw(self, data: bytes) -> None:
        """Send bytes without framing them."""
        if not self.broken:
            self._waiting += data
            self._write()

    def abort(self) -> None:
        """Stop reading and writing."""
        self._break()
        self._on_room()
        self._end()

    def _write(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self._writer, self._waiting[:65536])]
        except BlockingIOError:
            self._loop.on_writable(self._writer, self._write)
        except OSError:
            self._break()
        else:
            self._loop.on_writable(self._writer, None)
        if len(self._waiting) < HIGH_WATER:
            self._on_room()

    def _break(self) -> None:
        self.broken = True
        self._waiting.clear()
        self._loop.on_writable(self._writer, None)

    def _read(self) -> None:
        try:
            data = os.read(self._reader, 1 << 18)
            frames = self.decoder.feed(data)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._end()
            return
        for kind, payload in frames:
            self._on_frame(kind, payload)
        if not data:
            self._end()

    def _end(self) -> None:
        self._loop.on_readable(self._reader, None)
        if not self.ended:
            self.ended = True
            self._on_end()
