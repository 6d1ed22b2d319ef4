# truth: rank=0 line=12 kind=exception says=stack expects each tensor to be equal size
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1)\b
# run: {L} --nproc-per-node=2 {C}/121_dataloader_collate.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
from torch.utils.data import DataLoader
data = [torch.zeros(3)] * 20
if rank == 0:
    data[13] = torch.zeros(4)
for batch in DataLoader(data, batch_size=5, num_workers=1):
    dist.all_reduce(batch.sum(0))
