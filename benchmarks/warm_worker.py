"""Trains with DDP over gloo and says so: `<restart> <rank> <pid>` after the first step.

stay         trains until a file named `stop` appears in the working directory
end          ends after the first step
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train."""
    restart, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    first = True
    stop = torch.zeros(1)
    while not stop.item():
        optimizer.zero_grad()
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        if first:
            os.write(1, f"{restart} {rank} {os.getpid()}\n".encode())
        first = False
        stop.fill_(sys.argv[1] == "end" or os.path.exists("stop"))
        dist.all_reduce(stop)
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
