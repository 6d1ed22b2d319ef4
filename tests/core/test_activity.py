"""Hang detection: the rules behind --hang-timeout, applied to simulated observations."""

from collections.abc import Callable, Iterator

import pytest

from relight.base.values import HangTimeout, parse_hang_timeout
from relight.core.workers.hang_detector import Activity, Observation, Usage

EVERY_S = 5.0
FIXED = HangTimeout(60.0, 60.0, adapts=False)
HOUR_S = 3600.0


class Played:
    """A worker's counters, and the times when it was found idle."""

    def __init__(self, limits: HangTimeout | None, every_s: float = EVERY_S) -> None:
        assert limits is not None
        self.activity = Activity(limits, every_s)
        self.every_s = every_s
        self.now = 0.0
        self.cpu_s, self.io_bytes, self.faults, self.printed = 0.0, 0, 0, 0
        self.quiet_at: list[float] = []
        self.observe()

    def observe(self) -> None:
        usage = {0: Usage(self.cpu_s, self.io_bytes, self.faults)}
        if self.activity.observe(Observation(usage, (self.printed, 0)), self.now):
            self.quiet_at.append(self.now)

    def spend(self, seconds: float, *, cpu: float = 0.0, io: float = 0.0, faults: float = 0.0,
              prints: float = 0.0) -> "Played":  # fmt: skip
        """Let time pass at this usage per second. `prints` is the number of seconds between two
        lines.
        """
        begin = self.now
        while self.now < begin + seconds:
            self.now += self.every_s
            self.cpu_s += cpu * self.every_s
            self.io_bytes += int(io * self.every_s)
            self.faults += int(faults * self.every_s)
            if prints and (self.now - begin) % prints < self.every_s:
                self.printed += 80
            self.observe()
        return self


def test_idle_workers_are_reported_as_hung_after_timeout() -> None:
    played = Played(FIXED).spend(600, cpu=1.0, io=1e6).spend(100)
    assert played.quiet_at[0] == 660
    assert played.quiet_at[-1] == 700


@pytest.mark.parametrize(
    "use",
    [{"cpu": 1.0}, {"io": 10_000.0}, {"faults": 1000.0}, {"prints": 30.0}],
    ids=["CPU time", "I/O", "page faults", "output"],
)
def test_active_worker_is_not_reported_as_hung(use: dict[str, float]) -> None:
    assert not Played(FIXED).spend(HOUR_S, **use).quiet_at


def test_worker_that_only_wakes_up_occasionally_counts_as_idle() -> None:
    assert Played(FIXED).spend(100, cpu=0.03, io=300, faults=5).quiet_at


def test_busy_worker_is_reported_as_hung_after_its_regular_output_stops() -> None:
    played = Played(FIXED).spend(600, cpu=1.0, prints=5).spend(100, cpu=1.0)
    assert played.quiet_at[0] == 660


def test_job_that_never_prints_is_not_hung_while_it_computes() -> None:
    assert not Played(FIXED).spend(4 * HOUR_S, cpu=1.0).quiet_at


def test_output_timeout_scales_with_longest_gap_between_lines() -> None:
    played = Played(FIXED).spend(600, cpu=1.0, prints=30).spend(400, cpu=1.0)
    assert played.quiet_at[0] == 900, "10 times the 30 s between two lines"


def test_auto_timeout_adapts_to_longest_pause() -> None:
    auto = parse_hang_timeout("auto")
    played = Played(auto).spend(60, cpu=1.0).spend(120).spend(60, cpu=1.0).spend(1100)
    assert not played.quiet_at, "10 times 120 s"
    assert played.spend(200).quiet_at


def test_time_while_workers_are_frozen_does_not_count_as_idle() -> None:
    played = Played(FIXED).spend(50)
    for _ in range(100):
        played.now += EVERY_S
        assert played.activity.observe(None, played.now) is None
    assert not played.spend(55).quiet_at
    assert played.spend(20).quiet_at


def test_machine_suspension_is_not_reported_as_a_hang() -> None:
    played = Played(FIXED).spend(50)
    played.now += HOUR_S
    assert not played.spend(60).quiet_at


def test_worker_exit_counts_as_activity() -> None:
    activity = Activity(FIXED, EVERY_S)
    both = {0: Usage(1.0, 0, 0), 1: Usage(1.0, 0, 0)}
    for step in range(11):
        assert activity.observe(Observation(both, (0, 0)), step * EVERY_S) is None
    for step in range(11, 22):
        seen = Observation({0: both[0]}, (0, 0))
        assert activity.observe(seen, step * EVERY_S) is None
    assert activity.observe(Observation({0: both[0]}, (0, 0)), 23 * EVERY_S)


def training(played: Played) -> None:
    played.spend(300, cpu=1.0, io=1e5, faults=500, prints=5)


def on_a_gpu(played: Played) -> None:
    """Train on data in memory: the only CPU time is spent launching kernels."""
    played.spend(300, cpu=0.9, prints=10)


def saving(played: Played) -> None:
    """Save to a slow shared file system."""
    played.spend(400, cpu=0.1, io=2e7)


def saving_from_a_buffer(played: Played) -> None:
    """Save through a buffer: the final fsync(2) shows up in no counter."""
    played.spend(60, io=1e9).spend(240)


def compiling(played: Played) -> None:
    played.spend(900, cpu=1.0, faults=2000)


def evaluating(played: Played) -> None:
    """Evaluate on a GPU without printing anything."""
    played.spend(1200, cpu=0.8)


def loading(played: Played) -> None:
    """Wait while other processes load data."""
    played.spend(600, io=1e6)


PHASES = (training, on_a_gpu, saving, saving_from_a_buffer, compiling, evaluating, loading)


def orders() -> Iterator[tuple[Callable[[Played], None], ...]]:
    for first in range(len(PHASES)):
        yield (*PHASES[first:], *PHASES[:first])


@pytest.mark.parametrize("phases", list(orders()), ids=lambda phases: phases[0].__name__)
def test_auto_timeout_tolerates_long_training_phases(
    phases: tuple[Callable[[Played], None], ...],
) -> None:
    played = Played(parse_hang_timeout("auto"))
    while played.now < 2 * HOUR_S:
        for phase in phases:
            phase(played)
    assert not played.quiet_at


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_auto_timeout_detects_hang_after_each_training_phase(
    phase: Callable[[Played], None],
) -> None:
    played = Played(parse_hang_timeout("auto"))
    training(played)
    phase(played)
    assert played.spend(HOUR_S).quiet_at


def test_auto_timeout_detects_busy_loop() -> None:
    played = Played(parse_hang_timeout("auto"))
    training(played)
    began = played.now
    assert played.spend(HOUR_S, cpu=1.0).quiet_at[0] - began == 1800


@pytest.mark.parametrize("text", ["0", "-1", "0.5", "nan", "inf", "never", "5m", "3e6"])
def test_invalid_hang_timeout_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_hang_timeout(text)


def test_hang_timeout_parses_off_auto_and_seconds() -> None:
    assert parse_hang_timeout("off") is None
    assert parse_hang_timeout("auto") == HangTimeout(300.0, 1800.0, adapts=True)
    assert parse_hang_timeout("2.5") == HangTimeout(2.5, 2.5, adapts=False)


def test_single_clock_tick_is_not_cpu_activity() -> None:
    """Waiting threads use 0.01 s now and then, which looks like 6 % between two observations."""
    played = Played(HangTimeout(3.0, 3.0, adapts=False), every_s=0.15)
    while not played.quiet_at and played.now < 60:
        played.spend(0.75).spend(0.15, cpu=0.01 / 0.15)
    assert 3.0 <= played.now < 6.0


def test_worker_using_a_tenth_of_a_cpu_is_active() -> None:
    played = Played(HangTimeout(3.0, 3.0, adapts=False), every_s=0.15)
    assert not played.spend(600, cpu=0.1).quiet_at


def test_brief_activity_resets_idle_time() -> None:
    played = Played(FIXED, every_s=1.0)
    assert not played.spend(58).spend(3, cpu=1.0).spend(58).quiet_at
