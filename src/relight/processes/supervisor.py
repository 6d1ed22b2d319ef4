"""Carries out the decisions of core/workers/supervision for processes that were started together,
which are either an agent's workers or a job's replicas on this machine.

    Workers (the spawner) --exits--> Supervisor --> core/workers/supervision --signals--> Workers
"""

from collections.abc import Callable, Sequence
from functools import partial

from relight.core.failure import WorkerEnd
from relight.core.workers.supervision import (
    FOR_EVER,
    UNSTOPPED,
    Kill,
    Noticed,
    Recovering,
    SaveAndLeave,
    Signal,
    Supervision,
    SupervisionState,
    SurvivorsLeave,
    WorkersReplaced,
)
from relight.events.event_types import (
    Event,
    ProcessRemains,
    StateChanged,
    Tick,
    WorkerExited,
    WorkersFrozen,
    WorkerStarted,
    changed,
)
from relight.host.loop import Alarm, Loop
from relight.processes.worker_processes import Fork, ProcessEvent, WorkerPlan, Workers

OnEvent = Callable[[ProcessEvent], None]
OnChange = Callable[[StateChanged], None]


class Supervisor:
    """Starts processes, and stops them together. If this process is killed, all of them exit.

    Args:
        loop: the loop of this process.
        plans: the processes to start, in the order of their local ranks.
        ranks: the rank of each process, in the same order.
        scratch: a directory to remove if this process is killed, or empty.
        grace_s: seconds from the first signal to SIGKILL.
        on_event: called after the decisions of core/workers/supervision have been carried out. This
            happens for each start and exit, when processes are frozen or resumed, for processes
            that survive SIGKILL, and when the spawner is lost.
        before_stop: called with the exit of a failed process, before the other processes are
            stopped because of it.
        on_change: called with each state change in core/workers/supervision.
        fork: starts a spawner, or uses the warm one (`warm/preloading.py`).
        grace_for_all: whether a process without a handler for the stop signal also gets the grace
            time. Otherwise it is killed immediately, unless the agent itself received a stop
            signal.

    Raises:
        MachineError: if the machine runs out of processes or descriptors.
    """

    def __init__(
        self,
        loop: Loop,
        plans: Sequence[WorkerPlan],
        ranks: Sequence[int],
        scratch: str,
        grace_s: float,
        on_event: OnEvent,
        fork: Fork | None = None,
        *,
        before_stop: Callable[[WorkerExited], None] = lambda _: None,
        on_change: OnChange = lambda _: None,
        grace_for_all: bool = False,
    ) -> None:
        self.core = Supervision(len(plans), grace_s)
        self.survivors_leave: Callable[[int], SurvivorsLeave | None] = lambda _: None
        """Called with the local rank of a failed worker, to let the other workers leave the failed
        worker's process group and keep their processes. Returns None if they can't.
        """
        self._loop = loop
        self._on_event = on_event
        self._before_stop = before_stop
        self._on_change = on_change
        self._grace_for_all = grace_for_all
        self._lease_until = FOR_EVER
        self._alarm = Alarm(loop, partial(self.step, Tick()))
        self.workers = Workers(loop, plans, ranks, scratch, self._on_process, fork)

    @property
    def is_running(self) -> bool:
        """Whether the processes have not received the stop signal yet."""
        return self.core.state in UNSTOPPED

    @property
    def has_ended(self) -> bool:
        """Whether all processes have exited, or can't be killed."""
        return self.core.state is SupervisionState.ENDED

    @property
    def is_stopping(self) -> bool:
        """Whether the processes have received the stop signal and are still within the grace
        period.
        """
        return self.core.state is SupervisionState.STOPPING

    @property
    def is_saving(self) -> bool:
        """Whether the processes may save a checkpoint before they receive the stop signal."""
        return self.core.state is SupervisionState.SAVING

    @property
    def is_leaving(self) -> bool:
        """Whether the surviving processes should leave the failed process's group."""
        return self.core.state is SupervisionState.LEAVING

    @property
    def has_left(self) -> bool:
        """Whether the surviving processes are waiting for the next generation."""
        return self.core.state is SupervisionState.LEFT

    @property
    def alive(self) -> tuple[int, ...]:
        """The local ranks of the processes that are still alive."""
        return self.core.alive

    @property
    def ends(self) -> list[WorkerEnd]:
        """How the processes that are no longer running ended."""
        return list(self.core.ends.values())

    @property
    def are_frozen(self) -> bool:
        """Whether the processes are frozen or being frozen because their lease has expired."""
        return self.workers.frozen or self._loop.now() >= self._lease_until

    def ended_unasked(self, local_rank: int) -> bool:
        """Return whether a process exited before it had received a stop signal."""
        end = self.core.ends.get(local_rank)
        return end is not None and not end.stop_signal

    def exited_at(self, local_rank: int) -> float:
        """Return the time when a process exited, on the loop's clock."""
        end = self.core.ends.get(local_rank)
        return end.at if end is not None else self._loop.now()

    def set_lease(self, until: float) -> None:
        """Let the processes run until this time on the loop's clock, then freeze them."""
        self._lease_until = until
        self.workers.set_lease(0.0 if until == FOR_EVER else until)

    def replace(self, plans: Sequence[WorkerPlan], ranks: Sequence[int], fork: Fork | None) -> None:
        """Start processes to replace those that have ended. The other processes have left their
        process group.

        Args:
            plans: the processes, possibly none.
            ranks: the rank of each process, in local rank order.
            fork: starts another spawner for the new processes, or None to use the latest spawner.

        Raises:
            MachineError: if the machine runs out of processes or descriptors.
        """
        self.step(WorkersReplaced())
        self.workers.replace(plans, ranks, fork)

    def step(self, event: Event | SaveAndLeave | Noticed | Recovering) -> None:
        """Pass an event to the state machine, and carry out the resulting decisions."""
        self._step(event, self._loop.now())

    def explain(self) -> str:
        """Describe what the supervisor is waiting for."""
        return self.core.explain(self._loop.now())

    def _on_process(self, event: ProcessEvent, at: float) -> None:
        is_running = self.core.state is SupervisionState.RUNNING
        if is_running and isinstance(event, WorkerExited) and event.exitcode:
            self._before_stop(event)  # the others will be stopped
            leave = self.survivors_leave(event.local_rank)
            if leave is not None:
                self.step(leave)
        if not isinstance(event, WorkerStarted | WorkersFrozen | ProcessRemains):
            self._step(event, at)
        self._on_event(event)

    def _step(self, event: Event | SaveAndLeave | Noticed | Recovering, now: float) -> None:
        before = self.core.state
        effects = self.core.step(event, now)
        after = self.core.state
        if after is not before:
            self._on_change(changed("supervision", before.value, after.value, event))
        for effect in effects:
            match effect:
                case Signal(local_ranks, number):
                    self._send_stop(local_ranks, number)
                case Kill():
                    self.workers.kill()
        self._alarm.set(self.core.deadline())

    def _send_stop(self, local_ranks: Sequence[int], number: int) -> None:
        """Send these processes the signal to stop."""
        if self.are_frozen:
            self.workers.kill()  # frozen processes would not get the signal, and must not continue
        elif self._grace_for_all or self.core.received:
            self.workers.signal(local_ranks, number)
        else:
            self.workers.stop(local_ranks, number)
