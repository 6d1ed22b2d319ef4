# truth: rank=1 line=0 kind=early says=1
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 --hang-timeout=10 {C}/106_fewer_batches_no_destroy.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
t = torch.ones(4)
for step in range(5 if rank == 1 else 8):
    dist.all_reduce(t)
    time.sleep(0.05)
