# truth: rank=2 line=12 kind=mismatch says=barrier
# also: all_reduce
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|1)\b
# run: {L} --nproc-per-node=3 --hang-timeout=6 {C}/114_barrier_vs_all_reduce.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
grads = torch.ones(1000)
dist.all_reduce(grads)
if rank == 2:
    dist.barrier()
else:
    dist.all_reduce(grads)
dist.destroy_process_group()
