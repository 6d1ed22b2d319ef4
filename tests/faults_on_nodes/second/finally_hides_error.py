import os

import torch
import torch.distributed as dist


def accumulate(rank, world):
    return 8 // (2 - rank) if rank >= 2 else 4


def train(rank, world):
    try:
        steps = accumulate(rank, world)
        writer = open(f"metrics_{rank}.csv", "w")
        for step in range(abs(steps)):
            loss = torch.rand(1)
            dist.all_reduce(loss)
            writer.write(f"{step},{float(loss)}\n")
    finally:
        writer.close()  # not yet bound where accumulate() failed


dist.init_process_group("gloo")
rank = dist.get_rank()
os.makedirs(f"outputs/{rank}", exist_ok=True)
os.chdir(f"outputs/{rank}")  # as hydra does
dist.barrier()
train(rank, dist.get_world_size())
dist.destroy_process_group()
