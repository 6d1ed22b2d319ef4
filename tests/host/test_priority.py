"""The priority of background work."""

import os
import subprocess
from collections.abc import Iterator

import pytest

from relight.host import linux, priority


@pytest.fixture
def idle_process() -> Iterator[int]:
    # In the session of the tests, the priority of all of them would change (sched(7), autogroup).
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        yield process.pid
        process.kill()


def _raise(pid: int, seconds: float) -> float | None:
    return priority.raise_step_by_step(pid, seconds, stays_low=True)


@pytest.mark.needs_root
def test_starved_background_work_moves_from_idle_priority_to_nice_19(idle_process: int) -> None:
    limit_s = priority.STARVED_S
    assert _raise(idle_process, limit_s - 1) == limit_s
    assert os.sched_getscheduler(idle_process) == os.SCHED_IDLE
    assert _raise(idle_process, limit_s) is None
    assert os.sched_getscheduler(idle_process) == os.SCHED_OTHER
    assert os.getpriority(os.PRIO_PROCESS, idle_process) == 19


@pytest.mark.needs_root
def test_background_work_that_gets_cpu_time_keeps_idle_priority(
    idle_process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_s = priority.STARVED_S
    monkeypatch.setattr(linux, "usage", lambda _: (limit_s / 2, 0, 0))
    assert _raise(idle_process, limit_s) == 2 * limit_s
    assert os.sched_getscheduler(idle_process) == os.SCHED_IDLE
    assert _raise(idle_process, 3 * limit_s) is None


def test_paced_background_work_uses_little_of_a_busy_cpu() -> None:
    """It uses a quarter of an idle CPU, and 1 % of a shared one."""
    assert priority.pause_s(0.1, 0.0) == pytest.approx(0.3)
    assert priority.pause_s(0.1, 0.1) == priority.pause_s(0.1, 5.0) == pytest.approx(10.3)
