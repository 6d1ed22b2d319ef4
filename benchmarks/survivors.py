"""The cost of losing one of 4 ranks: `python -m benchmarks.survivors [--rounds 5]`.

    tiny      from kill -9 of a rank to the next trained step on all ranks, with a tiny model
    200 MB    the rank-seconds lost, with a model of that size and a checkpoint on disk: the time
              from the last good step to the one after it, summed over all ranks. The checkpoint
              contains the last good step, so no step is repeated. This is the best case for a
              restart.
    200 MB, checkpoint 20 steps old
              the same, but a restart repeats 20 steps first

torchrun restarts all ranks, and so does relight without `recoverable`; with it, the other ranks
keep running (docs/survivors.md). Both relight variants start new ranks from a warm process
(`--preload`). The three variants alternate. Writes `survivors.json` and `survivors.md` to
`benchmarks/results/`.
"""

import math
import os
import statistics
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks import results
from benchmarks.warm import agent, check_warm, directory, events, settle, step, until

WORKER = str(Path(__file__).with_name("survivors_worker.py"))
RANKS = 4
WAYS = {
    "torchrun": ("torchrun", "plain"),
    "relight, all ranks restart": ("named", "plain"),
    "relight, ranks stay": ("named", "recoverable"),
}
MODELS = {"tiny": (0.016, 0), "200 MB": (200.0, 0), "200 MB, checkpoint 20 steps old": (200.0, 20)}
"""The model's size in MB, and the age of the checkpoint in steps."""


class Loss(NamedTuple):
    """One failure: seconds from the kill to the first new step on all ranks, rank-seconds lost, the
    usual duration of a step in seconds, and the load of the machine.
    """

    seconds: float
    rank_seconds: float
    step_s: float
    load: float


def lose(way: str, megabytes: float, age: int) -> Loss:
    """Run a job, kill one of its ranks, and return the costs."""
    launcher, mode = WAYS[way]
    flags = [f"--nproc-per-node={RANKS}", "--max-restarts=1"]
    if launcher != "torchrun":
        flags.append("--shutdown-timeout=60")  # if the machine is busy, a step may take long
    load = os.getloadavg()[0]
    with (
        directory(),
        agent(launcher, flags, mode, str(megabytes), str(age), worker=WORKER) as process,
    ):
        for _ in range(RANKS):
            step(process)
        settle(launcher, 1)
        Path("kill").touch()
        for _ in range(RANKS):
            if step(process).restart != 1:
                raise RuntimeError("a step of the first generation after its end")
        until(lambda: all(_first_new_step(notes) for notes in _notes()))
        check_warm(launcher)
        if mode == "recoverable" and '"RanksReplaced"' not in events():
            raise RuntimeError("all ranks have restarted:\n" + events())
        return _loss(_notes(), load)


class Note(NamedTuple):
    """A step on one rank: the number of restarts before it, its number, and when it ended."""

    restart: int
    step: int
    at: float


def _notes() -> list[list[Note]]:
    """Return the notes of each rank, except for a line that is still being written."""
    texts = [Path(f"rank-{rank}").read_text() for rank in range(RANKS)]
    lines = [
        [line.split() for line in text.splitlines(True) if line[-1:] == "\n"] for text in texts
    ]
    return [[Note(int(a), int(b), float(c)) for a, b, c in each] for each in lines]


def _first_new_step(notes: list[Note]) -> float | None:
    """Return when a rank first took a step that is not a repetition, or None."""
    last = max(note.step for note in notes if note.restart == 0)
    return next((note.at for note in notes if note.restart and note.step > last), None)


def _loss(notes: list[list[Note]], load: float) -> Loss:
    """Return the costs, given each rank's notes."""
    before = [[note.at for note in each if note.restart == 0] for each in notes]
    steps = [b - a for each in before for a, b in pairwise(each[:-1])]
    new = [_first_new_step(each) or math.inf for each in notes]
    lost = [after - each[-1] for each, after in zip(before, new, strict=True)]
    return Loss(max(new) - before[1][-1], sum(lost), statistics.median(steps), load)


def main() -> None:
    """Run the benchmarks, print the table, and write the results."""
    parser = results.arguments("Measure what the loss of a rank costs.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS))
    options = parser.parse_args()
    samples: dict[str, dict[str, list[Loss]]] = {
        model: {way: [] for way in WAYS} for model in options.only
    }
    for number in range(options.rounds):
        for model in options.only:
            for way in list(WAYS)[:: -1 if number % 2 else 1]:
                loss = lose(way, *MODELS[model])
                samples[model][way].append(loss)
                print(model, way, *(f"{value:.3f}" for value in loss), flush=True)
    text = results.write(options.out, "survivors", samples, _as_text(samples))
    print(f"\n{text}\nwritten to {options.out}")


def _as_text(samples: dict[str, dict[str, list[Loss]]]) -> list[str]:
    rows = []
    for model, of_ways in samples.items():
        for title, field in (("kill -9 to the next step, s", 0), ("rank-seconds lost", 1)):
            values = [[loss[field] for loss in losses] for losses in of_ways.values()]
            factors = [results.times(values[-1], others) for others in values[:-1]]
            cells = [f"{model}: {title}", *(results.spread(each, count=True) for each in values)]
            rows.append(" | ".join([*cells, *factors]))
    every = [loss for of_ways in samples.values() for losses in of_ways.values() for loss in losses]
    steps = {
        model: statistics.median(loss.step_s for losses in of_ways.values() for loss in losses)
        for model, of_ways in samples.items()
    }
    took = ", ".join(f"{results.number(seconds)} s ({model})" for model, seconds in steps.items())
    load = results.spread([loss.load for loss in every])
    return [
        *results.table(
            " | ".join(
                [f"one of {RANKS} ranks is killed", *WAYS, "than torchrun", "than a restart"]
            ),
            rows,
        ),
        "",
        f"{results.machine()} A step took {took}. Load average of the machine: {load}.",
    ]


if __name__ == "__main__":
    main()
