"""Runs one node of a job: get ready, run a generation, react. Read this first.

    get ready   check this node if the user asks for it; bind a store for the workers; tell the
                group that this node is ready, and how the workers of the last generation ended
                                                        (health_check, link, host/store_port)
    run         the group has formed a generation: run its workers until all have exited
                                                                       (worker_group)
    react       all workers succeeded: wait for the other nodes. A worker failed, or the group
                changed: get ready again. The job has ended: report    (postmortem)

When a worker fails, WorkerGroup stops the other workers of this node at once, and the agent reports
the failure. The group (core/membership) decides what follows: whether there is another generation,
and who is in it. In a job of one node, the group is in this process too. The agent itself decides
to leave in four cases: it gets a signal; this node is preempted; its health check fails; or a
worker is in an uninterruptible call for longer than TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT, if
that is set.

A node is preempted if it gets SIGTERM, or the notice of --on-preempt, while its workers can save a
checkpoint: they have called `relight.worker.should_checkpoint`. Then the workers of all nodes save
and leave at the same step, this node leaves the job, and the others go on without it.

Workers may run only until the end of their lease (`lease`), which answers of the coordinator renew.
After that they are frozen until it is renewed or they are stopped.

`Agent._state` is one of

    NodeReady           this node waits for a generation; this is its latest report
    GenerationFormed    this node is in this generation, whose workers have not started here
    WorkerGroup         the workers of that generation; they run, or are `done`
    None                before the first report, and while the agent closes its link

In each of them the job may end (`_end`), or a signal may ask this agent to leave.
"""

import os
import signal
import socket
import time
from collections.abc import Sequence

from relight.core.exits import Failure
from relight.core.messages import (
    Announce,
    CheckpointCalls,
    CheckpointLimit,
    Confirm,
    FromAgent,
    FromCoordinator,
    GenerationFormed,
    JobEnded,
    Join,
    NodeAnswered,
    NodeLeaving,
    NodePreempted,
    NodeReady,
    Note,
    Question,
    SlowRanks,
    StartProbes,
    StopWorkers,
    WaitReason,
    WorkersSucceeded,
)
from relight.core.ranks import NO_GENERATION, GenerationId
from relight.core.supervision import FOR_EVER
from relight.core.waiting import duration
from relight.errors import (
    EXIT_MACHINE,
    EXIT_PREEMPTED,
    exit_code_of_signal,
    many,
    mistake,
    signal_name,
)
from relight.events import (
    Ended,
    Formed,
    Mistake,
    NotRestarting,
    Restarting,
    SignalReceived,
    StateChanged,
)
from relight.group import Group, LocalLink
from relight.host.console import Consoles
from relight.host.descriptors import raise_limit
from relight.host.journal import Journal
from relight.host.logs import UnshownOutput
from relight.host.loop import Loop
from relight.host.scratch import Scratch
from relight.host.signals import listen
from relight.host.store_port import StorePort
from relight.node_job import NodeJob
from relight.values import EVENT_HANDLERS
from relight.worker_group import AgentServices, Outcome, WorkerGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relight.health_check import Unfit
    from relight.host.preloading import Preload
    from relight.link import RemoteLink
    from relight.network_check import NetworkCheck
    from relight.sight.sight import Sight

_IDLE_S = 1.0
"""How long a node waits for a generation before it imports modules meanwhile (--preload)."""
_SHOWN_AFTER_S = 1.0
"""When `relight status` and other commands can see the job: not while its workers start."""
_TELL_S = 3.0
"""How long a node that leaves tries to tell the group why."""
_LOOK_S = 12.0
"""How long workers that hang are looked at before they are stopped (`WorkerGroup._look_closer`)."""
_READY_S = 30.0
"""How long it may take from SIGKILL until this node has reported that its workers have exited:
large processes exit slowly.
"""


class Agent:
    """One node of a job, from the first worker to the last.

    Args:
        job: what to run.
    """

    def __init__(self, job: NodeJob) -> None:
        spec = job.command.spec
        self.job = job
        self.loop = Loop()
        self.loop.on_mistake = lambda what, error: self.journal.record(
            Mistake(what, mistake(error))
        )
        consoles = Consoles.open(self.loop)
        on_console = spec.event_log_handler == "console"
        self.journal = Journal(
            consoles, job.run_directory, job.command.env,
            verbose=spec.verbose, on_console=on_console,
        )  # fmt: skip
        self.signals: list[int] = []
        """The stop signals that this agent has received: after the first one it leaves the job."""
        self._preempted = ""
        """Why this node will soon be taken away, if so."""
        self._state: NodeReady | GenerationFormed | WorkerGroup | None = None
        self._workers: WorkerGroup | None = None
        """The workers of the latest generation; the failure report reads their logs."""
        self._end: JobEnded | None = None
        self._restart = 0  # the latest restart that was reported to the user
        self._furthest = -1  # the highest step that a worker of this node has reported
        self._lease_until = FOR_EVER
        self._store: StorePort | None = None
        self._sight: Sight | None = None
        self._unshown = UnshownOutput(self.loop, consoles, self.signals)
        if job.nproc > 8:  # raising it costs an import; few workers never need it
            raise_limit()
        listen(self.loop, spec, self._on_signal, self._pass_on, self._on_resize)
        self._services = AgentServices(
            socket.gethostname(),
            self.loop,
            consoles,
            self.journal,
            Scratch(self.loop, job.scratch),
            _preload(job, self.loop, self.journal),
            _network_check(job, self.loop),
        )
        self.link = self._make_link()
        if spec.on_preempt is not None and spec.on_preempt.file:
            from relight.host.notice_file import NoticeFile

            NoticeFile(self.loop, spec.on_preempt.file, self._on_preempted)

    @property
    def end(self) -> JobEnded | None:
        """How the job has ended, as the group says; None if this agent left before."""
        return self._end

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The failures of this node's workers in the generation before, while it runs none."""
        return self._state.failures if isinstance(self._state, NodeReady) else ()

    def stop(self) -> None:
        """Stop the job, as SIGTERM does."""
        if self._can_save():
            self._on_preempted("was asked to stop")
        else:
            self._stop_by(signal.SIGTERM)

    def run(self, *, goes_on: bool = False) -> int:
        """Run the job; return its exit code.

        Args:
            goes_on: whether this process goes on then, so that nothing may be left open.

        Raises:
            RelightError: the job can't be started here.
        """
        broken, preload = True, self._services.preload
        try:
            if preload is not None:
                self.journal.waits_for(lambda: "waiting for the imports of --preload")
                preload.wait(lambda: bool(self.signals))
                self.journal.goes_on()
            self.link.open(self)
            self.loop.call_after(_SHOWN_AFTER_S, self._show_job)
            exit_code, reason = self._run()
            self.journal.record(Ended(exit_code, reason))
            self.loop.attempt(lambda: self._show_end(exit_code, reason), "showing the job's end")
            broken = False
            return exit_code
        finally:
            self.journal.goes_on()
            self._state = None  # so that `announce` returns None
            self.link.close(lambda: broken or bool(self.signals or self._preempted))
            if preload is not None:
                preload.close()
            if self._services.network is not None:
                self._services.network.close()
            if self._workers is not None:
                self._workers.logs.release()  # nothing is lost, whatever has happened
            self._unshown.show()
            self._services.scratch.remove()
            if goes_on:
                self._release()
            self.loop.close()  # last: from here on, signals have their default effect

    def _release(self) -> None:
        """Close what otherwise ends with this process."""
        if self._workers is not None and self._workers.supervisor is not None:
            self._workers.supervisor.workers.finish()
        self._services.consoles.close()

    def _run(self) -> tuple[int, str]:
        outcome = Outcome()
        while True:
            unfit = self._check_health(outcome)
            if unfit is not None:
                return self._leave_unfit(unfit, outcome)
            self._get_ready(outcome)
            formed, outcome = self._wait_for_generation(), Outcome()
            if formed is not None:
                workers, outcome = self._run_generation(formed)
                if workers.stuck and outcome.failures:
                    what = f"{workers.stuck} can't be killed: it is in an uninterruptible call"
                    reason = f"{workers.stuck} may still hold its GPU and memory"
                    return self._give_up(workers, outcome, f"its {what}", reason)
                if self._preempted and workers.stopped_by is not None and not self.signals:
                    return self._leave_preempted(workers, outcome)
                if not (outcome.failures or workers.stopped_by or self.signals):
                    self._wait_for_others(workers)
            if self._end is not None and not self.signals:
                self.link.leave()
                self._unshown.show()  # before the report
            if self.signals:
                return self._leave(self.signals[0])
            if self._end is not None:
                return self._finish(self._end)

    # A generation.

    def _check_health(self, outcome: Outcome) -> "Unfit | None":
        """Return why this node must run no workers, if so."""
        no_restart = bool(outcome.failures) and not self.job.settings.max_restarts
        if self.job.command.spec.health_check is None or no_restart or self._is_over():
            return None
        from relight import health_check

        unfit = health_check.run(self.loop, self.journal, self.job, self._is_over)
        return unfit if unfit.why else None

    def _get_ready(self, outcome: Outcome) -> None:
        """Bind a store for the next generation; report that no workers run here, and how the last
        ones ended.

        The store is bound before its port is announced. One that a generation has used is not used
        again.
        """
        job = self.job
        if self._store is None:
            served = job.command.agent_store
            self._store = StorePort(self.loop, job.store_host, job.store_port, served=served)
        port = self._store.port
        if self._store.served:
            port = self.link.share_port(self._store) or port
        self._state = self._node_ready(port, outcome)
        self.link.send(self._state)

    def _wait_for_generation(self) -> GenerationFormed | None:
        """Return the next generation that includes this node, or None if the job is over.

        A generation whose lease has expired is not started: this machine may have been suspended,
        and the other nodes may have continued without it.
        """

        def may_begin() -> bool:
            return isinstance(self._state, GenerationFormed) and self.loop.now() < self._lease_until

        self.loop.run_once(0)  # a signal that has already arrived must prevent the start of workers
        preload = self._services.preload
        idle = None if preload is None else self.loop.call_after(_IDLE_S, preload.while_idle)
        self.journal.waits_for(self._explain_wait)
        self.loop.run_until(lambda: may_begin() or self._is_over())
        self.journal.goes_on()
        if idle is not None:
            idle.cancel()
        formed = self._state
        return (
            formed
            if isinstance(formed, GenerationFormed) and may_begin() and not self._is_over()
            else None
        )

    def _run_generation(self, formed: GenerationFormed) -> tuple[WorkerGroup, Outcome]:
        """Run the workers until they and all processes that they started have exited."""
        self._show_tracebacks()
        self._report_generation(formed)
        workers = self._state = self._workers = WorkerGroup(
            self._services, self.job, formed, self.link.send
        )
        workers.run(self.signals, lambda: self._lease_until, self._store)
        self._unshown.add(workers.logs, formed.generation.number)
        if formed.place.group_rank == 0 and self._store is not None:
            self._store.close()
            self._store = None
        return workers, Outcome() if self.signals else workers.outcome()

    def _wait_for_others(self, workers: WorkerGroup) -> None:
        """Wait for the workers of other nodes, after all workers here succeeded."""
        workers.done = True
        self.link.send(WorkersSucceeded(workers.formed.generation.id))
        self.journal.waits_for(lambda: "waiting for the workers of the other nodes to succeed")
        self.loop.run_until(lambda: self._is_over() or workers.stopped_by is not None)
        self.journal.goes_on()

    def _is_over(self) -> bool:
        return self._end is not None or bool(self.signals)

    # The end.

    def _leave(self, number: int) -> tuple[int, str]:
        self._show_tracebacks()
        reason = f"agent got {signal_name(number)}"
        self.link.send(NodeLeaving(f"its {reason}"))
        if number == signal.SIGTERM and self._has_saved():
            self.journal.say(f"the workers had saved and left before; exit code {EXIT_PREEMPTED}")
            return EXIT_PREEMPTED, f"the {reason}"
        return exit_code_of_signal(number), f"the {reason}"

    def _has_saved(self) -> bool:
        """Return whether the last workers have left as they were asked to, as another node was
        preempted: often the nodes of a job are told of the same end one after the other.
        """
        workers = self._workers
        stop = None if workers is None else workers.stopped_by
        return stop is not None and stop.gently and workers is not None and workers.ended_well

    def _leave_unfit(self, unfit: "Unfit", outcome: Outcome) -> tuple[int, str]:
        from relight import health_check

        reason = f"its health check failed: {unfit.why}"
        self.journal.say(health_check.explain(unfit))
        if outcome.failures and self._workers is not None:
            return self._give_up(self._workers, outcome, reason, "the health check failed")
        # A check is often faster than the way to the coordinator.
        self.loop.run_until(lambda: self.link.has_joined or self._is_over(), _TELL_S)
        self.link.send(NodeLeaving(reason))
        return EXIT_MACHINE, f"the node leaves: {reason}"

    def _leave_preempted(self, workers: WorkerGroup, outcome: Outcome) -> tuple[int, str]:
        reason = f"it is preempted ({self._preempted})"
        if outcome.failures:
            return self._give_up(workers, outcome, reason, "this node is preempted")
        self.link.send(NodeLeaving(reason))
        if not workers.ended_well:  # they were stopped before they left
            return exit_code_of_signal(signal.SIGTERM), f"the node is preempted: {self._preempted}"
        self.journal.say(f"preempted: all workers have left in time; exit code {EXIT_PREEMPTED}")
        return EXIT_PREEMPTED, f"the node is preempted: {self._preempted}"

    def _give_up(
        self, workers: WorkerGroup, outcome: Outcome, why: str, verdict_reason: str
    ) -> tuple[int, str]:
        """Leave the job after a failure, as no worker may be started again on this node.

        Args:
            workers: the group that failed.
            outcome: how.
            why: for the other nodes.
            verdict_reason: for the report.
        """
        from relight.core import verdict

        now = self.loop.now()
        self.link.send(NodeLeaving(why))
        self._state = self._node_ready(0, outcome)
        ends = [failure._replace(at=failure.at + now) for failure in outcome.failures]
        ended = verdict.GenerationEnd(ends, outcome.succeeded_ranks, "", workers.began)
        self._end = verdict.end(ended, f"no restart: {verdict_reason}", now)
        return self._finish(self._end)

    def _show_tracebacks(self, report: str = "") -> None:
        """Show how workers of the latest generation have ended, unless `report` will do that."""
        if self._workers is not None:
            self._workers.show_tracebacks(report)

    def _finish(self, end: JobEnded) -> tuple[int, str]:
        env, path = self.job.command.env, self.job.command.spec.failure_report
        ready = self._state if isinstance(self._state, NodeReady) else None
        if end.verdict:
            host = end.root.host if end.root is not None else ""
            self.journal.record(NotRestarting(end.verdict, host))
        if end.exit_code and path:
            from relight import failure_report

            why = failure_report.write(path, end, ready, self.job, self._restart)
            if why:
                self.journal.say(why)
        if end.exit_code:
            from relight import postmortem

            report = postmortem.report(end, ready, env)
            self._show_tracebacks(report)
            self.journal.say_with_traceback(report, env)
        path = env.get("TORCHELASTIC_ERROR_FILE")
        if path and end.root is not None:  # set by a program that runs this agent as its worker
            from relight.postmortem import tell_parent

            workers = self._workers
            ours = workers is not None and workers.is_of(end.root)
            tell_parent(path, end.root, workers.logs if workers and ours else None)
        return end.exit_code, end.reason

    def _show_job(self) -> None:
        self.loop.attempt(self._open_sight, "showing the job")

    def _open_sight(self) -> None:
        """Let commands and programs see the job."""
        from relight.sight.job_socket import View
        from relight.sight.sight import Sight

        def look() -> View:
            return View(self._state, self._workers, self._restart, self.journal)

        began = time.time() - _SHOWN_AFTER_S
        self._sight = Sight(self.loop, self.job, self.journal, began, look, self.link)

    def _show_end(self, exit_code: int, reason: str) -> None:
        handler = self.job.command.spec.event_log_handler
        if self._sight is None and (self._restart or handler not in EVENT_HANDLERS):
            self._show_job()  # it has ended within its first second
        if self._sight is not None:
            self._sight.close(exit_code, reason)

    # Called by the link (`LinkOwner`).

    def _make_link(self) -> "LocalLink | RemoteLink":
        job, meeting = self.job, self.job.meeting
        join = Join(
            node=os.urandom(8).hex(),
            host=self._services.host,
            address=meeting.local_addr if meeting else job.store_host,
            slots=job.nproc,
            role=job.command.spec.role,
            node_rank=meeting.node_rank if meeting else -1,
            least=job.settings.least,
            most=job.settings.most,
            max_restarts=job.settings.max_restarts,
            facts=job.facts,
            announce=None,
            stop_s=_stop_s(job),
            answers=True,
        )
        if meeting is None:
            return LocalLink(self.loop, job.settings, join)
        from relight.link import RemoteLink

        return RemoteLink(self.loop, job.settings, join, meeting)

    def say(self, message: str) -> None:
        """Print a message to the user on stderr."""
        self.journal.say(message)

    def record(self, event: StateChanged) -> None:
        """Write a change of state to the event log."""
        self.journal.record(event)

    def coordinates(self, job: str, group: Group) -> None:
        """Record the changes of a group that is decided here; its steps too if the user asks."""
        group.on_change = lambda change: self.record(change._replace(job=job))
        if self.job.command.spec.record_group:
            from relight.core.group_replay import Recorder

            write, settings = self.journal.events.write_to_file, group.membership.settings
            group.on_step = Recorder(job, settings, group.origin, write).step

    def announce(self) -> Announce | None:
        """Return the generation that this node is in, if any."""
        match self._state:
            case GenerationFormed() as formed:
                done, succeeded = False, ()
            case WorkerGroup(formed=formed, done=done, succeeded=succeeded):
                pass
            case _:
                return None
        (generation, restart, *_), place = formed
        rank, size = place.group_rank, place.group_world_size
        lapsed = self.loop.now() >= self._lease_until
        return Announce(generation, restart, rank, size, done, succeeded, lapsed)

    def messages_after_join(self) -> Sequence[FromAgent]:
        """Return what to send after `Join`: that this node is ready, or that a worker failed."""
        match self._state:
            case NodeReady() as ready:
                return [ready]
            case WorkerGroup() as workers:
                preemption = [self._preemption()] if self._preempted else []
                return workers.reports() or preemption
        return []

    def received(self, message: FromCoordinator) -> None:
        """Handle a message of the coordinator."""
        match message:
            case GenerationFormed() if isinstance(self._state, NodeReady):
                self._state = message
            case StopWorkers():
                self._on_stop(message)
            case StartProbes() if self._services.network is not None:
                self._services.network.start(message, self.link.send)
                if isinstance(self._state, NodeReady):  # a new coordinator gets it again
                    self._state = self._state._replace(prober=self._services.network.prober)
            case JobEnded(reason=reason):
                self._end = message
                if isinstance(self._state, WorkerGroup):
                    self._state.stop(StopWorkers(self._generation, reason, gently=False))
            case WaitReason(text, _, generation):
                ready = self._state
                if isinstance(ready, NodeReady) and generation.number >= ready.latest.number:
                    # A new coordinator may not know it.
                    self._state = ready._replace(latest=generation)
                self._say_wait(text)
            case Note(text):
                self.journal.say(text)
            case Confirm(generation, succeeded):
                if isinstance(self._state, WorkerGroup) and generation == self._generation:
                    self._state.confirm(succeeded)
            case SlowRanks(generation) if generation == self._generation:
                if isinstance(self._state, WorkerGroup) and self._state.watches is not None:
                    self._state.watches.report_slow_ranks(message)
            case CheckpointLimit(generation, limit) if generation == self._generation:
                self._count_calls(limit)
            case Question() | NodeAnswered():
                if self._sight is not None:
                    self._sight.received(message)
            case StartProbes() | GenerationFormed() | CheckpointLimit() | SlowRanks():
                pass  # outdated: this node will send NodeReady again

    def lease(self, until: float) -> None:
        """Let the workers run until this time, on the loop's clock; infinity means for ever."""
        self._lease_until = until
        if isinstance(self._state, WorkerGroup):
            self._state.lease(until)

    def _on_stop(self, stop: StopWorkers) -> None:
        if stop.generation != self._generation:
            return
        match self._state:
            case WorkerGroup() as workers:
                workers.stop(stop)
            case GenerationFormed():  # its workers have not started
                self._get_ready(Outcome())

    @property
    def _generation(self) -> GenerationId:
        """The generation that this node is in; NO_GENERATION if it is in none, as while it waits
        for one.
        """
        match self._state:
            case GenerationFormed(generation) | WorkerGroup(formed=GenerationFormed(generation)):
                return generation.id
        return NO_GENERATION

    # Messages to the user and the coordinator.

    def _explain_wait(self) -> str:
        """Return why there is no generation yet, before the group has said more."""
        meeting = self.job.meeting
        where = f" ({meeting.who} at {meeting.where})" if meeting is not None else ""
        what = "the group to form" if self.link.has_joined else "the coordinator to answer"
        return f"waiting for {what}{where}"

    def _say_wait(self, text: str) -> None:
        """Tell why there is no generation yet: on a terminal in the status line."""
        began = self.loop.now()

        def what() -> str:
            from relight.core.status_line import counted_down

            return counted_down(text, self.loop.now() - began)

        is_waiting = isinstance(self._state, NodeReady)
        if self.journal.verbose or not (is_waiting and self.journal.waits_for(what)):
            self.journal.say(text)

    def _node_ready(self, port: int, outcome: Outcome) -> NodeReady:
        """Return the report on the generation that this node is in, or was in until now."""
        network = self._services.network
        return NodeReady(
            generation=self._generation,
            port=port,
            failures=outcome.failures,
            succeeded_ranks=outcome.succeeded_ranks,
            restart=self._restart,
            progressed=self._progressed(outcome),
            prober=None if network is None else network.prober,
        )

    def _progressed(self, outcome: Outcome) -> bool | None:
        """Return whether workers came further than those before them, None if nothing tells."""
        step = outcome.step
        if step is None:
            return outcome.saved
        before, self._furthest = self._furthest, max(self._furthest, step)
        return step > before or bool(outcome.saved)

    def _report_generation(self, formed: GenerationFormed) -> None:
        """Print and record the new generation, and a restart that was not reported yet."""
        (number, _), restart, address, port, cause, failed_host = formed.generation
        here, nodes, world_size = (
            formed.place.group_rank, formed.place.group_world_size, formed.place.world_size
        )  # fmt: skip
        if number:
            self.journal.say_once(cause)  # a wait before it may have told the cause
        self.journal.record(
            Formed(
                number, restart, here, nodes, world_size, address, port, cause,
                failed_host=failed_host, host=self._services.host,
            )
        )  # fmt: skip
        if restart > self._restart:
            self._restart = restart
            self.journal.write(Restarting(restart, self.job.settings.max_restarts, cause))
        if self.job.meeting is not None and not self.journal.verbose:
            self.journal.say(
                f"generation {number}: {many(world_size, 'worker')} on {many(nodes, 'node')}; "
                f"this is node {here}"
            )

    # Signals.

    def _on_signal(self, number: int) -> None:
        self.journal.record(SignalReceived(number))
        spec = self.job.command.spec
        notice = spec.on_preempt.signals if spec.on_preempt is not None else ()
        if number in (signal.SIGTERM, *notice) and self._can_save():
            self._on_preempted(f"got {signal_name(number)}")
        elif number in spec.signals_to_handle:
            self._stop_by(number)
        else:  # the node may stay for a while: workers may end in time, or handle it
            self._pass_on(number)

    def _stop_by(self, number: int) -> None:
        self.signals.append(number)
        if self._workers is not None:
            self._workers.stop_by(number)

    def _on_preempted(self, reason: str) -> None:
        """Let all workers of the job save and leave, then leave."""
        if self._preempted or self.signals:
            return
        if not self._can_save():
            self.journal.say(f"preempted: {reason}; the workers can't save a checkpoint")
            self._stop_by(signal.SIGTERM)
            return
        self._preempted = reason
        self.journal.say(f"preempted: {reason}; another signal stops the workers now")
        self.link.send(self._preemption())
        self.loop.call_after(self.job.grace_s, self._stop_preempted)

    def _preemption(self) -> NodePreempted:
        return NodePreempted(self._generation, self._preempted, self.job.grace_s)

    def _can_save(self) -> bool:
        is_first = not (self._preempted or self.signals)
        return is_first and isinstance(self._state, WorkerGroup) and self._state.can_save

    def _stop_preempted(self) -> None:
        if isinstance(self._state, WorkerGroup) and not self.signals:
            limit = duration(self.job.grace_s, digits=int(self.job.grace_s < 1))
            self.journal.say(f"preempted: workers did not leave within {limit}; they are killed")
            self.signals.append(signal.SIGTERM)
            self._state.kill()

    def _count_calls(self, limit: int) -> None:
        """Hold workers at a call of `should_checkpoint`, and answer how far they are."""
        generation = self._generation

        def answer(calls: int) -> None:
            self.link.send(CheckpointCalls(generation, limit, calls))

        if isinstance(self._state, WorkerGroup):
            self._state.memory.limit(limit, answer)
        else:
            answer(0)  # they have not started

    def _pass_on(self, number: int) -> None:
        if self._workers is not None:
            self._workers.pass_on(number)

    def _on_resize(self, _: int) -> None:
        if self._workers is not None:
            self._workers.logs.resize()


def _stop_s(job: NodeJob) -> float | None:
    """Return the longest time in seconds from `StopWorkers` until the group knows that the workers
    have exited; None for a job of one node.
    """
    if job.meeting is None:
        return None
    checkpoint_s = job.meeting.checkpoint_s if job.settings.gently else 0.0
    spec = job.command.spec
    health_s = spec.health_check_timeout if spec.health_check is not None else 0.0
    look_s = _LOOK_S if spec.hang_timeout is not None else 0.0
    return job.grace_s + checkpoint_s + health_s + look_s + _READY_S


def _preload(job: NodeJob, loop: Loop, journal: Journal) -> "Preload | None":
    if job.worker_program is None:
        return None
    from relight.host.preloading import Preload

    return Preload(loop, job.worker_program, job.command.spec.preload, journal.record, journal.say)


def _network_check(job: NodeJob, loop: Loop) -> "NetworkCheck | None":
    check = job.command.spec.health_check
    if job.meeting is None or check is None or not check.of_network:
        return None
    from relight.network_check import NetworkCheck

    return NetworkCheck(loop)
