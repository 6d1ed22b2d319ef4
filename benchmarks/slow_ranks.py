"""Whether slow ranks are detected: `python -m benchmarks.slow_ranks [--runs 4] [--at-once 3]`.

Real DistributedDataParallel jobs run on gloo, with 4 ranks on 1 or 2 nodes. Either one rank or all
ranks of a node need 10 to 50 % more time for their work, or all ranks are equally fast. The work is
a sleep, so that four ranks fit on two cores. All jobs have steps of 0.2 s with a jitter of 5, 10 or
20 %, ranks with different warm-up times, a checkpoint of 1 s that only rank 0 writes every 100
steps, and an evaluation of 3 s every 200 steps without synchronization between ranks. Half of the
runs call `relight.worker.progress`. A run ends when the slow ranks have been reported, or after
`--limit` seconds.

Writes one JSON line per run, and prints the table in docs/slow-ranks.md.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from relight.base.text import pluralize

RANKS = 4
COMPARED_S = 60
TRAIN = Path(__file__).parent / "slow_ranks_train.py"
SLOWER = (0, 10, 20, 30, 50)
JITTERS = (5, 10, 20)
GRACE_S = 15
"""How long a run continues after the first report, in case a second one is wrong."""


class Case(NamedTuple):
    """One run. The ranks in `slow` need `percent` more time."""

    percent: int
    nodes: int
    slow: tuple[int, ...]
    jitter: int
    reports_steps: bool
    seed: int


class Result(NamedTuple):
    """The ranks that were reported, and after how many seconds of training; None if never."""

    case: Case
    named: list[list[int]]
    after_s: float | None
    slower: float | None
    trained_s: float

    @property
    def found(self) -> bool:
        """Whether exactly the slow ranks were reported."""
        return bool(self.case.slow) and list(self.case.slow) in self.named

    @property
    def wrong(self) -> bool:
        """Whether a rank was reported that is not slow."""
        return any(set(ranks) - set(self.case.slow) for ranks in self.named)


def cases(runs: int, chance: random.Random) -> Iterator[Case]:
    """Yield the runs: for each slowdown, `runs` with a slow rank and `runs` with a slow node."""
    for number in range(runs):
        for percent in SLOWER:
            for nodes in (1, 2):
                first = chance.randrange(RANKS) if nodes == 1 else 2 * chance.randrange(2)
                slow = tuple(range(first, first + nodes)) if percent else ()
                jitter = JITTERS[number % len(JITTERS)]
                yield Case(percent, nodes, slow, jitter, number % 2 == 1, chance.randrange(10**6))


def run(case: Case, limit_s: float) -> Result:
    """Run one job."""
    with tempfile.TemporaryDirectory() as directory:
        agents = [_start(case, node, Path(directory)) for node in range(case.nodes)]
        logs = [Path(directory) / f"stderr{node}" for node in range(case.nodes)]
        try:
            return _watch(case, agents[0], logs, limit_s)
        finally:
            for agent in agents:
                agent.send_signal(signal.SIGTERM)
            for agent in agents:
                agent.wait()


def _start(case: Case, node: int, directory: Path) -> "subprocess.Popen[bytes]":
    meeting = ["--standalone"]
    if case.nodes > 1:
        meeting = [
            f"--nnodes={case.nodes}", "--rdzv-backend=file", f"--rdzv-endpoint={directory}/meet",
            "--rdzv-id=slow", "--rdzv-conf=keep_alive_interval=5",
        ]  # fmt: skip
    command = [
        sys.executable, "-m", "relight", "run", f"--nproc-per-node={RANKS // case.nodes}",
        *meeting, f"--watch-slow-ranks={COMPARED_S}", "--event-log-handler=console",
        "--shutdown-timeout=1", str(TRAIN), json.dumps(case._asdict()),
    ]  # fmt: skip
    with open(directory / f"stderr{node}", "wb") as stderr:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)


def _watch(
    case: Case, agent: "subprocess.Popen[bytes]", logs: list[Path], limit_s: float
) -> Result:
    named: list[list[int]] = []
    after_s = slower = None
    began, until = None, time.monotonic() + limit_s + 300
    while agent.poll() is None and time.monotonic() < until:
        time.sleep(0.5)
        texts = [log.read_text(errors="replace") for log in logs]
        lines = texts[0].splitlines()
        if began is None and any("\ntrain\n" in text for text in texts):  # rank 0 prints this
            began = time.monotonic()
            until = began + limit_s
        events = [json.loads(line) for line in lines if line.startswith('{"t"')]
        told = [event for event in events if event["event"] == "RanksSlow"]
        named = [event["ranks"] for event in told]
        if after_s is None and began is not None and list(case.slow) in named:
            after_s = round(time.monotonic() - began, 1)
            slower = told[-1]["slower"]
            until = min(until, time.monotonic() + GRACE_S)
    if began is None or agent.poll() is not None:
        raise RuntimeError(f"the job did not train: {logs[0].read_text(errors='replace')[-2000:]}")
    return Result(case, named, after_s, slower, round(time.monotonic() - began, 1))


def table(results: list[Result]) -> list[str]:
    """Return the rows of the table in the documentation."""
    heads = "slower by", "slow part", "runs", "reported", "wrong", "reported after", "measured"
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for percent in SLOWER:
        for nodes, what in ((1, "one rank of 4"), (2, "both ranks of one of 2 nodes")):
            group = [r for r in results if (r.case.percent, r.case.nodes) == (percent, nodes)]
            after = sorted(r.after_s for r in group if r.after_s is not None)
            by = sorted(r.slower for r in group if r.slower is not None)
            cells = (
                f"{percent} %",
                what if percent else f"nothing; {pluralize(nodes, 'node')}",
                str(len(group)),
                str(sum(r.found for r in group)) if percent else "-",
                str(sum(r.wrong for r in group)),
                f"{after[0]:.0f} to {after[-1]:.0f} s" if after else "-",
                f"{by[0]:.0%} to {by[-1]:.0%}" if by else "-",
            )
            rows.append(f"| {' | '.join(cells)} |")
    trained = sum(r.trained_s for r in results if not r.case.percent)
    rows.append(f"\nwithout a slow rank: {trained / 60:.0f} minutes of training in all")
    return rows


def read(path: Path) -> list[Result]:
    """Return the runs stored in a file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        Result(**{**line, "case": Case(**{**line["case"], "slow": tuple(line["case"]["slow"])})})
        for line in lines
    ]


def main() -> None:
    """Run all cases, and write and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=6, help="of each case; default 6")
    parser.add_argument("--at-once", type=int, default=3, help="jobs side by side; default 3")
    parser.add_argument("--limit", type=float, default=300, help="seconds of training; default 300")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "slow_ranks.jsonl"
    )
    parser.add_argument("--show", action="store_true", help="only print the table of --out")
    options = parser.parse_args()
    if options.show:
        print("\n".join(table(read(options.out))))
        return
    options.out.write_text("")

    def one(case: Case) -> Result:
        result = run(case, options.limit)
        line: dict[str, Any] = {**result._asdict(), "case": case._asdict()}
        with open(options.out, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
        return result

    with ThreadPoolExecutor(options.at_once) as pool:
        chosen = cases(options.runs, random.Random(options.seed))
        print("\n".join(table(list(pool.map(one, chosen)))))


if __name__ == "__main__":
    main()
