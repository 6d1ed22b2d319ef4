"""Benchmarks of two-rank tests: `python -m benchmarks.pytest_ranks [--rounds 5]`.

    marked          `@pytest.mark.distributed(world_size=2)`, 20 tests per pytest run
    spawn           `torch.multiprocessing.spawn`, 8 tests
    multi_process   `MultiProcessTestCase`, which torch's own tests use, 8 tests

Half of the tests do one all_reduce over gloo, the other half a DistributedDataParallel step. A
test's duration is what pytest reports, including setup and teardown. The first test of each run is
listed separately, because with the plugin it also imports torch for the others. The three variants
alternate. Writes `pytest_ranks.json` and `pytest_ranks.md` to `benchmarks/results/`.

MultiProcessTestCase needs `pip install expecttest`.
"""

import os
import shutil
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
CHECKS = {"all_reduce": "tests of an all_reduce", "step": "tests of a DDP step"}


def run(kind: str) -> dict[str, float]:
    """Return the duration of a run's first test, and the median durations of the others by kind.

    Raises:
        RuntimeError: if a test fails.
    """
    with tempfile.TemporaryDirectory(prefix="relight-bench-") as folder:
        report = Path(folder, "report.xml")
        # The directory is outside this package, which would compile relight again in each rank.
        shutil.copytree(FOLDER, Path(folder, "two_ranks"))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, f"--junitxml={report}", f"two_ranks/test_{kind}.py"],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stdout)
        cases = [
            (case.attrib["name"], float(case.attrib["time"]))
            for case in ET.parse(report).iter("testcase")
        ]
    seconds = {"first test of a run, s": cases[0][1]}
    for name in CHECKS:
        seconds[name] = statistics.median(s for test, s in cases[1:] if name in test)
    return seconds


def main() -> None:
    """Run the benchmarks, print the table, and write the results."""
    parser = results.arguments("Measure tests of two ranks.")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    samples: dict[str, dict[str, list[float]]] = {}
    for number in range(options.rounds):
        for kind in list(TITLES)[:: -1 if number % 2 else 1]:
            first, *others = run(kind).items()
            rows = [first]
            for name, seconds in others:
                rows += [
                    (f"{CHECKS[name]}, s", seconds),
                    (f"{CHECKS[name]}, a minute", 60 / seconds),
                ]
            for row, value in rows:
                samples.setdefault(row, {}).setdefault(kind, []).append(value)
            print(kind, *(f"{value:.3f}" for _, value in rows), flush=True)
    lines = (
        " | ".join((row, *(results.spread(values[kind], count=True) for kind in TITLES)))
        for row, values in samples.items()
    )
    text = [
        "Medians of so many runs, in turns; least and most in brackets. " + results.machine(),
        "",
        *results.table(" | ".join(("", *TITLES.values())), lines),
    ]
    print(results.write(options.out, "pytest_ranks", samples, text))


if __name__ == "__main__":
    main()
