"""Reads the files that a test's rank (`rank.py`) writes to the job's directory."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

MAX_BYTES = 128 << 10
"""Size limit for a rank's output; longer output is shortened in the middle."""


class RankReports(NamedTuple):
    """The files of rank `rank`.

    `phases` has the reports of the phases, with their times. `collect` says why the test could not
    be collected, `stacks` has the stacks at the timeout, and `end` is the reason given to
    `pytest.exit`; all three are empty by default. `warnings` has the test's warnings, and `printed`
    its output that isn't part of a report, under titles.
    """

    rank: int
    phases: dict[str, tuple[float, pytest.TestReport]]
    collect: str
    stacks: str
    end: str
    warnings: list[dict[str, Any]]
    printed: list[tuple[str, str]]


def read(folder: Path, rank: int) -> RankReports:
    """Read a rank's files. A phase that ended after the timeout counts as unfinished, because the
    launcher's signal interrupted the call that hung.
    """
    stacks = folder / f"stacks.{rank}"
    is_late = stacks.exists() and stacks.stat().st_size > 0
    over_at = stacks.stat().st_mtime if is_late else float("inf")
    phases: dict[str, tuple[float, pytest.TestReport]] = {}
    texts = {"collect": "", "end": ""}
    warnings, late = [], dict[str, str]()
    for line in _lines(folder / f"reports.{rank}"):
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
    """Return a text file's content, shortened in the middle if it is long, or an empty string if it
    does not exist.
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
    """Cut out the middle of a string if it is long."""
    if len(text) <= MAX_BYTES:
        return text
    half = MAX_BYTES // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters are left out …\n{text[-half:]}"


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []
