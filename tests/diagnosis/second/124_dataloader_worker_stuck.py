# truth: rank=1 line=15 kind=hang says=1
# also: (?i)loader|worker|data
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 --hang-timeout=6 {C}/124_dataloader_worker_stuck.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
from torch.utils.data import DataLoader, Dataset
class Images(Dataset):
    def __len__(self):
        return 50
    def __getitem__(self, i):
        if rank == 1 and i == 30:
            time.sleep(100000)  # a network file system that has gone
        return torch.ones(2)
for batch in DataLoader(Images(), batch_size=5, num_workers=1):
    dist.all_reduce(batch)
