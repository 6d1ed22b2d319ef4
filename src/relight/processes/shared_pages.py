"""Manages the memory that this agent shares with one generation's workers
(core/workers/shared_words).

Each worker has a file next to its error file. The file is created when the worker first calls a
function in `relight.worker`, so a job whose script never calls one has no such files. If a worker
can't create its file, for example because the disk is full, it can neither report anything nor be
requested to save a checkpoint.

The agent reads and writes the file instead of mapping it, because the worker may truncate it at any
moment, and access beyond its end would raise SIGBUS.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from relight.core.workers import shared_words as words
from relight.host.loop import Loop
from relight.processes.shared_page import opened

_SEEN_AFTER_S = 0.002
"""After this time, a worker is certain to see what this process has written, and has certainly
counted any call that began before the write.
"""


class WorkerMemory:
    """The files that one generation's workers share with the agent.

    Args:
        loop: the agent's loop.
        error_files: the path of each worker's error file, by local rank. If the path is empty, the
            worker does not share memory.
        began: when the workers were started, or shortly before, on the loop's clock.
        say: prints a message to the user.
    """

    def __init__(
        self,
        loop: Loop,
        error_files: Mapping[int, str],
        began: float,
        say: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._paths = {rank: path + words.SUFFIX for rank, path in error_files.items() if path}
        self._open: dict[int, int] = {}  # descriptors, by local rank
        self._began = began
        self._say = say
        self._told = False
        self._agreed = 0
        """The number of the call that the workers have agreed on, or 0 if they have not agreed on a
        call yet.
        """
        self._last: list[tuple[int, memoryview]] = []
        """The final pages, with local ranks, after the files have been removed."""

    def calls(self) -> int:
        """Return the largest number of `should_checkpoint` calls by a single worker on this node,
        or 0 if no worker has called it.
        """
        return max((words.calls(page) for _, page in self._pages()), default=0)

    def step(self) -> int | None:
        """Return the highest step that a worker on this node has reported, or None if no worker has
        reported a step.
        """
        return max(self.steps().values(), default=None)

    def steps(self) -> dict[int, int]:
        """Return the latest reported step of each worker that has reported one, keyed by local
        rank.
        """
        return {rank: step for rank, (step, _) in self.progress().items()}

    def progress(self) -> dict[int, tuple[int, float]]:
        """Return the latest step of each worker that has reported one, and when it did so on the
        loop's clock, keyed by local rank.
        """
        found = {
            rank: words.progress(page, self._began, self._loop.now)
            for rank, page in self._last or self._pages()
        }
        return {rank: progress for rank, progress in found.items() if progress is not None}

    def totals(self) -> dict[int, int]:
        """Return each worker's total number of steps, keyed by local rank, for workers that report
        this number.
        """
        found = {rank: words.total(page) for rank, page in self._last or self._pages()}
        return {rank: total for rank, total in found.items() if total is not None}

    def values(self) -> dict[int, tuple[str, ...]]:
        """Return the numbers that each worker reported last, keyed by local rank."""
        return {rank: words.values(page) for rank, page in self._last or self._pages()}

    def span(self) -> tuple[float, float] | None:
        """Return the times when workers on this node first and last reported a step, in seconds on
        the monotonic clock, or None if no worker has reported a step.
        """
        found = [words.span(page, self._began, self._loop.now) for _, page in self._pages()]
        spans = [span for span in found if span is not None]
        if not spans:
            return None
        return min(first for first, _ in spans), max(last for _, last in spans)

    def limit(self, call: int, answer: Callable[[int], None]) -> None:
        """Block the workers at a given call to `should_checkpoint` until further notice.

        Args:
            call: the number of the call, counted from 1, or 0 for none.
            answer: called shortly afterwards, with the highest number of calls made by any worker
                that may have missed this limit.
        """
        self._write(words.LIMIT, call)
        self._loop.call_after(_SEEN_AFTER_S, lambda: answer(self._calls_until_held()))

    def release(self) -> None:
        """Unblock all workers, unless they have agreed on a call."""
        for local_rank in list(self._open):
            self._put(local_rank, words.LIMIT, 0)

    def agree(self, call: int, deadline: float) -> None:
        """Instruct the workers to save a checkpoint and exit. If an earlier coordinator has already
        set a call number, that number still applies, because workers may already have passed the
        new one.

        Args:
            call: the number of the `should_checkpoint` call, or 0 for the next call.
            deadline: when the workers are stopped, on the loop's clock.
        """
        latest = self._loop.now() + words.MAX_LEFT_S
        self._write(words.DEADLINE, int(min(deadline, latest) * 1e9))
        if self._agreed < 2:
            self._agreed = call or 1
            self._write(words.AGREED, self._agreed)

    def begin(self, began: float) -> None:
        """Begin the next generation. From now on, only new reports from the workers count.

        Args:
            began: when the next generation begins, on the loop's clock.
        """
        self._began = began

    def inside(self) -> set[int]:
        """Return the local ranks of workers that are running a recoverable function."""
        return {rank for rank, page in self._pages() if page[words.INSIDE] == 1}

    def have_begun(self) -> set[int]:
        """Return the local ranks of workers that are running or have run a recoverable function."""
        return {rank for rank, page in self._pages() if page[words.INSIDE] in (1, 2)}

    def leave(self, count: int) -> None:
        """Instruct the workers, including blocked ones, to leave their process group, the `count`th
        group that this job leaves.
        """
        self.release()
        self._write(words.LEAVE, count)

    def have_left(self, count: int) -> set[int]:
        """Return the local ranks of the workers that have left the `count`th process group."""
        return {rank for rank, page in self._pages() if page[words.LEFT] == count}

    def join(self, local_rank: int, variables: Mapping[str, str], count: int) -> None:
        """Instruct a worker that has left the `count`th process group to join the next group, with
        these variables.

        Raises:
            OSError: if they can't be written.
        """
        path = self._paths[local_rank].removesuffix(words.SUFFIX) + words.VARIABLES_SUFFIX
        with open(path, "w") as file:  # not read until JOIN signals that it is complete
            json.dump(variables, file)
        self._put(local_rank, words.JOIN, count)

    def have_joined(self, count: int) -> set[int]:
        """Return the local ranks of the workers that have joined the process group after the
        `count`th one.
        """
        return {rank for rank, page in self._pages() if page[words.JOINED] == count}

    def replace(self, local_rank: int, error_file: str) -> None:
        """Begin to share memory with a new worker, which replaces a worker that has ended."""
        if local_rank in self._open:
            os.close(self._open.pop(local_rank))
        self._paths.pop(local_rank, None)
        if error_file:
            self._paths[local_rank] = error_file + words.SUFFIX

    def close(self) -> None:
        """Remove the files. The latest steps and values reported by workers are kept."""
        self._last = self._last or list(self._pages())
        while self._open:
            os.close(self._open.popitem()[1])
        for path in self._paths.values():
            with suppress(OSError):  # the worker has created none
                os.unlink(path)
        self._paths = {}

    def _calls_until_held(self) -> int:
        """Return how many calls workers may have made by the time they are blocked."""
        return max(self.calls(), self._agreed - 1)

    def _write(self, word: int, value: int) -> None:
        for local_rank in self._paths:
            if self._find(local_rank, make=True):
                self._put(local_rank, word, value)

    def _put(self, local_rank: int, word: int, value: int) -> None:
        try:
            os.pwrite(self._open[local_rank], value.to_bytes(8, sys.byteorder), 8 * word)
        except OSError as error:  # the worker has left a hole in the file, and the disk is full
            self._warn(local_rank, error)

    def _pages(self) -> Iterator[tuple[int, memoryview]]:
        """Yield a copy of the memory of each worker that has created it, with its local rank."""
        for local_rank in self._paths:
            if not self._find(local_rank, make=False):
                continue
            try:
                page = os.pread(self._open[local_rank], words.SIZE, 0)
            except OSError as error:
                self._warn(local_rank, error)
                continue
            if len(page) == words.SIZE:
                yield local_rank, memoryview(page).cast("Q")

    def _find(self, local_rank: int, *, make: bool) -> bool:
        """Open a worker's file if it exists, or create it if `make` is set. Return whether the file
        is open.
        """
        if local_rank not in self._open:
            try:
                self._open[local_rank] = opened(self._paths[local_rank], make=make)
            except FileNotFoundError:
                return False  # this worker has not called anything yet
            except OSError as error:
                self._warn(local_rank, error)
                return False
        return True

    def _warn(self, local_rank: int, error: OSError) -> None:
        if not self._told:
            self._told = True
            self._say(
                f"can't share {self._paths[local_rank]} with local rank {local_rank}: "
                f"{error.strerror}; its steps are unknown, and it can't be told to save a "
                "checkpoint"
            )
