"""Reading, filtering and formatting lines from the event log."""

import pytest

from relight.events import event_lines, event_types
from relight.events.event_lines import Line, Selection

LOG = [
    event_types.Formed(0, 0, 1, 2, 4, "10.0.0.1", 1234, "start"),
    event_types.WorkerStarted(0, 2, 70),
    event_types.WorkerStarted(1, 3, 71),
    event_types.RanksSlow((3,), ("b",), 0.3, 0.2, 1.7e9, "rank 3 is slow"),
    event_types.WorkerExited(1, -9),
    event_types.WorkerExited(0, -15),
    event_types.Formed(1, 1, 0, 2, 4, "10.0.0.1", 1235, "rank 3 was killed"),
    event_types.WorkerStarted(0, 0, 80),
    event_types.WorkerStarted(1, 1, 81),
    event_types.WorkerExited(1, 0),
]


def lines() -> list[Line]:
    texts = [
        event_types.format_line(event_types.LoggedEvent(n, n, 100.0 + n, e))
        for n, e in enumerate(LOG)
    ]
    found = [event_lines.read(text) for text in texts]
    return [line for line in found if line is not None]


@pytest.mark.parametrize("number", range(len(LOG)))
def test_event_log_line_round_trips(number: int) -> None:
    assert event_lines.parse_event(lines()[number]) == LOG[number]


@pytest.mark.parametrize(
    ("names", "since", "rank", "expected"),
    [
        ((), None, None, list(range(10))),
        (("Formed",), None, None, [0, 6]),
        ((), 107.5, None, [8, 9]),
        ((), None, 3, [2, 3, 4]),
        ((), None, 2, [1, 5]),
        ((), None, 1, [8, 9]),
        (("WorkerExited",), 105.0, 2, [5]),
        ((), None, 9, []),
    ],
)  # fmt: skip
def test_event_log_lines_are_filtered_by_name_time_and_rank(
    names: tuple[str, ...], since: float | None, rank: int | None, expected: list[int]
) -> None:
    """The rank is taken from the start event, even for events that only name the local rank. After
    a restart, the rank may be on another node.
    """
    selection = Selection(frozenset(names), since, rank)
    assert [n for n, line in enumerate(lines()) if selection.wants(line)] == expected


def test_event_log_lines_are_filtered_by_stimulus() -> None:
    texts = [
        event_types.format_line(event_types.LoggedEvent(n, n, n, event, f"a:1:{n // 4}"))
        for n, event in enumerate(LOG)
    ]
    found = [line for text in texts if (line := event_lines.read(text)) is not None]
    selection = Selection(frozenset({"WorkerStarted"}), None, None, "a:1:0")
    assert [n for n, line in enumerate(found) if selection.wants(line)] == [1, 2]


@pytest.mark.parametrize(
    "text", ["", "[]", "7", "{", "{}", '{"event": 7, "t": 1, "time": 1}', '{"event": "Ended"}',
             '{"event": "Ended", "t": "x", "time": 1}',
             '{"v": "1", "event": "E", "t": 1, "time": 1}'],
)  # fmt: skip
def test_malformed_event_log_lines_are_skipped(text: str) -> None:
    assert event_lines.read(text) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"v": 1, "t": 1, "time": 1, "event": "Ended", "exit_code": 3, "reason": "x\\u001b[1m"}',
         "Ended            the job ended with exit code 3: x\ufffd[1m"),
        ('{"v": 2, "t": 1, "time": 1, "event": "Moved", "to": "b", "at": 3}',
         'Moved            at=3 to="b"'),
        ('{"v": 2, "t": 1, "time": 1, "event": "Ended", "code": 3}', "Ended            code=3"),
        ('{"t": 1, "time": 1, "event": "WorkersFrozen", "frozen": true}',
         "WorkersFrozen    workers are frozen: lease expired"),
    ],
)  # fmt: skip
def test_event_log_lines_from_other_versions_are_shown_verbatim(text: str, shown: str) -> None:
    """Even so, no line can control the terminal."""
    line = event_lines.read(text)
    assert line is not None
    assert event_lines.shown(line) == shown
