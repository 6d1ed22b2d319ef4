"""Inspections of workers that print tracebacks: timing and findings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.core.diagnosis.printed_traceback import PrintedTraceback, Program


@pytest.mark.parametrize(
    ("seen", "went_on"),
    [
        (Program.RUNS, True),
        (Program.ENDS, False),
        (Program.LEFT, None),
    ],
)
def test_inspection_shows_whether_the_program_continued(
    seen: Program, went_on: bool | None
) -> None:
    core = PrintedTraceback()
    core.printed(5.0)
    assert core.deadline() == 5.0
    core.on_inspected(seen, 5.001)
    assert (core.at, core.went_on, core.deadline()) == (5.0, went_on, None)


def test_unreadable_worker_is_inspected_again_a_few_times() -> None:
    core, looks = PrintedTraceback(), 0
    core.printed(5.0)
    while (due := core.deadline()) is not None:
        core.on_inspected(Program.UNSEEN, due)
        looks += 1
    assert (looks, core.went_on) == (4, None)
    core.printed(9.0)
    core.on_inspected(Program.UNSEEN, 9.0)
    core.on_inspected(Program.ENDS, 9.25)
    assert core.went_on is False


def test_first_inspection_records_the_current_output_size() -> None:
    core = PrintedTraceback()
    core.printed(5.0)
    core.on_inspected(Program.ENDS, 5.001, 800)
    core.on_inspected(Program.ENDS, 5.002, 900)
    assert core.size == 800


def test_worker_printing_many_tracebacks_is_inspected_four_times_a_second() -> None:
    core, looks = PrintedTraceback(), 0
    for number in range(1000):
        now = number / 1000
        core.printed(now)
        if (due := core.deadline()) is not None and due <= now:
            core.on_inspected(Program.RUNS, now)
            looks += 1
    assert looks == 4
    assert core.went_on is None
    assert core.deadline() == 1.0
    core.on_inspected(Program.ENDS, 1.0)
    assert (core.at, core.went_on) == (0.999, False)


def test_outcome_of_traceback_is_unknown_if_worker_exits_before_inspection() -> None:
    core = PrintedTraceback()
    core.printed(1.0)
    core.on_inspected(Program.RUNS, 1.0)
    core.printed(1.1)
    core.worker_ended()
    assert (core.at, core.went_on, core.deadline()) == (1.1, None, None)


@given(
    st.lists(st.tuples(st.sampled_from(["printed", "looked", "unseen", "ended"]), st.floats(0, 1)))
)
def test_traceback_inspection_invariants_hold_for_any_order_of_events(
    events: list[tuple[str, float]],
) -> None:
    core, now = PrintedTraceback(), 0.0
    for event, later in events:
        now += later
        if event == "printed":
            core.printed(now)
        elif event == "looked":
            core.on_inspected(Program.RUNS, now)
        elif event == "unseen":
            core.on_inspected(Program.UNSEEN, now)
        else:
            core.worker_ended()
        core.check()
