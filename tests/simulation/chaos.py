"""One seeded run: a job, its faults, and how it must end."""

from collections.abc import Collection
from functools import partial
from random import Random
from typing import Any

from relight.base.errors import EXIT_GROUP, EXIT_PREEMPTED
from relight.base.values import HangTimeout
from relight.core.group.group_types import GroupSettings, GroupState

from . import stage
from .node import Node
from .service import Client, Service
from .watch import Watch
from .world import Failure, Host, Process, World

ENDED_WITHIN_S = 15.0
"""Time from the last worker's exit until all agents that learn of it have exited. The others give
up after the join timeout."""
FORMED_WITHIN_S = 30.0
REFUSALS_S = 5.0
"""How long a refused connection to the only endpoint counts as evidence."""
PORT = 29400
MODES = "endpoint", "hosts", "register", "crowd"
"""The last one is any of the others, with the longest heartbeat interval that a group can have."""
BLIPS = "cut", "out", "back", "stop", "pause", "busy", "stop coordinator", "reset", "all reset"
"""Faults that cost a healthy job nothing if they end in time."""
_BEGUN_BY_S = 30.0
_BLIP_S = 7.5
_BLIP_OF_HOSTS_S = 7.0
"""The longest blip when several hosts are listed, as electing a coordinator afterwards may take up
to a second.
"""
_BETWEEN_BLIPS_S = 12.0


def _join_timeout(seed: int, usual_s: float, *, often: bool) -> float:
    """Return a join timeout. Some are as short as a lease, and pass while other groups' workers
    may be running.
    """
    timeouts = Random(f"{seed}, timeouts")
    return timeouts.choice((1.0, 3.0)) if timeouts.random() < (0.4 if often else 0.1) else usual_s


class Run:
    """A job whose size and faults are determined by a seed."""

    def __init__(self, seed: int, mode: str = "") -> None:
        self.world = world = World(seed)
        random = self._random = world.random
        world.crowd = mode == "crowd"
        self.mode = "" if world.crowd else mode
        self.mode = self.mode or random.choice(("endpoint", "endpoint", "hosts", "register"))
        large = seed % 100 == 99
        most = random.randint(100, 300) if large else random.choice((2, 2, 3, 3, 4, 5, 8, 16))
        least = most if random.random() < 0.25 else random.randint(1, most)
        ordered = self.mode == "endpoint" and random.random() < 0.15
        self._parts = Random(f"{seed}, parts")
        self._has_parts = self.mode in ("hosts", "register") and self._parts.random() < 0.2
        """Whether spares may form a generation of their own."""
        if self._has_parts:
            most, least = 2, self._parts.choice((1, 2))
        network = Random(f"{seed}, network")
        self._leaves = network.choices(("", "s1.l1", "s1.l2", "s2.l1"), k=5)
        """The machines' places in the network."""
        self._endpoint_first = network.random() < 0.2
        by_topology = network.random() < 0.2 and not ordered
        segment = network.choice((1, 2, 3)) if by_topology else 1
        most = max(most - most % segment, 2 * segment if by_topology else 1)
        least = max(segment, least - least % segment)
        lost_after_s = 10.0 if large else random.choice((10.0, 10.0, 3.0))
        self.settings = settings = GroupSettings(
            min_nodes=least,
            max_nodes=most,
            max_restarts=random.choice((0, 1, 3, 100)),
            settle_timeout_s=random.choice((0.5, 2.0, 5.0)),
            join_timeout_s=_join_timeout(seed, random.choice((40.0, 60.0)), often=self._has_parts),
            exit_barrier_s=random.choice((0.5, 30.0)),
            rejoin_grace_s=1.5,
            ordered=ordered,
            lost_after_s=lost_after_s,
            restart_window_s=world.endings.choice((0.0, 0.0, 0.0, 5.0, 30.0)),
            smart=world.endings.random() < 0.25,
            by_topology=by_topology,
            segment=segment,
        )
        self._trouble_s = 10.0 if large else random.uniform(5, 40)
        self._pace_s = random.choice((0.1, 1.0, 4.0)) * (0.3 if large else 1)
        self._numbers = 0
        spares = 0 if ordered else random.choice((0, 0, 1, 3))
        count = min(
            most + spares,
            random.randint(settings.needed, most + spares) + random.choice((0, 99)),
        )
        if self._has_parts:
            count = most + 3
        self._listed = min(count, random.choice((2, 3, 3, 5))) if self.mode == "hosts" else 1
        self._ttl_s = random.choice((3.0, 5.0, 15.0))
        self.service = Service(world)
        for number in range(count):
            world.hosts.append(Host(world, number))
        distances = Random(f"{seed}, distances")
        if distances.random() < 0.1:
            for host in world.hosts:
                host.far_s = distances.choice((0.0, 0.0, 0.05, 0.1))
        self._spread_s = random.choice((0.1, 1.0, 8.0))
        kinds: tuple[str, ...] = random.choice((
            ("kill", "crash", "cut", "reset", "stop", "fail", "leave", "hosts", "twin", "pause"),
            ("cut", "out", "back", "reset", "reject"),
            ("hosts", "hosts", "twin", "kill", "fail"),
            ("stop", "stop", "kill", "stop coordinator"),
            ("fail",),
            ("kill", "leave"),
            ("reset", "one end", "fail", "finish"),
            ("finish", "kill", "hosts"),
            ("all reset", "hosts", "kill", "cut"),
            ("pause", "stop coordinator", "busy", "kill"),
            ("crash loop", "fail", "hosts"),
            ("cut", "stop", "hosts", "twin"),
            ("hole", "hole", "fail", "kill"),
            ("stuck console", "fail", "leave"),
            ("short coordinators", "hosts", "kill", "twin"),
            ("late twin", "late twin", "twin"),
            ("kill who answers", "reset", "twin", "kill"),
        ))  # fmt: skip
        if self.mode == "register":
            kinds += random.choice((
                (), ("silent", "silent for some"), ("late", "silent for some"), ("shut in",),
            ))  # fmt: skip
        extras = world.extras
        self._unequal = extras.random() < 0.1 and not ordered
        """Whether some users start their nodes with different settings."""
        self._odd: list[Process] = []
        commands = extras.random() < 0.15 and self.mode != "hosts" and not ordered
        self._commands = extras.choice((1, 1, 2)) if commands else 0
        """How many machines run `relight coordinator`."""
        self._commanded: dict[Host, Process] = {}
        savings = world.savings
        if savings.random() < 0.3:
            world.step_s = savings.choice((0.05, 0.3, 1.0)) * (10 if large else 1)
            kinds += ("leave", "leave")  # these are preemptions
            self.settings = settings = settings._replace(checkpoint_first=savings.random() < 0.5)
        if world.hangs.random() < 0.15:
            world.hang_timeout = HangTimeout(3.0, 3.0, adapts=False)
            kinds += ("hang", "idle")
        self._blames = Random(f"{seed}, blames")
        """Determines whether workers fail and blame a peer that is cut off."""
        self._resets = Random(f"{seed}, resets")
        self._reset_who_tries = 0.0
        """Probability that a node's connection breaks while it is probing."""
        if world.tries_network:
            kinds += ("wall", "wall")
            self._reset_who_tries = self._resets.choice((0.0, 0.3))
            world.on_try = self._tries
        if world.lively:
            kinds += ("foreign signals", "foreign signals")
        if world.recoverable:
            most = world.survivors.choice((0, 1, 3, 100, 100))
            self.settings = settings = settings._replace(max_restarts=most)
            kinds = world.survivors.choice((
                (*kinds, "fail", "fail", "fail outside"),
                ("fail", "fail", "fail", "fail outside", "kill"),
                ("fail", "fail and reset", "kill", "hosts"),
                ("fail", "cut", "out", "reset", "stop", "fail outside"),
                ("fail", "stop coordinator", "pause", "leave", "finish"),
                ("hang", "hang", "hang", "idle", "fail", "fail outside", "kill"),
            ))  # fmt: skip
            if "hang" in kinds:
                world.hang_timeout = HangTimeout(3.0, 3.0, adapts=False)
        blips = Random(f"{seed}, blips")
        self._blips = blips if blips.random() < 0.12 and not large else None
        """Set if the only faults are short silences, one at a time."""
        self._blip_s = _BLIP_OF_HOSTS_S if self.mode == "hosts" else _BLIP_S
        self._sleeps = False
        """Whether the coordinator is suspended for long enough to freeze other nodes' workers."""
        if self._blips is not None:
            kinds, self._trouble_s = BLIPS, _BEGUN_BY_S + blips.uniform(10, 100)
            self._unequal, self._commands, world.hang_timeout = False, 0, None
            world.names_s, world.broken = min(world.names_s, 0.3), 0.0
            world.jitter_s, world.loss = min(world.jitter_s, 0.05), 0.0
            self._sleeps = self.mode == "endpoint" and blips.random() < 0.3
            if self._sleeps:
                kinds = ("stop coordinator",)
            for host in world.hosts:
                host.far_s = 0.0
            self.settings = settings = settings._replace(lost_after_s=10.0, join_timeout_s=60.0)
        self._stuck = Random(f"{seed}, stuck")
        if self._blips is None and self._stuck.random() < 0.05:
            kinds += ("stuck",) * len(kinds)
        if self._has_parts and self._blips is None:
            kinds = ("part", "part", "kill", "hosts", "stuck")
            if self.mode == "register" and self._parts.random() < 0.5:
                kinds = ("evict", "evict", "reject", "kill")
            self._trouble_s, self._pace_s = self._parts.uniform(40, 120), 10.0
        twins = Random(f"{seed}, twins")
        if self.mode == "endpoint" and self._blips is None and not ordered and twins.random() < 0.1:
            # Several agents on the endpoint's machine lose coordinators in unusual ways.
            kinds = ("interim", "interim", "late twin", "late twin", "twin", "twin")
            self._commands = twins.choice((0, 0, 1))
            self._trouble_s, self._pace_s = twins.uniform(60, 120), twins.choice((4.0, 10.0))
        self._kinds = kinds
        strict, refused_s = self.mode == "hosts", 0.0
        if "reject" in kinds and world.walls_lie:
            refused_s = REFUSALS_S
        firewall = "reject" in kinds and world.walls_lie
        strict = strict and not firewall
        evicts = "reject" in kinds and self.mode == "register"
        longest = settings._replace(lost_after_s=settings.lost_after_s * (1 + self._unequal))
        self.watch = Watch(
            world, longest, strict=strict, refused_s=refused_s,
            firewall=firewall, evicts=evicts,
        )  # fmt: skip
        self.watch.on_coordinator = self._begins
        if self._blips is not None:
            self.watch.may_freeze = self._sleeps
        self.watch.on_answer = self._answered
        self._kill_who_answers = 0.0
        """Probability that a coordinator is killed after it has answered."""
        self._short_s = 0.0
        """Average lifetime of new coordinators, or 0 for no limit."""
        self._interim_until = 0.0
        """Coordinators that answer a node before this time are killed immediately."""

    def run(self) -> None:
        """Run the job.

        Raises:
            Failure: If an invariant is violated.
        """
        with stage.on(self.world):
            try:
                self._run()
            finally:
                for host in self.world.hosts:
                    for process in host.processes:
                        process.end(silently=True)

    def _run(self) -> None:
        world, random = self.world, self._random
        self._start_commands()
        for host in world.hosts:
            world.after(random.uniform(0, self._spread_s), self._start, host)
        if world.tries_network and world.probes.random() < 0.5:
            self._wall(world.probes.choice(world.hosts), world.probes.uniform(1, 30))
        if self._blips is not None:
            world.after(_BEGUN_BY_S, self._begin_blips)
        else:
            world.after(random.uniform(0, 5), self._trouble)
        world.run_until(self._trouble_s)
        self._calm()
        if self._blips is not None and not self.watch.formations:
            return  # the nodes didn't find each other in time
        quiet = max(world.now, self.service.lost_until)
        world.run_until(quiet + 2 * self.settings.lost_after_s)  # until lost nodes are noticed
        limit = quiet + FORMED_WITHIN_S + 4 * self.settings.lost_after_s
        limit += 2 * self._ttl_s if self.mode == "register" else 0
        while world.now < limit and self._unsettled():
            world.run_until(world.now + 0.5)
        if unsettled := self._unsettled():
            raise Failure(f"{limit - quiet:g} s after all trouble ended: {unsettled}")
        self._finish()

    def _finish(self) -> None:
        """Let all workers succeed whenever they run, and all agents exit."""
        world, agents = self.world, self.watch.agents
        group = self.watch.coordinating()
        over = group is None or group.state not in (GroupState.RUNNING, GroupState.ENDED)
        # An agent that missed the end waits for the join timeout.
        told = [a for a in agents if a.alive and group and a.id in group.members and not over]
        limit = (
            world.now + ENDED_WITHIN_S + (self.settings.rejoin_grace_s if self._listed > 1 else 0)
        )
        while world.now < limit and any(agent.alive for agent in told):
            for agent in agents:
                agent.succeed()
            world.run_until(world.now + 0.25)
        for agent in told:
            # Before it finds the next coordinator, an agent can't learn that the job has ended.
            if agent.alive and agent.id in self.watch.told:
                raise Failure(f"{agent.name} is still there {ENDED_WITHIN_S} s after the end")
        limit = world.now + 2 * self.settings.join_timeout_s + ENDED_WITHIN_S
        while world.now < limit and any(agent.alive for agent in agents):
            for agent in agents:
                agent.succeed()
            world.run_until(world.now + 1)
        for agent in agents:
            if agent.alive:
                raise Failure(f"{agent.name} never ends")
        codes = {agent.process.exit_code for agent in told} - {None, EXIT_PREEMPTED, 143}
        if len(codes) > 1 and codes != {0, EXIT_GROUP}:
            raise Failure(f"agents that were there at the end exit with {codes}")

    def _unsettled(self) -> str:
        # With a join timeout this short, all nodes may have given up.
        gave_up = self.settings.join_timeout_s < ENDED_WITHIN_S
        return "" if self.watch.ends or gave_up else self.watch.settled()

    # Faults.

    def _start(self, host: Host) -> None:
        if self.watch.ends or not host.up or host.paused:
            return
        agents = [agent for agent in self.watch.agents if agent.process.host is host]
        here = sum(self.watch.takes_part(agent) for agent in agents)
        if here >= (2 if host is self.world.hosts[0] else 1):
            return
        random, settings = self._random, self.settings
        process = Process(self.world, host, f"n{self._numbers}")
        self._numbers += 1
        self.world.log(f"{process.name} starts on {host.name}")
        hosts: tuple[tuple[str, int], ...] = ()
        register: Any = None
        if self.mode == "register":
            register = process.register = Client(self.service, process)
        else:
            hosts = tuple((each.name, PORT) for each in self.world.hosts[: self._listed])
        node_rank = host.number if settings.ordered else -1
        address = host.address if random.random() < 0.5 else ""
        if self._is_odd():
            self._odd.append(process)
            lost_after_s = settings.lost_after_s * self.world.extras.choice((0.5, 2.0))
            settings = settings._replace(lost_after_s=lost_after_s)
            self.world.log(f"{process.name} gives up who is silent for {lost_after_s} s")
        leaf = self._leaves[host.number % len(self._leaves)]
        meeting = stage.meeting(settings, hosts, register, self._ttl_s, address, node_rank, leaf)
        meeting = meeting._replace(endpoint_first=self._endpoint_first)
        if self._commands and self.mode == "endpoint":
            meeting = meeting._replace(hosted=False)
        job = stage.job(settings, meeting, random.choice((1, 1, 2, 4)), 5.0, self.world)
        stop_s = random.choice((0.01, 0.05, 0.3, 2.0))
        if self._has_parts and self._parts.random() < 0.5:
            stop_s = 60.0  # its workers have to be killed

        def main() -> int:
            node = Node(job, process, stop_s)
            self.watch.agents.append(node)
            return node.run()

        process.start(main)

    def _is_odd(self) -> bool:
        calm = self.world.now >= self._trouble_s
        return self._unequal and not calm and self.world.extras.random() < 0.2

    def _start_commands(self) -> None:
        """Start `relight coordinator` where it belongs: on the endpoint, or on two machines."""
        for host in self.world.hosts[: self._commands if self.mode == "register" else 1]:
            before = self._commanded.get(host)
            if self._commands and not (before and before.alive) and host.up and not host.paused:
                self._start_command(host)

    def _start_command(self, host: Host) -> None:
        process = self._commanded[host] = Process(self.world, host, f"command{self._numbers}")
        self._numbers += 1
        self.world.log(f"{process.name} starts on {host.name}")
        hosts: tuple[tuple[str, int], ...] = ()
        bind = f"{host.address}:{PORT}"
        register: Any = None
        if self.mode == "register":
            register = process.register = Client(self.service, process)
            bind = host.address
        else:
            hosts = ((host.name, PORT),)
        meeting = stage.meeting(self.settings, hosts, register, self._ttl_s, "", -1, "")
        process.start(lambda: stage.coordinate(bind, meeting, self.settings))

    def _start_again(self, process: Process) -> None:
        """Start a process's successor on the same machine."""
        if process in self._commanded.values():
            self._start_commands()
        else:
            self._start(process.host)

    def _begin_blips(self) -> None:
        """Begin as soon as the group has settled. Its nodes may still be probing each other."""
        if self.world.now >= self._trouble_s:
            return
        if self._unsettled():
            self.world.after(1.0, self._begin_blips)
            return
        self.watch.left_alone_from = self.world.now
        self._trouble()

    def _trouble(self) -> None:
        world, random = self.world, self._random
        if world.now >= self._trouble_s or self.watch.ends:
            return
        if self._blips is None:
            world.after(random.expovariate(1 / self._pace_s), self._trouble)
        else:
            longest_s = 2 * 10.0 if self._sleeps else self._blip_s
            world.after(longest_s + _BETWEEN_BLIPS_S, self._trouble)
        alive = [agent for agent in self.watch.agents if agent.alive]
        kind, agent = random.choice(self._kinds), random.choice(alive) if alive else None
        if agent is None:
            self._start(world.hosts[0])
            return
        soon = random.choice((0.05, 0.5, 1.0, 3.0, 10.0)) * random.uniform(0.5, 1.5)
        if self._blips is not None:
            soon = self._blips.uniform(*((8.0, 15.0) if self._sleeps else (0.5, self._blip_s)))
        process, host = agent.process, agent.process.host
        group = self.watch.coordinating()
        coordinator = group.process if group is not None else process
        match kind:
            case "kill":
                self._kill(process)
                world.after(soon, self._start, host)
            case "crash":
                self._crash(host)
                world.after(soon, self._boot, host)
            case "hosts":
                self._kill(coordinator)
                world.after(soon, self._start_again, coordinator)
            case "twin" if not self.settings.ordered:
                self._start(world.hosts[0])
            case "stop":
                process.sigstop()
                world.after(soon, process.sigcont)
            case "stop coordinator":
                if (
                    self._sleeps and host is not coordinator.host
                ):  # the node falls silent just before
                    self._cut(host, [coordinator.host], "cut")
                    world.after(3 + soon / 2, self._heal, host, [coordinator.host])
                    world.after(3, coordinator.sigstop)
                    soon += 3
                else:
                    coordinator.sigstop()
                world.after(soon, coordinator.sigcont)
            case "pause":
                self._pause(host)
                world.after(soon, self._go_on, host)
            case "busy":
                host.lag_s = 0.05
                world.after(soon, setattr, host, "lag_s", 0.0)
            case "cut" | "out" | "back" | "reject":
                count = len(world.hosts)
                number = random.choice((1, 1, 1, count // 2, count))
                first = 1 if self.mode == "endpoint" else 0
                those = world.hosts[first:]
                for each in random.sample(those, min(number, len(those))):
                    others = self._others(each, coordinator.host)
                    self._cut(each, others, kind)
                    world.after(soon, self._heal, each, others)
                if self._blips is None and self._blames.random() < 0.3:
                    world.after(self._blames.uniform(0, soon), self._blame)
            case "hole":
                world.log(f"{host.name}: only small packets get through")
                world.holes.add(host.number)
                world.after(
                    5 + soon, self._heal, host, []
                )  # long enough for the node to be dropped
            case "wall":
                self._wall(host, 5 + soon)
            case "foreign signals":
                for each in alive:
                    if each.workers is not None:
                        each.workers.signalled_by_others()
            case "stuck console":
                agent.read_console(reads=False)
                world.after(soon, agent.read_console)
            case "reset" | "one end":
                self._reset(agent, both=kind == "reset")
            case "all reset":
                for other in alive:
                    self._reset(other, both=True)
            case "fail":
                agent.fail()
            case "fail and reset":
                agent.fail()
                for each in alive:  # around when the next generation forms
                    soon = world.survivors.random()
                    world.after(soon, partial(self._reset, each, both=True))
            case "fail outside":
                for each in alive:
                    if each.workers is not None:
                        each.workers.fail_outside()
            case "hang":
                self.watch.hang()
            case "idle":
                self.watch.idle(soon + 3)
            case "finish":
                agent.succeed()
            case "stuck":
                agent.stuck_until = world.now + self._stuck.uniform(5, 40)
                self._stuck.choice(alive).fail()
            case "leave":
                agent.sigterm()
                world.after(soon + 1, self._start, host)
            case "crash loop":
                self._crash_loop(host, random.randint(3, 6))
            case "silent" | "silent for some":
                numbers = range(len(world.hosts))
                few = random.sample(numbers, random.randint(1, len(numbers)))
                self.service.silent_for |= set(numbers if kind == "silent" else few)
                world.after(soon, self.service.silent_for.clear)
            case "short coordinators":
                self._short_s = 0.0 if self._short_s else random.choice((0.02, 0.1, 0.5))
            case "kill who answers":
                self._kill_who_answers = 0.0 if self._kill_who_answers else random.choice((0.2, 1))
            case "late twin" | "interim":
                near = [
                    each for each in alive if each.formed and each.process.host is coordinator.host
                ]
                near = [each for each in near if each.process is not coordinator]
                if not near:
                    self._start(coordinator.host)
                elif kind == "interim":
                    self._interim(near[0].process, coordinator)
                else:
                    self._stop_past_its_lease(near[0].process, coordinator)
            case "part":
                self._part(coordinator, {each.process.host for each in alive if each.formed})
            case "evict":
                self._let_evict(coordinator.host)
            case "shut in":
                self._shut_in(coordinator.host)
            case "late":
                self.service.late_s = soon
                world.after(soon, setattr, self.service, "late_s", 0.0)

    def _blame(self) -> None:
        """Fail a worker that reports a peer as gone or late."""
        if self.world.now < self._trouble_s:
            self._blames.choice(self.watch.agents).fail(blames=True)

    def _kill(self, process: Process) -> None:
        if process.alive:
            self.world.log(f"{process.name} kill -9")
            process.end()

    def _kill_in_trouble(self, process: Process) -> None:
        if self.world.now < self._trouble_s:
            self._kill(process)

    def _begins(self, coordinator: Process) -> None:
        """A process has become the coordinator. It may be killed soon afterwards."""
        if self._short_s and self.world.now < self._trouble_s:
            seconds = self._random.expovariate(1 / self._short_s)
            self.world.after(seconds, self._kill_in_trouble, coordinator)
            self.world.after(seconds + 0.01, self._start_again, coordinator)

    def _answered(self) -> None:
        """A coordinator has answered an agent. It may be killed before it sends anything else."""
        coordinating = self.watch.coordinating()
        if self.world.now >= self._trouble_s or coordinating is None:
            return
        coordinator = coordinating.process
        if self.world.now < self._interim_until:
            self._interim_until = 0.0
            self.world.after(0, self._kill, coordinator)
            self.world.after(1.5 * self.settings.lost_after_s, self._start_again, coordinator)
        elif self._random.random() < self._kill_who_answers:
            self.world.after(0, self._kill, coordinator)
            self.world.after(1, self._start_again, coordinator)

    def _tries(self, process: Process) -> None:
        """A node is probing the others. Its connection may break before it has answered."""
        if self.world.now < self._trouble_s and self._resets.random() < self._reset_who_tries:
            agent, soon = self.world.agent_of(process), self._resets.uniform(0, 0.5)
            self.world.after(soon, lambda: self._reset(agent, both=True))

    def _stop_past_its_lease(self, process: Process, coordinator: Process) -> None:
        """Stop an agent on the coordinator's machine until the others have continued without it.
        Then kill the coordinator, so that this agent may take over its port.
        """
        seconds = self.settings.lost_after_s * self._random.uniform(1, 4)
        process.sigstop()
        self.world.after(seconds, self._kill_in_trouble, coordinator)
        self.world.after(seconds + self._random.uniform(0, 0.5), process.sigcont)
        self.world.after(seconds + 5, self._start_again, coordinator)

    def _interim(self, process: Process, coordinator: Process) -> None:
        """Let another coordinator answer an agent on the coordinator's machine, and kill it before
        it has confirmed the agent's workers. Other machines don't reach the next one either.
        """
        others = [host for host in self.world.hosts if host is not coordinator.host]
        for host in others:
            self._cut(host, [coordinator.host], "cut")
            self.world.after(2 * self.settings.lost_after_s, self._heal, host, [coordinator.host])
        process.sigstop()  # so that this agent doesn't replace the coordinator itself
        self._kill(coordinator)
        self._start_again(coordinator)
        self._interim_until = self.world.now + 3
        self.world.after(1, process.sigcont)

    def _part(self, coordinator: Process, inside: Collection[Host]) -> None:
        """Make the other machines elect their own coordinator. Either the generation's machines are
        cut off and the coordinator is killed, or only the coordinator is cut off. The registry may
        be unreachable for the machines that are cut off. Some spares may be new.
        """
        hosts, here, random = self.world.hosts, coordinator.host, self._parts
        outside = [host for host in hosts if host not in inside]
        if len(outside) < self.settings.needed:
            return
        apart_s = 2 * self.settings.lost_after_s
        away = inside if random.random() < 0.5 else {here}
        for host in away:
            others = [other for other in hosts if other not in away]
            self._cut(host, others, "cut")
            self.world.after(apart_s, self._heal, host, others)
        if random.random() < 0.5:
            numbers = {host.number for host in away}
            self.service.silent_for |= numbers
            self.world.after(apart_s, self.service.silent_for.difference_update, numbers)
        if here not in away:
            self._kill(coordinator)
            self.world.after(apart_s, self._start_again, coordinator)
        new = random.choice(([], outside, hosts[: self._listed]))
        for host in outside:
            if host in new and host is not here:
                for process in host.processes:
                    self._kill(process)
                self.world.after(random.uniform(0, 4), self._start, host)

    def _let_evict(self, coordinating: Host) -> None:
        """Start a firewall on the coordinator's machine that refuses all other machines, and also
        cuts it off from the registry.
        """
        apart_s = 2 * self.settings.lost_after_s
        self.service.silent_for.add(coordinating.number)
        self.world.after(apart_s, self.service.silent_for.discard, coordinating.number)
        for host in self.world.hosts:
            if host is not coordinating:
                self._cut(host, [coordinating], "reject")
                self.world.after(apart_s, self._heal, host, [coordinating])

    def _shut_in(self, coordinating: Host) -> None:
        """Cut the coordinator off from the registry, and all machines off from the coordinator.

        Machines with nodes in the coordinator's group aren't cut off. Nodes are restarted on the
        other machines.
        """
        service, world = self.service, self.world
        busy = {agent.process.host for agent in self.watch.agents if agent.alive and agent.formed}
        free = [host for host in world.hosts if host is not coordinating and host not in busy]
        world.log(f"{coordinating.name} is shut in, {len(free)} machines do not reach it")
        service.silent_for.add(coordinating.number)
        world.after(12, service.silent_for.discard, coordinating.number)
        for host in free:
            world.rejected.add((host.number, coordinating.number))
            for process in host.processes:
                self._kill(process)
            world.after(self._random.uniform(0, 0.5), self._start, host)
            world.after(12, self._heal, host, [coordinating])

    def _crash(self, host: Host) -> None:
        self.world.log(f"{host.name} crashes")
        host.up = False
        for process in host.processes:
            process.end(silently=True)

    def _boot(self, host: Host) -> None:
        host.up = True
        self._start(host)
        self._start_commands()

    def _crash_loop(self, host: Host, times: int) -> None:
        if self.world.now >= self._trouble_s or not times:
            return
        for process in host.processes:
            self._kill(process)
        self._start(host)
        self.world.after(self._random.uniform(0.2, 1.5), self._crash_loop, host, times - 1)

    def _pause(self, host: Host) -> None:
        if not host.paused:
            self.world.log(f"{host.name} stands still")
            host.paused = True
            self._look(host)

    def _go_on(self, host: Host) -> None:
        if not host.paused:
            return
        self.world.log(f"{host.name} goes on")
        host.paused = False
        for agent in self.watch.agents:
            if agent.process.host is host and agent.workers is not None:
                agent.workers.look()
        self._look(host)
        for process in host.processes:
            if process.runs:
                process.resumed()

    def _look(self, host: Host) -> None:
        for agent in self.watch.agents:
            if agent.process.host is host and agent.workers is not None:
                self.watch.runs(agent.workers)

    def _others(self, host: Host, coordinator: Host) -> list[Host]:
        """Return the machines that a machine is cut off from: the coordinator's, some, or all."""
        others = [each for each in self.world.hosts if each is not host]
        few = self._random.sample(others, self._random.randint(0, len(others)))
        if coordinator is not host and coordinator not in few:
            few.append(coordinator)
        return self._random.choice((others, few))

    def _cut(self, host: Host, others: list[Host], kind: str) -> None:
        self.world.log(f"{host.name} is cut: {kind}, from {len(others)}")
        for other in others:
            out, back = (host.number, other.number), (other.number, host.number)
            if kind == "reject":
                self.world.rejected.add(out)
            if kind in ("cut", "out"):
                self.world.cut.add(out)
            if kind in ("cut", "back"):
                self.world.cut.add(back)

    def _heal(self, host: Host, others: list[Host]) -> None:
        self.world.log(f"{host.name} is reachable again")
        self.world.holes.discard(host.number)
        for other in others:
            ways = {(host.number, other.number), (other.number, host.number)}
            self.world.cut -= ways
            self.world.rejected -= ways
        self.world.healed()

    def _wall(self, host: Host, seconds: float) -> None:
        self.world.log(f"{host.name}: a firewall opens only the coordinator's port")
        self.world.walled.add(host.number)
        self.world.after(seconds, self.world.walled.discard, host.number)

    def _reset(self, agent: Node, *, both: bool) -> None:
        ends = [end for end in agent.process.ends if end.is_open and end.sock is None]
        if not ends:
            return
        end = self._random.choice(ends)
        self.world.log(f"{agent.name} connection reset, both ends: {both}")
        at_agent = self._random.random() < 0.5
        other = end.other
        if other is not None and (both or not at_agent):
            other.process.call(other.reset, "reset")
        if both or at_agent:
            agent.process.call(end.reset, "reset")

    def _calm(self) -> None:
        """End all faults, and make sure that there are enough nodes."""
        world = self.world
        self._trouble_s = 0.0
        world.log("all trouble ends")
        self.service.silent_for.clear()
        self.service.late_s = 0.0
        world.cut.clear()
        world.rejected.clear()
        world.holes.clear()
        world.walled.clear()
        world.broken = 0.0
        for agent in self.watch.agents:
            agent.read_console()
            agent.stuck_until = 0.0
        world.names_s = 0.001
        world.loss = 0.0
        world.healed()
        for host in world.hosts:
            host.up, host.lag_s = True, 0.0
            self._go_on(host)
            for process in host.processes:
                process.sigcont()
        if self._blips is not None:
            return  # all nodes are there
        for process in self._odd:  # their users notice the mistake
            self._kill(process)
        lost_after_s = self.settings.lost_after_s
        for seconds in (0, 3, 6, lost_after_s + 1, 2 * lost_after_s + 6):  # some may be leaving
            world.after(seconds, self._start_commands)
            for host in world.hosts:
                world.after(seconds, self._man, host)

    def _man(self, host: Host) -> None:
        here = [agent for agent in self.watch.agents if agent.process.host is host]
        if not any(self.watch.takes_part(agent) for agent in here):
            self._start(host)
