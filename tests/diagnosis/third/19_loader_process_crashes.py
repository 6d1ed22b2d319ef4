# truth: rank=1 line=0 kind=signal says=DataLoader worker
# run: {L} --nproc-per-node=2 {C}/19_loader_process_crashes.py
# also: (?i)segmentation fault|SIGSEGV
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
from torch.utils.data import DataLoader, Dataset, IterableDataset

import ctypes
class Clips(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        if rank == 1 and i == 20:
            ctypes.string_at(0)
        return i
if __name__ == "__main__":
    for batch in DataLoader(Clips(), batch_size=4, num_workers=1):
        time.sleep(0.02)
    time.sleep(300)
