"""Preloads modules even if the user didn't request it, so that restarts are faster. This only
happens once the script's imports are complete, usually after the first optimizer step, and only if
enough memory is free.

When a job starts, only the code that watches the first worker is loaded. The rest is imported as
soon as it is known which modules that worker needs.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from relight.base.values import AUTO
from relight.core.status.preload_status import WAITING, PreloadStatus
from relight.core.workers import import_ahead
from relight.events.event_types import Event, WorkersForked
from relight.host.loop import Loop
from relight.processes.generation_pipe import WorkerPlan
from relight.processes.spawner import SpawnerProcess
from relight.processes.worker_processes import Fork
from relight.warm.watched_worker import WatchedWorker
from relight.warm.worker_program import WorkerProgram, files

if TYPE_CHECKING:
    from relight.warm.preloading import Preload


class BackgroundPreload:
    """Used instead of `Preload` until the script's imports are complete.

    Args:
        loop: the agent's loop.
        worker_program: the workers' program and variables.
        cold: the spawner that starts workers without preloaded modules.
        record: called with events.
        say: called with messages for the user.
    """

    def __init__(
        self,
        loop: Loop,
        worker_program: WorkerProgram,
        cold: SpawnerProcess,
        record: Callable[[Event], None],
        say: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._worker_program = worker_program
        self._cold = cold
        self._record = record
        self._say = say
        self._files = files()
        self._generations = 0
        self._obstacle = ""
        self._preload: Preload | None = None
        self._watched: WatchedWorker | None = None
        try:
            self._watched = WatchedWorker(loop)
        except OSError as error:
            self._obstacle = f"no worker can be observed: {error.strerror}"

    def wait(self, otherwise: Callable[[], bool]) -> None:
        """Return immediately, because generations never wait for these imports."""

    def while_idle(self) -> None:
        """Start the warm spawner while this node waits for a generation, if the modules are
        known.
        """
        if self._preload is not None:
            self._preload.while_idle()

    def variables(self, local_rank: int, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables that make a worker report its imports, if it should be
        watched.
        """
        if self._preload is not None:
            return self._preload.variables(local_rank, variables)
        if self._watched is None or local_rank or files() != self._files:
            return {}
        return self._watched.variables(variables)

    def fork(self, plans: Sequence[WorkerPlan], scratch: str) -> tuple[int, socket.socket]:
        """Start the workers, and return the spawner's pid and the agent's end of their socket.

        Raises:
            OSError: if no process can be forked, or no descriptor is left.
        """
        if self._preload is not None:
            return self._preload.fork(plans, scratch)
        self._generations += 1
        if self._generations > 1:
            self._record(WorkersForked(False, self._why_not()))
        if self._watched is None:
            return self._cold.fork(plans, scratch)
        self._watched.begin()
        held = self._cold.fork(plans, scratch)
        self._watched.poll(self._poll)
        return held

    def fork_beside(self) -> Fork | None:
        """Return a function that starts workers while others are running, or None if that is not
        possible.
        """
        return None if self._preload is None else self._preload.fork_beside()

    def status(self) -> PreloadStatus:
        """Return the progress of the imports."""
        if self._preload is None:
            return PreloadStatus(WAITING, self._why_not())
        return self._preload.status()

    def close(self) -> None:
        """Stop the warm spawner, and wait until it has exited. Its workers must already have
        exited.
        """
        if self._preload is not None:
            self._preload.close()
        elif self._watched is not None:
            self._watched.close()

    def _why_not(self) -> str:
        """Return why the imports have not started."""
        if self._obstacle or self._watched is None:
            return self._obstacle
        return import_ahead.why_incomplete(self._watched.seen())

    def _poll(self) -> None:
        """Start the warm spawner if it is due."""
        watched = self._watched
        if watched is None or not import_ahead.are_complete(watched.seen()):
            return
        from relight.host import free_memory  # by now, the agent is fully loaded

        self._obstacle = free_memory.why_scarce()
        if self._obstacle:
            return  # try again when more memory is free
        watched.stop()
        if files() != self._files:
            self._obstacle = "the files of relight have changed since this job started"
            return
        from relight.warm.preloading import Preload

        self._preload = Preload(
            self._loop, self._worker_program, [AUTO], self._cold, self._record, self._say, watched
        )
