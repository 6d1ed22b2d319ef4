# truth: rank=3 line=11 kind=early says=rank 3
# run: {L} --nproc-per-node=4 {C}/13_uneven_shards_and_destroy.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
samples = list(range(rank, 15, 4))
for sample in samples:
    t = torch.ones(4) * sample
    dist.all_reduce(t)
    time.sleep(0.1)
dist.destroy_process_group()
