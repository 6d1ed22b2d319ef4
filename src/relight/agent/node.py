"""This node's state in its group, and the messages that it exchanges with the group.

    sends    that it is ready, which generation it is in, that its workers succeeded, that it is
             preempted                            (worker_group creates the messages about workers)
    receives that a generation has formed, that its workers must stop, that the job has ended, …
    prints   why it is waiting, and each new generation

The agent moves between states (listed in `agent/agent.py`) and runs the workers. The link connects
the node to the group. core/group/membership makes the group's decisions, either in this process or
in the coordinator's process.
"""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from relight.agent.agent_config import AgentConfig
from relight.agent.group import Group, LocalLink
from relight.agent.worker_group import GenerationResult, WorkerGroup
from relight.base.text import pluralize
from relight.core.failure import Failure
from relight.core.group.messages import (
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
from relight.core.workers.supervision import FOR_EVER, saving_s
from relight.events.event_types import Formed, Restarting, StateChanged
from relight.host.loop import Loop
from relight.net.ports import is_loopback
from relight.output.journal import Journal

if TYPE_CHECKING:
    from relight.agent.link import RemoteLink
    from relight.agent.network_check import NetworkCheck

_POLL_S = 12.0
"""How long hung workers are examined before they are stopped (agent/stacks_before_stop.py)."""
WITHOUT_COORDINATOR_S = 2.0
"""A preempted node acts on its own after this time without a response from a coordinator, because
it has little time left.
"""
_READY_S = 30.0
"""The maximum time between SIGKILL and this node's report that its workers have exited. Large
processes take a while to exit.
"""


class Node:
    """This node as its group sees it, and the owner of the link (`LinkOwner`).

    Args:
        job: the configuration of this node.
        loop: the agent's loop.
        journal: for messages to the user, and events.
    """

    def __init__(self, job: AgentConfig, loop: Loop, journal: Journal) -> None:
        self.state: NodeReady | GenerationFormed | WorkerGroup | None = None
        self.workers: WorkerGroup | None = None
        """The workers in the latest generation. This object is kept after the generation ends,
        because reports read the workers' logs.
        """
        self.end: JobEnded | None = None
        """How the job ended according to the group, or None if this node left earlier."""
        self.preempted = ""
        """Why this node will soon be preempted, or an empty string."""
        self.taken_away_at = FOR_EVER
        """When the preemption is expected, on the loop's clock."""
        self.has_saved = False
        """Whether this node's workers have saved a checkpoint and left, and no later workers are
        able to save one.
        """
        self.restart = 0
        """The latest restart that was reported to the user."""
        self.others_formed: bool | None = None
        """Whether the group has formed a generation. None if it has not told this node while it was
        waiting to join.
        """
        self.is_unfit = False
        """Whether this node has failed its health check and will not join."""
        self.lease_until = FOR_EVER
        """The time until which workers may run, on the loop's clock."""
        self.on_question: Callable[[Question | NodeAnswered], None] = lambda _: None
        """Called with each message about a query from one node to all nodes."""
        self.link: LocalLink | RemoteLink
        """The link to the group, once this node joins it."""
        self._job = job
        self._loop = loop
        self._journal = journal
        self._network: NetworkCheck | None = None
        self._port = 0
        """The address of the next generation's store, if rank 0 is on this node."""
        self._furthest = -1
        """The highest step that a worker on this node has reported."""
        self._wait_reason = ""
        """Why the group hasn't formed the next generation, as reported at `_reported_at`."""
        self._reported_at = 0.0

    def join(self, link: "LocalLink | RemoteLink", network: "NetworkCheck | None") -> None:
        """Join the group.

        Args:
            link: the link to the group.
            network: probes other nodes, if the user enabled that check.
        """
        self.link, self._network = link, network
        link.open(self)

    # Called by the agent.

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The failures of this node's workers in the previous generation, while no workers are
        running.
        """
        return self.state.failures if isinstance(self.state, NodeReady) else ()

    @property
    def running(self) -> WorkerGroup | None:
        """The workers of this node's current generation, which are running or have succeeded."""
        return self.state if isinstance(self.state, WorkerGroup) else None

    @property
    def startable(self) -> GenerationFormed | None:
        """The generation whose workers may now start on this node.

        A generation whose lease has expired must not start, because this machine may have been
        suspended and the other nodes may have continued without it.
        """
        formed = self.state
        may_run = self._loop.now() < self.lease_until
        return formed if isinstance(formed, GenerationFormed) and may_run else None

    @property
    def unheard_s(self) -> float:
        """How long it has been since a coordinator responded to this node, or 0 if the coordinator
        is in this process.
        """
        return self.link.unheard_s()

    def get_ready(self, port: int, outcome: GenerationResult) -> None:
        """Report that no workers are running on this node, and how the previous workers ended.

        Args:
            port: the port of the next generation's store.
            outcome: the outcome of the generation that this node is in, or was in until now.
        """
        self._port = port
        self._wait_reason = ""
        self.state = self._report(port, outcome)
        self.link.send(self.state)

    def attach_workers(self, workers: WorkerGroup) -> None:
        """Attach workers that are about to start."""
        self.state = self.workers = workers

    def note_saving(self, workers: WorkerGroup) -> None:
        """Record whether workers saved a checkpoint before they exited. Workers that were still
        importing and never called `should_checkpoint` don't affect what earlier workers saved.
        """
        saved = workers.saves and workers.all_exited_with_0
        self.has_saved = saved or (self.has_saved and not workers.had_called)

    def wait_for_others(self, workers: WorkerGroup) -> None:
        """Report that all workers on this node have succeeded."""
        workers.have_succeeded = True
        self.link.send(WorkersSucceeded(workers.formed.generation.id))

    def preempt(self, reason: str) -> None:
        """Report that this node will soon be preempted, so that all workers in the job save a
        checkpoint and leave.
        """
        self.preempted = reason
        self.taken_away_at = self._loop.now() + self._job.grace_s
        self.link.send(self._preemption())

    def save_alone(self) -> None:
        """Make this node's workers save a checkpoint and leave, unless the group has already
        scheduled one.
        """
        workers = self.running
        if workers is None or workers.stopped_by is not None:
            return
        cause = f"{self.link.join.host} is preempted: {self.preempted}; the group has not answered"
        left_s = self.taken_away_at - self._loop.now()
        workers.stop(
            StopWorkers(self.generation, cause, checkpoint_first=True, limit_s=max(left_s, 0.001))
        )

    def wait_for_saving(self, is_over: Callable[[], bool]) -> None:
        """Stay connected without workers until the workers on the other nodes have saved a
        checkpoint, the coordinator is lost, or the preemption is due.

        Args:
            is_over: returns whether the coordinator has released this node or a signal has arrived.
        """
        self.close()
        self._journal.set_status(lambda: "waiting for the workers of the other nodes to save")
        left_s = self.taken_away_at - self._loop.now()
        self._loop.run_until(lambda: is_over() or self.unheard_s > WITHOUT_COORDINATOR_S, left_s)
        self._journal.clear_status()

    def last_report(self, outcome: GenerationResult) -> NodeReady:
        """Return the report on a generation after which no more workers start on this node."""
        return self._report(0, outcome)

    def abort(self, report: NodeReady, end: JobEnded) -> None:
        """Record that this node ended the job on its own."""
        self.state, self.end = report, end

    def close(self) -> None:
        """Leave the current generation, because the link is about to close."""
        self.state = None

    # Called by the link (`LinkOwner`).

    def say(self, message: str) -> None:
        """Print a message to the user on stderr."""
        self._journal.say(message)

    def record(self, event: StateChanged) -> None:
        """Write a state change to the event log."""
        self._journal.record(event)

    def on_group(self, job: str, group: Group) -> None:
        """Record the state changes of a group that this process coordinates, and the group's steps
        if the user enabled that.
        """
        group.on_change = lambda change: self.record(change._replace(job=job))
        if self._job.spec.record_group:
            from relight.core.group.group_replay import GroupRecorder

            write, settings = self._journal.events.write_to_file, group.membership.settings
            group.on_step = GroupRecorder(job, settings, group.origin, write).step

    def announce(self) -> Announce | None:
        """Return this node's current or latest generation, for a new coordinator."""
        last, done, saves = self.workers, False, False
        nodes: tuple[int, ...] = ()
        match self.state:
            case GenerationFormed() as formed:
                pass
            case WorkerGroup(formed=formed, have_succeeded=done, succeeded_nodes=nodes) as workers:
                saves = workers.saves
            case NodeReady(generation, latest=latest) if (
                last is not None
                and last.formed.generation.id == generation
                and latest in (NO_GENERATION, generation)
            ):
                formed, nodes = last.formed, last.succeeded_nodes
            case _:
                return None
        (identity, restart, *_), place, *_ = formed
        rank, size = place.group_rank, place.group_world_size
        ended = isinstance(self.state, NodeReady)
        return Announce(identity, restart, rank, size, done, nodes, ended=ended, saves=saves)

    def messages_after_join(self) -> Sequence[FromAgent]:
        """Return the messages to send after `Join`. These messages report either that this node is
        ready, or what happened to it and its workers.
        """
        match self.state:
            case NodeReady() as ready:
                failure = self.workers.failure if self.workers is not None else None
                is_current = failure is not None and failure.generation == ready.generation
                return [failure, ready] if failure is not None and is_current else [ready]
            case WorkerGroup() as workers:
                preemption = [self._preemption()] if self.preempted else []
                return [*workers.reports(), *preemption]
        return []

    def received(self, message: FromCoordinator) -> None:
        """Handle a message from the coordinator."""
        match message:
            case GenerationFormed() if isinstance(self.state, NodeReady):
                self.state = self._with_given_endpoint(message)
            case StopWorkers():
                self._on_stop(message)
            case StartProbes() if self._network is not None:
                self._network.start(message, self.link.send)
                if isinstance(self.state, NodeReady):  # a new coordinator needs it as well
                    self.state = self.state._replace(prober=self._network.prober)
            case JobEnded(reason=reason):
                self.end = message
                if not message.others_run:
                    self.preempted = ""  # a coordinator has time to notify the other nodes
                if self.running is not None:
                    self.running.stop(StopWorkers(self.generation, reason, checkpoint_first=False))
            case WaitReason(text, _, generation):
                ready = self.state
                self.others_formed = generation != NO_GENERATION
                if isinstance(ready, NodeReady) and self.others_formed:
                    # A new coordinator may not know this generation. The number may be lower than
                    # that of a generation which this coordinator did not know when it formed one.
                    self.state = ready._replace(latest=generation)
                if not self.is_unfit:
                    self._say_wait(text)
            case Note(text):
                self._journal.say(text)
            case Confirm(generation, succeeded, recovers=recovers):
                if self.running is not None and generation == self.generation and not recovers:
                    self.running.confirm(succeeded)
            case SlowRanks(generation) if generation == self.generation:
                if self.running is not None:
                    self.running.report_slow_ranks(message)
            case CheckpointLimit(generation, limit) if generation == self.generation:
                self._count_calls(limit)
            case Question() | NodeAnswered():
                self.on_question(message)
            case StartProbes() | GenerationFormed() | CheckpointLimit() | SlowRanks():
                pass  # outdated, because this node will send NodeReady again

    def set_lease(self, until: float) -> None:
        """Let the workers run until the time `until` on the loop's clock. Infinity means no
        limit.
        """
        self.lease_until = until
        if self.running is not None:
            self.running.set_lease(until)
        elif self.workers is not None and self.workers.survivors:
            self.workers.set_lease(until)

    def _with_given_endpoint(self, formed: GenerationFormed) -> GenerationFormed:
        """With the static rendezvous, set the workers' store address to the one that was given to
        this node, as under torchrun, because nodes may know node 0 by different addresses and ports
        (NAT).

        An incomplete group may lack node 0, in which case the store is on another node.
        """
        meeting, settings, generation = self._job.meeting, self._job.settings, formed.generation
        is_full = formed.place.group_world_size == settings.max_nodes
        if meeting is None or not meeting.fixed_port or not is_full:
            return formed
        generation = generation._replace(master_addr=meeting.host)
        if self._job.command.agent_store:  # otherwise at a free port chosen by rank 0's worker
            generation = generation._replace(master_port=meeting.port)
        return formed._replace(generation=generation)

    def _on_stop(self, stop: StopWorkers) -> None:
        if stop.generation != self.generation:
            return
        match self.state:
            case WorkerGroup() as workers:
                workers.stop(stop)
            case GenerationFormed():  # its workers have not started
                self.get_ready(self._port, GenerationResult())

    def _count_calls(self, limit: int) -> None:
        """Block the workers in a call to `should_checkpoint`, and report how many calls they have
        made.
        """
        generation = self.generation

        def answer(calls: int) -> None:
            self.link.send(CheckpointCalls(generation, limit, calls))

        if self.running is not None:
            self.running.memory.limit(limit, answer)
        else:
            answer(0)  # they have not started

    # Messages about this node.

    @property
    def generation(self) -> GenerationId:
        """The generation that this node is in, or NO_GENERATION if it is not in one, for example
        while it is waiting for the next generation.
        """
        match self.state:
            case GenerationFormed(generation) | WorkerGroup(formed=GenerationFormed(generation)):
                return generation.id
        return NO_GENERATION

    def _preemption(self) -> NodePreempted:
        return NodePreempted(self.generation, self.preempted, self._job.grace_s)

    def _report(self, port: int, outcome: GenerationResult) -> NodeReady:
        """Return the report on this node's current generation, or on the generation that it just
        left.
        """
        return NodeReady(
            generation=self.generation,
            port=port,
            failures=outcome.failures,
            succeeded_ranks=outcome.succeeded_ranks,
            restart=self.restart,
            progressed=self._progressed(outcome),
            prober=None if self._network is None else self._network.prober,
            survivors=self._survivors(),
            waiting=outcome.waiting,
        )

    def _survivors(self) -> int:
        """Return how many workers have left this node's current generation and are waiting for the
        next one.
        """
        workers = self.workers
        were_in = workers is not None and workers.formed.generation.id == self.generation
        return workers.survivors if workers is not None and were_in else 0

    def _progressed(self, outcome: GenerationResult) -> bool | None:
        """Return whether workers progressed further than in the previous generation, or None if
        unknown.
        """
        step = outcome.step
        if step is None:
            return outcome.saved
        before, self._furthest = self._furthest, max(self._furthest, step)
        return step > before or bool(outcome.saved)

    # Messages to the user.

    def explain(self) -> str:
        """Return the reason why no generation has formed yet: the group's or, until it has reported
        one, this node's own.
        """
        if self._wait_reason:
            from relight.core.workers.status_text import counted_down

            return counted_down(self._wait_reason, self._loop.now() - self._reported_at)
        meeting = self._job.meeting
        where = f" ({meeting.who} at {meeting.where})" if meeting is not None else ""
        what = "the group to form" if self.link.has_joined else "the coordinator to answer"
        return f"waiting for {what}{where}"

    def _say_wait(self, text: str) -> None:
        """Report why no generation has formed yet. On a terminal, use the status line."""
        self._wait_reason, self._reported_at = text, self._loop.now()
        is_waiting = isinstance(self.state, NodeReady)
        if self._journal.verbose or not (is_waiting and self._journal.set_status(self.explain)):
            self._journal.say(text)

    def report_generation(self, formed: GenerationFormed) -> None:
        """Print and record the new generation, and the restart if it has not been reported yet."""
        (number, _), restart, address, port, cause, failed_host = formed.generation
        here, nodes, world_size = (
            formed.place.group_rank, formed.place.group_world_size, formed.place.world_size
        )  # fmt: skip
        journal = self._journal
        if number:
            journal.say_once(cause)  # an earlier wait may have printed the cause
        journal.record(
            Formed(
                number, restart, here, nodes, world_size, address, port, cause,
                failed_host=failed_host, host=self.link.join.host,
            )
        )  # fmt: skip
        if restart > self.restart:
            self.restart = restart
            from relight.core.group.restart_budget import split_budget

            reason, budget = split_budget(cause, restart)
            journal.write(Restarting(restart, self._job.settings.max_restarts, reason, budget))
        if self._job.meeting is not None and not journal.verbose:
            at = f", at {self._job.meeting.topology}" if self._job.meeting.topology else ""
            journal.say(
                f"generation {number}: {pluralize(world_size, 'worker')} on "
                f"{pluralize(nodes, 'node')}; "
                f"this is node {here}{at}"
            )


def link_to_group(job: AgentConfig, loop: Loop, host: str) -> "LocalLink | RemoteLink":
    """Return the unopened link between this node and its group.

    Args:
        job: the configuration of this node.
        loop: the agent's loop.
        host: the name of this node.
    """
    meeting = job.meeting
    join = Join(
        node=os.urandom(8).hex(),
        host=host,
        address=meeting.local_addr if meeting else job.store_host,
        local_world_size=job.local_world_size,
        role=job.spec.role,
        node_rank=meeting.node_rank if meeting else -1,
        min_nodes=job.settings.min_nodes,
        max_nodes=job.settings.max_nodes,
        max_restarts=job.settings.max_restarts,
        facts=job.facts,
        announce=None,
        stop_s=_stop_s(job),
        answers=True,
        topology=meeting.topology if meeting else "",
    )
    if meeting is None:
        return LocalLink(loop, job.settings, join)
    from relight.host.env_fingerprint import machine

    # If no other machine can join, the job must consist of several agents on this machine.
    first = meeting.hosts[0][0] if meeting.hosts else ""
    if first != "localhost" and not is_loopback(first):
        join = join._replace(machine=machine())
    from relight.agent.link import RemoteLink

    return RemoteLink(loop, job.settings, join, meeting)


def _stop_s(job: AgentConfig) -> float | None:
    """Return the maximum number of seconds from `StopWorkers` until the group knows that the
    workers have exited. Return None for a single-node job.
    """
    if job.meeting is None:
        return None
    checkpoint_s = job.meeting.checkpoint_s if job.settings.checkpoint_first else 0.0
    spec = job.spec
    health_s = job.health_check.limit_s if job.health_check is not None else 0.0
    look_s = _POLL_S if spec.hang_timeout is not None else 0.0
    notice_s = saving_s(job.grace_s) if spec.on_preempt and spec.on_preempt.signals else 0.0
    leave_s = 0.0 if job.why_all_restart else job.grace_s  # before the order to stop
    return leave_s + job.grace_s + checkpoint_s + notice_s + health_s + look_s + _READY_S
