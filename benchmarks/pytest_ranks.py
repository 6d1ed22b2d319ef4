"""Tests of two ranks: `python -m benchmarks.pytest_ranks [--rounds 5]`.

    marked          `@pytest.mark.distributed(world_size=2)`, 20 tests in a run of pytest
    spawn           `torch.multiprocessing.spawn`, 5 tests
    multi_process   `MultiProcessTestCase`, which torch's own tests use, 5 tests

All of them do one all_reduce over gloo. A test's time is that which pytest reports, with its setup
and teardown; the first test of each run is left out, and shown by itself: it is the one that
imports torch for the others, where the plugin is used. The three take turns. Writes
`pytest_ranks.json` and `pytest_ranks.md` into `benchmarks/results/`.

MultiProcessTestCase needs `pip install expecttest`.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from benchmarks import results

FOLDER = Path(__file__).with_name("two_ranks")
TITLES = {
    "marked": "@pytest.mark.distributed",
    "spawn": "torch.multiprocessing.spawn",
    "multi_process": "MultiProcessTestCase",
}


def run(kind: str) -> list[float]:
    """Return the seconds of each test of a run.

    Raises:
        RuntimeError: a test has failed.
    """
    with tempfile.TemporaryDirectory(prefix="relight-bench-") as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, f"--junitxml={report}", str(FOLDER / f"test_{kind}.py")],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stdout)
        return [float(case.attrib["time"]) for case in ET.parse(report).iter("testcase")]


def main() -> None:
    """Measure, print the table, write the results."""
    parser = results.arguments("Measure tests of two ranks.")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    samples: dict[str, dict[str, list[float]]] = {}
    for number in range(options.rounds):
        for kind in list(TITLES)[:: -1 if number % 2 else 1]:
            first, *others = run(kind)
            seconds = statistics.median(others)
            for row, value in (
                ("first test of a run, s", first),
                ("each other test, s", seconds),
                ("tests a minute", 60 / seconds),
            ):
                samples.setdefault(row, {}).setdefault(kind, []).append(value)
            print(kind, round(first, 2), round(seconds, 3), flush=True)
    rows = (
        " | ".join((row, *(results.spread(values[kind], count=True) for kind in TITLES)))
        for row, values in samples.items()
    )
    text = [
        "Medians of so many runs, in turns; least and most in brackets. " + results.machine(),
        "",
        *results.table(" | ".join(("", *TITLES.values())), rows),
    ]
    print(results.write(options.out, "pytest_ranks", samples, text))


if __name__ == "__main__":
    main()
