# truth: rank=1 line=0 kind=early says=rank 1
# run: {L} --nproc-per-node=3 {C}/41_leaves_early.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
for step in range(20 if rank != 1 else 12):
    dist.all_reduce(torch.ones(4))
if rank == 1: sys.exit()
dist.destroy_process_group()
# also: (?i)end of the script|code 0
