"""Turns successive samples of jobs into the rows of `relight top`. This module does no I/O."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Any, NamedTuple

from relight.base.fields import printable
from relight.base.text import format_duration, format_size, pluralize
from relight.core.status.charts import numbers_in, sparkline
from relight.core.status.rates import Uses
from relight.core.status.snapshot import Chart
from relight.inspect.gpus import Gpu, GpuUse
from relight.job.app import AppState
from relight.job.handles import RUN, shown_replica
from relight.job.status import AppStatus, ReplicaStatus

_MAX_LINE = 200
_SPARKLINE = 24
"""The maximum width of a sparkline, in characters."""
_RANK = re.compile(r"\brank (\d{1,9})\b", re.IGNORECASE)
HEADS = ("JOB", "REPLICA", "HOST", "STATE", "STEP", "STEP/S", "CPU", "MEMORY", "GPU",
         "GPU MEMORY", "REPORT", "LAST LINE")  # fmt: skip
ORDERS = ("rank", "host", "state", "step", "rate", "cpu", "memory")
"""The columns to sort by. The most noteworthy row comes first: the one with the lowest step or
rate, or the highest usage.
"""
_IMPORTANT = ("STATE", "REPLICA", "JOB", "STEP", "REPORT", "LAST LINE", "STEP/S", "HOST", "GPU",
              "GPU MEMORY", "CPU", "MEMORY")  # fmt: skip
"""The order in which columns receive the available space."""
_READABLE = {"JOB": 12, "REPLICA": 12, "HOST": 16, "REPORT": 12, "LAST LINE": 16}
"""The minimum width at which each of the long columns is useful. The other columns are never
shortened.
"""
_STATES = ("FAILED", "UNKNOWN", "CANCELLED", "UNSUBMITTED", "SUBMITTED", "PENDING", "RUNNING",
           "SUCCEEDED")  # fmt: skip


class JobLook(NamedTuple):
    """A sample of a job: its handle, its status, and its name (may be empty)."""

    handle: str
    status: AppStatus
    name: str = ""


class Row(NamedTuple):
    """A row for a replica of a job, or for a whole job without replicas, in which case `rank` is
    -1. The `rate` field is in steps per second, and `cpu` is in CPUs. None means that a value is
    unknown.
    """

    handle: str
    role: str
    rank: int
    host: str
    state: str
    step: int | None
    rate: float | None
    cpu: float | None
    memory: int | None
    last_line: str
    name: str = ""
    reported: str = ""
    gpu: GpuUse = GpuUse()

    @property
    def key(self) -> str:
        """The unique key of the row: the handle of the rank, or of the job."""
        return self.handle if self.rank < 0 else f"{self.handle}/{self.role}/{self.rank}"

    def cells(self) -> tuple[str, ...]:
        """Return the text of each column (HEADS)."""
        app_id = self.handle.rpartition("/")[2]
        return (
            app_id if app_id.startswith(self.name) else f"{app_id} {self.name}",
            shown_replica(self.handle.partition("://")[0], self.role, self.rank).lstrip("/")
            if self.rank >= 0
            else "",
            self.host,
            self.state,
            "" if self.step is None else str(self.step),
            "" if self.rate is None else _shown_rate(self.rate),
            "" if self.cpu is None else f"{self.cpu:.0%}",
            "" if self.memory is None else format_size(self.memory),
            "" if self.gpu.busy is None else f"{self.gpu.busy:.0%}",
            "" if self.gpu.memory is None else format_size(self.gpu.memory),
            self.reported,
            self.last_line,
        )


class SampleHistory:
    """Keeps the latest samples of jobs, in order to compute rates."""

    def __init__(self) -> None:
        self._uses: dict[str, Uses] = {}

    def rows(
        self, jobs: Iterable[JobLook], gpu_of: Callable[[int], GpuUse] = lambda _: GpuUse()
    ) -> list[Row]:
        """Return the rows for a sample, and keep the sample for the next call.

        Args:
            jobs: the sample.
            gpu_of: returns a process's usage of this machine's GPUs.
        """
        rows, before, self._uses = [], self._uses, {}
        for job in jobs:
            for each in job.status.replicas:
                row = _row(job, each)
                if each.pid and not each.state.is_over:
                    row = row._replace(gpu=gpu_of(each.pid))
                if each.use is not None:
                    uses = self._uses[row.key] = before.get(row.key, Uses())
                    cpu, rate = uses.take(each.use)
                    row = row._replace(cpu=cpu, rate=rate)
                rows.append(row)
            if not job.status.replicas:
                line = printable(job.status.message, lines=False)[:_MAX_LINE]
                state = job.status.state.name
                rows.append(
                    Row(job.handle, "", -1, "", state, None, None, None, None, line, job.name)
                )
        return rows


def _row(job: JobLook, each: ReplicaStatus) -> Row:
    line = printable(each.error or each.last_line, lines=False)[:_MAX_LINE]
    if each.exitcode:
        line = f"exit code {each.exitcode}: {line}" if line else f"exit code {each.exitcode}"
    step, memory = (
        (each.use.step, each.use.memory or None) if each.use is not None else (None, None)
    )
    return Row(
        job.handle, each.role, each.replica, printable(each.host), each.state.name, step, None,
        None, memory, line, job.name, " ".join(each.use.reported if each.use else ()),
    )  # fmt: skip


def ordered(rows: Iterable[Row], order: str, *, reverse: bool = False) -> list[Row]:
    """Return the rows sorted by one of ORDERS, with unknown values last."""
    every = sorted(rows, key=lambda row: (row.handle, row.role, row.rank), reverse=reverse)
    if order == "rank":
        return every
    known = [row for row in every if _value(row, order) is not None]
    known.sort(key=lambda row: _value(row, order), reverse=reverse)
    return known + [row for row in every if _value(row, order) is None]


def _value(row: Row, order: str) -> Any:
    """Return a row's sort key. The more noteworthy a row, the lower its key."""
    value = getattr(row, order)
    if order == "state":
        return _STATES.index(value)
    return -value if order in ("cpu", "memory") and value is not None else value


def matching(rows: Iterable[Row], words: str) -> list[Row]:
    """Return the rows whose cells contain all of these words, ignoring case. `rank 1` matches only
    rank 1, not every row that contains a 1.
    """
    ranks = {int(number) for number in _RANK.findall(words)}
    wanted = _RANK.sub("", words).lower().split()
    return [
        row
        for row in rows
        if (row.rank in ranks or not ranks)
        and all(word in " ".join(row.cells()).lower() for word in wanted)
    ]


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of a table. Empty columns are omitted. The job column is also
    omitted if there is only one job.
    """
    lines = [row.cells() for row in rows]
    shown = [number for number in range(len(HEADS)) if any(line[number] for line in lines)]
    if len({row.handle for row in rows}) < 2:
        shown = shown[1:]
    return [HEADS[number] for number in shown], [[line[n] for n in shown] for line in lines]


def widths(
    heads: Sequence[str], lines: Sequence[Sequence[str]], room: int, between: int, keep: str = ""
) -> dict[int, int]:
    """Choose the columns for a line. Return a map from column number to width.

    Columns that would be too narrow to read are dropped, the least important first. The long
    columns then share the remaining space, from left to right.

    Args:
        heads: the column headings.
        lines: the text of each row's cells.
        room: the width of a line.
        between: the padding of each column.
        keep: the heading of the sort column, which is never dropped.
    """
    full = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    chosen: dict[int, int] = {}
    left = room
    for head in dict.fromkeys((keep, *_IMPORTANT)):
        if head in heads:
            number = heads.index(head)
            width = min(full[number], _READABLE.get(head, full[number]))
            if width + between <= left or not chosen:
                chosen[number] = width
                left -= width + between
    for number in sorted(chosen):
        more = max(0, min(left, full[number] - chosen[number]))
        chosen[number], left = chosen[number] + more, left - more
    return dict(sorted(chosen.items()))


def shortened(text: str, width: int) -> str:
    """Shorten text if it is longer than the width, by leaving out its middle."""
    if len(text) <= width or width < 1:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def totals(rows: Iterable[Row]) -> str:
    """Return a line with the numbers of jobs, nodes and ranks, and their states. A replica of a
    submitted job counts as an agent, not as a rank.
    """
    every = list(rows)
    ranks = [row for row in every if row.rank >= 0]
    nodes = {(row.handle, row.host) for row in ranks if row.host}
    jobs = pluralize(len({row.handle for row in every}), "job")
    word = "rank" if all(row.handle.startswith(f"{RUN}://") for row in ranks) else "replica"
    text = f"{jobs}, {pluralize(len(nodes), 'node')}, {pluralize(len(ranks), word)}"
    counts = Counter(row.state for row in ranks)
    states = ", ".join(f"{counts[state]} {state}" for state in _STATES if counts[state])
    return f"{text}: {states}" if states else text


def gpus_line(gpus: Sequence[Gpu]) -> str:
    """Return a one-line summary of this machine's GPUs, or an empty string without GPUs."""
    models = {gpu.model for gpu in gpus}
    texts = []
    for gpu in gpus:
        text = f"{gpu.number}:" if len(models) == 1 else f"{gpu.number} ({gpu.model}):"
        if gpu.busy is not None:
            text += f" {gpu.busy}%"
        if gpu.used_mib is not None and gpu.total_mib is not None:
            text += f" {gpu.used_mib / 1024:.0f}/{gpu.total_mib / 1024:.0f} GiB"
        texts.append(text)
    if not texts:
        return ""
    head = f"GPUs here ({models.pop()})" if len(models) == 1 else "GPUs here"
    return f"{head}: {', '.join(texts)}"


def headline(job: JobLook) -> list[str]:
    """Return a job's summary, with its state, its generation and its restarts."""
    status = job.status
    lines = [f"{job.handle} {status.state.name}"]
    if status.message:
        lines.append(f"  {printable(status.message, lines=False)}")
    if status.restarts:
        lines.append(f"  restarted {pluralize(status.restarts, 'time')}")
    return [*lines, *(f"  {text}" for text in number_lines(status))]


def number_lines(status: AppStatus) -> list[str]:
    """Return lines that show a job's progress and how the numbers that it reports have changed over
    time.
    """
    lines = []
    if (progress := status.progress) is not None:
        text = f"step {progress.step}"
        text += "" if progress.total is None else f" of {progress.total}"
        text += "" if progress.rate is None else f", {_shown_rate(progress.rate)} steps/s"
        if progress.remaining_s is not None:
            text += f", about {format_duration(progress.remaining_s)} left"
        lines.append(text)
    latest: dict[str, float] = {}
    for each in reversed(status.replicas):  # the lowest rank wins, as in charts
        latest |= numbers_in(each.use.reported if each.use is not None else ())
    if charts := [
        _chart(each, latest.get(each.name)) for each in status.charts if len(each.values) > 1
    ]:
        lines.append("   ".join(charts))
    return lines


def _chart(chart: Chart, latest: float | None) -> str:
    """Format a chart with its last known value. NaN and infinity, which a chart doesn't contain,
    are only known if they are the latest value.
    """
    last = next((value for value in reversed(chart.values) if value is not None), None)
    last = latest if latest is not None and not isfinite(latest) else last
    shown = "" if last is None else f" {last:.3g}"
    return f"{printable(chart.name, lines=False)} {sparkline(chart.values, _SPARKLINE)}{shown}"


def gone(last: JobLook) -> JobLook:
    """Return the last sample of a job that has disappeared, with UNKNOWN in place of unfinished
    states.
    """
    replicas = tuple(
        each if each.state.is_over else each._replace(state=AppState.UNKNOWN, use=None)
        for each in last.status.replicas
    )
    status = last.status
    if not status.state.is_over:
        why = "no longer known; it was deleted, or its agent was killed"
        status = status._replace(state=AppState.UNKNOWN, message=why, replicas=replicas)
    return last._replace(status=status)


def _shown_rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
