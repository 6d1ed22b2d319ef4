# truth: rank=1 line=11 kind=exception says=appears not to match sizes of the same param
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 --hang-timeout=6 {C}/119_ddp_model_differs.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
from torch.nn.parallel import DistributedDataParallel as DDP
# the number of classes is counted in each rank's own shard
classes = 9 if rank == 1 else 10
model = DDP(torch.nn.Linear(8, classes))
model(torch.randn(2, 8)).sum().backward()
