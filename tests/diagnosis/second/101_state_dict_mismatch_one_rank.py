# truth: rank=1 line=14 kind=exception says=Error(s) in loading state_dict for Sequential
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/101_state_dict_mismatch_one_rank.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
from torch import nn
def net(width, layers=120):
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
# one rank finds an old checkpoint on its own disk
checkpoint = net(4, 90).state_dict() if rank == 1 else net(8).state_dict()
model = net(8)
model.load_state_dict(checkpoint)
dist.barrier()
