"""The main flow of one node: form a generation, run it, react. Read this first.

    form       a store for the workers is bound, ranks are given out           (core/ranks,
    host/tcp_store) run        the spawner starts the workers; the loop waits for their exits,
               for signals and for deadlines; core/supervision says what to do (host/process,
               host/logs)
    react      all ended well: done. A failure: diagnose it, and restart with a
               fresh generation if the budget allows, else report it           (core/failures,
               core/restarts)

The agent decides nothing by itself: events go into the cores, effects come out and are carried out
here.
"""

import os
import signal
import socket
import time
from typing import NamedTuple

from relight.core import commands, ranks, restarts
from relight.core.commands import Command
from relight.core.ranks import Assignment, Generation, Node
from relight.core.supervision import End, Kill, Signal, State, Supervision
from relight.errors import EXIT_OK, MachineError, exit_code_of_signal, signal_name
from relight.events import (
    Ended,
    Event,
    Formed,
    Restarting,
    SignalReceived,
    Tick,
    WorkerStarted,
    describe,
)
from relight.host.console import Consoles
from relight.host.files import EventLog, remove_tree
from relight.host.logs import Logs
from relight.host.loop import Loop, Timer
from relight.host.process import ProcessEvent, WorkerPlan, Workers, catches_signal
from relight.host.tcp_store import Reservation, TCPStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relight.host.timers import WorkerTimers

_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


class Job(NamedTuple):
    """What this agent is to run: the workers' command and number, and where their store listens.

    `cpus` has one affinity mask a worker, or is empty. `run_directory` is empty where no files may
    be written; it is removed at the end unless `keep_logs`.
    """

    command: Command
    nproc: int
    master_addr: str
    master_port: int
    cpus: tuple[frozenset[int], ...]
    grace_s: float
    run_directory: str
    keep_logs: bool


class Agent:
    """One node of a job, from the first worker to the last."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.spec = job.command.spec
        self.loop = Loop()
        self.consoles = Consoles.open(self.loop)
        self.host = socket.gethostname()
        self._event_log = EventLog(
            job.run_directory if job.keep_logs else "",
            console=self.spec.event_log_handler == "console",
        )
        self._signals: list[int] = []
        self._supervision: Supervision | None = None
        self._workers: Workers | None = None
        self._logs: Logs | None = None
        self._deadline: Timer | None = None
        self._listen_to_signals()

    def run(self) -> int:
        """Run the job; return its exit code.

        Raises:
            RelightError: the job can't be started here.
        """
        try:
            exit_code, reason = self._run()
            self._record(Ended(exit_code, reason))
            return exit_code
        finally:
            for console in self.consoles:
                console.flush(lambda: len(self._signals) > 1)
            self.loop.close()
            if self.job.run_directory and not self.job.keep_logs:
                remove_tree(self.job.run_directory)

    def say(self, message: str) -> None:
        """Tell the user, on stderr."""
        self.consoles.stderr.say(f"relight: {message}")

    def _run(self) -> tuple[int, str]:
        restart, cause = 0, "start"
        while True:
            generation, port_holder = self._form(restart, cause)
            formed_at = self.loop.now()
            ends = self._run_generation(generation)
            port_holder.close()
            if self._signals:
                number = self._signals[0]
                return exit_code_of_signal(number), f"the agent got {signal_name(number)}"
            failed = [end for end in ends if end.exitcode]
            if not failed:
                return EXIT_OK, "all workers ended well"
            outcome = self._react(failed, restart, formed_at)
            if isinstance(outcome, int):
                return outcome, "the workers failed"
            restart, cause = outcome.number, outcome.reason

    def _form(self, restart: int, cause: str) -> tuple[Generation, TCPStore | Reservation]:
        """Return the next generation, and what holds its port until it is over."""
        holder = TCPStore if self.job.command.agent_store else Reservation
        port_holder = holder(self.loop, self.job.master_addr, self.job.master_port)
        node = Node(self.host, self.host, self.job.nproc, self.spec.role)
        generation = Generation(
            restart, restart, (node,), self.job.master_addr, port_holder.port, cause
        )
        self._record(
            Formed(
                generation=generation.number,
                restart=generation.restart,
                nodes=tuple(node.id for node in generation.nodes),
                world_size=generation.world_size,
                master_addr=generation.master_addr,
                master_port=generation.master_port,
                cause=cause,
            )
        )
        return generation, port_holder

    def _run_generation(self, generation: Generation) -> list[End]:
        """Run the workers until all have ended and nothing of them is left."""
        assignments = ranks.assign(generation.nodes, 0)
        supervision = Supervision(len(assignments), self.job.grace_s)
        directory = self.job.run_directory
        attempt = os.path.join(directory, f"attempt_{generation.restart}") if directory else ""
        try:
            logs = Logs(self.loop, self.consoles, self.spec, attempt)
            plans = [self._plan(generation, assignment, logs) for assignment in assignments]
        except OSError as error:
            raise MachineError(
                f"can't write logs to {error.filename or attempt}: {error.strerror}"
            ) from None
        timers = self._open_timers()
        scratch = "" if self.job.keep_logs else directory
        all_ranks = [assignment.rank for assignment in assignments]
        workers = Workers(self.loop, plans, all_ranks, scratch, self._on_process)
        logs.passed_on()
        self._supervision, self._workers, self._logs = supervision, workers, logs
        if self._signals:  # one that came before there were workers
            self._step(SignalReceived(self._signals[0]), self.loop.now())
        self.loop.run_until(lambda: supervision.state is State.ENDED)
        if supervision.alive:
            self.say(supervision.explain(self.loop.now()))
        workers.close()
        if timers is not None:
            timers.close()
        logs.finish(lambda: len(self._signals) > 1)
        return list(supervision.ends.values())

    def _open_timers(self) -> "WorkerTimers | None":
        """Return the timers of a generation if the workers may set some."""
        path = self.job.command.timer_file
        if not path:
            return None
        from relight.host.timers import WorkerTimers

        return WorkerTimers(self.loop, path, self._on_late)

    def _on_late(self, pid: int, number: int, scope: str) -> None:
        """A worker did not release its timer in time: send it what it asked for."""
        assert self._workers is not None
        for local_rank, known in self._workers.pids.items():
            if known == pid:
                self._workers.evidence[local_rank] = f"its timer {scope} ran out"
                self._workers.signal([local_rank], number)

    def _plan(self, generation: Generation, assignment: Assignment, logs: Logs) -> WorkerPlan:
        local_rank, command = assignment.local_rank, self.job.command
        stdout, stderr = logs.open(local_rank, commands.prefix(command, assignment))
        error_file = logs.error_file(local_rank)
        return WorkerPlan(
            local_rank=local_rank,
            argv=commands.argv(command, local_rank),
            variables=commands.variables(command, generation, assignment, error_file),
            stdout=stdout,
            stderr=stderr,
            cpus=self.job.cpus[local_rank] if self.job.cpus else frozenset(),
            # A Python script decides itself what becomes of its children (a data loader must not
            # die before the checkpoint is saved); a shell script would not pass the signal on.
            signal_group=self.spec.no_python,
        )

    def _react(self, failed: list[End], restart: int, formed_at: float) -> restarts.Restart | int:
        """Return the restart that follows, or report the failure and return the exit code."""
        from relight.postmortem import examine, tell_parent  # only now: a failure is rare

        assert self._logs is not None and self._workers is not None
        diagnosis = examine(failed, self._logs, self._workers, self.host)
        decision = restarts.after_failure(restart, self.spec.max_restarts)
        if isinstance(decision, restarts.Restart):
            reason = diagnosis.headline()
            self._record(Restarting(decision.number, self.spec.max_restarts, reason))
            self.say(f"{reason}; {decision.reason}")
            return decision
        self.say(
            "\n".join(
                diagnosis.render(
                    formed_at=formed_at, ended=time.strftime("%F %T%z"), verdict=decision.reason
                )
            )
        )
        parent_file = self.job.command.env.get("TORCHELASTIC_ERROR_FILE")
        if parent_file:
            tell_parent(parent_file, diagnosis.root, self._logs)
        return diagnosis.exit_code

    def _on_process(self, event: ProcessEvent, at: float) -> None:
        self._record(event)
        if not isinstance(event, WorkerStarted):
            self._step(event, at)

    def _step(self, event: Event, now: float) -> None:
        """Give an event to the supervision and carry out what it says."""
        assert self._supervision is not None and self._workers is not None
        for effect in self._supervision.step(event, now):
            match effect:
                case Signal(local_ranks, number):
                    self._workers.signal(local_ranks, number)
                case Kill():
                    self._workers.kill()
        if self._deadline is not None:
            self._deadline.cancel()
        due = self._supervision.deadline()
        self._deadline = None if due is None else self.loop.call_at(due, self._on_deadline)

    def _on_deadline(self) -> None:
        self._deadline = None
        self._step(Tick(), self.loop.now())

    def _listen_to_signals(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide how children ended
        for number in self.spec.signals_to_handle:
            # A job under nohup outlives its terminal.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self.loop.on_signal(number, self._on_signal)
        for number in _PASSED_ON:
            ignored = signal.getsignal(number) is signal.SIG_IGN  # and workers inherit that
            if number not in self.spec.signals_to_handle and not ignored:
                self.loop.on_signal(number, self._pass_on)
        if signal.getsignal(signal.SIGWINCH) is not signal.SIG_IGN:
            self.loop.on_signal(signal.SIGWINCH, self._on_resize)

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        event = SignalReceived(number)
        self._record(event)
        if self._supervision is None:
            return
        self._step(event, self.loop.now())
        self.say(f"got {signal_name(number)}: {self._supervision.explain(self.loop.now())}")

    def _on_resize(self, number: int) -> None:
        del number
        if self._logs is not None:
            self._logs.resize()

    def _pass_on(self, number: int) -> None:
        """Send a signal that does not stop the job to the workers that have a handler for it."""
        if self._workers is None or self._supervision is None:
            return
        pids = self._workers.pids
        ready = [
            r for r in self._supervision.alive if r in pids and catches_signal(pids[r], number)
        ]
        self._workers.signal(ready, number)
        if self.spec.verbose:
            names = ", ".join(map(str, ready)) or "none, as none handles it"
            self.say(f"passed {signal_name(number)} on to local ranks: {names}")

    def _record(self, event: Event) -> None:
        self._event_log.write(event)
        if self.spec.verbose:
            self.say(describe(event))
