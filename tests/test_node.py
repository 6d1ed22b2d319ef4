"""What one node says to its group, and what follows from what it hears: without any process."""

from types import SimpleNamespace
from typing import Any

import pytest

from relight.cli.arguments import parse, to_spec
from relight.core.messages import (
    Announce,
    CheckpointCalls,
    CheckpointLimit,
    GenerationFormed,
    JobEnded,
    NodeReady,
    Question,
    StopWorkers,
    WaitReason,
)
from relight.core.ranks import NO_GENERATION, Generation, GenerationId, Place
from relight.env import Environment
from relight.node import Node
from relight.prepare import prepare
from relight.worker_group import Outcome, WorkerGroup

PORT = 29_400
FIRST = GenerationId(0, "group")
PLACE = Place(0, 2, 0, 2, 1, "default", 0, 2)


class Link:
    """Keeps what is sent."""

    has_joined = True

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def open(self, owner: Node) -> None:
        self.owner = owner

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Journal:
    """Keeps what the user is told."""

    verbose = False

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def waits_for(self, what: object) -> bool:
        del what
        return False


@pytest.fixture
def clock() -> SimpleNamespace:
    clock = SimpleNamespace(time=100.0)
    clock.now = lambda: clock.time
    return clock


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def journal() -> Journal:
    return Journal()


@pytest.fixture
def node(clock: Any, link: Any, journal: Any) -> Node:
    env = Environment({})
    parsed = parse(["--no-python", "true"], env)
    job, _ = prepare(to_spec(parsed), parsed.given, env)
    node = Node(job, clock, journal)
    node.join(link, None)
    return node


def formed(number: GenerationId = FIRST) -> GenerationFormed:
    return GenerationFormed(Generation(number, 0, "host", PORT, "", ""), PLACE)


def test_a_generation_starts_only_while_its_lease_runs(node: Node, clock: Any) -> None:
    node.get_ready(PORT, Outcome())
    assert node.startable is None
    node.set_lease(clock.time + 1)
    node.received(formed())
    assert node.startable == formed()
    clock.time += 2
    assert node.startable is None
    node.set_lease(clock.time + 1)
    assert node.startable == formed()


def test_a_generation_that_comes_before_the_node_is_ready_is_ignored(node: Node) -> None:
    node.received(formed())
    assert node.state is None


def test_a_node_whose_generation_is_stopped_before_its_workers_start_is_ready_again(
    node: Node, link: Link
) -> None:
    node.get_ready(PORT, Outcome())
    node.received(formed())
    node.received(StopWorkers(FIRST, "a node left", gently=False))
    assert link.sent == [
        NodeReady(NO_GENERATION, PORT, (), ()),
        NodeReady(FIRST, PORT, (), ()),
    ]
    assert node.state == link.sent[-1]


def test_messages_of_another_generation_change_nothing(node: Node, link: Link) -> None:
    node.get_ready(PORT, Outcome())
    node.received(formed())
    link.sent.clear()
    other = GenerationId(0, "another group")
    node.received(StopWorkers(other, "a node left", gently=False))
    node.received(CheckpointLimit(other, 3))
    node.received(formed(other))
    assert node.state == formed()
    assert not link.sent


def test_workers_that_have_not_started_have_made_no_call(node: Node, link: Link) -> None:
    node.get_ready(PORT, Outcome())
    node.received(formed())
    node.received(CheckpointLimit(FIRST, 3))
    assert link.sent[-1] == CheckpointCalls(FIRST, 3, 0)


@pytest.mark.parametrize(
    ("outcomes", "progressed"),
    [
        ([Outcome()], [None]),
        ([Outcome(saved=False)], [False]),
        ([Outcome(saved=True)], [True]),
        ([Outcome(step=3), Outcome(step=3), Outcome(step=4)], [True, False, True]),
        ([Outcome(step=3), Outcome(step=1, saved=True), Outcome(step=2)], [True, True, False]),
    ],
)
def test_progress_is_a_further_step_or_a_new_checkpoint(
    node: Node, link: Link, outcomes: list[Outcome], progressed: list[bool | None]
) -> None:
    for outcome in outcomes:
        node.get_ready(PORT, outcome)
    assert [message.progressed for message in link.sent] == progressed


def test_a_new_coordinator_gets_the_last_report_with_the_latest_generation(
    node: Node, journal: Journal
) -> None:
    node.get_ready(PORT, Outcome())
    later = GenerationId(7, "group")
    node.received(WaitReason("waiting for a node", generation=later, spare=False))
    assert node.messages_after_join() == [NodeReady(NO_GENERATION, PORT, (), (), latest=later)]
    assert node.announce() is None
    assert journal.said == ["waiting for a node"]


def test_a_new_coordinator_hears_that_a_lease_was_over(node: Node, clock: Any) -> None:
    node.get_ready(PORT, Outcome())
    node.set_lease(clock.time + 1)
    node.received(formed())
    announce = node.announce()
    assert announce is not None
    assert not announce.lapsed
    clock.time += 1
    announce = node.announce()
    assert announce is not None
    assert announce.lapsed


def test_a_new_coordinator_hears_of_the_generation_whose_workers_have_ended(
    node: Node, clock: Any
) -> None:
    """Until this node knows that the others have gone on without it."""
    workers = WorkerGroup.__new__(WorkerGroup)  # it has none any more
    workers.formed, workers.have_succeeded, workers.succeeded_nodes = formed(), False, (1,)
    node.set_lease(clock.time + 1)
    node.runs(workers)
    node.get_ready(PORT, Outcome())
    place = PLACE.group_rank, PLACE.group_world_size
    assert node.announce() == Announce(FIRST, 0, *place, False, (1,), lapsed=False, ended=True)
    assert node.generation == NO_GENERATION
    later = GenerationId(FIRST.number + 1, "group")
    node.received(WaitReason("it runs", generation=later, spare=True))
    assert node.announce() is None


def test_a_node_that_gives_up_keeps_its_failures_and_sends_no_report(
    node: Node, link: Link
) -> None:
    end = JobEnded(1, "its health check failed", (), None)
    node.give_up(Outcome(succeeded_ranks=(1,)), end)
    assert node.end == end
    assert isinstance(node.state, NodeReady)
    assert not link.sent


def test_a_question_reaches_who_answers_it(node: Node) -> None:
    node.received(Question(1, "before anybody answers"))
    heard: list[Any] = []
    node.on_question = heard.append
    node.received(Question(2, "then"))
    assert heard == [Question(2, "then")]
