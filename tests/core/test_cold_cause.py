"""Why workers had to import modules despite a warm process."""

from relight.core.status.cold_cause import ColdCause
from relight.events.event_types import PreloadWithout, WarmProcessUnfit, WorkersForked

UNFIT = WarmProcessUnfit(4711, "OMP_NUM_THREADS changed")


def test_cold_start_is_explained_by_unsuitable_warm_process() -> None:
    cold = ColdCause()
    cold.step(UNFIT)
    cold.step(WorkersForked(False, "it is not ready"))
    assert cold.is_surprise
    assert cold.text() == f"can't use warm process 4711: {UNFIT.reason}"
    cold.step(WorkersForked(False, "it is not ready"))
    assert (cold.is_surprise, cold.text()) == (False, "it is not ready")


def test_slow_module_left_out_of_warm_process_is_reported() -> None:
    cold = ColdCause()
    cold.step(PreloadWithout("csv", "csv starts a thread", 0.1, asked=False))
    cold.step(WorkersForked(True, ""))
    assert cold.text() == ""
    cold.step(PreloadWithout("lightning", "lightning reads LOCAL_RANK", 4.0, asked=False))
    expected = "each worker imports lightning itself (4 s): lightning reads LOCAL_RANK"
    assert cold.text() == expected
