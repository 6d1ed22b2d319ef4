"""The group in a simulated world with everything that can go wrong. `make simulate` runs more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .__main__ import play
from .mutants import MUTANTS
from .watch import Watch

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("first", range(0, 80, 10))
def test_no_seed_breaks_an_invariant_or_hangs(first: int) -> None:
    """The invariants in `watch` hold in every run, and the job comes to its end."""
    for seed in range(first, first + 10):
        _, _, wrong = play(seed)
        assert not wrong, wrong


def test_short_run_of_seeds_breaks_no_invariant() -> None:
    """The same, for `make quick`."""
    for seed in range(1000, 1012):
        _, _, wrong = play(seed)
        assert not wrong, wrong


@pytest.mark.parametrize(
    "seed",
    [8_008_351, 8_021_866, 8_039_925, 8_050_320, 8_873_896, 202_094, 216_425, 220_422, 222_215],
)
def test_seeds_of_past_defects_pass(seed: int) -> None:
    """A preempted coordinator told nobody the end; a node lost while its coordinator was suspended
    was waited for; a coordinator that had lost its last node continued although its register was
    silent; a preempted node whose workers failed came back, without a restart counted, and so did
    one whose workers had succeeded before the others were asked to save; the host that coordinated
    left during a blip, as its own workers had ended, or never left; two generations ran after a
    change of the coordinator to a host that had just started, or whose agent had given up.
    """
    _, _, wrong = play(seed)
    assert not wrong, wrong


def test_same_seed_gives_the_same_run() -> None:
    """A run can be replayed from its seed in another process, whatever its hash seed is."""

    def digests(hash_seed: str) -> str:
        command = [sys.executable, "-m", "tests.simulation", "--seeds", "5", "--from", "40"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        result = subprocess.run(
            [*command, "--processes", "1", "--digest"],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        return result.stdout.partition("seeds,")[0].rpartition("\n")[0]

    first, second = digests("1"), digests("2")
    assert len(first.splitlines()) == 5
    assert first == second


def test_failing_seed_shows_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A violation comes with the seed's number and the last events before."""
    monkeypatch.setattr(Watch, "settled", lambda self: "it is Monday")
    _, _, wrong = play(1)
    assert "seed 1: " in wrong
    assert "it is Monday" in wrong
    assert "all trouble ends" in wrong


def test_each_mutant_matches_exactly_one_line() -> None:
    """A rule that was rewritten needs its mutant rewritten."""
    for mutant in MUTANTS:
        text = (ROOT / "src" / "relight" / mutant.module).read_text()
        assert text.count(mutant.line) == 1, mutant.rule
