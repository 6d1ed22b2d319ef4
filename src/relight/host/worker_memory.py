"""The memory that this agent shares with the workers of one generation (core/worker_words).

Each worker has a file, beside its error file, that it makes when it first calls a function of
`relight.worker`. So a job whose script calls none has no such files.
"""

import mmap
import os
from collections.abc import Callable, Mapping

from relight.core import worker_words as words
from relight.host.loop import Loop

_SEEN_AFTER_S = 0.002
"""After this time, a worker sees what this process has written before, and has counted a call that
had begun before.
"""


class WorkerMemory:
    """The files of one generation's workers.

    Args:
        loop: the agent's loop.
        error_files: the path of the error file by local rank; empty for none: then this worker
            shares no memory.
    """

    def __init__(self, loop: Loop, error_files: Mapping[int, str]) -> None:
        self._loop = loop
        self._paths = {rank: path + words.SUFFIX for rank, path in error_files.items() if path}
        self._open: dict[int, memoryview] = {}

    def calls(self) -> int:
        """Return how often a worker of this node has called `should_checkpoint` at most; 0 if none
        has.
        """
        for local_rank in self._paths:
            self._page(local_rank, make=False)
        return max((page[words.CALLS] for page in self._open.values()), default=0)

    def step(self) -> int | None:
        """Return the highest step that a worker of this node has reported, None if none has."""
        return max(self.steps().values(), default=None)

    def steps(self) -> dict[int, int]:
        """Return the step that each worker has reported last, by local rank, if it has."""
        return {rank: step for rank, (step, _) in self.progress().items()}

    def progress(self) -> dict[int, tuple[int, float]]:
        """Return the step that each worker has reported last, if it has, and when on the loop's
        clock, by local rank.
        """
        for local_rank in self._paths:
            self._page(local_rank, make=False)
        pages = self._open.items()
        return {
            rank: (page[words.STEP], page[words.STEP_AT] / 1e9)
            for rank, page in pages
            if page[words.STEP_AT]
        }

    def span(self) -> tuple[float, float] | None:
        """Return when a worker of this node has first and last reported a step, in seconds of the
        monotonic clock; None if none has.
        """
        self.steps()
        pages = [page for page in self._open.values() if page[words.FIRST_AT]]
        if not pages:
            return None
        first = min(page[words.FIRST_AT] for page in pages)
        return first / 1e9, max(page[words.STEP_AT] for page in pages) / 1e9

    def limit(self, call: int, answer: Callable[[int], None]) -> None:
        """Hold workers at a call of `should_checkpoint` until they are told more.

        Args:
            call: the number of the call, from 1; 0 for none.
            answer: called soon, with the most calls of a worker that may have missed this.
        """
        self._write(words.LIMIT, call)
        self._loop.call_after(_SEEN_AFTER_S, lambda: answer(self._calls_until_held()))

    def release(self) -> None:
        """Hold no worker any more, unless they agreed."""
        for page in self._open.values():
            page[words.LIMIT] = 0

    def agree(self, call: int, deadline: float) -> None:
        """Let the workers save and leave. If an earlier coordinator has told a call, it stands:
        workers may have passed the new one already.

        Args:
            call: the number of the call of `should_checkpoint`; 0 for the next.
            deadline: when they are stopped, on the loop's clock.
        """
        self._write(words.DEADLINE, int(deadline * 1e9))
        if self._agreed() < 2:
            self._write(words.AGREED, call or 1)

    def close(self) -> None:
        """Remove the files."""
        self._open.clear()
        for path in self._paths.values():
            try:
                os.unlink(path)
            except OSError:
                pass  # the worker has made none
        self._paths = {}

    def _agreed(self) -> int:
        return max((page[words.AGREED] for page in self._open.values()), default=0)

    def _calls_until_held(self) -> int:
        """Return how often workers may have called, or still may, as nothing holds them before."""
        return max(self.calls(), self._agreed() - 1)

    def _write(self, word: int, value: int) -> None:
        for local_rank in self._paths:
            page = self._page(local_rank, make=True)
            if page is not None:
                page[word] = value

    def _page(self, local_rank: int, *, make: bool) -> memoryview | None:
        if local_rank not in self._open:
            flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0)
            try:
                fd = os.open(self._paths[local_rank], flags, 0o600)
            except OSError:
                return None  # this worker has called nothing yet, or the disk is full
            try:
                os.truncate(fd, words.SIZE)  # the other side may have made an empty file
                self._open[local_rank] = memoryview(mmap.mmap(fd, words.SIZE)).cast("Q")
            except OSError:
                return None
            finally:
                os.close(fd)
        return self._open[local_rank]
