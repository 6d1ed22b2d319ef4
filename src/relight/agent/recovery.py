"""Lets workers keep their process after another worker has failed, by carrying out the effects of
core/workers/rank_recovery.

    a worker fails,    `begin`: request that the others, through memory shared with this agent,
    here or elsewhere  leave the group; poll until they have
    the group formed   `resume`: give survivors the next generation's variables in a file, and
                       start the missing workers; poll until all run the function

To the rest of the agent, this looks like an ordinary restart, because no worker from the old
generation is in a group.
"""

from collections.abc import Callable, Collection, Mapping

from relight.core.workers import rank_recovery
from relight.core.workers.supervision import SurvivorsLeave, SurvivorsLeft
from relight.host.loop import Alarm, Loop
from relight.processes.shared_pages import WorkerMemory
from relight.processes.supervisor import Supervisor

_POLL_S, _LONGEST_POLL_S = 0.002, 0.05
"""Intervals at which to poll for the workers' responses, at first and after a while."""


class Recovery:
    """Recovers one node's workers after failures.

    Args:
        loop: the agent's loop.
        supervisor: the workers' supervisor.
        limit_s: how long survivors may take to leave their group, in seconds.
        memory: returns the memory that is shared with the workers.
        refuse: reports to the user why all ranks have to restart.
        on_recovered: called when all ranks are running again, with the replaced ranks, the number
            of ranks that kept their process, and the seconds since the failure.
    """

    def __init__(
        self,
        loop: Loop,
        supervisor: Supervisor,
        limit_s: float,
        memory: Callable[[], WorkerMemory],
        refuse: Callable[[str], None],
        on_recovered: Callable[[Collection[int], int, float], None],
    ) -> None:
        self._loop = loop
        self._supervisor = supervisor
        self._limit_s = limit_s
        self._memory = memory
        self._refuse = refuse
        self._on_recovered = on_recovered
        self._alarm = Alarm(loop, self._on_alarm)
        self._look: Callable[[], None] = lambda: None
        self._look_s = _POLL_S
        self._count = 0
        """How often the workers have been told to leave their group."""
        self._failed_at = 0.0
        self._late: set[int] = set()
        """The local ranks that have not left the group yet."""

    def begin(self, failed: int | None, *, is_hang: bool) -> SurvivorsLeave | None:
        """Make the workers leave their group. Return the event for the workers' supervisor, or None
        if they can't leave the group.

        Args:
            failed: the local rank of the worker that just failed, or None.
            is_hang: whether the workers are hung. If they are, their locations have already been
                recorded.
        """
        self._look()  # all of them may already be running again
        supervisor, memory = self._supervisor, self._memory()
        alive = [local_rank for local_rank in supervisor.alive if local_rank != failed]
        hanging = rank_recovery.hanging(alive, supervisor.workers.doing) if is_hang else ()
        reason = rank_recovery.why_not(alive, memory.inside(), hanging)
        if reason is not None:
            if reason:
                self._refuse(reason)
            return None
        self._count += 1
        self._failed_at = self._loop.now() if failed is None else supervisor.exited_at(failed)
        self._late = set(alive)
        memory.leave(self._count)
        self._watch(lambda: self._see_leaving(hanging))
        return SurvivorsLeave(self._limit_s, hanging)

    def resume(self, replaced: Collection[int], variables: Mapping[int, Mapping[str, str]]) -> None:
        """Let survivors join the next group. The other workers have already been started.

        Args:
            replaced: the local ranks that have been started again.
            variables: each survivor's variables, by local rank.
        """
        for local_rank, each in variables.items():
            self._memory().join(local_rank, each, self._count)
        self._watch(lambda: self._see_joining(replaced))

    def close(self) -> None:
        """Poll one last time and then stop, because the workers have exited or left their group."""
        self._look()
        self._stop_looking()

    def _watch(self, look: Callable[[], None]) -> None:
        self._look, self._look_s = look, _POLL_S
        self._alarm.set_after(_POLL_S)

    def _on_alarm(self) -> None:
        self._look()

    def _stop_looking(self) -> None:
        self._look = lambda: None
        self._alarm.set(None)

    def _poll_again(self) -> None:
        self._look_s = min(self._look_s * 1.1, _LONGEST_POLL_S)
        self._alarm.set_after(self._look_s)

    def _see_leaving(self, hanging: Collection[int]) -> None:
        supervisor = self._supervisor
        if not supervisor.is_leaving:
            finished = [e.local_rank for e in supervisor.ends if not (e.exitcode or e.stop_signal)]
            self._stop_looking()
            if self._late and not supervisor.core.received:
                self._refuse(rank_recovery.why_stopped(finished, self._late, self._limit_s))
            return
        left = self._memory().have_left(self._count).difference(hanging)  # `hanging` are killed
        self._late = set(supervisor.alive) - left
        if self._late:
            self._poll_again()
        else:
            self._stop_looking()
            supervisor.step(SurvivorsLeft())

    def _see_joining(self, replaced: Collection[int]) -> None:
        memory, size = self._memory(), len(self._supervisor.workers.ranks)
        running = memory.have_joined(self._count) | (memory.have_begun() & set(replaced))
        if len(running) < size:
            self._poll_again()
            return
        self._stop_looking()
        self._on_recovered(replaced, size - len(replaced), self._loop.now() - self._failed_at)
