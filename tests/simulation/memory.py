"""The memory that simulated workers share with their agent, and the steps that they take."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from relight.core.workers import shared_words as words
from relight.processes.shared_pages import WorkerMemory

if TYPE_CHECKING:
    from .node import Workers

_SEEN_S = 0.001
_HELD_S = 0.01
"""How often a worker that is held looks whether it may continue."""


class Memory(WorkerMemory):
    """The shipped one, on memory of this process."""

    def __init__(
        self, loop: Any, error_files: Mapping[int, str], began: float, say: Callable[[str], None]
    ) -> None:
        super().__init__(loop, error_files, began, say)
        workers = loop.process.world.agent_of(loop.process).workers
        self._shared: dict[int, memoryview] = workers.steps.pages
        self._paths = dict.fromkeys(self._shared, "")
        self._open = dict.fromkeys(self._shared, -1)

    def close(self) -> None:
        """Leave it to the workers."""

    def _pages(self) -> Iterator[tuple[int, memoryview]]:
        yield from self._shared.items()

    def _put(self, local_rank: int, word: int, value: int) -> None:
        self._shared[local_rank][word] = value


class Steps:
    """The steps of a node's workers; after each they ask whether to save and leave, as
    `relight.worker.should_checkpoint` does. In some worlds they never ask.
    """

    def __init__(self, workers: "Workers", local_ranks: list[int]) -> None:
        self.pages = {rank: memoryview(bytearray(words.SIZE)).cast("Q") for rank in local_ranks}
        self._workers = workers
        self._world = workers.world
        for local_rank in self.pages if self._world.step_s else ():
            self._later(local_rank)

    def _later(self, local_rank: int) -> None:
        seconds = self._world.savings.uniform(0, 2 * self._world.step_s)
        self._world.after(seconds, self._step, local_rank)

    def _step(self, local_rank: int) -> None:
        workers = self._workers
        if not workers.has(local_rank):
            return
        if not workers.run or self._world.watch.stands_still(workers.node):
            self._later(local_rank)
            return
        page = self.pages[local_rank]
        call = page[words.CALLS] + 1
        leaves = words.leaves(page, call)  # the other processor sees the call a moment later
        self._world.after(_SEEN_S, self._called, local_rank, call, leaves)

    def _called(self, local_rank: int, call: int, leaves: bool | None) -> None:
        workers, page = self._workers, self.pages[local_rank]
        if not workers.has(local_rank):
            return
        page[words.CALLS] = call
        if call % 10 == 0:
            page[words.STEP] = call
            page[words.STEP_AT] = int(workers.process.host.now() * 1e9)
        if leaves is None:
            leaves = words.leaves(page, call) if workers.run else None
            self._world.after(_HELD_S, self._called, local_rank, call, leaves)
        elif leaves:
            if page[words.AGREED] > 1:
                self._world.watch.saves(workers, call)
            seconds = self._world.savings.choice((0.01, 0.3, 2.0, 20.0))
            self._world.after(seconds, self._leave, local_rank)
        else:
            self._later(local_rank)

    def _leave(self, local_rank: int) -> None:
        if self._workers.run:
            self._workers.leave(local_rank)
        elif self._workers.has(local_rank):
            self._world.after(0.1, self._leave, local_rank)
