"""How `--preload=auto` slows down running training: `python -m benchmarks.study [--pairs 8]`.

A pair consists of two consecutive runs of the same job, one with `--preload=off` and one with
`auto`; the order changes from pair to pair. The job's steps keep processors busy without a pause:

    both   2 workers (DDP, gloo)
    one    1 worker; the other processors are idle

Steps count from the 5th second of the job. The run with `auto` determines the phases: `before` the
process begins to import, during the `import`, and `after` it is ready. The other run is divided at
the same times after the start of the job. The result is the median of the differences within pairs,
with a 95 % bootstrap interval, and the number of pairs with a positive difference. Lost seconds are
the time from the start of the import to the end, minus the time that the same steps would have
taken at the pace before the import.

Nothing else should be running on the machine at the same time. The number of processors kept busy
by other processes during a run is measured: the machine's busy time minus the job's. With
`--quiet 0.2`, a pair waits up to a minute until it is below that value. If it exceeds the value
during a pair, the pair does not count and is repeated, but there are at most as many repetitions as
pairs. A pair is also not counted if its first run, without an import, turns out to be too short for
the phases of the other, or if its job fails. Writes `study.json` and `study.md` to
`benchmarks/results/` (use `--out` for another directory).
"""

import json
import os
import random
import statistics
import time
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks import results
from benchmarks.warm import agent, directory, events, step, until

VARIANTS = {"both": 2, "one": 1}
TITLES = {"both": "2 workers on 2 processors", "one": "1 worker, other processors idle"}
FROM_S, AFTER_S, MIN_S = 5.0, 8.0, 20.0
PHASES = ("before", "import", "after")
_SAMPLES = 10_000
_GLANCE_S, _PATIENCE_S = 2.0, 60.0


class Run(NamedTuple):
    """A job: when its steps ended, and when it imported, in seconds since its start."""

    ends: list[float]
    begin: float
    ready: float
    mib: float
    others: float
    """The number of processors that other processes kept busy during the run."""


class Pair(NamedTuple):
    """Median step times in ms by phase, and lost seconds, with off and auto; also how many seconds
    the import took.
    """

    variant: str
    off: dict[str, float]
    auto: dict[str, float]
    import_s: float
    mib: float
    others: float


def run(launcher: str, nproc: int, least_s: float) -> Run:
    """Run a job for at least this long; `launcher` is one of those in `warm`."""
    with directory():
        begin, before = time.monotonic(), _others_s()
        with agent(launcher, [f"--nproc-per-node={nproc}"], "busy") as process:
            step(process)
            end = begin + least_s
            if launcher == "auto":
                until(lambda: '"PreloadReady"' in events() or '"PreloadUnfit"' in events())
                end = max(end, time.monotonic() + AFTER_S)
            time.sleep(max(0.0, end - time.monotonic()))
        others = (_others_s() - before) / (time.monotonic() - begin)
        log = {each["event"]: each for each in map(json.loads, events().splitlines())}
        ends = array("d")
        ends.frombytes(Path("steps").read_bytes())
    marks = [log[name]["t"] - begin for name in ("PreloadStarted", "PreloadReady") if name in log]
    if launcher == "auto" and len(marks) < 2:
        raise RuntimeError(f"the modules can't be preloaded: {log}")
    mib = log["PreloadReady"]["mib"] if marks else 0.0
    started, ready = marks or (0.0, 0.0)
    return Run([at - begin for at in ends], started, ready, mib, others)


def _wait_for(quiet: float) -> None:
    """Wait until other processes leave the processors idle, up to a time limit."""
    end, others = time.monotonic() + _PATIENCE_S, float("inf")
    while others > quiet and time.monotonic() < end:
        before = _others_s()
        time.sleep(_GLANCE_S)
        others = (_others_s() - before) / _GLANCE_S


def _others_s() -> float:
    """Return the CPU seconds used by processes that are not children of this one."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _, _, irq, softirq, steal = map(int, fields)
    everything = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    times = os.times()
    return everything - sum((times.user, times.system, times.children_user, times.children_system))


def pair(variant: str, auto_first: bool, least_s: float) -> tuple[Pair | None, float]:
    """Run a job with both settings; return the result, and how long the next run should be."""
    launchers = ("auto", "cold") if auto_first else ("cold", "auto")
    runs = {}
    for name in launchers:
        runs[name] = run(name, VARIANTS[variant], least_s)
        least_s = max(MIN_S, runs[name].ready + AFTER_S)
    off, auto = runs["cold"], runs["auto"]
    enough_s = max(MIN_S, auto.ready + AFTER_S)
    end = min(each.ends[-1] for each in (off, auto))
    if end < auto.ready + AFTER_S / 2:
        return None, enough_s
    marks = (FROM_S, auto.begin, auto.ready, end)
    made = Pair(
        variant,
        _in_phases(off.ends, marks),
        _in_phases(auto.ends, marks),
        auto.ready - auto.begin,
        auto.mib,
        max(off.others, auto.others),
    )
    return made, enough_s


def _in_phases(ends: list[float], marks: Sequence[float]) -> dict[str, float]:
    """Return the median step time of each phase in ms, and as `lost` the seconds lost."""
    first, *_ = slices = [bisect_left(ends, mark) for mark in marks]
    times = [after - before for before, after in pairwise(ends)]
    found = {
        phase: 1000 * statistics.median(times[begin:end])
        for phase, (begin, end) in zip(PHASES, pairwise(slices), strict=True)
    }
    pace = (ends[slices[1]] - ends[first]) / (slices[1] - first)
    last = slices[-1]
    lost = ends[last] - ends[slices[1]] - pace * (last - slices[1])
    return {**found, "lost": lost}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median."""
    dice, size = random.Random(0), len(values)
    found = sorted(statistics.median(dice.choices(values, k=size)) for _ in range(_SAMPLES))
    return found[int(0.025 * _SAMPLES)], found[int(0.975 * _SAMPLES)]


def main() -> None:
    """Run the study, print the tables, and write the results."""
    parser = results.arguments("Measure what --preload=auto costs a training.")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--quiet", type=float, default=float("inf"), metavar="PROCESSORS")
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    options = parser.parse_args()
    pairs: list[Pair] = []
    text = ""
    least_s = dict.fromkeys(VARIANTS, MIN_S)
    for number in range(2 * options.pairs):
        for variant in options.only:
            if sum(each.variant == variant for each in pairs) == options.pairs:
                continue
            if options.quiet < float("inf"):
                _wait_for(options.quiet)
            try:
                made, least_s[variant] = pair(variant, number % 2 == 0, least_s[variant])
            except RuntimeError as error:  # reported, but not counted
                print(error, flush=True)
                continue
            print(made, flush=True)
            if made is not None and made.others <= options.quiet:
                pairs.append(made)
        content = [each._asdict() for each in pairs]
        text = results.write(options.out, "study", content, _as_text(pairs))
    print(text)


def _as_text(pairs: list[Pair]) -> list[str]:
    lines = [
        f"{results.machine()} Others: the processors that what is not part of the job kept busy "
        "in the meantime.",
    ]
    for variant, title in TITLES.items():
        chosen = [each for each in pairs if each.variant == variant]
        if not chosen:
            continue
        imports = [each.import_s for each in chosen]
        others = [each.others for each in chosen]
        lines += [
            "",
            f"{title}, {len(chosen)} pairs; the import took "
            f"{results.spread(imports, '{:.1f}'.format, ' s')}, the process then "
            f"{statistics.median(each.mib for each in chosen):.0f} MiB; "
            f"others {results.spread(others, '{:.2f}'.format)}:",
            "",
        ]
        rows = []
        titles = {phase: f"step time, {phase}, ms" for phase in PHASES} | {"lost": "seconds lost"}
        for key, name in titles.items():
            off, auto = [each.off[key] for each in chosen], [each.auto[key] for each in chosen]
            both = [b - a for a, b in zip(off, auto, strict=True)]
            low, high = interval(both)
            rows.append(
                f"{name} | {statistics.median(off):.2f} | {statistics.median(auto):.2f} "
                f"| {statistics.median(both):+.2f} | {low:+.2f} … {high:+.2f} "
                f"| {sum(each > 0 for each in both)} of {len(both)}"
            )
        heads = " | off | auto | difference within pairs | 95 % | auto is slower in"
        lines += results.table(heads, rows)
    return lines


if __name__ == "__main__":
    main()
