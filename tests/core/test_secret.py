"""A peer that has the token is admitted. One without it isn't, whatever it overhears or changes."""

import json

import pytest

from relight.base.fields import Malformed
from relight.core.link import authentication, wire
from relight.core.link.authentication import Opening, ProofRefused, Seal, Transcript

TOKEN = b"correct horse"
NONCES = (b"d" * 32, b"l" * 32)


def sides(*secrets: bytes) -> tuple[Opening, Opening]:
    """Return a dialler and a listener."""
    return (
        Opening({"run": "1", "host": "a"}, NONCES[0], secrets[0], dialled=True),
        Opening({"run": "1", "host": "b"}, NONCES[1], secrets[-1], dialled=False),
    )


def tell(side: Opening, body: bytes) -> list[bytes]:
    return side.receive(json.loads(body), body)


def converse(dialler: Opening, listener: Opening) -> None:
    to_listener = [dialler.hello]
    while to_listener:
        to_dialler = [answer for body in to_listener for answer in tell(listener, body)]
        to_listener = [answer for body in to_dialler for answer in tell(dialler, body)]


@pytest.mark.parametrize("token", [b"", TOKEN])
def test_same_token_yields_same_session_key(token: bytes) -> None:
    """Sides that agree end up with each other's hello and the same key."""
    dialler, listener = sides(token)
    converse(dialler, listener)
    assert dialler.done and listener.done
    assert dialler.peer_hello == {"type": "hello", "run": "1", "host": "b"}
    assert listener.peer_hello == {"type": "hello", "run": "1", "host": "a"}
    assert dialler.session_key == listener.session_key
    assert len(dialler.session_key) == 32
    assert (dialler.seal is None) == (not token)


@pytest.mark.parametrize("token", [b"", TOKEN])
def test_listener_discards_hello_messages_after_the_handshake(token: bytes) -> None:
    """Otherwise each of thousands of connections would keep two hello messages in memory. The
    dialling side has only one connection.
    """
    dialler, listener = sides(token)
    converse(dialler, listener)
    assert dialler.end() == {"type": "hello", "run": "1", "host": "b"} == dialler.peer_hello
    assert listener.end() == {"type": "hello", "run": "1", "host": "a"}
    assert not any(b"host" in repr(kept).encode() for kept in vars(listener).values())


def test_wrong_token_is_rejected_before_listener_proves_itself() -> None:
    """The dialler proves itself first, so a wrong guess gives it nothing to check offline."""
    dialler, listener = sides(b"guess", TOKEN)
    (hello,) = tell(listener, dialler.hello)
    (proof,) = tell(dialler, hello)
    with pytest.raises(ProofRefused, match="has a different token") as refused:
        tell(listener, proof)
    assert json.loads(refused.value.answer) == {"type": "refused", "reason": "token"}
    with pytest.raises(ProofRefused, match="a different token than this node"):
        tell(dialler, refused.value.answer)


def test_listener_without_a_token_is_rejected() -> None:
    """A listener that admits anyone isn't a peer unless it proves that it knows the token."""
    dialler, listener = sides(TOKEN, b"other")
    tell(dialler, listener.hello)
    forged = wire.encode_body({"type": "proof", "mac": "0" * 64})
    with pytest.raises(ProofRefused, match="has a different token"):
        tell(dialler, forged)
    assert not dialler.done and not dialler.session_key


@pytest.mark.parametrize(("first", "second"), [(b"", TOKEN), (TOKEN, b"")])
def test_token_missing_on_one_side_is_reported_on_both(first: bytes, second: bytes) -> None:
    """Both sides learn which of them lacks the token."""
    dialler, listener = sides(first, second)
    with pytest.raises(ProofRefused) as at_listener:
        tell(listener, dialler.hello)
    with pytest.raises(ProofRefused) as at_dialler:
        tell(dialler, at_listener.value.answer)
    lacking, having = (at_dialler, at_listener) if second else (at_listener, at_dialler)
    assert lacking.value.reason == "this job requires a token; set RELIGHT_TOKEN"
    assert having.value.reason == "the peer has no token, but this job requires one (RELIGHT_TOKEN)"


def test_recorded_handshake_cannot_be_replayed() -> None:
    """A recorded proof is useless against a listener with a different nonce."""
    dialler, listener = sides(TOKEN)
    (hello,) = tell(listener, dialler.hello)
    (proof,) = tell(dialler, hello)
    later = Opening({"run": "1"}, b"n" * 32, TOKEN, dialled=False)
    tell(later, dialler.hello)
    with pytest.raises(ProofRefused, match="has a different token"):
        tell(later, proof)


def test_handshake_proof_cannot_be_reflected_back_to_its_sender() -> None:
    """A peer without the token can't send a side's own hello or proof back to it."""
    dialler, listener = sides(TOKEN)
    with pytest.raises(ProofRefused, match="own hello") as refused:
        tell(dialler, dialler.hello)
    assert refused.value.itself
    (proof,) = tell(dialler, listener.hello)
    with pytest.raises(ProofRefused, match="has a different token"):
        tell(dialler, proof)


@pytest.mark.parametrize("whose", ["dialler", "listener"])
def test_tampered_hello_message_is_detected(whose: str) -> None:
    """Both proofs cover both hellos, so a man in the middle can't change a single byte."""
    dialler, listener = sides(TOKEN)
    first = dialler.hello.replace(b'"a"', b'"x"') if whose == "dialler" else dialler.hello
    (hello,) = tell(listener, first)
    if whose == "listener":
        hello = hello.replace(b'"b"', b'"x"')
    (proof,) = tell(dialler, hello)
    with pytest.raises(ProofRefused, match="has a different token"):
        tell(listener, proof)


@pytest.mark.parametrize("proof", [None, 7, [], "", "é", "\ud800", "0" * 64])
def test_malformed_handshake_proof_is_rejected_without_an_exception(proof: object) -> None:
    transcript = Transcript(TOKEN, b"a", b"b")
    assert not transcript.accepts(authentication.DIALLER, proof)
    assert transcript.accepts(authentication.DIALLER, transcript.proof(authentication.DIALLER))
    assert not transcript.accepts(authentication.LISTENER, transcript.proof(authentication.DIALLER))


@pytest.mark.parametrize("nonce", [None, 5, "", "zz", "00" * 31, "00" * 33, ["00"] * 32])
def test_handshake_nonce_must_have_32_bytes(nonce: object) -> None:
    _, listener = sides(b"")
    with pytest.raises(ProofRefused, match="without a nonce"):
        listener.receive({"type": "hello", "nonce": nonce}, b"")


@pytest.mark.parametrize("kind", ["proof", "heartbeat", "", "refused"])
def test_hello_must_be_the_first_message(kind: str) -> None:
    """A listener accepts a hello, then a proof, and nothing else until both are done."""
    dialler, listener = sides(TOKEN)
    with pytest.raises(ProofRefused, match="before it was authenticated"):
        listener.receive({"type": kind}, b"")
    tell(listener, dialler.hello)
    with pytest.raises(ProofRefused, match="before it was authenticated"):
        tell(listener, dialler.hello)


def make_seals() -> tuple[Seal, Seal, Seal]:
    """Return a sender, its receiver, and the sender for the other direction."""
    transcript = Transcript(TOKEN, b"a", b"b")
    return (
        Seal(transcript, authentication.DIALLER),
        Seal(transcript, authentication.DIALLER),
        Seal(transcript, authentication.LISTENER),
    )


def test_sealed_frames_arrive_in_order() -> None:
    """The receiver can open the sender's sealed messages."""
    sender, receiver, _ = make_seals()
    for body in (b"one", b"", b"one", b"x" * 100_000):
        assert receiver.open(sender.close(body)) == body


def test_forged_repeated_and_missing_frames_are_detected() -> None:
    """After the proof, no one can add, remove or change messages."""
    sender, receiver, back = make_seals()
    first, second = sender.close(b"first"), sender.close(b"second")
    for forged in (b"", b"short", b"first" + b"\0" * 16, b"F" + first[1:], second, back.close(b"")):
        fresh = make_seals()[1]
        with pytest.raises(Malformed):
            fresh.open(forged)
    assert receiver.open(first) == b"first"
    with pytest.raises(Malformed):
        receiver.open(first)


def test_each_connection_and_purpose_has_its_own_key() -> None:
    """No key is ever used twice."""
    one, two = Transcript(TOKEN, b"a", b"b"), Transcript(TOKEN, b"a", b"c")
    keys = {
        authentication.datagram_key(one),
        authentication.datagram_key(two),
        one.key(b"x"),
        two.key(b"x"),
    }
    keys |= {Transcript(TOKEN, b"ab", b"").key(b"x"), Transcript(b"t", b"a", b"b").key(b"x")}
    assert len(keys) == 6
