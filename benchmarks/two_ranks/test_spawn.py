"""The same tests, with torch.multiprocessing.spawn."""

import os
import socket

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from . import checks


def work(rank: int, port: int, name: str) -> None:
    """Run the check on a rank."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    getattr(checks, name)()
    dist.destroy_process_group()


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("name", ["all_reduce", "step"])
def test_it(name: str, number: int) -> None:
    """Run the check."""
    del number
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    mp.spawn(work, args=(port, name), nprocs=2)
