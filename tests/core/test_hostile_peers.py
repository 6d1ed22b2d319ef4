"""Admitted peers that send arbitrary messages.

The cores accept a message or raise `Malformed`. Every message that results for another node can be
sent, is accepted there, and is safe to print.
"""

from typing import Any

from fuzzing import Chance, fuzzed, kinds_of
from plays import formed, record

from relight.base import fields
from relight.base.fields import Malformed, to_json
from relight.core.diagnosis.excerpts import count_rows
from relight.core.diagnosis.failure_text import shared
from relight.core.failure import ErrorReport, Failure, FailureKind
from relight.core.group.group_types import GroupSettings, NodeLost, Received, Send
from relight.core.group.membership import Membership
from relight.core.group.messages import (
    FromAgent,
    FromCoordinator,
    JobEnded,
    Join,
    NodeReady,
    WorkerFailed,
)
from relight.core.link import wire
from relight.core.link.election import BallotReceived, Election, SendBallot
from relight.core.link.votes import Ballot
from relight.core.ranks import NO_GENERATION
from relight.events.event_types import Tick
from relight.schedulers.ssh import frames, hosts

REPORT = ErrorReport(
    FailureKind.RAISED, "ValueError", "x\n" * 5000, "a.py:1 in f", "x", ("─" * 5000,) * 300
)


def send_over_wire(kinds: Any, message: Any) -> Any:
    """Encode and decode a message as in production."""
    (heard,) = wire.Decoder(wire.MAX_FRAME).feed(wire.GREETING + wire.encode(to_json(message)))
    return fields.message(kinds, heard)


def mutated_message(kinds: Any, kind: Any, chance: Chance) -> Any:
    """Return a mutated message as its receiver decodes it, or None if it is rejected."""
    body = chance.written(chance.near(to_json(chance.valid(kind))))
    try:
        (heard,) = wire.Decoder(wire.MAX_FRAME).feed(wire.GREETING + wire.frame(body))
        return fields.message(kinds, heard)
    except Malformed:
        return None


def join_events(node: str, wanted: GroupSettings) -> list[Any]:
    number = "abc".index(node) if wanted.ordered else -1
    asked = wanted.min_nodes, wanted.max_nodes, wanted.max_restarts
    join = Join(node, f"host-{node}", "", 1, "default", number, *asked, {}, None)
    return [Received(node, join), Received(node, NodeReady(NO_GENERATION, 1, (), ()))]


@fuzzed
def test_hostile_node_cannot_break_group_invariants(chance: Chance) -> None:
    """The group's invariants hold, and every reply is accepted by the node that receives it."""
    ordered = chance.random() < 0.3
    most = 2 if ordered else 3
    asked = GroupSettings(2 if ordered else 1, most, 1, 0.1, 5.0, 5.0, 1.0, ordered)
    group, now = Membership(asked, "C1"), 0.0
    events: list[Any] = [*join_events("a", asked), *join_events("b", asked)]
    for _ in range(chance.randrange(8)):
        message = mutated_message(FromAgent, chance.choice(kinds_of(FromAgent)), chance)
        if message is not None:
            if hasattr(message, "generation") and chance.random() < 0.7:
                message = message._replace(generation=formed(chance.choice([0, 1])))
            if isinstance(message, Join) and chance.random() < 0.7:
                message = message._replace(
                    min_nodes=asked.min_nodes, max_nodes=most, max_restarts=1
                )
            # The coordinator identifies a node by its connection.
            node = message.node if isinstance(message, Join) else chance.choice("abc")
            events += [Received(node, message), Tick()]
    ends = WorkerFailed(formed(0), "x"), NodeReady(formed(0), 1, (record(),), ())
    events += [*(Received("a", each) for each in ends), NodeLost("b", "x")]
    for event in events:
        for effect in group.step(event, now):
            if isinstance(effect, Send):
                send_over_wire(FromCoordinator, effect.message)
        group.check()
        now += chance.choice([0.0, 0.2, 6.0])
        assert group.explain(now)


@fuzzed
def test_hostile_failure_reports_are_harmless(chance: Chance) -> None:
    """A joined node reports arbitrary failures. The job's final report is accepted by all nodes,
    fits on a terminal and can't control it. The job never ends as a success.
    """
    group = Membership(GroupSettings(2, 2, 0), "C1")
    for event in (*join_events("a", group.settings), *join_events("b", group.settings)):
        group.step(event, 0.0)
    first = chance.valid(Failure)
    alike = first._replace(report=chance.valid(Failure).report)
    raw = [fields.plain(failure) for failure in (first, alike, first, chance.valid(Failure))]
    sent = {**to_json(NodeReady(formed(0), 1, (), (1, 1))), "failures": chance.near(raw)}
    try:
        ready = fields.message(FromAgent, fields.decode(chance.written(sent)))
    except Malformed:
        ready = send_over_wire(FromAgent, NodeReady(formed(0), 1, (first, alike, first), (1, 1)))
    group.step(Received("b", WorkerFailed(formed(0), "a worker failed on b")), 7.0)
    group.step(Received("b", ready), 7.0)
    effects = group.step(Received("a", NodeReady(formed(0), 1, (record(),), ())), 8.0)
    ends = [
        each.message for each in effects if isinstance(getattr(each, "message", None), JobEnded)
    ]
    assert len(ends) == 2
    for end in ends:
        taken = send_over_wire(FromCoordinator, end)
        assert 0 < taken.exit_code == end.exit_code < 256
        assert end.report and taken.report == end.report
        assert all(line.replace("\t", "").isprintable() for line in end.report), end.report
        assert count_rows([f"relight: {end.report[0]}", *end.report[1:]]) <= 40


@fuzzed
def test_hostile_host_cannot_break_election_invariants(chance: Chance) -> None:
    """The election's invariants hold, and every reply is accepted by the other hosts."""
    hosts = "abcd"[: chance.randint(2, 4)]
    elector = Election(hosts, 0, "me", 0.0, vote_s=1.0, alone=chance.random() < 0.5)
    now = 0.0
    for _ in range(chance.randrange(10)):
        now += chance.choice([0.01, 0.3, 1.1, 4.0])
        events: list[Any] = [Tick()]
        ballot = mutated_message(Ballot, chance.choice(kinds_of(Ballot)), chance)
        if ballot is not None:
            near: dict[str, Any] = {"incarnation": "me", "candidate": chance.choice([0, 1])}
            near |= {"voter": 1, "sent": now, "stage": chance.choice(["probe", "vote", "lead"])}
            for field in set(near) & set(ballot._fields):
                if chance.random() < 0.7:
                    ballot = ballot._replace(**{field: near[field]})
            events.append(BallotReceived(ballot))
        for event in events:
            for effect in elector.step(event, now):
                if isinstance(effect, SendBallot):
                    send_over_wire(Ballot, effect.message)
            elector.check()
            assert elector.explain(now)


def test_failures_on_a_large_node_fit_into_one_message() -> None:
    """Other nodes learn about every failure, however many workers fail and however long their
    tracebacks are.
    """
    lines = ("─" * 5000,) * 300
    for count in (1, 300):
        failure = record()._replace(last_lines=lines, evidence="é" * 9999, log="/" * 9999)
        ends = [failure._replace(rank=rank, report=REPORT) for rank in range(count)]
        told = send_over_wire(FromAgent, NodeReady(formed(0), 1, shared(ends, 0.0), ())).failures
        assert [each.rank for each in told] == list(range(count))
        assert told[0].report is not None and len(told[0].report.lines) == 200


def test_failures_that_differ_only_in_report_kind_can_be_sorted() -> None:
    group = Membership(GroupSettings(1, 1, 0), "C1")
    for event in join_events("a", group.settings):
        group.step(event, 0.0)
    ends = [record()._replace(report=REPORT._replace(kind=kind)) for kind in FailureKind]
    ends += [record()._replace(report=None)]
    *_, effect = group.step(Received("a", NodeReady(formed(0), 1, tuple(ends), ())), 1.0)
    assert isinstance(effect.message, JobEnded)


@fuzzed
def test_hostile_ssh_replies_are_harmless(chance: Chance) -> None:
    """A reply about a replica on another host is valid or raises `Malformed`. Each side accepts
    the other's messages.
    """
    ended = chance.valid(frames.ReplicaEnded)
    assert frames.ReplicaEnded.parse(ended.to_payload()).to_payload() == ended.to_payload()
    try:
        heard = frames.ReplicaEnded.parse(chance.written(chance.near(fields.plain(ended))))
    except Malformed:
        return
    assert heard.exitcode is None or -127 <= heard.exitcode <= 255
    hosts.problem(hosts.SshHost("node"), heard)
