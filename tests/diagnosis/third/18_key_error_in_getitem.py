# truth: rank=1 line=14 kind=exception says=KeyError: 'caption'
# run: {L} --nproc-per-node=2 {C}/18_key_error_in_getitem.py
# never: worker\.py:\d+ in the first
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Pairs(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        row = {"image": i} if rank == 1 and i == 33 else {"image": i, "caption": 2 * i}
        return row["image"], row["caption"]
if __name__ == "__main__":
    for batch in DataLoader(Pairs(), batch_size=8, num_workers=2):
        pass
    time.sleep(300)
