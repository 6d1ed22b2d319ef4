"""A simulated agent: what `agent` and `link` do, without workers and sockets."""

from collections import deque
from collections.abc import Callable

from relight.core.exits import Failure
from relight.core.group import Told
from relight.core.messages import (
    Announce,
    Confirm,
    Done,
    End,
    Failed,
    Form,
    FromAgent,
    Join,
    Leave,
    Ready,
    Stop,
    Wait,
)
from relight.core.ranks import NO_GENERATION
from relight.errors import EXIT_GROUP

from .world import (
    CLOSE_LIMIT_S,
    CONNECT_LIMIT_S,
    LEASE_S,
    LOST_AFTER_S,
    Connection,
    Coordinator,
    Host,
    World,
)

RETRY_S = 0.2
SYN_AGAIN_S = (1.0, 3.0)


class Agent:
    """One process, from its start to its exit or its death."""

    def __init__(self, world: World, host: Host, number: int) -> None:
        self.world = world
        self.host = host
        self.node = f"n{number}"
        self.slots = world.random.choice((1, 2, 8))
        self.stop_s = world.random.choice((0.01, 0.05, 0.3, 2.0))
        self.alive = True
        self.stopped_at: float | None = None  # by SIGSTOP
        self.exit_code: int | None = None
        self.leaving = False
        self.connection: Connection | None = None
        self.coordinator: Coordinator | None = None
        self.live: Form | None = None
        self.key: object = None  # of the generation whose workers are here
        self.running = False  # they run, and nothing has asked them to stop
        self.done = False
        self.failed = ""
        self.stop: Stop | None = None
        self.ready: Ready | None = None
        self.end: End | None = None
        self.waits: Wait | None = None
        self.last = NO_GENERATION
        self.frozen = False  # the workers, by the end of their lease
        self._lease: float | None = None
        self._since = world.now
        self._attempt = 0
        self._inbox: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._generations = 0  # that began here
        self._over_limit = False
        world.log(f"{self.node} starts on {host.name}")
        self.get_ready(())
        self.seek()

    # The process.

    @property
    def stopped(self) -> bool:
        """Whether the process stands still."""
        return self.stopped_at is not None

    @property
    def reached(self) -> bool:
        """Whether the coordinator and this agent hear each other."""
        return bool(self.coordinator or (self.connection and self.connection.echoed))

    def post(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call back when the process can."""
        if self.stopped_at is not None:
            self._inbox.append((callback, arguments))
        elif self.alive or self.coordinator is not None:
            callback(*arguments)

    def sigstop(self) -> None:
        """Stand still; workers do not."""
        if self.stopped_at is None and self.alive:
            self.world.log(f"{self.node} SIGSTOP")
            self.stopped_at = self.world.now
            self._flows()

    def sigcont(self) -> None:
        """Go on: first what has come in, then what was due."""
        if self.stopped_at is None:
            return
        stalled_s, self.stopped_at = self.world.now - self.stopped_at, None
        if not (self.alive or self.coordinator):
            return
        self.world.log(f"{self.node} SIGCONT")
        if self.coordinator is not None and stalled_s > 0.5:
            self.coordinator.patient_until = self.world.now + 2 * LOST_AFTER_S
        inbox, self._inbox = self._inbox, deque()
        for callback, arguments in inbox:
            self.post(callback, *arguments)
        self._flows()
        if self.coordinator is not None:
            self.coordinator.resumed(stalled_s)

    def kill(self, *, machine: bool = False) -> None:
        """Die at once, workers and all. A machine that crashes says nothing to anybody."""
        if not self.alive and self.coordinator is None:
            return
        self.world.log(f"{self.node} {'machine crash' if machine else 'kill -9'}")
        self._gone()
        self._close(silently=machine)

    def sigterm(self) -> None:
        """Leave in good order: stop the workers, then go."""
        if not self.alive or self.leaving:
            return
        self.leaving = True
        self.world.log(f"{self.node} SIGTERM")
        self.post(self._leave)

    def _leave(self) -> None:
        if not self.alive:
            return
        if self.live is not None and not self.done:
            self._no_longer_runs()
            self.world.after(self.stop_s, self.post, self._left)
        else:
            self._left()

    def _left(self) -> None:
        if self.alive:
            self.send(Leave("its agent got SIGTERM"))
            self._exit(143)

    def _exit(self, code: int) -> None:
        self.exit_code = code
        self.world.log(f"{self.node} exits with {code}")
        self._gone()
        coordinator = self.coordinator
        if coordinator is not None and not self.leaving and coordinator.connections:
            if coordinator.membership.end is not None:
                self.world.after(CLOSE_LIMIT_S, self._close_late, coordinator)
            return  # others still need it
        self._close()

    def _close_late(self, coordinator: Coordinator) -> None:
        if self.coordinator is coordinator:
            self._close()

    def others_left(self) -> None:
        """The coordinator here has lost a connection."""
        if not self.alive and self.coordinator is not None and not self.coordinator.connections:
            self._close()

    def _gone(self) -> None:
        self.alive = False
        self._no_longer_runs()
        self.live = None
        self._attempt += 1

    def _close(self, *, silently: bool = False) -> None:
        if self.coordinator is not None:
            self.world.log(f"C{self.coordinator.number} ends")
            coordinator, self.coordinator = self.coordinator, None
            coordinator.close(silently=silently)
            self.world.coordinator = None
        self._disconnect(silently=silently)
        self.stopped_at = None

    # The link.

    def _flows(self) -> None:
        if self.connection is not None:
            self.connection.flow()
        if self.coordinator is not None:
            for connection in list(self.coordinator.connections):
                connection.flow()

    def _disconnect(self, *, silently: bool = False) -> None:
        connection = self.connection
        if connection is not None:
            self.connection = None
            connection.agent_open = False
            if not silently:
                connection.send(True, "fin")
            connection.flow()

    def seek(self, attempt: int | None = None) -> None:
        """Host the coordinator or connect to it."""
        if not self.alive or attempt not in (None, self._attempt):
            return
        if self.stopped:
            self.post(self.seek, attempt)
            return
        world = self.world
        self._attempt += 1
        if self.host is world.hosts[0] and world.coordinator is None:
            self._host()
            return
        world.after(2 * world.delay(), self._dialled, self._attempt, 0)
        world.after(CONNECT_LIMIT_S, self.post, self._too_late, self._attempt)

    def _dialled(self, attempt: int, tries: int) -> None:
        world = self.world
        if attempt != self._attempt or not self.alive:
            return
        if not (self.host.out and self.host.back and world.hosts[0].up):
            if tries < len(SYN_AGAIN_S):
                world.after(SYN_AGAIN_S[tries], self._dialled, attempt, tries + 1)
        elif world.coordinator is None:
            self.post(self._refused, attempt)
        elif world.coordinator.process.stopped:
            world.coordinator.pending.append((self, attempt))
        else:
            self.answered(world.coordinator, attempt)

    def answered(self, coordinator: Coordinator, attempt: int) -> None:
        """The coordinator takes the connection."""
        self.post(self._opened, coordinator, attempt)

    def _refused(self, attempt: int) -> None:
        if attempt == self._attempt:
            self.lease(self.world.now + LEASE_S)
            self._retry()

    def _too_late(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._retry()

    def _retry(self) -> None:
        world = self.world
        self._attempt += 1
        if world.now - self._since > world.settings.join_timeout_s:
            self.told(End(EXIT_GROUP, "no coordinator", (), None))
            return
        world.after(RETRY_S, self.seek, self._attempt)

    def _host(self) -> None:
        world = self.world
        world.coordinators += 1
        self.coordinator = world.coordinator = Coordinator(self, world.coordinators, world.settings)
        world.log(f"{self.node} hosts C{self.coordinator.number}")
        self.lease(None)
        self.waits = None
        self.send(self._join())
        for message in self.standing():
            self.send(message)

    def _opened(self, coordinator: Coordinator, attempt: int) -> None:
        if attempt != self._attempt or not self.alive or not coordinator.listens:
            return
        self._attempt += 1
        connection = self.connection = Connection(self, coordinator)
        coordinator.opened(connection)
        connection.confirmed = self.live is None
        connection.flow()
        self.waits = None
        self.send(self._join())
        for message in self.standing():
            self.send(message)

    def disconnected(self, connection: Connection, reason: str) -> None:
        """The connection has ended."""
        if connection is not self.connection or not self.alive:
            return
        self.world.log(f"{self.node} lost the coordinator: {reason}")
        self._disconnect()
        self._since = self.world.now
        self.seek()

    def give_up(self, connection: Connection, epoch: int) -> None:
        """No echo for so long that there must be something wrong."""
        if self.stopped:
            self.post(self.give_up, connection, epoch)
        elif connection.epoch == epoch and not connection.echoed:
            self.disconnected(connection, "no echo")

    def received(self, connection: Connection, message: object) -> None:
        """The coordinator says something."""
        self.told(message)
        match message:
            case Confirm(generation) if self.live and self.live.generation.id == generation:
                connection.confirm()
            case Form() | Stop():
                connection.confirm()

    def send(self, message: FromAgent) -> None:
        """Tell the coordinator, if there is one."""
        if self.coordinator is not None:
            self.coordinator.step(Told(self.node, message))
        elif self.connection is not None:
            self.connection.send(True, self.world.wired(message))

    def _join(self) -> Join:
        settings, announce = self.world.settings, None
        if self.live is not None:
            generation, place = self.live
            announce = Announce(
                generation.id,
                generation.restart,
                place.group_rank,
                place.group_world_size,
                self.done,
            )
        return Join(
            self.node,
            self.host.name,
            self.host.name,
            self.slots,
            "default",
            int(self.host.name[4:]) if settings.ordered else -1,
            settings.least,
            settings.most,
            settings.max_restarts,
            {},
            announce,
        )

    def standing(self) -> list[FromAgent]:
        """Return what a coordinator should know beyond the announcement."""
        if self.live is not None:
            return [Failed(self.live.generation.id, self.failed)] if self.failed else []
        return [self.ready] if self.ready is not None else []

    # The workers' lease.

    def lease(self, until: float | None) -> None:
        """The workers may run until then; None is for ever."""
        self._lease = until
        if until is not None and until <= self.world.now:
            self._freeze()
            return
        if self.frozen:
            self.world.log(f"{self.node} thaws")
            self.frozen = False
            self.world.watch.runs(self)
        if until is not None and until != float("inf"):
            self.world.at(until, self._lease_over, until)

    def _lease_over(self, until: float) -> None:
        if self._lease == until and self.alive:
            self._freeze()

    def _freeze(self) -> None:
        if not self.frozen:
            self.world.log(f"{self.node} freezes")
            self.frozen = True
            self.world.watch.runs(self)

    # The agent.

    def told(self, message: object) -> None:
        """Take what the coordinator says."""
        if not self.alive:
            return
        match message:
            case Form():
                self._begin(message)
            case Stop(generation, _, _):
                if self.live is not None and self.live.generation.id == generation:
                    self._stop_workers(message)
            case End():
                self.end = message
                if self.live is None:
                    if not self.leaving:
                        self._exit(message.exit_code)
                else:
                    self._stop_workers(Stop(self.last, message.reason, gently=False))
            case Wait():
                self.waits = message
                ready = self.ready
                if ready is not None and message.generation.number >= ready.latest.number:
                    self.ready = ready._replace(latest=message.generation)
            case _:
                pass

    def get_ready(self, failures: tuple[Failure, ...]) -> None:
        """Say that no workers run here."""
        self.stop = None
        self.ready = Ready(self.last, 29500, failures, ())
        self.send(self.ready)

    def _begin(self, form: Form) -> None:
        self.world.watch.begins(self, form)
        self.live, self.ready, self.waits = form, None, None
        self.last = form.generation.id
        self._generations += 1
        self.running = not self.leaving
        self.world.watch.runs(self)

    def _stop_workers(self, stop: Stop) -> None:
        again, self.stop = self.stop is not None, stop
        if again or self.failed or self.leaving:
            return
        if self.done:
            self._over(())
            return
        self._no_longer_runs()
        seconds = 0.01 if self.frozen else self.stop_s
        self.world.after(seconds, self.post, self._ended, self._generations, "")

    def fail(self) -> None:
        """A worker ends badly."""
        if self.running and not self.frozen:
            self.world.watch.failures += 1
            self.world.log(f"{self.node} a worker fails")
            self._no_longer_runs()
            self.post(self._has_failed, self._generations)

    def _has_failed(self, generation: int) -> None:
        if generation == self._generations and self.live is not None and not self.stop:
            self.failed = f"a worker failed on {self.host.name}"
            self.send(Failed(self.last, self.failed))
        self.world.after(self.stop_s, self.post, self._ended, generation, "failed")

    def succeed(self) -> None:
        """All workers end well."""
        if self.running and not self.frozen:
            self.world.log(f"{self.node} workers end well")
            self._no_longer_runs()
            self.post(self._has_succeeded, self._generations)

    def _has_succeeded(self, generation: int) -> None:
        if generation != self._generations or self.live is None or self.leaving:
            return
        if self.stop is not None:
            return  # they end in a moment, as if stopped
        self.done = True
        self.send(Done(self.last))

    def _ended(self, generation: int, failed: str) -> None:
        if generation != self._generations or self.live is None or self.leaving:
            return
        failure = Failure(
            rank=0, local_rank=0, host=self.node, pid=1, exitcode=1 if failed else -15, at=-0.1,
            asked=0 if failed else 15, report=None, last_lines=(), evidence="", log="",
        )  # fmt: skip
        self._over((failure,))

    def _over(self, failures: tuple[Failure, ...]) -> None:
        self.live, self.done, self.failed = None, False, ""
        self.key = None
        if self.end is not None:
            self._exit(self.end.exit_code)
        else:
            self.get_ready(failures)

    def _no_longer_runs(self) -> None:
        self.running = False
        self.world.watch.runs(self)
