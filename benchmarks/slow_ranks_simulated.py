"""Measures false alarms of the straggler detector: `python -m benchmarks.slow_ranks_simulated`.

Windows of simulated training, in which all ranks synchronize after each step, are passed to
`relight.core.group.straggler_detector`. There are far more of them than real jobs could produce.
Each window has 40 steps with a jitter of 5 or 20 %. Every 200 steps, rank 0 alone saves a
checkpoint, which takes as long as 10 steps. Each rank is sampled 100 times per window. Prints the
tables in docs/slow-ranks.md.
"""

import argparse
import statistics

import numpy as np

from relight.core.group.messages import WaitSamples
from relight.core.group.straggler_detector import StragglerDetector
from relight.core.ranks import GenerationId, NodeSize, places

STEPS, LOOKS = 40, 100
MEETING = 0.03
"""How long the exchange takes, as a multiple of the step time."""
SIZES = ((1, 2), (1, 4), (2, 2), (2, 8), (16, 8))
"""The number of nodes, and of workers per node."""
JITTERS = (0.05, 0.2)
PATIENCE = 60
"""A slow rank should be found within this many windows: five times the time compared."""


class Job:
    """A simulated training job.

    Args:
        nodes: the number of nodes.
        workers: the number of workers per node.
        jitter: the jitter of a step, as a fraction of its duration.
        slow: the ranks that need `factor` times as long.
        chance: the random generator for durations.
    """

    def __init__(
        self, nodes: int, workers: int, jitter: float, slow: tuple[int, ...], factor: float,
        chance: np.random.Generator,
    ) -> None:  # fmt: skip
        located = places([NodeSize(workers, "")] * nodes)
        self._compares = StragglerDetector((place, f"n{place.group_rank}") for place in located)
        self._nodes, self._workers, self._jitter, self._chance = nodes, workers, jitter, chance
        self._work = np.ones(nodes * workers)
        self._work[list(slow)] *= factor
        self._windows = 0

    def window(self) -> tuple[int, ...] | None:
        """Train for one window; return the slow ranks if they have changed, otherwise None."""
        shape = (STEPS, len(self._work))
        times = self._work * np.maximum(0.1, self._chance.normal(1, self._jitter, shape))
        first = self._windows * STEPS
        times[[n for n in range(STEPS) if (first + n) % 200 == 199], 0] += 10
        self._windows += 1
        waited = 1 - times.sum(axis=0) / (times.max(axis=1) + MEETING).sum()
        waits = [
            int(each)
            for each in self._chance.binomial(np.full_like(waited, LOOKS, int), waited.clip(0, 1))
        ]
        told = None
        for node in range(self._nodes):
            own = tuple(waits[node * self._workers : (node + 1) * self._workers])
            pace = WaitSamples(GenerationId(0, ""), (LOOKS,) * len(own), own, (-1,) * len(own))
            told = self._compares.hear(node, pace, float(self._windows)) or told
        return None if told is None else tuple(r for node in told.nodes for r in node.ranks)


def false_alarms(chance: np.random.Generator, windows: int) -> None:
    """Print how often a rank is reported as slow although all ranks are equally fast."""
    print("| nodes x workers | jitter | windows | false alarms |\n|---|---|---|---|")
    for nodes, workers in SIZES:
        for jitter in JITTERS:
            count = windows // max(1, nodes * workers // 16)
            job = Job(nodes, workers, jitter, (), 1.0, chance)
            alarms = sum(bool(job.window()) for _ in range(count))
            print(f"| {nodes} x {workers} | {jitter:.0%} | {count:,} | {alarms} |", flush=True)


def found(chance: np.random.Generator, runs: int) -> None:
    """Print how often slow ranks are found, and after how many windows."""
    print("| nodes x workers | jitter | slower by | found | wrong | after windows |")
    print("|---|---|---|---|---|---|")
    for nodes, workers in SIZES[:4]:
        slow = tuple(range(workers, 2 * workers)) if nodes > 1 else (1,)
        for jitter in JITTERS:
            for percent in (5, 10, 20):
                after, wrong = [], 0
                for _ in range(runs):
                    job = Job(nodes, workers, jitter, slow, 1 + percent / 100, chance)
                    told = [job.window() for _ in range(PATIENCE)]
                    after += [told.index(slow)] if slow in told else []
                    wrong += any(ranks and set(ranks) - set(slow) for ranks in told)
                middle = f"{statistics.median(after):.0f}" if after else "-"
                print(
                    f"| {nodes} x {workers} | {jitter:.0%} | {percent} % | {len(after)} of {runs} "
                    f"| {wrong} | {middle} |", flush=True,
                )  # fmt: skip


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=20_000, help="for each size; default 20000")
    parser.add_argument("--runs", type=int, default=20, help="for each slow rank; default 20")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = np.random.default_rng(options.seed)
    false_alarms(chance, options.windows)
    print()
    found(chance, options.runs)


if __name__ == "__main__":
    main()
