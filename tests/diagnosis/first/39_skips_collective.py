# truth: rank=1 line=7 kind=network says=in evaluate (39_
# run: {L} --nproc-per-node=3 {C}/39_skips_collective.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
def evaluate(): time.sleep(60)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
for step in range(10):
    if rank == 1 and step == 3: evaluate(); continue
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
