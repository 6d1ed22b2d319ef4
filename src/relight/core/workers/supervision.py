"""Monitors and stops one node's workers during one generation, and kills them if they don't stop.

States and transitions:

    RUNNING   all workers that have not ended are training
      | one exits with a nonzero code, the agent receives a
      | signal, or the coordinator stops the generation        -> STOPPING
      | one exits with a nonzero code, or the coordinator stops
      | the generation, while workers that were notified of a
      | preemption are running and may be saving               -> SAVING
      | one fails, or the coordinator stops the generation,
      | and workers can stay; those that hang are killed       -> LEAVING
      | the order to save a checkpoint and leave arrives       -> SAVING
      | the last one exits with code 0                         -> ENDED
    LEAVING   workers leave the group and keep their processes; others may fail
      | all of them have left it                               -> LEFT
      | one exits with code 0, the time limit passes, or the
      | agent receives a signal                                -> STOPPING
      | the last one exits                                     -> ENDED
    LEFT      they wait for the next generation
      | it has formed, and missing workers are started         -> RUNNING
      | one exits with code 0, the agent receives a signal, or
      | the coordinator stops them                             -> STOPPING
      | the last one exits                                     -> ENDED
    SAVING    workers keep running; a failure of one does not cut the others' saving short
      | the agent receives a signal, or the coordinator stops
      | them                                                   -> STOPPING
      | after a preemption notice: the last notified worker
      | exits, or NOTICE_S passes (a stop order from the
      | coordinator has no effect then)                        -> STOPPING
      | the last one exits                                     -> ENDED
    STOPPING  the rest received SIGTERM, or the signal that the agent received
      | the grace time passes, or a second signal arrives      -> KILLING
      | the last one exits                                     -> ENDED
    KILLING   SIGKILL was sent to all of them and to everything that they started
      | the last one exits                                     -> ENDED
      | a minute passes (a process in an uninterruptible call) -> ENDED; the process is reported
    any of these
      | the spawner is lost, and its workers count as killed   -> ENDED

Invariants (`check`): A worker exits once, and may be replaced from LEFT on. No worker is signalled
after its exit. ENDED is final. All workers share one grace time. This module deliberately does not
deal with processes, clocks or restarts.
"""

import signal
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from relight.base.text import format_duration, format_ranks
from relight.core.failure import WorkerEnd
from relight.events.event_types import (
    Event,
    GroupStopped,
    SignalReceived,
    SpawnerLost,
    Tick,
    WorkerExited,
)

FOR_EVER = float("inf")
"""The end of a lease that never expires, as in a single-node job."""
UNKILLABLE_AFTER_S = 60.0
"""How long the agent waits for a process to exit after SIGKILL."""


NOTICE_S = 120.0
"""How long workers that were notified of a preemption may keep saving after another worker has
exited, unless the grace time is longer. By default, Slurm sends the notice this long before it ends
the job.
"""
_LONGEST_S, _SHORTEST_S, _SHORTEST_REFUSED_S = 30.0, 10.0, 1.0


def patience_s(grace_s: float, *, refused: bool) -> float:
    """Return how long to wait for the workers' leftover processes after SIGKILL: the grace time,
    within a lower and an upper limit.

    The kernel may need seconds to free the memory of a large process, and the next worker needs
    that memory. There is no point in waiting long for processes that can't be killed at all.

    Args:
        grace_s: the grace time (--shutdown-timeout).
        refused: whether the system refused to signal any of the processes because another user owns
            it.
    """
    shortest = _SHORTEST_REFUSED_S if refused else _SHORTEST_S
    return min(max(grace_s, shortest), _LONGEST_S)


def saving_s(grace_s: float) -> float:
    """Return how long workers with a preemption notice may keep saving after another worker has
    exited.
    """
    return max(grace_s, NOTICE_S)


class SupervisionState(Enum):
    """The state of this node's workers."""

    RUNNING = "running"
    SAVING = "saving"
    LEAVING = "leaving"
    LEFT = "left"
    STOPPING = "stopping"
    KILLING = "killing"
    ENDED = "ended"


UNSTOPPED = SupervisionState.RUNNING, SupervisionState.SAVING
"""The states in which no worker has been asked to stop yet."""
_STAYING = SupervisionState.LEAVING, SupervisionState.LEFT
"""The states in which surviving workers keep their processes outside of any process group."""


class SaveAndLeave(NamedTuple):
    """Event: the workers must save a checkpoint and exit."""


class Noticed(NamedTuple):
    """Event: these workers received a signal that announces a preemption, and have a handler for
    it.
    """

    local_ranks: Sequence[int]


class SurvivorsLeave(NamedTuple):
    """Event: the workers must leave their process group within `limit_s` seconds. One of them may
    already have failed without having been reported. The workers listed in `hanging` can't leave
    the group, and are replaced.
    """

    limit_s: float
    hanging: tuple[int, ...] = ()


class SurvivorsLeft(NamedTuple):
    """Event: all workers that have not ended have left their group."""


class WorkersReplaced(NamedTuple):
    """Event: a new generation has formed, and the workers that had ended are being replaced."""


class Signal(NamedTuple):
    """Effect: send `number` to these workers."""

    local_ranks: tuple[int, ...]
    number: int


class Kill(NamedTuple):
    """Effect: kill all workers and all processes that they started."""


Effect = Signal | Kill
Recovering = SurvivorsLeave | SurvivorsLeft | WorkersReplaced


class Supervision:
    """The state machine for one node's workers in one generation.

    Args:
        size: number of workers.
        grace_s: seconds between asking workers to stop and killing them.
    """

    def __init__(self, size: int, grace_s: float) -> None:
        self.state = SupervisionState.RUNNING
        self.ends: dict[int, WorkerEnd] = {}
        self.received = 0
        """The signal that the agent received, or 0."""
        self._size = size
        self._grace_s = grace_s
        self._noticed: set[int] = set()
        """The workers that were notified of a preemption."""
        self._hanging: tuple[int, ...] = ()
        """The workers that were killed so that the others can stay."""
        self._stop_signal = 0
        self._stop_requested_at: float | None = None
        self._deadline: float | None = None

    @property
    def alive(self) -> tuple[int, ...]:
        """The local ranks of the workers that have not ended."""
        return tuple(rank for rank in range(self._size) if rank not in self.ends)

    @property
    def failed(self) -> bool:
        """Whether a worker exited with a nonzero exit code or could not be killed."""
        return any(end.exitcode for end in self.ends.values()) or (
            self.state is SupervisionState.ENDED and bool(self.alive)
        )

    @property
    def may_leave(self) -> bool:
        """Whether workers may leave their process group: they are running, and none of them can be
        saving a checkpoint.
        """
        return self.state is SupervisionState.RUNNING and not self._may_be_saving

    def step(self, event: Event | SaveAndLeave | Noticed | Recovering, now: float) -> list[Effect]:
        """Process one event and return the effects.

        Events after ENDED, a second exit of the same worker, and early Ticks are ignored.
        """
        if self.state is SupervisionState.ENDED:
            return []
        match event:
            case WorkerExited(local_rank, exitcode) if local_rank in self.alive:
                self._note_exit(local_rank, exitcode, now)
                if not self.alive:
                    return self._become_ended()
                if exitcode and self.state is SupervisionState.RUNNING:
                    return self._stop_or_let_save(now)
                has_saved = self._is_saving_after_notice and not self._may_be_saving
                if has_saved or (not exitcode and self.state in _STAYING):
                    # The next group would lack the worker that has finished.
                    return self._become_stopping(int(signal.SIGTERM), now)
            case Noticed(local_ranks) if self.state is SupervisionState.RUNNING:
                self._noticed.update(local_ranks)
            case SurvivorsLeave(limit_s, hanging) if self.may_leave:
                self.state, self._deadline = SupervisionState.LEAVING, now + limit_s
                self._hanging = hanging
                return [Signal(hanging, int(signal.SIGKILL))] if hanging else []
            case SurvivorsLeft() if self.state is SupervisionState.LEAVING:
                self.state, self._deadline = SupervisionState.LEFT, None
            case WorkersReplaced() if self.state is SupervisionState.LEFT:
                self.state, self._hanging = SupervisionState.RUNNING, ()
                self.ends.clear()
            case SaveAndLeave() if self.state is SupervisionState.RUNNING:
                self.state = SupervisionState.SAVING
            case GroupStopped() if self.state is SupervisionState.RUNNING:
                return self._stop_or_let_save(now)
            case GroupStopped() if self.state in (SupervisionState.LEFT, SupervisionState.SAVING):
                if not self._is_saving_after_notice:
                    return self._become_stopping(int(signal.SIGTERM), now)
            case SignalReceived(number) if not self.received:
                self.received = number
                if self.state in (*UNSTOPPED, *_STAYING):
                    return self._become_stopping(number, now)
                if self.state is SupervisionState.STOPPING:
                    return [Signal(self.alive, number)]
            case SignalReceived():
                if self.state is SupervisionState.STOPPING:
                    return self._become_killing(now)
            case SpawnerLost():
                for local_rank in self.alive:
                    self._note_exit(local_rank, -signal.SIGKILL, now)
                return self._become_ended()
            case Tick() if self._deadline is not None and now >= self._deadline:
                if self.state in (SupervisionState.SAVING, SupervisionState.LEAVING):
                    return self._become_stopping(int(signal.SIGTERM), now)
                if self.state is SupervisionState.STOPPING:
                    return self._become_killing(now)
                return self._become_ended()
        return []

    def deadline(self) -> float | None:
        """Return the time when the next Tick is due, or None."""
        return self._deadline

    def explain(self, now: float) -> str:
        """Describe what the agent is waiting for."""
        alive = f"local {format_ranks(self.alive)}"
        match self.state:
            case SupervisionState.RUNNING:
                return f"{alive} {'are' if len(self.alive) > 1 else 'is'} running"
            case SupervisionState.SAVING:
                left_s = None if self._deadline is None else self._deadline - now
                until = "" if left_s is None else f", for {format_duration(left_s)} at most"
                return f"waiting for {alive} to save a checkpoint and leave{until}"
            case SupervisionState.LEAVING:
                left = format_duration((self._deadline or now) - now)
                return f"waiting for {alive} to leave the group; all workers restart in {left}"
            case SupervisionState.LEFT:
                return f"{alive} {'wait' if len(self.alive) > 1 else 'waits'} for the next group"
            case SupervisionState.STOPPING:
                left = format_duration((self._deadline or now) - now)
                they = "they are" if len(self.alive) > 1 else "it is"
                return f"waiting for {alive} to stop; {they} killed in {left}"
            case SupervisionState.KILLING:
                return f"waiting for {alive} to exit after SIGKILL"
            case SupervisionState.ENDED:
                return f"{alive} did not exit after SIGKILL" if self.alive else "all ended"

    def check(self) -> None:
        """Assert the invariants."""
        assert self.ends.keys() <= set(range(self._size))
        timed = self.state not in (*UNSTOPPED, SupervisionState.LEFT, SupervisionState.ENDED)
        assert (self._deadline is not None) == (timed or self._is_saving_after_notice)
        assert self.state is SupervisionState.ENDED or self.alive
        assert not (self.state is SupervisionState.RUNNING and self.failed)
        assert self.state not in _STAYING or not self._stop_signal

    @property
    def _is_saving_after_notice(self) -> bool:
        return self.state is SupervisionState.SAVING and self._deadline is not None

    @property
    def _may_be_saving(self) -> bool:
        """Whether a worker that was notified of a preemption is running."""
        return not self._noticed.isdisjoint(self.alive)

    def _stop_or_let_save(self, now: float) -> list[Effect]:
        if not self._may_be_saving:
            return self._become_stopping(int(signal.SIGTERM), now)
        self.state = SupervisionState.SAVING
        self._deadline = now + saving_s(self._grace_s)
        return []

    def _note_exit(self, local_rank: int, exitcode: int, now: float) -> None:
        stopping_s = 0.0 if self._stop_requested_at is None else now - self._stop_requested_at
        killed = int(signal.SIGKILL) if local_rank in self._hanging else 0
        asked = self._stop_signal or killed
        self.ends[local_rank] = WorkerEnd(local_rank, exitcode, now, asked, stopping_s)

    def _become_stopping(self, number: int, now: float) -> list[Effect]:
        self.state = SupervisionState.STOPPING
        self._stop_signal, self._stop_requested_at = number, now
        self._deadline = now + self._grace_s
        return [Signal(self.alive, number)]

    def _become_killing(self, now: float) -> list[Effect]:
        self.state = SupervisionState.KILLING
        self._stop_signal = int(signal.SIGKILL)
        self._deadline = now + UNKILLABLE_AFTER_S
        return [Kill()]

    def _become_ended(self) -> list[Effect]:
        self.state = SupervisionState.ENDED
        self._deadline = None
        return []
