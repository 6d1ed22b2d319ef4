"""Encoding messages as bytes and decoding them."""

import itertools
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base.fields import Malformed, decode
from relight.core.link.wire import (
    GREETING,
    MAX_FRAME,
    MAX_HELLO,
    Decoder,
    encode,
    encode_body,
    frame,
    parse,
    take_stimulus,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)  # fmt: skip
messages = st.builds(lambda rest, kind: {**rest, "type": kind}, st.dictionaries(
    st.text(max_size=8), values, max_size=4), st.text(max_size=8))  # fmt: skip


@given(st.lists(messages, max_size=5), st.lists(st.integers(0, 400), max_size=8))
def test_messages_survive_any_fragmentation(sent: list[dict], cuts: list[int]) -> None:
    """Messages are decoded unchanged, however the stream is split."""
    stream = GREETING + b"".join(map(encode, sent))
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    decoder, received = Decoder(MAX_FRAME), []
    for start, end in itertools.pairwise(places):
        received += decoder.feed(stream[start:end])
    assert received == sent


@given(st.integers(0, 1 << 62), st.sampled_from((0, 0.1, 1.5)))
def test_heartbeats_are_encoded_as_json_like_any_message(number: int, extra_s: float) -> None:
    """Heartbeats are encoded and decoded without the JSON library."""
    beat = {"type": "heartbeat", "number": number, **({"extra_s": extra_s} if extra_s else {})}
    assert json.loads(encode_body(beat)) == beat
    assert parse(encode_body(beat)) == beat


def test_unknown_heartbeat_fields_are_encoded() -> None:
    beat = {"type": "heartbeat", "number": 7, "new": 1}
    assert json.loads(encode_body(beat)) == beat


def test_stimulus_travels_with_any_message_but_heartbeats() -> None:
    message = {"type": "leave"}
    sent = json.loads(encode_body(message, stimulus="a:1:7"))
    assert take_stimulus(sent) == "a:1:7"
    assert sent == message == {"type": "leave"}
    assert take_stimulus(message) == ""
    beat = {"type": "heartbeat", "number": 7}
    assert json.loads(encode_body(beat, stimulus="a:1:7")) == beat


def test_stimulus_with_control_characters_is_never_sent() -> None:
    body = json.loads(encode_body({"type": "leave"}, stimulus="\x1b[2J\n" + "a" * 300))
    assert take_stimulus(body).startswith("\ufffd[2J\ufffdaaa")


@pytest.mark.parametrize("value", [7, None, ["a"], "a\nb", "\x1b[2J", "a" * 300])
def test_stimulus_that_is_not_a_name_is_rejected_as_malformed(value: object) -> None:
    with pytest.raises(Malformed):
        take_stimulus({"type": "leave", "stimulus": value})


@pytest.mark.parametrize("number", ["-1", "1.5", "1e3", "+1", "", "1,", "9" * 5000, '1,"a":2'])
def test_heartbeat_with_unusual_number_is_decoded_like_any_message(number: str) -> None:
    body = f'{{"type":"heartbeat","number":{number}}}'.encode()
    try:
        expected = decode(body)
    except Malformed:
        with pytest.raises(Malformed):
            parse(body)
    else:
        assert parse(body) == expected


@given(st.binary(max_size=300), st.booleans())
def test_arbitrary_bytes_are_decoded_or_rejected_as_malformed(data: bytes, greeted: bool) -> None:
    """Bytes that aren't messages raise Malformed and nothing else."""
    decoder = Decoder()
    try:
        for message in decoder.feed(GREETING * greeted + data):
            assert isinstance(message["type"], str)
    except Malformed:
        pass


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'"type"',
        b'{"type":1}',
        b"{'type':'x'}",
        b'{"type":"x"',
        b'{"type":"x"}}',
        b'{"type":"x","n":NaN}',
        b'{"type":"x","n":-Infinity}',
        b'\xff{"type":"x"}',
        b'{"type":"x","n":' + b"9" * 5000 + b"}",
        b"[" * 100_000,
    ],
)
def test_frame_that_is_not_a_message_is_rejected_as_malformed(body: bytes) -> None:
    """Anything other than a JSON object with a type ends the stream."""
    with pytest.raises(Malformed):
        list(Decoder(MAX_FRAME).feed(GREETING + frame(body)))


def test_oversized_frame_is_rejected_before_its_payload_arrives() -> None:
    for length in (MAX_HELLO + 1, 0xFFFFFFFF):
        with pytest.raises(Malformed, match="exceeds the limit"):
            list(Decoder().feed(GREETING + struct.pack(">I", length)))


def test_frame_size_limit_can_be_raised_between_messages() -> None:
    """A limit raised after one message applies to the next, even if both arrive together."""
    large = {"type": "x", "text": "a" * MAX_HELLO}
    decoder = Decoder()
    received = []
    for message in decoder.feed(GREETING + encode({"type": "hello"}) + encode(large)):
        received.append(message)
        decoder.limit = MAX_FRAME
    assert received[1] == large
    assert json.loads(decoder.body) == large


def test_sender_rejects_oversized_message() -> None:
    """The sender gets an error for a message that the peer would refuse."""
    with pytest.raises(ValueError, match="exceeds the limit"):
        encode({"type": "x", "text": "a" * MAX_FRAME})
    with pytest.raises(ValueError, match="exceeds the limit of 10"):
        encode_body({"type": "hello"}, 10)
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"type": "x", "number": float("nan")})


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (
            b"relight 1\n",
            r"another version of relight \(protocol 1\), but this node runs relight \d",
        ),
        (b"relight 17\n", r"protocol 17.*install the same version on all nodes"),
        (b"relight 99999999999999", "its first bytes were"),
        (b"relight x", "its first bytes were"),
        (b"\x16\x03\x01", "TLS"),
        (b"GET / HTTP/1.1\r\n", "its first bytes were b'GET / HTTP/1.1"),
        (b"\0\0\0\x02{}", "its first bytes were"),
        (b"relighu", "its first bytes were"),
    ],
)
def test_different_protocol_version_is_reported(start: bytes, words: str) -> None:
    """A peer with a different protocol version gets a helpful refusal, whether its bytes arrive
    singly or together.
    """
    with pytest.raises(Malformed, match=words):
        list(Decoder().feed(start))
    decoder = Decoder()
    with pytest.raises(Malformed):
        for byte in start:
            list(decoder.feed(bytes([byte])))


def test_unseal_function_applies_from_the_next_frame() -> None:
    """Once `unseal` is set, every payload passes through it, starting with the next frame."""
    decoder = Decoder()
    received = []
    for message in decoder.feed(
        GREETING + encode({"type": "a"}) + frame(encode_body({"type": "b"}) + b"tag")
    ):
        received.append(message["type"])
        decoder.unseal = lambda payload: payload.removesuffix(b"tag")
    assert received == ["a", "b"]
