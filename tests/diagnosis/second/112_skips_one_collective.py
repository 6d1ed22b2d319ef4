# truth: rank=1 line=0 kind=mismatch says=1
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 --hang-timeout=6 {C}/112_skips_one_collective.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
def step(n):
    loss = torch.tensor([float("nan") if rank == 1 and n == 3 else 1.0])
    if torch.isnan(loss):
        return  # skips the batch, and the collective
    dist.all_reduce(loss)
for n in range(8):
    step(n)
metrics = [torch.zeros(7) for _ in range(world)]
dist.all_gather(metrics, torch.ones(7))
