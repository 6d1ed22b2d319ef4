"""Builds the content of a status page at one point in time, as a JSON object that `page.js`
renders.

Secrets in the job's text are redacted (base/redaction). This module has no side effects.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from functools import lru_cache
from signal import SIGINT, SIGTERM
from typing import Any, NamedTuple

from relight.base import redaction
from relight.base.errors import EXIT_HUNG, EXIT_OK, signal_exit_code, signal_name
from relight.base.text import format_names
from relight.core.status.charts import Progress, job_charts, job_progress
from relight.core.status.goodput import Account
from relight.core.status.phases import PHASES
from relight.core.status.rates import Rates
from relight.core.status.snapshot import (
    DONE,
    ENDED,
    RUNNING,
    NodeSnapshot,
    RankSnapshot,
    WholeJob,
    early_exits,
    ranked_workers,
)
from relight.core.status.timeline import History
from relight.events.event_lines import INTERNAL, Line, shown
from relight.inspect.gpus import GpuUse

LOST = "lost"
"""The state of a job whose agent was killed without leaving a record."""
_STOPPED = (signal_exit_code(SIGTERM), signal_exit_code(SIGINT))
_MAX_EVENTS = 1000
_MAX_BARS, _MAX_MARKS, _MAX_FAILURES, _MAX_GENERATIONS = 2000, 500, 50, 200
_MAX_TEXT = 2000
_OF_NODE = ("id", "name", "host", "pid", "directory", "started", "taken", "generation", "restart",
            "max_restarts", "nodes", "world_size")  # fmt: skip
"""What the page shows of its own node's snapshot."""
_RECOVERED_S = 60.0
"""A restarted job that doesn't report steps counts as recovered after this many seconds."""


class Reading(NamedTuple):
    """A job's state at one point in time. `answers` is true if the agent is responding or the job
    has ended, and `gone` is true if the agent was killed. The `gpus` field maps the pids of
    processes on this machine to their GPU usage.
    """

    job: WholeJob
    rates: Rates
    history: History
    answers: bool
    gone: bool
    gpus: Mapping[int, GpuUse] = {}

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.gone or self.job.nodes[0].state == ENDED


def look(reading: Reading, actions: Iterable[str]) -> dict[str, Any]:
    """Return the content of the status page.

    Args:
        reading: the job's state, which covers at least one node.
        actions: the actions that the page offers.
    """
    own = reading.job.nodes[0]
    history = reading.history
    return {
        "job": _job(reading),
        "lanes": [
            {
                "name": name,
                "bars": [[bar.generation, bar.phase, bar.began, bar.ended]
                         for bar in each.bars[-_MAX_BARS:]],
                "marks": [[mark.at, mark.kind, hidden(mark.text)]
                          for mark in each.marks[-_MAX_MARKS:]],
            }
            for name, each in history.lanes.items()
        ],
        "generations": [
            {**row._asdict(), "cause": hidden(row.cause)}
            for row in history.generations[-_MAX_GENERATIONS:]
        ],
        "failures": [
            {"at": each.at, "text": hidden(each.text)}
            for each in history.failures[-_MAX_FAILURES:]
        ],
        "charts": [[hidden(chart.name), *chart[1:]] for chart in job_charts(reading.job)],
        "ranks": [_row(node, rank, reading) for node, rank in ranked_workers(reading.job)],
        "goodput": _goodput(own.account),
        "phases": PHASES,
        "actions": list(actions),
    }  # fmt: skip


class Events:
    """The events from all nodes of a job, in order of arrival and numbered for the page.

    Args:
        most: how many events to keep.
    """

    def __init__(self, most: int = _MAX_EVENTS) -> None:
        self._kept: deque[dict[str, Any]] = deque(maxlen=most)
        self._count = 0

    def add(self, node: str, line: Line) -> None:
        """Add an event from a node."""
        self._count += 1
        text = shown(line).removeprefix(line.name).strip()
        self._kept.append(
            {"n": self._count, "at": line.time, "node": node, "event": line.name,
             "internal": line.name in INTERNAL, "text": hidden(text)}
        )  # fmt: skip

    def shown(self) -> list[dict[str, Any]]:
        """Return the events that have been kept."""
        return list(self._kept)


def shown_state(reading: Reading) -> str:
    """Return the job's state as a single word."""
    own = reading.job.nodes[0]
    if own.state == ENDED:
        ends = {EXIT_OK: "succeeded", **dict.fromkeys(_STOPPED, "cancelled")}
        return ends.get(own.exit_code or EXIT_OK, "failed")
    return own.state if reading.answers else LOST


def _job(reading: Reading) -> dict[str, Any]:
    own = reading.job.nodes[0]
    state = shown_state(reading)
    notice, mood = _notice(reading, state)
    progress = job_progress(reading.job)
    return {
        **{name: getattr(own, name) for name in _OF_NODE},
        "command": " ".join(own.command),
        **(dict.fromkeys(Progress._fields) if progress is None else progress._asdict()),
        "shown_state": state,
        "over": reading.is_over,
        "notice": hidden(notice),
        "mood": mood,
    }


def _notice(reading: Reading, state: str) -> tuple[str, str]:
    """Return the page's headline and its severity."""
    own, silent = reading.job.nodes[0], reading.job.silent
    if own.state == ENDED:
        return f"exit code {own.exit_code}: {own.reason}", "bad" if own.exit_code else "good"
    if state == LOST:
        why = "was killed" if reading.gone else "is not responding, because it is suspended"
        return f"Its agent {why}.", "bad"
    if silent:
        return f"No response from {format_names(silent)}; their ranks are not shown.", "warn"
    if own.generation < 0:
        return "It is waiting for a group to form.", ""
    if early := early_exits(reading.job):
        return early, ""
    if own.generation and not _has_recovered(reading):
        return f"generation {own.generation}: {own.cause}", ""
    return "", ""


def _has_recovered(reading: Reading) -> bool:
    """Return whether the workers in the latest generation are making progress. They are assumed to
    be making progress once they have reported a step or have been running for a while.
    """
    own, generations = reading.job.nodes[0], reading.history.generations
    if own.state == RUNNING and any(
        rank.use is not None and rank.use.step is not None for rank in own.ranks
    ):
        return True
    latest = generations[-1] if generations else None
    return (
        own.state in (RUNNING, DONE)
        and latest is not None
        and latest.number == own.generation
        and own.taken - latest.began >= _RECOVERED_S
    )


def _goodput(account: Account | None) -> dict[str, Any] | None:
    if account is None:
        return None
    phases = account.total._asdict()
    return {
        "share": account.goodput,
        "is_most": account.is_most,
        "phases": {name: seconds for name, seconds in phases.items() if seconds is not None},
        "failures": account.failures,
        "mttr": account.mttr_s,
        "mtbf": account.mtbf_s,
    }


def _row(node: NodeSnapshot, rank: RankSnapshot, reading: Reading) -> list[Any]:
    """Return a rank's table row, with its fields in the order of COLUMNS in page.js. For a rank
    that has ended, the resource usage is the last known usage, and the field after the last line of
    output contains the time when it was measured.
    """
    use, pace = rank.use, reading.rates.pace(node, rank)
    is_here = node is reading.job.nodes[0] and rank.exitcode is None
    gpu = reading.gpus.get(rank.pid, GpuUse()) if is_here else GpuUse()
    is_over = rank.exitcode is not None or reading.is_over or not reading.answers
    state = "unknown" if reading.gone and rank.exitcode is None else rank_state(rank, node)
    return [
        rank.rank, node.node, node.host, state, rank.exitcode, rank.pid,
        use.step if use is not None else None, pace.steps, pace.cpu,
        (use.memory or None) if use is not None else None, hidden(rank.last_line),
        use.seen_at if use is not None and is_over else None, gpu.busy, gpu.memory,
        hidden(" ".join(use.reported)) if use is not None and use.reported else None,
    ]  # fmt: skip


def rank_state(rank: RankSnapshot, node: NodeSnapshot) -> str:
    """Return a rank's state as a single word, followed by the reason if the rank has exited and the
    reason is known.
    """
    if rank.exitcode is None:
        return "running" if node.exit_code is None else "unknown"
    if rank.stop_signal and rank.rank not in node.blamed:
        return "stopped"
    if rank.stop_signal and node.exit_code == EXIT_HUNG:
        return "hung"
    if rank.exitcode < 0:
        return f"killed ({signal_name(-rank.exitcode)})"
    failed = rank.exitcode or rank.rank in node.blamed  # a blamed rank exited too early
    return f"failed ({rank.exitcode})" if failed else "succeeded"


@lru_cache(maxsize=8192)
def hidden(text: str) -> str:
    """Redact secrets in text, and truncate it if it is very long."""
    return redaction.redact_text(text[:_MAX_TEXT])
