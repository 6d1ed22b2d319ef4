"""The memory that simulated workers share with their agent, and the steps they take."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from relight.core.workers import shared_words as words
from relight.processes.shared_pages import WorkerMemory

if TYPE_CHECKING:
    from .node import Workers

_SEEN_S = 0.001
_HELD_S = 0.01
"""How often a held worker checks whether it may continue."""


class Memory(WorkerMemory):
    """The shipped class, on this process's memory."""

    def __init__(
        self, loop: Any, error_files: Mapping[int, str], began: float, say: Callable[[str], None]
    ) -> None:
        super().__init__(loop, error_files, began, say)
        self._workers = workers = loop.process.world.agent_of(loop.process).workers
        self._shared: dict[int, memoryview] = workers.steps.pages
        self._paths = dict.fromkeys(self._shared, "")
        self._open = dict.fromkeys(self._shared, -1)

    def close(self) -> None:
        """Do nothing, as the workers own the memory."""

    def join(self, local_rank: int, variables: Mapping[str, str], count: int) -> None:
        """Tell a worker its ranks. They must match its agent's."""
        place = self._workers.formed.place
        told = variables["RANK"], variables["WORLD_SIZE"]
        assert told == (str(place.first_rank + local_rank), str(place.world_size))
        self._put(local_rank, words.JOIN, count)

    def replace(self, local_rank: int, error_file: str) -> None:
        """Do nothing, as the workers own the memory."""

    def _pages(self) -> Iterator[tuple[int, memoryview]]:
        yield from self._shared.items()

    def _put(self, local_rank: int, word: int, value: int) -> None:
        self._shared[local_rank][word] = value
        if word in (words.LEAVE, words.JOIN) and value:
            self._workers.recoverables.told(local_rank)


class Steps:
    """The steps taken by a node's workers.

    After each step they ask whether to save and leave, as in `relight.worker.should_checkpoint`.
    In some worlds they never ask.
    """

    def __init__(self, workers: "Workers", local_ranks: list[int]) -> None:
        self.pages: dict[int, memoryview] = {}
        self._workers = workers
        self._world = workers.world
        for local_rank in local_ranks:
            self.start(local_rank)

    def start(self, local_rank: int) -> None:
        """Start a worker with its own page."""
        page = self.pages[local_rank] = memoryview(bytearray(words.SIZE)).cast("Q")
        if self._world.step_s:
            self._later(local_rank, page)

    def _later(self, local_rank: int, page: memoryview) -> None:
        seconds = self._world.savings.uniform(0, 2 * self._world.step_s)
        self._world.after(seconds, self._step, local_rank, page)

    def _is_there(self, local_rank: int, page: memoryview) -> bool:
        return self._workers.has(local_rank) and self.pages[local_rank] is page

    def _step(self, local_rank: int, page: memoryview) -> None:
        workers = self._workers
        if not self._is_there(local_rank, page):
            return
        if not workers.trains(local_rank) or self._world.watch.stands_still(workers.node):
            self._later(local_rank, page)
            return
        call = page[words.CALLS] + 1
        leaves = words.leaves(page, call)  # another CPU sees the call a moment later
        self._world.after(_SEEN_S, self._called, local_rank, page, call, leaves)

    def _called(self, local_rank: int, page: memoryview, call: int, leaves: bool | None) -> None:
        workers = self._workers
        if not self._is_there(local_rank, page):
            return
        if local_rank in workers.recoverables.outside:  # it has left the group in the meantime
            self._later(local_rank, page)
            return
        page[words.CALLS] = call
        if call % 10 == 0 and not self._world.recoverable:
            page[words.STEP] = call
            page[words.STEP_AT] = int(workers.process.host.now() * 1e9)
        if leaves is None:
            leaves = words.leaves(page, call) if workers.run else None
            self._world.after(_HELD_S, self._called, local_rank, page, call, leaves)
        elif leaves:
            if page[words.AGREED] > 1:
                self._world.watch.saves(workers, call)
            seconds = self._world.savings.choice((0.01, 0.3, 2.0, 20.0))
            self._world.after(seconds, self._leave, local_rank)
        else:
            self._later(local_rank, page)

    def _leave(self, local_rank: int) -> None:
        if self._workers.trains(local_rank):
            self._workers.leave(local_rank)
        elif self._workers.has(local_rank):
            self._world.after(0.1, self._leave, local_rank)
