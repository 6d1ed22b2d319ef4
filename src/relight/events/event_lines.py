"""Parses, filters and formats lines from the event log. The lines come from a file or from an
agent, which may run another version of relight.
"""

import json
from typing import Any, NamedTuple

from relight.base import fields
from relight.events import event_types
from relight.events.event_text import describe
from relight.events.event_types import Readable

_KEYS = {"v", "n", "t", "time", "stimulus", "event"}
"""The keys of a line that are not fields of its event."""
_MAX_SHOWN = 300
INTERNAL = frozenset({"StateChanged", "GroupBegan", "GroupStep"})
"""Events from relight's own state machines. People see them only on request."""


class Line(NamedTuple):
    """A line from the log: the event's name and fields, the id of the input that caused it, and its
    time, both in seconds since 1970 (`time`) and on the machine's monotonic clock (`t`).
    """

    version: int
    t: float
    time: float
    name: str
    fields: dict[str, Any]
    text: str
    stimulus: str = ""


def read(text: str) -> Line | None:
    """Parse a line from an event log, or return None if it is malformed."""
    try:
        found = fields.decode(text)
        version, name = found.get("v", event_types.SCHEMA), found["event"]
        t, time = float(found["t"]), float(found["time"])
    except (fields.Malformed, AttributeError, KeyError, TypeError, ValueError):
        return None
    if not isinstance(version, int) or not isinstance(name, str):
        return None
    values = {key: found[key] for key in found.keys() - _KEYS}
    return Line(version, t, time, name, values, text, str(found.get("stimulus", "")))


def parse_event(line: Line) -> event_types.Event | None:
    """Parse a line into an event, or return None if this version of relight doesn't know it."""
    match line.name, line.fields:  # core/group/group_replay reads what these contain
        case "GroupBegan", {"job": str(job), "origin": str(origin), "settings": dict(settings)}:
            return event_types.GroupBegan(job, origin, settings)
        case "GroupStep", {"job": str(job), "input": dict(found), "effects": list(effects)}:
            return event_types.GroupStep(job, 0.0, found, effects)
    try:
        event: event_types.Event = fields.message(
            Readable, {**line.fields, "type": line.name.lower()}
        )
    except fields.Malformed:
        return None
    return event


def shown(line: Line) -> str:
    """Describe an event in human-readable form, without its time."""
    event = parse_event(line)
    if event is not None:
        text = describe(event)
    else:
        text = " ".join(f"{key}={json.dumps(each)}" for key, each in sorted(line.fields.items()))
    text = " ".join(fields.printable(text).split())
    text = text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
    return f"{fields.printable(line.name, lines=False)[:30]:<16} {text}".rstrip()


class Selection:
    """Filters the lines of a single log.

    Args:
        names: event names; empty for all.
        since: seconds since 1970; None for the beginning.
        rank: show only events of the worker with this rank in the job; None for all events.
        stimulus: show only what the input with this id caused; empty for all events.
    """

    def __init__(
        self, names: frozenset[str], since: float | None, rank: int | None, stimulus: str = ""
    ) -> None:
        self._names, self._since, self._rank, self._stimulus = names, since, rank, stimulus
        self._local_rank: int | None = None
        """The selected worker's local rank in the generation that the lines have reached."""

    def wants(self, line: Line) -> bool:
        """Return whether to show a line. All lines in the log must be passed in order."""
        is_of_rank = self._rank is None or self._matches_rank(line)
        is_named = not self._names or line.name in self._names
        is_caused = not self._stimulus or line.stimulus == self._stimulus
        return (
            is_named
            and is_of_rank
            and is_caused
            and (self._since is None or line.time >= self._since)
        )

    def _matches_rank(self, line: Line) -> bool:
        rank, local_rank = line.fields.get("rank"), line.fields.get("local_rank")
        if line.name == event_types.Formed.__name__:
            self._local_rank = None
        if rank == self._rank and local_rank is not None:
            self._local_rank = local_rank
        ranks = line.fields.get("ranks")
        if isinstance(ranks, list):
            return self._rank in ranks
        return rank == self._rank or (
            rank is None and local_rank is not None and local_rank == self._local_rank
        )
