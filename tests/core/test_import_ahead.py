"""When imports are done ahead, done again, and waited for."""

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


def test_imports_are_complete_at_first_step_and_not_while_data_is_read() -> None:
    """Torch, 20 s of data, then the model, which imports 850 modules more."""
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
    ids=["no step ever", "after a failure", "without torch"],
)
def test_imports_without_a_step_are_complete_after_silence(seen: WorkerImports) -> None:
    assert are_complete(seen)
    assert not are_complete(seen._replace(quiet_s=SETTLE_S / 2))
    assert not are_complete(NOTHING._replace(is_restarted=True))


def test_job_without_visible_step_is_warm_within_a_minute() -> None:
    """As a script that updates its parameters by hand: ten seconds of imports, then silence."""
    assert are_complete(TRAINS._replace(age_s=40.0, quiet_s=30.0))


def test_process_that_lacks_many_modules_is_replaced() -> None:
    assert pays_to_replace(lacking=850, modules=1000, quiet_s=QUIET_S, replaced=0)
    assert not pays_to_replace(lacking=850, modules=1000, quiet_s=QUIET_S / 2, replaced=0)
    assert not pays_to_replace(lacking=1, modules=1000, quiet_s=1e6, replaced=0)
    assert not pays_to_replace(lacking=0, modules=0, quiet_s=1e6, replaced=0)


def test_worker_importing_for_ever_replaces_few_processes() -> None:
    """A new module each minute for a day."""
    modules, replaced, lacking = 300, 0, 0
    for _ in range(24 * 60):
        lacking += 1
        if pays_to_replace(lacking, modules, 60.0, replaced):
            modules, lacking, replaced = modules + lacking, 0, replaced + 1
    assert 1 <= replaced <= 6


def play(rates: list[float], expected_s: float | None, *, low: bool = False) -> float:
    """Return after how many seconds a job gives up waiting for a process that began a second
    before, and imports one module for each `1 / rate` seconds in the first, second … second;
    infinity if it is awaited until it is done.
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
def test_import_that_ends_before_a_cold_start_is_awaited(low: bool) -> None:
    """One at a constant rate, and one whose modules differ in size."""
    assert play([10.0] * 11, 11.0, low=low) == float("inf")
    assert play([3.0] * 9 + [73.0] * 2, 11.0) == float("inf")


def test_single_slow_module_is_awaited_until_it_is_late() -> None:
    """As slow_import.py: a module that takes 30 s; the job before has taken 31 s."""
    assert play([0.0] * 29 + [100.0], 31.0) == float("inf")
    assert play([0.0] * 1000, 31.0) == 30.0


def test_starving_import_is_not_awaited() -> None:
    """At the lowest priority beside a busy job; where its usual time is known, and where not."""
    assert play([0.5] * 200, 11.0, low=True) <= 3.0
    assert play([0.5] * 200, None, low=True) == 0.0


def test_import_of_unknown_length_is_awaited_for_a_while() -> None:
    assert play([0.0] * 1000, None) == 20.0
