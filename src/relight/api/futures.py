"""The futures returned by `relight.submit` and `relight.map`, and the threads that resolve them.

A job belongs to its scheduler. A future holds only the job's handle and the path of its results
directory. For each scheduler, one thread polls the states of all jobs in a single query and starts
the jobs that are waiting.
"""

import concurrent.futures
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from relight.api import function_hosts
from relight.api.function_results import LaunchRefusal, collect, first_exception
from relight.base.errors import MachineError, RelightError, UsageError, WorkersFailedError
from relight.job import records
from relight.job.app import AppState
from relight.job.handles import Handle, to_handle
from relight.job.status import AppStatus
from relight.runner import submitted
from relight.runner.runner import Runner

ROLE = "main"
SLURM = "slurm"
_QUERY_SHARE = 20
"""State queries may take up to 1/N of the total time, where N is this number. A state change may be
noticed late by the same fraction of the time since the previous change.
"""
_MIN_PAUSE_S, _MAX_PAUSE_S, _MAX_SLURM_PAUSE_S = 0.02, 0.5, 10.0
_LATE_S = 60.0
"""How long to wait for a finished Slurm job's results to become visible. NFS clients cache
directories for up to 60 s (nfs(5), acdirmax).
"""


class Started(NamedTuple):
    """A started job, with its results directory and, for ssh, the marker that begins its result
    lines.
    """

    handle: str
    directory: str
    word: str = ""


class Place(NamedTuple):
    """A slot that runs one job at a time, with its scheduler options and worker variables."""

    cfg: Mapping[str, Any] = {}
    env: Mapping[str, str] = {}


class Future(concurrent.futures.Future[Any]):
    """The result of a function that runs as a job. A `Future` works with `concurrent.futures.wait`
    and `as_completed`.

    If the job fails, `result` raises the exception from the rank that failed first, with its
    traceback as the cause. If there is no such exception, or the job ended for another reason,
    `result` raises a WorkersFailedError with the reason.

    Args:
        runner: submits the job.
        name: the name of the function.
        job: the job, or a function that starts it in a slot.
        places: free slots, which all jobs started by one `map` call share.
    """

    def __init__(
        self,
        runner: Runner,
        name: str,
        job: Started | Callable[[Place], Started],
        places: deque[Place] | None = None,
    ) -> None:
        super().__init__()
        self.runner, self._name, self._job = runner, name, job
        self._places = deque[Place]() if places is None else places
        self._lock = threading.RLock()
        self._job_state = AppState.UNSUBMITTED
        self._over_since: float | None = None

    @property
    def handle(self) -> str:
        """The job's handle, which `relight.attach`, `relight status` and other commands accept. The
        handle is empty while the job is waiting for a free slot on this machine.
        """
        return self._job.handle if isinstance(self._job, Started) else ""

    def result(self, timeout: float | None = None) -> Any:
        """Return the result of the function on rank 0."""
        __tracebackhide__ = True
        return self.results(timeout)[0]

    def results(self, timeout: float | None = None) -> list[Any]:
        """Return the results of the function on all ranks."""
        __tracebackhide__ = True
        found: list[Any] = super().result(timeout)
        return found

    def running(self) -> bool:
        """Return whether the job is running."""
        return not self.done() and self._job_state is AppState.RUNNING

    def cancel(self) -> bool:
        """Stop the job, even if it is running. Return False if it had already ended."""
        with self._lock:
            if self.done():
                return self.cancelled()
            if self.handle and self.runner.cancel_unless_over(self.handle)[0]:
                return False
            super().cancel()
            self.set_running_or_notify_cancel()
        return True

    def logs(self, node: int = 0) -> str:
        """Return one node's output so far, or an empty string before the job starts."""
        if not isinstance(self._job, Started):
            return ""
        mark = self._job.word or "\0"
        lines = self.runner.log_lines(self.handle, ROLE, node)
        parts = [line.partition(mark) for line in lines]
        return "\n".join(printed for printed, ours, _ in parts if printed or not ours)

    def __repr__(self) -> str:
        state = "CANCELLED" if self.cancelled() else self._job_state.name
        return f"<relight.Future {self._name} {self.handle or 'waiting'} {state}>"

    # Called by the thread that resolves the future.

    def start_if_possible(self) -> None:
        """Start the job if it is waiting and a slot is free.

        Raises:
            RelightError: if it can't be started.
        """
        with self._lock:
            if not isinstance(self._job, Started) and self._places and not self.done():
                place = self._places.popleft()
                self.add_done_callback(lambda _: self._places.append(place))
                self._job = self._job(place)

    def update(self, status: AppStatus | None) -> bool:
        """Update the job's state, or start the job if it is waiting. Return whether anything
        changed.
        """
        before = self._job_state
        if not self._lock.acquire(blocking=False):
            return False  # it is being cancelled
        try:
            if not isinstance(self._job, Started):
                self.start_if_possible()
            elif not self.done():
                self._update(self._job, status)
        except Exception as error:
            # The scheduler, or this machine, may recover.
            if not (isinstance(error, MachineError | OSError) and self.handle):
                self.set_exception(error)
        finally:
            self._lock.release()
        return self.done() or self._job_state is not before

    def fail(self, error: Exception) -> None:
        """Resolve the future with an error that did not occur in the job, unless the future is
        already resolved.
        """
        with self._lock:
            if not self.done():
                self.set_exception(error)

    def _update(self, job: Started, status: AppStatus | None) -> None:
        is_slurm, unknown = job.handle.startswith(SLURM), AppState.UNKNOWN
        if status is None or status.state.is_over or status.state is unknown:
            status = self.runner.status(job.handle)  # may read the job's files, and records the end
        self._job_state = status.state
        if not status.state.is_over and status.state is not unknown:
            self._over_since = None  # it may have been requeued
            return
        self._over_since = self._over_since or time.monotonic()
        is_late = not is_slurm or time.monotonic() - self._over_since > _LATE_S
        if job.word:
            function_hosts.keep_results(self.runner, *job)
        if status.state is AppState.SUCCEEDED:
            try:
                refusal = LaunchRefusal(job.directory)
                self.set_result(collect(job.directory, self._name, [0], refusal))
            except RelightError as wrong:
                if is_late:
                    self.set_exception(wrong.with_traceback(None))
        elif status.state is not unknown or is_late:
            is_failed = status.state is AppState.FAILED
            error = first_exception(job.directory) if is_failed else None
            why = f"{job.handle} {status.state.name}: {status.message or 'check its output'}"
            if error is None:
                error = WorkersFailedError(why, hint=f"relight logs {job.handle}")
            else:
                error.add_note(why)
            self.set_exception(error)


_watched: dict[str, list[Future]] = {}
_lock = threading.Lock()


def watch(scheduler: str, futures: Sequence[Future]) -> None:
    """Resolve futures in the background."""
    with _lock:
        watched = _watched.setdefault(scheduler, [])
        watched += futures
        if len(watched) == len(futures):
            threading.Thread(target=_follow, args=(scheduler, watched), daemon=True).start()


def _follow(scheduler: str, watched: list[Future]) -> None:
    changed = time.monotonic()
    while True:
        start = time.monotonic()
        if _refresh(scheduler, [*watched]):
            changed = start
        with _lock:
            watched[:] = [each for each in watched if not each.done()]
            if not watched:
                return
        now = time.monotonic()
        pause = max((now - changed) / _QUERY_SHARE, (now - start) * _QUERY_SHARE, _MIN_PAUSE_S)
        time.sleep(min(pause, _MAX_SLURM_PAUSE_S if scheduler == SLURM else _MAX_PAUSE_S))


def _refresh(scheduler: str, futures: Sequence[Future]) -> bool:
    """Update futures, and return whether any of them changed."""
    ids = {future.handle: to_handle(future.handle).app_id for future in futures if future.handle}
    try:
        found = futures[0].runner.scheduler(scheduler).status([*ids.values()]) if ids else {}
    except (RelightError, OSError):
        return False  # the scheduler, or this machine, may recover
    except Exception as error:  # a bug; futures can't be resolved without this thread
        for future in futures:
            future.fail(error)
        return True
    changes = [future.update(found.get(ids.get(future.handle, ""))) for future in futures]
    return any(changes)


def attach(handle: str) -> Future:
    """Return a future for a job that `relight.submit` or `relight.map` started, possibly in another
    process.

    Raises:
        UsageError: if the job is unknown.
    """
    if not isinstance(handle, str):
        raise UsageError(f"relight.attach: {handle!r} is not a string", hint="pass future.handle")
    runner = Runner()
    try:
        job = runner.find(handle)
    except UsageError as error:
        hint = f"pass future.handle; {error.hint}"
        raise UsageError(f"relight.attach: {error.message}", hint=hint) from None
    app_id, _, index = job.app_id.partition("_" if job.scheduler == SLURM else "/")
    record = submitted.find_record(Handle(job.scheduler, job.session, app_id))
    directory = ""
    if record is not None:
        top = call_directory(record["id"], record["cfg"], record["directory"])
        directory = os.path.join(top, index)
    if record is None or not os.path.exists(os.path.join(directory, "call.pickle")):
        raise UsageError(
            f"{job} was not started with relight.submit or relight.map", hint="see relight list"
        )
    word = function_hosts.attach_marker(record["id"]) if job.scheduler == "ssh" else ""
    future = Future(runner, record["name"], Started(str(job), directory, word))
    watch(job.scheduler, [future])
    return future


def call_directory(app_id: str, cfg: Mapping[str, Any], cwd: str) -> str:
    """Return the directory for a job's call and results. A job array has one such directory for
    each of its jobs. The directory is next to the logs, on a file system that the cluster's nodes
    share.
    """
    base = cfg.get("job_dir") or cfg.get("log_dir")
    return os.path.join(os.path.join(cwd, base, app_id) if base else records.path(app_id), "call")
