# truth: rank=0 line=0 kind=early says=0
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1|2)\b
# run: {L} --nproc-per-node=3 --hang-timeout=10 {C}/108_rank0_returns_with_store.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(torch.nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    if rank == 0 and step == 5:
        print("rank 0 has seen all of its data")
        break
    opt.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    opt.step()
