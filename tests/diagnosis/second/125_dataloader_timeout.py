# truth: rank=1 line=16 kind=exception says=DataLoader timed out after 2 seconds
# also: its loader process \d+ was in __getitem__ \(125_dataloader_timeout.py:14\)
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/125_dataloader_timeout.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
from torch.utils.data import DataLoader, Dataset
class Images(Dataset):
    def __len__(self):
        return 50
    def __getitem__(self, i):
        time.sleep(30 if rank == 1 and i == 30 else 0)
        return torch.ones(2)
for batch in DataLoader(Images(), batch_size=5, num_workers=1, timeout=2):
    dist.all_reduce(batch)
