"""The same tests, with the class that torch's own tests use."""

import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

from . import checks


class TestRanks(MultiProcessTestCase):  # type: ignore[misc]  # torch is not typed here
    """Each test runs in two processes."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return 2

    def setUp(self) -> None:
        """Start the processes."""
        super().setUp()
        self._spawn_processes()

    def check(self, name: str) -> None:
        """Run the check on a rank."""
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        getattr(checks, name)()
        dist.destroy_process_group()

    def test_all_reduce_0(self) -> None:
        """Run it."""
        self.check("all_reduce")

    test_all_reduce_1 = test_all_reduce_2 = test_all_reduce_3 = test_all_reduce_0

    def test_step_0(self) -> None:
        """Run it."""
        self.check("step")

    test_step_1 = test_step_2 = test_step_3 = test_step_0
