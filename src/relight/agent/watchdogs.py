"""The conditions, other than exits, that an agent watches for while a generation's workers are
running.

    timers             torch's file-based timers that have expired       (processes/timers)
    stuck workers      in an uninterruptible call for too long           (processes/stuck)
    quiet workers      none of them makes progress         (core/workers/hang_detector)
    slow workers       other workers are waiting for them                (stacks/wait_sampler)

A job that uses none of these options doesn't load this module. After a worker has been killed,
core/workers/supervision decides how to continue. If workers are quiet or slow,
core/group/membership decides that.
"""

import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from relight.agent.agent_config import AgentConfig
from relight.base.errors import signal_name
from relight.base.text import format_duration
from relight.core.group.messages import (
    FromAgent,
    GenerationFormed,
    NodeIdle,
    SlowRanks,
    WaitSamples,
)
from relight.core.workers.hang_detector import Activity, Observation, Quiet, Usage
from relight.events.event_types import StateChanged, WorkerExited
from relight.host import system
from relight.host.loop import Alarm, Loop
from relight.output.journal import Journal
from relight.processes import breakpoints, straggler_reports
from relight.processes.shared_pages import WorkerMemory
from relight.processes.stuck import StuckWatch
from relight.processes.supervisor import Supervisor
from relight.processes.timers import WorkerTimers

if TYPE_CHECKING:
    from relight.stacks.wait_sampler import PaceWatch

_LOOKS = 20
"""Number of observations within the shortest limit of --hang-timeout."""
_MIN_S, _MAX_S = 0.1, 5.0


class Watchdogs:
    """The watchdogs for one generation's workers on this node.

    Args:
        loop: the agent's loop.
        journal: for messages to the user.
        job: the node's configuration.
        formed: the generation.
        supervisor: the workers' supervisor.
        printed: returns how many bytes the workers have printed.
        memory: returns the memory shared with the workers.
        send: sends a message to the coordinator.
        on_lost: called when a worker is treated as having exited because it may never exit.
    """

    def __init__(
        self,
        loop: Loop,
        journal: Journal,
        job: AgentConfig,
        formed: GenerationFormed,
        supervisor: Supervisor,
        printed: Callable[[], int],
        memory: Callable[[], WorkerMemory],
        send: Callable[[FromAgent], None],
        on_lost: Callable[[WorkerExited], None],
    ) -> None:
        self.stuck = ""
        """The worker in an uninterruptible call, such as `local rank 2 (pid 4711)`, or an empty
        string.
        """
        self._journal = journal
        self._job = job
        self._formed = formed
        self._supervisor = supervisor
        self._printed = printed
        self._memory = memory
        self._send = send
        self._on_lost = on_lost
        self._loop = loop
        self._timers = self._watch_timers()
        self._stuck_watch: StuckWatch | None = None
        if limit_s := job.stuck_after_s:
            self._stuck_watch = StuckWatch(loop, supervisor.workers.pids, limit_s, self._on_stuck)
        self.quiet: Quiet | None = None
        """How long the workers have been idle, if that exceeds the limit."""
        self._next_look = Alarm(loop, self._look_for_activity)
        if limits := job.spec.hang_timeout:
            self._look_every_s = min(max(limits.idle_s / _LOOKS, _MIN_S), _MAX_S)
            self._activity = Activity(limits, self._look_every_s)
            self._next_look.set_after(self._look_every_s)
        self._pace_watch = self._watch_pace()
        self._shown: straggler_reports.ShownSlowRanks | None = None

    def quiet_report(self) -> NodeIdle:
        """Return the message that reports to the coordinator how long the workers have been
        idle.
        """
        seconds, limit_s = self.quiet or (0.0, 0.0)
        return NodeIdle(self._formed.generation.id, seconds, limit_s)

    def report_slow_ranks(self, found: SlowRanks) -> None:
        """Report the slow ranks found by the coordinator to the user."""
        event = straggler_reports.event(found)
        self._journal.record(event)
        self._shown = self._shown or straggler_reports.ShownSlowRanks()
        self._shown.show(event)

    def close(self) -> None:
        """Stop all watchdogs."""
        self._next_look.set(None)
        for watch in (self._timers, self._stuck_watch, self._pace_watch, self._shown):
            if watch is not None:
                watch.close()

    def _watch_timers(self) -> WorkerTimers | None:
        path = self._job.command.timer_file
        if not path:
            return None
        try:
            return WorkerTimers(self._loop, path, self._on_timer_expired)
        except OSError as error:
            why = f"can't create {path}: {error.strerror}"
            self._journal.say(f"torch's file timers have no effect: {why}")
            return None

    def _watch_pace(self) -> "PaceWatch | None":
        seconds, place = self._job.spec.watch_slow_ranks, self._formed.place
        if seconds is None or place.world_size < 2:
            return None
        from relight.stacks.wait_sampler import PaceWatch

        return PaceWatch(
            self._loop, seconds, place.local_world_size, self._running, self._memory().steps,
            self._on_pace, self._journal.say,
        )  # fmt: skip

    def _running(self) -> Mapping[int, int] | None:
        workers, alive = self._supervisor.workers, self._supervisor.alive
        pids = workers.pids
        return None if workers.frozen else {rank: pids[rank] for rank in alive if rank in pids}

    def _on_stuck(self, local_rank: int) -> None:
        """Treat a worker that is stuck in an uninterruptible call as dead, even if it can't be
        killed.
        """
        supervisor = self._supervisor
        if supervisor.is_running:
            self.stuck = f"local rank {local_rank} (pid {supervisor.workers.pids[local_rank]})"
            limit = format_duration(self._job.stuck_after_s, digits=1)
            evidence = f"it was in an uninterruptible system call (state D) for {limit}"
            supervisor.workers.evidence[local_rank] = evidence
            supervisor.workers.signal([local_rank], signal.SIGKILL)
            event = WorkerExited(local_rank, -signal.SIGKILL)
            supervisor.step(event)
            self._on_lost(event)

    def _on_timer_expired(self, pid: int, number: int, scope: str) -> None:
        """Send an expired timer's signal to the process that set the timer, if that process is a
        worker or was started by one.
        """
        workers = self._supervisor.workers
        local_rank = workers.find_worker(pid)
        if local_rank is None:
            return
        if workers.pids.get(local_rank) == pid:
            workers.evidence[local_rank] = f"its timer {scope} expired"
            workers.signal([local_rank], number)
            return
        whose = "an orphan" if local_rank < 0 else f"a child of local rank {local_rank}"
        name = signal_name(number)
        self._journal.say(f"sending {name} to pid {pid}, {whose}: its timer {scope} expired")
        with suppress(OSError):  # it has just exited, or the pid now belongs to another user
            system.signal_if(pid, number, lambda: workers.find_worker(pid) is not None)

    def _look_for_activity(self) -> None:
        """Read the system's counters for each worker and its descendants."""
        self._next_look.set_after(self._look_every_s)
        before, pids, signs = self.quiet, self._running(), self._signs()
        seen = None
        if pids is not None and signs is not None:
            seen = Observation({rank: usage_of_all(pid) for rank, pid in pids.items()}, signs)
        self.quiet = self._activity.observe(seen, self._loop.now())
        if (before is None) != (self.quiet is None):
            self._on_quiet()

    def _signs(self) -> tuple[int, int] | None:
        """Return how many bytes the workers have printed and the highest step that they have
        reported. Return None while a worker is at a breakpoint.
        """
        if breakpoints.any_below(self._supervisor.workers.pids.values()):
            return None
        return self._printed(), self._memory().step() or 0

    def _on_quiet(self) -> None:
        if not self._supervisor.is_running:
            return
        report = self.quiet_report()
        self._send(report)
        if report.quiet_s:
            cause = f"no worker has been active for {format_duration(report.quiet_s, digits=1)}"
            event = StateChanged("activity", "active", "quiet", cause)
        else:
            cause = "a worker is active again"
            event = StateChanged("activity", "quiet", "active", cause)
        self._journal.record(event)

    def _on_pace(
        self, looks: tuple[int, ...], waits: tuple[int, ...], steps: tuple[int, ...]
    ) -> None:
        self._send(WaitSamples(self._formed.generation.id, looks, waits, steps))


def usage_of_all(pid: int) -> Usage:
    """Return the resource usage of a process and its descendants, including descendants that have
    exited.
    """
    each = [system.usage(one) for one in (pid, *system.tree(pid))]
    return Usage(sum(u[0] for u in each), sum(u[1] for u in each), sum(u[2] for u in each))
