"""When modules are imported ahead of a restart, when that is repeated, and when a
job waits for it.
"""

import pytest

from relight.core.workers.import_ahead import (
    LEARN_S,
    QUIET_S,
    SETTLE_S,
    STEP_LIMIT_S,
    ImportProgress,
    WorkerImports,
    are_complete,
    pays_to_replace,
    pays_to_wait,
    why_incomplete,
)

NOTHING = WorkerImports(0, 1000.0, 1000.0, False, False, False)
TRAINS = WorkerImports(
    modules=1000,
    age_s=90.0,
    quiet_s=20.0,
    has_optimizer=True,
    has_stepped=False,
    is_restarted=False,
)


def test_imports_count_as_complete_after_first_step_not_during_data_loading() -> None:
    """The worker imports torch, reads data for 20 s, and then imports 850 more modules for the
    model.
    """
    assert not are_complete(TRAINS)
    assert not are_complete(TRAINS._replace(has_stepped=True, quiet_s=0.0))
    assert are_complete(TRAINS._replace(has_stepped=True, quiet_s=SETTLE_S))


@pytest.mark.parametrize(
    "seen",
    [
        TRAINS._replace(quiet_s=STEP_LIMIT_S),
        TRAINS._replace(is_restarted=True),
        TRAINS._replace(has_optimizer=False, age_s=LEARN_S, quiet_s=QUIET_S),
    ],
    ids=["no step", "after a failure", "without torch"],
)
def test_imports_count_as_complete_after_a_quiet_period_without_steps(seen: WorkerImports) -> None:
    assert are_complete(seen)
    assert not are_complete(seen._replace(quiet_s=SETTLE_S / 2))
    assert not are_complete(NOTHING._replace(is_restarted=True))


def test_reason_mentions_optimizer_step_only_if_one_is_expected() -> None:
    step, importing = why_incomplete(TRAINS), why_incomplete(TRAINS._replace(has_optimizer=False))
    assert step == "the first worker has not taken an optimizer step yet"
    assert importing == "the first worker may still be importing modules"
    assert why_incomplete(TRAINS._replace(has_stepped=True)) == importing


def test_imports_are_complete_within_a_minute_if_no_step_is_detected() -> None:
    """An example is a script that updates its parameters by hand. The script imports modules for
    ten seconds, then none.
    """
    assert are_complete(TRAINS._replace(age_s=40.0, quiet_s=30.0))


def test_warm_process_that_lacks_many_modules_is_replaced() -> None:
    assert pays_to_replace(lacking=850, modules=1000, quiet_s=QUIET_S, replaced=0)
    assert not pays_to_replace(lacking=850, modules=1000, quiet_s=QUIET_S / 2, replaced=0)
    assert not pays_to_replace(lacking=1, modules=1000, quiet_s=1e6, replaced=0)
    assert not pays_to_replace(lacking=0, modules=0, quiet_s=1e6, replaced=0)


def test_steady_imports_cause_few_replacements_of_the_warm_process() -> None:
    """The worker imports a new module every minute for a day."""
    modules, replaced, lacking = 300, 0, 0
    for _ in range(24 * 60):
        lacking += 1
        if pays_to_replace(lacking, modules, 60.0, replaced):
            modules, lacking, replaced = modules + lacking, 0, replaced + 1
    assert 1 <= replaced <= 6


def play(rates: list[float], expected_s: float | None, *, low: bool = False) -> float:
    """Return after how many seconds a job gives up waiting for an import, or infinity if it waits
    until the end.

    The import began a second earlier. `rates` has its speed in modules per second, one value for
    each second.
    """
    modules, imported = 100, 0.0
    for second, rate in enumerate(rates):
        imported += rate
        if imported >= modules:
            return float("inf")
        made = ImportProgress(modules, int(imported), 1.0 + second, expected_s, low)
        if not pays_to_wait(made, float(second), expected_s):
            return second
    return len(rates)


@pytest.mark.parametrize("low", [False, True])
def test_job_waits_for_import_that_is_faster_than_a_cold_start(low: bool) -> None:
    """The import proceeds at a constant rate, or its modules differ in size."""
    assert play([10.0] * 11, 11.0, low=low) == float("inf")
    assert play([3.0] * 9 + [73.0] * 2, 11.0) == float("inf")


def test_job_waits_for_single_slow_module_until_it_is_overdue() -> None:
    """A single module takes 30 s, as in slow_import.py. In the job before, the import took 31 s."""
    assert play([0.0] * 29 + [100.0], 31.0) == float("inf")
    assert play([0.0] * 1000, 31.0) == 30.0


def test_job_does_not_wait_for_import_starved_of_cpu() -> None:
    """The import runs at the lowest priority next to a busy job. Its usual duration is known in one
    case and unknown in the other.
    """
    assert play([0.5] * 200, 11.0, low=True) <= 3.0
    assert play([0.5] * 200, None, low=True) == 0.0


def test_job_waits_briefly_for_import_of_unknown_duration() -> None:
    assert play([0.0] * 1000, None) == 20.0
