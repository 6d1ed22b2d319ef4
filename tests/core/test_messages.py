"""What agents and their coordinator tell each other, to the wire and back."""

import json
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.core import messages
from relight.core.group import Settings
from relight.core.messages import (
    Announce,
    Confirm,
    Done,
    End,
    Failed,
    Form,
    Join,
    Leave,
    Note,
    Ready,
    Stop,
    Wait,
    from_json,
    to_json,
)
from relight.core.ranks import Generation, Place
from relight.core.wire import Malformed

texts = st.text(st.characters(categories=["L", "N", "P", "S"]) | st.just(" "), max_size=20)
words = st.text("abc-_.:0", max_size=20)
counts = st.integers(0, 1 << 40)
numbers = st.integers(-1, 1 << 40)
ports = st.integers(0, 65535)
sizes = st.integers(1, 1 << 20)
records = st.dictionaries(texts, st.none() | st.integers() | texts, max_size=3)
announces = st.builds(Announce, numbers, counts, counts, counts, st.booleans())
generations = st.builds(Generation, counts, counts, words, ports, texts)
places = st.builds(
    Place, counts, counts, counts, counts, counts, words, counts, counts,
)  # fmt: skip
joins = st.builds(
    Join, words, words, words, sizes, words, numbers, sizes, sizes, counts,
    st.dictionaries(texts, texts, max_size=3), st.none() | announces,
)  # fmt: skip
known = st.one_of(
    joins,
    st.builds(
        Ready, numbers, ports, st.lists(records, max_size=3).map(tuple),
        st.lists(counts, max_size=3).map(tuple), counts,
    ),
    st.builds(Failed, numbers, texts),
    st.builds(Done, numbers),
    st.builds(Leave, texts),
    st.builds(Form, generations, places),
    st.builds(Stop, numbers, texts, st.booleans()),
    st.builds(Confirm, numbers),
    st.builds(Wait, texts, st.booleans()),
    st.builds(Note, texts),
    st.builds(End, counts, texts, st.lists(texts, max_size=3).map(tuple), st.none() | records),
)  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def over_the_wire(message: Any) -> Any:
    return json.loads(json.dumps(to_json(message)))


@given(known)
def test_what_is_sent_arrives(message: Any) -> None:
    """Every message comes out of its JSON as it went in, and of the same type."""
    arrived = from_json(over_the_wire(message))
    assert arrived == message
    assert type(arrived) is type(message)
    assert hash(str(arrived)) == hash(str(message))


def test_texts_can_not_confuse_a_terminal() -> None:
    """Control characters in what other machines say are replaced; lines of a report stay lines."""
    text = "a\x1b[2Jb\x07\u202e\nc"
    shown = "a\ufffd[2Jb\ufffd\ufffd\nc"
    assert from_json(over_the_wire(Note(text))) == Note(shown)
    assert from_json(over_the_wire(End(1, text, (text,), None))) == End(1, shown, (shown,), None)


@given(known, st.data())
def test_what_does_not_fit_is_malformed_and_nothing_else(message: Any, data: st.DataObject) -> None:
    """With any field replaced or missing, a message is read as one that is in order, or refused."""
    sent = over_the_wire(message)
    inner = data.draw(st.sampled_from([sent, *(v for v in sent.values() if isinstance(v, dict))]))
    if inner:
        field = data.draw(st.sampled_from(sorted(inner)))
        if data.draw(st.booleans()):
            # That the type is a string is what core.wire sees to.
            inner[field] = data.draw(texts if field == "type" else json_values)
        else:
            del inner[field]
    try:
        arrived = from_json(sent)
    except Malformed:
        return
    assert from_json(over_the_wire(arrived)) == arrived


@given(texts, st.dictionaries(st.sampled_from(["generation", "node", "x"]), json_values))
def test_noise_is_malformed(kind: str, rest: dict[str, Any]) -> None:
    """An object that happens to arrive is refused by name."""
    with pytest.raises(Malformed):
        from_json({"type": kind, **rest})


@pytest.mark.parametrize("kind", [Join, Ready, Failed, Done, Leave, Form, Stop, Confirm, Wait, End])
def test_a_field_that_is_missing_is_named(kind: Any) -> None:
    """The error says which message lacks what."""
    field = kind._fields[0]
    with pytest.raises(Malformed, match=f"{kind.__name__} without {field}"):
        from_json({"type": kind.__name__.lower()})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slots", 0),
        ("slots", -1),
        ("slots", True),
        ("slots", 1.0),
        ("slots", 1 << 21),
        ("node", 5),
        ("node_rank", -2),
        ("least", "2"),
        ("facts", {"a": 1}),
        ("facts", []),
        ("announce", []),
        ("announce", {"generation": 0}),
        ("announce", {**Announce(0, 0, 0, 1, False)._asdict(), "done": 1}),
    ],
)
def test_values_that_can_not_be(field: str, value: object) -> None:
    """Numbers have bounds, true is no number, and what is nested is checked like the rest."""
    join = Join("n", "h", "a", 1, "default", -1, 1, 2, 0, {}, None)
    with pytest.raises(Malformed):
        from_json({**over_the_wire(join), field: value})


def test_every_message_is_known_to_the_wire() -> None:
    """No message was forgotten in the list of those that can be received."""
    kinds = {
        kind
        for kind in vars(messages).values()
        if isinstance(kind, type)
        and hasattr(kind, "_fields")
        and kind.__module__ == Join.__module__
    }
    assert kinds - {Announce} == set(messages._KINDS.values())
    assert all(get_type_hints(kind) for kind in kinds)


settings = st.builds(
    lambda least, more, times, flags: Settings(least, least + more, 3, *times, *flags),
    sizes, counts.map(lambda n: n % 1000), st.tuples(*[st.floats(0, 1e8)] * 4),
    st.tuples(st.booleans(), st.booleans()),
)  # fmt: skip


@given(settings)
def test_settings_arrive(given_settings: Settings) -> None:
    """The settings of a job come out of their JSON as they went in."""
    assert Settings.from_json(json.loads(json.dumps(given_settings.to_json()))) == given_settings


@given(settings, st.sampled_from(Settings._fields), json_values)
def test_settings_that_can_not_be(given_settings: Settings, field: str, value: object) -> None:
    """A setting of the wrong type or size is Malformed and nothing else."""
    try:
        arrived = Settings.from_json({**given_settings.to_json(), field: value})
    except Malformed:
        return
    assert 1 <= arrived.least <= arrived.most
    assert getattr(arrived, field) == value
    assert value == value and abs(value) < 1e9
