# truth: rank=1 line=20 kind=exception says=Expected to have finished reduction in the prior iteration
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 --hang-timeout=12 {C}/142_ddp_unfinished_reduction.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x):
        if rank == 1 and n == 2:
            return self.a(x)  # b has no gradient at this rank
        return self.b(self.a(x))
model = DDP(Net())
for n in range(5):
    model(torch.ones(2, 4)).sum().backward()
