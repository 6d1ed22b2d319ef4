"""The same test with torch.multiprocessing.spawn."""

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank: int, port: int, number: int) -> None:
    """Run the test on a rank."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    tensor = torch.full((2,), float(number))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2 * number] * 2
    dist.destroy_process_group()


@pytest.mark.parametrize("number", range(5))
def test_all_reduce(number: int) -> None:
    """Each rank gets the sum."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    mp.spawn(work, args=(port, number), nprocs=2)
