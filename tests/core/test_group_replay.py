"""Recorded group steps can be replayed."""

import json
from collections.abc import Callable

import pytest
from plays import Table, record, table

from relight.base.fields import Malformed
from relight.core.group.group_replay import GroupRecorder, replay
from relight.core.group.group_types import GroupSettings, Received
from relight.core.group.messages import NodeReady, WorkerFailed
from relight.events import event_lines, event_types
from relight.events.event_lines import Line

PLAY = """
    0 a joins
    1 -
    1 b joins
    -> form 0: a b
    2 b lost
    -> stop 0: a
    2.1 a ready
    5 c joins
    -> form 1: a c
    6 a failed
    -> stop 1: a c
    7 a ends
    7 c ready
    -> form 2 restart 1: a c
    8 c leaves
    -> stop 2: a
"""


def record_log(play: Callable[[Table], object], played: Table) -> list[Line]:
    """Return the event log of a play, with its recorded steps."""
    written: list[Line] = []

    def write(event: event_types.Event) -> None:
        number = len(written)
        line = event_lines.read(
            event_types.format_line(event_types.LoggedEvent(number, number, number, event))
        )
        assert line is not None
        written.append(line)

    recorder = GroupRecorder(
        "job", played.settings, played.group._formation.leases.numbers.origin, write
    )
    step = played.group.step

    def watched(event: object, now: float) -> object:
        effects = step(event, now)  # type: ignore[arg-type]
        recorder.step(event, now, effects)  # type: ignore[arg-type]
        return effects

    played.group.step = watched  # type: ignore[method-assign, assignment]
    play(played)
    return written


@pytest.fixture(scope="module")
def log() -> list[Line]:
    return record_log(lambda played: played.play(PLAY), table(2, 2))


def test_replay_reproduces_recorded_effects(log: list[Line]) -> None:
    steps = list(replay(log))
    assert len(steps) == len(log) - 1
    assert all(step.recorded is None for step in steps)
    assert steps[-1].job == "job"
    assert any("generationformed generation.id.number=2" in e for s in steps for e in s.effects)
    assert any(step.input.startswith("nodelost b") for step in steps)
    assert any(step.input == "tick" for step in steps)


def test_replay_shows_which_effects_differ_from_the_recording(log: list[Line]) -> None:
    number = next(n for n, line in enumerate(log) if line.fields.get("effects"))
    text = json.loads(log[number].text)
    text["effects"].pop()
    other = event_lines.read(json.dumps(text))
    assert other is not None
    steps = list(replay([*log[:number], other, *log[number + 1 :]]))
    differing = [step for step in steps if step.recorded is not None]
    assert [step.number for step in differing] == [number]
    assert len(differing[0].recorded or ()) == len(differing[0].effects) - 1


def test_replay_preserves_the_complete_failure_record() -> None:
    """A node's reports pass through the message codec without changing any decision."""
    played = Table(GroupSettings(1, 1, 0))

    def play(played: Table) -> None:
        played.play("0 a joins\n-> form 0: a")
        failed = record(host="a")._replace(last_lines=("x\x1b[0m" * 30,), evidence="out of memory")
        formed = played.last["a"].generation.id
        played.step(Received("a", WorkerFailed(formed, "a worker failed on a")))
        played.step(Received("a", NodeReady(formed, 0, (failed,), ())))

    steps = list(replay(record_log(play, played)))
    assert "jobended exit_code=7" in steps[-1].effects[0]
    assert all(step.recorded is None for step in steps)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"input": None}, "step 1 has no input"),
        ({"now": "x"}, "step 1 has no time"),
        ({"input": {"type": "received", "node": "a", "message": {"type": "bogus"}}},
         "step 1: no message of type 'bogus'"),
        ({"job": "other"}, "step 1 belongs to a group whose start is not in the log"),
    ],
)  # fmt: skip
def test_replay_rejects_log_without_recorded_steps(
    log: list[Line], changes: dict[str, object], why: str
) -> None:
    broken = log[1]._replace(fields={**log[1].fields, **changes})
    with pytest.raises(Malformed, match=why):
        list(replay([log[0], broken]))


def test_replay_rejects_log_with_missing_events() -> None:
    """If a step were missing, the group would decide differently."""
    texts = [json.dumps({"n": n, "t": 0.0, "time": 0.0, "event": "Tick"}) for n in (1, 2, 5)]
    lines = [line for text in texts if (line := event_lines.read(text)) is not None]
    with pytest.raises(Malformed, match="events 3 to 4 are not in the log"):
        list(replay(lines))
