"""Messages between agents and their coordinator, to the wire and back."""

import json
from typing import Any

import fuzzing
import pytest
from fuzzing import Chance, entering, fuzzed, read_in

from relight.base import fields
from relight.base.fields import Malformed, to_json
from relight.core.failure import Failure
from relight.core.group import messages
from relight.core.group.group_types import GroupSettings, Hello
from relight.core.group.messages import (
    Announce,
    FromAgent,
    FromCoordinator,
    Heartbeat,
    JobEnded,
    Join,
    Note,
    SlowNode,
    Target,
    Unreached,
)
from relight.core.link import votes
from relight.core.ranks import GenerationId
from relight.health.doctor_messages import DoctorNode, Verdict
from relight.rendezvous.leader_session import CoordinatorAddress
from relight.schedulers.processes.orders import Order
from relight.schedulers.ssh.frames import ReplicaEnded
from relight.schedulers.ssh.orders import LinkOrder, RunReplica

EVERY = FromAgent | FromCoordinator
ANNOUNCE = Announce(GenerationId(0, "C1"), 0, 0, 1, False)


def over_the_wire(message: Any) -> Any:
    return json.loads(json.dumps(to_json(message)))


def read(value: Any) -> Any:
    return fields.message(EVERY, value)


def test_all_decoded_message_types_are_fuzzed() -> None:
    """The fuzzed types are exactly the ones that the code decodes anywhere."""
    found = set(entering())
    assert {Join, JobEnded, Heartbeat, Hello, votes.VoteRequest, ReplicaEnded} <= found
    assert {DoctorNode, Verdict, CoordinatorAddress, Order, RunReplica, LinkOrder} <= found
    text = "from relight.base import fields\n"
    assert read_in(f"{text}class A:\n def f(cls):\n  fields.record(cls, fields.decode(1))", "") == [
        "A"
    ]
    for hidden in ("from relight.base.fields import record", f"{text}read = fields.record"):
        with pytest.raises(AssertionError):
            read_in(hidden, "")


@fuzzed
def test_message_record_round_trips_through_json(chance: Chance) -> None:
    """Only characters that would control a terminal are changed, and the result round-trips
    unchanged.
    """
    sent = chance.valid(chance.choice(entering()))
    arrived = fields.record(type(sent), json.loads(json.dumps(fields.plain(sent))))
    assert fields.plain(arrived) == fields.plain(sent)
    assert fields.record(type(sent), fields.plain(arrived)) == arrived


@fuzzed
def test_mutated_message_record_is_valid_or_rejected_as_malformed(chance: Chance) -> None:
    """Whatever values its fields have, a record is either decoded as valid or rejected."""
    kind = chance.choice(entering())
    sent = chance.written(chance.near(fields.plain(chance.valid(kind))))
    try:
        arrived = fields.record(kind, fields.decode(sent))
    except Malformed:
        return
    assert fields.record(kind, json.loads(json.dumps(fields.plain(arrived)))) == arrived


@fuzzed
def test_message_with_unusual_text_is_accepted_by_the_receiver(chance: Chance) -> None:
    """No text from a worker or its machine can produce a message that the receiver rejects."""
    failure, text = chance.valid(Failure), chance.choice([*fuzzing.ODD, "x" * 5000, "a\rb"])
    assert failure.report is None or fields.record(Failure, fields.plain(failure))
    odd = failure._replace(host=text, last_lines=(text,) * 999, evidence=text, log=text, when=text)
    arrived = read(over_the_wire(JobEnded(1, text, (text, text), odd)))
    shown = [arrived.reason, *arrived.report, arrived.root.host, *arrived.root.last_lines]
    shown = [line.replace("\t", "") for line in shown]
    assert all(line.isprintable() and len(line) <= fields.MAX_TEXT for line in shown)


def test_text_from_other_machines_cannot_control_the_terminal() -> None:
    """Control characters from other machines are replaced. Line breaks in a report stay."""
    text = "a\x1b[2Jb\x07\u202e\nc\td"
    shown = "a\ufffd[2Jb\ufffd\ufffd\nc\td"
    for kind in (Note(text), JobEnded(1, text, (text,), None)):
        raw = {"type": type(kind).__name__.lower(), **kind._asdict()}
        assert read(json.loads(json.dumps(raw))) == read(over_the_wire(kind))
    assert read(over_the_wire(Note(text))) == Note(shown)


@fuzzed
def test_value_that_is_not_a_record_is_rejected_as_malformed(chance: Chance) -> None:
    noise = {field: chance.junk() for field in chance.sample(["type", "generation", "x"], 2)}
    with pytest.raises(Malformed):
        fields.message(FromAgent, noise)


@pytest.mark.parametrize("kind", [k for k in entering() if {*k._fields[:1]} - {*k._field_defaults}])
def test_missing_field_error_shows_the_field(kind: Any) -> None:
    """The error names the record and the field."""
    with pytest.raises(Malformed, match=f"{kind.__name__} without {kind._fields[0]}"):
        fields.record(kind, {})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("local_world_size", 0),
        ("local_world_size", -1),
        ("local_world_size", True),
        ("local_world_size", 1.0),
        ("local_world_size", 1 << 21),
        ("node", 5),
        ("node", "a\nb"),
        ("host", "x" * 256),
        ("node_rank", -2),
        ("min_nodes", "2"),
        ("facts", {"a": 1}),
        ("facts", []),
        ("facts", {str(number): "" for number in range(300)}),
        ("announce", []),
        ("announce", {"generation": {"number": 0, "origin": "C1"}}),
        ("announce", {**fields.plain(ANNOUNCE), "generation": 0}),
        ("announce", {**fields.plain(ANNOUNCE), "done": 1}),
    ],
)
def test_out_of_bounds_value_is_rejected_as_malformed(field: str, value: object) -> None:
    """Numbers have bounds, `true` isn't a number, and even nested values are checked."""
    join = Join("n", "h", "a", 1, "default", -1, 1, 2, 0, {}, None)
    with pytest.raises(Malformed):
        read({**over_the_wire(join), field: value})


@pytest.mark.parametrize("text", ["1e999", "-1e999", "Infinity", "NaN", "9" * 5000, "[" * 100_000])
def test_non_finite_number_is_rejected_as_malformed(text: str) -> None:
    """JSON with a non-finite number is invalid, however the number is written."""
    with pytest.raises(Malformed, match="not valid JSON"):
        fields.decode(f'{{"type":"voterequest","sent":{text}}}')


def test_every_message_type_is_in_a_union() -> None:
    """The unions list everything that can be received, and the tests are built from them."""
    for module in (messages, votes):
        kinds = {
            kind
            for name, kind in vars(module).items()
            if isinstance(kind, type) and hasattr(kind, "_fields") and not name.startswith("_")
            and kind.__module__ == module.__name__
        }  # fmt: skip
        assert kinds - {Announce, SlowNode, Target, Unreached} <= set(entering())


@pytest.mark.parametrize("field", GroupSettings._fields)
@pytest.mark.parametrize("value", [None, "1", -1, float("inf"), float("nan"), 1 << 63, [0], True])
def test_invalid_setting_is_rejected_as_malformed(field: str, value: object) -> None:
    if value is True and GroupSettings.__annotations__[field] is bool:
        return
    with pytest.raises(Malformed):
        fields.record(GroupSettings, {**fields.plain(GroupSettings(1, 2, 3)), field: value})


def test_heartbeat_timeout_from_a_peer_has_the_same_bounds_as_the_flag() -> None:
    """The coordinator waits that long for the peer."""
    with pytest.raises(Malformed, match="lost_after_s"):
        fields.record(
            GroupSettings, {"min_nodes": 1, "max_nodes": 2, "max_restarts": 0, "lost_after_s": 1e7}
        )
