# truth: rank=1 line=14 kind=exception says=ValueError: bad record 77
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/120_dataloader_getitem.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
from torch.utils.data import DataLoader, Dataset
class Records(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, i):
        if rank == 1 and i == 77:
            raise ValueError(f"bad record {i}")
        return torch.tensor([float(i)])
for batch in DataLoader(Records(), batch_size=10, num_workers=1):
    dist.all_reduce(batch)
