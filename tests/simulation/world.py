"""Simulated machines, processes, network and time. The same seed gives the same run.

Nothing here is specific to relight. Clocks run at different speeds, processes are killed or
stopped, and packets are late, lost, refused or cut off in one direction.
"""

import heapq
import random
import zlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet

from relight.base.values import HangTimeout

if TYPE_CHECKING:
    from .node import Node
    from .sockets import End, Socket
    from .watch import Watch

Call = tuple[Callable[..., None], tuple[Any, ...]]


class Failure(Exception):
    """An invariant was violated."""


class Killed(BaseException):
    """Unwinds a killed process's program."""


class Host:
    """A machine: its clock, its ports, and whether it exists and is running."""

    def __init__(self, world: "World", number: int) -> None:
        self.number = number
        self.name = f"node{number}"
        self.address = f"10.0.{number >> 8}.{number & 255}"
        self.up = True
        self.paused = False
        self.far_s = 0.0
        """Additional delay for packets to and from it."""
        self.lag_s = 0.0
        """Maximum delay until a busy machine runs a process."""
        self.rate = 1.0 + world.clocks * world.random.uniform(-1, 1)
        self.offset = world.random.uniform(100, 10_000)
        self.ports: dict[int, Socket] = {}
        self.processes: list[Process] = []
        world.by_address[self.address] = self
        self._world = world
        self._least = 0.0

    def now(self) -> float:
        """Return the time on this machine's clock."""
        self._least = max(self._least, self.offset + self.rate * self._world.now)
        return self._least

    def at_least(self, now: float) -> None:
        """Advance the clock to a time that something has waited for, despite rounding."""
        self._least = max(self._least, now)

    def in_world(self, when: float) -> float:
        """Return the world's time at which this clock shows `when`."""
        return (when - self.offset) / self.rate


class Timer:
    """A call scheduled on a process's clock."""

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Cancel the call."""
        self.callback = None


class Process:
    """A process with an event loop.

    Its main program is a coroutine, because it waits in the middle of calls. Callbacks run in the
    world's own context.
    """

    def __init__(self, world: "World", host: Host, name: str) -> None:
        self.world = world
        self.host = host
        self.name = name
        self.alive = True
        self.stopped = False
        self.exit_code: int | None = None
        self.error: BaseException | None = None
        self.agent: Node | None = None
        self.register: object = None
        self.ends: dict[End, None] = {}
        self.at_death: list[Callable[[], None]] = []
        self._inbox: deque[Call] = deque()
        self._late: list[Timer] = []
        self.lagging: list[Timer] = []
        """A busy machine's timers, in the order of their calls."""
        self._done: Callable[[], bool] | None = None
        self._program: greenlet | None = None
        host.processes.append(self)

    # Its main program.

    def start(self, main: Callable[[], int]) -> None:
        """Run a program until it first waits."""

        def run() -> None:
            try:
                self.exit_code = main()
            except Killed:
                pass
            except BaseException as error:
                self.error = error
            self._done = None
            self._program = None

        self._program = greenlet(run)
        self._resume()

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Let others run until `done()`. Called from within the program."""
        while True:
            if not self.alive:
                raise Killed
            if done():
                return
            self._done = done
            self._switch_back()

    def _resume(self) -> None:
        self._done = None
        self._switch_in()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if self._program is None and self.alive:
            self.world.log(f"{self.name} exits with {self.exit_code}")
            self.end()

    def _switch_in(self) -> None:
        """Run the program until it waits or exits."""
        assert self._program is not None
        before, self.world.current = self.world.current, self
        self._program.parent = getcurrent()
        self._program.switch()
        self.world.current = before

    def _switch_back(self) -> None:
        assert self._program is not None
        assert self._program.parent is not None
        self._program.parent.switch()

    # Events.

    @property
    def runs(self) -> bool:
        """Return whether it exists and is running."""
        return self.alive and not self.stopped and not self.host.paused

    def call(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call back as soon as the process is running."""
        if not self.alive:
            return
        if not self.runs:
            self._inbox.append((callback, arguments))
            return
        before, self.world.current = self.world.current, self
        callback(*arguments)
        self.world.current = before
        if self._done is not None and self._done():
            self._resume()

    def fire(self, timer: Timer) -> None:
        """Run a timer that is due.

        On a busy machine, earlier timers were also late, and a loop calls them first.
        """
        if timer.callback is None or not self.alive:
            return
        if self.lagging:
            for before in self._due_before(timer):
                self._fire(before)
        self._fire(timer)

    def _due_before(self, timer: Timer) -> list[Timer]:
        waiting = [each for each in self.lagging if each.callback is not None]
        place = waiting.index(timer) if timer in waiting else len(waiting)
        before = [each for each in waiting[:place] if each.when <= timer.when]
        before += [each for each in waiting[place:] if each.when < timer.when]
        self.lagging = [each for each in waiting if each not in before and each is not timer]
        return sorted(before, key=lambda each: each.when)

    def _fire(self, timer: Timer) -> None:
        if timer.callback is None or not self.alive:
            return
        if not self.runs:
            self._late.append(timer)
            return
        self.host.at_least(timer.when)
        callback, timer.callback = timer.callback, None
        self.call(callback)

    def resumed(self) -> None:
        """Continue, first with pending input and then with timers that are due."""
        while self._inbox and self.runs:
            callback, arguments = self._inbox.popleft()
            self.call(callback, *arguments)
        late, self._late = sorted(self._late, key=lambda timer: timer.when), []
        for timer in late:
            self.fire(timer)

    def sigstop(self) -> None:
        """Stop the process."""
        if self.alive and not self.stopped:
            self.world.log(f"{self.name} SIGSTOP")
            self.stopped = True

    def sigcont(self) -> None:
        """Resume the process."""
        if self.alive and self.stopped:
            self.world.log(f"{self.name} SIGCONT")
            self.stopped = False
            if self.runs:
                self.resumed()

    def end(self, *, silently: bool = False) -> None:
        """End the process. The machine closes its connections, unless it is also gone."""
        if not self.alive:
            return
        self.alive = False
        for act in self.at_death:
            act()
        for end in list(self.ends):
            end.die(silently=silently)
        for port, sock in list(self.host.ports.items()):
            if sock.process is self:
                sock.abandon(silently=silently)
                self.host.ports.pop(port, None)
        self._inbox.clear()
        self._late.clear()
        if self._program is not None:
            self._switch_in()


class World:
    """The whole simulation, and its time."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.extras = random.Random(f"{seed}, extras")
        self.endings = random.Random(f"{seed}, endings")
        """How workers fail, and how far they had come."""
        """Decides what came later into the plays, so that the others stay as they were."""
        self.lively = self.extras.random() < 0.2
        """Whether workers start processes and other programs send signals to those."""
        self.hangs = random.Random(f"{seed}, hangs")
        self.hang_timeout: HangTimeout | None = None
        self.probes = random.Random(f"{seed}, probes")
        self.tries_network = self.probes.random() < 0.15
        """Whether nodes probe each other before their workers start."""
        self.on_try: Callable[[Process], object] = lambda _: None
        """Called when a node starts probing."""
        self.broken = self.probes.choice((0.0, 0.0, 0.05))
        """Probability that a machine's health check fails, if there are any checks."""
        self.savings = random.Random(f"{seed}, savings")
        self.step_s = 0.0
        """Average duration of a step, after which workers ask whether to save a checkpoint. With 0
        they never ask.
        """
        self.survivors = random.Random(f"{seed}, survivors")
        self.recoverable = seed % 5 == 3
        """Whether workers can leave a broken group and keep their processes."""
        lateness = random.Random(f"{seed}, lateness")
        self.freezer_late_s = lateness.choice((0.0, 0.0, 0.4, 0.8))
        """How late a node's workers are frozen. Including clock errors, it is at most a second."""
        self.walls_lie = lateness.random() < 0.25
        """Whether the machine's own firewall refuses and reports a closed port. Otherwise it is a
        firewall in between.
        """
        self.walls_mute = random.Random(f"{seed}, mute").random() < 0.5
        """Whether a firewall that refuses new connections silences established ones. Otherwise it
        resets them.
        """
        self.guard_s = lateness.choice((0.0, 0.05, 0.3))
        """How long workers outlive a killed agent."""
        self.has_datagrams = random.Random(f"{seed}, datagrams").random() < 0.9
        """Whether datagrams arrive. Some firewalls drop them all."""
        self.crowd = False
        """Whether heartbeats are as slow as in the largest groups."""
        self.now = 0.0
        self.clocks = self.random.choice((0.0, 0.0, 0.001, 0.01))
        """Maximum rate error of clocks."""
        self.hosts: list[Host] = []
        self.by_address: dict[str, Host] = {}
        self.current: Process | None = None
        self.jitter_s = self.random.choice((0.001, 0.01, 0.05, 0.2))
        self.loss = self.random.choice((0.0, 0.0, 0.0, 0.05))
        self.names_s = self.random.choice((0.001, 0.001, 0.3, 4.0))
        """Maximum duration of a name lookup."""
        self.cut: set[tuple[int, int]] = set()
        self.rejected: set[tuple[int, int]] = set()
        self.walled: set[int] = set()
        """Machines behind a firewall that only opens the coordinator's port."""
        self.holes: set[int] = set()
        """Machines that can only send and receive small packets (a wrong MTU)."""
        self.lines: deque[str] = deque(maxlen=400)
        self.digest = 0
        self.steps = 0
        self.watch: Watch
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.held: dict[End, None] = {}

    def at(self, when: float, callback: Callable[..., None], *arguments: object) -> None:
        """Schedule a callback at a time."""
        self._count += 1
        heapq.heappush(self._queue, (max(when, self.now), self._count, callback, arguments))

    def after(self, seconds: float, callback: Callable[..., None], *arguments: object) -> None:
        """Schedule a callback in `seconds`."""
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

    def me(self) -> Process:
        """Return the process that is running now."""
        assert self.current is not None
        return self.current

    def agent_of(self, process: Process) -> "Node":
        """Return a process's agent."""
        assert process.agent is not None
        return process.agent

    def log(self, line: str) -> None:
        """Record an event."""
        line = f"{self.now:9.4f} {line}"
        self.lines.append(line)
        self.digest = zlib.crc32(line.encode(), self.digest)

    # The network.

    def delay(self, source: Host | None = None, target: Host | None = None) -> float:
        """Return how long a packet takes between two machines, which are close by default."""
        delay = 0.0002 + self.random.random() * self.jitter_s
        if source and target:
            delay += source.far_s + target.far_s
        if self.loss and self.random.random() < self.loss:
            delay += self.random.uniform(0.2, 0.6)  # retransmitted
        return delay

    def host_of(self, address: str, caller: Host) -> Host | None:
        """Return the machine with this address, as seen from another machine."""
        if address.startswith("127."):
            return caller
        return self.by_address.get(address)

    def passes(self, source: Host, target: Host) -> bool:
        """Return whether packets arrive."""
        way = source.number, target.number
        return source is target or (source.up and target.up and way not in self.cut)

    def refuses(self, source: Host, target: Host) -> bool:
        """Return whether a firewall refuses packets in the target's name."""
        return source is not target and (source.number, target.number) in self.rejected

    def healed(self) -> None:
        """Resume traffic after a cut. Lost data is retransmitted when TCP would do so."""
        for end in list(self.held):
            self.after(end.repeats_in(), end.send_held)
