"""The group's state: the nodes, the live generation, when to form the next generation, and the
reason for a delay.

One coordinator runs this state machine for all agents in a job. It processes the agents' messages
and returns the messages to send.

    GATHERING   no workers run; nodes join
      | a node announces a live generation                         -> RECOVERING
      | the maximum has joined, or the minimum has joined and no
      | newcomer arrives for a while                               -> RUNNING
      | the join timeout passes                                    -> ENDED
    RUNNING     a generation is live
      | a worker fails, a node is lost, or the workers of all
      | nodes are idle for too long                                -> STOPPING
      | newcomers are to be admitted, or a node is preempted. If
      | workers can save a checkpoint, they first agree on when
      | to do so (core/group/checkpoint_barrier)                   -> STOPPING
      | the workers of all nodes have succeeded                    -> ENDED
    STOPPING    all nodes of the generation have been ordered to stop their workers
      | all of them have done so, or are lost or overdue           -> GATHERING, then onwards
      | a worker had failed and no restart is left                 -> ENDED
    RECOVERING  this coordinator is new; nodes announce the generation that they are in
      | all of its nodes are here and their workers are running.
      | If all leases were over, or the workers had exited, it
      | first waits for the length of a lease, because other
      | nodes may be in a later generation                         -> RUNNING
      | the workers of a node have ended, a node leaves, or one
      | has not arrived within that time                           -> STOPPING
    ENDED       all nodes receive JobEnded, including late arrivals

Rules:

- Before it forms the next generation, the group waits only for survivors, never for nodes that have
  not joined. A silent node never enters a new generation, and newcomers are not admitted while a
  node of the generation is silent. A silent survivor keeps its place until a message from it
  arrives or it is lost (core/group/silence).
- Survivors keep their order, a newcomer takes the place of a lost node, and other newcomers come
  last. In the first generation, nodes are sorted by host name in natural order. Numbered nodes are
  sorted by their numbers, and the group does not wait for missing numbers. A node that
  `comes_first` hosts rank 0. If the user requests it, all nodes are sorted by network topology
  instead (core/group/rank_order).
- A generation consists of whole segments (`--segment`). The remaining nodes are spares, and
  newcomers wait until they fill a segment. The group does not wait for a survivor's segment to
  fill; the survivor is left out instead.
- `restart` counts worker failures, but not membership changes. If both happen during a stop, the
  stop counts as a membership change. After a failure, core/group/restart_decision decides how to
  continue, based on core/group/restart_budget.
- A lost node gets its place back if it returns in time and its workers are still running.
- A generation takes precedence over others if it has a node whose workers are running and whose
  lease has not expired.
- A new generation's number is higher than all numbers that nodes have reported. If two groups have
  formed generations with the same number, the generations' `origin` differs. Nodes above the
  maximum are spares.
- A coordinator that learns about an unknown generation does not form a new one while workers of
  that generation may be running.
- A node that is not ready although its workers must have exited is dropped. Its connection is
  closed, and the other nodes wait until its lease has expired. If a stop takes a long time, all
  nodes receive a message that names the nodes that the stop is waiting for.
- If the workers on some nodes have succeeded while other workers keep running for a long time, all
  nodes receive one message (core/group/early_exits). This has no other effect.
- Nodes may report the fraction of time that their workers spend waiting for others. All nodes are
  then notified of slow ranks (core/group/straggler_detector). This has no other effect.
- Workers that can leave their process group may keep their process in the next generation
  (core/group/survivors). Their node is reported as a node without workers.
- If the user requests it, the nodes in the next generation first probe each other, and unreachable
  nodes are left out (core/group/reachability). Nodes with running workers are never left out.
  Newcomers probe before those workers stop.
- The last call ends even if nodes keep joining. A host with flapping nodes (core/group/flapping)
  does not make other nodes wait or restart.

The invariants are in `check`. Connections, heartbeats, leases and processes are deliberately left
to other modules.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from relight.base.errors import EXIT_GROUP, EXIT_MACHINE, EXIT_OK, EXIT_USAGE
from relight.base.text import format_duration, format_names, pluralize
from relight.core import ranks
from relight.core.failure import Failure
from relight.core.group import group_messages
from relight.core.group.group_types import (
    Drop,
    Effect,
    Event,
    GroupSettings,
    GroupState,
    NodeHeard,
    NodeLost,
    NodeSilent,
    PredecessorPossible,
    Received,
    Send,
    Slept,
)
from relight.core.group.members import Member, Members
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
    NodeIdle,
    NodeLeaving,
    NodePreempted,
    NodeReady,
    NodesGone,
    NodesProbed,
    Note,
    SlowRanks,
    StopWorkers,
    WaitReason,
    WaitSamples,
    WorkerFailed,
    WorkersSucceeded,
)
from relight.core.group.roster import Roster
from relight.core.group.transitions import Reason, next_state
from relight.core.ranks import NO_GENERATION, Generation, GenerationId, NodeSize

if TYPE_CHECKING:
    from relight.core.group.checkpoint_barrier import Agreement
    from relight.core.group.early_exits import EarlyExits
    from relight.core.group.reachability import Reachability
    from relight.core.group.restart_budget import RestartHistory

_WAIT_EVERY_S = 1.0
"""Minimum time between two messages with the reason why a node is waiting. It prevents a series of
joins from flooding the nodes with messages. The time is longer if there are more than
`_WAIT_REASONS` nodes.
"""
_WAIT_REASONS = 1000
_SUCCESSES_EVERY_S = 0.5
"""Minimum time between two messages about nodes that have succeeded."""
_TELL_AFTER_S = 0.3
"""A wait that is shorter than this is not reported."""
_MAX_NUMBER = 1 << 40
"""Sanity limit. Higher generation numbers from nodes are ignored."""
_TELL_STOP_AFTER_S = 5.0
"""If a stop takes longer than this, all nodes receive a message that names the nodes that the stop
is waiting for.
"""
_STACKS_S = 1.0
"""How long a node leaves its workers running after it has captured their stacks, so that the other
nodes can capture the stacks of their workers. Without this delay, workers would exit within
milliseconds after one of their peers is stopped.
"""
_READ_S = 1.0
"""Time limit for reading the message backlog after this process was suspended."""
_LAST_CALLS = 3
"""Maximum length of the last call, in multiples of `settle_timeout_s`. Each join extends it."""


class _StopDeadlines:
    """The order to stop all workers, and its deadlines.

    Attributes:
        message: the order sent to the nodes.
        report_at: when to report to all nodes which nodes the stop is waiting for, or None if that
            has been reported.
        drop_at: when to drop nodes that are not ready, or None for never.
        dropped: the nodes that were dropped.
    """

    def __init__(self, message: StopWorkers, now: float) -> None:
        self.message = message
        self.report_at: float | None = now + _TELL_STOP_AFTER_S
        self.drop_at: float | None = None
        self.dropped: set[str] = set()

    def deadlines(self) -> list[float]:
        """Return the pending deadlines."""
        return [at for at in (self.report_at, self.drop_at) if at is not None]

    def wait_for(self, stop_s: float | None, now: float) -> None:
        """Add a node that the stop has to wait for."""
        if stop_s is not None:
            self.drop_at = max(self.drop_at or 0.0, now + stop_s + self.message.limit_s)


class _GenerationCounter:
    """Assigns numbers to generations. Each number is higher than all numbers known to the group."""

    def __init__(self, origin: str) -> None:
        self.latest = NO_GENERATION
        """The known generation that has the highest number."""
        self.origin = origin

    def record_generation(self, generation: GenerationId) -> None:
        """Record a generation that a node reported."""
        latest = self.latest
        if latest.number < generation.number < _MAX_NUMBER:
            self.latest = generation
        elif latest.number == generation.number and latest.origin != generation.origin:
            self.latest = latest._replace(origin="")  # several generations have this number

    def next(self) -> GenerationId:
        """Return a new generation's ID."""
        self.latest = GenerationId(self.latest.number + 1, self.origin)
        return self.latest


class _RateLimit:
    """Debounces and rate-limits broadcasts."""

    def __init__(self) -> None:
        self.is_pending = False  # whether something has changed since the last report
        self.at = 0.0

    def after_join(self, now: float) -> None:
        """Schedule a report because a node has joined. Later joins do not delay the report."""
        if not self.is_pending:
            self.is_pending, self.at = True, max(self.at, now + _TELL_AFTER_S)


class _Formation:
    """The deadlines and facts of a generation that is being formed."""

    def __init__(self) -> None:
        self.since = 0.0
        self.enough_since: float | None = None  # when the last call began
        self.unknown_may_run_until = 0.0  # until then, workers of an unknown generation may run
        self.predecessor = ""  # why the nodes of another coordinator may have formed one
        self.predecessor_until = 0.0  # the same as unknown_may_run_until, for such a generation
        self.not_before = 0.0  # earliest start of the next generation, after repeated failures
        self.departure = ""  # the node that left in the meantime, and why


class _Teardown:
    """The known facts about the end of a generation. These are the agreement on when workers save,
    the order to stop the workers, the reasons for the stop, and the nodes' reports.
    """

    def __init__(self, formed_at: float) -> None:
        self.formed_at = formed_at
        self.world_size = 0  # 0 if another coordinator formed the generation
        self.preempted: dict[str, NodePreempted] = {}  # by node
        self.agreement: Agreement | None = None  # while workers agree on when to save
        self.saves = False  # a former coordinator ordered the workers to save and exit
        self.stopping: _StopDeadlines | None = None  # set once the nodes were ordered to stop
        self.failure_cause = ""  # why a worker failed, or empty without a failure
        self.blamed_at: float | None = None  # when it failed, if it blames a peer
        self.blamed_by = ""  # the node where that worker ran
        self.addresses: dict[str, str] = {}  # for all nodes, including those that are gone
        self.failed_host = ""  # the host of the failed worker, or of a lost node
        self.membership_changed = False  # a node was lost or admitted during this stop
        self.has_lost_node = False
        self.hung = False
        self.early_exits: EarlyExits | None = None  # nodes that have succeeded while others run
        self.hosts: dict[int, str] = {}  # the hosts of these nodes, by group rank
        self.progressed: bool | None = None  # None: unknown
        self.failures: list[Failure] = []  # `at` on our clock
        self.waiting: list[Failure] = []  # survivors of a hang
        self.succeeded_ranks: set[int] = set()
        self._reported: set[tuple[int, int, str]] = set()  # the rank, pid and host of each failure

    def add(self, ready: NodeReady, host: str, now: float) -> None:
        """Add a node's report on its workers."""
        for all_reports, reports in (
            (self.failures, ready.failures),
            (self.waiting, ready.waiting),
        ):
            for failure in reports:
                process = failure.rank, failure.pid, failure.host
                if process not in self._reported:  # a node that was disconnected repeats it
                    self._reported.add(process)
                    all_reports.append(failure._replace(at=failure.at + now))
        self.succeeded_ranks.update(ready.succeeded_ranks)
        if ready.progressed is not None:
            self.progressed = self.progressed or ready.progressed
        if any(each.exitcode and not each.stop_signal for each in ready.failures):
            self.failure_cause = self.failure_cause or f"a worker failed on {host}"


class Membership:
    """The state machine for one job's group. Unless it changes the whole group, a step takes
    constant time regardless of the number of nodes.

    Args:
        settings: the user's settings.
        origin: a random string that is unique to this group and becomes part of the ids of the
            generations formed by it.
    """

    def __init__(self, settings: GroupSettings, origin: str) -> None:
        self.settings = settings
        self.state = GroupState.GATHERING
        self.generation = NO_GENERATION
        self.restart = 0
        self.history: RestartHistory | None = None  # created when needed
        self.end: JobEnded | None = None
        self.members = Members(settings)
        self.roster = Roster()
        """The nodes of the live or most recent generation."""
        self._gathering = _Formation()
        self._numbers = _GenerationCounter(origin)
        self._cause = "start"
        self._ending = _Teardown(0.0)
        self._began_at: float | None = None
        self._recover_until: float | None = None  # lost nodes may still return with workers
        self._wait_reasons = _RateLimit()
        self._success_reports = _RateLimit()
        self._effects: list[Effect] = []

    def step(self, event: Event, now: float) -> list[Effect]:
        """Process one event and return the messages to send and the nodes to drop."""
        if self._began_at is None:
            self._began_at = now
        match event:
            case Received(_, Join() as join):
                self._on_join(join, now)
            case Received(node, message) if node in self.members:
                self._on_message(self.members[node], message, now)
            case NodeSilent(node, heard_at, reason) if node in self.members:
                self.members.fall_silent(self.members[node], heard_at, reason)
                self._wait_reasons.is_pending = True
            case NodeHeard(node) if node in self.members:
                self._hear(self.members[node], now)
            case PredecessorPossible(reason):
                gathering = self._gathering
                if bool(reason) is not bool(gathering.predecessor):
                    until = self._until_others_are_back(now) if reason else 0.0
                    gathering.predecessor_until = until
                gathering.predecessor = reason
                self._wait_reasons.is_pending = True
            case Slept():
                self._sleep(now)
            case NodeLost(node, reason) if node in self.members:
                self._lose(self.members[node], f"was lost: {reason}", now)
        self._advance(now)
        effects, self._effects = self._effects, []
        return effects

    def deadline(self) -> float | None:
        """Return the time when the next Tick is due, or None."""
        settings, times = self.settings, []
        reachability = self.members.reachability
        tries_until = None if reachability is None else reachability.until
        if tries_until is not None:
            times.append(tries_until)
        if self.state is GroupState.GATHERING and self.members and tries_until is None:
            times.append(self._forms_at() if self._has_enough() else self._gives_up_at())
        elif self._ending.agreement is not None:
            times.append(self._ending.agreement.until)
        elif self.state is GroupState.RUNNING:
            if self._has_capacity() and tries_until is None:
                times.append(self._admission_time())
            if (quiet := self.roster.all_quiet()) is not None:
                times.append(quiet.too_long_at)
            if self._success_reports.is_pending:
                times.append(self._success_reports.at)
            early = self._ending.early_exits
            if early is not None and (due := early.deadline()) is not None:
                times.append(due)
            if self.roster.done:
                times.append(next(iter(self.roster.done.values())) + settings.exit_barrier_s)
        elif (
            self.state is GroupState.STOPPING
            and self.roster.active
            and self._ending.stopping is not None
        ):
            times += self._ending.stopping.deadlines()
        if self._recover_until is not None:
            times.append(self._recover_until)
        silence_due = self.members.silence.deadline()
        if silence_due is not None:
            times.append(silence_due)
        if self._wait_reasons.is_pending and self.state in (
            GroupState.GATHERING,
            GroupState.RUNNING,
        ):
            times.append(self._wait_reasons.at)
        return min(times, default=None)

    def states(self) -> tuple[tuple[str, str], ...]:
        """Return the name and state of this state machine and its short-lived sub-machines."""
        agreement, reachability = self._ending.agreement, self.members.reachability
        return (
            ("membership", self.state.value),
            ("agreement", "idle" if agreement is None else "counting"),
            ("reachability", "idle" if reachability is None else reachability.state),
        )

    def present(self) -> int:
        """Return the number of nodes that are connected, that left after their workers succeeded,
        or that left the job during this stop while workers on other nodes may still be saving a
        checkpoint.
        """
        left = len(self.members.leaving) if self.state is GroupState.STOPPING else 0
        return len(self.members) + self.roster.done_and_gone + left

    def lost(self, now: float) -> int:
        """Return how many nodes in the live or most recent generation are lost, or may be lost,
        without having succeeded. Right after a suspension of this process, a node that seems silent
        doesn't count yet, because its messages have not been read.
        """
        silent = self.members.silence.besides_suspension(now - _READ_S)
        return self.roster.lost + sum(node in self.roster.active for node in silent)

    def lacks_nodes_since(self) -> float | None:
        """Return the time when the group began to wait for enough nodes to form the first
        generation, or None if it isn't waiting.
        """
        is_first = self.state is GroupState.GATHERING and self.generation == NO_GENERATION
        lacks = is_first and 0 < len(self.members) < self.settings.needed
        return self._gathering.since if lacks else None

    def explain(self, now: float) -> str:
        """Describe what the group is waiting for."""
        settings, here = self.settings, len(self.members)
        left = self._gathering.since + settings.join_timeout_s - now
        match self.state:
            case GroupState.GATHERING:
                hosts = [member.join.host for member in self.members]
                if now < self._gathering.not_before:
                    return self._cause
                reachability = self.members.reachability
                if reachability is not None and reachability.until is not None:
                    return "the nodes are testing their connections (--health-check=network)"
                if here < settings.needed:
                    cause = self._gathering.departure
                    if not cause and self.generation != NO_GENERATION:
                        cause = self._cause
                    return group_messages.too_few(
                        hosts, settings.needed, settings.max_nodes, left, cause
                    )
                if not self._has_enough():
                    late = [member.join.host for member in self.members.not_ready()]
                    return group_messages.not_ready(late, left)
                expiry = self._foreign_lease_expiry()
                if now < expiry == self._forms_at():
                    reason = self._gathering.predecessor
                    return group_messages.earlier_generation(hosts, expiry - now, reason)
                return group_messages.last_call(
                    hosts, settings.max_nodes, settings.settle_timeout_s
                )
            case GroupState.RUNNING:
                nodes, silent = (
                    pluralize(len(self.roster), "node"),
                    self.members.silence.explain(now),
                )
                runs = f"generation {self.generation.number} runs on {nodes}"
                return f"{runs}; {silent}" if silent else runs
            case GroupState.STOPPING if self.roster.active:
                late = [self.members[node].join.host for node in sorted(self.roster.active)]
                silent = self.members.silence.explain(now)
                cause = f"{self._cause}; {silent}" if silent else self._cause
                return f"waiting for workers to stop on {format_names(late)} ({cause})"
            case GroupState.STOPPING | GroupState.RECOVERING:
                return group_messages.coming_back(self.roster.lost, self.generation.number)
            case GroupState.ENDED:
                return "the job is over"

    def check(self) -> None:
        """Assert the invariants."""
        roster = self.roster
        roster.check()
        live = roster.group_ranks.keys()
        assert all(node in self.members for node in live)
        assert not any(self.members.is_ready(node) for node in roster.active)
        stopping = self._ending.stopping
        assert stopping is None or not stopping.dropped & live
        assert len(roster) <= self.settings.max_nodes
        assert self.restart <= self._max_restarts()
        assert self.generation.number <= self._numbers.latest.number
        assert (self.end is not None) == (self.state is GroupState.ENDED)
        assert self.end is None or self.members.reachability is None
        stops = self.state in (GroupState.STOPPING, GroupState.RECOVERING)
        assert stops or not self.members.leaving
        assert self._ending.agreement is None or self.state is GroupState.RUNNING
        if self.state is GroupState.RUNNING:
            assert len(roster) >= self.settings.min_nodes
            assert not roster.lost
            assert roster.active == live - roster.done.keys()
        assert (
            roster.active
            or self._recover_until is not None
            or self.state is not GroupState.STOPPING
        )

    # Messages from nodes.

    def _on_join(self, join: Join, now: float) -> None:
        if self.end is not None:
            self._send(join.node, self.end)
            return
        if holder := self.members.silent_holder(join):
            if self.members.is_first_try(join):  # the node retries until the holder is lost
                self._send(join.node, Note(group_messages.held_by_silent(join, holder)))
            self._effects.append(Drop(join.node))
            return
        if refusal := self.members.refusal(join):
            self._send(join.node, JobEnded(EXIT_USAGE, refusal, (), None))
            if self.state is GroupState.GATHERING:  # the others would wait in vain
                self._broadcast(f"{join.host} can't join: {refusal}")
            return
        if not self.members and self.state is GroupState.GATHERING:
            self._gathering.since = now
        if join.met_coordinator and join.node not in self.members:
            self._hold_first_generation(now)
        for node, text in self.members.admit(join, now):
            self._send(node, Note(text))
        self._wait_reasons.after_join(now)
        if join.announce is not None and self._is_news(join.node, join.announce):
            self._on_announce(self.members[join.node], join.announce, now)
        elif join.node in self.roster:  # it has no workers, or never received GenerationFormed
            if self.state is GroupState.RUNNING:
                cause = f"{join.host} reconnected without its workers"
                self._stop(Reason.WORKERS_ENDED, cause, now)
            elif self.state is GroupState.STOPPING:
                self.roster.active.add(join.node)  # until its NodeReady arrives
                self._stop_joined(join.node, now)

    def _on_announce(self, member: Member, announce: Announce, now: float) -> None:
        """Handle a node that joins with workers from a generation, or after those workers have
        ended.
        """
        generation, node = announce.generation, member.node
        place, size = announce.group_rank, announce.group_world_size
        possible = 0 <= place < size <= self.settings.max_nodes and generation.number < _MAX_NUMBER
        self._numbers.record_generation(generation)
        nothing_known = self.state in (GroupState.GATHERING, GroupState.RECOVERING)
        if possible and nothing_known and self._outranks(announce):
            for older in list(self.roster.group_ranks):
                self._evict_stale(self.members[older], now)
            self._change(Reason.GENERATION_ANNOUNCED)
            self.generation = generation
            self.restart = min(max(self.restart, announce.restart), self._max_restarts())
            self.roster, self._ending = Roster([None] * size), _Teardown(now)
            self.roster.may_be_superseded = announce.may_be_superseded
            self._recover_until = self._until_others_are_back(now)
        live = self.state in (GroupState.RUNNING, GroupState.RECOVERING, GroupState.STOPPING)
        known = possible and live and (generation, size) == (self.generation, len(self.roster))
        stopping = self._ending.stopping
        known = known and not (stopping is not None and node in stopping.dropped)
        if not known or not self.roster.take(node, place):
            self._evict_stale(member, now)
            return
        self.roster.may_be_superseded = self.roster.may_be_superseded and announce.may_be_superseded
        self._ending.addresses[node] = member.join.address
        if self.state is GroupState.RECOVERING:
            self._ending.saves |= announce.saves
        self.roster.mark_succeeded(announce.succeeded)
        self.roster.mark_gone(announce.gone)
        if node not in self.roster.done:
            self.roster.active.add(node)
        if self.state is GroupState.STOPPING:
            self._stop_joined(node, now)
            return
        if self.state is GroupState.RUNNING:
            self._confirm([node])
            if self._ending.agreement is not None:
                self._send(node, CheckpointLimit(self.generation, self._ending.agreement.limit))
        if announce.done:
            self._succeed(node, now)
        elif self.state is GroupState.RECOVERING and not (
            announce.may_be_superseded or announce.ended
        ):
            # The other nodes could only have continued without this node after its lease expired,
            # so this generation is live. Waiting for them first would freeze this node's workers.
            self._send(node, Confirm(self.generation, recovers=True))

    def _is_news(self, node: str, announce: Announce) -> bool:
        """Return whether an announcement contains more than the arrival of a node without
        workers.
        """
        if not announce.ended or self.state is GroupState.RECOVERING:
            return True
        if self.state is GroupState.GATHERING:
            return self.generation == NO_GENERATION
        stopping = self.state is GroupState.STOPPING
        return stopping and node not in self.roster and announce.generation == self.generation

    def _outranks(self, announce: Announce) -> bool:
        """Return whether the newly announced generation may be live instead of the one announced
        before.
        """
        number, before = announce.generation.number, self.generation.number
        if self.state is GroupState.RECOVERING and announce.generation != self.generation:
            sure, sure_before = not announce.may_be_superseded, not self.roster.may_be_superseded
            return (sure, number) > (sure_before, before)
        return number > before

    def _until_others_are_back(self, now: float) -> float:
        """Return the time until which nodes may join with workers that are running on a lease from
        a former coordinator. Those leases expire at most `lost_after_s` after the start of this
        coordinator.
        """
        assert self._began_at is not None
        return max(now + self.settings.rejoin_grace_s, self._began_at + self.settings.lost_after_s)

    def _hold_first_generation(self, now: float) -> None:
        """Delay the first generation while workers may still be running on a lease from a former
        coordinator.
        """
        if self.generation == NO_GENERATION and not self._gathering.unknown_may_run_until:
            self._gathering.unknown_may_run_until = self._until_others_are_back(now)

    def _sleep(self, now: float) -> None:
        """Give nodes extra time after this process was suspended, because the messages that they
        sent in the meantime have not been read yet.
        """
        self.members.silence.sleep(now)
        stopping, read_by = self._ending.stopping, now + _READ_S
        if stopping is not None and stopping.drop_at is not None:
            stopping.drop_at = max(stopping.drop_at, read_by)
        if self._recover_until is not None:
            self._recover_until = max(self._recover_until, read_by)

    def _hear(self, member: Member, now: float) -> None:
        """Handle a message from a node that was silent."""
        self.members.hear(member, now)
        stopping = self._ending.stopping
        if stopping is not None and stopping.drop_at is None and member.node in self.roster.active:
            stopping.wait_for(member.join.stop_s, now)

    def _succeed(self, node: str, now: float) -> None:
        self.roster.finish(node, now)
        self._success_reports.is_pending = True
        if self._ending.agreement is not None:
            self._ending.agreement.remove(node)
        if self.roster.active:
            self._note_early_exit(node, now)

    def _note_early_exit(self, node: str, now: float) -> None:
        from relight.core.group.early_exits import EarlyExits

        ending, group_rank = self._ending, self.roster.group_ranks[node]
        ending.early_exits = ending.early_exits or EarlyExits(ending.formed_at)
        ending.early_exits.finish(group_rank, now)
        ending.hosts[group_rank] = self.members[node].join.host

    def _evict_stale(self, member: Member, now: float) -> None:
        announce = member.join.announce
        its_own = self.generation if announce is None else announce.generation
        cause = "the other nodes continued without this node"
        self._send(member.node, StopWorkers(its_own, cause, checkpoint_first=False))
        if member.node in self.roster:
            self.roster.remove(member.node)
            self._ending.membership_changed = True
            if self.state is GroupState.RUNNING:
                cause = f"{member.join.host} is in another generation"
                self._stop(Reason.NODE_ELSEWHERE, cause, now)

    def _on_message(self, member: Member, message: FromAgent, now: float) -> None:
        node = member.node
        current = node in self.roster and getattr(message, "generation", None) == self.generation
        match message:
            case NodeReady():
                self._numbers.record_generation(message.generation)
                self._numbers.record_generation(message.latest)
                if node in self.roster and not (current or member.idle):
                    return  # an outdated message
                self._on_ready(member, message, current, now)
            case NodesProbed() if self.members.reachability is not None:
                self.members.reachability.answer(node, message)
            case WorkerFailed(_, reason, suspects_peer) if current:
                if not self._ending.failure_cause:
                    self._ending.failure_cause = reason
                    if suspects_peer:
                        self._ending.blamed_at, self._ending.blamed_by = now, node
                if self.state is GroupState.RUNNING:
                    stop = StopWorkers(
                        self.generation,
                        reason,
                        checkpoint_first=False,
                        capture_stacks=suspects_peer,
                        may_stay=True,
                    )
                    self._stop(Reason.WORKER_FAILED, reason, now, stop)
            case NodeIdle(_, quiet_s, limit_s) if current:
                self.roster.set_quiet(node, now - quiet_s, limit_s if quiet_s else 0.0)
            case WaitSamples() if current:
                self._compare_pace(node, message, now)
            case WorkersSucceeded() if current and self.state in (
                GroupState.RUNNING,
                GroupState.RECOVERING,
            ):
                self._succeed(node, now)
            case NodePreempted() if current:
                self._ending.preempted[node] = message
            case CheckpointCalls(_, limit, calls) if current and self._ending.agreement is not None:
                self._ending.agreement.answer(node, limit, calls)
            case NodesGone(_, gone) if current:
                self.roster.mark_gone(gone)
            case NodeLeaving(reason) if self.end is not None:
                self._lose(member, f"left: {reason}", now, orderly=True)
            case NodeLeaving(reason, waits):
                self.members.leaving[node] = waits
                self._lose(member, f"left: {reason}", now, orderly=True)

    def _compare_pace(self, node: str, pace: WaitSamples, now: float) -> None:
        """While all nodes are running, compare the ranks on all nodes, and report the slow
        ranks.
        """
        from relight.core.group import straggler_detector

        roster = self.roster
        if self.state is not GroupState.RUNNING or roster.is_ending:
            return
        if roster.slow_ranks is None:
            joins = [self.members[each].join for each in roster.order if each is not None]
            places = ranks.places([NodeSize(join.local_world_size, join.role) for join in joins])
            hosts = [join.host for join in joins]
            roster.slow_ranks = straggler_detector.StragglerDetector(
                zip(places, hosts, strict=True)
            )
        change = roster.slow_ranks.hear(roster.group_ranks[node], pace, now)
        if change is not None:
            age_s = now - change.since if change.nodes else 0.0
            told = SlowRanks(self.generation, change.nodes, age_s)
            for each in roster.group_ranks:
                self._send(each, told)

    def _on_ready(self, member: Member, ready: NodeReady, current: bool, now: float) -> None:
        node = member.node
        if node in self.roster.active or node in self.roster.done:
            if current:
                self._ending.add(ready, member.join.host, now)
            if self.state is GroupState.RUNNING:
                cause = self._ending.failure_cause or f"workers ended on {member.join.host}"
                self._stop(Reason.WORKERS_ENDED, cause, now)
            self.roster.deactivate(node)
        if self.generation == NO_GENERATION:  # a new coordinator learns the restart count
            self.restart = max(self.restart, min(ready.restart, self._max_restarts()))
            if self._numbers.latest.number >= 0:
                self._hold_first_generation(now)
        asks = ready.prober is not None and self.end is None
        if asks and self.members.reachability is None:
            from relight.core.group.reachability import Reachability

            self.members.reachability = Reachability(self._numbers.origin)
        self.members.set_ready(member, ready)
        self._wait_reasons.is_pending = True

    def _lose(self, member: Member, what: str, now: float, *, orderly: bool = False) -> None:
        node, was_ready = member.node, self.members.is_ready(member.node)
        self.members.lose(member, now)
        self._wait_reasons.is_pending = True
        if node not in self.roster:
            if orderly and self.state is GroupState.GATHERING:
                self._gathering.departure = f"{member.join.host} {what}"
                if not was_ready:  # it is unfit, and too few nodes may be left for a coordinator
                    self._wait_reasons.at = now
            return
        had_ended_well, group_rank = node in self.roster.done, self.roster.group_ranks[node]
        self.roster.remove(node)
        if had_ended_well:
            return  # the others can continue without it
        if self.state is GroupState.RECOVERING and not orderly:
            self.roster.mark_gone((group_rank,))  # its workers or their lease ended
        elif self.state is GroupState.RECOVERING and self._ending.saves:
            self._ending.membership_changed = True  # its workers saved; others may still be saving
        else:
            self._ending.membership_changed = self._ending.has_lost_node = True
            if not orderly:
                self._ending.failed_host = member.join.host
            if self.state in (GroupState.RUNNING, GroupState.RECOVERING):
                self._stop(Reason.NODE_LOST, f"{member.join.host} {what}", now)
            elif self.state is GroupState.STOPPING:
                self._cause = f"{member.join.host} {what}"

    # Transitions.

    def _advance(self, now: float) -> None:
        """Take all transitions that are currently possible."""
        silence = self.members.silence
        for node in silence.lost(now):
            self._effects.append(Drop(node))
            self._lose(self.members[node], f"was lost: {silence.reason(node, now)}", now)
        for line in silence.news(now):
            self._broadcast(line)
        reachability = self.members.reachability
        if reachability is not None and reachability.is_over(now):
            self._leave_out_unreachable(reachability, now)
        if self._recover_until is not None:
            self._wait_for_lost(self._recover_until, now)
        if self.state is GroupState.RUNNING:
            self._while_running(now)
        stopping = self._ending.stopping
        if self.state is GroupState.STOPPING and self.roster.active and stopping is not None:
            self._watch_stop(stopping, now)
        if (
            self.state is GroupState.STOPPING
            and not self.roster.active
            and self._recover_until is None
        ):
            self._after_stop(now)
        if self.state not in (GroupState.STOPPING, GroupState.RECOVERING):
            self._release_departed()
        if self.state is GroupState.GATHERING:
            self._while_gathering(now)
        if self._wait_reasons.is_pending and now >= self._wait_reasons.at:
            self._send_wait_reasons(now)

    def _release_departed(self) -> None:
        """If departed nodes are waiting until all workers have stopped, notify them."""
        for node, waits in self.members.leaving.items():
            if waits:
                reason = "this node has left; the workers on the other nodes have stopped"
                self._send(node, JobEnded(EXIT_OK, reason, (), None, others_run=True))
        self.members.leaving.clear()

    def _wait_for_lost(self, until: float, now: float) -> None:
        lost = self.roster.lost > 0
        recovering = self.state is GroupState.RECOVERING
        unsure = not lost and recovering and (self._may_be_superseded() or self._awaits_report())
        if now < until and (self.roster.missing > 0 or unsure):
            return
        self._recover_until = None
        self._ending.membership_changed |= lost
        if not recovering:
            return
        if self._ending.saves and not self._ending.failure_cause:
            self._confirm(self.roster.group_ranks)  # frozen workers can't save
        if lost:
            cause = "a node was lost when the coordinator was lost"
            self._stop(Reason.NODE_LOST, cause, now)
        elif self._ending.failure_cause or self.roster.has_idle():
            cause = self._ending.failure_cause or "workers ended while there was no coordinator"
            self._stop(Reason.WORKERS_ENDED, cause, now)
        elif self._ending.saves:
            self._stop(Reason.WORKERS_SAVED, "the workers saved a checkpoint and left", now)
        else:
            self._change(Reason.GENERATION_RECOVERED)
            self._success_reports.is_pending = False
            self._confirm(self.roster.group_ranks)

    def _may_be_superseded(self) -> bool:
        """Return whether nodes may announce a later generation. Nodes can't announce a later
        generation if all nodes that may belong to this generation are connected and have no
        workers.
        """
        return self.roster.may_be_superseded and not self._are_all_here(self.generation)

    def _awaits_report(self) -> bool:
        """Return whether a node has yet to report how its workers ended."""
        return any(self.members[node].idle for node in self.roster.active)

    def _confirm(self, nodes: Iterable[str]) -> None:
        """Confirm the generation to nodes, and report to them which nodes have succeeded, because
        the next coordinator has to learn this from these nodes.
        """
        confirmation = Confirm(self.generation, self.roster.succeeded)
        for node in nodes:
            self._send(node, confirmation)

    def _while_running(self, now: float) -> None:
        if not self.roster.active:
            end = JobEnded(EXIT_OK, "all workers succeeded", (), None)
            self._finish(Reason.ALL_SUCCEEDED, end)
            return
        if self._ending.agreement is not None:
            self._continue_barrier(self._ending.agreement, now)
            return
        for node, preempted in self._ending.preempted.items():
            if node in self.roster:
                cause = f"{self.members[node].join.host} is preempted: {preempted.reason}"
                self._agree(cause, preempted.limit_s, now)
                return
        quiet = self.roster.all_quiet()
        if quiet is not None and now >= quiet.too_long_at:
            self._stop_hung(now - quiet.since, now)
            return
        early = self._ending.early_exits
        if early is not None and early.is_due(now):
            self._report_early_exits(early, now)
        if self._success_reports.is_pending and now >= self._success_reports.at:
            self._success_reports.is_pending, self._success_reports.at = (
                False,
                now + _SUCCESSES_EVERY_S,
            )
            self._confirm(sorted(self.roster.active))
        for node, done_at in list(self.roster.done.items()):
            if now < done_at + self.settings.exit_barrier_s:
                break
            self.roster.remove(node)
            self.members.remove(self.members[node], now)
            reason = "its workers succeeded; others are still running"
            self._send(node, JobEnded(EXIT_OK, reason, (), None, others_run=True))
        newcomers = self._newcomers(now)
        if newcomers and not self._start_probe_if_needed(newcomers, now):
            cause = f"{format_names([member.join.host for member in newcomers])} joined"
            if self.settings.checkpoint_first:
                self._agree(cause, 0.0, now)
            else:
                self._ending.membership_changed = True
                self._stop(Reason.NEWCOMERS_ADMITTED, cause, now)

    def _report_early_exits(self, early: "EarlyExits", now: float) -> None:
        """Notify all nodes that some nodes' workers have succeeded while others are running."""
        from relight.core.group.early_exits import describe_nodes

        finished = [self._ending.hosts[group_rank] for group_rank in early.at]
        here = [node for node in self.roster.order if node in self.roster.active]
        running = [self.members[node].join.host for node in here if node is not None]
        self._broadcast(describe_nodes(finished, early.ages(now), running))

    def _stop_hung(self, quiet_s: float, now: float) -> None:
        """Stop idle workers in the same way as after a failure."""
        cause = f"no rank has made progress for {format_duration(quiet_s)}"
        self._ending.hung, self._ending.failure_cause = True, cause
        stop = StopWorkers(
            self.generation, cause, checkpoint_first=False, capture_stacks=True,
            limit_s=_STACKS_S if len(self.roster) > 1 else 0.0, may_stay=True,
        )  # fmt: skip
        self._stop(Reason.HANG, cause, now, stop)

    def _agree(self, cause: str, limit_s: float, now: float) -> None:
        """Start an agreement between the workers on when they save and exit."""
        from relight.core.group.checkpoint_barrier import Agreement

        agreement = self._ending.agreement = Agreement(self.roster.active, cause, limit_s, now)
        self._send_limit(agreement)

    def _send_limit(self, agreement: "Agreement") -> None:
        for node in agreement.nodes:
            self._send(node, CheckpointLimit(self.generation, agreement.limit))

    def _continue_barrier(self, agreement: "Agreement", now: float) -> None:
        before = agreement.limit
        call = agreement.conclude(now, self.members.silence)
        if call is not None:
            self._ending.membership_changed = True
            last = StopWorkers(
                self.generation, agreement.cause, checkpoint_first=True,
                checkpoint_at=call, limit_s=agreement.limit_s,
            )  # fmt: skip
            self._stop(Reason.CHECKPOINT_AGREED, agreement.cause, now, last)
        elif agreement.limit != before:
            self._send_limit(agreement)

    def _change(self, reason: Reason) -> None:
        """Change the state. Nothing else changes it."""
        self.state = next_state(self.state, reason)

    def _stop(
        self, reason: Reason, cause: str, now: float, message: StopWorkers | None = None
    ) -> None:
        """Stop the workers on all nodes, immediately or as specified in a message."""
        checkpoint_first = self._ending.saves and not self._ending.failure_cause
        stop = message or StopWorkers(
            self.generation,
            cause,
            checkpoint_first,
            capture_stacks=self._ending.blamed_at is not None,
            may_stay=not checkpoint_first,
        )
        self._change(reason)
        self._cause, self._ending.agreement = cause, None
        self.roster.reactivate()
        stopping = self._ending.stopping = _StopDeadlines(stop, now)
        for node in self.roster.group_ranks:
            if node in self.roster.active:
                stopping.wait_for(self.members[node].join.stop_s, now)
                self._send(node, stop)

    def _stop_joined(self, node: str, now: float) -> None:
        """Handle a node that joins during a stop."""
        stopping = self._ending.stopping
        assert stopping is not None
        if stopping.drop_at is None:
            stopping.wait_for(self.members[node].join.stop_s, now)
        self._send(node, stopping.message)
        if stopping.message.checkpoint_first:
            # Frozen workers can't save, so the generation must be confirmed. But confirm it only
            # after the workers know the call at which all of them save, because a confirmation also
            # releases workers that are held while their calls are counted.
            self._confirm([node])

    def _watch_stop(self, stopping: _StopDeadlines, now: float) -> None:
        """Report which nodes a stop is waiting for, and drop overdue nodes."""
        if stopping.report_at is not None and now >= stopping.report_at:
            waited_for = len(self.members) > len(self.roster.active)  # other nodes are waiting
            stopping.report_at = None if waited_for else now + _TELL_STOP_AFTER_S
            if waited_for:
                self._broadcast(self.explain(now))
        if stopping.drop_at is None or now < stopping.drop_at:
            return
        stopping.drop_at = None
        here = [self.members[node] for node in sorted(self.roster.active)]
        late = [
            member for member in here
            if member.join.stop_s is not None and member.node not in self.members.silence
        ]  # fmt: skip
        for member in late:
            stopping.dropped.add(member.node)
            self._effects.append(Drop(member.node))
            self.roster.remove(member.node)
            self.members.lose(member, now)
        if late:
            self._ending.membership_changed = True
            self._recover_until = now + self.settings.lost_after_s  # until their leases are over
            hosts = [member.join.host for member in late]
            self._cause = f"{format_names(hosts)} did not stop in time"
            self._broadcast(group_messages.dropped(hosts))

    def _broadcast(self, text: str) -> None:
        for member in self.members:
            self._send(member.node, Note(text))

    def _after_stop(self, now: float) -> None:
        """Decide how to continue after all workers have stopped. The choices are to restart after a
        failure, to form the next generation after a membership change, or to end the job.
        """
        ending = self._ending
        self._gathering.since = now
        self._gathering.not_before = 0.0
        self._gathering.departure = ""
        if ending.blamed_at is not None and self._was_silent(ending.blamed_at):
            ending.membership_changed = True  # the failure was a consequence of that
        if ending.failure_cause and not ending.membership_changed:
            self._after_failure(ending, now)
            return
        self._change(Reason.WORKERS_STOPPED)
        if ending.has_lost_node and self.settings.smart:
            from relight.core.group.restart_budget import GenerationRun

            run = GenerationRun(now - ending.formed_at, ending.progressed)
            delay_s = self._restarts(now).after_lost_node(run)
            if delay_s:
                self._cause += f"; the workers start in {format_duration(delay_s, digits=1)}"
            self._wait_before_next(delay_s, now)

    def _was_silent(self, failed_at: float) -> bool:
        """Return whether the peer blamed by a failed worker was silent when the worker failed. If
        the worker's error does not name the peer, any silent node counts.
        """
        ending = self._ending
        reports = (failure.report for failure in ending.failures if failure.report is not None)
        text = " ".join(report.message for report in reports)
        named = {node for node, address in ending.addresses.items() if address and address in text}
        suspects = {*(named or ending.addresses), ending.blamed_by}
        return self.members.silence.explains(failed_at, suspects)

    def _after_failure(self, ending: _Teardown, now: float) -> None:
        from relight.core.group import restart_decision  # large and only needed after a failure

        ended = restart_decision.GenerationEnd(
            ending.failures, sorted(ending.succeeded_ranks), self._cause, ending.formed_at,
            ending.progressed, ending.hung, ending.world_size, ending.waiting,
        )  # fmt: skip
        outcome = restart_decision.decide(ended, self._restarts(now), self.restart, now)
        if isinstance(outcome, JobEnded):
            self._finish(Reason.NO_RESTART_LEFT, outcome)
        else:
            self._change(Reason.WORKERS_STOPPED)
            self.restart, self._cause = self.restart + 1, outcome.cause
            ending.failed_host = outcome.host
            self._wait_before_next(outcome.delay_s, now)

    def _restarts(self, now: float) -> "RestartHistory":
        from relight.core.group.restart_budget import RestartHistory

        if self.history is None:
            self.history = RestartHistory(self.settings, self.restart, self._numbers.origin, now)
        return self.history

    def _max_restarts(self) -> int:
        return _MAX_NUMBER if self.settings.budget_renews else self.settings.max_restarts

    def _wait_before_next(self, delay_s: float, now: float) -> None:
        if delay_s:
            self._gathering.since = self._gathering.not_before = now + delay_s
            self._wait_reasons.is_pending, self._wait_reasons.at = True, now

    def _while_gathering(self, now: float) -> None:
        if not self.members:
            return
        if self._has_enough():
            if self._gathering.enough_since is None:
                self._gathering.enough_since = now
            if now >= self._forms_at():
                self._form(now)
            return
        self._gathering.enough_since = None
        if now >= self._gives_up_at():
            after = format_duration(self.settings.join_timeout_s)
            reason = self.explain(now).partition(" (join timeout")[0]
            end = JobEnded(EXIT_GROUP, f"gave up after {after}: {reason}", (), None)
            self._finish(Reason.JOIN_TIMEOUT, end)

    def _forms_at(self) -> float:
        """Return the time when the ready nodes will form a generation, unless nodes join or leave
        before then.
        """
        if self.generation != NO_GENERATION:
            silence = self.members.silence  # because a silent survivor keeps its place
            back = (silence.lost_at(node) for node in silence if node in self.roster)
            return max(self._gathering.not_before, *back, 0.0)
        over = 0.0 if self._is_full() else min(self._settle_deadline(), self._gives_up_at())
        return max(over, self._foreign_lease_expiry())

    def _gives_up_at(self) -> float:
        return self._gathering.since + self.settings.join_timeout_s

    def _has_enough(self) -> bool:
        return self.members.count_ready() >= self.settings.needed

    def _foreign_lease_expiry(self) -> float:
        """Return the time until which workers from an unknown generation may be running, or 0 if
        there can't be any. Such workers may exist if nodes know about an earlier coordinator,
        unless those nodes know that coordinator's last generation and all nodes that may belong to
        that generation are connected. If no node reports a generation, this doesn't prove that none
        existed, because all of these nodes may have arrived after the nodes that belong to it.

        A coordinator's generations follow each other, but those of different coordinators may have
        been formed in any order, whatever their numbers.
        """
        gathering, latest = self._gathering, self._numbers.latest
        until = max(gathering.unknown_may_run_until, gathering.predecessor_until)
        if latest.number < 0:
            return until
        named = self.members.named_generations()
        last = {latest, *(each for each in named if each.origin != latest.origin)}
        return 0.0 if all(map(self._are_all_here, last)) else until

    def _are_all_here(self, generation: GenerationId) -> bool:
        """Return whether all nodes that may belong to a generation are connected and have no
        workers.
        """
        return self.members.count_ready_from(generation) >= self.settings.max_nodes

    def _is_full(self) -> bool:
        """Return whether the first generation can start without waiting for more nodes."""
        most = self.settings.max_nodes
        return self.members.count_ready() >= most and (
            self.settings.needed == most or len(self.members.regular()) >= most
        )

    def _settle_deadline(self) -> float:
        """Return the time when the group stops waiting for more nodes, unless another node joins
        before then.
        """
        settle_timeout_s = self.settings.settle_timeout_s
        since = self._gathering.enough_since
        if since is None:
            arrivals = sorted(member.arrived_at for member in self.members.ready())
            since = next(iter(arrivals[self.settings.segment - 1 :]), 0.0)
        latest = self.members.latest_regular_arrival(since)
        return min(latest + settle_timeout_s, since + _LAST_CALLS * settle_timeout_s)

    def _form(self, now: float) -> None:
        """Form the next generation from the ready nodes, up to the maximum."""
        members = self._in_rank_order(now)
        if self._start_probe_if_needed(members, now):
            return
        first = members[0]
        assert first.ready is not None
        if note := self.members.note_on(members):
            self._send(first.node, Note(note))
        stay, refused = self._select_survivors(members)
        self.generation, failed_host = self._numbers.next(), self._ending.failed_host
        self._change(Reason.GENERATION_FORMED)
        self._ending = _Teardown(now)
        self._ending.addresses = {member.node: member.join.address for member in members}
        self.members.silence.begin_generation()
        self.roster = Roster([member.node for member in members])
        self.roster.survivors = stay
        self._success_reports.is_pending = False
        self._gathering.enough_since = None
        self._wait_reasons.is_pending = len(self.members) > len(self.roster)
        address, port = first.join.address, first.ready.port
        generation = Generation(
            self.generation, self.restart, address, port, self._cause, failed_host
        )
        nodes = [NodeSize(m.join.local_world_size, m.join.role) for m in members]
        self._ending.world_size = sum(node.local_world_size for node in nodes)
        for member, place in zip(members, ranks.places(nodes), strict=True):
            self.members.start(member)
            if why := refused.get(member.node):
                self._send(member.node, Note(why))
            stays = member.node in stay
            self._send(member.node, GenerationFormed(generation, place, survivors_stay=stays))

    def _select_survivors(self, members: list[Member]) -> tuple[set[str], dict[str, str]]:
        """Return the nodes whose survivors stay, and the reason why the survivors on other nodes
        don't.
        """
        if not any(member.ready is not None and member.ready.survivors for member in members):
            return set(), {}
        from relight.core.group import survivors

        ending = self._ending
        is_hang = ending.hung or ending.waiting  # a new coordinator only has the latter
        known = not is_hang or survivors.knows_culprit(ending.failures, ending.waiting)
        return survivors.choose(
            members, self.roster, self.generation,
            progressed=bool(ending.progressed), knows_culprit=known,
        )  # fmt: skip

    def _start_probe_if_needed(self, members: list[Member], now: float) -> bool:
        """Return whether these nodes must probe each other first, and start the probes if needed.
        The probes also cover the nodes that run workers and the other ready nodes.
        """
        reachability = self.members.reachability
        if reachability is None:
            return False
        if self.state is GroupState.RUNNING:
            here = (self.members[node] for node in self.roster.order if node is not None)
            members = [*here, *members]
        if reachability.until is None and reachability.must_probe(m.node for m in members):
            every = {m.node: m.join.address for m in (*members, *self.members.ready())}
            for node, message in reachability.begin(every.items(), now):
                self._send(node, message)
        return reachability.until is not None

    def _leave_out_unreachable(self, reachability: "Reachability", now: float) -> None:
        """Leave out the nodes that other nodes could not reach."""
        from relight.core.group.reachability import REMEDY

        hosts = {member.node: member.join.host for member in self.members}
        staying = () if self.state is GroupState.GATHERING else self.roster.group_ranks
        for node, why in reachability.conclude(hosts, staying):
            member, host = self.members[node], hosts[node]
            report = (
                f"error: the health check on {host} failed ({why}); this node is leaving the job",
                f"  hint: {REMEDY}",
            )
            reason = f"its health check failed: {why}"
            leaves = f"the node is leaving: {reason}"
            self._send(node, JobEnded(EXIT_MACHINE, leaves, report, None, others_run=True))
            self._lose(member, f"left: {reason}", now, orderly=True)
            self._broadcast(f"{host} left: {reason}")

    def _in_rank_order(self, now: float) -> list[Member]:
        ready, settings = self.members.candidates(now), self.settings
        size = settings.whole(min(len(ready), settings.max_nodes))
        here = {member.node for member in ready}
        survivors = [node if node in here else None for node in self.roster.order]
        stay = [self.members[node] for node in survivors if node is not None]
        newcomers = [member for member in ready if member.node not in self.roster]
        if settings.by_topology:
            from relight.core.group.rank_order import by_topology

            return by_topology([*stay, *newcomers], size, settings.segment)
        newcomers = newcomers[: max(0, size - len(stay))]
        if self.generation == NO_GENERATION:
            newcomers = self.members.by_host(newcomers)
        order = ranks.arrange(survivors, [member.node for member in newcomers], size)
        numbers = {m.node: m.join.node_rank for m in ready if m.join.node_rank >= 0}
        members = [self.members[node] for node in ranks.as_numbered(order, numbers)]
        return sorted(members, key=lambda member: not member.join.comes_first)

    def _finish(self, reason: Reason, end: JobEnded) -> None:
        self._change(reason)
        self.end, self._ending.agreement = end, None
        self.members.reachability = None
        for member in self.members:
            self._send(member.node, end)

    def _send_wait_reasons(self, now: float) -> None:
        """Send the reason for the wait to waiting nodes."""
        if self.state is GroupState.RUNNING and len(self.members) == len(self.roster.group_ranks):
            self._wait_reasons.is_pending = False  # no node is waiting
            return
        if self.state is GroupState.GATHERING:
            members, spare, text = list(self.members), False, self.explain(now)
        elif self.state is GroupState.RUNNING:
            members = [member for member in self.members if member.node not in self.roster]
            spare = self.roster.is_ending or not self._room(len(members))
            what = "is kept as a spare" if spare else "will join soon"
            text = f"{self.explain(now)}; this node {what}"
        else:
            return
        self._wait_reasons.is_pending = False
        wait = WaitReason(text, spare, self.generation)
        for member in members:
            self._send(member.node, wait)
            self._wait_reasons.at = now + _WAIT_EVERY_S * max(1.0, len(members) / _WAIT_REASONS)

    def _has_capacity(self) -> bool:
        """Return whether waiting nodes may be admitted. A job that is about to end does not admit
        any nodes.
        """
        may = self._room(self.members.count_ready()) > 0 and not self.roster.is_ending
        silent = any(node in self.roster for node in self.members.silence)
        return may and not silent

    def _room(self, waiting: int) -> int:
        """Return how many of the `waiting` nodes fit into the live generation."""
        return self.settings.whole(min(waiting, self.settings.max_nodes - len(self.roster)))

    def _admission_time(self) -> float:
        """Return the time at which to admit waiting nodes. Nodes that arrive during the same last
        call are admitted together.
        """
        times = sorted(member.admitted_after for member in self.members.ready())
        segment_at = times[self.settings.segment - 1]
        together = [at for at in times if at <= segment_at + self.settings.settle_timeout_s]
        return max(together[-1], self._settle_deadline())

    def _newcomers(self, now: float) -> list[Member]:
        """Return the nodes to admit now."""
        if not self._has_capacity():
            return []
        regular, room = self.members.regular(), self.settings.max_nodes - len(self.roster)
        if len(regular) < room and now < self._admission_time():
            return []
        settled = [member for member in self.members.ready() if now >= member.admitted_after]
        return settled[: self._room(len(settled))]

    def _send(self, node: str, message: FromCoordinator) -> None:
        self._effects.append(Send(node, message))
