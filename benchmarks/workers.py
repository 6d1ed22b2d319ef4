"""Many workers that do nothing, and the time to the first one: `python -m benchmarks.workers`.

    number   1 to 256 workers that run `true`: from starting the command to its end, for relight,
             torchrun, and a Python process that forks, executes `true` and reaps it the same number
             of times
    first    from starting the command to when the program of the first worker runs, for both
             launchers, and for a Python process that only executes that program

The worker of `first` is bash, which prints the time of day. The time that this takes when it is
started directly, in the same round, is subtracted. All variants alternate, and results are medians.
Writes `workers.json`, `workers.md` and `workers.png` to `benchmarks/results/` (use `--out` for
another directory).
"""

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks import results
from benchmarks.jobs import LAUNCHERS
from benchmarks.results import spread

NUMBERS = (1, 2, 8, 64, 256)
MAX_OF_TORCHRUN = 64
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
COLOURS = {**results.COLOURS, "loop": "#3b6ea5", "python": "#3b6ea5"}
FIRST = {
    "clock": list(CLOCK),
    "python": [sys.executable, "-c", BECOME],
    **{name: [*command, "--no-python", *CLOCK] for name, command in LAUNCHERS.items()},
}
Numbers = dict[str, dict[int, list[float]]]
Firsts = dict[str, list[float]]


def number_s(name: str, number: int) -> float:
    """Return the seconds from starting the workers to the end of the last one and of their
    parent.
    """
    if name == "loop":
        command = [sys.executable, "-c", LOOP, str(number)]
    else:
        command = [*LAUNCHERS[name], "--no-python", f"--nproc-per-node={number}", TRUE]
    begin = time.monotonic()
    _run(command)
    return time.monotonic() - begin


def pass_s() -> float:
    """Return the seconds from starting a Python process that does nothing to its end."""
    begin = time.monotonic()
    _run([sys.executable, "-c", "pass"])
    return time.monotonic() - begin


def first_s(name: str) -> float:
    """Return the seconds from starting a command to the time of day that its program prints."""
    begin = time.time()
    return float(_run(FIRST[name])) - begin


def slope_s(samples: dict[int, list[float]], of: Callable[[list[float]], float]) -> float:
    """Return the seconds per additional worker, from the medians or from the minimums, because
    other load on the machine only adds time.
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
    """Run the benchmarks, print the tables, and write the results."""
    parser = results.arguments("Measure the start of many workers.")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    numbers: Numbers = {name: {} for name in NAMES}
    firsts: Firsts = {name: [] for name in ("pass", *FIRST)}
    for name in NAMES:
        number_s(name, 1)  # a warm-up run that fills the machine's cache
    for count in range(options.rounds):
        turn = slice(None, None, -1 if count % 2 else 1)
        for number in NUMBERS:
            for name in NAMES[turn]:
                if name != "torchrun" or number <= MAX_OF_TORCHRUN:
                    numbers[name].setdefault(number, []).append(number_s(name, number))
        for name in list(FIRST)[turn]:
            firsts[name].append(first_s(name))
        firsts["pass"].append(pass_s())
        print(f"round {count + 1} of {options.rounds}", flush=True)
    content = {"numbers": numbers, "first": firsts}
    lines = _as_text(numbers, firsts, options.rounds)
    text = results.write(options.out, "workers", content, lines)
    _plot(numbers, firsts, options.out)
    print(text)


def _net(firsts: Firsts) -> Firsts:
    """Return the times to the first worker, minus the time that the worker itself takes."""
    own = firsts["clock"]
    return {
        name: [value - less for value, less in zip(firsts[name], own, strict=True)]
        for name in ("python", *LAUNCHERS)
    }


def _as_text(numbers: Numbers, firsts: Firsts, rounds: int) -> list[str]:
    rows = []
    for number in NUMBERS:
        cells = " | ".join(_cell(numbers[name].get(number, [])) for name in NAMES)
        ours, loop = (statistics.median(numbers[name][number]) for name in ("relight", "loop"))
        rows.append(f"{number} | {cells} | {ours / loop:.2f}")
    for title, of in (("medians", statistics.median), ("minimum", min)):
        ours, loop = (slope_s(numbers[name], of) for name in ("relight", "loop"))
        slopes = f"{1000 * ours:.2f} | {1000 * loop:.2f} |  | {ours / loop:.2f}"
        rows.append(f"per additional worker between 8 and 256, {title} | {slopes}")
    titles = " | ".join(TITLES[name] for name in NAMES)
    net = _net(firsts)
    return [
        f"Medians of {rounds}, in turns; least and most in brackets. {results.machine()}",
        "",
        *results.table(
            f"workers that run `true`, launch to exit, ms | {titles} | relight / loop", rows
        ),
        "",
        *results.table(
            "launch of the command until its worker's program runs | ms",
            (
                f"a Python process that only calls exec | {_cell(net['python'])}",
                f"relight | {_cell(net['relight'])}",
                f"torchrun | {_cell(net['torchrun'])}",
            ),
        ),
        "",
        f"Without what the worker itself takes to tell the time when it is started from the "
        f"benchmark, {_cell(firsts['clock'])} ms. `python -c pass`, start to end: "
        f"{_cell(firsts['pass'])} ms.",
    ]


def _cell(values: list[float]) -> str:
    return spread(values, _milliseconds)


def _milliseconds(value: float) -> str:
    return f"{1000 * value:.{0 if value >= 0.1 else 1}f}"


def _plot(numbers: Numbers, firsts: Firsts, folder: str) -> None:
    figure, (lines, bars) = results.plots((3, 2), (10, 3.6))
    for name, samples in numbers.items():
        medians = [statistics.median(values) for values in samples.values()]
        lines.plot(list(samples), medians, "o-", color=COLOURS[name], label=TITLES[name],
                   markersize=4)  # fmt: skip
    lines.set_xscale("log", base=2)
    lines.set_yscale("log")
    lines.set_xticks(NUMBERS, [str(number) for number in NUMBERS])
    lines.set_xlabel("workers that run `true`", fontsize=8)
    lines.set_ylabel("seconds from start to end", fontsize=8)
    lines.legend(fontsize=8, frameon=False)
    titles = {"python": "bare Python", "relight": "relight", "torchrun": "torchrun"}
    groups = [{name: [1000 * value for value in values]} for name, values in _net(firsts).items()]
    results.bars(bars, groups, 0.6, COLOURS)
    bars.set_yscale("log")
    bars.set_xticks(range(len(titles)), list(titles.values()))
    bars.set_ylabel("ms from start to the first worker's program", fontsize=8)
    results.save(figure, folder, "workers")


if __name__ == "__main__":
    main()
