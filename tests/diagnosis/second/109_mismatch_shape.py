# truth: rank=2 line=13 kind=mismatch says=all_reduce
# also: (?i)shape|size|elements|numel|\(5,?\)|\[5\]
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|1)\b
# run: {L} --nproc-per-node=3 --hang-timeout=6 {C}/109_mismatch_shape.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
vocabulary = 5 if rank == 2 else 4
for step in range(3):
    dist.all_reduce(torch.ones(4))
counts = torch.zeros(vocabulary)
dist.all_reduce(counts)
dist.barrier()
