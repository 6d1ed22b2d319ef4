# truth: rank=1 line=14 kind=mismatch says=all_reduce
# also: (?i)dtype|float64|double|type
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 --hang-timeout=6 {C}/110_mismatch_dtype.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
import random
loss = torch.tensor([0.5])
if rank == 1:
    loss = torch.tensor([0.5], dtype=torch.float64)  # came from numpy
dist.all_reduce(torch.ones(1))
dist.all_reduce(loss)
print(loss.item())
dist.barrier()
