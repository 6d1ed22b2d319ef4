"""Supervision of one node's workers: why, when and with which signal they end."""

import signal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relight.core.failure import WorkerEnd
from relight.core.workers.supervision import (
    NOTICE_S,
    UNKILLABLE_AFTER_S,
    UNSTOPPED,
    Effect,
    Kill,
    Noticed,
    Recovering,
    SaveAndLeave,
    Signal,
    Supervision,
    SupervisionState,
    SurvivorsLeave,
    SurvivorsLeft,
    WorkersReplaced,
)
from relight.events.event_types import (
    Event,
    GroupStopped,
    SignalReceived,
    SpawnerLost,
    Tick,
    WorkerExited,
)

TERM, INT, KILL = int(signal.SIGTERM), int(signal.SIGINT), int(signal.SIGKILL)

# A scenario: events with their times, the expected effects, and the resulting state.
Played = Event | SaveAndLeave | Noticed | Recovering
Play = list[tuple[float, Played, list[Effect], SupervisionState]]

PLAYS: dict[str, tuple[int, float, Play]] = {
    "all end well": (
        2,
        30,
        [
            (1, WorkerExited(1, 0), [], SupervisionState.RUNNING),
            (2, WorkerExited(0, 0), [], SupervisionState.ENDED),
        ],
    ),
    "one fails, the rest obey": (
        3,
        30,
        [
            (1, WorkerExited(2, 0), [], SupervisionState.RUNNING),
            (2, WorkerExited(1, 7), [Signal((0,), TERM)], SupervisionState.STOPPING),
            (3, WorkerExited(0, -15), [], SupervisionState.ENDED),
        ],
    ),
    "one fails, another is stubborn": (
        2,
        30,
        [
            (10, WorkerExited(1, 7), [Signal((0,), TERM)], SupervisionState.STOPPING),
            (39, Tick(), [], SupervisionState.STOPPING),
            (40, Tick(), [Kill()], SupervisionState.KILLING),
            (41, WorkerExited(0, -9), [], SupervisionState.ENDED),
        ],
    ),
    "the only worker fails": (
        1,
        30,
        [(1, WorkerExited(0, 1), [], SupervisionState.ENDED)],
    ),
    "the agent gets a signal": (
        2,
        5,
        [
            (1, SignalReceived(INT), [Signal((0, 1), INT)], SupervisionState.STOPPING),
            (2, WorkerExited(0, 0), [], SupervisionState.STOPPING),
            (3, WorkerExited(1, 0), [], SupervisionState.ENDED),
        ],
    ),
    "two signals": (
        2,
        600,
        [
            (1, SignalReceived(TERM), [Signal((0, 1), TERM)], SupervisionState.STOPPING),
            (2, SignalReceived(INT), [Kill()], SupervisionState.KILLING),
            (2, SignalReceived(INT), [], SupervisionState.KILLING),
            (3, WorkerExited(0, -9), [], SupervisionState.KILLING),
            (3, WorkerExited(1, -9), [], SupervisionState.ENDED),
        ],
    ),
    "a signal while a failure is being cleaned up": (
        3,
        30,
        [
            (1, WorkerExited(0, 1), [Signal((1, 2), TERM)], SupervisionState.STOPPING),
            (2, SignalReceived(INT), [Signal((1, 2), INT)], SupervisionState.STOPPING),
            (3, SignalReceived(INT), [Kill()], SupervisionState.KILLING),
        ],
    ),
    "a worker in an uninterruptible call": (
        1,
        0,
        [
            (1, SignalReceived(TERM), [Signal((0,), TERM)], SupervisionState.STOPPING),
            (1, Tick(), [Kill()], SupervisionState.KILLING),
            (1 + UNKILLABLE_AFTER_S - 1, Tick(), [], SupervisionState.KILLING),
            (1 + UNKILLABLE_AFTER_S, Tick(), [], SupervisionState.ENDED),
            (99, WorkerExited(0, -9), [], SupervisionState.ENDED),
        ],
    ),
    "the spawner is killed": (
        2,
        30,
        [
            (1, WorkerExited(0, 0), [], SupervisionState.RUNNING),
            (2, SpawnerLost(-9), [], SupervisionState.ENDED),
        ],
    ),
    "one fails while the others save": (
        3,
        30,
        [
            (1, SaveAndLeave(), [], SupervisionState.SAVING),
            (2, WorkerExited(1, 7), [], SupervisionState.SAVING),
            (3, WorkerExited(0, 0), [], SupervisionState.SAVING),
            (9, WorkerExited(2, 0), [], SupervisionState.ENDED),
        ],
    ),
    "workers that save are stopped": (
        2,
        30,
        [
            (1, SaveAndLeave(), [], SupervisionState.SAVING),
            (2, WorkerExited(1, 7), [], SupervisionState.SAVING),
            (3, GroupStopped(0, "late"), [Signal((0,), TERM)], SupervisionState.STOPPING),
            (3, SaveAndLeave(), [], SupervisionState.STOPPING),
            (33, Tick(), [Kill()], SupervisionState.KILLING),
        ],
    ),
    "a signal while workers save": (
        2,
        30,
        [
            (1, SaveAndLeave(), [], SupervisionState.SAVING),
            (2, SignalReceived(TERM), [Signal((0, 1), TERM)], SupervisionState.STOPPING),
        ],
    ),
    "one exits after a notice, the others save": (
        3,
        30,
        [
            (1, Noticed([0, 1, 2]), [], SupervisionState.RUNNING),
            (2, WorkerExited(1, 85), [], SupervisionState.SAVING),
            (3, GroupStopped(0, "node2 failed"), [], SupervisionState.SAVING),
            (90, WorkerExited(2, 0), [], SupervisionState.SAVING),
            (91, WorkerExited(0, 85), [], SupervisionState.ENDED),
        ],
    ),
    "a worker of another node exits after a notice": (
        2,
        30,
        [
            (1, Noticed([0, 1]), [], SupervisionState.RUNNING),
            (2, GroupStopped(0, "node2 failed"), [], SupervisionState.SAVING),
            (3, WorkerExited(0, 85), [], SupervisionState.SAVING),
            (9, WorkerExited(1, 85), [], SupervisionState.ENDED),
        ],
    ),
    "workers save for too long after a notice": (
        2,
        30,
        [
            (1, Noticed([0, 1]), [], SupervisionState.RUNNING),
            (2, WorkerExited(1, 85), [], SupervisionState.SAVING),
            (1 + NOTICE_S, Tick(), [], SupervisionState.SAVING),
            (2 + NOTICE_S, Tick(), [Signal((0,), TERM)], SupervisionState.STOPPING),
        ],
    ),
    "workers without a handler for the notice are not waited for": (
        3,
        30,
        [
            (1, Noticed([0]), [], SupervisionState.RUNNING),
            (2, WorkerExited(1, 1), [], SupervisionState.SAVING),
            (3, WorkerExited(0, 85), [Signal((2,), TERM)], SupervisionState.STOPPING),
        ],
    ),
    "a signal while workers save after a notice": (
        2,
        30,
        [
            (1, Noticed([0, 1]), [], SupervisionState.RUNNING),
            (2, WorkerExited(1, 85), [], SupervisionState.SAVING),
            (3, SignalReceived(TERM), [Signal((0,), TERM)], SupervisionState.STOPPING),
            (33, Tick(), [Kill()], SupervisionState.KILLING),
        ],
    ),
    "survivors of a failed worker stay, and it is replaced": (
        3,
        30,
        [
            (1, SurvivorsLeave(5), [], SupervisionState.LEAVING),
            (1, WorkerExited(1, 7), [], SupervisionState.LEAVING),
            (2, GroupStopped(0, "a worker failed"), [], SupervisionState.LEAVING),
            (3, SurvivorsLeft(), [], SupervisionState.LEFT),
            (4, WorkersReplaced(), [], SupervisionState.RUNNING),
            (5, WorkerExited(1, 0), [], SupervisionState.RUNNING),
            (6, WorkerExited(0, 1), [Signal((2,), TERM)], SupervisionState.STOPPING),
        ],
    ),
    "all workers leave when another node fails": (
        2,
        30,
        [
            (1, SurvivorsLeave(5), [], SupervisionState.LEAVING),
            (2, SurvivorsLeft(), [], SupervisionState.LEFT),
            (3, WorkersReplaced(), [], SupervisionState.RUNNING),
            (4, WorkerExited(0, 1), [Signal((1,), TERM)], SupervisionState.STOPPING),
        ],
    ),
    "a hanging worker is killed, and the others stay": (
        3,
        30,
        [
            (1, SurvivorsLeave(5, (1,)), [Signal((1,), KILL)], SupervisionState.LEAVING),
            (1, WorkerExited(1, -9), [], SupervisionState.LEAVING),
            (3, SurvivorsLeft(), [], SupervisionState.LEFT),
            (4, WorkersReplaced(), [], SupervisionState.RUNNING),
        ],
    ),
    "a hanging worker can't be killed": (
        2,
        30,
        [
            (1, SurvivorsLeave(5, (1,)), [Signal((1,), KILL)], SupervisionState.LEAVING),
            (6, Tick(), [Signal((0, 1), TERM)], SupervisionState.STOPPING),
            (36, Tick(), [Kill()], SupervisionState.KILLING),
            (96, Tick(), [], SupervisionState.ENDED),
        ],
    ),
    "workers that may be saving do not leave": (
        2,
        30,
        [
            (1, Noticed([1]), [], SupervisionState.RUNNING),
            (1, SurvivorsLeave(5), [], SupervisionState.RUNNING),
        ],
    ),
    "a survivor does not leave in time": (
        3,
        30,
        [
            (1, SurvivorsLeave(5), [], SupervisionState.LEAVING),
            (1, WorkerExited(1, 7), [], SupervisionState.LEAVING),
            (5.9, Tick(), [], SupervisionState.LEAVING),
            (6, Tick(), [Signal((0, 2), TERM)], SupervisionState.STOPPING),
            (36, Tick(), [Kill()], SupervisionState.KILLING),
        ],
    ),
    "a survivor finishes while others leave": (
        3,
        30,
        [
            (1, SurvivorsLeave(5), [], SupervisionState.LEAVING),
            (1, WorkerExited(1, 7), [], SupervisionState.LEAVING),
            (2, WorkerExited(0, 0), [Signal((2,), TERM)], SupervisionState.STOPPING),
        ],
    ),
    "all survivors fail": (
        3,
        30,
        [
            (1, SurvivorsLeave(5), [], SupervisionState.LEAVING),
            (1, WorkerExited(1, 7), [], SupervisionState.LEAVING),
            (1, WorkerExited(0, 7), [], SupervisionState.LEAVING),
            (1, WorkerExited(2, -9), [], SupervisionState.ENDED),
        ],
    ),
    "the job ends while survivors wait": (
        2,
        30,
        [
            (1, SurvivorsLeave(5), [], SupervisionState.LEAVING),
            (1, WorkerExited(1, 7), [], SupervisionState.LEAVING),
            (2, SurvivorsLeft(), [], SupervisionState.LEFT),
            (3, GroupStopped(0, "it ends"), [Signal((0,), TERM)], SupervisionState.STOPPING),
        ],
    ),
    "a signal while survivors wait": (
        2,
        30,
        [
            (1, SurvivorsLeave(5), [], SupervisionState.LEAVING),
            (1, WorkerExited(1, 7), [], SupervisionState.LEAVING),
            (2, SurvivorsLeft(), [], SupervisionState.LEFT),
            (3, SignalReceived(TERM), [Signal((0,), TERM)], SupervisionState.STOPPING),
            (4, WorkersReplaced(), [], SupervisionState.STOPPING),
        ],
    ),
    "an exit that is told twice": (
        2,
        30,
        [
            (1, WorkerExited(0, 0), [], SupervisionState.RUNNING),
            (2, WorkerExited(0, 5), [], SupervisionState.RUNNING),
            (3, WorkerExited(1, 0), [], SupervisionState.ENDED),
        ],
    ),
}


@pytest.mark.parametrize("name", PLAYS)
def test_worker_events_produce_the_expected_effects_and_states(name: str) -> None:
    size, grace_s, play = PLAYS[name]
    group = Supervision(size, grace_s)
    for now, event, effects, state in play:
        assert group.step(event, now) == effects, f"{event} at {now}"
        assert group.state is state
        group.check()


def test_only_the_exit_of_the_hung_worker_is_attributed_to_the_agent() -> None:
    group = Supervision(3, 30)
    group.step(SurvivorsLeave(5, (1,)), 1.0)
    group.step(WorkerExited(1, -KILL), 2.0)
    group.step(WorkerExited(2, 1), 2.0)
    assert group.ends == {1: WorkerEnd(1, -KILL, 2.0, KILL), 2: WorkerEnd(2, 1, 2.0, 0)}


def test_exits_requested_by_the_agent_are_distinguished_from_earlier_ones() -> None:
    """Exits before the stop are distinguished from the ones it caused."""
    group = Supervision(3, 30)
    group.step(WorkerExited(1, 1), 1.0)
    group.step(WorkerExited(0, -TERM), 2.0)
    group.step(Tick(), 31.0)
    group.step(WorkerExited(2, -KILL), 32.0)
    assert group.ends == {
        1: WorkerEnd(1, 1, 1.0, 0),
        0: WorkerEnd(0, -TERM, 2.0, TERM, 1.0),
        2: WorkerEnd(2, -KILL, 32.0, KILL, 31.0),
    }
    assert group.failed


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "local ranks 0-1 are running"),
        ([WorkerExited(0, 1)], "waiting for local rank 1 to stop; it is killed in 30 s"),
        (
            [SignalReceived(TERM), SignalReceived(TERM)],
            "waiting for local ranks 0-1 to exit after SIGKILL",
        ),
        (
            [SaveAndLeave(), WorkerExited(0, 1)],
            "waiting for local rank 1 to save a checkpoint and leave",
        ),
        (
            [Noticed([1]), WorkerExited(0, 1)],
            "waiting for local rank 1 to save a checkpoint and leave, for 2 min at most",
        ),
        (
            [SurvivorsLeave(5), WorkerExited(0, 1)],
            "waiting for local rank 1 to leave the group; all workers restart in 5 s",
        ),
        (
            [SurvivorsLeave(5), WorkerExited(0, 1), SurvivorsLeft()],
            "local rank 1 waits for the next group",
        ),
        ([WorkerExited(0, 0), WorkerExited(1, 0)], "all ended"),
    ],
)
def test_every_supervision_state_has_an_explanation(events: list[Played], words: str) -> None:
    group = Supervision(2, 30)
    for event in events:
        group.step(event, 0.0)
    assert words in group.explain(0.0)


class AnyOrder(RuleBasedStateMachine):
    """Events may occur in any order. The invariants hold, and the end comes within a
    bounded time.
    """

    @initialize(size=st.integers(1, 6), grace_s=st.sampled_from([0.0, 0.5, 30.0]))
    def begin(self, size: int, grace_s: float) -> None:
        self.now, self.size = 0.0, size
        self.group = Supervision(size, grace_s)
        self.signalled: list[tuple[int, ...]] = []

    def step(self, event: Played) -> None:
        before = self.group.alive
        for effect in self.group.step(event, self.now):
            if isinstance(effect, Signal):
                assert effect.local_ranks
                assert set(effect.local_ranks) <= set(before)
                assert set(effect.local_ranks) <= set(self.group.alive)

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        due = self.group.deadline()
        if due is not None and due <= self.now:
            self.step(Tick())

    @rule(rank=st.integers(0, 5), exitcode=st.sampled_from([0, 0, 1, 7, -9, -15]))
    def a_worker_exits(self, rank: int, exitcode: int) -> None:
        if rank < self.size:
            self.step(WorkerExited(rank, exitcode))

    @rule(number=st.sampled_from([TERM, INT]))
    def a_signal_comes(self, number: int) -> None:
        self.step(SignalReceived(number))

    @rule()
    def the_workers_save(self) -> None:
        self.step(SaveAndLeave())

    @rule(rank=st.integers(0, 5))
    def a_worker_gets_a_notice(self, rank: int) -> None:
        if rank in self.group.alive:
            self.step(Noticed([rank]))

    @rule()
    def the_survivors_stay(self) -> None:
        if len(self.group.alive) > 1:
            self.step(SurvivorsLeave(5.0))
            self.step(WorkerExited(self.group.alive[0], 1))

    @rule(count=st.integers(1, 5))
    def the_hanging_ones_are_killed(self, count: int) -> None:
        if len(self.group.alive) > count:
            self.step(SurvivorsLeave(5.0, self.group.alive[:count]))

    @rule()
    def they_have_left(self) -> None:
        self.step(SurvivorsLeft())

    @rule()
    def the_next_group_forms(self) -> None:
        self.step(WorkersReplaced())

    @precondition(lambda self: self.now > 50)
    @rule()
    def the_spawner_dies(self) -> None:
        self.step(SpawnerLost(-9))

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "group"):
            self.group.check()

    def teardown(self) -> None:
        if not hasattr(self, "group"):
            return
        if self.group.state in (*UNSTOPPED, SupervisionState.LEFT):
            self.step(SignalReceived(TERM))
        for _ in range(4):
            due = self.group.deadline()
            if due is not None:
                self.now = due
                self.step(Tick())
        assert self.group.state is SupervisionState.ENDED


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=25)
TestAnyOrder = AnyOrder.TestCase
