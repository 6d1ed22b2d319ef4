"""Reads the files that a rank of the test writes to the job's directory (`rank.py`)."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

MAX_BYTES = 128 << 10
"""Size limit for a rank's output. The middle of longer output is left out."""


class RankReports(NamedTuple):
    """The content of the files that rank `rank` wrote.

    `phases` contains the report for each phase, together with the time of the report. The `collect`
    field says why the test could not be collected, `stacks` contains the stacks at the time of the
    timeout, and `end` is the reason that was passed to `pytest.exit`. All three are empty by
    default. The `warnings` field contains the test's warnings, and `printed` contains titled parts
    of the output that no report includes.
    """

    rank: int
    phases: dict[str, tuple[float, pytest.TestReport]]
    collect: str
    stacks: str
    end: str
    warnings: list[dict[str, Any]]
    printed: list[tuple[str, str]]


def read(folder: Path, rank: int) -> RankReports:
    """Read a rank's files. A phase that ended after the timeout counts as unfinished, because only
    the launcher's signal interrupted the hung call.
    """
    stacks = folder / f"stacks.{rank}"
    is_late = stacks.exists() and stacks.stat().st_size > 0
    over_at = stacks.stat().st_mtime if is_late else float("inf")
    phases: dict[str, tuple[float, pytest.TestReport]] = {}
    texts = {"collect": "", "end": ""}
    warnings, late = [], dict[str, str]()
    reports = folder / f"reports.{rank}"
    for line in reports.read_text(errors="replace").splitlines() if reports.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the rank was killed while writing it
        if "report" in record:
            report = pytest.TestReport._from_json(record["report"])
            if isinstance(report.longrepr, list):  # JSON lacks tuples
                report.longrepr = tuple(report.longrepr)
            if record["time"] <= over_at:
                phases[str(report.when)] = record["time"], report
            else:
                late |= {f"{title} (rank {rank})": text for title, text in report.sections}
        elif "warning" in record:
            warnings.append(record["warning"])
        else:
            texts |= {name: record[name] for name in texts if name in record}
    printed = list(late.items())
    printed += [
        (f"printed to {name} by rank {rank}", text)
        for name in ("stdout", "stderr")
        if (text := shortened(folder / f"{name}.{rank}"))
    ]
    return RankReports(
        rank, phases, texts["collect"], shortened(stacks), texts["end"], warnings, printed
    )


def shortened(path: Path) -> str:
    """Return a text file's content, or an empty string if the file does not exist. The middle of a
    long file is left out.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            head = file.read(MAX_BYTES // 2 if size > MAX_BYTES else MAX_BYTES)
            file.seek(max(file.tell(), size - MAX_BYTES // 2))
            tail = file.read(MAX_BYTES // 2)
    except FileNotFoundError:
        return ""
    left_out = size - len(head) - len(tail)
    between = f"\n… {left_out:,} bytes are left out …\n".encode() if left_out > 0 else b""
    return (head + between + tail).decode(errors="replace")


def cut(text: str) -> str:
    """Shorten a string if it is long, by leaving out its middle."""
    if len(text) <= MAX_BYTES:
        return text
    half = MAX_BYTES // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters are left out …\n{text[-half:]}"
