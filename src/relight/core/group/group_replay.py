"""Records and replays the steps of a group's state machine (--record-group).

`core/group/membership` is pure, which means that the same inputs at the same times always lead to
the same effects. Therefore a recording of its inputs can later explain its decisions, and show
whether a different version of relight would make different decisions.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from relight.base import fields
from relight.base.fields import Malformed, Message
from relight.core.group.group_types import (
    Drop,
    Effect,
    Event,
    GroupSettings,
    GroupState,
    NodeHeard,
    NodeLost,
    NodeSilent,
    PredecessorPossible,
    Received,
    Slept,
)
from relight.core.group.membership import Membership
from relight.core.group.messages import FromAgent, Join
from relight.events.event_lines import Line
from relight.events.event_types import GroupBegan, GroupStep, Tick

_MAX_SHOWN = 160
Seen = NodeSilent | NodeHeard | NodeLost | PredecessorPossible | Slept | Tick
"""A coordinator's inputs other than messages from nodes."""


class GroupRecorder:
    """Writes a group's steps as events.

    Args:
        job: the group's job.
        settings: the group's settings.
        origin: the group's origin.
        write: writes an event.
    """

    def __init__(
        self,
        job: str,
        settings: GroupSettings,
        origin: str,
        write: Callable[[GroupBegan | GroupStep], None],
    ) -> None:
        self._job, self._write = job, write
        write(GroupBegan(job, origin, fields.plain(settings)))

    def step(self, event: Event, now: float, effects: Iterable[Effect]) -> None:
        """Write one step."""
        told = [_effect_record(effect) for effect in effects]
        self._write(GroupStep(self._job, now, _input_record(event), told))


class Step(NamedTuple):
    """A replayed step. It consists of the time in seconds since the first step, the input, the
    state after the step (including the reason for a wait), and a description of the effects.

    The `recorded` field holds the recorded effects if they differ from the replayed ones, or None
    otherwise.
    """

    number: int
    at: float
    job: str
    input: str
    state: GroupState
    explanation: str
    effects: tuple[str, ...]
    recorded: tuple[str, ...] | None


def replay(lines: Iterable[Line]) -> Iterator[Step]:
    """Replay the steps recorded in an event log with this version of relight.

    Raises:
        Malformed: if a recorded step can't be read.
    """
    groups: dict[str, _Group] = {}
    first: float | None = None
    number = expected = 0
    for line in lines:
        found = fields.decode(line.text).get("n")
        if isinstance(found, int):
            if expected and found > expected:
                raise Malformed(f"events {expected} to {found - 1} are not in the log")
            expected = found + 1
        job = line.fields.get("job")
        if line.name == GroupBegan.__name__ and isinstance(job, str):
            groups[job] = _Group(line.fields)
        elif line.name == GroupStep.__name__:
            number += 1
            if not isinstance(job, str) or job not in groups:
                raise Malformed(f"step {number} belongs to a group whose start is not in the log")
            now, event, recorded = _parse_step(line, number)
            first = now if first is None else first
            yield groups[job].step(number, now - first, now, event, recorded)


class _Group:
    """A group that replays its steps."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._job = str(found["job"])
        settings = fields.record(GroupSettings, found.get("settings"))
        self._membership = Membership(settings, str(found.get("origin")))
        self._hosts: dict[str, str] = {}

    def step(self, number: int, at: float, now: float, event: Event, recorded: list[Any]) -> Step:
        match event:
            case Received(node, Join(host=host)):
                self._hosts[node] = host
        membership = self._membership
        effects = [_effect_record(effect) for effect in membership.step(event, now)]
        return Step(
            number,
            at,
            self._job,
            self._format_record(_input_record(event)),
            membership.state,
            membership.explain(now),
            tuple(map(self._format_record, effects)),
            None if effects == recorded else tuple(map(self._format_record, recorded)),
        )

    def _format_record(self, told: Message) -> str:
        """Format an input or an effect as one line."""
        name = str(told.get("node", ""))
        node = self._hosts.get(name, name)
        if list(self._hosts.values()).count(node) > 1:
            node = f"{node}/{name[:4]}"
        message = told.get("message")
        if isinstance(message, dict):
            return f"{node}: {message.get('type')} {_in_line(message)}".rstrip()
        return f"{told.get('type')} {node} {told.get('reason', '')}".strip()


def _in_line(message: Message) -> str:
    """Format a message's informative fields on one line."""

    def words(record: Message, before: str = "") -> Iterator[str]:
        for key, value in record.items():
            if isinstance(value, dict):
                yield from words(value, f"{before}{key}.")
            elif key != "type" and value is not False and value not in (None, "", []):
                yield f"{before}{key}={value}"

    text = " ".join(" ".join(words(message)).split())
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def _input_record(event: Event) -> Message:
    if isinstance(event, Received):
        message = fields.to_json(event.message)
        return {"type": "received", "node": event.node, "message": message}
    return fields.to_json(event)


def _effect_record(effect: Effect) -> Message:
    if isinstance(effect, Drop):
        return fields.to_json(effect)
    return {"type": "send", "node": effect.node, "message": fields.to_json(effect.message)}


def _parse_step(line: Line, number: int) -> tuple[float, Event, list[Any]]:
    now, found, effects = (line.fields.get(key) for key in ("now", "input", "effects"))
    if not isinstance(found, dict) or not isinstance(effects, list):
        raise Malformed(f"step {number} has no input or no effects")
    if not isinstance(now, int | float):
        raise Malformed(f"step {number} has no time")
    try:
        return float(now), _parse_input(found), effects
    except Malformed as error:
        raise Malformed(f"step {number}: {error}") from None


def _parse_input(found: Message) -> Event:
    match found:
        case {"type": "received", "node": str(node), "message": dict(message)}:
            return Received(node, fields.message(FromAgent, message))
    seen: Seen = fields.message(Seen, found)
    return seen
