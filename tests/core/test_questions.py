"""Queries to all nodes of a job, and the answers that clients get."""

from typing import Any

import pytest
from fuzzing import Chance, fuzzed

from relight.agent.group import Group
from relight.base import fields
from relight.core.group.group_types import GroupSettings, Received, Send
from relight.core.group.messages import (
    Answer,
    AskNodes,
    FromCoordinator,
    Join,
    NodeAnswered,
    Question,
)
from relight.core.status.cluster_query import Questions
from relight.host.loop import Loop


def join(node: str, *, answers: bool = True) -> Join:
    return Join(
        node, f"host-{node}", "", 1, "default", -1, 1, 3, 0, {}, None, answers=answers
    )  # fmt: skip


def node_answers(sends: list[Send]) -> list[tuple[str, str, str | None, int]]:
    return [
        (node, message.host, message.answer, message.left)
        for node, message in sends
        if isinstance(message, NodeAnswered)
    ]


def test_query_is_sent_to_all_nodes_and_returns_every_reply() -> None:
    questions = Questions()
    number, sends = questions.ask("a", "", map(join, "ab"))
    assert sends == [Send("a", Question(number, "")), Send("b", Question(number, ""))]
    assert not questions.answer("b", Answer(number, "B"))
    assert node_answers(questions.answer("a", Answer(number, "A"))) == [
        ("a", "host-a", "A", 1),
        ("a", "host-b", "B", 0),
    ]
    assert not questions.close(number)


def test_node_that_misses_the_query_deadline_is_listed() -> None:
    questions = Questions()
    number, _ = questions.ask("a", "", map(join, "ab"))
    questions.answer("a", Answer(number, "A"))
    assert node_answers(questions.close(number))[1] == ("a", "host-b", None, 0)
    assert not questions.answer("b", Answer(number, "late"))


def test_identical_pending_queries_are_merged() -> None:
    questions = Questions()
    number, _ = questions.ask("a", "", map(join, "ab"))
    assert questions.ask("b", "", map(join, "ab")) == (number, [])
    other, sends = questions.ask("b", "{}", map(join, "ab"))
    assert other != number
    assert len(sends) == 2
    questions.answer("a", Answer(number, "A"))
    assert {node for node, *_ in node_answers(questions.answer("b", Answer(number, "B")))} == {
        "a",
        "b",
    }


def test_node_with_an_older_version_is_listed_but_not_queried() -> None:
    questions = Questions()
    number, sends = questions.ask("a", "", [join("a"), join("old", answers=False)])
    assert [node for node, _ in sends] == ["a"]
    assert node_answers(questions.answer("a", Answer(number, "A")))[1] == ("a", "host-old", None, 0)


def test_unsolicited_query_replies_are_dropped() -> None:
    questions = Questions()
    number, _ = questions.ask("a", "", map(join, "ab"))
    assert not questions.answer("c", Answer(number, "C"))
    assert not questions.answer("b", Answer(number + 1, "C"))
    assert not questions.answer("b", Answer(number, "first"))
    assert not questions.answer("b", Answer(number, "second"))
    assert node_answers(questions.answer("a", Answer(number, "A")))[1][2] == "first"


def test_total_size_of_query_replies_to_a_client_is_limited() -> None:
    questions, nodes = Questions(), [f"n{number}" for number in range(100)]
    number, _ = questions.ask("n0", "", map(join, nodes))
    for node in nodes:
        answered = node_answers(questions.answer(node, Answer(number, "x" * fields.MAX_ANSWER)))
    assert 0 < sum(len(answer or "") for _, _, answer, _ in answered) <= 8 << 20
    assert len(answered) == len(nodes)


def test_number_of_pending_queries_is_limited() -> None:
    questions = Questions()
    numbers = [questions.ask("a", f"{each}", [join("a")])[0] for each in range(20)]
    assert numbers.count(-1) == 12
    assert not questions.ask("a", "another", [join("a")])[1]
    questions.answer("a", Answer(numbers[0], ""))
    assert questions.ask("a", "another", [join("a")])[1]


def test_query_collects_replies_from_a_thousand_nodes() -> None:
    questions, nodes = Questions(), [f"n{number}" for number in range(1000)]
    number, sends = questions.ask("n0", "", map(join, nodes))
    answered: list[Any] = []
    for node in nodes:
        answered = node_answers(questions.answer(node, Answer(number, "x" * 1000)))
    assert (len(sends), len(answered)) == (1000, 1000)


@pytest.fixture
def group() -> Group:
    """Return a group of two nodes, one of them running an older version."""
    group = Group(Loop(), GroupSettings(1, 3, 0))
    for each in (join("a"), join("old", answers=False)):
        group.recipients[each.node] = lambda _: None
        group.step(Received(each.node, each))
    return group


def test_only_group_members_may_send_queries(group: Group) -> None:
    heard = list[FromCoordinator]()
    group.recipients |= dict.fromkeys(("a", "stranger"), heard.append)
    group.step(Received("stranger", AskNodes("")))
    assert not heard
    group.step(Received("a", AskNodes("")))
    assert heard == [Question(1, "")]
    group.step(Received("a", Answer(1, "A")))
    assert [each.host for each in heard[1:] if isinstance(each, NodeAnswered)] == [
        "host-a",
        "host-old",
    ]


@fuzzed
def test_hostile_queries_and_replies_are_harmless(chance: Chance) -> None:
    questions = Questions()
    for _ in range(chance.randrange(12)):
        node = chance.choice("abc")
        if chance.random() < 0.4:
            sends = questions.ask(node, chance.choice(["", "x"]), map(join, "ab"))[1]
        elif chance.random() < 0.8:
            sends = questions.answer(node, Answer(chance.randrange(4), chance.choice(["", "y"])))
        else:
            sends = questions.close(chance.randrange(4))
        for _, message in sends:
            fields.message(FromCoordinator, fields.to_json(message))
