"""One generation's workers on this node, from their start until all of their processes have exited.

    __init__    opens log files and pipes for their output (output/worker_logs)
    run         starts them and waits until all have exited (processes/supervisor);
                core/workers/supervision decides which of them to stop, and how. Meanwhile it also
                looks for late workers (agent/missing_at_init) and, if the user asks for it, for
                stuck, idle or slow ones (agent/watchdogs)

Before workers are stopped because one of them has raised an exception, or because all of them are
hung, their stacks are captured (stacks_before_stop), so that the report can show where each rank
was.

If the script supports it, workers keep their process when another worker fails, here or on another
node (agent/recovery). In that case `run` returns with `has_survivors` set, and after `resume` these
workers continue as the next generation.

Invariants: Within a generation, the workers are started once, and `stopped_by` and `failure` are
never reset. After `run`, no worker process is left except survivors and processes that the kernel
can't end. What happens to the job is decided by core/group/membership.
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from relight.agent.agent_config import AgentConfig
from relight.base.errors import MachineError, signal_name
from relight.base.text import format_duration, format_names
from relight.core import ranks
from relight.core.failure import Failure
from relight.core.group.messages import (
    FromAgent,
    GenerationFormed,
    SlowRanks,
    StopWorkers,
    WorkerFailed,
)
from relight.core.ranks import Assignment
from relight.core.workers import worker_command
from relight.core.workers.shared_words import SUFFIX
from relight.core.workers.supervision import Noticed, SaveAndLeave, SurvivorsLeave
from relight.events.event_types import (
    CheckpointFound,
    FailureNoticed,
    GroupStopped,
    RanksReplaced,
    SignalReceived,
    StepsReported,
    StoreReached,
    WorkerExited,
    WorkersFrozen,
)
from relight.host import system
from relight.host.files import attempt_directory
from relight.host.loop import Alarm, Loop
from relight.host.scratch import Scratch
from relight.output.console import Consoles
from relight.output.journal import Journal
from relight.output.worker_logs import Logs
from relight.processes.supervisor import Supervisor
from relight.processes.worker_processes import Fork, ProcessEvent, WorkerPlan

if TYPE_CHECKING:
    from relight.agent.recovery import Recovery
    from relight.agent.watchdogs import Watchdogs
    from relight.core.diagnosis.printed_traceback import Program
    from relight.core.workers.early_exits import EarlyExits
    from relight.core.workers.hang_detector import Quiet
    from relight.net.store_port import StorePort
    from relight.processes.shared_pages import WorkerMemory
    from relight.warm.background_preload import BackgroundPreload
    from relight.warm.preloading import Preload

_MAX_LOADERS = 4
"""The number of workers whose loader processes are examined, because each takes milliseconds."""
_INIT_REPORT_S = 60
"""When to report which workers have not reached init_process_group, in seconds after their
start.
"""
_FINISHED_S = 5.0
"""When to first check for ranks that have finished before others (core/workers/early_exits)."""
_AFTER_ERROR = (1, -signal.SIGABRT)
"""The exit codes of a worker that blames a peer. It either raises an exception or is killed by
NCCL's watchdog.
"""
_LEFT_S = 0.3
"""How long leftover processes of successful workers may take to exit on their own."""
_NOTICE_SPREAD_S = 2.0
"""How much later than this node other nodes may receive a preemption notice. During this time,
workers on other nodes are not stopped just because a worker here has saved and exited.
"""
_HELD_S = 5.0
"""How long a traceback is held back after its worker has exited, if stderr is a terminal."""


class AgentContext(NamedTuple):
    """The services that an agent provides to the workers of all generations.

    The `host` field is the name of this node. The function `fork` starts workers cold. The function
    `preload` forks workers from a process that has already imported modules (None without
    --preload).
    """

    host: str
    loop: Loop
    consoles: Consoles
    journal: Journal
    scratch: Scratch
    fork: Fork
    preload: "Preload | BackgroundPreload | None"


class GenerationResult(NamedTuple):
    """How a generation ended on this node. This includes its failures, and the ranks that succeeded
    before those failures.

    The `step` field is the highest reported step, or None. The `saved` field indicates whether the
    workers saved a checkpoint (None without --checkpoints). The `waiting` field contains the
    survivors of a hang (core/group/messages).
    """

    failures: tuple[Failure, ...] = ()
    succeeded_ranks: tuple[int, ...] = ()
    step: int | None = None
    saved: bool | None = None
    waiting: tuple[Failure, ...] = ()


class WorkerGroup:
    """One generation's workers on this node.

    Args:
        services: the agent's services.
        job: the configuration of this node.
        formed: the generation, and this node's place in it.
        send: sends a message to the coordinator.

    Raises:
        MachineError: if the machine is out of file descriptors.
    """

    def __init__(
        self,
        services: AgentContext,
        job: AgentConfig,
        formed: GenerationFormed,
        send: Callable[[FromAgent], None],
    ) -> None:
        self.formed = formed
        self.began = services.loop.now()
        self.have_succeeded = False
        """Whether all workers on this node have succeeded."""
        self.succeeded_nodes: tuple[int, ...] = ()
        """The group ranks of nodes whose workers have succeeded, as reported by the coordinator."""
        self.failure: WorkerFailed | None = None
        """Set once a worker has failed without having been stopped."""
        self.stopped_by: StopWorkers | None = None
        """The coordinator's latest message that stops the workers."""
        self.supervisor: Supervisor | None = None
        """Set when the workers start."""
        self._noticed_until = 0.0
        """The time by which all other nodes should have received a preemption notice that arrived
        on this node.
        """
        self.had_called = False
        """Whether any worker had called `should_checkpoint` by the time all had ended."""
        self._watches: Watchdogs | None = None
        """The watchdogs, once the workers have started, if any watchdog is enabled."""
        self._services = services
        self._loop, self._journal = services.loop, services.journal
        self._job = job
        self._send = send
        self._early_exits: EarlyExits | None = None
        self._early_alarm = Alarm(services.loop, self._report_early_exits)
        self._memory: WorkerMemory | None = None
        self._progress = GenerationResult()
        self._suspects_peer = False
        """Whether the first failure on this node blames another worker for exiting or being late.
        """
        self._recovery: Recovery | None = None
        """Handles workers that keep their process after a failure. Set once that is possible."""
        self._is_hung = False
        """Whether the workers are being stopped because they are hung, after their locations were
        recorded.
        """
        self._is_closed = True
        """Whether all of the workers' processes have exited."""
        self._plans: list[WorkerPlan] = []
        try:
            self.logs = Logs(
                services.loop,
                services.consoles,
                job.logs,
                self._directory(),
            )
            self.logs.inspect_program = self._inspect_program
            self.logs.on_late = self.show_tracebacks
            self._plans.extend(self._plan(each) for each in ranks.assign(formed.place))
        except OSError as error:
            raise _unwritable(error, len(self._plans)) from None

    def run(
        self,
        signals: Sequence[int],
        lease_until: Callable[[], float],
        store: "StorePort | None",
    ) -> None:
        """Start the workers. Wait until the workers and all their descendants have exited.

        Args:
            signals: the signals that the agent received. More may be added during the call.
            lease_until: returns when the workers' lease expires, on the loop's clock.
            store: this node's store. The generation uses the store on the node with rank 0.

        Raises:
            MachineError: if the machine can't run them.
        """
        loop, job = self._loop, self._job
        pattern, newest = job.spec.checkpoints, 0
        if pattern:
            from relight.host import checkpoints

            newest = checkpoints.newest(pattern)
        supervisor = self.supervisor
        if supervisor is None:
            supervisor = self.supervisor = self._start()
            self._is_closed = False
        else:
            self._replace(supervisor)
        self.logs.passed_on()
        supervisor.set_lease(lease_until())
        self._watch_store(store)
        if self.stopped_by is not None:  # StopWorkers arrived while the workers were being forked
            self.stop(self.stopped_by)
        arrivals = loop.call_after(_INIT_REPORT_S, lambda: self._report_missing_at_init(store))
        command, spec = job.command, job.spec
        if any((command.timer_file, job.stuck_after_s, spec.hang_timeout, spec.watch_slow_ranks)):
            self._watch(supervisor)
        if signals:  # a signal that arrived before the workers started
            supervisor.step(SignalReceived(signals[0]))
        loop.run_until(lambda: not supervisor.is_running)
        self._journal.set_status(supervisor.explain)
        loop.run_until(lambda: supervisor.has_ended or supervisor.has_left)
        spread_s = self._noticed_until - loop.now()
        if supervisor.has_ended and supervisor.core.failed and spread_s > 0:
            loop.run_until(lambda: bool(signals) or self.stopped_by is not None, spread_s)
        self._journal.clear_status()
        if supervisor.alive and supervisor.has_ended:
            self._journal.say(supervisor.explain())
        if self.all_exited_with_0 and self.stopped_by is None and not signals:
            self._report_leftovers(supervisor)
        if not self.has_survivors:
            self._close(supervisor)
        arrivals.cancel()
        self._early_alarm.set(None)
        if self._recovery is not None:
            self._recovery.close()
        if self._watches is not None:
            self._watches.close()
            if self.has_survivors:
                self._watches = None
        self._record_steps()
        if pattern:
            last = checkpoints.newest(pattern)
            saved = last > newest
            self._progress = self._progress._replace(saved=saved)
            if saved:
                number = self.formed.generation.number
                self._journal.record(CheckpointFound(number, last / 1e9))
        if self._has_memory():
            self.had_called = self.has_survivors or self.memory.calls() > 0
            if not self.has_survivors:
                self.memory.close()  # a run directory is kept

    @property
    def has_survivors(self) -> bool:
        """Whether workers are waiting for the next generation, because a worker has failed and the
        others have left their group.
        """
        return self.supervisor is not None and self.supervisor.has_left

    def resume(self, formed: GenerationFormed) -> None:
        """Prepare for the next generation, which the survivors join, with new workers in place of
        those that have ended.

        Raises:
            MachineError: if the machine is out of file descriptors.
        """
        supervisor = self.supervisor
        assert supervisor is not None
        self.formed, self.began = formed, self._loop.now()
        self.failure = self.stopped_by = self._early_exits = None
        self._is_hung = self._suspects_peer = False
        self._progress = GenerationResult()
        missing = [
            each.local_rank for each in self._plans if each.local_rank not in supervisor.alive
        ]
        assignments = ranks.assign(formed.place)
        try:
            if missing:
                self.logs.replace(missing, self._directory())
            for local_rank in missing:
                self._plans[local_rank] = self._plan(assignments[local_rank])
        except OSError as error:
            raise _unwritable(error, missing[0]) from None

    @property
    def survivors(self) -> int:
        """The number of workers that are waiting for the next generation."""
        return len(self.supervisor.alive) if self.supervisor and self.has_survivors else 0

    def end_survivors(self) -> bool:
        """Stop the survivors if they are not part of the next generation, and wait until all their
        processes have exited. Return whether there were any survivors.
        """
        supervisor = self.supervisor
        if supervisor is None or self._is_closed:
            return False
        supervisor.step(
            GroupStopped(self.formed.generation.number, "no generation can use the survivors")
        )
        self._journal.set_status(supervisor.explain)
        self._loop.run_until(lambda: supervisor.has_ended)
        self._journal.clear_status()
        self._close(supervisor)
        if self._has_memory():
            self.memory.close()
        return True

    def _close(self, supervisor: Supervisor) -> None:
        """Kill all remaining processes."""
        self._is_closed = True
        if not supervisor.workers.close(self._job.grace_s):
            self._report_unkillable(supervisor)

    def _replace(self, supervisor: Supervisor) -> None:
        """Start workers to replace those that have ended, and let the surviving workers join the
        new ones.
        """
        assert self._recovery is not None
        command, alive = self._job.command, supervisor.alive
        missing = [plan for plan in self._plans if plan.local_rank not in alive]
        self.memory.begin(self.began)
        for plan in missing:
            self.memory.replace(plan.local_rank, self.logs.error_file(plan.local_rank))
        preload, assignments = self._services.preload, ranks.assign(self.formed.place)
        fork = None if preload is None or not missing else preload.fork_beside()
        supervisor.replace(missing, [each.rank for each in assignments], fork)
        variables = {
            each.local_rank: worker_command.group_variables(command, self.formed.generation, each)
            for each in assignments
            if each.local_rank in alive
        }
        for local_rank, changed in variables.items():  # for the environment in a report
            plan = self._plans[local_rank]
            self._plans[local_rank] = plan._replace(variables={**plan.variables, **changed})
        self._recovery.resume([plan.local_rank for plan in missing], variables)

    def _survivors_leave(self, failed: int | None) -> SurvivorsLeave | None:
        """Make workers leave their group if they can keep their process. Return the event for the
        workers' supervisor, or None if they can't keep their process.

        Args:
            failed: the failed worker's local rank, or None if the coordinator stops the workers.
        """
        supervisor, job = self.supervisor, self._job
        if supervisor is None or not supervisor.core.may_leave or not job.command.max_restarts:
            return None
        if self.stopped_by is not None and not self.stopped_by.may_stay:
            return None
        if not self._has_memory():
            return None  # no worker has called any function in relight.worker
        if supervisor.are_frozen:
            return None  # the other nodes may have continued without them
        if why := job.why_all_restart:
            if self.memory.inside():
                self._say_all_restart(why)
            return None
        if self._recovery is None:
            from relight.agent.recovery import Recovery

            self._recovery = Recovery(
                self._loop, supervisor, job.grace_s, lambda: self.memory,
                self._say_all_restart, self._on_recovered,
            )  # fmt: skip
        return self._recovery.begin(failed, is_hang=self._is_hung)

    def _say_all_restart(self, why: str) -> None:
        where = " of this node" if self.formed.place.group_world_size > 1 else ""
        self._journal.say(f"all ranks{where} restart: {why}")

    def _on_recovered(self, replaced: Collection[int], stayed: int, seconds: float) -> None:
        assert self.supervisor is not None
        rank_of = self.supervisor.workers.ranks
        event = RanksReplaced(
            self.formed.generation.number,
            tuple(rank_of[local_rank] for local_rank in replaced),
            stayed,
            round(seconds, 6),
        )
        self._journal.record(event)

    def _directory(self) -> str:
        """Return the directory for the files of the workers that are started in this generation, or
        an empty string.
        """
        generation = self.formed.generation
        directory = self._job.run_directory or self._services.scratch.make()
        return directory and attempt_directory(directory, generation.restart, generation.number)

    def _report_unkillable(self, supervisor: Supervisor) -> None:
        """Report the processes that are left behind because they can't be killed."""
        from relight.events.event_text import named

        left = ", ".join(map(named, supervisor.workers.remaining.values()))
        self._journal.say(
            f"no longer waiting for {left or 'the worker spawner'}, which can't be killed and may "
            "still hold memory, ports or devices"
        )

    def _report_leftovers(self, supervisor: Supervisor) -> None:
        """Report which leftover processes from successful workers are about to be killed, because
        users may not expect this. Processes that were started by multiprocessing or torch exit on
        their own soon after their worker.
        """
        left = supervisor.workers.left_running(_LEFT_S)
        if not left:
            return
        names = [f"{system.name_and_user(pid)[0] or 'process'} (pid {pid})" for pid in left]
        self._journal.say(
            f"ended with the job: {format_names(names)}, left running by the workers; use "
            "systemd-run for processes that should outlive a job"
        )

    def _has_memory(self) -> bool:
        """Return whether this agent or a worker has created a file of shared memory."""
        error_files = (self.logs.error_file(plan.local_rank) for plan in self._plans)
        return self._memory is not None or any(
            file and os.path.lexists(file + SUFFIX) for file in error_files
        )

    def _record_steps(self) -> None:
        """Record training progress if anything needs it."""
        if self.all_exited_with_0 and not self._journal.listeners:
            return
        step = self.memory.step() if self._has_memory() else None
        if not self.all_exited_with_0:
            self._progress = GenerationResult(step=step)
        span = self.memory.span() if step is not None else None
        if step is not None and span is not None:
            number = self.formed.generation.number
            self._journal.record(StepsReported(number, step, *span))

    def show_tracebacks(self, report: str = "") -> None:
        """Show the tracebacks of workers that have ended or are ending. Each traceback is shown
        once, with its ranks, unless `report` contains it.
        """
        held = self.logs.held()
        supervisor = self.supervisor
        if not held or supervisor is None:
            return
        from relight.core.workers import traceback_groups

        rank_of = supervisor.workers.ranks
        parts = {each: traceback_groups.split(stream.held) for each, stream in held.items()}
        tracebacks = {rank_of[each]: lines for each, (lines, _) in parts.items() if lines}
        texts = traceback_groups.grouped(tracebacks, report)
        for each, stream in held.items():
            stream.replace(parts[each][1])
        for text in texts:
            self._journal.say_with_traceback(text)

    def outcome(self) -> GenerationResult:
        """Return how the workers ended."""
        supervisor = self.supervisor
        if supervisor is None:
            return self._progress
        if self._is_hung and self.has_survivors:
            self._progress = self._progress._replace(waiting=self._waiting(supervisor))
        if not any(end.exitcode for end in supervisor.ends):
            all_ranks = supervisor.workers.ranks
            succeeded = [
                all_ranks[end.local_rank] for end in supervisor.ends if not end.stop_signal
            ]
            return self._progress._replace(succeeded_ranks=tuple(succeeded))
        from relight.agent.postmortem import gather, with_address
        from relight.core.diagnosis.failure_text import waited_for_others

        command, host = self._job.command, self._services.host
        failures, succeeded_ranks = gather(supervisor, self.logs, command, host, self._loop)
        variables = {plan.local_rank: plan.variables for plan in self._plans}
        failures = tuple(
            with_address(each, variables[each.local_rank], self.logs) for each in failures
        )
        if any(waited_for_others(failure) for failure in failures):
            from relight.stacks.flight_recorder import with_collectives

            began = time.time() - (self._loop.now() - self.began)
            failures = with_collectives(failures, command.env, began)
        return self._progress._replace(failures=failures, succeeded_ranks=succeeded_ranks)

    def _waiting(self, supervisor: Supervisor) -> tuple[Failure, ...]:
        from relight.core.diagnosis.failure_text import shared

        workers, now = supervisor.workers, self._loop.now()
        waiting = [
            Failure(
                workers.ranks[each], each, self._services.host, workers.pids[each], exitcode=0,
                at=now, stop_signal=0, report=None, last_lines=(), evidence="", log="",
                doing=workers.doing.get(each),
            )
            for each in supervisor.alive
        ]  # fmt: skip
        return shared(waiting, now)

    def owns_failure(self, failure: Failure) -> bool:
        """Return whether the failed worker belongs to this group."""
        supervisor = self.supervisor
        return supervisor is not None and (
            supervisor.workers.pids.get(failure.local_rank) == failure.pid
        )

    def set_lease(self, until: float) -> None:
        """Let the workers run until the time `until` on the loop's clock, then freeze them."""
        if self.supervisor is not None:
            self.supervisor.set_lease(until)

    def stop(self, stop: StopWorkers) -> None:
        """Stop the workers. If `stop.checkpoint_first` is set, give the workers time to save a
        checkpoint first. The workers get that time only once, even if the message is repeated,
        possibly by a different coordinator.
        """
        if stop.checkpoint_first and self.saves and stop is not self.stopped_by:
            return
        self.stopped_by = stop
        supervisor, meeting = self.supervisor, self._job.meeting
        if supervisor is None or not supervisor.is_running:
            return
        limit_s = stop.limit_s or (meeting.checkpoint_s if meeting is not None else 0.0)
        if stop.checkpoint_first and limit_s:
            self.memory.agree(stop.checkpoint_at, self._loop.now() + limit_s)
            supervisor.step(SaveAndLeave())
            limit = format_duration(limit_s, digits=int(limit_s < 1))
            self._journal.say(f"{stop.cause}; workers have {limit} to save a checkpoint")
            self._loop.call_after(limit_s, lambda: self._stop_late(stop))
        elif stop.capture_stacks:
            # This is slow, so it is deferred until a coordinator in this process has notified all
            # nodes.
            self._loop.call_after(0.0, lambda: self._stop_after_stacks(stop))
        else:
            self._stop_now(stop)

    def _stop_late(self, stop: StopWorkers) -> None:
        """Stop workers that have not left before the save timeout."""
        if self.supervisor is not None and self.supervisor.is_running:
            self.stop(stop._replace(checkpoint_first=False))

    def _stop_after_stacks(self, stop: StopWorkers) -> None:
        supervisor = self.supervisor
        if supervisor is None or not supervisor.is_running:
            return
        from relight.agent import stacks_before_stop

        stacks_before_stop.read(supervisor)
        if self._quiet is None:
            self._stop_in(stop.limit_s, stop)
        else:
            self._is_hung = True
            env = self._job.command.env
            stacks_before_stop.collect_hang_evidence(
                self._loop, supervisor, env, stop.limit_s, lambda s: self._stop_in(s, stop)
            )

    def _stop_in(self, seconds: float, stop: StopWorkers) -> None:
        if seconds:
            self._loop.call_after(seconds, lambda: self._stop_now(stop))
        else:
            self._stop_now(stop)

    def _stop_now(self, stop: StopWorkers) -> None:
        supervisor = self.supervisor
        if supervisor is None or not supervisor.is_running:
            return
        if stop.generation != self.formed.generation.id:
            return  # the survivors are already in the next generation
        if self._quiet is not None:
            self._note_failure(-1, self._loop.now() - self._quiet.seconds)
        event = GroupStopped(self.formed.generation.number, stop.cause)
        self._journal.record(event)
        supervisor.step((self._survivors_leave(None) if stop.may_stay else None) or event)

    def reports(self) -> list[FromAgent]:
        """Return the messages that report the state of these workers to a coordinator."""
        if self.failure is not None:
            return [self.failure]
        watches = self._watches
        return [] if watches is None or watches.quiet is None else [watches.quiet_report()]

    def report_slow_ranks(self, found: SlowRanks) -> None:
        """Report the slow ranks found by the coordinator to the user."""
        if self.supervisor is not None and not self.supervisor.has_ended:
            self._watch(self.supervisor).report_slow_ranks(found)

    @property
    def saves(self) -> bool:
        """Whether the workers are saving a checkpoint before they leave and still have time to do
        so.
        """
        return self.stopped_by is not None and self.stopped_by.checkpoint_first

    @property
    def stuck(self) -> str:
        """The worker in an uninterruptible call, such as `local rank 2 (pid 4711)`, or an empty
        string.
        """
        return self._watches.stuck if self._watches is not None else ""

    @property
    def _quiet(self) -> "Quiet | None":
        """How long the workers have been idle, if this is longer than the limit."""
        return self._watches.quiet if self._watches is not None else None

    @property
    def memory(self) -> "WorkerMemory":
        """The memory shared with the workers."""
        if self._memory is None:
            from relight.processes.shared_pages import WorkerMemory

            error_files = {p.local_rank: self.logs.error_file(p.local_rank) for p in self._plans}
            say = self._journal.say
            self._memory = WorkerMemory(self._loop, error_files, self.began, say)
        return self._memory

    def span(self) -> tuple[float, float] | None:
        """Return the times on the loop's clock when workers on this node first and last reported a
        step. Return None if no worker has reported a step, or if the workers have exited.
        """
        supervisor = self.supervisor
        return self.memory.span() if supervisor is not None and not supervisor.has_ended else None

    @property
    def can_save(self) -> bool:
        """Whether any running worker has called `relight.worker.should_checkpoint`."""
        supervisor = self.supervisor
        return supervisor is not None and supervisor.is_running and self.memory.calls() > 0

    def confirm(self, succeeded: tuple[int, ...]) -> None:
        """Process the coordinator's confirmation of this generation.

        Unblock the workers that are waiting in a call to `should_checkpoint`. The coordinator
        either isn't negotiating a limit on the number of calls, or will send the new limit in its
        next message.
        """
        self.succeeded_nodes = succeeded
        if self._memory is not None:
            self._memory.release()

    @property
    def all_exited_with_0(self) -> bool:
        """Whether all workers have exited with code 0."""
        supervisor = self.supervisor
        return supervisor is not None and supervisor.has_ended and not supervisor.core.failed

    def stop_on_signal(self, number: int) -> None:
        """Stop the workers, because the agent received this signal."""
        supervisor = self.supervisor
        if supervisor is None:
            return
        supervisor.step(SignalReceived(number))
        text = f"got {signal_name(number)}: {supervisor.explain()}"
        if supervisor.is_stopping:
            again = "ctrl-C" if number == signal.SIGINT else "signal"
            text += f", or immediately on a second {again}"
        self._journal.say(text)

    def kill(self) -> None:
        """Kill the workers and all their descendants."""
        if self.supervisor is not None:
            for _ in range(2):  # like a second signal from the user
                self.supervisor.step(SignalReceived(signal.SIGTERM))

    def forward_signal(self, number: int, *, is_notice: bool = False) -> None:
        """Send a signal that does not stop the job to the workers that have a handler for it.

        Args:
            number: the signal.
            is_notice: whether the signal announces a preemption, after which workers may save a
                checkpoint and exit.
        """
        supervisor = self.supervisor
        if supervisor is None:
            return
        workers = supervisor.workers
        ready = workers.with_handler_for(supervisor.alive, number, unknown=False)
        workers.signal(ready, number)
        if is_notice:
            supervisor.step(Noticed(ready))
            if ready and self._job.meeting is not None:
                self._noticed_until = self._loop.now() + _NOTICE_SPREAD_S
        if self._journal.verbose:
            names = ", ".join(map(str, ready)) or "none, because no worker handles it"
            self._journal.say(f"forwarded {signal_name(number)} to local ranks: {names}")

    # Starting the workers.

    def _plan(self, assignment: Assignment) -> WorkerPlan:
        local_rank, command = assignment.local_rank, self._job.command
        preload, cpus = self._services.preload, self._job.cpus
        prefix = worker_command.prefix(command, assignment)
        stdout, stderr = self.logs.open(local_rank, assignment.rank, prefix)
        variables = worker_command.variables(
            command, self.formed.generation, assignment, self.logs.error_file(local_rank)
        )
        if preload is not None:
            variables.update(preload.variables(local_rank, variables))
        return WorkerPlan(
            local_rank=local_rank,
            argv=worker_command.argv(command, local_rank),
            variables=variables,
            stdout=stdout,
            stderr=stderr,
            cpus=cpus[local_rank] if cpus else frozenset(),
            # A Python script controls its own children, and a data loader, for example, must not
            # die before the checkpoint is saved. A shell script would not forward the signal.
            signal_group=command.no_python,
        )

    def _start(self) -> Supervisor:
        services, preload = self._services, self._services.preload
        first_rank = self.formed.place.first_rank
        supervisor = Supervisor(
            self._loop,
            self._plans,
            range(first_rank, first_rank + len(self._plans)),
            services.scratch.path,
            self._job.grace_s,
            self._on_process,
            services.fork if preload is None else preload.fork,
            before_stop=self._before_stop,
            on_change=self._journal.record,
        )
        supervisor.survivors_leave = self._survivors_leave
        return supervisor

    # Worker events.

    def _on_process(self, event: ProcessEvent) -> None:
        self._journal.record(event)
        if isinstance(event, WorkersFrozen):
            self._journal.say(
                "no response from the coordinator; workers are frozen until it responds"
                if event.frozen
                else "the coordinator is responding again; workers resume"
            )
        elif isinstance(event, WorkerExited):
            if self.logs.worker_ended(event.local_rank, failed=bool(event.exitcode)):
                self._loop.call_after(_HELD_S, self.show_tracebacks)
            self._report_first_failure(event)
            if not event.exitcode and self._early_alarm.when is None:
                self._early_alarm.set_after(_FINISHED_S if self._early_exits is None else 0.0)

    def _report_early_exits(self) -> None:
        """Print which ranks have finished, if other ranks are still running and are not being
        stopped.
        """
        supervisor = self.supervisor
        if supervisor is None or not supervisor.is_running or self.stopped_by is not None:
            return
        from relight.core.workers.early_exits import EarlyExits, describe_ranks
        from relight.processes import breakpoints

        # Don't interrupt a debugger session, because the user already knows why that rank is
        # waiting.
        if supervisor.are_frozen or breakpoints.any_below(supervisor.workers.pids.values()):
            self._early_alarm.set_after(_FINISHED_S)
            return

        self._early_exits = found = self._early_exits or EarlyExits(self.began)
        rank_of, now = supervisor.workers.ranks, self._loop.now()
        for end in supervisor.ends:
            if not (end.exitcode or end.stop_signal):
                found.finish(rank_of[end.local_rank], end.at)
        running = [rank_of[local_rank] for local_rank in supervisor.alive]
        if running and found.is_due(now):
            where = " on this node" if self.formed.place.group_world_size > 1 else ""
            self._journal.say(describe_ranks([*found.at], found.ages(now), running, where))
        self._early_alarm.set(found.deadline())

    def _inspect_program(self, local_rank: int) -> "Program":
        """Return the state of a worker's program after it printed a traceback."""
        from relight.core.diagnosis.printed_traceback import Program
        from relight.stacks.worker_state import inspect_program, lost_loader, stuck_loader

        supervisor = self.supervisor
        if supervisor is None or local_rank not in supervisor.workers.pids:
            return Program.UNSEEN
        if local_rank not in supervisor.alive:
            return Program.LEFT
        pid, loaders = supervisor.workers.pids[local_rank], supervisor.workers.loaders
        found = inspect_program(pid)
        if found is Program.ENDS and local_rank not in loaders and len(loaders) < _MAX_LOADERS:
            loaders[local_rank] = lost_loader(pid) or stuck_loader(pid)  # it is about to be stopped
        return found

    def _watch(self, supervisor: Supervisor) -> "Watchdogs":
        """Return the watchdogs. Start them if they aren't running yet."""
        if self._watches is None:
            from relight.agent.watchdogs import Watchdogs

            self._watches = Watchdogs(
                self._loop, self._journal, self._job, self.formed, supervisor,
                self.logs.size, lambda: self.memory, self._send, self._report_first_failure,
            )  # fmt: skip
        return self._watches

    def _report_missing_at_init(self, store: "StorePort | None") -> None:
        """Print the ranks for which init_process_group is still waiting."""
        from relight.agent.missing_at_init import explain

        assert self.supervisor is not None
        supervisor = self.supervisor
        text = explain(supervisor.workers, supervisor.alive, self.formed, store)
        if text:
            self._journal.say(f"after {format_duration(_INIT_REPORT_S)}, {text}")

    def _watch_store(self, store: "StorePort | None") -> None:
        """If the store is on this node, record when the first worker and the last worker connect to
        it.
        """
        size, number = self.formed.place.world_size, self.formed.generation.number
        if store is None or self.formed.place.group_rank:
            return
        store.tell_arrivals(
            size, lambda clients: self._journal.record(StoreReached(number, clients, size))
        )

    def _report_first_failure(self, event: WorkerExited) -> None:
        supervisor = self.supervisor
        if not event.exitcode or supervisor is None or self.failure is not None:
            return
        if supervisor.ended_unasked(event.local_rank):
            self._note_failure(event.local_rank, supervisor.exited_at(event.local_rank))
            reason = f"a worker failed on {self._services.host}"
            self.failure = WorkerFailed(self.formed.generation.id, reason, self._suspects_peer)
            if supervisor.is_saving and not self.saves:
                self._journal.say(
                    f"local rank {event.local_rank} exited after a preemption notice: "
                    f"{supervisor.explain()}"
                )
            failure, spread_s = self.failure, self._noticed_until - self._loop.now()
            if spread_s > 0:
                self._loop.call_after(spread_s, lambda: self._send(failure))
            else:
                self._send(failure)

    def _note_failure(self, local_rank: int, at: float) -> None:
        after_s = max(0.0, self._loop.now() - at)
        number = self.formed.generation.number
        self._journal.record(FailureNoticed(number, local_rank, round(after_s, 6)))

    def _before_stop(self, event: WorkerExited) -> None:
        """Capture the other workers' stacks after one has failed."""
        supervisor = self.supervisor
        if event.exitcode not in _AFTER_ERROR or supervisor is None:
            return
        from relight.agent import stacks_before_stop
        from relight.agent.postmortem import suspects_peer

        # Even if its last words blame nobody, another worker may be handling an exception that
        # caused this failure.
        stacks_before_stop.read(supervisor)
        if suspects_peer(self.logs, event.local_rank):
            # The other workers here may have failed in the same way, which leaves no stacks to
            # capture. In that case, the worker that they were waiting for is on another node.
            self._suspects_peer = True
        else:
            self.logs.inspect_before_stop(event.local_rank)


def _unwritable(error: OSError, local_rank: int) -> MachineError:
    hint = "check `ulimit -n`" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
    pipe = f"make a pipe for the output of local rank {local_rank}"
    what = f"write logs to {error.filename}" if error.filename else pipe
    return MachineError(f"can't {what}: {error.strerror}", hint=hint)
