"""Starts and signals one generation's workers for the agent, and reports their exits.

The spawner does this work in a process of its own (`processes/spawner.py` explains why). This
module is the agent's end of the socket that is connected to the spawner.
"""

import errno
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from relight.base.errors import InternalError, MachineError
from relight.base.text import LineBuffer
from relight.core.failure import WorkerState
from relight.core.workers.supervision import patience_s
from relight.events.event_types import (
    ProcessRemains,
    SpawnerLost,
    WorkerExited,
    WorkersFrozen,
    WorkerStarted,
)
from relight.host import system
from relight.host.descriptors import receive
from relight.host.loop import Alarm, Loop
from relight.host.oom_detector import OomKills
from relight.processes import generation_pipe, spawner
from relight.processes.generation_pipe import WorkerPlan

__all__ = ["WorkerPlan", "Workers"]

Fork = Callable[[Sequence[WorkerPlan], str], tuple[int, socket.socket]]
ProcessEvent = WorkerStarted | WorkerExited | WorkersFrozen | ProcessRemains | SpawnerLost
_FINISH_LIMIT_S = 30.0
_WAKE_LIMIT_S = 1.0
"""Grace period after SIGCONT before a stopped spawner is killed."""
_CONTINUE_EVERY_S = 0.05
"""How often SIGCONT is sent to the spawner until it has frozen the workers."""
_LET_END_S = 0.5
"""How long a spawner whose guard was killed may take to end its workers before it is killed as
well.
"""
_ORPHANS_LIMIT_S = 10.0
"""How long the search for a killed spawner's descendants may take."""
_ORPHANS_POLL_S = 0.01
_POLL_S = 0.02


class Workers:
    """The workers of one generation, while they are running.

    Args:
        loop: the agent's loop.
        plans: the workers to start, in the order of their local ranks.
        ranks: the rank of each worker, in the same order.
        scratch: a directory to remove if the agent is killed, or empty.
        on_event: called with each event and its time in monotonic seconds: for each start and exit,
            when workers are frozen or resumed, for processes that survive SIGKILL, and when the
            spawner is lost.
        fork: starts a spawner, or uses the warm one (`warm/preloading.py`).

    Raises:
        MachineError: if the machine runs out of processes or descriptors.
    """

    def __init__(
        self,
        loop: Loop,
        plans: Sequence[WorkerPlan],
        ranks: Sequence[int],
        scratch: str,
        on_event: Callable[[ProcessEvent, float], None],
        fork: Fork | None = None,
    ) -> None:
        self.pids: dict[int, int] = {}
        self.ranks = tuple(ranks)
        self.evidence: dict[int, str] = {}
        """Facts about a worker's exit beyond its exit code, by local rank."""
        self.doing: dict[int, WorkerState] = {}
        """The state that each worker was in before it was stopped, by local rank, if it was
        recorded.
        """
        self.loaders: dict[int, str] = {}
        """Where a worker's loader process was when the worker's program ended, or how that process
        had died, by local rank.
        """
        self.had_handler: dict[int, bool] = {}
        """Whether each worker had a handler for its first stop signal, by local rank."""
        self.frozen = False
        """Whether the workers are frozen because their lease has expired."""
        self.remaining: dict[int, ProcessRemains] = {}
        """The processes that still exist a second after SIGKILL, by pid."""
        self._loop = loop
        self._on_event = on_event
        self._more: list[Workers] = []
        """Workers that other spawners started to replace some of this spawner's workers."""
        self._buffer = LineBuffer()
        self._holder = 0
        """The spawner's own pid, once the spawner has reported it."""
        try:
            pid, self._socket = (fork or spawner.fork)(plans, scratch)
            self._spawner = system.Child(pid)
        except OSError as error:
            raise _not_started(error) from None
        # A killed spawner's orphans become this process's children; see _on_spawner_exit.
        system.adopt_orphans()
        self.oom_kills = OomKills()
        self.oom_kills.watch(loop)
        self._spawner_gone = self._spawner_exiting = False
        self._kill_alarm = Alarm(loop, self._end_stopped)
        self._expiry = Alarm(loop, self._on_lease_expired)
        loop.on_readable(self._socket, self._receive)
        loop.on_readable(self._spawner, self._on_spawner_exit)

    def signal(self, local_ranks: Sequence[int], number: int) -> None:
        """Send a signal to these workers, except for those that have ended."""
        for local_rank in local_ranks:
            self._command(f"signal {local_rank} {number}")

    def stop(self, local_ranks: Sequence[int], number: int) -> None:
        """Send workers a stop signal. A worker without a handler for the signal has nothing to
        save, so it also gets SIGKILL in case the signal doesn't end it.
        """
        # Check for handlers before sending the signal, because a handler may be removed in the
        # meantime, for example when an interpreter shuts down. Check again afterwards in case a
        # handler was just set.
        waited_for = set(self.with_handler_for(local_ranks, number, unknown=True))
        self.signal(local_ranks, number)
        waited_for.update(self.with_handler_for(local_ranks, number, unknown=True))
        for local_rank in local_ranks:
            self.had_handler.setdefault(local_rank, local_rank in waited_for)
        self.signal([r for r in local_ranks if r not in waited_for], signal.SIGKILL)

    def with_handler_for(
        self, local_ranks: Sequence[int], number: int, *, unknown: bool
    ) -> list[int]:
        """Return which of these workers have a handler for a signal. If the system doesn't expose
        handlers, return all workers if `unknown` is true, and none otherwise.
        """
        pids, catches = self.pids, system.catches_signal
        return [r for r in local_ranks if r in pids and catches(pids[r], number, unknown)]

    def find_worker(self, pid: int) -> int | None:
        """Return the local rank of the worker that is this process or its ancestor. Return -1 for
        an ended worker's orphan, or None for a process that no worker has started.
        """
        local_rank_of = {known: local_rank for local_rank, known in self.pids.items()}
        while pid > 1:
            parent = system.parent_pid(pid)
            if any(parent == each._spawner.pid for each in (self, *self._more)):
                return local_rank_of.get(pid, -1)
            pid = parent
        return None

    def replace(
        self, plans: Sequence[WorkerPlan], ranks: Sequence[int], fork: Fork | None = None
    ) -> None:
        """Start workers to replace workers that have ended.

        Args:
            plans: the workers, possibly none.
            ranks: the rank of each worker, as for the original workers.
            fork: starts another spawner for the new workers, which is the warm one, or None to use
                the latest spawner.

        Raises:
            MachineError: if the machine runs out of processes or descriptors.
        """
        for each in (self, *self._more):
            each.ranks = tuple(ranks)
        for plan in plans:
            pid = self.pids.pop(plan.local_rank, 0)
            if pid:
                self._command(f"orphans {pid}")
            self.evidence.pop(plan.local_rank, None)
            self.loaders.pop(plan.local_rank, None)
            self.had_handler.pop(plan.local_rank, None)
        self.doing.clear()  # of the previous generation
        if fork is None or not plans:
            (self._more[-1] if self._more else self)._start(plans)
            return
        more = Workers(self._loop, plans, self.ranks, "", self._on_more, fork)
        more.pids, more.evidence, more.doing = self.pids, self.evidence, self.doing
        more.loaders, more.had_handler = self.loaders, self.had_handler
        more.remaining = self.remaining
        self._more.append(more)

    def _on_more(self, event: ProcessEvent, at: float) -> None:
        """Report an event from an additional spawner, whose workers share the other workers'
        lease.
        """
        if not isinstance(event, WorkersFrozen):
            self._on_event(event, at)

    def _start(self, plans: Sequence[WorkerPlan]) -> None:
        for plan in plans:
            try:
                generation_pipe.send_worker(self._socket, plan)
            except (BrokenPipeError, ConnectionResetError):
                pass  # all have exited; _on_spawner_exit reports it
            except OSError as error:
                raise _not_started(error) from None
        self._continue_spawner()

    def kill(self) -> None:
        """Kill all workers and their descendants."""
        self._command("kill")
        for each in (self, *self._more):
            each._kill_if_stopped_later()

    def set_lease(self, until: float) -> None:
        """Let the workers run until this time on the monotonic clock, and then freeze them. 0 means
        no limit.

        The spawner freezes the workers. At that time, it is sent SIGCONT in case another program
        has stopped it.
        """
        self._command(f"lease {until!r}")
        for each in (self, *self._more):
            each._expiry.set(until or None)

    def left_running(self, limit_s: float) -> list[int]:
        """Return the pids of processes that ended workers have left behind and that don't exit on
        their own within the time limit. Call this once all workers have exited.
        """
        until = self._loop.now() + limit_s
        before = [pid for each in self._more for pid in each.left_running(limit_s)]
        while left := system.child_pids(self._holder) if self._holder else []:
            if self._spawner_gone or self._loop.now() >= until:
                break
            self._loop.run_once(_POLL_S)
        return before + left

    def close(self, grace_s: float = 0.0) -> bool:
        """Kill all remaining processes. Return True when they have exited, or False if some of them
        can't be killed within the time limit.

        Args:
            grace_s: how long to wait for processes that can't be killed, within limits
                (`patience_s`).
        """
        others_ended = [each.close(grace_s) for each in self._more]
        if not self._spawner_gone:
            self._command("end")
            self._socket.shutdown(socket.SHUT_WR)
            self._kill_if_stopped_later()
            began = self._loop.now()
            while not self._spawner_gone:
                remaining = self.remaining.values()
                refused = bool(remaining) and all(each.refused for each in remaining)
                left = began + patience_s(grace_s, refused=refused) - self._loop.now()
                if left <= 0:
                    break
                self._loop.run_once(left)
        ended = self._spawner_gone
        self.oom_kills.close()
        self._expiry.set(None)
        self._kill_alarm.set(None)
        self._loop.forget(self._socket)
        self._socket.close()
        if not self._spawner_exiting:
            self._loop.forget(self._spawner)
            self._spawner.close()
        self._spawner_gone = True  # or stuck, so later leases don't apply to it
        return ended and all(others_ended)

    def finish(self) -> None:
        """Wait until these workers and their spawner have exited, even after an error halfway
        through. This is for embedding programs that outlive the job.
        """
        for each in self._more:
            each.finish()
        if self._socket.fileno() >= 0:
            self.close()
        if self._spawner_exiting:
            self._loop.run_until(lambda: self._spawner.closed, _FINISH_LIMIT_S)

    def _reap(self) -> None:
        self._loop.forget(self._spawner)
        with suppress(ChildProcessError):  # already reaped by the search for orphans
            self._spawner.reap()
        self._spawner.close()

    def _command(self, line: str) -> None:
        """Send a command to all spawners. Each spawner ignores commands for workers that aren't its
        own.
        """
        for each in self._more:
            each._command(line)
        with suppress(OSError):  # all have exited; _on_spawner_exit reports it
            self._socket.sendall(line.encode() + b"\n")
        self._continue_spawner()

    def _continue_spawner(self) -> None:
        """Send SIGCONT to the spawner and its guard in case they are stopped."""
        if not self._spawner_gone:
            self._spawner.send(signal.SIGCONT)

    def _on_lease_expired(self) -> None:
        """Send SIGCONT to the spawner repeatedly until it has frozen the workers."""
        if not (self.frozen or self._spawner_gone):
            self._continue_spawner()
            self._expiry.set_after(_CONTINUE_EVERY_S)

    def _kill_if_stopped_later(self) -> None:
        """Kill the spawner if it is still stopped after a while, for example by a debugger."""
        if self._kill_alarm.when is None:
            self._kill_alarm.set_after(_WAKE_LIMIT_S)

    def _end_stopped(self) -> None:
        if not self._spawner_gone and self._spawner.is_stopped():
            self._spawner.send(signal.SIGKILL)

    def _receive(self) -> None:
        data = receive(self._socket, 65536)
        if not data:
            self._loop.forget(self._socket)
            self._continue_spawner()  # if it was killed, its guard reports that
            return
        for line in self._buffer.feed(data):
            self._take(line.decode())

    def _take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "broken":
            reason = f"the worker spawner (pid {self._spawner.pid}) failed: {rest}"
            raise InternalError(reason, hint="please report it, with these lines and the command")
        if word == "refused":
            number, _, path = rest.partition(" ")
            raise _refused(int(number), path)
        if word == "holder":
            self._holder = int(rest)
            self._spawner.guards(self._holder)
            return
        if word == "ended":  # the process stays for the next generation
            self._loop.forget(self._spawner)
            self._spawner_gone = True
            return
        if word == "leaving":  # don't wait until the kernel has released its memory
            self._loop.forget(self._spawner)
            self._loop.on_readable(self._spawner, self._reap)
            self._spawner_gone = self._spawner_exiting = True
            return
        if word in ("frozen", "thawed"):
            self.frozen = word == "frozen"
            self._on_event(WorkersFrozen(self.frozen), self._loop.now())
            return
        local_rank, value, *times = rest.split()
        index = int(local_rank)
        now = self._loop.now()
        if word == "remains":
            remains = ProcessRemains(index, *system.name_and_user(index), value == "1")
            self.remaining[index] = remains
            self._on_event(remains, now)
            return
        if word == "started":
            self.pids[index] = int(value)
            self._on_event(WorkerStarted(index, self.ranks[index], int(value)), now)
        elif word in ("failed", "unborn"):
            self.evidence[index] = f"the program could not be started: {os.strerror(int(value))}"
            if word == "unborn":  # so there will be no exit message
                self._on_event(WorkerExited(index, 127), now)
        else:
            self._on_event(WorkerExited(index, int(value)), float(times[0]))

    def _let_end(self) -> None:
        """If only the guard was killed, let the spawner kill the workers and their descendants. If
        this process killed them itself and were killed halfway through, some of them would be left
        behind.
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        end = time.monotonic() + _LET_END_S
        self._command("end")
        with suppress(OSError):  # the spawner has exited as well
            self._socket.shutdown(socket.SHUT_WR)
        while self._socket in self._loop and poll.poll(max(0.0, end - time.monotonic()) * 1000):
            self._receive()

    def _on_spawner_exit(self) -> None:
        """Handle the spawner's exit by reading its last messages and killing the orphans that it
        has left behind.
        """
        self._loop.forget(self._spawner)
        exitcode = self._spawner.reap()
        if exitcode:
            how = "was killed" if exitcode == -signal.SIGKILL else f"ended with {exitcode}"
            reason = f"the worker spawner (pid {self._spawner.pid}) {how}"
            for local_rank in self.pids:
                self.evidence.setdefault(local_rank, reason)
            self._let_end()
            self._end_orphans(exitcode, reason, self._loop.now() + _ORPHANS_LIMIT_S)
        else:
            self._note_gone()

    def _end_orphans(self, exitcode: int, reason: str, until: float) -> None:
        """Kill a spawner's descendants repeatedly until none of them is left, and then report the
        spawner's exit.
        """
        if self._spawner.closed:
            return
        if self._spawner.kill_orphans() and self._loop.now() < until:
            self._loop.call_after(
                _ORPHANS_POLL_S, lambda: self._end_orphans(exitcode, reason, until)
            )
            return
        self._note_gone()
        for local_rank in range(len(self.ranks)):
            if local_rank in self.pids:
                self.evidence.setdefault(local_rank, reason)
            elif local_rank not in self.evidence:
                self.evidence[local_rank] = f"the program could not be started: {reason}"
                self._on_event(WorkerExited(local_rank, 127), self._loop.now())
        self._on_event(SpawnerLost(exitcode), self._loop.now())

    def _note_gone(self) -> None:
        self._spawner_gone = True
        while self._socket.fileno() in self._loop:
            self._receive()


def _not_started(error: OSError) -> MachineError:
    return MachineError(
        f"can't start processes on this machine: {error.strerror}",
        hint="check `ulimit -u`, `ulimit -n` and the container's pids limit",
    )


def _refused(number: int, path: str) -> MachineError:
    """Return the error for a spawner that can't continue."""
    hint = ""
    if number in (errno.EMFILE, errno.ENFILE):
        hint = "check `ulimit -n`"
    elif path.startswith("/proc"):
        hint = "mount /proc, which relight needs to find processes"
    what = f"{path}: {os.strerror(number)}" if path else os.strerror(number)
    return MachineError(f"can't supervise workers on this machine: {what}", hint=hint)
