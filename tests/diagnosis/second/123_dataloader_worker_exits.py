# truth: rank=0 line=0 kind=exception says=exited
# also: decoder: licence has expired
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1)\b
# run: {L} --nproc-per-node=2 {C}/123_dataloader_worker_exits.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
from torch.utils.data import DataLoader, IterableDataset
class Frames(IterableDataset):
    def __iter__(self):
        for i in range(50):
            if rank == 0 and i == 30:
                print("decoder: licence has expired", file=sys.stderr, flush=True)
                os._exit(3)
            yield torch.ones(2)
for batch in DataLoader(Frames(), batch_size=5, num_workers=1):
    dist.all_reduce(batch)
