"""The events of a node -> its lane on a timeline: a bar for each phase, marks for what happened.

A lane is what one agent has recorded, so a node whose first events are lost (a ring has only the
latest) begins with the first generation that is known.
"""

from collections.abc import Iterable, Mapping, Sequence

from relight.events import WorkerExited, describe
from relight.typed import Any, NamedTuple

FAILURE, ARRIVAL, DEPARTURE, CHECKPOINT, END = (
    "failure", "arrival", "departure", "checkpoint", "end",
)  # fmt: skip
"""Kinds of marks."""
WAITING, SPAWN, RUNNING, TEARDOWN, FROZEN = "waiting", "spawn", "running", "teardown", "frozen"
"""Phases that a node's own events tell; a ledger of goodput knows more."""
Record = Mapping[str, Any]
"""An event as in the event log: `event`, `time` (seconds since 1970) and its fields."""


class Bar(NamedTuple):
    """A phase of a generation on a node. `ended` is None while it lasts."""

    generation: int
    phase: str
    began: float
    ended: float | None


class Mark(NamedTuple):
    """What happened at one moment."""

    at: float
    kind: str
    text: str


class Lane(NamedTuple):
    """What one node did."""

    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]


class GenerationRow(NamedTuple):
    """A generation as its nodes have begun it. `ended` is None for the one that lasts."""

    number: int
    began: float
    ended: float | None
    nodes: int
    ranks: int
    cause: str


class Happened(NamedTuple):
    """A failure in words."""

    at: float
    text: str


def lane(records: Iterable[Record], began: float) -> Lane:
    """Return the lane of a node.

    Args:
        records: its events, in order.
        began: when its agent began, in seconds since 1970.
    """
    drawing = _Drawing(began)
    for record in records:
        drawing.take(record)
    return Lane(tuple(drawing.bars), tuple(drawing.marks))


def generations(records: Iterable[Record]) -> list[GenerationRow]:
    """Return the generations that a node has been in, in order."""
    found: list[GenerationRow] = []
    for record in records:
        at = float(record["time"])
        if record["event"] in ("Formed", "Ended") and found and found[-1].ended is None:
            found[-1] = found[-1]._replace(ended=at)
        if record["event"] == "Formed":
            found.append(
                GenerationRow(
                    record["generation"], at, None, record["nodes"], record["world_size"],
                    record["cause"],
                )
            )  # fmt: skip
    return found


def failures(lanes: Iterable[Sequence[Record]]) -> list[Happened]:
    """Return why the job was restarted or ended by a failure, each once although all nodes tell."""
    found: dict[str, Happened] = {}
    for records in lanes:
        for record in records:
            text = ""
            if record["event"] == "Restarting":
                text = f"restart {record['restart']}: {record['reason']}"
            elif record["event"] == "Ended" and record["exit_code"]:
                text = f"the end, exit code {record['exit_code']}: {record['reason']}"
            if text and (text not in found or found[text].at > record["time"]):
                found[text] = Happened(float(record["time"]), text)
    return sorted(found.values())


class _Drawing:
    """A lane while its events are read."""

    def __init__(self, began: float) -> None:
        self.bars: list[Bar] = []
        self.marks: list[Mark] = []
        self._generation = -1
        self._nodes = 0
        self._alive = 0
        self._begin(WAITING, began)

    def take(self, record: Record) -> None:
        """Take the next event."""
        at = float(record["time"])
        match record["event"]:
            case "Formed":
                self._form(record, at)
            case "WorkerStarted":
                self._alive += 1
                if self._phase == RUNNING:  # of several workers: the last has started now
                    self.bars.pop()
                    self.bars[-1] = self.bars[-1]._replace(ended=None)
                self._begin(RUNNING, at)
            case "WorkerExited":
                self._exit(record["exitcode"], record["local_rank"], at)
            case "GroupStopped" | "SignalReceived" if self._phase in (RUNNING, SPAWN, FROZEN):
                self._begin(TEARDOWN, at)
            case "WorkersFrozen" if self._phase in (RUNNING, FROZEN):
                self._begin(FROZEN if record["frozen"] else RUNNING, at)
            case "Ended":
                self._end(at)
                self.marks.append(Mark(at, END, record["reason"]))

    @property
    def _phase(self) -> str:
        last = self.bars[-1] if self.bars else None
        return last.phase if last is not None and last.ended is None else ""

    def _form(self, record: Record, at: float) -> None:
        self._generation, self._alive = record["generation"], 0
        self._begin(SPAWN, at)
        before, self._nodes = self._nodes, record["nodes"]
        if before and before != self._nodes:
            kind = ARRIVAL if self._nodes > before else DEPARTURE
            self.marks.append(Mark(at, kind, f"{before} -> {self._nodes} nodes: {record['cause']}"))

    def _exit(self, exitcode: int, local_rank: int, at: float) -> None:
        self._alive -= 1
        if exitcode and self._phase in (RUNNING, SPAWN):
            text = describe(WorkerExited(local_rank, exitcode))
            self.marks.append(Mark(at, FAILURE, text))
            self._begin(TEARDOWN, at)
        if self._alive <= 0:
            self._begin(WAITING, at)

    def _begin(self, phase: str, at: float) -> None:
        self._end(at)
        self.bars.append(Bar(self._generation, phase, at, None))

    def _end(self, at: float) -> None:
        if self._phase:
            self.bars[-1] = self.bars[-1]._replace(ended=max(at, self.bars[-1].began))
