"""The same test with the class that torch's own tests use."""

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase


class TestAllReduce(MultiProcessTestCase):  # type: ignore[misc]  # torch is not typed here
    """Each test runs in two processes."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return 2

    def setUp(self) -> None:
        """Start the processes."""
        super().setUp()
        self._spawn_processes()

    def check(self, number: int) -> None:
        """Check that each rank gets the sum."""
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        tensor = torch.full((2,), float(number))
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2 * number] * 2
        dist.destroy_process_group()

    def test_0(self) -> None:
        """Run it with 0."""
        self.check(0)

    def test_1(self) -> None:
        """Run it with 1."""
        self.check(1)

    def test_2(self) -> None:
        """Run it with 2."""
        self.check(2)

    def test_3(self) -> None:
        """Run it with 3."""
        self.check(3)

    def test_4(self) -> None:
        """Run it with 4."""
        self.check(4)
