"""Trains with DDP over gloo, and prints `<restart> <rank> <pid> <world size>` after the first step.

stay         trains a small model, with pauses, until a file named `stop` appears in the working
             directory
busy         the same with a model that keeps a processor busy, without pauses; rank 0 writes the
             time at which each step ended to the file `steps` (doubles, in seconds of the monotonic
             clock)
"""

import os
import sys
import time
from array import array

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train."""
    restart, rank, world = (
        os.environ[name] for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE")
    )
    busy = sys.argv[1] == "busy"
    size, batch = (512, 256) if busy else (64, 8)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(size, size))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    inputs = torch.ones(batch, size)
    ends = array("d")
    stop = torch.zeros(1)
    while not stop.item():
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        if not ends:
            os.write(1, f"{restart} {rank} {os.getpid()} {world}\n".encode())
        stop.fill_(os.path.exists("stop"))
        dist.all_reduce(stop)
        ends.append(time.monotonic())
        if not busy:
            time.sleep(0.02)
    if busy:
        if rank == "0":
            with open("steps", "wb") as file:
                ends.tofile(file)
        os._exit(0)  # sometimes a process aborts while torch stops gloo's threads
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
