"""Reseeds, in each worker, the random generators that imports have seeded randomly, and recreates
the temporary directories that imports have created.
"""

import os
import random
import sys
import weakref
from collections.abc import Callable
from typing import Any

from relight.preload.temp_dirs import Temporary


class RandomState:
    """Records the `random.Random` objects that are created without a seed, and the temporary files
    that are created, after this object has been created.
    """

    def __init__(self) -> None:
        self.temporary = Temporary()
        self._unseeded: dict[int, weakref.ref[random.Random]] = {}
        self._seed = random.Random.seed
        unseeded, seed = self._unseeded, self._seed

        def note(self: random.Random, a: Any = None, version: int = 2) -> None:
            seed(self, a, version)
            unseeded.pop(id(self), None)
            if a is None:
                unseeded[id(self)] = weakref.ref(self)

        note.__name__ = "seed"
        random.Random.seed = note  # type: ignore[method-assign]

    def end(self) -> None:
        """Stop recording."""
        random.Random.seed = self._seed  # type: ignore[method-assign]
        self.temporary.end()

    def renew(self) -> None:
        """Reseed the generators and recreate the temporary directories in a worker. `random`
        reseeds its own generator when a process forks.

        If an import seeded a generator with a fixed number, the generator keeps its state, as it
        would in a cold worker.
        """
        for reference in self._unseeded.values():
            generator = reference()
            if generator is not None:
                generator.seed()
        for name, draw in _DRAWS.items():
            module: Any = sys.modules.get(name)
            if module is not None:
                draw(module)
        self.temporary.renew()


def _seed_numpy(random: Any) -> None:
    if random.mtrand._rand._bit_generator.seed_seq is not None:  # not after seed(NUMBER)
        random.seed()


def _seed_torch(torch: Any) -> None:
    # A random seed in torch has 64 bits, whereas seeds chosen by people are small. The module named
    # torch may also be a different one.
    if hasattr(torch, "default_generator") and torch.default_generator.initial_seed() >= 1 << 32:
        torch.default_generator.seed()


def _renew_key(process: Any) -> None:
    process.current_process().authkey = os.urandom(32)


_DRAWS: dict[str, Callable[[Any], object]] = {
    "numpy.random": _seed_numpy,
    "torch": _seed_torch,
    "multiprocessing.process": _renew_key,
    "multiprocess.process": _renew_key,  # a fork of multiprocessing, which datasets depends on
    "threading": lambda threading: threading.main_thread()._set_native_id(),
}
