"""Electors on a virtual network with virtual clocks. A single seed determines all randomness."""

import heapq
import random
from collections import Counter

from relight.core.link.election import BallotReceived, Effect, Election, ElectionState, SendBallot
from relight.core.link.votes import Ballot, is_majority
from relight.events.event_types import Tick

CHAOS_S = 10.0
ELECTED_WITHIN_S = 3.0


class Host:
    """A host: its clock, its elector if one is running, and the messages queued while it is
    frozen.
    """

    def __init__(self, offset: float, rate: float) -> None:
        self.offset, self.rate = offset, rate
        self.elector: Election | None = None
        self.frozen = False
        self.waiting: list[Ballot] = []

    def clock(self, true_time: float) -> float:
        return self.offset + self.rate * true_time

    def true_time(self, clock: float) -> float:
        return (clock - self.offset) / self.rate


class World:
    """Electors on one virtual network, with all randomness drawn from one seed."""

    def __init__(self, seed: int, size: int, *, alone: bool = False, drift: float = 0.01) -> None:
        self.random = random.Random(seed)
        self.seed, self.size, self.alone = seed, size, alone
        self.now = 0.0
        self.queue: list[tuple[float, int, str, tuple]] = []
        self.count = 0
        self.cut: set[tuple[int, int]] = set()
        self.drop = self.duplicate = 0.0
        self.delay = (0.001, 0.02)
        self.log: list[str] = []
        self.effects: Counter[str] = Counter()
        self.hosts = [
            Host(self.random.uniform(-1e5, 1e5), 1 + self.random.uniform(-drift, drift))
            for _ in range(size)
        ]

    def at(self, delay: float, kind: str, *what: object) -> None:
        self.count += 1
        heapq.heappush(self.queue, (self.now + delay, self.count, kind, what))

    def start(self, i: int) -> None:
        host = self.hosts[i]
        names = [f"host{k}" for k in range(self.size)]
        self.count += 1
        host.elector = Election(
            names, i, f"{i}.{self.count}", host.clock(self.now), alone=self.alone
        )
        host.waiting.clear()
        host.frozen = False
        self.log.append(f"{self.now:.3f} start {i}")
        self.wake(i)

    def crash(self, i: int) -> None:
        self.log.append(f"{self.now:.3f} crash {i}")
        self.hosts[i].elector = None

    def thaw(self, i: int) -> None:
        host = self.hosts[i]
        self.log.append(f"{self.now:.3f} thaw {i}")
        host.frozen = False
        waiting, host.waiting = host.waiting, []
        for message in waiting:
            self.step(i, BallotReceived(message))
        self.step(i, Tick())

    def wake(self, i: int) -> None:
        """Schedule the elector's next Tick."""
        host = self.hosts[i]
        assert host.elector is not None
        due = host.true_time(host.elector.deadline()) + 1e-6
        self.at(max(1e-6, due - self.now), "tick", i, host.elector)

    def step(self, i: int, event: BallotReceived | Tick) -> None:
        host = self.hosts[i]
        elector = host.elector
        if elector is None:
            return
        if host.frozen:
            if isinstance(event, BallotReceived):
                host.waiting.append(event.message)
            return
        before = elector.deadline()
        effects = elector.step(event, host.clock(self.now))
        elector.check()
        for effect in effects:
            self.carry_out(i, effect)
        if elector.deadline() != before or isinstance(event, Tick):
            self.wake(i)
        leaders = self.leaders()
        assert self.alone or len(leaders) <= 1, f"at {self.now:.3f} {leaders} all coordinate"

    def carry_out(self, i: int, effect: Effect) -> None:
        self.effects[type(effect).__name__] += 1
        if not isinstance(effect, SendBallot):
            self.log.append(f"{self.now:.3f} {i} {effect}")
            return
        if (i, effect.host) in self.cut or self.random.random() < self.drop:
            return
        for _ in range(2 if self.random.random() < self.duplicate else 1):
            self.at(self.random.uniform(*self.delay), "message", effect.host, effect.message)

    def leaders(self) -> list[int]:
        """Return the hosts that coordinate now, each by its own clock, including frozen ones."""
        return [
            i
            for i, host in enumerate(self.hosts)
            if host.elector is not None
            and host.elector.state is ElectionState.COORDINATOR
            and host.elector.coordinates(host.clock(self.now))
        ]

    def run(self, until: float) -> None:
        while self.queue and self.queue[0][0] <= until:
            self.now, _, kind, what = heapq.heappop(self.queue)
            if kind == "tick":
                i, elector = what
                if elector is self.hosts[i].elector:
                    self.step(i, Tick())
            elif kind == "message":
                self.step(what[0], BallotReceived(what[1]))
            elif kind == "thaw":
                if self.hosts[what[0]].frozen:
                    self.thaw(what[0])
            elif self.hosts[what[0]].elector is None:
                self.start(what[0])
        self.now = until

    def misfortune(self) -> None:
        """Inject one fault into the network or a host, or none."""
        i = self.random.randrange(self.size)
        host = self.hosts[i]
        match self.random.choice(["cut", "split", "one-way", "heal", "crash", "freeze", "noise"]):
            case "cut":
                links = [(a, b) for a in range(self.size) for b in range(self.size) if a != b]
                self.cut = {link for link in links if self.random.random() < 0.3}
            case "split":
                side = {k for k in range(self.size) if self.random.random() < 0.5}
                self.cut = {
                    (a, b)
                    for a in range(self.size)
                    for b in range(self.size)
                    if (a in side) != (b in side)
                }
            case "one-way":
                deaf = self.random.random() < 0.5
                others = [k for k in range(self.size) if k != i]
                self.cut |= {(k, i) if deaf else (i, k) for k in others}
            case "heal":
                self.cut.clear()
            case "crash" if host.elector is not None:
                self.crash(i)
                self.at(self.random.choice([0.01, 0.3, 2.0]), "start", i)
            case "freeze" if host.elector is not None and not host.frozen:
                self.log.append(f"{self.now:.3f} freeze {i}")
                host.frozen = True
                self.at(self.random.choice([0.3, 0.8, 1.2, 3.0]), "thaw", i)
            case "noise":
                self.drop = self.random.choice([0.0, 0.05, 0.3])
                self.duplicate = self.random.choice([0.0, 0.2])
                self.delay = (0.001, self.random.choice([0.02, 0.2, 1.5]))

    def stable_majority(self) -> set[int]:
        """Connect the hosts of a majority with each other. The rest stay as they are and may
        interfere.
        """
        order = self.random.sample(range(self.size), self.size)
        majority: set[int] = set()
        while not is_majority(majority, self.size):
            majority.add(order.pop())
        self.cut = {(a, b) for a, b in self.cut if not (a in majority and b in majority)}
        self.drop, self.duplicate, self.delay = 0.0, 0.0, (0.001, 0.02)
        for i in majority:
            if self.hosts[i].elector is None:
                self.start(i)
            elif self.hosts[i].frozen:
                self.thaw(i)
        return majority


def simulate(seed: int, *, alone: bool = False) -> World:
    """Inject faults for ten seconds, then connect a majority."""
    chance = random.Random(seed)
    world = World(seed, chance.choice([1, 2, 3, 3, 3, 4, 5]), alone=alone)
    for i in range(world.size):
        world.at(chance.choice([0.0, chance.random(), 5 * chance.random()]), "start", i)
    while world.now < CHAOS_S:
        world.run(world.now + chance.expovariate(2.5))
        world.misfortune()
    stable_from = world.now
    majority = world.stable_majority()
    world.log.append(f"{world.now:.3f} from now on {sorted(majority)} are connected")
    while not world.leaders() and world.now < stable_from + ELECTED_WITHIN_S:
        world.run(world.now + 0.05)
    assert world.leaders(), f"{sorted(majority)} chose nobody in {ELECTED_WITHIN_S} s"
    return world
