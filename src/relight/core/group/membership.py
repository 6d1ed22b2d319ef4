"""The group's state machine: the nodes, the live generation, when to form the next generation, and
the reason for a delay.

One coordinator runs this state machine for all agents in a job. It processes the agents' messages
and returns the messages to send. The main state and its transitions are data
(core/group/transitions, shown in docs/group.md). This module dispatches events, takes the
transitions and sends the messages. Smaller machines decide the rest:

    GATHERING   `formation`, with `foreign_leases` and `reachability`
    RUNNING     `admission`, `checkpoint_barrier`, `successes`, `roster` (hangs, slow ranks)
    STOPPING    `teardown`, then `restarts`
    RECOVERING  `node_recovery`
    always      `members`, `silence`, `wait_reports`

Workers that can leave their process group may keep their process in the next generation
(core/group/survivors). Their node is reported as a node without workers.

The invariants are in `check`. Connections, heartbeats, leases and processes are deliberately left
to other modules.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from relight.base.errors import EXIT_GROUP, EXIT_OK, EXIT_USAGE
from relight.base.text import format_duration, format_names, pluralize
from relight.core import ranks
from relight.core.group import group_messages
from relight.core.group.admission import Admission
from relight.core.group.foreign_leases import MAX_NUMBER, ForeignLeases
from relight.core.group.formation import Formation
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
from relight.core.group.live_generation import LiveGeneration
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
from relight.core.group.node_recovery import Recovery
from relight.core.group.restarts import Restarts
from relight.core.group.roster import Roster
from relight.core.group.successes import Successes
from relight.core.group.teardown import StopOrder, Teardown
from relight.core.group.transitions import Reason, next_state
from relight.core.group.wait_reports import WaitReports
from relight.core.ranks import NO_GENERATION, Generation, NodeSize

if TYPE_CHECKING:
    from relight.core.group.checkpoint_barrier import Agreement
    from relight.core.group.reachability import Reachability

_STACKS_S = 1.0
"""How long a node leaves its workers running after it has captured their stacks, so that the other
nodes can capture the stacks of their workers. Without this delay, workers would exit within
milliseconds after one of their peers is stopped.
"""
_READ_S = 1.0
"""Time limit for reading the message backlog after this process was suspended."""


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
        self.end: JobEnded | None = None
        self.members = Members(settings)
        self.restarts = Restarts(settings, origin)
        self.live = LiveGeneration(
            NO_GENERATION, Roster(), 0.0, Successes(0.0), Teardown("start"), Recovery()
        )
        self._formation = Formation(
            settings, self.members, ForeignLeases(settings, self.members, origin)
        )
        self._admission = Admission(settings, self.members, self._formation)
        self._wait_reports = WaitReports()
        self._effects: list[Effect] = []

    def step(self, event: Event, now: float) -> list[Effect]:
        """Process one event and return the messages to send and the nodes to drop."""
        self._formation.leases.begin(now)
        match event:
            case Received(_, Join() as join):
                self._on_join(join, now)
            case Received(node, message) if node in self.members:
                self._on_message(self.members[node], message, now)
            case NodeSilent(node, heard_at, reason) if node in self.members:
                self.members.fall_silent(self.members[node], heard_at, reason)
                self._wait_reports.is_pending = True
            case NodeHeard(node) if node in self.members:
                self._hear(self.members[node], now)
            case PredecessorPossible(reason):
                self._formation.leases.set_predecessor(reason, now)
                self._wait_reports.is_pending = True
            case Slept():
                self._sleep(now)
            case NodeLost(node, reason) if node in self.members:
                self._lose(self.members[node], f"was lost: {reason}", now)
        self._advance(now)
        effects, self._effects = self._effects, []
        return effects

    def deadline(self) -> float | None:
        """Return the time when the next Tick is due, or None."""
        live, reachability = self.live, self.members.reachability
        tries_until = None if reachability is None else reachability.until
        times = [tries_until, live.recovery.until, self.members.silence.deadline()]
        if self.state is GroupState.GATHERING and self.members and tries_until is None:
            times.append(self._formation.deadline(live.roster))
        elif live.agreement is not None:
            times.append(live.agreement.until)
        elif self.state is GroupState.RUNNING:
            if tries_until is None:
                times.append(self._admission.deadline(live.roster))
            if (quiet := live.roster.all_quiet()) is not None:
                times.append(quiet.too_long_at)
            times += live.successes.deadlines()
            if live.roster.done:
                times.append(next(iter(live.roster.done.values())) + self.settings.exit_barrier_s)
        elif self.state is GroupState.STOPPING and live.roster.active:
            times += live.teardown.deadlines()
        if self.state in (GroupState.GATHERING, GroupState.RUNNING):
            times.append(self._wait_reports.deadline())
        return min((at for at in times if at is not None), default=None)

    def states(self) -> tuple[tuple[str, str], ...]:
        """Return the name and state of this state machine and its short-lived sub-machines."""
        agreement, reachability = self.live.agreement, self.members.reachability
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
        return len(self.members) + self.live.roster.done_and_gone + left

    def lost(self, now: float) -> int:
        """Return how many nodes in the live or most recent generation are lost, or may be lost,
        without having succeeded. Right after a suspension of this process, a node that seems silent
        doesn't count yet, because its messages have not been read.
        """
        silent = self.members.silence.besides_suspension(now - _READ_S)
        return self.live.roster.lost + sum(node in self.live.roster.active for node in silent)

    def lacks_nodes_since(self) -> float | None:
        """Return the time when the group began to wait for enough nodes to form the first
        generation, or None if it isn't waiting.
        """
        is_first = self.state is GroupState.GATHERING and self.live.id == NO_GENERATION
        lacks = is_first and 0 < len(self.members) < self.settings.needed
        return self._formation.since if lacks else None

    def explain(self, now: float) -> str:
        """Describe what the group is waiting for."""
        roster, cause = self.live.roster, self.live.teardown.cause
        match self.state:
            case GroupState.GATHERING:
                return self._formation.explain(roster, cause, now)
            case GroupState.RUNNING:
                silent = self.members.silence.explain(now)
                nodes = pluralize(len(roster), "node")
                runs = f"generation {self.live.id.number} runs on {nodes}"
                return f"{runs}; {silent}" if silent else runs
            case GroupState.STOPPING if roster.active:
                late = [self.members[node].join.host for node in sorted(roster.active)]
                silent = self.members.silence.explain(now)
                why = f"{cause}; {silent}" if silent else cause
                return f"waiting for workers to stop on {format_names(late)} ({why})"
            case GroupState.STOPPING | GroupState.RECOVERING:
                return group_messages.coming_back(roster.lost, self.live.id.number)
            case GroupState.ENDED:
                return "the job is over"

    def check(self) -> None:
        """Assert the invariants."""
        roster = self.live.roster
        roster.check()
        live = roster.group_ranks.keys()
        assert all(node in self.members for node in live)
        assert not any(self.members.is_ready(node) for node in roster.active)
        order = self.live.teardown.order
        assert order is None or not order.dropped & live
        assert len(roster) <= self.settings.max_nodes
        self.restarts.check()
        assert self.live.id.number <= self._formation.leases.numbers.latest.number
        assert (self.end is not None) == (self.state is GroupState.ENDED)
        assert self.end is None or self.members.reachability is None
        stops = self.state in (GroupState.STOPPING, GroupState.RECOVERING)
        assert stops or not self.members.leaving
        assert self.live.agreement is None or self.state is GroupState.RUNNING
        if self.state is GroupState.RUNNING:
            assert len(roster) >= self.settings.min_nodes
            assert not roster.lost
            assert roster.active == live - roster.done.keys()
        assert (
            roster.active
            or self.live.recovery.until is not None
            or self.state is not GroupState.STOPPING
        )

    # Messages from nodes.

    def _on_join(self, join: Join, now: float) -> None:
        if self.end is not None:
            self._send(join.node, self.end)
            return
        if holder := self.members.silent_holder(join):
            # The node retries until the holder is lost.
            if self.members.node_ranks.turn_back(join.node):
                self._send(join.node, Note(group_messages.held_by_silent(join, holder)))
            self._effects.append(Drop(join.node))
            return
        if refusal := self.members.refusal(join):
            self._send(join.node, JobEnded(EXIT_USAGE, refusal, (), None))
            if self.state is GroupState.GATHERING:  # the others would wait in vain
                self._broadcast(f"{join.host} can't join: {refusal}")
            return
        is_first = self.live.id == NO_GENERATION
        if not self.members and self.state is GroupState.GATHERING:
            self._formation.since = now
        if join.met_coordinator and join.node not in self.members and is_first:
            self._formation.leases.hold_first_generation(now)
        for node, text in self.members.admit(join, now):
            self._send(node, Note(text))
        self._wait_reports.after_join(now)
        if join.announce is not None and self._is_news(join.node, join.announce):
            self._on_announce(self.members[join.node], join.announce, now)
        elif join.node in self.live.roster:  # it has no workers, or never received GenerationFormed
            if self.state is GroupState.RUNNING:
                cause = f"{join.host} reconnected without its workers"
                self._stop(Reason.WORKERS_ENDED, cause, now)
            elif self.state is GroupState.STOPPING:
                self.live.roster.active.add(join.node)  # until its NodeReady arrives
                self._stop_joined(join.node, now)

    def _on_announce(self, member: Member, announce: Announce, now: float) -> None:
        """Handle a node that joins with workers from a generation, or after those workers have
        ended.
        """
        generation, node = announce.generation, member.node
        place, size = announce.group_rank, announce.group_world_size
        possible = 0 <= place < size <= self.settings.max_nodes and generation.number < MAX_NUMBER
        self._formation.leases.numbers.record_generation(generation)
        nothing_known = self.state in (GroupState.GATHERING, GroupState.RECOVERING)
        if possible and nothing_known and self._outranks(announce):
            self._adopt(announce, now)
        live, roster = self.live, self.live.roster
        known = possible and self.state is not GroupState.GATHERING
        known = known and (generation, size) == (live.id, len(roster))
        known = known and not live.teardown.has_dropped(node)
        if not known or not roster.take(node, place):
            self._evict_stale(member, now)
            return
        live.recovery.may_be_superseded &= announce.may_be_superseded
        live.teardown.addresses[node] = member.join.address
        if self.state is GroupState.RECOVERING:
            live.recovery.saves |= announce.saves
        roster.mark_succeeded(announce.succeeded)
        roster.mark_gone(announce.gone)
        if node not in roster.done:
            roster.active.add(node)
        if self.state is GroupState.STOPPING:
            self._stop_joined(node, now)
            return
        if self.state is GroupState.RUNNING:
            self._confirm([node])
            if self.live.agreement is not None:
                self._send(node, CheckpointLimit(self.live.id, self.live.agreement.limit))
        if announce.done:
            self.live.succeed(node, member.join.host, now)
        elif self.state is GroupState.RECOVERING and not (
            announce.may_be_superseded or announce.ended
        ):
            # The other nodes could only have continued without this node after its lease expired,
            # so this generation is live. Waiting for them first would freeze this node's workers.
            self._send(node, Confirm(self.live.id, recovers=True))

    def _adopt(self, announce: Announce, now: float) -> None:
        """Wait for the other nodes of an announced generation, because it may be live."""
        for older in list(self.live.roster.group_ranks):
            self._evict_stale(self.members[older], now)
        self._change(Reason.GENERATION_ANNOUNCED)
        self.restarts.adopt(announce.restart)
        self.live = LiveGeneration(
            announce.generation, Roster([None] * announce.group_world_size), now,
            Successes(now, self.live.successes), Teardown(),
            Recovery(
                self._formation.leases.until_others_are_back(now),
                may_be_superseded=announce.may_be_superseded,
            ),
        )  # fmt: skip

    def _is_news(self, node: str, announce: Announce) -> bool:
        """Return whether an announcement contains more than the arrival of a node without
        workers.
        """
        if not announce.ended or self.state is GroupState.RECOVERING:
            return True
        if self.state is GroupState.GATHERING:
            return self.live.id == NO_GENERATION
        stopping = self.state is GroupState.STOPPING
        return stopping and node not in self.live.roster and announce.generation == self.live.id

    def _outranks(self, announce: Announce) -> bool:
        """Return whether the newly announced generation may be live instead of the one announced
        before.
        """
        live = self.live
        if self.state is GroupState.RECOVERING and announce.generation != live.id:
            return live.recovery.outranks(announce, live.id)
        return announce.generation.number > live.id.number

    def _sleep(self, now: float) -> None:
        """Give nodes extra time after this process was suspended, because the messages that they
        sent in the meantime have not been read yet.
        """
        self.members.silence.sleep(now)
        if self.live.teardown.order is not None:
            self.live.teardown.order.sleep(now + _READ_S)
        self.live.recovery.sleep(now + _READ_S)

    def _hear(self, member: Member, now: float) -> None:
        """Handle a message from a node that was silent."""
        self.members.hear(member, now)
        order = self.live.teardown.order
        if order is not None and order.drop_at is None and member.node in self.live.roster.active:
            order.wait_for(member.join.stop_s, now)

    def _evict_stale(self, member: Member, now: float) -> None:
        announce = member.join.announce
        its_own = self.live.id if announce is None else announce.generation
        cause = "the other nodes continued without this node"
        self._send(member.node, StopWorkers(its_own, cause, checkpoint_first=False))
        if member.node in self.live.roster:
            self.live.roster.remove(member.node)
            self.live.teardown.membership_changed = True
            if self.state is GroupState.RUNNING:
                cause = f"{member.join.host} is in another generation"
                self._stop(Reason.NODE_ELSEWHERE, cause, now)

    def _on_message(self, member: Member, message: FromAgent, now: float) -> None:
        node = member.node
        current = node in self.live.roster and getattr(message, "generation", None) == self.live.id
        match message:
            case NodeReady():
                self._formation.leases.numbers.record_generation(message.generation)
                self._formation.leases.numbers.record_generation(message.latest)
                if node in self.live.roster and not (current or member.idle):
                    return  # an outdated message
                self._on_ready(member, message, current, now)
            case NodesProbed() if self.members.reachability is not None:
                self.members.reachability.answer(node, message)
            case WorkerFailed(_, reason, suspects_peer) if current:
                self.live.teardown.fail(reason, node, now, suspects_peer=suspects_peer)
                if self.state is GroupState.RUNNING:
                    self._stop(Reason.WORKER_FAILED, reason, now)
            case NodeIdle(_, quiet_s, limit_s) if current:
                self.live.roster.set_quiet(node, now - quiet_s, limit_s if quiet_s else 0.0)
            case WaitSamples() if current:
                self._compare_pace(node, message, now)
            case WorkersSucceeded() if current and self.state in (
                GroupState.RUNNING,
                GroupState.RECOVERING,
            ):
                self.live.succeed(node, member.join.host, now)
            case NodePreempted() if current:
                self.live.preempted[node] = message
            case CheckpointCalls(_, limit, calls) if current and self.live.agreement is not None:
                self.live.agreement.answer(node, limit, calls)
            case NodesGone(_, gone) if current:
                self.live.roster.mark_gone(gone)
            case NodeLeaving(reason, waits):
                if self.end is None:
                    self.members.leaving[node] = waits
                self._lose(member, f"left: {reason}", now, orderly=True)

    def _compare_pace(self, node: str, pace: WaitSamples, now: float) -> None:
        """While all nodes are running, compare the ranks on all nodes, and report the slow
        ranks.
        """
        from relight.core.group import straggler_detector

        roster = self.live.roster
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
            told = SlowRanks(self.live.id, change.nodes, age_s)
            for each in roster.group_ranks:
                self._send(each, told)

    def _on_ready(self, member: Member, ready: NodeReady, current: bool, now: float) -> None:
        node = member.node
        if node in self.live.roster.active or node in self.live.roster.done:
            if current:
                self.live.add_report(ready, member.join.host, now)
            if self.state is GroupState.RUNNING:
                cause = self.live.teardown.failure_cause or f"workers ended on {member.join.host}"
                self._stop(Reason.WORKERS_ENDED, cause, now)
            self.live.roster.deactivate(node)
        if self.live.id == NO_GENERATION:  # a new coordinator learns the restart count
            self.restarts.adopt(ready.restart)
            if self._formation.leases.numbers.latest.number >= 0:
                self._formation.leases.hold_first_generation(now)
        asks = ready.prober is not None and self.end is None
        if asks and self.members.reachability is None:
            from relight.core.group.reachability import Reachability

            self.members.reachability = Reachability(self._formation.leases.numbers.origin)
        self.members.set_ready(member, ready)
        self._wait_reports.is_pending = True

    def _lose(self, member: Member, what: str, now: float, *, orderly: bool = False) -> None:
        node, was_ready = member.node, self.members.is_ready(member.node)
        self.members.lose(member, now)
        self._wait_reports.is_pending = True
        roster, teardown = self.live.roster, self.live.teardown
        if node not in roster:
            if orderly and self.state is GroupState.GATHERING:
                self._formation.departure = f"{member.join.host} {what}"
                if not was_ready:  # it is unfit, and too few nodes may be left for a coordinator
                    self._wait_reports.send_at(now)
            return
        had_ended_well, group_rank = node in roster.done, roster.group_ranks[node]
        roster.remove(node)
        if had_ended_well:
            return  # the others can continue without it
        if self.state is GroupState.RECOVERING and not orderly:
            roster.mark_gone((group_rank,))  # its workers or their lease ended
        elif self.state is GroupState.RECOVERING and self.live.recovery.saves:
            teardown.membership_changed = True  # its workers saved; others may still be saving
        else:
            teardown.lose_node()
            if not orderly:
                teardown.failed_host = member.join.host
            if self.state in (GroupState.RUNNING, GroupState.RECOVERING):
                self._stop(Reason.NODE_LOST, f"{member.join.host} {what}", now)
            elif self.state is GroupState.STOPPING:
                teardown.cause = f"{member.join.host} {what}"

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
        if self.live.recovery.until is not None:
            self._wait_for_lost(self.live.recovery.until, now)
        if self.state is GroupState.RUNNING:
            self._while_running(now)
        if self.state is GroupState.STOPPING:
            self._while_stopping(now)
        if self.state not in (GroupState.STOPPING, GroupState.RECOVERING):
            self._release_departed()
        if self.state is GroupState.GATHERING:
            self._while_gathering(now)
        if self._wait_reports.is_due(now):
            self._send_wait_reasons(now)

    def _release_departed(self) -> None:
        """If departed nodes are waiting until all workers have stopped, notify them."""
        for node, waits in self.members.leaving.items():
            if waits:
                reason = "this node has left; the workers on the other nodes have stopped"
                self._send(node, JobEnded(EXIT_OK, reason, (), None, others_run=True))
        self.members.leaving.clear()

    def _wait_for_lost(self, until: float, now: float) -> None:
        live, roster, teardown = self.live, self.live.roster, self.live.teardown
        lost, recovering = roster.lost > 0, self.state is GroupState.RECOVERING
        unsure = not lost and recovering and (self._may_be_superseded() or self._awaits_report())
        if now < until and (roster.missing > 0 or unsure):
            return
        live.recovery.until = None
        teardown.membership_changed |= lost
        if not recovering:
            return
        if live.recovery.saves and not teardown.failure_cause:
            self._confirm(roster.group_ranks)  # frozen workers can't save
        if lost:
            cause = "a node was lost when the coordinator was lost"
            self._stop(Reason.NODE_LOST, cause, now)
        elif teardown.failure_cause or roster.has_idle():
            cause = teardown.failure_cause or "workers ended while there was no coordinator"
            self._stop(Reason.WORKERS_ENDED, cause, now)
        elif live.recovery.saves:
            self._stop(Reason.WORKERS_SAVED, "the workers saved a checkpoint and left", now)
        else:
            self._change(Reason.GENERATION_RECOVERED)
            live.successes.is_pending = False
            self._confirm(roster.group_ranks)

    def _may_be_superseded(self) -> bool:
        """Return whether nodes may announce a later generation. Nodes can't announce a later
        generation if all nodes that may belong to this generation are connected and have no
        workers.
        """
        return self.live.recovery.may_be_superseded and not self._formation.leases.are_all_here(
            self.live.id
        )

    def _awaits_report(self) -> bool:
        """Return whether a node has yet to report how its workers ended."""
        return any(self.members[node].idle for node in self.live.roster.active)

    def _confirm(self, nodes: Iterable[str]) -> None:
        """Confirm the generation to nodes, and report to them which nodes have succeeded, because
        the next coordinator has to learn this from these nodes.
        """
        confirmation = Confirm(self.live.id, self.live.roster.succeeded)
        for node in nodes:
            self._send(node, confirmation)

    def _while_running(self, now: float) -> None:
        live, roster = self.live, self.live.roster
        if not roster.active:
            end = JobEnded(EXIT_OK, "all workers succeeded", (), None)
            self._finish(Reason.ALL_SUCCEEDED, end)
            return
        if live.agreement is not None:
            self._continue_barrier(live.agreement, now)
            return
        for node, preempted in live.preempted.items():
            if node in roster:
                cause = f"{self.members[node].join.host} is preempted: {preempted.reason}"
                self._agree(cause, preempted.limit_s, now)
                return
        quiet = roster.all_quiet()
        if quiet is not None and now >= quiet.too_long_at:
            self._stop_hung(now - quiet.since, now)
            return
        self._report_successes(now)
        for node, done_at in list(roster.done.items()):
            if now < done_at + self.settings.exit_barrier_s:
                break
            roster.remove(node)
            self.members.remove(self.members[node], now)
            reason = "its workers succeeded; others are still running"
            self._send(node, JobEnded(EXIT_OK, reason, (), None, others_run=True))
        newcomers = self._admission.newcomers(roster, now)
        if newcomers and not self._start_probe_if_needed(newcomers, now):
            cause = f"{format_names([member.join.host for member in newcomers])} joined"
            if self.settings.checkpoint_first:
                self._agree(cause, 0.0, now)
            else:
                live.teardown.membership_changed = True
                self._stop(Reason.NEWCOMERS_ADMITTED, cause, now)

    def _report_successes(self, now: float) -> None:
        """Report that some nodes' workers have succeeded while others are running."""
        roster, successes = self.live.roster, self.live.successes
        if successes.are_early_exits_due(now):
            here = [node for node in roster.order if node is not None and node in roster.active]
            running = [self.members[node].join.host for node in here]
            self._broadcast(successes.describe_early_exits(running, now))
        if successes.is_due(now):
            self._confirm(sorted(roster.active))

    def _stop_hung(self, quiet_s: float, now: float) -> None:
        """Stop idle workers in the same way as after a failure."""
        cause = f"no rank has made progress for {format_duration(quiet_s)}"
        self.live.teardown.hung, self.live.teardown.failure_cause = True, cause
        self._stop(Reason.HANG, cause, now)

    def _agree(self, cause: str, limit_s: float, now: float) -> None:
        """Start an agreement between the workers on when they save and exit."""
        from relight.core.group.checkpoint_barrier import Agreement

        agreement = self.live.agreement = Agreement(self.live.roster.active, cause, limit_s, now)
        self._send_limit(agreement)

    def _send_limit(self, agreement: "Agreement") -> None:
        for node in agreement.nodes:
            self._send(node, CheckpointLimit(self.live.id, agreement.limit))

    def _continue_barrier(self, agreement: "Agreement", now: float) -> None:
        before = agreement.limit
        call = agreement.conclude(now, self.members.silence)
        if call is not None:
            self.live.teardown.membership_changed = True
            last = StopWorkers(
                self.live.id, agreement.cause, checkpoint_first=True,
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
        live, teardown = self.live, self.live.teardown
        checkpoint_first = live.recovery.saves and not teardown.failure_cause
        stop = message or StopWorkers(
            live.id,
            cause,
            checkpoint_first,
            limit_s=_STACKS_S if teardown.hung and len(live.roster) > 1 else 0.0,
            capture_stacks=teardown.hung or teardown.blamed_at is not None,
            may_stay=not checkpoint_first,
        )
        self._change(reason)
        teardown.cause, live.agreement = cause, None
        live.roster.reactivate()
        order = teardown.order = StopOrder(stop, now)
        for node in live.roster.group_ranks:
            if node in live.roster.active:
                order.wait_for(self.members[node].join.stop_s, now)
                self._send(node, stop)

    def _stop_joined(self, node: str, now: float) -> None:
        """Handle a node that joins during a stop."""
        order = self.live.teardown.order
        assert order is not None
        if order.drop_at is None:
            order.wait_for(self.members[node].join.stop_s, now)
        self._send(node, order.message)
        if order.message.checkpoint_first:
            # Frozen workers can't save, so the generation must be confirmed. But confirm it only
            # after the workers know the call at which all of them save, because a confirmation also
            # releases workers that are held while their calls are counted.
            self._confirm([node])

    def _while_stopping(self, now: float) -> None:
        if self.live.roster.active:
            self._watch_stop(now)
        if not self.live.roster.active and self.live.recovery.until is None:
            self._after_stop(now)

    def _watch_stop(self, now: float) -> None:
        """Report which nodes a stop is waiting for, and drop overdue nodes."""
        roster, order = self.live.roster, self.live.teardown.order
        assert order is not None
        if order.must_report(now, others_wait=len(self.members) > len(roster.active)):
            self._broadcast(self.explain(now))
        if not order.must_drop(now):
            return
        here = [self.members[node] for node in sorted(roster.active)]
        late = [
            member for member in here
            if member.join.stop_s is not None and member.node not in self.members.silence
        ]  # fmt: skip
        for member in late:
            order.dropped.add(member.node)
            self._effects.append(Drop(member.node))
            roster.remove(member.node)
            self.members.lose(member, now)
        if late:
            hosts = [member.join.host for member in late]
            teardown = self.live.teardown
            teardown.membership_changed = True
            teardown.cause = f"{format_names(hosts)} did not stop in time"
            # Their leases are over by then.
            self.live.recovery.until = now + self.settings.lost_after_s
            self._broadcast(group_messages.dropped(hosts))

    def _broadcast(self, text: str) -> None:
        for member in self.members:
            self._send(member.node, Note(text))

    def _after_stop(self, now: float) -> None:
        """Decide how to continue after all workers have stopped. The choices are to restart after a
        failure, to form the next generation after a membership change, or to end the job.
        """
        live, teardown, delay_s = self.live, self.live.teardown, 0.0
        teardown.blame_silent_peer(live.reports.failures, self.members.silence)
        if teardown.failure_cause and not teardown.membership_changed:
            outcome = self.restarts.after_failure(live, now)
            if isinstance(outcome, JobEnded):
                self._finish(Reason.NO_RESTART_LEFT, outcome)
                return
            teardown.cause, teardown.failed_host = outcome.cause, outcome.host
            delay_s = outcome.delay_s
        elif teardown.has_lost_node and self.settings.smart:
            delay_s = self.restarts.after_lost_node(live, now)
            if delay_s:
                start = f"the workers start in {format_duration(delay_s, digits=1)}"
                teardown.cause += f"; {start}"
        self._change(Reason.WORKERS_STOPPED)
        self._formation.begin(now)
        if delay_s:
            self._formation.delay(delay_s, now)
            self._wait_reports.send_at(now)

    def _while_gathering(self, now: float) -> None:
        formation = self._formation
        if not self.members or not formation.is_due(self.live.roster, now):
            return
        if formation.has_enough():
            self._form(now)
            return
        after = format_duration(self.settings.join_timeout_s)
        reason = self.explain(now).partition(" (join timeout")[0]
        end = JobEnded(EXIT_GROUP, f"gave up after {after}: {reason}", (), None)
        self._finish(Reason.JOIN_TIMEOUT, end)

    def _form(self, now: float) -> None:
        """Form the next generation from the ready nodes, up to the maximum."""
        members, last = self._formation.choose(self.live.roster, now), self.live
        if self._start_probe_if_needed(members, now):
            return
        first = members[0]
        assert first.ready is not None
        if note := self.members.note_on(members):
            self._send(first.node, Note(note))
        stay, refused = set[str](), dict[str, str]()
        if any(member.ready is not None and member.ready.survivors for member in members):
            from relight.core.group import survivors

            stay, refused = survivors.choose(members, last)
        self._change(Reason.GENERATION_FORMED)
        nodes = [NodeSize(m.join.local_world_size, m.join.role) for m in members]
        self.live = LiveGeneration(
            self._formation.leases.numbers.next(),
            Roster([member.node for member in members], stay), now,
            Successes(now, last.successes),
            Teardown(addresses={member.node: member.join.address for member in members}),
            Recovery(), sum(node.local_world_size for node in nodes),
        )  # fmt: skip
        self.members.silence.begin_generation()
        self._formation.end()
        self._wait_reports.is_pending = len(self.members) > len(members)
        generation = Generation(
            self.live.id, self.restarts.number, first.join.address, first.ready.port,
            last.teardown.cause, last.teardown.failed_host,
        )  # fmt: skip
        for member, place in zip(members, ranks.places(nodes), strict=True):
            self.members.start(member)
            if why := refused.get(member.node):
                self._send(member.node, Note(why))
            stays = member.node in stay
            self._send(member.node, GenerationFormed(generation, place, survivors_stay=stays))

    def _start_probe_if_needed(self, members: list[Member], now: float) -> bool:
        """Return whether these nodes must probe each other first, and start the probes if needed.
        The probes also cover the nodes that run workers and the other ready nodes.
        """
        reachability = self.members.reachability
        if reachability is None:
            return False
        if self.state is GroupState.RUNNING:
            here = (self.members[node] for node in self.live.roster.order if node is not None)
            members = [*here, *members]
        if reachability.until is None and reachability.must_probe(m.node for m in members):
            every = {m.node: m.join.address for m in (*members, *self.members.ready())}
            for node, message in reachability.begin(every.items(), now):
                self._send(node, message)
        return reachability.until is not None

    def _leave_out_unreachable(self, reachability: "Reachability", now: float) -> None:
        """Leave out the nodes that other nodes could not reach."""
        from relight.core.group.reachability import leaves

        hosts = {member.node: member.join.host for member in self.members}
        staying = () if self.state is GroupState.GATHERING else self.live.roster.group_ranks
        for node, why in reachability.conclude(hosts, staying):
            reason = f"its health check failed: {why}"
            self._send(node, leaves(hosts[node], why))
            self._lose(self.members[node], f"left: {reason}", now, orderly=True)
            self._broadcast(f"{hosts[node]} left: {reason}")

    def _finish(self, reason: Reason, end: JobEnded) -> None:
        self._change(reason)
        self.end, self.live.agreement = end, None
        self.members.reachability = None
        for member in self.members:
            self._send(member.node, end)

    def _send_wait_reasons(self, now: float) -> None:
        """Send the reason for the wait to waiting nodes."""
        roster = self.live.roster
        if self.state is GroupState.RUNNING and len(self.members) == len(roster.group_ranks):
            self._wait_reports.is_pending = False  # no node is waiting
            return
        if self.state is GroupState.GATHERING:
            members, spare, text = list(self.members), False, self.explain(now)
        elif self.state is GroupState.RUNNING:
            members = [member for member in self.members if member.node not in roster]
            spare = roster.is_ending or not self._admission.room(roster, len(members))
            what = "is kept as a spare" if spare else "will join soon"
            text = f"{self.explain(now)}; this node {what}"
        else:
            return
        self._wait_reports.sent(len(members), now)
        for member in members:
            self._send(member.node, WaitReason(text, spare, self.live.id))

    def _send(self, node: str, message: FromCoordinator) -> None:
        self._effects.append(Send(node, message))
