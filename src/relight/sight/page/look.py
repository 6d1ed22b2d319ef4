"""What a status page shows of a job at one moment, as a JSON object; `page.js` draws it.

Texts of the job are hidden where they look like secrets (job/privacy). Pure.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from relight.core import timeline
from relight.core.event_lines import Line, shown
from relight.core.snapshot import ENDED, NodeSnapshot, RankSnapshot
from relight.core.timeline import Record
from relight.core.waiting import names
from relight.errors import EXIT_OK, signal_name
from relight.job import privacy

LOST = "lost"
"""The state of a job whose agent was killed: it has left nothing."""
_MOST_EVENTS = 1000
_MOST_BARS, _MOST_MARKS, _MOST_FAILURES, _MOST_GENERATIONS = 2000, 500, 50, 200
_MOST_TEXT = 2000


class Reading(NamedTuple):
    """All that was read of a job. `nodes` begins with the one that was asked; `silent` are hosts
    whose agents do not answer. `records` are the events of each node, by its name on the timeline.
    `answers`: its agent does, or it has ended; `gone`: it was killed.
    """

    nodes: tuple[NodeSnapshot, ...]
    silent: tuple[str, ...]
    records: Mapping[str, Sequence[Record]]
    goodput: Mapping[str, Any] | None
    answers: bool
    gone: bool


def look(reading: Reading, actions: Iterable[str]) -> dict[str, Any]:
    """Return what the page shows.

    Args:
        reading: of at least one node.
        actions: what the page can do.
    """
    own = reading.nodes[0]
    begun = {node.host: node.started for node in reading.nodes}
    lanes = {name: timeline.lane(records, begun.get(name, own.started))
             for name, records in reading.records.items()}  # fmt: skip
    first: Sequence[Record] = next(iter(reading.records.values()), ())
    return {
        "job": _job(reading),
        "lanes": [
            {
                "name": name,
                "bars": [[bar.generation, bar.phase, bar.began, bar.ended]
                         for bar in each.bars[-_MOST_BARS:]],
                "marks": [[mark.at, mark.kind, _text(mark.text)]
                          for mark in each.marks[-_MOST_MARKS:]],
            }
            for name, each in lanes.items()
        ],
        "generations": [
            {**row._asdict(), "cause": _text(row.cause)}
            for row in timeline.generations(first)[-_MOST_GENERATIONS:]
        ],
        "failures": [
            {"at": each.at, "text": _text(each.text)}
            for each in timeline.failures(reading.records.values())[-_MOST_FAILURES:]
        ],
        "ranks": [_row(rank, node) for node in reading.nodes for rank in node.ranks],
        "goodput": reading.goodput,
        "actions": list(actions),
    }  # fmt: skip


class Events:
    """The events of all nodes of a job in the order in which they came, numbered for the page.

    Args:
        most: how many are kept.
    """

    def __init__(self, most: int = _MOST_EVENTS) -> None:
        self._kept: deque[dict[str, Any]] = deque(maxlen=most)
        self._count = 0

    def add(self, node: str, line: Line) -> None:
        """Add an event of a node."""
        self._count += 1
        text = shown(line).removeprefix(line.name).strip()
        self._kept.append(
            {"n": self._count, "at": line.time, "node": node, "event": line.name,
             "text": _text(text)}
        )  # fmt: skip

    def shown(self) -> list[dict[str, Any]]:
        """Return them."""
        return list(self._kept)


def shown_state(reading: Reading) -> str:
    """Return the state of the job in a word."""
    own = reading.nodes[0]
    if own.state == ENDED:
        return "succeeded" if own.exit_code == EXIT_OK else "failed"
    return own.state if reading.answers else LOST


def _job(reading: Reading) -> dict[str, Any]:
    own = reading.nodes[0]
    state = shown_state(reading)
    notice, mood = "", ""
    if own.state == ENDED:
        notice, mood = (
            f"exit code {own.exit_code}: {own.reason}",
            "bad" if own.exit_code else "good",
        )
    elif state == LOST:
        notice = (
            "Its agent was killed." if reading.gone else "Its agent does not answer: it is stopped."
        )
        mood = "bad"
    elif reading.silent:
        notice, mood = f"No answer from {names(reading.silent)}: their ranks are not shown.", "warn"
    elif own.generation < 0:
        notice = "It waits for a group."
    elif own.generation:
        notice = f"generation {own.generation}: {own.cause}"
    return {
        "id": own.id,
        "name": own.name,
        "host": own.host,
        "pid": own.pid,
        "command": " ".join(own.command),
        "directory": own.directory,
        "started": own.started,
        "taken": own.taken,
        "generation": own.generation,
        "restart": own.restart,
        "max_restarts": own.max_restarts,
        "nodes": own.nodes,
        "world_size": own.world_size,
        "shown_state": state,
        "over": own.state == ENDED or reading.gone,
        "notice": _text(notice),
        "mood": mood,
    }


def _row(rank: RankSnapshot, node: NodeSnapshot) -> list[Any]:
    """Return a row of the table: the order is that of COLUMNS in page.js."""
    return [
        rank.rank, node.node, node.host, state_of(rank, node), rank.exitcode, rank.pid,
        getattr(rank, "step", None), getattr(rank, "rate", None), getattr(rank, "cpu", None),
        getattr(rank, "memory", None), _text(rank.last_line),
    ]  # fmt: skip


def state_of(rank: RankSnapshot, node: NodeSnapshot) -> str:
    """Return the state of a rank in a word; how it ended may follow."""
    if rank.exitcode is None:
        return "running" if node.exit_code is None else "unknown"
    if rank.asked:
        return "stopped"
    if rank.exitcode < 0:
        return f"killed ({signal_name(-rank.exitcode)})"
    return f"failed ({rank.exitcode})" if rank.exitcode else "succeeded"


@lru_cache(maxsize=8192)
def _text(text: str) -> str:
    return privacy.of_text(text[:_MOST_TEXT])
