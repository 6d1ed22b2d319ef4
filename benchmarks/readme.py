"""Inserts the figures from `benchmarks/results` into the README.

    python -m benchmarks.readme

The README has two comments, `<!-- figures of benchmarks/results -->` and `<!-- end of figures -->`.
This module writes the text between them, and a test checks that it is up to date.
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
    for torchrun, for relight by default, and for relight when it is warm, and the unit.
    """

    text: str
    file: str
    name: str
    cells: tuple[str, str, str] = ("torchrun", "relight", "")
    unit: str = "s"


_DDP = ("torchrun", "cold", "named")
ROWS = (
    Row("Launch to first training step, 4 DDP workers",
        "warm", "launch of 4 workers, s", ("torchrun", "cold", "warm")),
    Row("Worker killed to next training step, 4 DDP workers",
        "warm", "restart of 4 workers, s", _DDP),
    Row("Node killed to next training step, 2 nodes", "warm", "loss of 1 node of 2, s", _DDP),
    Row("Restart of an elastic job below its maximum size", "nodes", "restart"),
    Row("Memory of the launcher", "results", "memory", unit="MiB"),
)  # fmt: skip


def cell(samples: Sequence[float], unit: str) -> str:
    """Return the median with two significant digits, or an empty string without samples."""
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
    """Return the README's text with the current figures.

    Raises:
        ValueError: if it lacks the comments.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{README} has no lines {BEGIN.strip()} … {END.strip()}")
    return "\n".join((before + begin, *figures(), "", end + after))


if __name__ == "__main__":
    README.write_text(filled(README.read_text()))
