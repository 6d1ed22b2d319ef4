"""Fake workers and their output: processes that train, fail, save and exit."""

import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from relight.agent.agent import Agent
from relight.agent.node import Node as ShippedNode
from relight.core.failure import ErrorReport, Failure, FailureKind, WorkerState
from relight.core.group.messages import FromCoordinator, GenerationFormed, WaitReason
from relight.core.workers.hang_detector import Usage
from relight.events.event_types import LoggedEvent, WorkerExited, WorkersFrozen, WorkerStarted
from relight.processes.freezer import Freezer

from .memory import Steps
from .processes import BELOW, Processes
from .survivors import Recoverables
from .world import Failure as Violation
from .world import Process, Timer

if TYPE_CHECKING:
    from relight.agent.agent_config import AgentConfig


WAITS, STUCK = WorkerState(" in step", (), True), WorkerState(" in read", (), False)
_FREEZE_RETRY_S = 0.05
"""How long processes may run after another program has resumed them, as documented."""


class WatchedNode(ShippedNode):
    """The shipped class, which also keeps the group's last message."""

    waits: WaitReason | None = None
    """The reason for waiting, if received after the latest generation."""

    def received(self, message: FromCoordinator) -> None:
        if isinstance(message, GenerationFormed | WaitReason):
            self.waits = message if isinstance(message, WaitReason) else None
        super().received(message)


class Node(Agent):
    """The shipped agent, in a simulated process."""

    def __init__(self, job: "AgentConfig", process: Process, stop_s: float) -> None:
        self.process = process
        process.agent = self
        self.name = process.name
        self.workers: Workers | None = None
        self.reached = False
        self.leaving = False
        self.stop_s = stop_s
        self.stuck_until = 0.0
        """Until this time, the agent can't end its workers, as if they were in state D."""
        self.is_read = True
        """Whether someone reads the console that workers print to."""
        super().__init__(job)

    @property
    def alive(self) -> bool:
        """Return whether the process exists."""
        return self.process.alive

    @property
    def id(self) -> str:
        """Return its name in the group."""
        return self.link.join.node

    @property
    def formed(self) -> GenerationFormed | None:
        """Return the generation of the workers here, even if they are done."""
        return self.node.running.formed if self.node.running is not None else None

    @property
    def over(self) -> bool:
        """Return whether it has learned that the job has ended."""
        return self.node.end is not None

    @property
    def done(self) -> bool:
        """Return whether its workers have succeeded."""
        return self.node.running is not None and self.node.running.have_succeeded

    @property
    def waits(self) -> WaitReason | None:
        """Return the reason it was given for waiting."""
        assert isinstance(self.node, WatchedNode)
        return self.node.waits

    def read_console(self, *, reads: bool = True) -> None:
        """Start or stop reading its console's output."""
        if self.is_read != reads:
            self.process.world.log(f"{self.name}: its console is {'' if reads else 'not '}read")
            self.is_read = reads
            self.process.call(lambda: None)

    def fail(self, *, blames: bool = False) -> None:
        """Fail a worker. With `blames`, it reports a peer as gone or late."""
        if self.workers is not None:
            self.workers.fail(blames=blames)

    def succeed(self) -> None:
        """Let all workers succeed."""
        if self.workers is not None:
            self.workers.succeed()

    def sigterm(self) -> None:
        """Send SIGTERM to the agent."""
        if self.alive and not self.leaving:
            self.leaving = True
            self.process.world.log(f"{self.name} SIGTERM")
            self.process.call(self.loop.signals[signal.SIGTERM], int(signal.SIGTERM))  # type: ignore[attr-defined]


class Workers:
    """Replaces `relight.processes.worker_processes.Workers`, including its spawner.

    The spawner enforces the lease on its own, whatever happens to the agent.
    """

    def __init__(
        self, loop: Any, plans: Sequence[Any], ranks: Sequence[int], scratch: str,
        on_event: Callable[..., None], fork: Any = None,
    ) -> None:  # fmt: skip
        del scratch, fork
        self.process: Process = loop.process
        self.world = self.process.world
        node = self.world.agent_of(self.process)
        assert node.formed is not None
        self.node = node
        self.formed: GenerationFormed = node.formed
        self.ranks = tuple(ranks)
        self.pids = {plan.local_rank: plan.local_rank for plan in plans}
        self.evidence: dict[int, str] = {}
        self.doing: dict[int, WorkerState] = {}
        self.memory = None
        self.frozen = False
        """Whether the agent knows them to be frozen."""
        self.processes = Processes(self.world.extras, len(plans), lively=self.world.lively)
        self._loop = loop
        self._on_event = on_event
        self._alive = dict.fromkeys(self.pids)
        self._freezer = Freezer()
        self._timer: Timer | None = None
        self._ending = False
        self._used_s, self._seen_at, self._ran = 0.0, self.world.now, True
        node.workers = self
        self.steps = Steps(self, list(self.pids))
        self.recoverables = Recoverables(self)
        for local_rank in self.pids:
            self.recoverables.start(local_rank)
        self.process.at_death.append(self._orphan)
        self.world.watch.begins(node, self.formed)
        for local_rank, rank in enumerate(self.ranks):
            self._tell(WorkerStarted(local_rank, rank, local_rank))
        self.world.watch.runs(self)

    @property
    def standing(self) -> bool:
        """Return whether their processes are stopped."""
        return self._freezer.frozen

    @property
    def run(self) -> bool:
        """Return whether any of the group's workers is running now."""
        inside = self._alive.keys() - self.recoverables.outside.keys()
        return bool(inside) and not self.standing and not self.process.host.paused

    def trains(self, local_rank: int) -> bool:
        """Return whether this worker is running in its group."""
        return self.run and self.has(local_rank) and local_rank not in self.recoverables.outside

    def used_s(self) -> float:
        """Return how much CPU time they have used, sampled from time to time."""
        runs = self.run and not self.world.watch.stands_still(self.node)
        if runs and self._ran:
            self._used_s += self.world.now - self._seen_at
        self._seen_at, self._ran = self.world.now, runs
        return self._used_s

    # Requests from the agent.

    def signal(self, local_ranks: Sequence[int], number: int) -> None:
        self.stop(local_ranks, number)

    def stop(self, local_ranks: Sequence[int], number: int) -> None:
        for local_rank in local_ranks:
            if number == signal.SIGKILL:  # the others are unaffected
                self.world.after(0.01, self._end_asked, local_rank, -number)
            else:
                self._end_in(self.node.stop_s, local_rank, -number)

    def with_handler_for(
        self, local_ranks: Sequence[int], number: int, *, unknown: bool
    ) -> list[int]:
        del number, unknown
        return list(local_ranks)

    def replace(self, plans: Sequence[Any], ranks: Sequence[int], fork: Any = None) -> None:
        del fork
        assert self.node.formed is not None
        self.formed, self.ranks, self._ending = self.node.formed, tuple(ranks), False
        self.doing.clear()
        self.world.watch.begins(self.node, self.formed)
        for plan in plans:
            assert plan.local_rank not in self._alive
            self._alive[plan.local_rank] = None
            self.steps.start(plan.local_rank)
            self.recoverables.start(plan.local_rank)
            self._tell(WorkerStarted(plan.local_rank, self.ranks[plan.local_rank], 0))
        self.world.watch.runs(self)

    def kill(self) -> None:
        for local_rank in self._alive:
            self._end_in(0.01, local_rank, -signal.SIGKILL)

    def set_lease(self, until: float) -> None:
        self._freezer.until = until
        self.look()

    def left_running(self, limit_s: float) -> list[int]:
        del limit_s
        return []

    def close(self, grace_s: float) -> bool:
        del grace_s
        self._die()
        return True

    # What happens.

    def look(self) -> None:
        """Freeze or thaw the workers, as the shipped freezer decides."""
        if not self._alive or self.process.host.paused:
            return
        now = self.process.host.now()
        BELOW.processes = self.processes
        changed = self._freezer.look(now)
        self._check_processes()
        if changed:
            self.world.log(f"{self.node.name} {'freezes' if self.standing else 'thaws'}")
            self._tell_frozen(self.standing)
            self.world.watch.runs(self)
        look_at = self._freezer.next_check(now)
        if self.standing or look_at is None:
            return
        if self._timer is None or look_at < self._timer.when:
            self._timer = Timer(look_at, lambda: None)
            at = self.process.host.in_world(look_at) + self.world.freezer_late_s
            self.world.at(at, self._on_lease, self._timer)

    def _check_processes(self) -> None:
        if self.standing and self.processes.running:
            raise Violation(f"{self.node.name} is frozen, but {self.processes.running} run")
        if not self.standing and self.processes.left_stopped:
            raise Violation(f"{self.node.name}: {self.processes.left_stopped} are still stopped")

    def signalled_by_others(self) -> None:
        """Another program stops one process or resumes them all.

        While they are frozen, the freezer checks again soon afterwards.
        """
        if not self._alive:
            return
        self.world.log(f"{self.node.name}: another program signals its workers")
        if not self.standing:
            self.processes.stop_one()
            return
        self.processes.continue_all()
        now = self.process.host.now()
        look_at = self._freezer.next_check(now)
        if look_at is None or look_at > now + _FREEZE_RETRY_S:
            raise Violation(f"{self.node.name}: {self.processes.running} were continued, and run")
        self.world.after(self.world.extras.uniform(0, look_at - now), self.look)

    def _on_lease(self, timer: Timer) -> None:
        if timer is self._timer:
            self._timer = None
            self.process.host.at_least(timer.when)
            if self.process.alive:
                self.processes.live()
                self.look()

    def fail(self, *, blames: bool) -> None:
        """Fail a worker."""
        if self.run and not self._ending and not self.world.watch.hangs(self.node):
            self.world.watch.failures += 1
            self.world.log(f"{self.node.name} a worker fails, blames a peer: {blames}")
            failed = next(each for each in self._alive if self.trains(each))
            if blames:
                self.doing[failed] = WAITS
            self._exit(failed, 1)

    def fail_outside(self) -> None:
        """Kill a worker that is waiting for the next group."""
        outside = [each for each in self._alive if each in self.recoverables.outside]
        if outside and not self._ending and not self.process.host.paused:
            self.world.watch.failures += 1
            self.world.log(f"{self.node.name}: {outside[0]} is killed outside of a group")
            self._exit(outside[0], -signal.SIGKILL)

    def succeed(self) -> None:
        """Let all workers succeed."""
        if self.run and not self._ending and not self.world.watch.hangs(self.node):
            self.world.log(f"{self.node.name} workers end well")
            self.world.watch.ends_well(self.node)
            for local_rank in list(self._alive):
                self._exit(local_rank, 0)

    def has(self, local_rank: int) -> bool:
        """Return whether this worker hasn't exited."""
        return local_rank in self._alive

    def leave(self, local_rank: int) -> None:
        """Let a worker that has saved exit successfully."""
        self._exit(local_rank, 0)

    def _end_in(self, seconds: float, local_rank: int, exitcode: int) -> None:
        self._ending = True
        self.world.after(seconds, self._end_asked, local_rank, exitcode)

    def _end_asked(self, local_rank: int, exitcode: int) -> None:
        is_stuck = self.process.alive and self.world.now < self.node.stuck_until
        if self.process.host.paused or is_stuck:
            self.world.after(0.1, self._end_asked, local_rank, exitcode)
        elif exitcode == -signal.SIGKILL or not self.standing:
            self._exit(local_rank, exitcode)

    def _exit(self, local_rank: int, exitcode: int) -> None:
        if local_rank in self._alive:
            del self._alive[local_rank]
            self.recoverables.outside.pop(local_rank, None)
            if not self.run:
                self.world.watch.runs(self)
            self._tell(WorkerExited(local_rank, exitcode))

    def _orphan(self) -> None:
        """The agent is gone, so the guard kills the workers soon."""
        if self.process.host.up:
            self.world.after(self.world.guard_s, self._die)
        else:
            self._die()

    def _die(self) -> None:
        self._alive.clear()
        self.world.watch.runs(self)

    def _tell_frozen(self, frozen: bool) -> None:
        def tell() -> None:
            if self._alive:
                self.frozen = frozen
                self._on_event(WorkersFrozen(frozen), self._loop.now())

        self.world.after(0, self.process.call, tell)

    def _tell(self, event: Any) -> None:
        self.world.after(
            0, self.process.call, lambda: self._on_event(event, self.process.host.now())
        )


class Logs:
    """Replaces `relight.output.worker_logs.Logs`."""

    def __init__(self, loop: Any, *_: object) -> None:
        self._node = loop.process.world.agent_of(loop.process)

    def open(self, *_: object) -> tuple[int, int]:
        return -1, -1

    def replace(self, *_: object) -> None:
        pass

    def error_file(self, local_rank: int) -> str:
        return f"{local_rank}"

    def passed_on(self) -> None:
        pass

    def inspect_before_stop(self, failed: int) -> None:
        pass

    def size(self) -> int:
        return 0

    def worker_ended(self, *_: object, **__: object) -> bool:
        return False

    def held(self) -> dict[int, Any]:
        return {}

    def release(self) -> None:
        pass

    def finish(self) -> None:
        pass

    @property
    def done(self) -> bool:
        return bool(self._node.is_read)

    def drop(self) -> int:
        return 0 if self.done else 1


class Store:
    """Replaces `relight.net.store_port.StorePort`."""

    port = 29500
    served = True
    clients = most_clients = 0

    def __init__(self, *_: object, served: bool, among: range) -> None:
        pass

    def tell_arrivals(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


class Console:
    """Replaces `relight.output.console.Console`."""

    fd = -1
    full = False
    unwritten = 0

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self._process: Process = loop.process

    def say(self, text: str) -> None:
        self._process.world.log(f"  {self._process.name}: {text}")

    def flush(self, stop_waiting: Callable[[], bool]) -> None:
        del stop_waiting


class Consoles(tuple[Console, ...]):
    """Replaces `relight.output.console.Consoles`."""

    @classmethod
    def open(cls, loop: Any) -> "Consoles":
        return cls((Console(loop),))

    @property
    def stdout(self) -> Console:
        return self[0]

    @property
    def stderr(self) -> Console:
        return self[0]


class EventLog:
    """Replaces `relight.output.journal.EventLog`."""

    began = 0.0

    def __init__(self, *_: object, stimulus: object) -> None:
        pass

    def write(self, event: Any) -> LoggedEvent:
        return LoggedEvent(0, 0.0, 0.0, event)

    def after(self, number: int) -> list[LoggedEvent]:
        del number
        return []


class Scratch:
    """Replaces `relight.host.scratch.Scratch`."""

    path = ""

    def __init__(self, *_: object) -> None:
        pass

    def make(self) -> str:
        return ""

    def remove(self) -> None:
        pass


def usage(process: Process) -> Usage:
    """Return what `relight.agent.watchdogs.usage_of_all` would."""
    workers = process.world.agent_of(process).workers
    return Usage(workers.used_s() if workers is not None else 0.0, 0, 0)


def suspects_peer(process: Process, local_rank: int) -> bool:
    """As `relight.agent.postmortem.suspects_peer`, for a worker that has just failed."""
    workers = process.world.agent_of(process).workers
    return workers is not None and local_rank in workers.doing


def doing(process: Process) -> dict[int, WorkerState]:
    """Return what `relight.stacks.worker_state.doing` would for the workers of a hung
    generation.
    """
    agent, watch = process.world.agent_of(process), process.world.watch
    workers = agent.workers
    if workers is None or not watch.hangs(agent):
        return {}
    return {
        each: STUCK if watch.is_stuck(workers, each) else WAITS
        for each in workers.pids
        if workers.has(each)
    }


def gather(
    supervisor: Any, logs: object, command: object, host: str, loop: Any
) -> tuple[tuple[Failure, ...], tuple[int, ...]]:
    """Return what `relight.agent.postmortem.gather` would."""
    del logs, command
    workers: Workers = supervisor.workers
    endings = workers.world.endings
    raised = ErrorReport(FailureKind.RECORDED, "ValueError", "bad", "train.py:1", "", ())
    failures = []
    for local_rank, exitcode, at, asked, stopping_s in supervisor.ends:
        if exitcode:
            failures.append(Failure(
                rank=workers.ranks[local_rank], local_rank=local_rank, host=host, pid=1,
                exitcode=exitcode, at=at - loop.now(), stop_signal=asked, stopping_s=stopping_s,
                last_lines=(), doing=workers.doing.get(local_rank) if asked else None,
                evidence="", log="",
                report=raised if exitcode == 1 and endings.random() < 0.4 else None,
            ))  # fmt: skip
    return tuple(failures), ()


def listen(interruption: Any) -> None:
    """Handle what `relight.agent.preemption.Interruption._listen` would, but only stop signals."""
    for number in interruption._spec.signals_to_handle:
        interruption._loop.on_signal(number, interruption._on_signal)


def has_memory(group: Any) -> bool:
    """Return what `relight.agent.worker_group.WorkerGroup._has_memory` would."""
    return group._memory is not None or group._services.loop.process.world.recoverable
