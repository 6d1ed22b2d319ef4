# truth: rank=0 line=15 kind=exception says=FileNotFoundError
# run: {L} --nproc-per-node=2 {C}/20_worker_init_fn_fails.py
# also: index-
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Stream(IterableDataset):
    def __iter__(self):
        yield from range(100)
def init(worker):
    if rank == 0:
        open(f"/nonexistent/index-{worker}.bin", "rb")
if __name__ == "__main__":
    for batch in DataLoader(Stream(), batch_size=4, num_workers=2, worker_init_fn=init):
        pass
    time.sleep(300)
