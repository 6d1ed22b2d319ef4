"""Fills the figures of the README in from `benchmarks/results`.

    python -m benchmarks.readme

The README has two comments, `<!-- figures of benchmarks/results -->` and `<!-- end of figures -->`;
what is between them is written by this module. A test checks that it is current.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.results import table

RESULTS = Path(__file__).with_name("results")
README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- figures of benchmarks/results -->\n", "<!-- end of figures -->\n"

Samples = Mapping[str, Mapping[str, Sequence[float]]]


class Row(NamedTuple):
    """A row of the table: its text, the file and the name of its samples, the names of the samples
    of torchrun, of relight by default, and of relight when it is warm, and the unit.
    """

    text: str
    file: str
    name: str
    cells: tuple[str, str, str] = ("torchrun", "relight", "")
    unit: str = "s"


_DDP = ("torchrun", "cold", "named")
ROWS = (
    Row("start to the first trained step, 4 DDP workers; warm: the second start, `--keep-warm`",
        "warm", "launch of 4 workers, s", ("torchrun", "cold", "warm")),
    Row("kill -9 of a worker to the first trained step, 2 DDP workers; warm: `--preload`",
        "warm", "restart of 2 workers, s", _DDP),
    Row("the same, 4 DDP workers on 2 processors", "warm", "restart of 4 workers, s", _DDP),
    Row("kill -9 of one of 2 nodes to the first trained step of the other; warm: `--preload`",
        "warm", "loss of 1 node of 2, s", _DDP),
    Row("a node is killed, and a worker of another fails of it, to new workers on the others",
        "nodes", "loss-noticed"),
    Row("restart of a job that has fewer nodes than its maximum, to new workers",
        "nodes", "restart"),
    Row("start to a worker's first line, without torch", "results", "first-line"),
    Row("kill -9 of a worker to the first line of its replacement, without torch",
        "results", "restart"),
    Row("memory of the launcher with 2 workers", "results", "memory", unit="MiB"),
    Row("lines a second through `--tee`", "results", "tee", unit="lines"),
)  # fmt: skip


def cell(samples: Sequence[float], unit: str) -> str:
    """Return the median with two digits, or nothing if there are no samples."""
    if not samples:
        return ""
    median = statistics.median(samples)
    digits = f"{median:#.2g}".rstrip(".") if median < 100 else f"{median:,.0f}"
    return f"{digits} {unit}"


def figures() -> list[str]:
    """Return the lines of the table."""
    rows = []
    for row in ROWS:
        results: Samples = json.loads((RESULTS / f"{row.file}.json").read_text())
        samples = results[row.name]
        cells = [cell(samples.get(name, ()), row.unit) for name in row.cells]
        rows.append(" | ".join((row.text, *cells)))
    return table(" | torchrun 2.13 | relight, default | relight, warm", rows)


def filled(text: str) -> str:
    """Return the text of the README with the present figures.

    Raises:
        ValueError: it has no place for them.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{README} has no lines {BEGIN.strip()} … {END.strip()}")
    return "\n".join((before + begin, *figures(), "", end + after))


if __name__ == "__main__":
    README.write_text(filled(README.read_text()))
