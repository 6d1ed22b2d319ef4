"""All measurements, side by side with torchrun: `python -m benchmarks [--rounds 5] [--only tee]`.

The launchers take turns, and the one that goes first changes each round, so that what else the
machine does falls on both. The median counts. Writes `results.json`, `results.md` and `results.png`
into `benchmarks/results/` (`--out` for another directory).
"""

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from benchmarks import jobs, tcp_store


class Benchmark(NamedTuple):
    """One thing that is measured; `more` says whether more is better."""

    name: str
    title: str
    unit: str
    sample: Callable[[str], float]
    more: bool = False


BENCHMARKS = (
    Benchmark("launch", "no-op job of 2 workers, start to end", "s", jobs.launch_s),
    Benchmark("first-line", "start to the first line of a worker", "s", jobs.first_line_s),
    Benchmark("memory", "memory of the launcher with 2 workers (PSS)", "MiB", jobs.memory_mib),
    Benchmark(
        "restart", "kill -9 of a worker to its replacement's first line", "s", jobs.restart_s
    ),
    Benchmark("tee", "lines through --tee, 4 workers", "lines/s", jobs.tee_lines_per_s, more=True),
    Benchmark("idle", f"idle launcher over {jobs.IDLE_S} s", "% of a CPU", jobs.idle_cpu),
)


class Row(NamedTuple):
    """The medians of one benchmark, and all samples by launcher."""

    benchmark: Benchmark
    samples: dict[str, list[float]]

    def median(self, launcher: str) -> float:
        """Return the median of a launcher's samples."""
        return statistics.median(self.samples[launcher])

    @property
    def advantage(self) -> float:
        """How many times better relight is; infinite where it needs nothing that can be seen."""
        ours, theirs = self.median("relight"), self.median("torchrun")
        if self.benchmark.more:
            ours, theirs = theirs, ours
        return theirs / ours if ours else float("inf")


def main() -> None:
    """Measure, print the table, write the results."""
    names = [each.name for each in BENCHMARKS]
    parser = argparse.ArgumentParser(description="Measure relight and torchrun side by side.")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each; default 5")
    parser.add_argument("--only", nargs="+", choices=[*names, "store"], default=[*names, "store"])
    parser.add_argument("--out", default=str(Path(__file__).with_name("results")))
    options = parser.parse_args()
    rows = []
    for benchmark in BENCHMARKS:
        if benchmark.name in options.only:
            rows.append(measure(benchmark, options.rounds))
            print(_as_line(rows[-1]), flush=True)
    stores = tcp_store.measure([1, 16, 128], 1.0, options.rounds) if "store" in options.only else []
    os.makedirs(options.out, exist_ok=True)
    table = _as_table(rows, stores, options.rounds)
    Path(options.out, "results.md").write_text(table)
    Path(options.out, "results.json").write_text(
        json.dumps({row.benchmark.name: row.samples for row in rows}, indent=1) + "\n"
    )
    _plot(rows, os.path.join(options.out, "results.png"))
    print(f"\n{table}\nwritten to {options.out}")


def measure(benchmark: Benchmark, rounds: int) -> Row:
    """Return samples of both launchers, taken in turns, after one of each that does not count."""
    samples: dict[str, list[float]] = {name: [] for name in jobs.LAUNCHERS}
    if benchmark.sample is not jobs.idle_cpu:
        for name in samples:
            benchmark.sample(name)
    for number in range(rounds):
        for name in sorted(samples, reverse=bool(number % 2)):
            samples[name].append(benchmark.sample(name))
    return Row(benchmark, samples)


def _as_line(row: Row) -> str:
    ours, theirs = (_number(row.median(name)) for name in jobs.LAUNCHERS)
    return (
        f"{row.benchmark.title}: relight {ours}, torchrun {theirs} {row.benchmark.unit}"
        f" ({_times(row.advantage)})"
    )


def _as_table(rows: list[Row], stores: list[tcp_store.Row], rounds: int) -> str:
    lines = [
        f"Medians of {rounds} samples, in turns; in brackets, least and most. "
        f"{os.cpu_count()} processors, Linux {platform.release().partition('-')[0]}, "
        f"Python {platform.python_version()}, torch {version('torch')}.",
        "",
        "| | relight | torchrun | relight is better by |",
        "|---|---|---|---|",
    ]
    for row in rows:
        cells = []
        for name in jobs.LAUNCHERS:
            values = row.samples[name]
            cells.append(
                f"{_number(row.median(name))} {row.benchmark.unit}"
                f" ({_number(min(values))} … {_number(max(values))})"
            )
        lines.append(
            f"| {row.benchmark.title} | {cells[0]} | {cells[1]} | {_times(row.advantage)} |"
        )
    if stores:
        lines += [
            "",
            "The store that workers meet at, against torch's own server in C++:",
            "",
            "| clients | relight, operations/s | torch, operations/s | ratio |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {store.clients} | {store.relight:,.0f} | {store.torch:,.0f}"
            f" | {store.relight / store.torch:.2f} |"
            for store in stores
        ]
    return "\n".join(lines) + "\n"


def _plot(rows: list[Row], path: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(rows), figsize=(2.4 * len(rows), 3.2), squeeze=False)
    colours = {"relight": "#d9622b", "torchrun": "#8a8f98"}
    for axis, row in zip(axes[0], rows, strict=True):
        for place, name in enumerate(jobs.LAUNCHERS):
            axis.bar(place, row.median(name), color=colours[name])
            points = row.samples[name]
            axis.plot([place] * len(points), points, ".", color="black", markersize=4)
            axis.annotate(
                _number(row.median(name)),
                (place, max(points)),
                ha="center",
                xytext=(0, 4),
                textcoords="offset points",
                fontsize=8,
            )
        axis.set_xticks(range(len(colours)), list(jobs.LAUNCHERS), fontsize=8)
        axis.set_title(f"{row.benchmark.name}, {row.benchmark.unit}", fontsize=9)
        axis.tick_params(axis="y", labelsize=7)
        axis.margins(y=0.15)
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.0f}"


def _times(advantage: float) -> str:
    if advantage == float("inf"):
        return "nothing to be seen"
    return f"{advantage:.3g} times" if advantage < 100 else f"{advantage:.0f} times"


if __name__ == "__main__":
    main()
