"""Mutual authentication: two peers exchange hellos and proofs that they know the job's token, and
derive session keys.

Each side sends a hello with a fresh 32-byte nonce. If there is a token, each side then proves that
it knows the token with an HMAC-SHA256 over its role and both hellos, byte for byte. The side that
opened the connection sends its proof first. Therefore
- an old proof is useless, because a proof covers both nonces;
- a proof sent back to its author is useless, because the roles differ;
- changing a hello in transit breaks both proofs.

After the proofs, each frame carries a 16-byte tag computed over the frame's number and content, so
that an attacker who takes over the TCP stream can't add, change, drop or repeat a frame. The
content is not encrypted. If encryption is needed, use TLS.

This module has no side effects, because the caller provides the nonce. The hashlib module is loaded
only if there is a token, because importing it takes milliseconds.
"""

import struct
from collections.abc import Callable

from relight.base.fields import Malformed, Message
from relight.base.package import __version__
from relight.core.link import wire

NONCE_BYTES = 32
TAG_BYTES = 16

DIALLER = b"dialler"
LISTENER = b"listener"

_number = struct.Struct(">Q")
_REFUSALS = {
    "token": "the peer has a different token than this node (RELIGHT_TOKEN)",
    "tls": "the peer requires TLS: set tls_cert, tls_key and tls_ca",
}


class ProofRefused(Exception):  # noqa: N818
    """The handshake failed because one side rejected the other.

    Args:
        reason: the reason, for users.
        answer: a last message to the peer as JSON, or an empty string.
        itself: whether this side connected to itself.
    """

    def __init__(self, reason: str, answer: bytes = b"", *, itself: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.answer = answer
        self.itself = itself


class Opening:
    """One side of the handshake before the first message.

    Args:
        hello: the introduction sent to the peer. It is not secret.
        nonce: 32 random bytes, never used before.
        secret: the token, or empty.
        dialled: whether this side opened the connection.

    Attributes:
        hello: the local hello as JSON. The side that opened the connection sends its hello first.
        peer_hello: the peer's hello, once received. It can be trusted once `done` is set. The
            listening side keeps neither hello after `end`.
        done: whether the peer is authenticated.
        session_key: 32 bytes shared by both ends once `done` is set. The key is secret only if
            there is a token.
        seal: creates the payload of each later frame, or None without a token.
        unseal: verifies and unwraps the payload of received frames, or None without a token.
    """

    def __init__(self, hello: Message, nonce: bytes, secret: bytes, *, dialled: bool) -> None:
        own = {"type": "hello", "nonce": nonce.hex(), "token": bool(secret), "version": __version__}
        self.hello = wire.encode_body({**hello, **own}, wire.MAX_HELLO)
        self.peer_hello: Message | None = None
        self.done = False
        self.session_key = b""
        self.seal: Callable[[bytes], bytes] | None = None
        self.unseal: Callable[[bytes], bytes] | None = None
        self._nonce = nonce
        self._secret = secret
        self._dialled = dialled
        self._transcript: Transcript | None = None

    def receive(self, message: Message, body: bytes) -> list[bytes]:
        """Handle a message and its JSON. Return the replies as JSON, before `seal` is applied.

        Raises:
            ProofRefused: if the handshake has failed.
        """
        kind = message["type"]
        if kind == "refused" and self._dialled:
            unknown = "the peer refused the connection without a reason"
            raise ProofRefused(_REFUSALS.get(str(message.get("reason")), unknown))
        if kind == "hello" and self.peer_hello is None:
            return self._receive_hello(message, body)
        if kind == "proof" and self._transcript is not None:
            return self._receive_proof(self._transcript, message.get("mac"))
        raise ProofRefused(f"the peer sent {kind[:40]!r} before it was authenticated")

    def end(self) -> Message:
        """Return the peer's hello, available once `done` is set.

        After this call, the listening side keeps neither hello, because the hellos of thousands of
        nodes would take up a quarter of a coordinator's memory.
        """
        hello = self.peer_hello
        assert hello is not None
        if not self._dialled:
            self.hello, self.peer_hello, self._transcript = b"", None, None
        return hello

    def _receive_hello(self, message: Message, body: bytes) -> list[bytes]:
        nonce = _to_bytes(message.get("nonce"))
        if len(nonce) != NONCE_BYTES:
            raise ProofRefused(
                "the peer does not speak relight's protocol: it sent a hello without a nonce"
            )
        if nonce == self._nonce:
            raise ProofRefused("this side received its own hello", itself=True)
        own = ("nonce", "token", "version")
        self.peer_hello = {k: v for k, v in message.items() if k not in own}
        answers = [] if self._dialled else [self.hello]
        if bool(message.get("token")) != bool(self._secret):
            reason = (
                "the peer has no token, but this job requires one (RELIGHT_TOKEN)"
                if self._secret
                else "this job requires a token; set RELIGHT_TOKEN"
            )
            raise ProofRefused(reason, b"".join(answers))
        if not self._secret:
            self.session_key = bytes(a ^ b for a, b in zip(nonce, self._nonce, strict=True))
            self.done = True
        elif self._dialled:
            self._transcript = Transcript(self._secret, self.hello, body)
            answers.append(_proof(self._transcript, DIALLER))
        else:
            self._transcript = Transcript(self._secret, body, self.hello)
        return answers

    def _receive_proof(self, transcript: "Transcript", proof: object) -> list[bytes]:
        own, other = (DIALLER, LISTENER) if self._dialled else (LISTENER, DIALLER)
        if not transcript.accepts(other, proof):
            answer = (
                b"" if self._dialled else wire.encode_body({"type": "refused", "reason": "token"})
            )
            raise ProofRefused("the peer has a different token", answer)
        self.seal = Seal(transcript, own).close
        self.unseal = Seal(transcript, other).open
        self.session_key = datagram_key(transcript)
        self.done = True
        return [] if self._dialled else [_proof(transcript, own)]


class Transcript:
    """The hellos of both sides, which each side's proof covers.

    Args:
        secret: the nonempty token.
        dialler_hello: JSON hello from the side that opened the connection, with its nonce.
        listener_hello: JSON hello from the other side, with its nonce.
    """

    def __init__(self, secret: bytes, dialler_hello: bytes, listener_hello: bytes) -> None:
        import hmac  # only needed with a token
        from hashlib import sha256

        self._hmac = hmac
        self._secret = secret
        self._said = sha256(dialler_hello).digest() + sha256(listener_hello).digest()

    def proof(self, role: bytes) -> str:
        """Return the proof for a role, `DIALLER` or `LISTENER`."""
        return self.key(b"proof of the " + role).hex()

    def accepts(self, role: bytes, proof: object) -> bool:
        """Check in constant time whether a proof is valid for a role."""
        if not isinstance(proof, str):
            return False
        return self._hmac.compare_digest(self.proof(role).encode(), proof.encode(errors="replace"))

    def key(self, purpose: bytes) -> bytes:
        """Return a 32-byte key that is specific to one purpose and this connection."""
        return self._hmac.digest(
            self._secret, b"relight 1 " + purpose + b"\0" + self._said, "sha256"
        )


def datagram_key(transcript: Transcript) -> bytes:
    """Return the key for datagrams between the two sides of a connection."""
    return transcript.key(b"datagrams")


class Seal:
    """One direction of a connection after the proofs. Frames arrive in order, and each frame has a
    tag.

    Args:
        transcript: the hellos of both sides.
        role: the sender's role in this direction.
    """

    def __init__(self, transcript: Transcript, role: bytes) -> None:
        import hmac  # already loaded for the transcript

        self._hmac = hmac
        self._key = transcript.key(b"frames of the " + role)
        self._count = 0

    def close(self, body: bytes) -> bytes:
        """Return the payload for the next frame to send."""
        return body + self._tag(body)

    def open(self, payload: bytes) -> bytes:
        """Return the content of the next received frame.

        Raises:
            Malformed: if the frame is not the next frame sent by the peer.
        """
        body, tag = payload[:-TAG_BYTES], payload[-TAG_BYTES:]
        if not self._hmac.compare_digest(self._tag(body), tag):
            raise Malformed("frame authentication failed: wrong sender, or altered in transit")
        return body

    def _tag(self, body: bytes) -> bytes:
        numbered = _number.pack(self._count) + body
        self._count += 1
        return self._hmac.digest(self._key, numbered, "sha256")[:TAG_BYTES]


def _proof(transcript: Transcript, role: bytes) -> bytes:
    return wire.encode_body({"type": "proof", "mac": transcript.proof(role)})


def _to_bytes(text: object) -> bytes:
    try:
        return bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        return b""
