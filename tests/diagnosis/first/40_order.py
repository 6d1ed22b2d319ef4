# truth: rank=1 line=11 kind=mismatch says=rank 1 in barrier
# run: {L} --nproc-per-node=3 {C}/40_order.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
for step in range(10):
    if not (rank == 1 and step == 3):
        dist.all_reduce(torch.ones(4))
    dist.barrier()
dist.destroy_process_group()
# also: ranks 0, 2 in all_reduce
# never: gone or late
