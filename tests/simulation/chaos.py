"""One seeded run: a job, what goes wrong with it, and how it must end."""

from relight.core.group import Settings, State
from relight.errors import EXIT_GROUP

from .agent import Agent
from .watch import FORMED_WITHIN_S, Watch
from .world import Failure, Host, World

ENDED_WITHIN_S = 15.0
"""From the last worker's end to the exit of all agents that are told; others give up by themselves
after the join timeout."""


class Run:
    """A job of the size and with the trouble that a seed gives it."""

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed, Settings(1, 1, 0))
        random = self._random = world.random
        large = seed % 100 == 99
        most = random.randint(300, 1000) if large else random.choice((2, 2, 3, 4, 5, 8, 16, 32, 60))
        least = most if random.random() < 0.25 else random.randint(1, most)
        world.settings = Settings(
            least=least,
            most=most,
            max_restarts=random.choice((0, 1, 3, 100)),
            last_call_s=random.choice((0.5, 2.0, 5.0)),
            join_timeout_s=random.choice((20.0, 60.0)),
            exit_barrier_s=random.choice((0.5, 30.0)),
            rejoin_s=2.0,
            ordered=random.random() < 0.15,
        )
        self.watch = Watch(world)
        self._trouble_s = 10.0 if large else random.uniform(5, 40)
        self._pace_s = random.choice((0.1, 1.0, 4.0)) * (0.3 if large else 1)
        self._numbers = 0
        spares = 0 if world.settings.ordered else random.choice((0, 0, 1, 3))
        count = min(
            most + spares,
            random.randint(world.settings.needed, most + spares) + random.choice((0, 99)),
        )
        self._hosts = [Host(i) for i in range(count)]
        world.hosts = self._hosts
        self._spread_s = random.choice((0.1, 1.0, 8.0))
        self._kinds = random.choice((
            ("kill", "crash", "cut", "reset", "stop", "fail", "leave", "hosts", "twin"),
            ("cut", "out", "back", "reset"),
            ("hosts", "hosts", "twin", "kill", "fail"),
            ("stop", "stop", "kill"),
            ("fail",),
            ("kill", "leave"),
            ("reset", "one end", "fail", "finish"),
            ("finish", "kill", "hosts"),
            ("all reset", "hosts", "kill", "cut"),
        ))  # fmt: skip

    def run(self) -> None:
        """Run it.

        Raises:
            Failure: an invariant does not hold.
        """
        world, random = self.world, self._random
        for host in self._hosts:
            world.after(random.uniform(0, self._spread_s), self._start, host)
        world.after(random.uniform(0, 5), self._trouble)
        world.run_until(self._trouble_s)
        self._calm()
        quiet = world.now
        while world.now < quiet + FORMED_WITHIN_S and self._unsettled():
            world.run_until(world.now + 0.5)
        if unsettled := self._unsettled():
            raise Failure(f"{FORMED_WITHIN_S} s after all trouble ended: {unsettled}")
        self.settled_s = world.now - quiet
        self._finish()

    def _finish(self) -> None:
        """Let all workers end well, whenever they run, and everybody go home."""
        world = self.world
        group = world.coordinator and world.coordinator.membership
        over = group is None or group.state is State.GATHERING
        # Who missed the end waits until the join timeout.
        told = [agent for agent in world.agents if agent.alive and agent.reached and not over]
        limit = world.now + ENDED_WITHIN_S
        while world.now < limit and any(agent.alive for agent in told):
            for agent in world.agents:
                agent.succeed()
            world.run_until(world.now + 0.25)
        for agent in told:
            if agent.alive:
                raise Failure(f"{agent.node} is still there {ENDED_WITHIN_S} s after the end")
        limit = world.now + 2 * world.settings.join_timeout_s + ENDED_WITHIN_S
        while world.now < limit and any(agent.alive for agent in world.agents):
            for agent in world.agents:
                agent.succeed()
            world.run_until(world.now + 1)
        for agent in world.agents:
            if agent.alive:
                raise Failure(f"{agent.node} never ends")
        codes = {a.exit_code for a in told}
        if len(codes - {None, 143}) > 1 and codes - {None, 143} != {0, EXIT_GROUP}:
            raise Failure(f"agents that were there at the end exit with {codes}")

    def _unsettled(self) -> str:
        return "" if self.watch.ends else self.watch.settled()

    # Trouble.

    def _start(self, host: Host) -> None:
        world = self.world
        if self.watch.ends or not host.up:
            return
        here = sum(agent.alive and agent.host is host for agent in world.agents)
        if here >= (2 if host is self._hosts[0] else 1):
            return
        world.agents.append(Agent(world, host, self._numbers))
        self._numbers += 1

    def _trouble(self) -> None:
        world, random = self.world, self._random
        if world.now >= self._trouble_s or self.watch.ends:
            return
        world.after(random.expovariate(1 / self._pace_s), self._trouble)
        alive = [agent for agent in world.agents if agent.alive]
        kind, agent = random.choice(self._kinds), random.choice(alive) if alive else None
        if agent is None:
            self._start(self._hosts[0])
            return
        soon = random.choice((0.05, 0.5, 1.0, 3.0, 10.0)) * random.uniform(0.5, 1.5)
        coordinator = world.coordinator
        match kind:
            case "kill":
                agent.kill()
                world.after(soon, self._start, agent.host)
            case "crash":
                self._crash(agent.host)
                world.after(soon, self._boot, agent.host)
            case "hosts" if coordinator is not None:
                coordinator.process.kill()
                world.after(soon, self._start, self._hosts[0])
            case "twin" if not world.settings.ordered:
                self._start(self._hosts[0])
            case "stop":
                agent.sigstop()
                world.after(soon, agent.sigcont)
            case "cut" | "out" | "back":
                number = random.choice((1, 1, 1, len(self._hosts) // 2, len(self._hosts)))
                for host in random.sample(self._hosts[1:], min(number, len(self._hosts) - 1)):
                    self._cut(host, kind)
                    world.after(soon, self._heal, host)
            case "reset" | "one end" if agent.connection is not None:
                self._reset(agent, both=kind == "reset")
            case "all reset":
                for other in alive:
                    self._reset(other, both=True)
            case "fail":
                agent.fail()
            case "finish":
                agent.succeed()
            case "leave":
                agent.sigterm()
                world.after(soon + 1, self._start, agent.host)

    def _crash(self, host: Host) -> None:
        host.up = False
        for agent in self.world.agents:
            if agent.host is host:
                agent.kill(machine=True)

    def _boot(self, host: Host) -> None:
        host.up = True
        self._start(host)

    def _cut(self, host: Host, kind: str) -> None:
        self.world.log(f"{host.name} is cut: {kind}")
        host.out = host.out and kind == "back"
        host.back = host.back and kind == "out"
        self.world.changed(host)

    def _heal(self, host: Host) -> None:
        if not (host.out and host.back):
            self.world.log(f"{host.name} is reachable again")
            host.out = host.back = True
            self.world.changed(host)

    def _reset(self, agent: Agent, *, both: bool) -> None:
        connection = agent.connection
        if connection is None:
            return
        self.world.log(f"{agent.node} connection reset, both ends: {both}")
        coordinator, at_agent = connection.coordinator, self._random.random() < 0.5
        if both or not at_agent:
            coordinator.process.post(coordinator.gone, connection, "reset")
        if both or at_agent:
            agent.post(agent.disconnected, connection, "reset")

    def _calm(self) -> None:
        """End all trouble, and see to it that there are enough nodes."""
        world = self.world
        self._trouble_s = 0.0
        world.log("all trouble ends")
        for host in self._hosts:
            host.up = True
            self._heal(host)
        for agent in world.agents:
            agent.sigcont()
        for seconds in (0, 3, 6):  # an agent may just be leaving
            for host in self._hosts:
                world.after(seconds, self._man, host)

    def _man(self, host: Host) -> None:
        if not any(agent.host is host and agent.alive for agent in self.world.agents):
            self._start(host)
