"""Simulated workers in a recoverable function.

They leave a broken group and join the next one, as in worker/survivor. Some never enter the
function, and some take longer than allowed.
"""

from random import Random
from typing import TYPE_CHECKING

from relight.core.ranks import NO_GENERATION, GenerationId
from relight.core.workers import shared_words as words

if TYPE_CHECKING:
    from .node import Workers

_RETRY_S = 0.1
"""How often a frozen or held worker checks again."""


class Recoverables:
    """The workers on one node that may keep their processes. Some worlds lack such workers.

    Args:
        workers: All workers on the node.
    """

    def __init__(self, workers: "Workers") -> None:
        self._workers = workers
        self._world = workers.world
        self._random: Random = workers.world.survivors
        self.outside: dict[int, GenerationId] = {}
        """The workers that have left their group, and the generation they were in."""
        self._busy: set[int] = set()

    def start(self, local_rank: int) -> None:
        """Handle a worker that has started."""
        self.outside.pop(local_rank, None)
        self._busy.discard(local_rank)
        if self._world.recoverable and self._random.random() > 0.03:
            page = self._workers.steps.pages[local_rank]
            self._world.after(self._random.uniform(0, 0.3), self._enter, local_rank, page)

    def told(self, local_rank: int) -> None:
        """React to a word that the agent has changed."""
        if local_rank not in self._busy:
            self._busy.add(local_rank)
            page, joins = self._workers.steps.pages[local_rank], local_rank in self.outside
            often = (0.001, 0.05) if joins else (0.001, 0.001, 0.05, 0.5, 2.0, 20.0)
            self._world.after(self._random.choice(often), self._obey, local_rank, page)

    def _enter(self, local_rank: int, page: memoryview) -> None:
        if self._is_there(local_rank, page):
            page[words.INSIDE] = 1
            self._later(local_rank, page)

    def _later(self, local_rank: int, page: memoryview) -> None:
        seconds = self._random.choice((0.1, 1.0, 10.0)) * self._random.random()
        if self._world.hang_timeout is not None:  # a longer silence may count as a hang
            seconds = min(seconds, self._world.hang_timeout.silent_s / 2)
        self._world.after(seconds, self._advance, local_rank, page)

    def _advance(self, local_rank: int, page: memoryview) -> None:
        """Complete a step in a worker."""
        workers = self._workers
        if not self._is_there(local_rank, page):
            return
        stands = self._world.watch.stands_still(workers.node)
        if workers.trains(local_rank) and not stands and page[words.LEAVE] == page[words.LEFT]:
            page[words.STEP] = self._world.watch.advances(workers)
            page[words.STEP_AT] = int(workers.process.host.now() * 1e9)
        self._later(local_rank, page)

    def _obey(self, local_rank: int, page: memoryview) -> None:
        workers = self._workers
        self._busy.discard(local_rank)
        if not self._is_there(local_rank, page) or self._world.watch.is_stuck(workers, local_rank):
            return
        if workers.standing or workers.process.host.paused:
            self._busy.add(local_rank)
            self._world.after(_RETRY_S, self._obey, local_rank, page)
            return
        if local_rank in self.outside:
            if page[words.JOIN] != page[words.LEFT]:
                return  # still waiting
            self._world.watch.stays(workers, self.outside.pop(local_rank, NO_GENERATION))
            page[words.JOINED] = page[words.JOIN]
            self._world.watch.runs(workers)
        elif page[words.LEAVE] > page[words.LEFT]:
            self.outside[local_rank] = workers.formed.generation.id
            page[words.CALLS] = 0
            page[words.LEFT] = page[words.LEAVE]
            self._world.log(f"{workers.node.name}: {local_rank} has left the group")
            self._world.watch.runs(workers)
        if page[words.LEAVE] > page[words.LEFT] or page[words.JOIN] > page[words.JOINED]:
            self.told(local_rank)

    def _is_there(self, local_rank: int, page: memoryview) -> bool:
        """Return whether a worker is alive and hasn't been replaced."""
        workers = self._workers
        return workers.has(local_rank) and workers.steps.pages[local_rank] is page
