"""Why workers import modules that a warm process should have."""

from relight.core.status.cold_cause import ColdCause
from relight.events.event_types import PreloadWithout, WarmProcessUnfit, WorkersWarm

UNFIT = WarmProcessUnfit(4711, "OMP_NUM_THREADS changed")


def test_unfit_warm_process_is_the_cause_of_a_cold_start() -> None:
    cold = ColdCause()
    cold.step(UNFIT)
    cold.step(WorkersWarm(False, "it is not ready"))
    assert cold.is_surprise
    assert cold.text() == f"can't use warm process 4711: {UNFIT.reason}"
    cold.step(WorkersWarm(False, "it is not ready"))
    assert (cold.is_surprise, cold.text()) == (False, "it is not ready")


def test_warm_workers_have_a_cause_if_a_module_that_takes_long_is_left_out() -> None:
    cold = ColdCause()
    cold.step(PreloadWithout("csv", "csv starts a thread", 0.1, asked=False))
    cold.step(WorkersWarm(True, ""))
    assert cold.text() == ""
    cold.step(PreloadWithout("lightning", "lightning reads LOCAL_RANK", 4.0, asked=False))
    expected = "each worker imports lightning itself (4 s): lightning reads LOCAL_RANK"
    assert cold.text() == expected
