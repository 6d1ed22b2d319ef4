"""A node's lane in the timeline, built from its events."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from relight.core.status import timeline
from relight.core.status.timeline import Bar, GenerationRow, Happened, Mark, TimedEvent
from relight.events.event_types import (
    CheckpointFound,
    Ended,
    Event,
    Formed,
    GroupStopped,
    Restarting,
    SignalReceived,
    StepsReported,
    StoreReached,
    WorkerExited,
    WorkersFrozen,
    WorkerStarted,
)


def formed(number: int, nodes: int = 1, cause: str = "start") -> Formed:
    return Formed(number, 0, 0, nodes, 2 * nodes, "n1", 1, cause)


def records(*events: Event) -> list[TimedEvent]:
    """Return the events with times. The first is at 1, and each of the others a second later."""
    return [TimedEvent(float(at), event) for at, event in enumerate(events, 1)]


START = (formed(0), WorkerStarted(0, 0, 11), WorkerStarted(1, 1, 12))
FAILS = (WorkerExited(1, 1), WorkerExited(0, -15))


def phases(*events: Event) -> list[tuple[int, str, float, float | None]]:
    return [tuple(bar) for bar in timeline.lane(records(*events), 0.0).bars]


def test_timeline_shows_one_bar_for_each_phase_of_a_restart() -> None:
    assert phases(*START, *FAILS, formed(1), WorkerStarted(0, 0, 13)) == [
        (-1, "rendezvous", 0.0, 1.0),
        (0, "spawn", 1.0, 3.0),
        (0, "running", 3.0, 4.0),
        (0, "teardown", 4.0, 5.0),
        (0, "rendezvous", 5.0, 6.0),
        (1, "spawn", 6.0, 7.0),
        (1, "running", 7.0, None),
    ]


def test_workers_count_as_productive_from_their_first_step() -> None:
    """A first step from an older generation doesn't count."""

    def bars(first_step: float) -> list[tuple[str, float, float | None]]:
        return [bar[1:] for bar in timeline.lane(records(*START), 0.0, first_step).bars]

    before = [("rendezvous", 0.0, 1.0), ("spawn", 1.0, 3.0)]
    assert bars(5.0) == [*before, ("running", 3.0, 5.0), ("productive", 5.0, None)]
    assert bars(0.5) == [*before, ("running", 3.0, None)]


def test_timeline_marks_only_the_failed_worker() -> None:
    """Workers that were stopped because of the failure aren't marked."""
    marks = timeline.lane(records(*START, *FAILS), 0.0).marks
    assert marks == (Mark(4.0, "failure", "local rank 1 exited with code 1"),)


@pytest.mark.parametrize(
    ("events", "last"),
    [
        ((GroupStopped(0, "a node came"),), Bar(0, "teardown", 4.0, None)),
        ((SignalReceived(15),), Bar(0, "teardown", 4.0, None)),
        ((WorkersFrozen(True),), Bar(0, "frozen", 4.0, None)),
        ((WorkersFrozen(True), WorkersFrozen(False)), Bar(0, "running", 5.0, None)),
        ((WorkerExited(0, 0), WorkerExited(1, 0)), Bar(0, "rendezvous", 5.0, None)),
        ((WorkerExited(0, 0), Ended(0, "ok")), Bar(0, "running", 3.0, 5.0)),
    ],
    ids=["stopped", "signal", "frozen", "resumed", "done", "ended"],
)
def test_events_during_a_run_start_new_timeline_bars(events: tuple[Event, ...], last: Bar) -> None:
    assert timeline.lane(records(*START, *events), 0.0).bars[-1] == last


def test_store_and_worker_events_split_worker_time_into_phases() -> None:
    """Events recorded after the workers' exit refer to earlier moments. The clock for `t` is 100 s
    behind.
    """
    events: list[tuple[float, Event]] = [
        (1.0, formed(0)), (2.0, WorkerStarted(0, 0, 11)), (2.0, WorkerStarted(1, 1, 12)),
        (5.0, StoreReached(0, 1, 2)),
        (6.0, StoreReached(0, 2, 2)), (20.0, WorkerExited(1, 1)), (21.0, WorkerExited(0, -15)),
        (21.0, StepsReported(0, 7, -92.0, -81.0)), (21.0, CheckpointFound(0, 15.0)),
    ]  # fmt: skip
    found = timeline.lane([TimedEvent(at, event, at - 100.0) for at, event in events], 0.0)
    assert [(bar.phase, bar.began) for bar in found.bars] == [
        ("rendezvous", 0.0), ("spawn", 1.0), ("imports", 2.0), ("init", 5.0), ("first_step", 6.0),
        ("productive", 8.0), ("lost", 15.0), ("teardown", 20.0), ("rendezvous", 21.0),
    ]  # fmt: skip
    assert Mark(15.0, "checkpoint", "the last checkpoint") in found.marks


def test_successful_job_has_no_lost_time() -> None:
    events = (*START, WorkerExited(0, 0), WorkerExited(1, 0), CheckpointFound(0, 3.5))
    assert all(bar.phase != "lost" for bar in timeline.lane(records(*events), 0.0).bars)


def test_timeline_marks_node_arrivals_and_departures() -> None:
    found = timeline.lane(
        records(formed(0, 2), formed(1, 1, "gpu-02 was lost"), formed(2, 3, "two came")), 0.0
    )
    assert [(mark.kind, mark.text) for mark in found.marks] == [
        ("departure", "2 -> 1 nodes: gpu-02 was lost"),
        ("arrival", "1 -> 3 nodes: two came"),
    ]


def test_generation_ends_when_the_next_one_begins() -> None:
    rows = timeline.generations(records(*START, *FAILS, formed(1, 1, "why"), Ended(0, "ok")))
    assert rows == [
        GenerationRow(0, 0, 1.0, 6.0, 1, 2, "start"),
        GenerationRow(1, 0, 6.0, 7.0, 1, 2, "why"),
    ]


def test_failure_reported_by_all_nodes_appears_once_in_the_timeline() -> None:
    early = [
        TimedEvent(5.0, Restarting(1, 3, "rank 1 raised", "restart 1 of 3")),
        TimedEvent(9.0, Ended(1, "too often")),
    ]
    late = [TimedEvent(5.5, Restarting(1, 3, "rank 1 raised", "restart 1 of 3"))]
    assert timeline.failures([late, early]) == [
        Happened(5.0, "rank 1 raised; restart 1 of 3"),
        Happened(9.0, "the end, exit code 1: too often"),
    ]
    assert not timeline.failures([[TimedEvent(1.0, Ended(0, "all succeeded"))]])


EVENTS = some.sampled_from(
    [formed(0), formed(1, 2), *START, *FAILS, WorkerExited(0, 0), GroupStopped(0, ""),
     WorkersFrozen(True), WorkersFrozen(False), SignalReceived(2), Ended(1, "x"), Ended(0, "y"),
     StoreReached(0, 1, 2), StoreReached(0, 2, 2), StepsReported(0, 5, 40.0, 60.0),
     CheckpointFound(0, 50.0)]
)  # fmt: skip


@given(some.lists(some.tuples(some.floats(0, 100), EVENTS), max_size=30))
def test_timeline_bars_are_well_formed_for_any_event_log(
    found: list[tuple[float, Event]],
) -> None:
    """The clock may go backwards, and events may be missing."""
    bars = timeline.lane([TimedEvent(at, event) for at, event in found], 50.0).bars
    assert all(bar.ended is not None for bar in bars[:-1])
    assert all(bar.ended is None or bar.ended >= bar.began for bar in bars)
