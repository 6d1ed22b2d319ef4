"""The group in a simulated world with every kind of fault. `make simulate` runs more seeds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LIMIT_S

from .__main__ import play
from .mutants import MUTANTS
from .watch import Watch

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_no_simulation_seed_violates_an_invariant_or_hangs(first: int) -> None:
    """The invariants in `watch` hold throughout each run, and the job ends."""
    for seed in range(first, first + 10):
        _, _, wrong = play(seed)
        assert not wrong, wrong


@pytest.mark.parametrize(
    "seed",
    [
        8_008_351,
        8_021_866,
        8_039_925,
        8_050_320,
        8_873_896,
        202_094,
        216_425,
        220_422,
        222_215,
        803_769,
        300_884,
    ],
)
def test_seeds_that_exposed_past_bugs_pass(seed: int) -> None:
    """The seeds found these defects.

    A preempted coordinator told no one that the job had ended. A node lost while its coordinator
    was suspended was still awaited. A coordinator that had lost its last node continued although
    its registry was silent. A preempted node came back without a charged restart after its workers
    had failed, or had succeeded before the others were asked to save. The coordinating host left
    during a blip because its own workers had ended, or never left. Two generations ran after the
    coordinator changed to a host that had just started, or whose agent had given up, or whose
    nodes knew of a generation with a higher number than the last one, or while the former one was
    cut off from its registry and waited for its next event to notice that.
    """
    _, _, wrong = play(seed)
    assert not wrong, wrong


@pytest.mark.parametrize(("mode", "seed"), [("endpoint", 294), ("register", 31_296), ("", 890_995)])
def test_seeds_of_a_mode_that_exposed_past_bugs_pass(mode: str, seed: int) -> None:
    """The seeds found these defects.

    Coordinators that exited right after their start kept two generations running, by hearing from
    each of them in turn. An agent that had given up became the coordinator when the registry
    answered its last request. A coordinator that had been suspended stepped down before it had read
    the messages of its nodes.
    """
    _, _, wrong = play(seed, mode)
    assert not wrong, wrong


def test_same_seed_reproduces_same_simulation_run() -> None:
    """A run can be replayed from its seed in another process, whatever that process's hash seed."""

    def digests(hash_seed: str) -> str:
        command = [sys.executable, "-m", "tests.simulation", "--seeds", "5", "--from", "40"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        result = subprocess.run(
            [*command, "--processes", "1", "--digest"],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=LIMIT_S,
        )  # fmt: skip
        return result.stdout.partition("seeds,")[0].rpartition("\n")[0]

    first, second = digests("1"), digests("2")
    assert len(first.splitlines()) == 5
    assert first == second


def test_failing_seed_is_reported_with_its_last_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """A violation is shown with the seed's number and the last events before it."""
    monkeypatch.setattr(Watch, "settled", lambda self: "it is Monday")
    _, _, wrong = play(1)
    assert "seed 1: " in wrong
    assert "it is Monday" in wrong
    assert "all trouble ends" in wrong


def test_each_mutant_matches_exactly_one_line_of_code() -> None:
    """When a rule's code changes, its mutant must follow."""
    for mutant in MUTANTS:
        text = (ROOT / "src" / "relight" / mutant.module).read_text()
        assert text.count(mutant.line) == 1, mutant.rule
