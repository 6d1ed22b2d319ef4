"""Runs one node in a job, in a loop of three steps: get ready, run a generation, react. Read this
module first.

    get ready   run the health check, if configured; bind a store for the workers; tell the
                group that this node is ready, and how the previous generation ended
                                                        (health_check, net/store_port, node)
    run         once the group has formed a generation, run its workers until all have exited
                                                                       (worker_group)
    react       if all workers succeeded, wait for the other nodes; if a worker failed or the
                group changed, get ready again; if the job has ended, report that   (shutdown)

When a worker fails, WorkerGroup immediately stops the other workers on this node, and the agent
reports the failure. The group (core/group/membership) decides whether there is another generation
and which nodes are in it. In a single-node job, the group also runs in this process. The agent
itself decides to leave if it receives a signal, its node is preempted, a health check fails, or a
worker is stuck in an uninterruptible call for longer than
TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT, if that is set.

While the agent is waiting, its event loop runs, in which `Node` handles messages from the group and
`Interruption` handles signals and preemption notices. `Node.state` is one of the following:

    NodeReady           this node waits for a generation; this is its latest report
    GenerationFormed    this node is in this generation, whose workers have not started here
    WorkerGroup         the workers of that generation, which are running or have succeeded
    None                before the first report, and while the agent closes its link

In any of these states the job may end (`Node.end`), or a signal may tell this agent to leave
(`Interruption.signals`).

Workers may run only until their lease expires (`Node.lease_until`). Replies from the coordinator
renew the lease. After the lease expires, the workers are frozen until it is renewed or they are
stopped.
"""

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from relight.agent.agent_config import AgentConfig
from relight.agent.group import LOADED_FOR_NODES, LOADED_LATER
from relight.agent.node import Node, link_to_group
from relight.agent.preemption import Interruption
from relight.agent.worker_group import AgentContext, GenerationResult, WorkerGroup
from relight.base.values import EVENT_HANDLERS
from relight.core.group.messages import GenerationFormed
from relight.events.event_types import Ended
from relight.host.descriptors import raise_limit
from relight.host.loop import Alarm, Loop
from relight.host.scratch import Scratch
from relight.net.store_port import StorePort
from relight.output.console import Consoles
from relight.output.journal import Journal
from relight.output.worker_logs import UnshownOutput
from relight.processes.spawner import SpawnerProcess

if TYPE_CHECKING:
    from relight.agent.health_check import HealthCheckFailure
    from relight.agent.network_check import NetworkCheck
    from relight.agent.shutdown import Leaving
    from relight.agent.status.inspector import JobInspector
    from relight.warm.background_preload import BackgroundPreload
    from relight.warm.preloading import Preload

_IDLE_S = 1.0
"""How long a node waits for a generation before it uses the idle time for imports (--preload)."""
_SHOWN_AFTER_S = 1.0
"""Delay before `relight status` and other commands can see the job, which keeps startup fast."""
_LOADED_LATER = (
    *LOADED_LATER,
    "fcntl",
    "termios",
    "pwd",
    "relight.events.event_text",
    "relight.agent.shutdown",
    "relight.agent.postmortem",
    "relight.core.workers.traceback_groups",
    "relight.stacks.flight_recorder",
    "relight.agent.missing_at_init",
    "relight.stacks.native",
    "relight.output.status_line",
    "relight.net.tcp_store",
    "relight.output.traceback_stream",
    "relight.core.workers.repeated_lines",
    "relight.agent.stacks_before_stop",
    "relight.processes.breakpoints",
    "relight.core.status.node_stacks",
    "relight.agent.status.inspector",
    "relight.agent.recovery",
)
"""Modules that any job may need while it runs and when it ends. They are imported early because an
upgrade may remove or replace the files that the job was started from, or a file server may fail.
"""
_LOADED_FOR_NODES = (
    "relight.agent.coordinator",
    *LOADED_FOR_NODES,
    "relight.processes.freezer",
    "relight.agent.watchdogs",
    "relight.core.group.group_replay",
)
"""Modules needed for the first late heartbeat, for a new coordinator or spawner, and for a flag
that was only given on another node.
"""
_END_LIMIT_S = 30.0
"""How long a program that embeds the agent waits for the spawner to exit."""
_LOADED_FOR_RESTARTS = (
    "relight.host.free_memory",
    "relight.warm.preloading",
)
"""Modules for workers that are forked warm after a restart (--preload=background)."""


class Agent:
    """Runs one node in a job, from its first worker to its last.

    Args:
        job: the configuration.
    """

    def __init__(self, job: AgentConfig) -> None:
        spec = job.spec
        self.job = job
        self.loop = Loop()
        consoles = Consoles.open(self.loop)
        on_console = spec.event_log_handler == "console"
        self.journal = Journal(
            consoles, job.run_directory, job.command.env,
            verbose=spec.verbose, on_console=on_console,
        )  # fmt: skip
        self.loop.on_internal_error = self.journal.record_internal_error
        self.node = Node(job, self.loop, self.journal)
        self.interruption = Interruption(job, self.loop, self.journal, self.node)
        self._store: StorePort | None = None
        self._inspector: JobInspector | None = None
        self._shown = Alarm(self.loop, self._show_job)
        self._unshown = UnshownOutput(self.loop, consoles, self.interruption.signals)
        if job.local_world_size > 8:  # only then is the import worthwhile
            raise_limit()
        self._spawner = SpawnerProcess()
        self._services = AgentContext(
            socket.gethostname(),
            self.loop,
            consoles,
            self.journal,
            Scratch(self.loop, job.scratch),
            self._spawner.fork,
            _preload(job, self.loop, self.journal, self._spawner),
        )
        self._network = _network_check(job, self.loop)
        self.link = link_to_group(job, self.loop, self._services.host)
        self._spawner.held = self.link.held

    def run(self, *, keeps_process: bool = False) -> int:
        """Run the job and return its exit code.

        Args:
            keeps_process: whether this process outlives the job (`relight.run`). If it does, close
                all descriptors and wait for the spawner to exit.

        Raises:
            RelightError: if the job can't be started here.
        """
        broken, preload = True, self._services.preload
        try:
            self.loop.call_after(_SHOWN_AFTER_S, self._load_later)
            if preload is not None:
                self.journal.set_status(lambda: "waiting for the imports of --preload")
                preload.wait(lambda: bool(self.interruption.signals))
                self.journal.clear_status()
            self.node.join(self.link, self._network)
            self._shown.set_after(_SHOWN_AFTER_S)
            exit_code, reason = self._run()
            self.journal.record(Ended(exit_code, reason))
            self.loop.run_guarded(
                lambda: self._show_end(exit_code, reason), "showing the job's end"
            )
            broken = False
            return exit_code
        finally:
            self.journal.clear_status()
            self.node.close()
            self.link.close(
                lambda: broken or bool(self.interruption.signals or self.node.preempted)
            )
            if preload is not None:
                preload.close()
            if self._network is not None:
                self._network.close()
            if self.node.workers is not None:
                self.node.workers.logs.release()  # so that no output is lost, whatever happened
            self._unshown.show()
            self._services.scratch.remove()
            if keeps_process:
                self._release()
            self._spawner.close()
            self.loop.close()  # last: from here on, signals have their default effect

    def _run(self) -> tuple[int, str]:
        """Run generations until this agent leaves. Return the exit code and the reason for
        leaving.
        """
        outcome, node, signals = GenerationResult(), self.node, self.interruption.signals
        while True:
            unfit = self._check_health(outcome)
            if unfit is not None:
                self._remember(unfit.why if unfit.is_proof else "")
                return self._leaving().as_unfit(unfit, outcome, self._is_over)
            self._get_ready(outcome)
            self._remember(next((f.gpu_error for f in outcome.failures if f.gpu_broken), ""))
            formed, outcome = self._wait_for_generation(), GenerationResult()
            if formed is not None:
                workers, outcome = self._run_generation(formed)
                if workers.stuck and outcome.failures:
                    return self._leaving().as_stuck(workers, outcome)
                if not (outcome.failures or workers.stopped_by or signals):
                    self._wait_for_others(workers)
                ended = bool(outcome.failures) or workers.stopped_by is not None
                if node.preempted and ended and not signals:
                    return self._leaving().as_preempted(workers, outcome, self._is_over)
            if node.end is not None and not signals:
                self.link.leave()
                self._unshown.show()  # show it before the report
            if signals:
                return self._leaving().by_signal(signals[0])
            if node.end is not None:
                failed = node.end.exit_code != 0
                return self._leaving().after_failure(node.end) if failed else (0, node.end.reason)

    # Running a generation.

    def _check_health(self, outcome: GenerationResult) -> "HealthCheckFailure | None":
        """Return the reason why this node must not run workers, or None."""
        # If there is no restart, no more workers start here, so this node's health doesn't matter.
        no_restart = bool(outcome.failures) and not self.job.settings.max_restarts
        settings = self.job.health_check
        if settings is None or no_restart or self._is_over():
            return None
        from relight.agent import health_check

        unfit = health_check.run(self.loop, self.journal, settings, self._is_over)
        return unfit if unfit.why else None

    def _remember(self, why: str) -> None:
        """If --bad-nodes is set and this node is bad, record it."""
        place = self.job.spec.bad_nodes
        if not (why and place):
            return
        from relight.agent import bad_node

        bad_node.remember(self.loop, self.journal, place, why, self.job.command.env)

    def _get_ready(self, outcome: GenerationResult) -> None:
        """Bind a store for the next generation. Report that this node has no running workers, and
        how its previous workers ended.

        The store is bound before its port is announced. Each generation gets a new store.
        """
        job = self.job
        if self._store is None:
            served = job.command.agent_store
            self._store = StorePort(
                self.loop, job.store_host, job.store_port, served=served, among=job.store_ports
            )
        port = self._store.port
        if self._store.served:
            port = self.link.share_port(self._store) or port
        self.node.get_ready(port, outcome)

    def _wait_for_generation(self) -> GenerationFormed | None:
        """Return the next generation that includes this node, or None if the job is over."""
        self.loop.run_once(0)  # a signal that has already arrived must keep workers from starting
        preload = self._services.preload
        idle = None if preload is None else self.loop.call_after(_IDLE_S, preload.while_idle)
        formed = None
        while formed is None or not self._has_room_for(formed):
            self.journal.set_status(self.node.explain)
            self.loop.run_until(lambda: self.node.startable is not None or self._is_over())
            self.journal.clear_status()
            if self._is_over():
                formed = None
                break
            formed = self.node.startable
        if idle is not None:
            idle.cancel()
        return formed

    def _has_room_for(self, formed: GenerationFormed) -> bool:
        """Return whether a generation's workers can start now. Survivors that aren't part of the
        generation are stopped first. The generation itself may be stopped while they are exiting.
        """
        workers = self.node.workers
        stay = workers is not None and workers.has_survivors and formed.survivors_stay
        return stay or not self._end_survivors()

    def _run_generation(self, formed: GenerationFormed) -> tuple[WorkerGroup, GenerationResult]:
        """Run the workers until they and all their descendants have exited."""
        workers = self.node.workers
        if workers is not None:
            workers.show_tracebacks()  # of the previous generation
        self.node.report_generation(formed)
        if workers is not None and workers.has_survivors:
            workers.resume(formed)
        else:
            workers = WorkerGroup(self._services, self.job, formed, self.link.send)
        self.node.attach_workers(workers)
        signals = self.interruption.signals
        workers.run(signals, lambda: self.node.lease_until, self._store)
        self.node.note_saving(workers)
        if not workers.has_survivors:
            self._unshown.add(workers.logs, formed.generation.number)
        if formed.place.group_rank == 0 and self._store is not None:
            self._store.close()
            self._store = None
        return workers, GenerationResult() if signals else workers.outcome()

    def _wait_for_others(self, workers: WorkerGroup) -> None:
        """Wait for the workers on other nodes after all workers here have succeeded."""
        self.node.wait_for_others(workers)
        self.journal.set_status(lambda: "waiting for the workers of the other nodes to succeed")
        self.loop.run_until(lambda: self._is_over() or workers.stopped_by is not None)
        self.journal.clear_status()

    def _end_survivors(self) -> bool:
        """Stop surviving workers that are not in any generation. Return whether there were any
        survivors.
        """
        workers = self.node.workers
        if workers is None or not workers.end_survivors():
            return False
        self._unshown.add(workers.logs, workers.formed.generation.number)
        return True

    def _is_over(self) -> bool:
        return self.node.end is not None or bool(self.interruption.signals)

    def _release(self) -> None:
        """Close resources that would otherwise be released when this process exits."""
        workers = self.node.workers
        if workers is not None and workers.supervisor is not None:
            workers.supervisor.workers.finish()
        if self._store is not None:  # bound for a generation that was never formed
            self._store.close()
        self._spawner.wait(_END_LIMIT_S)
        self._services.consoles.close()

    def _leaving(self) -> "Leaving":
        """Stop anything that still runs. Return the object that handles leaving the job."""
        from relight.agent.shutdown import Leaving

        self._end_survivors()
        return Leaving(self.job, self._services, self.node)

    # Making the job visible.

    def _load_later(self) -> None:
        first = _LOADED_FOR_NODES if self.job.meeting is not None else ()
        program = self.job.worker_program
        if program is not None and program.in_background:
            first = (*first, *_LOADED_FOR_RESTARTS)
        if self.job.spec.bad_nodes:
            first = (*first, "relight.agent.bad_node")
        _load(self.loop, iter((*first, *_LOADED_LATER)))

    def _show_job(self) -> None:
        self.loop.run_guarded(self._open_inspector, "showing the job")

    def _open_inspector(self) -> None:
        """Make the job visible to relight's commands and to other programs."""
        from relight.agent.status.inspector import JobInspector
        from relight.agent.status.view import ServedJob

        preload = self._services.preload
        served = ServedJob(self.loop, self.job, self.journal, self.node, preload)
        self._inspector = JobInspector(served)

    def _show_end(self, exit_code: int, reason: str) -> None:
        self._shown.set(None)  # anything shown from now on would not be closed
        handler = self.job.spec.event_log_handler
        is_kept = exit_code or self.node.restart or handler not in EVENT_HANDLERS
        if self._inspector is None and is_kept:
            self._show_job()  # the job ended within its first second
        if self._inspector is not None:
            self._inspector.close(exit_code, reason)


def _load(loop: Loop, modules: Iterator[str]) -> None:
    """Import modules while workers are running, which makes restarts a third faster and saves them
    from reading files.

    Because a file server may be slow, heartbeats are handled between imports.
    """
    module = next(modules, None)
    if module is None:
        return
    try:
        __import__(module)
    except Exception:  # the disk is already gone, which is harmless unless the job fails
        return
    loop.call_after(0, lambda: _load(loop, modules))


def _preload(
    job: AgentConfig, loop: Loop, journal: Journal, cold: SpawnerProcess
) -> "Preload | BackgroundPreload | None":
    if job.worker_program is None:
        return None
    if job.worker_program.in_background:
        from relight.warm.background_preload import BackgroundPreload

        return BackgroundPreload(loop, job.worker_program, cold, journal.record, journal.say)
    from relight.warm.preloading import Preload

    modules = job.spec.preload
    return Preload(loop, job.worker_program, modules, cold, journal.record, journal.say)


def _network_check(job: AgentConfig, loop: Loop) -> "NetworkCheck | None":
    settings = job.health_check
    if job.meeting is None or settings is None or not settings.check.checks_network:
        return None
    from relight.agent.network_check import NetworkCheck

    return NetworkCheck(loop)
