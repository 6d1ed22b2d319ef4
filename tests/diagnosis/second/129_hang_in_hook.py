# truth: rank=1 line=14 kind=hang says=1
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 --hang-timeout=6 {C}/129_hang_in_hook.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
import threading
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(torch.nn.Linear(4, 4))
never = threading.Event()
def hook(module, args, output):
    if rank == 1 and step == 3:
        never.wait()
model.module.register_forward_hook(hook)
for step in range(6):
    model(torch.ones(2, 4)).sum().backward()
