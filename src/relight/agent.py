"""The main flow of one node: join, run a generation, react. Read this first.

    join       a store for the workers is bound; the group hears that this node is ready
                                                                       (link, host/tcp_store)
    run        the group forms a generation: the spawner starts the workers, the loop waits for
               their exits, signals, deadlines and the coordinator; core/supervision says what to
               do                                              (host/process, host/logs, core/ranks)
    react      all ended well: wait for the other nodes. A failure, or a change of the group: tell
               what is known, get ready again                             (postmortem)

Whether there is another generation, and who is in it, is decided in core/membership; a job of one
node has that in this process. The agent decides nothing by itself: events go into the cores,
effects come out and are carried out here.
"""

import errno
import os
import signal
import socket
from collections.abc import Sequence
from signal import SIGINT

from relight.core import commands, ranks
from relight.core.commands import Command
from relight.core.exits import Failure
from relight.core.group import Settings
from relight.core.messages import (
    Announce,
    Done,
    End,
    Failed,
    Form,
    FromAgent,
    FromCoordinator,
    Join,
    Leave,
    Note,
    Ready,
    Stop,
    Wait,
)
from relight.core.ranks import NO_GENERATION, Assignment, Generation, Place
from relight.core.supervision import End as WorkerEnd
from relight.core.supervision import Kill, Signal, State, Supervision
from relight.errors import MachineError, exit_code_of_signal, many, mistake, signal_name
from relight.events import (
    Ended,
    Event,
    Formed,
    GroupStopped,
    Mistake,
    Restarting,
    SignalReceived,
    Tick,
    WorkerExited,
    WorkersFrozen,
    WorkerStarted,
    describe,
    is_news,
)
from relight.group import LocalLink
from relight.host import system
from relight.host.console import Consoles
from relight.host.descriptors import raise_limit
from relight.host.files import EventLog, attempt_directory
from relight.host.logs import Leftovers, Logs
from relight.host.loop import Loop, Timer
from relight.host.process import ProcessEvent, WorkerPlan, Workers
from relight.host.scratch import Scratch
from relight.host.signals import listen
from relight.host.tcp_store import Reservation, TCPStore
from relight.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relight.host.flag import Flag
    from relight.host.warm import Preload, Workplace
    from relight.link import RemoteLink
    from relight.rendezvous.meeting import Meeting

_ARRIVED_AFTER_S = 60
_READY_S = 30.0
"""How long it may take, after workers were killed, until others know it: large ones go slowly."""
Outcome = tuple[tuple[Failure, ...], tuple[int, ...]]
"""The failures of a generation on this node, and the ranks that had ended well before."""


class Job(NamedTuple):
    """What this agent is to run: the workers' command and number, and how the nodes meet.

    `store_host` and `store_port` are where the workers' store listens. `meeting` is None for a job
    of one node. A worker that is stuck in the system for `stuck_after_s`, unless that is 0, has
    failed. `cpus` has one affinity mask a worker, or is empty. `run_directory` is where logs
    are kept, `scratch` where a directory may be made that is removed at the end; either may be
    empty. `workplace` is for --preload.
    """

    command: Command
    nproc: int
    store_host: str
    store_port: int
    cpus: tuple[frozenset[int], ...]
    grace_s: float
    stuck_after_s: float
    run_directory: str
    scratch: str
    settings: Settings
    meeting: "Meeting | None"
    facts: dict[str, str]
    workplace: "Workplace | None"


class Agent:
    """One node of a job, from the first worker to the last."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.spec = job.command.spec
        self.loop = Loop()
        self.loop.on_mistake = lambda what, error: self._record(Mistake(what, mistake(error)))
        self.consoles = Consoles.open(self.loop)
        self.host = socket.gethostname()
        on_console = self.spec.event_log_handler == "console"
        self._event_log = EventLog(
            job.run_directory, self.consoles.stderr.say if on_console else None
        )
        self._scratch = Scratch(self.loop, job.scratch)
        self._signals: list[int] = []
        self._form: Form | None = None
        self._end: End | None = None
        self._ready: Ready | None = None
        self._live: Form | None = None  # the generation whose workers are here, also when done
        self._last = NO_GENERATION  # its id, or that of the one before
        self._stop: Stop | None = None
        self._done = False
        self._failed = ""
        self._stuck = False
        self._lease: float | None = None
        self._restart = 0
        self._supervision: Supervision | None = None
        self._workers: Workers | None = None
        self._logs: Logs | None = None
        self._leftovers = Leftovers(self.loop, self.consoles, self._signals)
        self._deadline: Timer | None = None
        self._store: TCPStore | Reservation | None = None
        self._flag: Flag | None = None
        if job.settings.gently:
            from relight.host import flag

            self._flag = flag.Flag()
        if job.nproc > 8:  # it costs an import, and few fit into any limit
            raise_limit()
        listen(self.loop, self.spec, self._on_signal, self._pass_on, self._on_resize)
        self._preload: Preload | None = None
        if job.workplace is not None:
            from relight.host import warm

            tell = self._record, self.say
            self._preload = warm.Preload(self.loop, job.workplace, self.spec.preload, *tell)
        self.link = self._make_link()

    def run(self) -> int:
        """Run the job; return its exit code.

        Raises:
            RelightError: the job can't be started here.
        """
        broken = True
        try:
            if self._preload:
                self._preload.wait(lambda: bool(self._signals))
            self.link.open(self)
            exit_code, reason = self._run()
            self._record(Ended(exit_code, reason))
            broken = False
            return exit_code
        finally:
            self.link.close(lambda: broken or bool(self._signals))
            if self._preload:
                self._preload.close()
            self._leftovers.show()
            self._scratch.remove()
            self.loop.close()  # last: from here on, signals end this process as they find it

    def say(self, message: str) -> None:
        """Tell the user, on stderr."""
        self.consoles.stderr.say(f"relight: {message}")

    def _run(self) -> tuple[int, str]:
        outcome: Outcome = (), ()
        while True:
            self._get_ready(*outcome)
            self.loop.run_once(0)  # a signal that has come by now: no workers are started
            self.loop.run_until(lambda: bool(self._may_begin() or self._end or self._signals))
            if self._form and not (self._end or self._signals):
                self._live, self._form = self._form, None
                began = self.loop.now()
                ends = self._run_generation(self._live)
                outcome = self._what_happened(ends)
                if self._stuck and outcome[0]:
                    return self._give_up(outcome, began)
                if not (outcome[0] or self._stop or self._signals):
                    self._wait_for_others()
                self._live, self._done, self._failed = None, False, ""
            if self._end and not self._signals:
                self._leftovers.show()  # a report comes after it
            if self._signals:
                return self._leave()
            if self._end:
                return self._finish(self._end)

    # The group.

    def _may_begin(self) -> bool:
        """Whether a generation is formed, and its lease not over before it has begun: the word of
        it may have waited while this machine stood still, and the others have gone on.
        """
        over = self._lease is not None and self.loop.now() >= self._lease
        return self._form is not None and not over

    def _make_link(self) -> "LocalLink | RemoteLink":
        job, meeting = self.job, self.job.meeting
        join = Join(
            node=os.urandom(8).hex(),
            host=self.host,
            address=meeting.local_addr if meeting else job.store_host,
            slots=job.nproc,
            role=self.spec.role,
            node_rank=meeting.node_rank if meeting else -1,
            least=job.settings.least,
            most=job.settings.most,
            max_restarts=job.settings.max_restarts,
            facts=job.facts,
            announce=None,
            stop_s=self._stop_s(),
        )
        if meeting is None:
            return LocalLink(self.loop, job.settings, join)
        from relight.link import RemoteLink

        return RemoteLink(self.loop, job.settings, join, meeting)

    def _stop_s(self) -> float | None:
        """Return how long it takes at most until workers have ended and others know it."""
        job = self.job
        if job.meeting is None:
            return None
        return job.grace_s + (job.meeting.checkpoint_s if job.settings.gently else 0.0) + _READY_S

    def _get_ready(self, failures: tuple[Failure, ...], left: tuple[int, ...]) -> None:
        """Bind a store for the next generation and say that no workers run here.

        The store is bound before its port is announced, and only a fresh one is announced.
        """
        if self._store is None:
            kind = TCPStore if self.job.command.agent_store else Reservation
            self._store = kind(self.loop, self.job.store_host, self.job.store_port)
        port = self._store.port
        if isinstance(self._store, TCPStore):
            port = self.link.share_port(self._store) or port
        self._stop = None
        self._ready = Ready(self._last, port, failures, left, self._restart)
        self.link.send(self._ready)

    def _wait_for_others(self) -> None:
        """All workers here have ended well; those of other nodes may not have."""
        assert self._live is not None
        self._done = True
        self.link.send(Done(self._live.generation.id))
        self.loop.run_until(lambda: bool(self._end or self._stop or self._signals))

    def _leave(self) -> tuple[int, str]:
        reason = f"agent got {signal_name(self._signals[0])}"
        self.link.send(Leave(f"its {reason}"))
        return exit_code_of_signal(self._signals[0]), f"the {reason}"

    def _give_up(self, outcome: Outcome, began: float) -> tuple[int, str]:
        """Leave the job, without a restart here, as the system does not let go of a worker."""
        from relight.core import verdict

        failures, left = outcome
        now = self.loop.now()
        self.link.send(Leave(f"the system of {self.host} does not let go of a worker"))
        self._ready = Ready(self._last, 0, failures, left, self._restart)
        ends = [failure._replace(at=failure.at + now) for failure in failures]
        story = verdict.Story(ends, left, "", began)
        return self._finish(verdict.end(story, "no restart: what it holds may not be free", now))

    def _finish(self, end: End) -> tuple[int, str]:
        if end.exit_code:
            from relight.postmortem import report

            self.say(report(end, self._ready, self.job.command.env))
        path = self.job.command.env.get("TORCHELASTIC_ERROR_FILE")
        if path and end.root is not None:  # the program that started this agent wants to know
            from relight.postmortem import tell_parent

            tell_parent(path, end.root, self._logs, self._workers)
        return end.exit_code, end.reason

    # What the link asks and tells.

    def announce(self) -> Announce | None:
        """Return the generation whose workers are here, if any."""
        form = self._live or self._form
        if form is None:
            return None
        generation, place = form
        return Announce(
            generation.id,
            generation.restart,
            place.group_rank,
            place.group_world_size,
            self._done,
        )

    def standing(self) -> Sequence[FromAgent]:
        """Return what a new coordinator should know beyond that."""
        if self._live is not None:
            return [Failed(self._live.generation.id, self._failed)] if self._failed else []
        return [self._ready] if self._ready is not None else []

    def told(self, message: FromCoordinator) -> None:
        """Take what the coordinator says."""
        match message:
            case Form():
                self._form, self._ready = message, None
                self._last = message.generation.id
            case Stop():
                self._on_stop(message)
            case End():
                self._end = message
                self._stop_workers(Stop(self._last, message.reason, gently=False))
            case Wait(text, _, generation):
                ready = self._ready
                if ready is not None and generation.number >= ready.latest.number:
                    # A later coordinator may not know.
                    self._ready = ready._replace(latest=generation)
                self.say(text)
            case Note(text):
                self.say(text)
            case _:
                pass

    def lease(self, until: float | None) -> None:
        """The workers may run until this time, None for ever."""
        self._lease = until
        if self._workers is not None:
            self._workers.lease(until or 0.0)

    def _on_stop(self, stop: Stop) -> None:
        if self._form is not None and self._form.generation.id == stop.generation:
            self._form = None  # it has not begun
            self._get_ready((), ())
        elif self._live is not None and self._live.generation.id == stop.generation:
            self._stop_workers(stop)

    def _stop_workers(self, stop: Stop) -> None:
        if self._live is None:
            return
        self._stop = stop
        if self._supervision is None or self._supervision.state is not State.RUNNING:
            return
        if stop.gently and self._flag is not None and self.job.meeting is not None:
            self._flag.set(True)
            limit_s = self.job.meeting.checkpoint_s
            self.say(f"{stop.cause}; workers may save a checkpoint first, for {limit_s:g} s")
            self.loop.call_after(limit_s, lambda: self._stop_workers(stop._replace(gently=False)))
        elif self._live.generation.id == stop.generation:
            event = GroupStopped(stop.generation.number, stop.cause)
            self._record(event)
            self._step(event, self.loop.now())

    def _run_generation(self, form: Form) -> list[WorkerEnd]:
        """Run the workers until all have ended and nothing of them is left."""
        generation, place = form
        self._tell(generation, place)
        assignments = ranks.assign(place)
        supervision = Supervision(len(assignments), self.job.grace_s)
        directory = self.job.run_directory or self._scratch.make()
        attempt = directory and attempt_directory(directory, generation.restart, generation.number)
        plans: list[WorkerPlan] = []
        try:
            logs = Logs(self.loop, self.consoles, self.spec, attempt)
            plans.extend(self._plan(generation, assignment, logs) for assignment in assignments)
        except OSError as error:
            hint = "look at `ulimit -n`" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
            pipe = f"make a pipe for the output of local rank {len(plans)}"
            what = f"write logs to {error.filename}" if error.filename else pipe
            raise MachineError(f"can't {what}: {error.strerror}", hint=hint) from None
        if self._flag is not None:
            self._flag.set(False)
        timers = None
        if path := self.job.command.timer_file:
            from relight.host.timers import WorkerTimers

            timers = WorkerTimers(self.loop, path, self._on_late)
        all_ranks = [assignment.rank for assignment in assignments]
        fork = self._preload.fork if self._preload else None
        workers = Workers(self.loop, plans, all_ranks, self._scratch.path, self._on_process, fork)
        logs.passed_on()
        self._supervision, self._workers, self._logs = supervision, workers, logs
        self.lease(self._lease)
        if self._stop is not None:  # it came while a warm process forked the workers
            self._stop_workers(self._stop)
        watch = None
        if self.job.stuck_after_s:
            from relight.host.stuck import StuckWatch

            watch = StuckWatch(self.loop, workers.pids, self.job.stuck_after_s, self._on_stuck)
        arrivals = self.loop.call_after(_ARRIVED_AFTER_S, self._tell_arrivals)
        if self._signals:  # one that came before there were workers
            self._step(SignalReceived(self._signals[0]), self.loop.now())
        self.loop.run_until(lambda: supervision.state is State.ENDED)
        if supervision.alive:
            self.say(supervision.explain(self.loop.now()))
        workers.close()
        arrivals.cancel()
        if timers is not None:
            timers.close()
        if watch is not None:
            watch.close()
        self._leftovers.add(logs, generation.number)
        if place.group_rank == 0 and self._store is not None:
            self._store.close()
            self._store = None
        return list(supervision.ends.values())

    def _tell(self, generation: Generation, place: Place) -> None:
        """Say what begins, where that is news."""
        (number, _), restart, address, port, cause = generation
        here, nodes, world_size = place.group_rank, place.group_world_size, place.world_size
        if number:
            self.say(cause)
        self._record(Formed(number, restart, here, nodes, world_size, address, port, cause))
        if restart > self._restart:
            self._restart = restart
            self._event_log.write(Restarting(restart, self.job.settings.max_restarts, cause))
        if self.job.meeting is not None and not self.spec.verbose:
            self.say(
                f"generation {number}: {many(world_size, 'worker')} on {many(nodes, 'node')}; "
                f"this is node {here}"
            )

    def _tell_arrivals(self) -> None:
        """Say for whom init_process_group waits, if it does."""
        from relight.host.arrivals import explain

        assert self._workers is not None and self._live is not None
        if text := explain(self._workers, self._live, self._store):
            self.say(f"after {_ARRIVED_AFTER_S} s, {text}")

    def _on_late(self, pid: int, number: int, scope: str) -> None:
        """A timer was not released in time: send the process that took it what it asked for, if it
        is a worker or was started by one.
        """
        workers = self._workers
        assert workers is not None
        local_rank = workers.worker_of(pid)
        if local_rank is None:
            return
        if workers.pids.get(local_rank) == pid:
            workers.evidence[local_rank] = f"its timer {scope} ran out"
            workers.signal([local_rank], number)
            return
        whose = "has lost its parent" if local_rank < 0 else f"local rank {local_rank} has started"
        self.say(f"pid {pid}, which {whose}, gets {signal_name(number)}: its timer {scope} ran out")
        try:
            system.signal_if(pid, number, lambda: workers.worker_of(pid) is not None)
        except OSError:
            pass  # it has just ended, or has become another user's

    def _on_stuck(self, local_rank: int) -> None:
        """A worker is in an uninterruptible call: it counts as dead, whether it can be killed."""
        workers, supervision = self._workers, self._supervision
        assert workers is not None and supervision is not None
        if supervision.state is State.RUNNING:
            self._stuck = True
            workers.evidence[local_rank] = (
                f"it was in an uninterruptible call (state D) for {self.job.stuck_after_s:g} s"
            )
            workers.signal([local_rank], signal.SIGKILL)
            self._step(WorkerExited(local_rank, -signal.SIGKILL), self.loop.now())

    def _plan(self, generation: Generation, assignment: Assignment, logs: Logs) -> WorkerPlan:
        local_rank, command = assignment.local_rank, self.job.command
        stdout, stderr = logs.open(local_rank, commands.prefix(command, assignment))
        error_file = logs.error_file(local_rank)
        variables = commands.variables(command, generation, assignment, error_file)
        if self._flag is not None:
            variables[self._flag.VARIABLE] = self._flag.path
        if self._preload:
            variables.update(self._preload.variables(local_rank, variables))
        return WorkerPlan(
            local_rank=local_rank,
            argv=commands.argv(command, local_rank),
            variables=variables,
            stdout=stdout,
            stderr=stderr,
            cpus=self.job.cpus[local_rank] if self.job.cpus else frozenset(),
            # A Python script decides itself what becomes of its children (a data loader must not
            # die before the checkpoint is saved); a shell script would not pass the signal on.
            signal_group=self.spec.no_python,
        )

    def _what_happened(self, ends: list[WorkerEnd]) -> Outcome:
        """Return the failures of a generation, and the ranks that had ended well before."""
        if self._signals or not any(end.exitcode for end in ends):
            return (), ()
        from relight.postmortem import gather

        assert self._logs is not None and self._workers is not None
        command = self.job.command
        return gather(ends, self._logs, self._workers, command, self.host, self.loop.now())

    def _on_process(self, event: ProcessEvent, at: float) -> None:
        self._record(event)
        if isinstance(event, WorkersFrozen):
            self.say(
                "the coordinator is silent; workers stand still until it is back"
                if event.frozen
                else "the coordinator is back; workers go on"
            )
        elif not isinstance(event, WorkerStarted):
            self._step(event, at)

    def _step(self, event: Event, now: float) -> None:
        """Give an event to the supervision and carry out what it says."""
        assert self._supervision is not None and self._workers is not None
        was_running = self._supervision.state is State.RUNNING
        frozen = self._workers.frozen or self.loop.now() >= (self._lease or float("inf"))
        for effect in self._supervision.step(event, now):
            match effect:
                case Signal() if frozen:
                    self._workers.kill()  # they would not see it, and must not go on
                case Signal(local_ranks, number) if self._signals:
                    self._workers.signal(local_ranks, number)
                case Signal(local_ranks, number):
                    self._workers.stop(local_ranks, number)
                case Kill():
                    self._workers.kill()
        if was_running and isinstance(event, WorkerExited) and event.exitcode:
            self._failed = f"a worker failed on {self.host}"
            self.link.send(Failed(self._last, self._failed))
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if (due := self._supervision.deadline()) is not None:
            self._deadline = self.loop.call_at(due, lambda: self._step(Tick(), self.loop.now()))

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        event = SignalReceived(number)
        self._record(event)
        if self._supervision is not None:
            self._step(event, self.loop.now())
            text = f"got {signal_name(number)}: {self._supervision.explain(self.loop.now())}"
            if self._supervision.state is State.STOPPING:
                text += f", or now by a second {'ctrl-C' if number == SIGINT else 'signal'}"
            self.say(text)

    def _on_resize(self, _: int) -> None:
        if self._logs is not None:
            self._logs.resize()

    def _pass_on(self, number: int) -> None:
        """Send a signal that does not stop the job to the workers that have a handler for it."""
        if self._workers is None or self._supervision is None:
            return
        ready = self._workers.catching(self._supervision.alive, number, unknown=False)
        self._workers.signal(ready, number)
        if self.spec.verbose:
            names = ", ".join(map(str, ready)) or "none, as none handles it"
            self.say(f"passed {signal_name(number)} on to local ranks: {names}")

    def _record(self, event: Event) -> None:
        self._event_log.write(event)
        if self.spec.verbose or is_news(event):
            self.say(describe(event))
