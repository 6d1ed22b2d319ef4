"""A node's messages to its group, and its reactions to the group's, without any processes."""

import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from relight.agent.agent_config import AgentConfig
from relight.agent.node import Node
from relight.agent.preemption import Interruption
from relight.agent.prepare import prepare
from relight.agent.shutdown import Leaving
from relight.agent.worker_group import GenerationResult, WorkerGroup
from relight.base.env import Environment
from relight.base.errors import EXIT_PREEMPTED
from relight.core.failure import Failure
from relight.core.group.messages import (
    Announce,
    CheckpointCalls,
    CheckpointLimit,
    GenerationFormed,
    JobEnded,
    NodeLeaving,
    NodeReady,
    Question,
    StopWorkers,
    WaitReason,
    WorkerFailed,
)
from relight.core.ranks import NO_GENERATION, Generation, GenerationId, Place
from relight.flags.arguments import parse, to_spec

PORT = 29_400
FIRST = GenerationId(0, "group")
PLACE = Place(0, 2, 0, 2, 1, "default", 0, 2)


class Link:
    """Records sent messages."""

    has_joined = True
    join = SimpleNamespace(host="host")

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.silent_since: float | None = None
        self.clock: Any = None

    def unheard_s(self) -> float:
        return 0.0 if self.silent_since is None else self.clock.time - self.silent_since

    def open(self, owner: Node) -> None:
        self.owner = owner

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Journal:
    """Records messages to the user."""

    verbose = False

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def record(self, event: object) -> None:
        pass

    def set_status(self, what: object) -> bool:
        del what
        return False

    def clear_status(self) -> None:
        pass


class Clock:
    """The loop, in virtual time."""

    def __init__(self) -> None:
        self.time = 100.0
        self.on_signals: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return self.time

    def call_after(self, seconds: float, callback: Callable[[], None]) -> None:
        self._timers.append((self.time + seconds, callback))

    def on_signal(self, number: int, callback: Callable[[int], None]) -> None:
        self.on_signals[number] = callback

    def run_until(self, done: Callable[[], bool], limit_s: float) -> None:
        end = self.time + limit_s
        while not done() and self.time < end:
            self._timers.sort(key=lambda timer: timer[0])
            if not self._timers or self._timers[0][0] > end:
                self.time = end
                return
            self.time, callback = self._timers.pop(0)
            callback()


class Workers(WorkerGroup):
    """Workers that can save a checkpoint, without any processes."""

    supervisor = None
    failure: WorkerFailed | None = None
    can_save = True
    all_exited_with_0 = True

    def __init__(self) -> None:
        self.formed, self.have_succeeded, self.succeeded_nodes = formed(), False, (1,)
        self.stopped_by: StopWorkers | None = None
        self.stops: list[StopWorkers] = []

    def stop(self, stop: StopWorkers) -> None:
        self.stopped_by = stop
        self.stops.append(stop)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def link(clock: Clock) -> Link:
    link = Link()
    link.clock = clock
    return link


@pytest.fixture
def journal() -> Journal:
    return Journal()


@pytest.fixture
def job() -> AgentConfig:
    env = Environment({})
    parsed = parse(["--no-python", "true"], env)
    return prepare(to_spec(parsed), parsed.given, env)[0]


@pytest.fixture
def node(job: AgentConfig, clock: Any, link: Any, journal: Any) -> Node:
    node = Node(job, clock, journal)
    node.join(link, None)
    return node


def formed(number: GenerationId = FIRST) -> GenerationFormed:
    return GenerationFormed(Generation(number, 0, "host", PORT, "", ""), PLACE)


def test_generation_starts_only_while_lease_is_held(node: Node, clock: Any) -> None:
    node.get_ready(PORT, GenerationResult())
    assert node.startable is None
    node.set_lease(clock.time + 1)
    node.received(formed())
    assert node.startable == formed()
    clock.time += 2
    assert node.startable is None
    node.set_lease(clock.time + 1)
    assert node.startable == formed()


def test_generation_announced_before_node_is_ready_is_ignored(node: Node) -> None:
    node.received(formed())
    assert node.state is None


def test_node_becomes_ready_again_if_stopped_before_workers_start(node: Node, link: Link) -> None:
    node.get_ready(PORT, GenerationResult())
    node.received(formed())
    node.received(StopWorkers(FIRST, "a node left", checkpoint_first=False))
    assert link.sent == [
        NodeReady(NO_GENERATION, PORT, (), ()),
        NodeReady(FIRST, PORT, (), ()),
    ]
    assert node.state == link.sent[-1]


def test_messages_from_another_generation_are_ignored(node: Node, link: Link) -> None:
    node.get_ready(PORT, GenerationResult())
    node.received(formed())
    link.sent.clear()
    other = GenerationId(0, "another group")
    node.received(StopWorkers(other, "a node left", checkpoint_first=False))
    node.received(CheckpointLimit(other, 3))
    node.received(formed(other))
    assert node.state == formed()
    assert not link.sent


def test_node_reports_zero_checkpoint_calls_before_workers_start(node: Node, link: Link) -> None:
    node.get_ready(PORT, GenerationResult())
    node.received(formed())
    node.received(CheckpointLimit(FIRST, 3))
    assert link.sent[-1] == CheckpointCalls(FIRST, 3, 0)


@pytest.mark.parametrize(
    ("outcomes", "progressed"),
    [
        ([GenerationResult()], [None]),
        ([GenerationResult(saved=False)], [False]),
        ([GenerationResult(saved=True)], [True]),
        (
            [GenerationResult(step=3), GenerationResult(step=3), GenerationResult(step=4)],
            [True, False, True],
        ),
        (
            [
                GenerationResult(step=3),
                GenerationResult(step=1, saved=True),
                GenerationResult(step=2),
            ],
            [True, True, False],
        ),
    ],
)
def test_new_step_or_checkpoint_counts_as_progress(
    node: Node, link: Link, outcomes: list[GenerationResult], progressed: list[bool | None]
) -> None:
    for outcome in outcomes:
        node.get_ready(PORT, outcome)
    assert [message.progressed for message in link.sent] == progressed


def test_new_coordinator_receives_last_report_and_generation(node: Node, journal: Journal) -> None:
    node.get_ready(PORT, GenerationResult())
    later = GenerationId(7, "group")
    node.received(WaitReason("waiting for a node", generation=later, spare=False))
    assert node.messages_after_join() == [NodeReady(NO_GENERATION, PORT, (), (), latest=later)]
    assert node.announce() is None
    assert journal.said == ["waiting for a node"]


def test_generation_that_a_coordinator_names_last_replaces_one_with_a_higher_number(
    node: Node,
) -> None:
    """A coordinator that does not know the job's earlier generations starts counting at 0."""
    node.get_ready(PORT, GenerationResult())
    for named in GenerationId(7, "group"), GenerationId(0, "another"):
        node.received(WaitReason("waiting for a node", generation=named, spare=True))
    node.received(WaitReason("waiting for a node", spare=False))  # a third one has formed none
    [ready] = node.messages_after_join()
    assert isinstance(ready, NodeReady)
    assert ready.latest == GenerationId(0, "another")


def test_new_coordinator_is_notified_that_generation_has_ended(node: Node, clock: Any) -> None:
    """The node reports that until it learns that the others have continued without it."""
    node.set_lease(clock.time + 1)
    node.attach_workers(Workers())
    node.get_ready(PORT, GenerationResult())
    place = PLACE.group_rank, PLACE.group_world_size
    assert node.announce() == Announce(FIRST, 0, *place, False, (1,), ended=True)
    assert node.generation == NO_GENERATION
    node.received(WaitReason("it stops", generation=FIRST, spare=False))
    assert node.announce() is not None


@pytest.mark.parametrize("number", [FIRST.number - 1, FIRST.number, FIRST.number + 1])
def test_spare_does_not_announce_its_former_generation(node: Node, clock: Any, number: int) -> None:
    """Its coordinator may not have known that generation, and have used the same number again."""
    node.set_lease(clock.time + 1)
    node.attach_workers(Workers())
    node.get_ready(PORT, GenerationResult())
    other = GenerationId(number, "another coordinator")
    node.received(WaitReason("it runs", generation=other, spare=True))
    assert node.announce() is None


def test_new_coordinator_learns_which_failure_blames_a_peer(node: Node) -> None:
    """Otherwise, it would stop that peer without capturing its stack."""
    workers = Workers()
    workers.failure = WorkerFailed(FIRST, "a worker failed on host", suspects_peer=True)
    node.attach_workers(workers)
    node.get_ready(PORT, GenerationResult())
    assert node.messages_after_join() == [workers.failure, node.state]


def test_node_that_aborts_keeps_failures_but_sends_no_report(node: Node, link: Link) -> None:
    end = JobEnded(1, "its health check failed", (), None)
    node.abort(node.last_report(GenerationResult(succeeded_ranks=(1,))), end)
    assert node.end == end
    assert isinstance(node.state, NodeReady)
    assert not link.sent


def test_query_is_passed_to_its_handler(node: Node) -> None:
    node.received(Question(1, "before anybody answers"))
    heard: list[Any] = []
    node.on_question = heard.append
    node.received(Question(2, "then"))
    assert heard == [Question(2, "then")]


# A preempted node.


def test_new_coordinator_is_notified_whether_workers_can_checkpoint(node: Node) -> None:
    workers = Workers()
    node.attach_workers(workers)
    heard = []
    for checkpoint_first in (None, True, False):  # running, saving, and out of time
        if checkpoint_first is not None:
            workers.stop(
                StopWorkers(FIRST, "a node is preempted", checkpoint_first=checkpoint_first)
            )
        announce = node.announce()
        assert announce is not None
        heard.append(announce.saves)
    assert heard == [False, True, False]


@pytest.mark.parametrize(
    ("silent_since", "seconds"),
    [(None, 17.0), (0.0, 2.0), (-1.5, 0.5), (3.0, 5.0)],
    ids=["heard", "silent from now on", "silent before", "silent later"],
)
def test_workers_checkpoint_on_their_own_if_group_does_not_respond(
    node: Node, job: AgentConfig, clock: Any, link: Link, journal: Any,
    silent_since: float | None, seconds: float,
) -> None:  # fmt: skip
    """Checkpoints start two seconds after the coordinator's last message, or later in any case."""
    workers = Workers()
    node.attach_workers(workers)
    Interruption(job, clock, journal, node)
    begun = clock.time
    if silent_since is not None:
        since = begun + silent_since
        if silent_since <= 0:
            link.silent_since = since
        else:
            clock.call_after(silent_since, lambda: setattr(link, "silent_since", since))
    clock.on_signals[signal.SIGTERM](signal.SIGTERM)
    clock.run_until(lambda: bool(workers.stops), 60.0)
    (stop,) = workers.stops
    assert (stop.generation, stop.checkpoint_first) == (FIRST, True)
    assert clock.time - begun == pytest.approx(seconds)
    assert stop.limit_s == pytest.approx(job.grace_s - (clock.time - begun))


def test_checkpoint_request_is_sent_to_workers_only_once(
    node: Node, job: AgentConfig, clock: Any, link: Link, journal: Any
) -> None:
    workers = Workers()
    node.attach_workers(workers)
    Interruption(job, clock, journal, node)
    clock.on_signals[signal.SIGTERM](signal.SIGTERM)
    told = StopWorkers(
        FIRST, "a node is preempted", checkpoint_first=True, checkpoint_at=8, limit_s=30.0
    )
    node.received(told)
    link.silent_since = clock.time
    clock.run_until(lambda: False, 10.0)
    assert workers.stops == [told]


@pytest.mark.parametrize("what", ["all have saved", "the coordinator is lost", "time is over"])
def test_checkpointed_node_waits_for_other_nodes(
    node: Node, job: AgentConfig, clock: Any, link: Link, journal: Any, what: str
) -> None:
    node.attach_workers(Workers())
    node.preempt("got SIGTERM")
    begun, over = clock.time, []
    if what == "all have saved":
        clock.call_after(3.0, lambda: over.append(what))
    elif what == "the coordinator is lost":
        clock.call_after(1.0, lambda: setattr(link, "silent_since", clock.time))
        clock.call_after(3.001, lambda: None)
    services: Any = SimpleNamespace(loop=clock, journal=journal)
    leaving = Leaving(job, services, node)  # type: ignore[arg-type]
    code, _ = leaving.as_preempted(Workers(), GenerationResult(), lambda: bool(over))
    assert link.sent[-1] == NodeLeaving("it is preempted (got SIGTERM)", waits=True)
    assert code == EXIT_PREEMPTED
    seconds = job.grace_s if what == "time is over" else 3.0
    assert clock.time - begun == pytest.approx(seconds, abs=0.01)


def test_preempted_node_with_stopped_workers_is_not_blamed(
    node: Node, job: AgentConfig, clock: Any, link: Link, journal: Any
) -> None:
    """The node leaves immediately: its workers have not saved, and their exits are not failures."""
    workers = Workers()
    workers.all_exited_with_0 = False
    node.attach_workers(workers)
    node.preempt("got SIGTERM")
    stopped = Failure(
        rank=0, local_rank=0, host="host", pid=1, exitcode=-signal.SIGTERM, at=0.0,
        stop_signal=signal.SIGTERM, report=None, last_lines=(), evidence="", log="",
    )  # fmt: skip
    begun = clock.time
    services: Any = SimpleNamespace(loop=clock, journal=journal)
    leaving = Leaving(job, services, node)  # type: ignore[arg-type]
    code, _ = leaving.as_preempted(workers, GenerationResult((stopped,)), lambda: False)
    assert (code, clock.time) == (143, begun)
    assert link.sent[-1] == NodeLeaving("it is preempted (got SIGTERM)")
    assert node.end is None
