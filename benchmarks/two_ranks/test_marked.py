"""The test of two ranks, with the mark of the plugin."""

import pytest
import torch
import torch.distributed as dist


@pytest.mark.parametrize("number", range(20))
@pytest.mark.distributed(world_size=2)
def test_all_reduce(number: int) -> None:
    """Each rank gets the sum."""
    tensor = torch.full((2,), float(number))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2 * number] * 2
