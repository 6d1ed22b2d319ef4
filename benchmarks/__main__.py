"""All benchmarks, compared with torchrun: `python -m benchmarks [--rounds 5] [--only tee]`.

The launchers alternate, and a different one goes first in each round, so that other load on the
machine affects both equally. Results are medians. Writes `results.json`, `results.md` and
`results.png` to `benchmarks/results/` (use `--out` for another directory).
"""

import statistics
from collections.abc import Callable
from typing import NamedTuple

from benchmarks import jobs, results, tcp_store
from benchmarks.results import number, spread


class Benchmark(NamedTuple):
    """A single benchmark; `more` is set if higher values are better."""

    name: str
    title: str
    unit: str
    sample: Callable[[str], float]
    more: bool = False


BENCHMARKS = (
    Benchmark("launch", "no-op job with 2 workers, launch to exit", "s", jobs.launch_s),
    Benchmark("first-line", "launch to the first line from a worker", "s", jobs.first_line_s),
    Benchmark("memory", "launcher memory with 2 workers (PSS)", "MiB", jobs.memory_mib),
    Benchmark(
        "restart", "worker killed to the first line from its replacement", "s", jobs.restart_s
    ),
    Benchmark("tee", "throughput of --tee, 4 workers", "lines/s", jobs.tee_lines_per_s, more=True),
    Benchmark("idle", f"idle launcher over {jobs.IDLE_S} s", "% of a CPU", jobs.idle_cpu),
)


class Row(NamedTuple):
    """A benchmark with its samples, by launcher."""

    benchmark: Benchmark
    samples: dict[str, list[float]]

    @property
    def advantage(self) -> str:
        """How many times better relight is, as text."""
        return results.times(*self.samples.values(), more=self.benchmark.more)


def main() -> None:
    """Run the benchmarks, print the table, and write the results."""
    names = [each.name for each in BENCHMARKS]
    parser = results.arguments("Measure relight and torchrun side by side.")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each; default 5")
    parser.add_argument("--only", nargs="+", choices=[*names, "store"], default=[*names, "store"])
    options = parser.parse_args()
    rows = []
    for benchmark in BENCHMARKS:
        if benchmark.name in options.only:
            rows.append(measure(benchmark, options.rounds))
            print(_as_line(rows[-1]), flush=True)
    stores = tcp_store.measure([1, 16, 128], 1.0, options.rounds) if "store" in options.only else []
    content = {row.benchmark.name: row.samples for row in rows}
    text = results.write(options.out, "results", content, _as_text(rows, stores, options.rounds))
    if rows:
        _plot(rows, options.out)
    print(f"\n{text}\nwritten to {options.out}")


def measure(benchmark: Benchmark, rounds: int) -> Row:
    """Return samples for both launchers, which alternate after a warm-up run of each."""
    samples: dict[str, list[float]] = {name: [] for name in jobs.LAUNCHERS}
    if benchmark.sample is not jobs.idle_cpu:
        for name in samples:
            benchmark.sample(name)
    for turn in range(rounds):
        for name in sorted(samples, reverse=bool(turn % 2)):
            samples[name].append(benchmark.sample(name))
    return Row(benchmark, samples)


def _as_line(row: Row) -> str:
    ours, theirs = (number(statistics.median(values)) for values in row.samples.values())
    return (
        f"{row.benchmark.title}: relight {ours}, torchrun {theirs} {row.benchmark.unit}"
        f" ({row.advantage})"
    )


def _as_text(rows: list[Row], stores: list[tcp_store.Row], rounds: int) -> list[str]:
    lines = [
        f"Medians of {rounds} samples, in turns; in brackets, least and most. {results.machine()}",
        "",
        *results.table(" | relight | torchrun | relight is better by", map(_as_row, rows)),
    ]
    if stores:
        lines += ["", "The store that workers meet at, against torch's own server in C++:", ""]
        lines += results.table(
            "clients | relight, operations/s | torch, operations/s | ratio",
            (
                f"{each.clients} | {each.relight:,.0f} | {each.torch:,.0f} | "
                f"{each.relight / each.torch:.2f}"
                for each in stores
            ),
        )
    return lines


def _as_row(row: Row) -> str:
    unit = f" {row.benchmark.unit}"
    ours, theirs = (spread(row.samples[name], unit=unit) for name in jobs.LAUNCHERS)
    return f"{row.benchmark.title} | {ours} | {theirs} | {row.advantage}"


def _plot(rows: list[Row], folder: str) -> None:
    figure, axes = results.plots([1] * len(rows), (2.4 * len(rows), 3.2))
    for axis, row in zip(axes, rows, strict=True):
        results.bars(axis, [{name: values} for name, values in row.samples.items()], 0.8)
        axis.set_xticks(range(len(row.samples)), list(row.samples))
        axis.set_title(f"{row.benchmark.name}, {row.benchmark.unit}", fontsize=9)
        axis.set_ylim(bottom=0)
    results.save(figure, folder, "results")


if __name__ == "__main__":
    main()
