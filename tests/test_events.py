"""Events are written as JSON, and have a readable description."""

import json
from pathlib import Path

import pytest
from documentation import events

from relight.events import event_types
from relight.events.event_text import describe

EXAMPLES = [
    event_types.Formed(0, 0, 1, 2, 8, "127.0.0.1", 1234, "start"),
    event_types.WorkerStarted(1, 5, 4321),
    event_types.WorkerExited(1, -9),
    event_types.WorkersFrozen(True),
    event_types.SignalReceived(15),
    event_types.GroupStopped(2, "node3 was lost"),
    event_types.ProcessRemains(77, "sleep", "nobody", True),
    event_types.SpawnerLost(-9),
    event_types.PreloadStarted(77, "torch"),
    event_types.WarmProcessTaken(77, 1200, 95.0, 3),
    event_types.WarmProcessUnfit(77, "umask is 0022, but was 0077"),
    event_types.PreloadReady(77, 1200, 1.5, 210.0, "mine yours"),
    event_types.PreloadWithout("wandb", "wandb starts a thread", 0.4, True),
    event_types.PreloadUnfit("it can't be started", False),
    event_types.WorkersForked(False, "it is not ready"),
    event_types.InternalErrorEvent(
        "a message of 10.0.0.3:41234", "KeyError: 'x' (at core/ranks.py:12)"
    ),
    event_types.Tick(),
    event_types.Restarting(1, 3, "rank 1 was killed"),
    event_types.HealthChecked(0.5, "disk: /tmp has 3 MiB free, less than 1 GiB"),
    event_types.RanksSlow((5,), ("gpu-03",), 0.28, 0.22, 1.7e9, "rank 5 on gpu-03 is 28% slower"),
    event_types.RanksReplaced(1, (2,), 7, 0.21),
    event_types.NotRestarting("all 3 restarts are used up"),
    event_types.StoreReached(0, 1, 8),
    event_types.FailureNoticed(0, 1, 0.002),
    event_types.StepsReported(0, 41, 12.5, 60.0),
    event_types.CheckpointFound(0, 1.7e9),
    event_types.StateChanged("link", "joining", "connected", "GenerationFormed"),
    event_types.GroupBegan("job", "0a1b", {"min_nodes": 1}),
    event_types.GroupStep("job", 1.5, {"type": "tick"}, [{"type": "drop", "node": "a"}]),
    event_types.Ended(0, "all workers succeeded"),
]


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda e: type(e).__name__)
def test_event_json_has_name_and_all_fields(event: event_types.Event) -> None:
    """A line in the event log contains all fields of an event, which also has a description."""
    line = json.loads(event_types.format_line(event_types.LoggedEvent(7, 1.5, 2.5, event, "a:1:7")))
    fields = json.loads(json.dumps(event._asdict()))
    assert line == {
        "v": 2, "n": 7, "t": 1.5, "time": 2.5, "stimulus": "a:1:7",
        "event": type(event).__name__, **fields,
    }  # fmt: skip
    assert describe(event)


def test_restart_is_described_with_its_budget() -> None:
    restart = event_types.Restarting(2, 3, "rank 1 failed")
    assert describe(restart) == "restart 2 of 3: rank 1 failed"
    budget = "restart 2, 1 of 3 within 1 h in 2.0 s"
    assert describe(restart._replace(budget=budget)) == f"{budget}: rank 1 failed"


def test_every_event_type_has_example_and_description() -> None:
    assert {type(event) for event in EXAMPLES} == set(event_types.Event.__args__)


@pytest.mark.parametrize("path", events.PAGES, ids=str)
def test_events_page_is_up_to_date(path: Path) -> None:
    """`python -m documentation.events` writes it."""
    assert path.read_text() == events.page()


def test_field_descriptions_match_event_fields() -> None:
    used = {
        f"{name}.{field}" if f"{name}.{field}" in events.FIELDS else field
        for name, kind in events.kinds().items()
        for field in kind._fields
    }
    assert used == events.FIELDS.keys()


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("wandb starts a thread", "a thread; each worker imports it itself (0.4 s)"),
        ("it can't be imported: SystemExit(3)", "it can't be imported: SystemExit(3)"),
    ],
)
def test_preload_cost_is_shown_only_for_importable_modules(reason: str, end: str) -> None:
    """A module's cost per worker is reported only if a worker can import it."""
    text = describe(event_types.PreloadWithout("wandb", reason, 0.4, True))
    assert text.endswith(end)
