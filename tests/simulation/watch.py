"""What must hold in a simulated world after each step.

Guaranteed, and checked:

- At most one live generation: all workers of two generations never run (unfrozen, not asked to
  stop) at the same time, longer than `OVERLAP_S` and only where a coordinator that has just
  started formed the later one before any node had told it of the earlier.
- Ranks of a generation are a permutation of 0..W-1; all its nodes are told the same number, world
  size, restart count, address. Nodes that stay keep their order.
- The restart count never exceeds the budget, never falls under one coordinator, and grows only if
  a worker has failed since the last generation began.
- A generation's number grows for each agent and each coordinator.
- Once the network is stable and enough nodes are there, within `FORMED_WITHIN_S` every node is in
  the live generation, or told that it is a spare, or told the end.

Not guaranteed: a coordinator that starts after the old one has died knows only what it is told.
If as many new nodes as there may be reach it before a node of the live generation does, it forms a
generation without that, with restart count 0; the older workers are stopped as soon as they are
heard of, or frozen at the end of their lease.
"""

from typing import TYPE_CHECKING

from relight.core.group import Event, Lost, Send, State, Told
from relight.core.messages import Confirm, End, Form, Join, Leave, Ready

from .world import LEASE_S, Failure, World

if TYPE_CHECKING:
    from .agent import Agent
    from .world import Coordinator

OVERLAP_S = LEASE_S + 0.5
FORMED_WITHIN_S = 30.0


class Formation:
    """A generation, as one coordinator has formed it."""

    def __init__(self, coordinator: int, form: Form, nodes: dict[str, Form]) -> None:
        self.coordinator = coordinator
        self.number = form.generation.number
        self.restart = form.generation.restart
        self.nodes = nodes
        self.running: set[str] = set()
        self.changed = False  # whether nodes have come or gone since
        self.kept = dict.fromkeys(nodes)  # those that the coordinator has not lost since

    @property
    def live(self) -> bool:
        """Whether all its workers run."""
        return len(self.running) == len(self.nodes)

    def __str__(self) -> str:
        return f"generation {self.number} of C{self.coordinator} on {' '.join(self.nodes)}"


class Watch:
    """Looks at everything that happens."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.formations: list[Formation] = []
        self.live: Formation | None = None
        self.failures = 0
        self.overlaps = 0
        self.restarts = 0
        self.ends: list[End] = []
        self._by_coordinator: dict[int, Formation] = {}
        self._of: dict[str, Formation] = {}
        self._failures_before = 0
        self._restart: dict[int, int] = {}
        world.watch = self

    def stepped(self, coordinator: "Coordinator", event: Event, effects: list[Send]) -> None:
        """A coordinator has taken a step."""
        membership = coordinator.membership
        formation = self._by_coordinator.get(coordinator.number)
        if formation is not None and isinstance(event, Lost):
            formation.kept.pop(event.node, None)
        if formation is not None:
            self._see_change(formation, event)
        restart = membership.restart
        if restart > (before := self._restart.get(coordinator.number, 0)):
            announced = isinstance(event, Told) and isinstance(event.message, Join)
            if not announced and (restart != before + 1 or self.failures == self._failures_before):
                raise Failure(f"restart {restart} after {before} with no failure")
            self._failures_before = self.failures
        self._restart[coordinator.number] = restart
        forms = {node: message for node, message in effects if isinstance(message, Form)}
        if forms:
            self._formed(coordinator, forms)
        confirmed = {node for node, message in effects if isinstance(message, Confirm)}
        if membership.state is State.RUNNING and len(confirmed) > 1:
            formations = {self._of[node] for node in confirmed}
            if len(formations) > 1:
                raise Failure(f"confirmed as one: {' and '.join(map(str, formations))}")
        for _, message in effects:
            if isinstance(message, End) and membership.end is message:
                self.ends.append(message)
                break

    def _see_change(self, formation: Formation, event: Event) -> None:
        """See whether there is a reason for a generation that is no failure."""
        match event:
            case Told(node, Ready()) if node in formation.nodes:
                pass
            case Lost() | Told(_, Join() | Leave() | Ready()):
                formation.changed = True
            case _:
                pass

    def begins(self, agent: "Agent", form: Form) -> None:
        """An agent starts the workers of a generation."""
        if form.generation.number <= agent.last.number:
            raise Failure(
                f"{agent.node}: generation {form.generation.number} after {agent.last.number}"
            )
        if agent.live is not None:
            raise Failure(f"{agent.node} is told to start a generation while workers run")
        self._of[agent.node] = next(
            f for f in reversed(self.formations) if f.nodes.get(agent.node) == form
        )

    def runs(self, agent: "Agent") -> None:
        """An agent's workers run now, or do not."""
        formation = self._of.get(agent.node)
        if formation is None:
            return
        if not agent.running or agent.frozen:
            formation.running.discard(agent.node)
            if self.live is formation:
                self.live = None
                for other in self.formations[-20:]:
                    if other.live:
                        self.live = other
            return
        formation.running.add(agent.node)
        if formation.live:
            if self.live is not None and self.live is not formation:
                self._two_live(self.live, formation)
            self.live = formation

    def settled(self) -> str:
        """Return why the world is not as it should be in the end, or nothing."""
        world = self.world
        coordinator = world.coordinator
        if coordinator is None:
            return "there is no coordinator"
        if coordinator.membership.end is not None:
            return ""
        membership = coordinator.membership
        if membership.state is not State.RUNNING:
            return membership.explain(world.now)
        ending = membership._done or membership._done_and_gone
        for agent in world.agents:
            if not agent.alive:
                continue
            if agent.live is None:
                if not (agent.waits and (agent.waits.spare or ending)):
                    return f"{agent.node} is not told that it is a spare"
            elif agent.last != membership.generation or agent.node not in membership.order:
                return f"{agent.node} runs generation {agent.last.number}"
            elif not agent.done and (agent.frozen or not agent.running):
                return f"{agent.node} does not run"
        return ""

    def _formed(self, coordinator: "Coordinator", forms: dict[str, Form]) -> None:
        settings = self.world.settings
        ordered = sorted(forms.items(), key=lambda item: item[1].place.group_rank)
        first = ordered[0][1]
        rank = 0
        for index, (node, (generation, place)) in enumerate(ordered):
            told = (place.group_rank, place.first_rank, place.group_world_size, place.world_size)
            if told != (index, rank, len(forms), first.place.world_size):
                raise Failure(f"{node} is told {place}, but ranks so far are {index}, {rank}")
            if generation != first.generation:
                raise Failure(f"{node} is told {generation}, another one {first.generation}")
            rank += place.local_world_size
        if rank != first.place.world_size:
            raise Failure(f"{rank} ranks in a world of {first.place.world_size}")
        if not settings.needed <= len(forms) <= settings.most:
            raise Failure(f"a generation of {len(forms)} nodes")
        if first.generation.restart > settings.max_restarts:
            raise Failure(f"restart {first.generation.restart} is above the budget")
        before = self._by_coordinator.get(coordinator.number)
        if before is not None:
            if first.generation.number <= before.number:
                raise Failure(f"generation {first.generation.number} after {before.number}")
            stayed = [node for node in before.kept if node in forms]
            if stayed != [node for node, _ in ordered if node in before.kept]:
                raise Failure("nodes that stay do not keep their order")
            restart = first.generation.restart
            same = not before.changed and forms.keys() == before.nodes.keys()
            if same and restart != before.restart + 1:
                raise Failure(f"restart {restart} after {before.restart}, and no node came or went")
        formation = Formation(coordinator.number, first, dict(ordered))
        self.formations.append(formation)
        self._by_coordinator[coordinator.number] = formation
        self.world.log(f"C{coordinator.number} forms {formation}, restart "
                       f"{first.generation.restart}")  # fmt: skip

    def _two_live(self, older: Formation, newer: Formation) -> None:
        if older.coordinator == newer.coordinator:
            raise Failure(f"two live generations: {older}, and {newer}")
        self.overlaps += 1
        self.world.log(f"two live generations: {older}, and {newer}")
        self.world.after(OVERLAP_S, self._still_live, older, newer, len(self.formations))

    def _still_live(self, older: Formation, newer: Formation, formed: int) -> None:
        if older.live and newer.live:
            raise Failure(f"two live generations for {OVERLAP_S} s: {older}, and {newer}")
