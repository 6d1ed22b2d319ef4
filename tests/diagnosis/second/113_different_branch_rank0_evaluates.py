# truth: rank=0 line=10 kind=mismatch says=barrier
# also: all_reduce
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1|2)\b
# run: {L} --nproc-per-node=3 --hang-timeout=6 {C}/113_different_branch_rank0_evaluates.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
def evaluate():
    dist.barrier()  # "wait for the others"
    return 0.5
def train(n):
    dist.all_reduce(torch.full((16,), float(n)))
for n in range(6):
    train(n)
    if n == 3 and rank == 0:
        evaluate()
dist.barrier()
