"""Many workers that do nothing, and the way to the first: `python -m benchmarks.workers`.

    number   1 to 256 workers that run `true`: start of the command to its end, for relight, for
             torchrun, and for a Python process that forks, executes `true` and reaps, as often
    first    start of the command to the moment at which the first worker's program runs, for both
             launchers, and for a Python process that does nothing but become that program

The worker of `first` is bash, which prints the time of day. What that takes when it is started from
here, in the same round, is not counted. All take turns; the medians count. Writes `workers.json`,
`workers.md` and `workers.png` into `benchmarks/results/` (`--out` for another directory).
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from benchmarks.jobs import LAUNCHERS

NUMBERS = (1, 2, 8, 64, 256)
MOST_OF_TORCHRUN = 64
LIMIT_S = 120.0
TRUE = shutil.which("true") or "/bin/true"
BASH = shutil.which("bash") or "/bin/bash"
CLOCK = (BASH, "-c", "echo $EPOCHREALTIME")
LOOP = f"""
import os, sys
pids = []
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        os.execv({TRUE!r}, [{TRUE!r}])
    pids.append(pid)
for pid in pids:
    os.waitpid(pid, 0)
"""
BECOME = f"import os; os.execv({BASH!r}, {list(CLOCK)!r})"
NAMES = ("relight", "loop", "torchrun")
TITLES = {"relight": "relight", "loop": "fork and exec in a loop", "torchrun": "torchrun"}
COLOURS = {"relight": "#d9622b", "loop": "#3b6ea5", "torchrun": "#8a8f98"}
FIRST = {
    "clock": list(CLOCK),
    "python": [sys.executable, "-c", BECOME],
    **{name: [*command, "--no-python", *CLOCK] for name, command in LAUNCHERS.items()},
}
Numbers = dict[str, dict[int, list[float]]]
Firsts = dict[str, list[float]]


def number_s(name: str, number: int) -> float:
    """Seconds from the start of so many workers to the end of the last and of their parent."""
    if name == "loop":
        command = [sys.executable, "-c", LOOP, str(number)]
    else:
        command = [*LAUNCHERS[name], "--no-python", f"--nproc-per-node={number}", TRUE]
    begin = time.monotonic()
    _run(command)
    return time.monotonic() - begin


def pass_s() -> float:
    """Seconds from the start of a Python process that does nothing to its end."""
    begin = time.monotonic()
    _run([sys.executable, "-c", "pass"])
    return time.monotonic() - begin


def first_s(name: str) -> float:
    """Seconds from the start of a command to the time of day that its program prints."""
    begin = time.time()
    return float(_run(FIRST[name])) - begin


def slope_s(samples: dict[int, list[float]], of: Callable[[list[float]], float]) -> float:
    """Seconds that one worker more takes, of the medians or of the least: what else the machine
    does only adds.
    """
    return (of(samples[256]) - of(samples[8])) / (256 - 8)


def _run(command: list[str]) -> bytes:
    return subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=LIMIT_S,
        check=True,
    ).stdout


def main() -> None:
    """Measure, print the tables, write the results."""
    parser = argparse.ArgumentParser(description="Measure the start of many workers.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", default=str(Path(__file__).with_name("results")))
    options = parser.parse_args()
    numbers: Numbers = {name: {} for name in NAMES}
    firsts: Firsts = {name: [] for name in ("pass", *FIRST)}
    for name in NAMES:
        number_s(name, 1)  # does not count: it fills the machine's cache
    for count in range(options.rounds):
        turn = slice(None, None, -1 if count % 2 else 1)
        for number in NUMBERS:
            for name in NAMES[turn]:
                if name != "torchrun" or number <= MOST_OF_TORCHRUN:
                    numbers[name].setdefault(number, []).append(number_s(name, number))
        for name in list(FIRST)[turn]:
            firsts[name].append(first_s(name))
        firsts["pass"].append(pass_s())
        print(f"round {count + 1} of {options.rounds}", flush=True)
    text = _as_text(numbers, firsts, options.rounds)
    os.makedirs(options.out, exist_ok=True)
    content = {"numbers": numbers, "first": firsts}
    Path(options.out, "workers.json").write_text(json.dumps(content, indent=1) + "\n")
    Path(options.out, "workers.md").write_text(text)
    _plot(numbers, firsts, os.path.join(options.out, "workers.png"))
    print(text)


def _net(firsts: Firsts) -> Firsts:
    """Return what is left of the times to the first worker without its own."""
    own = firsts["clock"]
    return {
        name: [value - less for value, less in zip(firsts[name], own, strict=True)]
        for name in ("python", *LAUNCHERS)
    }


def _as_text(numbers: Numbers, firsts: Firsts, rounds: int) -> str:
    lines = [
        f"Medians of {rounds}, in turns; least and most in brackets. {os.cpu_count()} processors, "
        f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}, "
        f"torch {version('torch')}.",
        "",
        "| workers that run `true`, start to end, ms | "
        + " | ".join(TITLES[name] for name in NAMES)
        + " | relight / loop |",
        "|---|---|---|---|---|",
    ]
    for number in NUMBERS:
        cells = [_cell(numbers[name].get(number, [])) for name in NAMES]
        ratio = _median(numbers["relight"][number]) / _median(numbers["loop"][number])
        lines.append(f"| {number} | {' | '.join(cells)} | {ratio:.2f} |")
    for title, of in (("medians", _median), ("least", min)):
        ours, loop = (slope_s(numbers[name], of) for name in ("relight", "loop"))
        slopes = f"{1000 * ours:.2f} | {1000 * loop:.2f} |  | {ours / loop:.2f}"
        lines.append(f"| one worker more between 8 and 256, {title} | {slopes} |")
    lines += [
        "",
        "| start of the command to its worker's program | ms |",
        "|---|---|",
    ]
    net = _net(firsts)
    lines += [
        f"| a Python process that does nothing but become it | {_cell(net['python'])} |",
        f"| relight | {_cell(net['relight'])} |",
        f"| torchrun | {_cell(net['torchrun'])} |",
        "",
        f"Without what the worker itself takes to tell the time when it is started from the "
        f"benchmark, {_cell(firsts['clock'])} ms. `python -c pass`, start to end: "
        f"{_cell(firsts['pass'])} ms.",
    ]
    return "\n".join(lines) + "\n"


def _median(values: list[float]) -> float:
    return statistics.median(values)


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    median, least, most = (
        f"{1000 * value:.{0 if value >= 0.1 else 1}f}"
        for value in (_median(values), min(values), max(values))
    )
    return f"{median} ({least} … {most})"


def _plot(numbers: Numbers, firsts: Firsts, path: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (lines, bars) = pyplot.subplots(
        1, 2, figsize=(10, 3.6), gridspec_kw={"width_ratios": [3, 2]}
    )
    for name, samples in numbers.items():
        medians = [_median(values) for values in samples.values()]
        lines.plot(list(samples), medians, "o-", color=COLOURS[name], label=TITLES[name],
                   markersize=4)  # fmt: skip
    lines.set_xscale("log", base=2)
    lines.set_yscale("log")
    lines.set_xticks(NUMBERS, [str(number) for number in NUMBERS])
    lines.set_xlabel("workers that run `true`", fontsize=8)
    lines.set_ylabel("seconds from start to end", fontsize=8)
    lines.legend(fontsize=8, frameon=False)
    titles = {"python": "bare Python", "relight": "relight", "torchrun": "torchrun"}
    for place, (name, values) in enumerate(_net(firsts).items()):
        median = _median(values)
        bars.bar(place, 1000 * median, 0.6, color=COLOURS.get(name, COLOURS["loop"]))
        bars.plot([place] * len(values), [1000 * v for v in values], ".", color="black",
                  markersize=3)  # fmt: skip
        bars.annotate(f"{1000 * median:.0f}", (place, 1000 * max(values)), ha="center",
                      xytext=(0, 4), textcoords="offset points", fontsize=8)  # fmt: skip
    bars.set_yscale("log")
    bars.margins(y=0.12)
    bars.set_xticks(range(len(titles)), list(titles.values()))
    bars.set_ylabel("ms from start to the first worker's program", fontsize=8)
    for axis in (lines, bars):
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
