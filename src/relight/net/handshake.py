"""Implements the handshake that precedes any messages between two peers.

    connected, or the caller's first byte -> [TLS handshake] -> hello -> [proof of the token]

The connecting side sends first. The listener replies only to a hello, or to the greeting of a
different protocol version, so that a port scan reveals nothing.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from relight.base.fields import Message
from relight.core.link import wire
from relight.core.link.authentication import Opening, ProofRefused
from relight.net.byte_stream import ByteStream

if TYPE_CHECKING:
    import ssl

SAID_NOTHING = "the peer closed the connection without sending anything"


class HandshakeFailed(Exception):  # noqa: N818
    """The peer can't be reached, or one side has rejected the other.

    Args:
        reason: why the handshake failed, as human-readable text.
        refused: whether no peer is listening at that address.
        turned_away: whether the two sides have different tokens, or only one of them uses TLS.
    """

    def __init__(self, reason: str, *, refused: bool = False, turned_away: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.refused = refused
        self.turned_away = turned_away


class Handshake:
    """One side of the handshake. It ends when the peer has authenticated.

    Args:
        stream: the byte stream.
        opening: the hello and proof of both sides.
        tls: this side's TLS context, if the job uses TLS.
        dialled: whether this side opened the connection.
        divert: called if the caller's first byte is 0, which identifies a client of torch's
            TCPStore; releases the stream.
    """

    def __init__(
        self,
        stream: ByteStream,
        opening: Opening,
        tls: "ssl.SSLContext | None",
        *,
        dialled: bool,
        divert: Callable[[], None] | None,
    ) -> None:
        self._stream = stream
        self._opening = opening
        self._tls = tls
        self._dialled = dialled
        self._divert = divert
        self._greeted = False
        self._steps = self._until_frames_flow()

    def proceed(self) -> bool:
        """Advance the handshake as far as possible without waiting, and return whether frames can
        be exchanged.

        Raises:
            HandshakeFailed: if the handshake has failed for good.
            OSError: if the connection has failed.
        """
        return next(self._steps, True)

    def receive(self, message: Message, body: bytes) -> bool:
        """Handle the peer's hello or proof, and return whether the peer has authenticated.

        Args:
            message: the message.
            body: the message as JSON.

        Raises:
            HandshakeFailed: if one side has refused the other.
        """
        try:
            for answer in self._opening.receive(message, body):
                self._say(answer)
        except ProofRefused as refusal:
            if refusal.answer:
                self._say(refusal.answer)
            raise HandshakeFailed(
                refusal.reason,
                refused=refusal.itself and self._dialled,  # possible with TCP on a free port
                turned_away=not refusal.itself,
            ) from None
        return self._opening.done

    def answer_other_version(self) -> None:
        """Send this side's protocol version to a caller that has a different version."""
        if not self._dialled:
            self._say(self._opening.hello)

    def if_late(self, seconds: float) -> str:
        """Describe the step that the peer failed to complete within `seconds`."""
        if self._stream.connecting:
            return f"no response within {seconds:g} s"
        if self._opening.peer_hello is not None:
            return f"no proof within {seconds:g} s"
        return f"no response to the greeting within {seconds:g} s (is it relight?)"

    def if_closed(self) -> str:
        """Describe the stage that the handshake had reached when the peer closed the connection."""
        if self._opening.peer_hello is not None:
            return "the peer closed the connection after its hello (do the tokens differ?)"
        return "the peer closed the connection instead of sending a greeting (is it relight?)"

    def _until_frames_flow(self) -> Iterator[bool]:
        """Run the handshake. Yield False whenever the peer has to respond."""
        if self._dialled:
            while not self._connect():
                yield False
        else:
            while (first := self._stream.peek()) is None:
                yield False
            if not first:
                raise HandshakeFailed(SAID_NOTHING)
            if first == b"\0" and self._divert is not None:
                self._divert()
                yield False  # from now on, because the stream has been released
            if self._tls is not None and first != b"\x16":
                if first == wire.GREETING[:1]:
                    self._say(wire.encode_body({"type": "refused", "reason": "tls"}))
                raise HandshakeFailed("the peer does not use TLS, but this job does")
        self._stream.start(self._tls, server_side=not self._dialled)
        while self._tls is not None and not self._stream.shake_hands():
            yield False
        if self._dialled:
            self._say(self._opening.hello)

    def _connect(self) -> bool:
        try:
            return self._stream.connect()
        except ConnectionRefusedError:
            raise HandshakeFailed("refused", refused=True) from None
        except OSError as error:
            raise HandshakeFailed(error.strerror or str(error)) from None

    def _say(self, body: bytes) -> None:
        greeting = b"" if self._greeted else wire.GREETING
        self._greeted = True
        self._stream.write(greeting + wire.frame(body))
