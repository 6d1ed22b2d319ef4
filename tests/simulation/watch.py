"""The invariants of a simulated world, checked after each step.

Guaranteed, and checked:

- At most one generation is live. The workers of two generations never run (that is, have neither
  exited nor been frozen) on all of their nodes at the same time, except for the two cases below.
- A coordinator doesn't form its first generation next to one that it heard about less than a lease
  before, nor next to any other one if a node has told it that there was a coordinator before.
- An agent that has given up doesn't become the coordinator.
- When the next generation is formed, no worker is running on a node that was dropped.
- A generation's ranks are a permutation of 0..W-1. All of its nodes get the same number, world
  size, restart count and address. Nodes that stay keep their order, unless it is determined by the
  network and segments.
- A generation has whole segments, and as many as possible lie within one leaf of the network. If
  each node is a segment, the nodes in a leaf are neighbours.
- The restart count never exceeds the budget, never decreases under one coordinator, and grows only
  if a worker has failed since the last generation began.
- A failure that blames a peer while a node is silent uses no restart.
- A generation is stopped as hung only if the workers on all of its nodes are idle.
- Workers that save and leave at an agreed call do so at the same call.
- Workers are asked to save once a node in their generation has reported a preemption, or at the
  latest when a new coordinator has confirmed the generation.
- If nodes probe each other first, a node is left out only if it couldn't reach another one or be
  reached. No two nodes in a generation have failed to reach each other, unless both ran before. A
  new node in a generation has answered, or taken too long.
- A worker that has left its group is in no other one until its agent lets it join the following
  generation. Under one coordinator, that requires its node to have stopped in time, and some rank
  to have taken a step in the previous generation, unless all of that generation's processes were
  new.
- A node that is preempted, or that got a signal to stop the job, starts no more workers.
- Generation numbers increase for each agent and each coordinator.
- Within a certain time after the network is stable and there are enough nodes, every node is in the
  live generation, knows that it is a spare, or knows that the job has ended.
- Blips of up to 7.5 s, one at a time, neither freeze workers nor end a generation. Nor is one ended
  by a coordinator that is suspended for up to twice the silence timeout.
- Workers on a node that a coordinator has answered run for longer than a lease only if it permits
  that. Workers on a node that another machine has refused run for five more seconds, unless a
  coordinator permits more.
- When a generation is formed, no worker of an older one is running on a node that was dropped for
  its silence. On a node whose connection has closed, it may run until its lease ends, and then no
  longer next to another one. With a single endpoint this may take five seconds more if a firewall
  refuses on the coordinator's behalf, or if the connection broke just before the coordinator ended.
  The same applies wherever the node was refused after that because the newer generation's
  coordinator had also ended. With a registry, a group that has lost no node may run next to
  another one if a firewall refused the latter's nodes before, until the registry answers the
  group's coordinator (docs/decisions/0012).

Not guaranteed, for a lease and a half:

- A coordinator that starts after the old one has died only knows what nodes report. If the maximum
  number of new nodes reach it before any node of the live generation does, it forms a generation
  without that. The older workers are stopped as soon as the coordinator hears about them, or frozen
  when their lease ends.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from relight.agent.group import Group
from relight.base.errors import EXIT_MACHINE
from relight.core.group.group_types import (
    Drop,
    Effect,
    Event,
    GroupSettings,
    GroupState,
    NodeLost,
    NodeSilent,
    Received,
    Send,
)
from relight.core.group.messages import (
    Confirm,
    FromAgent,
    GenerationFormed,
    JobEnded,
    Join,
    NodeLeaving,
    NodePreempted,
    NodeReady,
    NodesProbed,
    StartProbes,
    StopWorkers,
)
from relight.core.group.silence import TELL_AFTER_S
from relight.core.link.lease import REFUSALS_S, Refusal, lease_s
from relight.core.link.link_state import Broken, GiveUp, Heard, Hosting, Opened
from relight.core.ranks import GenerationId

from .world import Failure, Process, World

if TYPE_CHECKING:
    from .node import Node, Workers
    from .stage import WatchedMembership

UNDER_WAY_S = 0.5
"""How long a refusal, or an answer from a registry, may take to arrive."""
PROBED_WITHIN_S = 3.0
"""How long nodes that probe each other may take to answer. The shipped limit is 3.5 s."""


def _comes_first(coordinator: "WatchedMembership", nodes: Collection[str]) -> set[str]:
    """Return the node that gets rank 0 because it hosts the endpoint, or an empty set."""
    return {node for node in nodes if coordinator.members[node].join.comes_first}


class Formation:
    """A generation as formed by one coordinator."""

    def __init__(
        self,
        coordinator: "WatchedMembership",
        formed: GenerationFormed,
        nodes: dict[str, GenerationFormed],
    ) -> None:
        self.coordinator = coordinator.number
        self.process = coordinator.process
        self.id = formed.generation.id
        self.number = formed.generation.number
        self.restart = formed.generation.restart
        self.nodes = nodes
        self.at = 0.0
        self.running: dict[str, Workers] = {}
        self.changed = False  # whether nodes have joined or left since
        self.was_silent = False  # whether one of its nodes has been silent for a while
        self.kept = dict.fromkeys(nodes)  # nodes that the coordinator hasn't lost since
        self.first = _comes_first(coordinator, nodes)
        self.lost_at = float("inf")  # when the first node fell silent or was lost
        self.dropped: set[str] = set()
        self.hung = False  # whether its workers are idle forever
        self.stuck: set[tuple[str, int]] = set()  # node and local rank of the workers they wait for
        self.stopped_as_hung = False
        self.idle: set[str] = set()  # nodes whose workers are idle for a while
        self.overdue: set[str] = set()  # nodes that didn't stop in time
        self.follows = coordinator.follows
        self.advanced = False  # whether a worker has taken a step in it
        self.stayed = 0  # number of workers that were in the previous one
        self.saved_at = 0  # the should_checkpoint call at which workers leave, if agreed

    def lose(self, node: str, now: float) -> None:
        """Record that the coordinator has lost a node."""
        if node in self.kept:
            del self.kept[node]
            self.lost_at = min(self.lost_at, now)

    @property
    def live(self) -> bool:
        """Return whether its workers are running on all nodes.

        Workers that only run until a guard stops them, after their agent was killed, don't count.
        """
        guarded = all(workers.process.alive for workers in self.running.values())
        return guarded and len(self.running) == len(self.nodes)

    def __str__(self) -> str:
        return f"generation {self.number} of C{self.coordinator} on {len(self.nodes)} nodes"


class Try:
    """The nodes' probes of each other, as reported to their coordinator."""

    def __init__(self, probes: dict[str, StartProbes], until: float) -> None:
        self.until = until
        self.awaited = set(probes)
        """The nodes that have not answered yet."""
        self._cookies = {begin.cookie for begin in probes.values()}
        self._nodes = list(probes)
        self.failed: set[frozenset[str]] = set()
        """Pairs of nodes in which one couldn't reach the other."""

    def hear(self, node: str, answer: NodesProbed) -> None:
        """Record a node's answer."""
        if answer.cookie in self._cookies and node in self._nodes:
            self.awaited.discard(node)
            number = self._nodes.index(node)
            for target, _ in answer.unreached:
                peer = self._nodes[(number + target) % len(self._nodes)]
                self.failed.add(frozenset((node, peer)))


class Watch:
    """Checks the invariants at every event."""

    def __init__(
        self,
        world: World,
        settings: GroupSettings,
        *,
        strict: bool,
        refused_s: float,
        firewall: bool,
        evicts: bool,
    ) -> None:
        self.world = world
        self.settings = settings
        self.strict = strict
        """Whether two generations may never be live at the same time, not even briefly."""
        self._firewall = firewall
        self._evicts = evicts
        """Whether nodes refused by a firewall may evict a live coordinator."""
        self._lease_s = lease_s(settings.lost_after_s) * (1 + 2 * world.clocks)
        self._lease_s += world.freezer_late_s + 1e-6
        self.tolerated_s = self._lease_s + refused_s
        """How long workers may keep running after their node's connection has closed."""
        self.left_alone_from = float("inf")
        """The time after which there are only blips: no workers are frozen, and the generation
        continues.
        """
        self.may_freeze = False
        """Whether workers may nevertheless be frozen."""
        self.on_coordinator: Callable[[Process], None] = lambda process: None
        """Called with each process that becomes the coordinator."""
        self.on_answer: Callable[[], None] = lambda: None
        """Called when a coordinator has answered an agent."""
        self.agents: list[Node] = []
        self.groups: dict[Group, None] = {}
        self.formations: list[Formation] = []
        self.live: Formation | None = None
        self.steps = 0
        """The number of steps taken by recoverable workers."""
        self.stayed = 0
        """How often a worker has joined another generation."""
        self.failures = 0
        self.overlaps = 0
        self.ends: list[JobEnded] = []
        self.told: set[str] = set()
        """The nodes that were members of a group when its job ended."""
        self._coordinators = 0
        self._by_coordinator: dict[int, Formation] = {}
        self._by_id: dict[GenerationId, Formation] = {}
        self._heard: dict[tuple[int, GenerationId], float] = {}
        """When a coordinator first heard about a generation it hadn't formed."""
        self._joined: set[tuple[int, str]] = set()
        """Coordinators and the nodes that have joined them."""
        self._met: dict[int, float] = {}
        """When a node first told each coordinator that it had met an earlier one."""
        self._of: dict[str, Formation] = {}
        self._with: dict[str, Node] = {}
        self._latest: dict[str, int] = {}
        self._left: set[str] = set()
        """The nodes that have left. Their agents may still coordinate."""
        self._tries: dict[int, Try] = {}
        """Each coordinator's latest round of probes."""
        self._preempted: dict[tuple[int, GenerationId], set[str]] = {}
        """The nodes that have reported a preemption to a coordinator."""
        self._answered: dict[Process, float] = {}
        self._gave_up: set[Process] = set()
        self._absent_at = 0.0
        """When it was last observed that no process coordinated."""
        self._refused: dict[Process, float] = {}
        """When a node was last refused because no process coordinated, which renews a lease."""
        self._turned_away: dict[Process, float] = {}
        """When another machine refused an agent for the first time since it was last confirmed."""
        self._failures_before = 0
        self._charged = 0
        """The restart count when a failure was last charged."""
        self._excused: set[int] = set()
        """Coordinators whose generation failed because a worker blamed a peer while a node was
        silent.
        """
        self._restart: dict[int, int] = {}
        self._spent: dict[int, list[float]] = {}
        """When each coordinator has restarted the job since the last progress."""
        world.watch = self

    def new_coordinator(self) -> int:
        """Return a number for a group that has just started."""
        self._see_absence()
        if self.world.me() in self._gave_up:
            raise Failure(f"{self.world.me().name} has given up, and begins to coordinate")
        self._coordinators += 1
        self.on_coordinator(self.world.me())
        return self._coordinators

    def coordinating(self) -> "WatchedMembership | None":
        """Return the group that is in charge now."""
        for group in reversed(self.groups):
            membership: Any = group.membership
            if membership.process.runs and group._coordinates():
                found: WatchedMembership = membership
                return found
        return None

    def stepped(
        self, coordinator: "WatchedMembership", event: Event, effects: list[Effect], now: float
    ) -> None:
        """Check a step taken by a coordinator."""
        sent = [effect for effect in effects if isinstance(effect, Send)]
        if isinstance(event, Received | NodeLost) or effects:
            self.world.log(f"C{coordinator.number} {_shown(event)} -> {coordinator.state.value}")
        due = coordinator.deadline()
        if (
            due is not None
            and due <= now
            and not effects
            and not isinstance(event, Received | NodeLost)
        ):
            raise Failure(f"the deadline {due} has passed and nothing happens: a busy loop")
        if isinstance(event, Received):
            if isinstance(event.message, Join):
                key = coordinator.number, event.node
                if event.message.met_coordinator and key not in self._joined:
                    self._met.setdefault(coordinator.number, self.world.now)
                self._joined.add(key)
            for generation in _named(event.message):
                self._heard.setdefault((coordinator.number, generation), self.world.now)
            if isinstance(event.message, NodesProbed) and coordinator.number in self._tries:
                self._tries[coordinator.number].hear(event.node, event.message)
            if isinstance(event.message, NodeLeaving):
                self._left.add(event.node)
            if isinstance(event.message, NodePreempted):
                group = coordinator.number, event.message.generation
                self._preempted.setdefault(group, set()).add(event.node)
        self._see_preempted(coordinator)
        formation = self._by_coordinator.get(coordinator.number)
        if formation is not None and isinstance(event, NodeLost):
            formation.lose(event.node, self.world.now)
            formation.dropped.add(event.node)
            lost = self._with.get(event.node)
            if lost is not None and lost.alive and not (self._firewall or self._evicts):
                raise Failure(f"{lost.name} is lost at once, although it lives")
        if formation is not None:
            formation.overdue |= coordinator.overdue
            formation.stopped_as_hung |= coordinator.hung
            self._see_change(formation, event)
            for effect in effects:
                if isinstance(effect, Drop):
                    self.world.log(f"C{coordinator.number} gives up {effect.node[:4]}")
                    formation.changed = True
                    formation.lose(effect.node, self.world.now)
                    formation.dropped.add(effect.node)
        self._see_let_in(coordinator, sent)
        for _, message in sent:
            if isinstance(message, StopWorkers) and message.capture_stacks:
                if coordinator.blamed_at is None and not self._by_id[message.generation].hung:
                    raise Failure(f"{self._by_id[message.generation]} is stopped, and works")
                break
        if coordinator.blamed_at == now and isinstance(event, Received):
            silence = coordinator.members.silence
            lost_at = now + coordinator.settings.lost_after_s - TELL_AFTER_S
            for node in set(silence) & coordinator.live.roster.group_ranks.keys():
                if silence.lost_at(node) <= lost_at:  # it has been silent for a second
                    self._excused.add(coordinator.number)
        restart = coordinator.restarts.number
        if restart > (before := self._restart.get(coordinator.number, 0)):
            heard = isinstance(event, Received) and isinstance(event.message, Join | NodeReady)
            # A coordinator may have ended before the remaining nodes knew about the restart that
            # it had charged.
            again = restart == self._charged
            charged_before = self.failures == self._failures_before and not again
            if not heard and (restart != before + 1 or charged_before):
                raise Failure(f"restart {restart} after {before} with no failure")
            if not (isinstance(event, Received) and isinstance(event.message, Join)):
                self._failures_before = self.failures  # a join only reports earlier restarts
                self._charged = restart
            if formation is not None:  # it hasn't just heard about earlier restarts
                self._spend(coordinator)
                if coordinator.number in self._excused:
                    raise Failure(f"restart {restart} as a node was silent")
        self._restart[coordinator.number] = restart
        for node, message in sent:
            if isinstance(message, JobEnded) and message.exit_code == EXIT_MACHINE:
                self._see_left_out(coordinator, node)
            elif isinstance(message, JobEnded) and message is not coordinator.end and formation:
                formation.kept.pop(node, None)  # it finished; if it comes back, it is a newcomer
        if probes := {node: each for node, each in sent if isinstance(each, StartProbes)}:
            self._tries[coordinator.number] = Try(probes, self.world.now + PROBED_WITHIN_S)
        forms = {node: message for node, message in sent if isinstance(message, GenerationFormed)}
        if forms:
            self._excused.discard(coordinator.number)
            self._see_survivors(coordinator, forms)
            self._see_silent(coordinator, forms)
            self._see_reached(coordinator, forms)
            self._formed(coordinator, forms)
        confirmed = {node for node, message in sent if isinstance(message, Confirm)}
        if coordinator.state is GroupState.RUNNING and len(confirmed) > 1:
            # A node that was asked to start, and hasn't, ran an earlier generation.
            formations = {self._of[node] for node in confirmed if self._runs(node)}
            if len(formations) > 1:
                raise Failure(f"confirmed as one: {' and '.join(map(str, formations))}")
        for _, message in sent:
            if isinstance(message, JobEnded) and coordinator.end is message:
                self.ends.append(message)
                self.told.update(member.node for member in coordinator.members)
                break

    def _see_left_out(self, coordinator: "WatchedMembership", node: str) -> None:
        """Check that there was a reason to leave out a node."""
        self.world.log(f"C{coordinator.number} leaves out {node[:4]}")
        if not any(node in pair for pair in self._tries[coordinator.number].failed):
            raise Failure(f"{node} is left out, and all have reached it")
        formation = self._by_coordinator.get(coordinator.number)
        if formation is not None:
            formation.lose(node, self.world.now)  # it may come back as a different node

    def _see_reached(self, coordinator: "WatchedMembership", nodes: Collection[str]) -> None:
        """Check that a generation's nodes can reach each other, except for those that ran
        before.
        """
        before = self._by_coordinator.get(coordinator.number)
        older = before.nodes.keys() if before is not None else set()
        tried = self._tries.get(coordinator.number)
        if tried is None:
            return
        if self.world.now < tried.until and (awaited := tried.awaited & set(nodes) - older):
            raise Failure(f"{awaited} are in a new generation, and have not answered yet")
        for pair in tried.failed:
            if pair <= set(nodes) and not pair <= older:
                raise Failure(f"{' and '.join(sorted(pair))} do not reach each other")

    def _see_silent(self, coordinator: "WatchedMembership", nodes: Collection[str]) -> None:
        """Check that no silent node is in a new generation."""
        if silent := set(coordinator.members.silence) & set(nodes):
            raise Failure(f"{silent} are silent, and in a new generation")

    def _see_let_in(self, coordinator: "WatchedMembership", sent: Sequence[Send]) -> None:
        """Check that no generation starts to end for newcomers while one of its nodes is silent.

        The end starts with the agreement on a checkpoint, unless none is agreed on. It is not taken
        back if a node falls silent later, because workers at the limit wait for the call.
        """
        silent = set(coordinator.members.silence) & set(coordinator.live.roster.group_ranks)
        causes = [coordinator.agrees_on]
        if coordinator.before[0] is GroupState.RUNNING and not coordinator.was_agreeing:
            causes += [each.cause for _, each in sent if isinstance(each, StopWorkers)]
        for cause in causes:
            if silent and cause.endswith(" joined"):
                raise Failure(f"{silent} are silent, and {cause}")

    def _see_preempted(self, coordinator: "WatchedMembership") -> None:
        """Check that a generation's workers are asked to save if a node is preempted."""
        preempted = self._preempted.get((coordinator.number, coordinator.live.id), set())
        runs = coordinator.state is GroupState.RUNNING
        agrees = ("agreement", "counting") in coordinator.states()
        if runs and not agrees and (late := preempted & coordinator.live.roster.active):
            raise Failure(f"{late} will be taken away, but no workers are asked to save")

    def _see_change(self, formation: Formation, event: Event) -> None:
        """Record whether a generation has a reason to end other than a failure."""
        match event:
            case Received(node, NodeReady()) if node in formation.nodes:
                pass
            case NodeSilent(node):
                formation.was_silent = True
                if node in formation.nodes:
                    formation.lost_at = min(formation.lost_at, self.world.now)
                formation.changed |= node not in formation.nodes  # admitted, and already gone
            case NodeLost() | Received(_, Join() | NodeLeaving() | NodeReady()):
                formation.changed = True
            case _:
                pass

    def linked(self, process: Process, event: Any, effects: list[Any]) -> None:
        """Check an event on an agent's link."""
        if any(isinstance(effect, GiveUp) for effect in effects):
            self._gave_up.add(process)
        if isinstance(event, Opened):
            self._answered[process] = self.world.now
            self.on_answer()
            self.world.after(self._lease_s, self._unconfirmed, process, self.world.now)
        elif isinstance(event, Heard) and event.confirms_lease:
            self._answered.pop(process, None)
            self._turned_away.pop(process, None)
        elif isinstance(event, Hosting):
            self._turned_away.pop(process, None)
        elif isinstance(event, Broken) and event.refusal is not Refusal.NOTHING:
            self._see_absence()
            if self.world.now < self._absent_at + UNDER_WAY_S:
                self._refused[process] = self.world.now
            if event.refusal is Refusal.HINT and process not in self._turned_away:
                self._turned_away[process] = self.world.now
                limit_s = REFUSALS_S * (1 + 2 * self.world.clocks)
                limit_s += self.world.freezer_late_s + 1e-6
                self.world.after(limit_s, self._turned_away_by_now, process, self.world.now)

    def _turned_away_by_now(self, process: Process, at: float) -> None:
        if self._turned_away.get(process) == at and process.alive:
            workers = self.world.agent_of(process).workers
            if workers is not None and workers.run:
                raise Failure(f"{process.name} runs on although another machine refuses it")

    def _see_absence(self) -> None:
        if self.coordinating() is None:
            self._absent_at = self.world.now

    def _unconfirmed(self, process: Process, at: float) -> None:
        if self._answered.get(process) == at and process.alive:
            workers = self.world.agent_of(process).workers
            if workers is not None and workers.run:
                raise Failure(
                    f"{process.name} runs on {self._lease_s:.2f} s after a coordinator has "
                    "answered, which has not said that it may"
                )

    def begins(self, agent: "Node", formed: GenerationFormed) -> None:
        """Check that an agent may start a generation's workers."""
        number = formed.generation.number
        if agent.node.preempted or agent.interruption.signals:
            raise Failure(f"{agent.name} is to leave, and starts workers of generation {number}")
        if number <= self._latest.get(agent.name, -1):
            raise Failure(f"{agent.name}: generation {number} after {self._latest[agent.name]}")
        self._latest[agent.name] = number
        self._of[agent.id] = self._by_id[formed.generation.id]
        self._with[agent.id] = agent

    def saves(self, workers: "Workers", call: int) -> None:
        """Check that a worker saves and leaves at the call on which all have agreed."""
        formation = self._of[workers.node.id]
        self.world.log(f"{workers.node.name} saves at call {call} of {formation}")
        if formation.saved_at and formation.saved_at != call:
            raise Failure(f"{workers.node.name} saves at {call}, not {formation.saved_at}")
        formation.saved_at = call

    def advances(self, workers: "Workers") -> int:
        """Record a worker's step, and return its number (above all others)."""
        self._of[workers.node.id].advanced = True
        self.steps += 1
        return self.steps

    def stays(self, workers: "Workers", was_in: GenerationId) -> None:
        """Check that a worker that has left its group may join its agent's generation."""
        formation, name = self._of[workers.node.id], workers.node.name
        self.world.log(f"a worker of {name} stays in {formation}")
        if formation.id != workers.formed.generation.id or was_in != formation.follows:
            raise Failure(f"a worker of {name} joins {formation}, and was in {was_in}")
        if not workers.formed.survivors_stay:
            raise Failure(f"a worker of {name} joins {formation}, and may not")
        formation.stayed += 1
        self.stayed += 1

    def _see_survivors(
        self, coordinator: "WatchedMembership", forms: dict[str, GenerationFormed]
    ) -> None:
        """Check that workers may stay in the generation being formed."""
        stay = [node for node, formed in forms.items() if formed.survivors_stay]
        before = self._by_id.get(coordinator.follows)
        if not stay:
            return
        if before is None:
            raise Failure(f"workers of {stay} stay, and there was no generation")
        if before.coordinator != coordinator.number:
            return  # this worker is new
        if late := before.overdue & set(stay):
            raise Failure(f"workers of {late} stay, which had not stopped in time")
        if before.stopped_as_hung and not before.stuck:
            raise Failure(f"workers of {stay} stay, and nobody knows why {before} hung")
        if before.stayed and not before.advanced:
            raise Failure(f"workers of {stay} stay again, and no step was taken in {before}")

    # Hung generations.

    def hang(self) -> None:
        """Hang the current generation: its workers wait for one worker, or in different
        collectives.
        """
        if self.live is not None and self.live.live and not self.live.hung:
            self.live.hung = True
            self.failures += 1
            node = self.world.hangs.choice([*self.live.nodes, ""])
            if node:
                ranks = list(self.live.running[node].pids)
                self.live.stuck = {(node, self.world.hangs.choice(ranks))}
            self.world.log(f"{self.live} hangs: {self.live.stuck}")

    def idle(self, seconds: float) -> None:
        """Let the workers on some nodes be idle for a while, and the others work."""
        formation = self.live
        if formation is not None and len(formation.nodes) > 1:
            nodes = list(formation.nodes)
            formation.idle = set(self.world.hangs.sample(nodes, len(nodes) - 1))
            self.world.log(f"{formation} is idle on {len(nodes) - 1} of {len(nodes)} nodes")
            self.world.after(seconds, setattr, formation, "idle", set[str]())

    def ends_well(self, agent: "Node") -> None:
        """Record that a node's workers have ended, so that others no longer wait for them."""
        formation = self._of.get(agent.id)
        if formation is not None:
            formation.idle = set()

    def hangs(self, agent: "Node") -> bool:
        """Return whether a node's workers are idle forever."""
        formation = self._of.get(agent.id)
        return formation is not None and formation.hung

    def is_stuck(self, workers: "Workers", local_rank: int) -> bool:
        """Return whether a worker hangs and others wait for it."""
        formation = self._by_id.get(workers.formed.generation.id)
        return formation is not None and (workers.node.id, local_rank) in formation.stuck

    def stands_still(self, agent: "Node") -> bool:
        """Return whether a node's workers are idle."""
        formation = self._of.get(agent.id)
        return formation is not None and (formation.hung or agent.id in formation.idle)

    def runs(self, workers: "Workers") -> None:
        """Check a node whose workers have started or stopped running."""
        agent = workers.node
        left_alone = self.world.now > self.left_alone_from
        if left_alone and workers.standing and not self.may_freeze:
            raise Failure(f"the workers of {agent.name} are frozen in a blip")
        formation = self._of.get(agent.id)
        if formation is None or agent.workers is not workers:
            return
        if not workers.run:
            formation.running.pop(agent.id, None)
            if self.live is formation and not formation.live:
                self.live = None
                for other in self.formations[-20:]:
                    if other.live:
                        self.live = other
            return
        formation.running[agent.id] = workers
        for newer in self._newer(formation):
            if self._is_unaware(formation, newer):
                continue
            if self.world.now > newer.at + self._lease_s:  # expired leases aren't renewed
                raise Failure(f"{agent.name} goes on in {formation} beside {newer}")
        if formation.live:
            if self.live is not None and self.live.live and self.live is not formation:
                self._two_live(self.live, formation)
            self.live = formation

    def _runs(self, node: str) -> bool:
        return node in self._with and self._with[node].formed is not None

    def _flaps(self, agent: "Node") -> bool:
        """Return whether a node is still kept out because nodes on its host are flapping."""
        membership = self.coordinating()
        if membership is None or agent.id not in membership.members:
            return False
        now = membership.process.host.now()
        return membership.members[agent.id].admitted_after > now

    def takes_part(self, agent: "Node") -> bool:
        """Return whether an agent has a node in the job. Otherwise it may still coordinate."""
        return agent.alive and not agent.over and agent.id not in self._left

    def settled(self) -> str:
        """Return why the world's final state is wrong, or an empty string."""
        membership = self.coordinating()
        if membership is None:
            return "there is no coordinator"
        if membership.end is not None:
            return ""
        if membership.state is not GroupState.RUNNING:
            return membership.explain(membership.process.host.now())
        ending = membership.live.roster.is_ending
        for agent in self.agents:
            if agent.leaving or not self.takes_part(agent):
                continue
            formed = agent.formed
            if formed is None:
                if not (agent.waits and (agent.waits.spare or ending or self._flaps(agent))):
                    return f"{agent.name} is not told that it is a spare"
            elif formed.generation.id != membership.live.id:
                return f"{agent.name} runs generation {formed.generation.number}"
            elif agent.id not in membership.live.roster:
                return f"{agent.name} is not in generation {membership.live.id.number}"
            elif not agent.done and not (agent.workers and agent.workers.run):
                return f"{agent.name} does not run"
            elif self.hangs(agent):
                return f"generation {formed.generation.number} hangs"
        return ""

    def _spend(self, coordinator: "WatchedMembership") -> None:
        """Check that a coordinator's restart is within the budget."""
        settings, now = self.settings, self.world.now
        spent = self._spent.setdefault(coordinator.number, [])
        if settings.budget_renews and coordinator.progressed:
            spent.clear()
        if window_s := settings.restart_window_s:
            spent[:] = [at for at in spent if at > now - window_s]
        spent.append(now)
        if len(spent) > settings.max_restarts:
            raise Failure(f"{len(spent)} restarts are above the budget")

    def _formed(self, coordinator: "WatchedMembership", forms: dict[str, GenerationFormed]) -> None:
        settings = self.settings
        ordered = sorted(forms.items(), key=lambda item: item[1].place.group_rank)
        first = ordered[0][1]
        rank = 0
        for index, (node, (generation, place, *_)) in enumerate(ordered):
            told = (place.group_rank, place.first_rank, place.group_world_size, place.world_size)
            if told != (index, rank, len(forms), first.place.world_size):
                raise Failure(f"{node} is told {place}, but ranks so far are {index}, {rank}")
            if generation != first.generation:
                raise Failure(f"{node} is told {generation}, another one {first.generation}")
            rank += place.local_world_size
        if rank != first.place.world_size:
            raise Failure(f"{rank} ranks in a world of {first.place.world_size}")
        if not settings.needed <= len(forms) <= settings.max_nodes:
            raise Failure(f"a generation of {len(forms)} nodes")
        self._see_segments(coordinator, [node for node, _ in ordered])
        if first.generation.restart > settings.max_restarts and not settings.budget_renews:
            raise Failure(f"restart {first.generation.restart} is above the budget")
        before = self._by_coordinator.get(coordinator.number)
        if before is not None:
            if not self._firewall and (running := before.dropped & before.running.keys()):
                raise Failure(f"workers of {running}, which are dropped, run beside the next ones")
            if first.generation.number <= before.number:
                raise Failure(f"generation {first.generation.number} after {before.number}")
            stayed = [node for node in before.kept if node in forms]
            same_order = stayed == [node for node, _ in ordered if node in before.kept]
            same_first = before.first == _comes_first(coordinator, forms)  # others are near it
            if not same_order and same_first and settings.segment == 1:
                raise Failure("nodes that stay do not keep their order")
            restart = first.generation.restart
            excused = before.was_silent and coordinator.blamed_at is not None
            same = not (before.changed or excused) and forms.keys() == before.nodes.keys()
            if same and restart != before.restart + 1:
                raise Failure(f"restart {restart} after {before.restart}, and no node came or went")
        if before is None:
            self._see_unknown(coordinator)
        formation = Formation(coordinator, first, dict(ordered))
        self._see_older(coordinator, formation)
        self.formations.append(formation)
        self._by_coordinator[coordinator.number] = formation
        self._by_id[first.generation.id] = formation
        self.world.log(f"C{coordinator.number} forms {formation}, restart "
                       f"{first.generation.restart}")  # fmt: skip

    def _see_segments(self, coordinator: "WatchedMembership", nodes: list[str]) -> None:
        """Check that a generation has whole segments whose nodes are close in the network."""
        segment = self.settings.segment
        if len(nodes) % segment:
            raise Failure(f"{len(nodes)} nodes are no multiple of {segment}")
        if not self.settings.by_topology:
            return
        leaves = [coordinator.members[node].join.topology for node in nodes]
        parts = [set(leaves[start : start + segment]) for start in range(0, len(nodes), segment)]
        whole = sum(len(part) == 1 for part in parts)
        if whole != sum(count // segment for count in Counter(leaves).values()):
            raise Failure(f"segments of {segment} nodes span leaves: {leaves}")
        changes = sum(leaf != other for leaf, other in pairwise(leaves))
        if segment == 1 and changes != len(set(leaves)) - 1:
            raise Failure(f"nodes of a leaf are no neighbours: {leaves}")

    def _see_unknown(self, coordinator: "WatchedMembership") -> None:
        """Check that a first generation doesn't run beside another one, if this coordinator has
        just heard about the other one or about an earlier coordinator.
        """
        before = self.live if coordinator.number in self._met else None
        if before is not None and before.live and not (self._evicts or self._firewall):
            raise Failure(f"C{coordinator.number} forms one beside {before}, and knows of others")
        for (number, generation), at in self._heard.items():
            other = self._by_id.get(generation)
            if number != coordinator.number or other is None or other.coordinator == number:
                continue
            can_run = self._evicts  # it may not know yet that it was evicted (`_is_unaware`)
            if other.live and self.world.now < at + self._lease_s and not can_run:
                raise Failure(f"C{number} forms one beside {other}, although it has heard of that")

    def _see_older(self, coordinator: "WatchedMembership", formation: Formation) -> None:
        """Check which workers from earlier generations are still running.

        None may be from the generation that the coordinator has ended. Others may run until their
        lease expires.
        """
        formation.at = self.world.now
        if self.world.now > self.left_alone_from:
            raise Failure(f"{formation} is formed after a blip")
        for older in self.formations:
            is_known = older.id == coordinator.before[1]
            for node, workers in older.running.items():
                if is_known and not (self._firewall or self._is_unaware(older, formation)):
                    raise Failure(f"{workers.node.name} runs {older}, beside {formation}")
                self.world.after(self.tolerated_s, self._still_runs, older, node)

    def _newer(self, formation: Formation) -> list[Formation]:
        """Return the later generations whose workers are running anywhere."""
        later = self.formations[self.formations.index(formation) + 1 :]
        return [newer for newer in later if newer.running]

    def _still_runs(self, older: Formation, node: str) -> None:
        workers = older.running.get(node)
        if workers is not None and workers.process.host.up and workers.run:
            renewed_until = self._refused.get(workers.process, 0.0) + self._lease_s
            if self.world.now < renewed_until:
                self.world.at(renewed_until, self._still_runs, older, node)
                return
            for newer in self._newer(older):
                if self.world.now < (due := newer.at + self.tolerated_s):
                    self.world.at(due, self._still_runs, older, node)
                    continue
                if self._is_unaware(older, newer) or self._was_chosen(older, newer):
                    self.world.after(self._lease_s, self._still_runs, older, node)
                    return
                raise Failure(f"{workers.node.name} runs {older} beside {newer}")

    def _is_unaware(self, older: Formation, newer: Formation) -> bool:
        """Return whether one of the two coordinators can't know that it was evicted before the
        other group formed, or before a third coordinator continued that group's generation.

        The registry hasn't answered it since, its record and its workers' lease wouldn't have
        expired yet, and it has lost no node for longer than a lease.
        """
        now, current = self.world.now, self.coordinating()

        def is_cut_off(group: Formation, other: Formation) -> bool:
            register: Any = group.process.register
            if not register:
                return False
            # A coordinator that steps down leaves its workers an ordinary lease.
            told_at = register.reached_at + register.answer_s + UNDER_WAY_S + self._lease_s
            continues = current is not None and current.live.id == other.id
            began_at = now if continues and current.number != other.coordinator else other.at
            return (
                (register.reached_at < register.evicted_at or now < told_at)
                and float("-inf") < register.evicted_at <= began_at
                and now < register.reached_at + register.ttl_s + self._lease_s
                and now < group.lost_at + self._lease_s
            )

        return self._evicts and (is_cut_off(older, newer) or is_cut_off(newer, older))

    def _was_chosen(self, older: Formation, newer: Formation) -> bool:
        """Return whether a third coordinator continues an older generation and ends the newer one,
        whose coordinator didn't know about the older one when it formed the newer one.
        """
        number, never = newer.coordinator, float("inf")
        knew_at = min(self._heard.get((number, older.id), never), self._met.get(number, never))
        membership = self.coordinating()
        continues = membership is not None and membership.live.id == older.id
        return continues and knew_at > newer.at

    def _two_live(self, older: Formation, newer: Formation) -> None:
        # A generation may consist of a single node that a firewall refuses.
        same = older.coordinator == newer.coordinator
        if (same and not self._firewall) or self.strict:
            raise Failure(f"two live generations: {older}, and {newer}")
        self.overlaps += 1
        self.world.log(f"two live generations: {older}, and {newer}")
        overlap_s = self.tolerated_s if same else 1.5 * self._lease_s
        self.world.after(overlap_s, self._still_live, older, newer, overlap_s)

    def _still_live(self, older: Formation, newer: Formation, seconds: float) -> None:
        if older.live and newer.live and self._is_unaware(older, newer):
            self.world.after(self._lease_s, self._still_live, older, newer, seconds)
        elif older.live and newer.live:
            raise Failure(f"two live generations for {seconds} s: {older}, and {newer}")


def _shown(event: Event) -> str:
    match event:
        case Received(node, Join(announce=announce)):
            of = f" with {_of(announce)}, done: {announce.done}" if announce else ""
            return f"{node[:4]} Join{of}"
        case Received(node, message):
            return f"{node[:4]} {type(message).__name__}{_of(message)}"
        case NodeLost(node, reason):
            return f"{node[:4]} Lost: {reason}"
        case _:
            return "Tick"


def _named(message: FromAgent) -> Sequence[GenerationId]:
    """Return the generations that a message mentions."""
    match message:
        case Join(announce=announce) if announce is not None:
            return (announce.generation,)
        case NodeReady(generation=generation, latest=latest):
            return generation, latest
        case _:
            return ()


def _of(message: object) -> str:
    generation = getattr(message, "generation", None)
    return f" {generation.number} of {generation.origin}" if generation else ""
