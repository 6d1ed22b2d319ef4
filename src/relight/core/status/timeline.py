"""Turns a node's events into its lane on a timeline, with a bar for each phase and marks for
individual events.

A lane shows only what one agent has recorded. The ring buffer keeps only the latest events. If it
no longer contains a node's first events, the node's lane begins with the first known generation.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from relight.events.event_text import describe
from relight.events.event_types import (
    CheckpointFound,
    Ended,
    Event,
    Formed,
    GroupStopped,
    RanksReplaced,
    Restarting,
    SignalReceived,
    StepsReported,
    StoreReached,
    WorkerExited,
    WorkersFrozen,
    WorkerStarted,
)

FAILURE, ARRIVAL, DEPARTURE, CHECKPOINT, END = (
    "failure", "arrival", "departure", "checkpoint", "end",
)  # fmt: skip
"""Kinds of marks."""
RENDEZVOUS, SPAWN, RUNNING = "rendezvous", "spawn", "running"
TEARDOWN, FROZEN = "teardown", "frozen"
IMPORTS, INIT, FIRST_STEP = "imports", "init", "first_step"
PRODUCTIVE, LOST = "productive", "lost"
"""Phases (core/status/phases). Some phases are known only on the node with the workers' store, or
only if workers report their steps. Until a phase is known, workers are shown as `running`.
"""
_AT_WORK = (RUNNING, IMPORTS, INIT, PRODUCTIVE)


class TimedEvent(NamedTuple):
    """An event on a node. Its time is given both in seconds since 1970 and on the node's monotonic
    clock, because the times inside some events are on the monotonic clock.
    """

    at: float
    event: Event
    t: float = 0.0


class Bar(NamedTuple):
    """One phase of a generation on one node. `ended` is None until the phase has ended."""

    generation: int
    phase: str
    began: float
    ended: float | None


class Mark(NamedTuple):
    """An event that is shown as a single point in time."""

    at: float
    kind: str
    text: str


class Lane(NamedTuple):
    """One node's lane on the timeline, with its phases and marks."""

    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]


class GenerationRow(NamedTuple):
    """A generation of the job. The `restart` field is the number of restarts due to failures before
    it, and `ended` is None until the generation has ended.
    """

    number: int
    restart: int
    began: float
    ended: float | None
    nodes: int
    ranks: int
    cause: str


class Happened(NamedTuple):
    """A failure, with its time and a description."""

    at: float
    text: str


class History(NamedTuple):
    """A job's history: the nodes' lanes by node name, the generations, and the failures."""

    lanes: dict[str, Lane]
    generations: Sequence[GenerationRow]
    failures: Sequence[Happened]


def history(
    nodes: Mapping[str, Sequence[TimedEvent]], began: float, first_steps: Mapping[str, float] = {}
) -> History:
    """Return a job's history.

    Args:
        nodes: the events on each node, by the node's name. The first node determines the
            generations.
        began: when the job began, in seconds since 1970.
        first_steps: when the latest generation's workers reported their first step, by node. Events
            contain this only after the workers have exited.
    """
    first: Sequence[TimedEvent] = next(iter(nodes.values()), ())
    lanes = {name: lane(records, began, first_steps.get(name)) for name, records in nodes.items()}
    return History(lanes, generations(first), failures(nodes.values()))


def lane(records: Iterable[TimedEvent], began: float, first_step: float | None = None) -> Lane:
    """Return a node's lane.

    Args:
        records: the node's events, in order.
        began: when the job began, in seconds since 1970.
        first_step: when the latest generation's workers reported their first step.
    """
    drawing = _Drawing(began)
    for at, event, t in records:
        drawing.take(event, at, at - t)
    if first_step is not None:
        drawing.split(first_step, PRODUCTIVE)
    return Lane(tuple(drawing.bars), tuple(drawing.marks))


def generations(records: Iterable[TimedEvent]) -> list[GenerationRow]:
    """Return the generations that a node has taken part in, in order."""
    found: list[GenerationRow] = []
    for at, event, _ in records:
        if isinstance(event, Formed | Ended) and found and found[-1].ended is None:
            found[-1] = found[-1]._replace(ended=at)
        if isinstance(event, Formed):
            size = event.nodes, event.world_size
            numbers = event.generation, event.restart
            found.append(GenerationRow(*numbers, at, None, *size, event.cause))
    return found


def failures(nodes: Iterable[Sequence[TimedEvent]]) -> list[Happened]:
    """Return the failures that made the job restart or end. Each failure is returned only once,
    even though every node reports it.
    """
    found: dict[str, Happened] = {}
    for records in nodes:
        for at, event, _ in records:
            match event:
                case Restarting(reason=reason, budget=budget):
                    text = f"{reason}; {budget}" if budget else reason
                case Ended(exit_code=exit_code, reason=reason) if exit_code:
                    text = f"the end, exit code {exit_code}: {reason}"
                case _:
                    continue
            if text not in found or found[text].at > at:
                found[text] = Happened(at, text)
    return sorted(found.values())


class _Drawing:
    """Builds a lane from a node's events, one event at a time."""

    def __init__(self, began: float) -> None:
        self.bars: list[Bar] = []
        self.marks: list[Mark] = []
        self._generation = -1
        self._nodes = 0
        self._alive = 0
        self._begin(RENDEZVOUS, began)

    def take(self, event: Event, at: float, offset: float) -> None:
        """Process the next event. The argument `offset` converts a monotonic time to seconds since
        1970.
        """
        match event:
            case Formed():
                self._form(event, at)
            case WorkerStarted():
                self._alive += 1
                if self._phase == RUNNING:  # this is the last of several workers to start
                    self.bars.pop()
                    self.bars[-1] = self.bars[-1]._replace(ended=None)
                self._begin(RUNNING, at)
            case RanksReplaced(stayed=stayed):
                self._alive += stayed
                if self._phase == SPAWN:
                    self._begin(RUNNING, at)
            case StoreReached(workers=workers, world_size=ranks) if self._phase in _AT_WORK:
                if self._phase == RUNNING:
                    self.bars[-1] = self.bars[-1]._replace(phase=IMPORTS)
                self._begin(RUNNING if workers >= ranks else INIT, at)
            case StepsReported(first=first):
                self.split(first + offset, PRODUCTIVE)
            case CheckpointFound(saved=saved):
                self.marks.append(Mark(saved, CHECKPOINT, "the last checkpoint"))
                if any(bar.phase == TEARDOWN for bar in self._generation_bars()):
                    self.split(saved, LOST)
            case WorkerExited():
                self._exit(event, at)
            case GroupStopped() | SignalReceived() if self._is_at_work:
                self._begin(TEARDOWN, at)
            case WorkersFrozen(frozen) if self._is_at_work:
                self._begin(FROZEN if frozen else RUNNING, at)
            case Ended(reason=reason):
                self._end(at)
                self.marks.append(Mark(at, END, reason))

    @property
    def _phase(self) -> str:
        last = self.bars[-1] if self.bars else None
        return last.phase if last is not None and last.ended is None else ""

    @property
    def _is_at_work(self) -> bool:
        return self._phase in (*_AT_WORK, SPAWN, FROZEN)

    def _form(self, event: Formed, at: float) -> None:
        self._generation, self._alive = event.generation, 0
        self._begin(SPAWN, at)
        before, self._nodes = self._nodes, event.nodes
        if before and before != self._nodes:
            kind = ARRIVAL if self._nodes > before else DEPARTURE
            self.marks.append(Mark(at, kind, f"{before} -> {self._nodes} nodes: {event.cause}"))

    def _exit(self, event: WorkerExited, at: float) -> None:
        self._alive -= 1
        if event.exitcode and self._is_at_work:
            self.marks.append(Mark(at, FAILURE, describe(event)))
            self._begin(TEARDOWN, at)
        if self._alive <= 0 and self._phase != RENDEZVOUS:
            self._begin(RENDEZVOUS, at)

    def _begin(self, phase: str, at: float) -> None:
        self._end(at)
        self.bars.append(Bar(self._generation, phase, at, None))

    def _end(self, at: float) -> None:
        if self._phase:
            self.bars[-1] = self.bars[-1]._replace(ended=max(at, self.bars[-1].began))

    def split(self, at: float, phase: str) -> None:
        """End the bar of this generation's active phase at a point in time, and begin a new phase
        there.
        """
        met = any(bar.phase == INIT for bar in self._generation_bars())
        for bar in self._generation_bars():
            ended = inf if bar.ended is None else bar.ended
            if bar.phase in _AT_WORK and bar.began <= at < ended:
                before = FIRST_STEP if met and bar.phase == RUNNING else bar.phase
                parts = [bar._replace(phase=before, ended=at), bar._replace(phase=phase, began=at)]
                place = self.bars.index(bar)
                self.bars[place : place + 1] = parts
                return

    def _generation_bars(self) -> list[Bar]:
        return [bar for bar in self.bars if bar.generation == self._generation]
