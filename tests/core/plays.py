"""Scenarios for the group, written as tables of received and sent messages.

Each line of a table is `TIME NODES VERB`. The messages sent in response follow on the lines below
it, after arrows. The verbs are:

    joins     a node arrives without workers
    offers    the same, but it is not ready yet
    ready     its workers have exited as requested
    failed    a worker has failed; `ends` once all workers have exited, with a failure record
    done      all its workers have succeeded
    lost      the node is proven to be gone; `leaves` if it announces that it is leaving
    silent1   it has been silent for 1 s; `heard`: it sends again, over the same connection
    returns   it reconnects with its generation's workers; `returns-done` if they have succeeded
    idle      it reconnects without workers
    left      its workers have left the group and keep their processes; `left-failed`: one of them
              has failed; `left-ahead`: they had completed steps; `left-failed-ahead`: both;
              `left-hung-data`: one hung in `data` and was killed while the others waited in
              `step`; `left-hung`: all of them waited in `step`
    quiet30   its workers have been idle for 30 s, and the limit is 10 s; `quiet0`: they are active
    -         nothing happens except that time passes

A node named `task7` was given the number 7 by its scheduler. `a@s1.l2` is host a below the switches
s1 and l2.
"""

from relight.core.failure import Failure, WorkerState
from relight.core.group.group_types import (
    Drop,
    Effect,
    Event,
    GroupSettings,
    NodeHeard,
    NodeLost,
    NodeSilent,
    Received,
)
from relight.core.group.membership import Membership
from relight.core.group.messages import (
    Announce,
    CheckpointCalls,
    CheckpointLimit,
    Confirm,
    FromCoordinator,
    GenerationFormed,
    JobEnded,
    Join,
    NodeIdle,
    NodeLeaving,
    NodePreempted,
    NodeReady,
    SlowRanks,
    StopWorkers,
    WaitReason,
    WaitSamples,
    WorkerFailed,
    WorkersSucceeded,
)
from relight.core.ranks import NO_GENERATION, GenerationId
from relight.events.event_types import Tick


def record(rank: int = 0, *, exitcode: int = 7, asked: int = 0, host: str = "a") -> Failure:
    """Return a node's record of a failed worker."""
    return Failure(
        rank=rank, local_rank=0, host=host, pid=100 + rank, exitcode=exitcode, at=-0.5,
        stop_signal=asked, report=None, last_lines=(), evidence="", log="", when="12:00:00",
    )  # fmt: skip


def formed(number: int, coordinator: int = 1) -> GenerationId:
    """Return the id of a generation formed by a table's coordinator."""
    return GenerationId(number, f"C{coordinator}") if number >= 0 else NO_GENERATION


class Table:
    """A group, the current time, and the messages sent to its nodes."""

    def __init__(self, settings: GroupSettings, coordinator: int = 1) -> None:
        self.settings = settings
        self.coordinator = coordinator
        self.group = Membership(settings, formed(0, coordinator).origin)
        self.now = 0.0
        self.heard: dict[str, list[FromCoordinator]] = {}
        self.last: dict[str, GenerationFormed] = {}  # the last one received by each node
        self.fresh: list[Effect] = []
        self.stop_s: float | None = None
        self.succeeded: tuple[int, ...] = ()  # the succeeded nodes that returning nodes report

    def play(self, script: str) -> "Table":
        """Play a table and compare the messages sent with the ones it lists."""
        lines = [line.strip() for line in script.strip().splitlines()]
        for index, line in enumerate(lines):
            if line.startswith("->"):
                continue
            expected = []
            for below in lines[index + 1 :]:
                if not below.startswith("->"):
                    break
                expected.append(below[2:].strip())
            time, *nodes, verb = line.split()
            self.wait(float(time))
            for node in nodes:
                for event in self.events(node, verb):
                    self.step(event)
            assert self.sent() == expected, line
        return self

    def wait(self, until: float) -> None:
        """Let time pass, and send a Tick at each deadline."""
        for _ in range(1000):
            due = self.group.deadline()
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            self.step(Tick())
        else:
            raise AssertionError("deadlines without end")
        self.now = until

    def step(self, event: Event) -> None:
        effects = self.group.step(event, self.now)
        self.group.check()
        self.fresh += effects
        for effect in effects:
            if isinstance(effect, Drop):
                continue
            self.heard.setdefault(effect.node, []).append(effect.message)
            if isinstance(effect.message, GenerationFormed):
                self.last[effect.node] = effect.message

    def events(self, node: str, verb: str) -> list[Event]:
        formed = self.last.get(node)
        generation = formed.generation.id if formed else NO_GENERATION
        messages = {
            "joins": [self.join(node), NodeReady(generation, 29500, (), ())],
            "idle": [self.join(node), NodeReady(generation, 29500, (), ())],
            "idle-failed": [
                self.join(node),
                NodeReady(generation, 29500, (record(host=node),), ()),
            ],
            "offers": [self.join(node)],
            "ready": [NodeReady(generation, 29500, (), ())],
            "failed": [WorkerFailed(generation, f"a worker failed on {node}")],
            "ends": [NodeReady(generation, 29500, (record(host=node),), ())],
            "done": [WorkersSucceeded(generation)],
            "leaves": [NodeLeaving("SIGTERM")],
            "leaves-and-waits": [NodeLeaving("SIGTERM", waits=True)],
            "preempted": [NodePreempted(generation, "got SIGTERM", 30.0)],
            "-": [],
        }
        if verb.startswith("left-hung"):
            place, rank = verb.removeprefix("left-hung").lstrip("-"), formed.place.first_rank
            ended = record(rank, exitcode=-9, asked=9, host=node)
            ended = ended._replace(doing=WorkerState(f" in {place}", (), False))
            waits = record(rank + 1, exitcode=0, host=node)
            waits = waits._replace(doing=WorkerState(" in step", (), True))
            ready = NodeReady(
                generation, 29500, (ended,) if place else (), (), survivors=1, waiting=(waits,)
            )
            return [Received(node, ready)]
        if verb.startswith("left"):
            failures = (record(host=node),) if "failed" in verb else ()
            ahead = "ahead" in verb
            ready = NodeReady(generation, 29500, failures, (), progressed=ahead, survivors=1)
            return [Received(node, ready)]
        if verb.startswith("called"):
            limit = [m for m in self.heard[node] if isinstance(m, CheckpointLimit)][-1].limit
            calls = int(verb.removeprefix("called"))
            return [Received(node, CheckpointCalls(generation, limit, calls))]
        if verb.startswith("quiet"):
            quiet_s = float(verb.removeprefix("quiet"))
            return [Received(node, NodeIdle(generation, quiet_s, 10.0 if quiet_s else 0.0))]
        if verb.startswith("waited"):  # in how many of 100 samples each of its two workers waited
            waits = tuple(map(int, verb.removeprefix("waited").split(",")))
            return [Received(node, WaitSamples(generation, (100, 100), waits, (-1, -1)))]
        if verb == "lost":
            return [NodeLost(node, "no heartbeat")]
        if verb.startswith("silent"):
            since = self.now - float(verb.removeprefix("silent") or 0)
            return [NodeSilent(node, since, "")]
        if verb == "heard":
            return [NodeHeard(node)]
        if verb.startswith("ended"):
            announce = self.announce(node)._replace(ended=True)
            failures = (record(host=node),) if "failed" in verb else ()
            ready = NodeReady(announce.generation, 29500, failures, ())
            return [Received(node, self.join(node, announce)), Received(node, ready)]
        if verb.startswith("returns"):
            announce = self.announce(node, done="done" in verb, lapsed="lapsed" in verb)
            announce = announce._replace(saves="saves" in verb)
            return [Received(node, self.join(node, announce))]
        return [Received(node, message) for message in messages[verb]]

    def announce(self, node: str, *, done: bool = False, lapsed: bool = False) -> Announce:
        generation, place, *_ = self.last[node]
        rank, size = place.group_rank, place.group_world_size
        restart = generation.restart
        return Announce(generation.id, restart, rank, size, done, self.succeeded, lapsed)

    def join(self, node: str, announce: Announce | None = None, **changes: object) -> Join:
        name, _, topology = node.partition("/")[0].partition("@")
        rank = int(name[4:]) if self.settings.ordered or name.startswith("task") else -1
        offer = Join(
            node, name, f"10.0.0.{len(name)}", 2, "default", rank, self.settings.min_nodes,
            self.settings.max_nodes, self.settings.max_restarts, {}, announce, self.stop_s,
            topology=topology,
        )  # fmt: skip
        return offer._replace(**changes)

    def sent(self) -> list[str]:
        """Return the messages sent since the last call.

        Leaves out those that are only for people, and those that only extend the workers' lease
        while a coordinator waits for other nodes.
        """
        found: dict[str, list[str]] = {}
        places: dict[str, dict[int, str]] = {}
        for effect in self.fresh:
            if isinstance(effect, Drop):
                found.setdefault("drop:", []).append(effect.node)
                continue
            node, message = effect
            match message:
                case GenerationFormed(generation, place):
                    restart = f" restart {generation.restart}" if generation.restart else ""
                    key = f"form {generation.number}{restart}:"
                    places.setdefault(key, {})[place.group_rank] = node
                    found[key] = [n for _, n in sorted(places[key].items())]
                    if message.survivors_stay:
                        found.setdefault(f"stay {generation.number}:", []).append(node)
                case CheckpointLimit(which, limit):
                    found.setdefault(f"limit {limit} {which.number}:", []).append(node)
                case StopWorkers(which, _, checkpoint_first, at, _, capture_stacks):
                    how = (
                        f"at {at} "
                        if at
                        else "gently " * checkpoint_first + "look and " * capture_stacks
                    )
                    found.setdefault(f"{how}stop {which.number}:", []).append(node)
                case SlowRanks(which, slow_nodes):
                    named = ", ".join(f"{n.host} {n.ranks}" for n in slow_nodes) or "none"
                    found.setdefault(f"slow {which.number} {named}:", []).append(node)
                case Confirm(recovers=True):
                    pass
                case Confirm(which, succeeded):
                    done = f", {' '.join(map(str, succeeded))} done" if succeeded else ""
                    found.setdefault(f"confirm {which.number}{done}:", []).append(node)
                case JobEnded(code, _, _, _):
                    found.setdefault(f"end {code}:", []).append(node)
        self.fresh = []
        return [
            f"{key} {' '.join(nodes if key.startswith('form') else sorted(nodes))}"
            for key, nodes in found.items()
        ]

    def waits(self, node: str) -> WaitReason:
        """Return the last wait reason sent to a node."""
        return [m for m in self.heard[node] if isinstance(m, WaitReason)][-1]

    def reason(self, node: str) -> str:
        """Return why a node was last told to stop."""
        return [m for m in self.heard[node] if isinstance(m, StopWorkers)][-1].cause

    def end(self, node: str) -> JobEnded:
        """Return the JobEnded message that a node received."""
        (end,) = (m for m in self.heard[node] if isinstance(m, JobEnded))
        return end

    def follow(self) -> "Table":
        """Return a table whose new coordinator knows nothing about this one's nodes."""
        other = Table(self.settings, self.coordinator + 1)
        other.last, other.now = dict(self.last), self.now
        return other


def table(least: int, most: int, max_restarts: int = 3, **others: object) -> Table:
    """Return a table with short leases."""
    short: dict[str, object] = {"lost_after_s": 2.0, **others}
    return Table(GroupSettings(least, most, max_restarts, **short))
