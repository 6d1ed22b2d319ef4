import time
from datetime import timedelta

import torch
import torch.distributed as dist


def validate(rank):
    samples = 10 if rank != 1 else 10_000  # forgot to split the set for rank 1
    for _ in range(samples):
        time.sleep(0.01)


dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
for epoch in range(2):
    validate(rank)
    dist.monitored_barrier(timeout=timedelta(seconds=5))
    score = torch.rand(1)
    dist.all_reduce(score)
dist.destroy_process_group()
