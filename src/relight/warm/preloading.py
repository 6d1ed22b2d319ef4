"""Decides when to start the warm spawner, and chooses its imports and its environment variables.

`Preload.fork` is used instead of the cold spawner's `fork`. If the warm spawner is ready, it forks
a generation's workers. Otherwise, the workers start cold. At most one warm spawner is in use.

    named modules   if there are at least 1.5 workers per CPU, or with --keep-warm, the warm
                    spawner starts first, and the first generation waits for it. Otherwise, the
                    first worker of the first generation, which starts cold, is watched. When it
                    imports the first of these modules, the warm spawner starts alongside it at the
                    lowest priority
    being made      another job's warm process for the same script is importing its modules. This
                    job waits for as long as that process may be ready before its own imports would
                    be, and then takes the process over. Otherwise the job starts cold, and its next
                    generation takes the process over
    auto            the modules are those that an earlier job with the same script imported
                    (warm/import_profile). Without such a job, the first worker is watched, and the
                    warm spawner starts after its first optimizer step, at the lowest priority
    background      the same as auto, except that everything begins once the script's imports are
                    complete, usually after the first step (`warm/background_preload.py`), and that
                    processes from other jobs are not used
    more            with auto, the first worker of each generation is watched. If it imports modules
                    that the warm spawner lacks, and if it pays off (core/workers/import_ahead), a
                    second warm spawner imports them all. It replaces the first one between two
                    generations
    waiting         while this node waits, as a spare or for other nodes, the warm spawner starts if
                    its modules are known, because no workers are running here that it could disturb
    lost            a lost warm spawner is started again, at the lowest priority, when the next
                    generation has begun
    kept            with --keep-warm, the warm process outlives the job. The next job uses it from
                    the beginning if it is suitable (`warm/warm_processes.py`), whether or not that
                    job has --keep-warm

Environment variables that the script sets before its imports are adopted, which means that the warm
spawner sets them too before it imports the modules. A worker that sets different values restarts
itself cold (`preload/lazy_modules.py`), and the next warm spawner uses those values.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from relight.base.errors import MachineError
from relight.base.text import format_duration, pluralize
from relight.core.status.preload_status import (
    IMPORTING,
    READY,
    UNUSABLE,
    WAITING,
    LeftOut,
    PreloadStatus,
)
from relight.core.workers import import_ahead
from relight.core.workers.import_ahead import ImportProgress
from relight.events.event_types import (
    Event,
    PreloadReady,
    PreloadStarted,
    PreloadUnfit,
    PreloadWithout,
    WorkersForked,
)
from relight.host import linux
from relight.host.loop import Alarm, Loop
from relight.processes.generation_pipe import WorkerPlan
from relight.processes.spawner import SpawnerProcess
from relight.processes.worker_processes import Fork
from relight.warm import script_scan, warm_processes, warm_spawner
from relight.warm.import_list import ImportList
from relight.warm.import_profile import LearnedFile
from relight.warm.script_variables import ScriptVariables
from relight.warm.warm_processes import WarmProcesses
from relight.warm.warm_sockets import BeingMade
from relight.warm.warm_spawner import ANSWER_S, SpawnerHandle, WarmSpawner
from relight.warm.watched_worker import WatchedWorker
from relight.warm.worker_program import WorkerProgram, files

_END_LIMIT_S = 1.0
_GUARD_S = 1.0
"""How long a warm spawner's guard may take to exit after SIGKILL."""
_SILENT_S = 10.0
_PATIENCE_S = 120.0
"""How long the first generation waits for modules that the user has specified. Cold workers would
have to import these modules anyway.
"""
_TRIES = 3
_POLL_S = 0.02
_LONG_S = 2.0
_LONGEST_START_S = 120.0
"""If a cold start takes longer than this, its duration says nothing about the import time."""


class Preload:
    """Starts, uses and restarts the warm spawner.

    Args:
        loop: the agent's loop.
        worker_program: the workers' program and variables.
        modules: the modules to import, or AUTO.
        cold: the spawner that starts workers without preloaded modules.
        record: called with events.
        say: called with messages for the user.
        watched: a worker in the first generation that has finished its imports, or None if there
            hasn't been a generation yet.
    """

    def __init__(
        self,
        loop: Loop,
        worker_program: WorkerProgram,
        modules: Sequence[str],
        cold: SpawnerProcess,
        record: Callable[[Event], None],
        say: Callable[[str], None],
        watched: WatchedWorker | None = None,
    ) -> None:
        linux.adopt_orphans()  # a process that an import started must not outlive the agent
        self._guards: set[int] = set()  # guards of stopped warm spawners, to be reaped
        self._loop = loop
        self._worker_program = worker_program
        self._modules = ImportList(worker_program, modules)
        self._cold = cold
        self._record = record
        self._say = say
        self._spawner: WarmSpawner | None = None
        self._asked: tuple[str, ...] | None = None  # modules that the latest process imports
        self._next: WarmSpawner | None = None
        self._replaced = 0
        self._lent = False
        self._processes = WarmProcesses(worker_program)
        self._why_not = ""
        self._script = ScriptVariables()
        self._tries = _TRIES
        self._generations = 0
        self._watched = watched
        self._is_taken = False
        self._first_cold = False
        self._files = files()
        self._is_held_up = False
        self._left_out: dict[str, str] = {}
        if watched is not None:
            self._generations, self._first_cold = 1, True
            self._learn()
            return
        self._is_held_up = self._processes.being_made() is not None
        if not self._is_held_up:
            self._take_or_start()

    def _take_or_start(self) -> None:
        self._is_taken = self._take()
        if self._modules.is_auto:
            self._watch()
        if self._is_taken:
            return
        modules = self._modules
        if modules.learned is not None:
            modules.names = modules.learned.known.fit
            for unfit in modules.learned.known.unfit:
                self._note_left_out(PreloadWithout(*unfit, asked=False))
        self._why_not = "" if modules.names else "the script's imports are not known yet"
        if modules.names and _waits(self._worker_program, modules.learned):
            self._start(low_priority=False)
            return
        self._watch()
        self._why_not = self._why_not or "with so few workers, preloading would not be faster"

    def _watch(self) -> None:
        """Set up shared memory for the first worker's imports."""
        if self._watched is None:
            try:
                self._watched = WatchedWorker(self._loop)
            except OSError as error:
                raise MachineError(
                    f"can't allocate shared memory for preloaded module names: {error.strerror}",
                    hint="check `ulimit -n`",
                ) from None

    def _take(self) -> bool:
        """Try to take over a suitable warm process that an earlier job has left behind."""
        asked = [] if self._modules.is_auto else self._modules.names
        taken = self._processes.take(asked, self._record)
        if taken is None:
            return False
        origin, description = taken
        self._modules.names = self._modules.names or list(description.asked)
        self._asked = description.asked
        self._spawner = WarmSpawner(self._loop, origin, self)
        return True

    def _is_settled(self) -> bool:
        """Return whether the first generation can start without waiting."""
        return self._spawner is None or self._spawner.is_ready or bool(self._generations)

    def wait(self, otherwise: Callable[[], bool]) -> None:
        """Wait, up to a time limit, until the warm spawner is ready for the first generation. If
        another warm process is being created for the same script, wait for that process first,
        because it may be suitable.
        """
        if self._is_held_up:
            self._await_other(otherwise)
        if self._is_settled():
            return
        silent = self._loop.call_after(_SILENT_S, self._report_slow)
        self._loop.run_until(lambda: self._is_settled() or otherwise(), _PATIENCE_S)
        silent.cancel()
        if not self._is_settled() and not otherwise():
            self._note_endless_import()

    def _await_other(self, otherwise: Callable[[], bool]) -> None:
        """Wait until no other warm process is being created. Then take over a warm process, or
        start a warm spawner.
        """
        began = self._loop.now()

        def look() -> None:
            made, waited_s = self._processes.being_made(), self._loop.now() - began
            self._is_held_up = made is not None and self._pays_to_wait(made, waited_s)
            if self._is_held_up:
                alarm.set_after(_POLL_S)

        alarm = Alarm(self._loop, look)
        silent = self._loop.call_after(_LONG_S, self._report_held_up)
        look()
        self._loop.run_until(lambda: not self._is_held_up or otherwise())
        silent.cancel()
        alarm.set(None)
        self._is_held_up = False
        if not otherwise():
            self._take_or_start()

    def _pays_to_wait(self, made: BeingMade, waited_s: float) -> bool:
        """Return whether to wait for another job's process that is still importing its modules."""
        if not made.guard:
            return waited_s < import_ahead.UNKNOWN_S
        learned = self._modules.learned
        import_s = (learned.known.import_s if learned is not None else 0.0) or None
        progress = ImportProgress(
            modules=made.modules,
            imported=made.imported,
            elapsed_s=max(0.0, time.monotonic() - made.began_s),
            expected_s=import_s,
            is_low_priority=made.is_low_priority,
        )
        return import_ahead.pays_to_wait(progress, waited_s, import_s)

    def while_idle(self) -> None:
        """Start the warm spawner while this node waits for a generation, if its modules are known.
        If the script sets environment variables, its first worker is watched instead.
        """
        modules = self._modules
        if not modules.names or (self._spawner or self._next) is not None or not self._tries:
            return
        if self._generations or not _sets_variables(self._worker_program, modules.learned):
            self._reclaim()
            self._start()  # at low priority, because a generation may begin before it is ready

    def variables(self, local_rank: int, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables that make a worker report its imports, if this worker is
        to be watched.
        """
        is_ready = self._spawner is not None and self._spawner.is_ready
        if self._watched is None or local_rank or self._is_upgraded():
            return {}
        if not self._modules.is_auto and (self._generations or is_ready):
            return {}
        return self._watched.variables(variables)

    def fork(self, plans: Sequence[WorkerPlan], scratch: str) -> tuple[int, socket.socket]:
        """Start the workers, and return the spawner's pid and the agent's end of their socket.

        Raises:
            OSError: if no process can be forked, or no descriptor is left.
        """
        self._reclaim()
        self._end_outdated()
        self._generations += 1
        if self._watched is not None:
            self._watched.begin()
        self._replace_if_ready()
        self._adopt_other()
        warm = self._spawner
        if warm is not None and warm.is_ready:
            connection = self._fork_warm(warm, plans, scratch)
            if connection is not None:
                self._lent = True
                self._record(WorkersForked(True, ""))
                self._learn_from_worker()
                return warm.guard, connection
        why_not = self._why_not
        if self._spawner is not None and not why_not:
            why_not = self._spawner.describe_progress("it is not ready")
        self._record(WorkersForked(False, why_not))
        self._first_cold = self._first_cold or self._generations == 1
        held = self._cold.fork(plans, scratch)
        if self._watched is not None and self._generations == 1 and self._modules.names:
            self._watched.when_imports(self._modules.third_party(), self._learn)
        else:
            if self._generations > 1 and self._modules.names:
                self._start()
            self._learn_from_worker()
        return held

    def _learn_from_worker(self) -> None:
        """Periodically check whether the first worker has imported a module that is not
        preloaded.
        """
        if self._watched is not None and self._modules.is_auto:
            self._watched.poll(self._poll)

    def _poll(self) -> None:
        watched, modules = self._watched, self._modules
        assert watched is not None
        seen = watched.seen()
        if self._asked is None:
            if import_ahead.are_complete(seen):
                self._learn()
        elif self._spawner is not None and self._spawner.is_ready and self._next is None:
            lacking = modules.lacking(watched.imports(), set(self._asked))
            if import_ahead.pays_to_replace(
                len(lacking), len(self._asked), seen.quiet_s, self._replaced
            ):
                self._begin_successor()

    def _begin_successor(self) -> None:
        """Start a warm spawner that imports all modules, to replace the current one, which lacks
        some.
        """
        assert self._watched is not None
        self._replaced += 1
        self._modules.add(self._watched.imports())
        # The current one stays in use, and `_replaced` delays the next attempt.
        with suppress(OSError):
            self._next = self._begin_spawner(low_priority=True)

    def _replace_if_ready(self) -> None:
        """Replace the warm spawner with its successor, unless the current one has workers as
        children.
        """
        if self._next is not None and self._next.is_ready and not self._lent:
            successor, self._next = self._next, None
            self._stop()
            self._reap_guards()
            self._spawner = successor

    def _give_up_successor(self, reason: str) -> None:
        """Stop a successor that turned out to be unusable."""
        if self._next is not None:
            self._record(PreloadUnfit(reason, not self._modules.is_auto))
            self._end(self._next)
            self._next = None

    def _adopt_other(self) -> None:
        """Take over a warm process that was not ready when this job started."""
        is_free = self._spawner is self._next is None and not self._worker_program.in_background
        if self._generations > 1 and is_free and self._tries:
            self._is_taken = self._take()
            if self._spawner is not None:
                self._loop.run_until(
                    lambda: self._spawner is None or self._spawner.is_ready, ANSWER_S
                )

    def fork_beside(self) -> Fork | None:
        """Return a function that starts workers while workers from another spawner are running.
        Return None if the warm spawner is not ready, or if the running workers are its own.
        """
        warm = self._spawner
        return self.fork if warm is not None and warm.is_ready and not self._lent else None

    def close(self) -> None:
        """Stop the warm spawner, and wait until it has exited. Its workers must already have
        exited. With --keep-warm, a warm process is kept for the next job, or is started now.
        """
        self._remember()
        if self._worker_program.keep is not None and self._generations:
            self._keep()
        self._stop()
        if self._next is not None:
            self._end(self._next, is_kept=self._worker_program.keep is not None)
        self._reclaim()
        self._end_orphans()
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.close()

    def _remember(self) -> None:
        """Store the profile for the next job with this script."""
        learned, watched = self._modules.learned, self._watched
        if learned is None:
            return
        imports, writes = list[str](), self._script.names()
        if watched is not None:
            imports = watched.imports()
            writes |= watched.writes().keys()
            if self._first_cold and (start_s := watched.first_start_s()) < _LONGEST_START_S:
                learned.note_seconds(start_s)
        if imports or writes or not self._is_taken:
            learned.add(imports, sorted(writes), are_all=self._first_cold)

    def _keep(self) -> None:
        """Leave a warm process with all modules behind for the next job."""
        self._record = lambda _: None  # this job is over
        stale, can_help = self._script.adopt()
        imports = [] if self._watched is None else self._watched.imports()
        newest = self._next or self._spawner
        if newest is None and not stale:
            other = self._processes.find([])
            if other is not None and not self._modules.lacking(imports, other.asked):
                return
        elif not stale and not self._modules.lacking(imports, self._asked or ()):
            return
        for spawner in (self._next, self._spawner):
            if spawner is not None:
                self._end(spawner)
        self._next = self._spawner = None
        self._tries = _TRIES if can_help else 0
        if stale:
            self._processes.discard()
        self._modules.add(imports)
        self._learn(low_priority=False)

    def ready(self, event: PreloadReady) -> None:
        """Record that the warm spawner can fork workers."""
        self._tries = _TRIES
        if self._modules.learned is not None and not self._is_taken:
            self._modules.learned.note_seconds(event.seconds)
        self._record(event)
        self._replace_if_ready()

    def without(self, module: str, reason: str, seconds: float) -> None:
        """Report a module that the warm spawner did not preload."""
        if self._modules.learned is not None:
            self._modules.learned.note_unfit(module, reason, seconds)
        self._note_left_out(PreloadWithout(module, reason, seconds, not self._modules.is_auto))

    def _note_left_out(self, event: PreloadWithout) -> None:
        self._left_out[event.module] = event.reason
        self._record(event)

    def status(self) -> PreloadStatus:
        """Return the progress of the imports."""
        left_out = tuple(LeftOut(*each) for each in self._left_out.items())
        if self._spawner is None:
            is_over = self._asked is not None and not self._tries
            return PreloadStatus(UNUSABLE if is_over else WAITING, self._why_not, left_out=left_out)
        asked, spawner = self._asked or (), self._spawner
        if spawner.is_ready:
            return PreloadStatus(READY, "", len(asked), len(asked), left_out=left_out)
        importing = spawner.importing
        imported = asked.index(importing) if importing in asked else 0
        seconds = self._loop.now() - spawner.began
        return PreloadStatus(
            IMPORTING, "", len(asked), imported, importing, seconds, left_out=left_out
        )

    def learned(self, unfit: dict[str, str], directories: list[str]) -> None:
        """Store the workers' imports for the next job with this script."""
        self._modules.write(unfit, directories)

    def wrote(self, name: str, value: str | None, *, by_library: bool) -> None:
        """Record an environment variable that a worker's script, or a library, has set before an
        import.
        """
        self._script.report(name, value, by_library=by_library)

    def lost(self, spawner: WarmSpawner, reason: str, *, retry: bool) -> None:
        """Stop a warm spawner that can't be used. If it is a successor, the current one stays in
        use.
        """
        if spawner is self._next:
            self._give_up_successor(reason)
        else:
            self._give_up(reason, retry=retry)

    def _give_up(self, reason: str, *, retry: bool) -> None:
        """Stop the current warm spawner, if any. If `retry` is set, the next generation starts
        another one.
        """
        self._why_not = reason
        self._record(PreloadUnfit(reason, not self._modules.is_auto))
        self._stop()
        if not self._lent:
            self._reclaim()
            self._end_orphans()
        if not retry:
            self._tries = 0

    def _note_endless_import(self) -> None:
        """Record the module that has taken most of the time, if its import has not finished."""
        warm, learned = self._spawner, self._modules.learned
        if learned is not None and warm is not None and warm.importing:
            seconds = self._loop.now() - warm.importing_since
            if seconds > _PATIENCE_S / 2:
                reason = f"its import took longer than {format_duration(seconds)}"
                learned.note_endless(warm.importing, reason, seconds)

    def _report_held_up(self) -> None:
        self._say(
            "preload: another job's process for this script is importing its modules; the workers "
            "start when it has finished, or without it if a cold start is faster"
        )

    def _report_slow(self) -> None:
        if self._spawner is not None and not self._is_settled():
            importing = self._spawner.importing
            what = f"{importing} is being imported" if importing else "it is starting"
            left = format_duration(_PATIENCE_S - _SILENT_S)
            self._say(
                f"preload: {what} (pid {self._spawner.pid}); the workers start when this is done, "
                f"or without it after {left}"
            )

    def _fork_warm(
        self, warm: WarmSpawner, plans: Sequence[WorkerPlan], scratch: str
    ) -> socket.socket | None:
        """Make the warm spawner fork the workers, and return the agent's end of the socket. Return
        None if forking fails.
        """
        try:
            connection = warm.send(plans, scratch, self._cold.held())
        except OSError as error:
            warm.hear()  # it may have sent the reason why it closed the socket
            if not warm.is_stopped:
                self._give_up(
                    f"can't send it the list of workers to fork: {error.strerror}", retry=True
                )
            return None
        if warm.wait_forked(connection):
            return connection
        if not warm.is_stopped:
            self._give_up(f"it has not forked the workers within {ANSWER_S:.0f} s", retry=False)
        connection.close()  # an earlier close would tell the spawner that this process exited
        self._tries = 0
        return None

    def _learn(self, *, low_priority: bool = True) -> None:
        """Start the warm spawner with the modules that the watched worker has imported."""
        modules = self._modules
        if not modules.names and self._watched is not None:
            modules.add(self._watched.imports())
        if modules.names:
            self._start(low_priority=low_priority)
        else:
            self._why_not = "no worker could be observed"
        if self._generations == 1:
            self._learn_from_worker()

    def _end_outdated(self) -> None:
        """Stop a warm spawner that imported its modules while environment variables had different
        values from those that the script sets.
        """
        reason, can_help = self._script.adopt()
        if reason:
            self._processes.discard()
            self._give_up_successor(reason)
            self._give_up(reason, retry=can_help)

    def _start(self, *, low_priority: bool = True) -> None:
        """Start the warm spawner, unless there already is one or it has been given up."""
        if (self._spawner or self._next) is not None or not self._tries:
            return
        if self._watched is not None and self._asked is None:
            self._script.add(self._watched.writes())
            self._watched.stop()
        self._tries -= 1
        self._why_not = ""
        if self._is_upgraded():
            self._give_up("the files of relight have changed since this job started", retry=False)
            return
        try:
            self._spawner = self._begin_spawner(low_priority=low_priority)
        except BlockingIOError:
            self._why_not = "a warm process for another job is importing these modules"
            return
        except OSError as error:
            self._why_not = f"it can't be started: {error.strerror or error}"
            self._record(PreloadUnfit(self._why_not, not self._modules.is_auto))

    def _begin_spawner(self, *, low_priority: bool) -> WarmSpawner:
        """Start a process that imports all known modules.

        Raises:
            BlockingIOError: if another job has started a process that will outlive that job and is
                importing modules now.
            OSError: if no process can be forked, or no descriptor is left.
        """
        worker, names, learned = self._worker_program, self._modules.names, self._modules.learned
        setup = instructions(worker, names, learned, self._script.values, low_priority=low_priority)
        spawner = WarmSpawner(self._loop, self._begin(setup), self)
        self._asked = tuple(names)
        what = ",".join(names) if learned is None else pluralize(len(names), "module")
        self._record(PreloadStarted(spawner.pid, what))
        return spawner

    def _is_upgraded(self) -> bool:
        """Return whether relight has been upgraded, so that a new process would run a different
        version than this process does.
        """
        return files() != self._files

    def _begin(self, setup: dict[str, Any]) -> SpawnerHandle:
        """Start a process. The process outlives the job, if this is requested and possible."""
        if self._worker_program.keep is not None:
            try:
                return self._processes.start(setup)
            except BlockingIOError:
                raise
            except OSError as error:
                where = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
                self._say(f"preload: --keep-warm has no effect: {where}")
        return warm_spawner.start(self._worker_program, setup)

    def _stop(self) -> None:
        if self._spawner is not None:
            self._end(self._spawner, is_kept=True)
            self._spawner = None

    def _end(self, spawner: WarmSpawner, *, is_kept: bool = False) -> None:
        """Stop a warm spawner. If the process that it belongs to is still importing modules and is
        not to be kept, kill that process too.
        """
        if spawner.is_lasting and not spawner.guard and not is_kept:
            warm_processes.stop_imports(spawner.pid)
            end = self._loop.now() + _GUARD_S
            while self._processes.being_made() and self._loop.now() < end:
                time.sleep(_POLL_S)
        spawner.stop()
        if spawner.guard:
            self._guards.add(spawner.guard)

    def _reclaim(self) -> None:
        self._lent = False
        self._reap_guards()

    def _reap_guards(self) -> None:
        """Reap the guards of stopped warm spawners, unless a generation has already done so."""
        while self._guards:
            with suppress(ChildProcessError):
                linux.reap(self._guards.pop(), _GUARD_S)

    @staticmethod
    def _end_orphans() -> None:
        """Kill the processes that imports have started."""
        linux.end_children(_END_LIMIT_S, linux.own_children)


def instructions(
    worker: WorkerProgram,
    modules: Sequence[str],
    learned: LearnedFile | None,
    writes: Mapping[str, str | None],
    *,
    low_priority: bool,
) -> dict[str, Any]:
    """Return the instructions for a process that imports modules (`preload/warm_fork.py`).

    Args:
        worker: the workers' program.
        modules: the modules to import.
        learned: the profile that the modules come from, if --preload=auto is used.
        writes: the environment variables that the script sets, or removes (None), before its
            imports.
        low_priority: whether the process runs at the lowest priority.
    """
    return {
        "agent": os.getpid(),
        "program": worker.program,
        "argv": worker.argv,
        "modules": list(modules),
        "learned": learned is not None,
        "culprits": learned.known.culprits if learned is not None else (),
        "low_priority": low_priority,
        "in_background": worker.in_background,
        "own": worker.own,
        "writes": {name: writes[name] for name in writes if name not in worker.own},
        "relight": os.path.dirname(os.path.dirname(os.path.dirname(__file__))),
        "keep": None,
    }


def _waits(worker: WorkerProgram, learned: LearnedFile | None) -> bool:
    """Return whether it is faster to wait for the warm spawner than to import the modules in every
    worker, or whether the next job needs the warm spawner anyway.

    Checking whether the modules can be preloaded takes about a third of the import time.
    """
    crowded = 2 * worker.local_world_size >= 3 * linux.cpus()
    return (crowded or worker.keep is not None) and not _sets_variables(worker, learned)


def _sets_variables(worker: WorkerProgram, learned: LearnedFile | None) -> bool:
    """Return whether the script sets environment variables, as far as this can be determined before
    the script runs.
    """
    return bool(learned and learned.known.writes) or script_scan.sets_variables(worker.argv)
