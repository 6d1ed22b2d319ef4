"""The harness that runs real programs under torchrun and relight (`benchmarks.programs`)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.programs.__main__ import Sample, _as_text, verdict
from conftest import LIMIT_S, clean_environment

ROOT = Path(__file__).parents[2]
Digests = dict[str, str]


def sample(digests: Digests, start_s: float = 1.0, restart_s: float | None = 1.0) -> Sample:
    return Sample(start_s, restart_s, 0.1, 0, {"torch": digests}, [])


def digests(*values: str) -> Digests:
    """Digests after the first step in attempts 0 and 1, for two ranks."""
    keys = [f"attempt {attempt} rank {rank} step 1" for attempt in (0, 1) for rank in (0, 1)]
    return dict(zip(keys, values, strict=True))


@pytest.mark.parametrize(
    ("ours", "cold", "expected"),
    [
        ("abab", "abab", "equal"),
        ("abcd", "abab", "differ: torch"),
        ("abcd", "efgh", "equal"),  # a program that does not set a seed
        ("abbc", "efgh", "equal; shared: torch"),
        ("abcd", None, "differ: torch"),
    ],
)
def test_warm_results_are_compared_with_those_of_a_cold_start(
    ours: str, cold: str | None, expected: str
) -> None:
    seen = None if cold is None else sample(digests(*cold))
    assert verdict(sample(digests(*ours)), seen) == expected


def test_result_table_compares_medians() -> None:
    same = digests(*"abab")
    samples = {
        "a program": {
            "torchrun": [sample(same, 8.0, 6.0), sample(same, 10.0, 8.0)],
            "relight": [sample(same, 6.0, 0.7)],
            "relight, second start": [sample({}, 0.5, None)],
            "own-work": [sample(same, 6.0, 0.5)],
        }
    }
    assert _as_text(samples, 60.0)[-1] == (
        "| a program | 7.00 s | 0.70 s | 10.0 | 0.50 s | 0.20 s | 0 | equal "
        "| 9.00 s | 6.00 s | 1.5 | 0.50 s | 18.0 |"
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.needs_programs
@pytest.mark.needs_torch
@pytest.mark.timeout(6 * LIMIT_S)
@pytest.mark.parametrize("program", ["transformers Trainer", "DataLoader, spawned"])
def test_warm_restart_computes_the_same_results(program: str, tmp_path: Path) -> None:
    """Installed packages include these programs; the others would have to be downloaded."""
    subprocess.run(
        [
            sys.executable, "-m", "benchmarks.programs", f"--folder={tmp_path}", "--wait=3",
            "--ready", f"--out={tmp_path}", program,
        ],
        cwd=ROOT, env=clean_environment(), timeout=5 * LIMIT_S, check=True,
    )  # fmt: skip
    content = json.loads((tmp_path / "programs.json").read_text())[program]
    (cold,), (warm,) = ([Sample(**each) for each in content[x]] for x in ("torchrun", "relight"))
    assert warm.loaded < cold.loaded / 10
    assert verdict(warm, cold) == "equal"
