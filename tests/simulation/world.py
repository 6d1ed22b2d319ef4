"""Hosts, processes, links and time, all simulated; the same seed gives the same run.

One host has the endpoint; any agent on it can host the coordinator, others reach it over links that
delay, break connections, and are cut in one direction or both. Connections are like TCP: in order,
what is sent into a cut arrives after it has healed, if both ends are still there.

Beats are not sent one by one: while a path works, the lease goes on, and when it stops working the
ends of the lease and of the patience are computed. This is what `link` and `coordinator` do.
"""

import heapq
import json
import random
import zlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from relight.core import fields
from relight.core.group import Lost, Settings, Tick, Told
from relight.core.membership import Membership
from relight.core.messages import Done, Failed, FromAgent, FromCoordinator, Join, Ready
from relight.core.ranks import GenerationId

if TYPE_CHECKING:
    from .agent import Agent
    from .watch import Watch

INTERVAL_S = 0.25
LOST_AFTER_S = 1.25
LEASE_S = 1.0
CONNECT_LIMIT_S = 5.0
CLOSE_LIMIT_S = 5.0
STALL_S = 0.5
_EVERY = FromAgent | FromCoordinator


class Failure(Exception):
    """An invariant does not hold."""


class Host:
    """A machine: its links to the endpoint's host, and whether it is there at all."""

    def __init__(self, number: int) -> None:
        self.name = f"node{number}"
        self.up = True
        self.out = True  # packets to the endpoint's host arrive
        self.back = True  # and packets from there


class Connection:
    """Between an agent and a coordinator; each end has its own view of whether it is open."""

    def __init__(self, agent: "Agent", coordinator: "Coordinator") -> None:
        self.agent = agent
        self.coordinator = coordinator
        self.agent_open = self.coordinator_open = True
        self.node = ""
        self.confirmed = False
        self.heard = self.echoed = False  # beats arrive at the coordinator; and come back
        self.epoch = 0  # of the last change of these
        self._arrival = [0.0, 0.0]
        self._held: tuple[list[object], list[object]] = ([], [])

    def send(self, up: bool, message: object) -> None:
        """Send to the coordinator (`up`) or to the agent."""
        world, host = self.agent.world, self.agent.host
        if not (host.out if up else host.back):
            self._held[up].append(message)
            return
        arrival = max(self._arrival[up], world.now + world.delay())
        self._arrival[up] = arrival
        world.at(arrival, self._arrive, up, message)

    def heal(self) -> None:
        """Send what was held back."""
        for up in (True, False):
            if (self.agent.host.out if up else self.agent.host.back) and self._held[up]:
                held = list(self._held[up])
                self._held[up].clear()
                for message in held:
                    self.send(up, message)

    def _arrive(self, up: bool, message: object) -> None:
        process = self.coordinator.process if up else self.agent
        if process.alive or (up and self.coordinator.listens):
            process.post(self._receive, up, message)

    def _receive(self, up: bool, message: object) -> None:
        if up:
            if self.coordinator_open:
                self.coordinator.received(self, message)
        elif self.agent_open:
            if message == "fin":
                self.agent.disconnected(self, "closed")
            else:
                self.agent.received(self, message)

    def flow(self) -> None:
        """See whether beats go round; to be called after anything that may change it."""
        agent, coordinator, world = self.agent, self.coordinator, self.agent.world
        here = agent.alive and not agent.stopped and self.agent_open
        there = coordinator.listens and not coordinator.process.stopped and self.coordinator_open
        heard = here and there and agent.host.out
        echoed = heard and agent.host.back
        if (heard, echoed) == (self.heard, self.echoed):
            return
        if self.heard and not heard and self.coordinator_open and coordinator.listens:
            silent_from = world.now - world.random.uniform(0, INTERVAL_S)
            look = world.random.uniform(0, LOST_AFTER_S / 8)
            world.at(silent_from + LOST_AFTER_S + look, coordinator.look, self, self.epoch + 1)
        if self.echoed and not echoed:
            self._goes_silent(world.random.uniform(0, INTERVAL_S))
        self.heard, self.echoed = heard, echoed
        self.epoch += 1
        if echoed and self.confirmed:
            agent.lease(float("inf"))

    def confirm(self) -> None:
        """The coordinator has said that the agent's generation goes on, or ends."""
        self.confirmed = True
        if self.echoed:
            self.agent.lease(float("inf"))

    def _goes_silent(self, before_s: float) -> None:
        agent, world = self.agent, self.agent.world
        echoed_at = world.now - before_s
        if self.confirmed and agent.alive and self.agent_open:
            agent.lease(echoed_at + LEASE_S)
        world.at(echoed_at + LOST_AFTER_S + 0.05, agent.give_up, self, self.epoch + 1)


class Coordinator:
    """One incarnation of the coordinator, in the process of an agent."""

    def __init__(self, process: "Agent", number: int, settings: Settings) -> None:
        self.process = process
        self.number = number
        self.world = process.world
        self.membership = Membership(settings, origin=f"C{number}")
        self.listens = True
        self.connections: dict[Connection, None] = {}
        self.by_node: dict[str, Connection] = {}
        self.pending: list[tuple[Agent, int]] = []
        self.patient_until = 0.0
        self._tick = 0

    def step(self, event: Told | Lost | Tick) -> None:
        """Take an event in and send what follows."""
        world, membership = self.world, self.membership
        effects = membership.step(event, world.now)
        membership.check()
        if not isinstance(event, Tick) or effects:
            world.log(f"C{self.number} {_shown(event)} -> {membership.state.value}")
        world.watch.stepped(self, event, effects)
        for node, message in effects:
            if node == self.process.node:
                world.at(world.now, self.process.post, self.process.told, message)
            elif node in self.by_node:
                self.by_node[node].send(False, world.wired(message))
        due = membership.deadline()
        self._tick += 1
        if due is not None:
            if due <= world.now and not effects and isinstance(event, Tick):
                raise Failure(f"the deadline {due} has passed and nothing happens: a busy loop")
            world.at(max(due, world.now), self.process.post, self._ticked, self._tick)

    def _ticked(self, tick: int) -> None:
        if tick == self._tick and self.listens:
            self.step(Tick())

    def opened(self, connection: Connection) -> None:
        """An agent has come."""
        self.connections[connection] = None

    def received(self, connection: Connection, message: object) -> None:
        """An agent says something."""
        if message == "fin":
            self.gone(connection, "closed")
            return
        if isinstance(message, Join):
            connection.node = message.node
            other = self.by_node.get(message.node)
            if other is not None and other is not connection:
                self._forget(other)
                other.send(False, "fin")
            self.by_node[message.node] = connection
        self.step(Told(connection.node, message))

    def look(self, connection: Connection, epoch: int) -> None:
        """A node may have been silent for too long."""
        if connection.epoch != epoch or connection.heard or not connection.coordinator_open:
            return
        if self.process.stopped or not self.listens:
            return
        if self.world.now < self.patient_until:
            self.world.at(self.patient_until + 0.01, self.look, connection, epoch)
            return
        connection.send(False, "fin")
        self._lose(connection, "no word")

    def gone(self, connection: Connection, reason: str) -> None:
        """A connection has ended."""
        if self.world.now < self.patient_until:
            self.world.at(self.patient_until, self.process.post, self._lose, connection, reason)
        else:
            self._lose(connection, reason)

    def resumed(self, stalled_s: float) -> None:
        """The process was stopped, and goes on."""
        if stalled_s > STALL_S:
            self.patient_until = self.world.now + 2 * LOST_AFTER_S
        for connection in self.connections:
            if not connection.heard:
                self.world.at(self.world.now + LOST_AFTER_S, self.look, connection,
                              connection.epoch)  # fmt: skip
        pending, self.pending = self.pending, []
        for agent, attempt in pending:
            agent.answered(self, attempt)

    def close(self, *, silently: bool = False) -> None:
        """The process ends; or the machine, silently."""
        self.listens = False
        for connection in list(self.connections):
            if not silently:
                connection.send(False, "fin")
            connection.coordinator_open = False
            connection.flow()
        self.connections.clear()
        self.by_node.clear()

    def _lose(self, connection: Connection, reason: str) -> None:
        if connection not in self.connections or not self.listens:
            return
        self._forget(connection)
        if connection.node and self.by_node.get(connection.node) is connection:
            del self.by_node[connection.node]
            self.step(Lost(connection.node, reason))
        self.process.others_left()

    def _forget(self, connection: Connection) -> None:
        del self.connections[connection]
        connection.coordinator_open = False
        connection.flow()


class World:
    """Everything there is, and the time."""

    def __init__(self, seed: int, settings: Settings) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.settings = settings
        self.now = 0.0
        self.hosts: list[Host] = []
        self.agents: list[Agent] = []
        self.coordinator: Coordinator | None = None  # that listens at the endpoint
        self.coordinators = 0
        self.jitter_s = self.random.choice((0.001, 0.01, 0.05, 0.2))
        self.broken_off = False  # connections are refused where nothing listens
        self.lines: deque[str] = deque(maxlen=60)
        self.digest = 0
        self.steps = 0
        self.watch: Watch
        self._through_json = seed % 10 == 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0

    def at(self, when: float, callback: Callable[..., None], *arguments: object) -> None:
        """Call back at a time."""
        self._count += 1
        heapq.heappush(self._queue, (max(when, self.now), self._count, callback, arguments))

    def after(self, seconds: float, callback: Callable[..., None], *arguments: object) -> None:
        """Call back in `seconds`."""
        self.at(self.now + seconds, callback, *arguments)

    def run_until(self, when: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let time pass."""
        queue = self._queue
        while queue and queue[0][0] <= when and not done():
            self.now, _, callback, arguments = heapq.heappop(queue)
            self.steps += 1
            callback(*arguments)
        if not done():
            self.now = max(self.now, when)

    def delay(self) -> float:
        """Return how long a packet takes."""
        return 0.0002 + self.random.random() * self.jitter_s

    def wired(self, message: FromAgent | FromCoordinator) -> FromAgent | FromCoordinator:
        """Return the message as it arrives."""
        if not self._through_json:
            return message
        return fields.message(_EVERY, json.loads(json.dumps(fields.to_json(message))))

    def log(self, line: str) -> None:
        """Note what happened."""
        line = f"{self.now:9.4f} {line}"
        self.lines.append(line)
        self.digest = zlib.crc32(line.encode(), self.digest)

    def changed(self, host: Host) -> None:
        """A link was cut or has healed."""
        for agent in self.agents:
            if agent.host is host and agent.connection is not None:
                agent.connection.flow()
        coordinator = self.coordinator
        if coordinator is not None:
            for connection in list(coordinator.connections):
                if connection.agent.host is host:
                    connection.flow()
                    connection.heal()
        for agent in self.agents:
            if agent.host is host and agent.connection is not None:
                agent.connection.heal()


def _id(generation: GenerationId) -> str:
    return f"generation {generation.number} of {generation.origin}"


def _shown(event: Told | Lost | Tick) -> str:
    match event:
        case Told(node, Join(announce=announce)):
            of = f" with {_id(announce.generation)}, done: {announce.done}" if announce else ""
            return f"{node} Join{of}"
        case Told(node, Ready(generation=of) | Failed(generation=of) | Done(generation=of) as told):
            return f"{node} {type(told).__name__} {_id(of)}"
        case Told(node, message):
            return f"{node} {type(message).__name__}"
        case Lost(node, reason):
            return f"{node} Lost: {reason}"
        case Tick():
            return "Tick"
