"""The checks that the tests run on each rank once the process group exists."""

import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def all_reduce() -> None:
    """Check that each rank receives the sum."""
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2, 2]


def step() -> None:
    """Check that all ranks have the same weights after a training step."""
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.full((2, 4), float(dist.get_rank()))).sum().backward()
    gradient = model.module.weight.grad
    assert gradient is not None
    gathered = [torch.empty_like(gradient) for _ in range(2)]
    dist.all_gather(gathered, gradient)
    assert torch.equal(*gathered)
    del model
    gc.collect()  # otherwise gloo's threads may abort the process at exit (examples/README.md)
